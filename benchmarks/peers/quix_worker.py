"""One process of Quix Streams: keeps the indexed key of each document in a state store, by document id.

Run with the Python of `quix_streams`, which has nothing of Keytide's: `quix_worker.py BOOTSTRAP TOPIC FOLDER
PROGRESS`. PROGRESS is a file with eight bytes for each source partition, the next offset that is to be
processed, little-endian; processes of one group share it, as each partition has one of them.
"""

from __future__ import annotations

import mmap
import struct
import sys
from typing import Any

from quixstreams import Application, State


def main(bootstrap: str, topic: str, folder: str, progress: str) -> None:
    with open(progress, "r+b") as file:
        places = mmap.mmap(file.fileno(), 0)

    def processed(_: str, partition: int, offset: int) -> None:
        struct.pack_into("<q", places, 8 * partition, offset + 1)

    def index(document: dict[str, Any], state: State) -> None:
        key = [document["city"], document["age"]]
        if state.get("key") != key:
            state.set("key", key)

    application = Application(
        broker_address=bootstrap,
        consumer_group="quix",
        auto_offset_reset="earliest",
        state_dir=folder,
        on_message_processed=processed,
        loglevel="WARNING",
        consumer_extra_config={
            # It stands still while its topic is filled, and is not to lose its partitions by that.
            "session.timeout.ms": 1_700_000,
            "max.poll.interval.ms": 3_600_000,
            "fetch.queue.backoff.ms": 2,  # else it waits for a second when its queue is full
        },
    )
    source = application.topic(topic, key_deserializer="str", value_deserializer="json")
    application.dataframe(source).update(index, stateful=True)
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
