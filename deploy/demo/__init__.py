"""`keytide demo`: the flights that left New York in 2013, indexed while they depart and arrive.

airports  where they are; `flights`: the documents, as scheduled, and the updates of a year in time-lapse
feed      kafka-python producers for both
oracle    an independent reader of the topic (json, kafka-python; nothing of Keytide's) that says what each
          index must hold; `nearby`: questions of places, and what their answers must be (`spheroid`)
proof     holds what was scanned and asked against it
story     the demo itself: cluster, feed, builds, questions, check, table

Called by `deploy.commands`.
"""

from deploy.demo.story import run

__all__ = ["run"]
