"""`keytide trace`: what became of the newest record of a document, hop by hop.

    command    asks and tells: settings, dictionary, record, hops
    stretches  reads stretches of topics, by offset or by time
    source     finds the newest record of a document
    logs       finds the messages that tell of it (`keytide.trace` says what they mean)
    entries    what the record projects to, and whether scans show it
    rendering  what people see

Called by `deploy.commands`. It reads, and leaves nothing behind: no consumer group, no commit, no message.
"""

from deploy.trace.command import TraceOptions, run

__all__ = ["TraceOptions", "run"]
