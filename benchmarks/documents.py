"""The documents of the benchmarks: JSON of about 240 bytes, as in the peers' runs, in 8 source partitions.

Document `n` is the same in every run; a later `version` of it has another key, so that every update moves its
entry.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable

from confluent_kafka import Producer

from benchmarks.harness import progress_line

PARTITIONS = 8
CITIES = 10_000
_STATUSES = ("active", "dormant", "trial", "closed")


def document_id(number: int) -> bytes:
    return b"u%09d" % number


def document(number: int, version: int = 0) -> bytes:
    """About 240 bytes of JSON."""
    mixed = (number * 2_654_435_761 + version * 40_503) & 0xFFFFFFFF
    city, age = mixed % CITIES, mixed // CITIES % 80 + 18
    return (
        b'{"name":"Person Number %d","email":"person.%d@example.org","city":"city-%05d","age":%d,'
        b'"status":"%s","balance":%d.%02d,"version":%d,"tags":["t%d","t%d"],'
        b'"address":{"street":"%d Long Street","postcode":"%06d"}}'
        % (
            number,
            number,
            city,
            age,
            _STATUSES[mixed % 4].encode(),
            mixed % 100_000,
            mixed % 100,
            version,
            mixed % 50,
            mixed % 49 + 50,
            mixed % 999,
            mixed % 999_983,
        )
    )


def padded(number: int, version: int = 0) -> bytes:
    """A document with 900 bytes more, which differ from any other's and do not compress."""
    pad = hashlib.shake_128(b"%d %d" % (number, version)).hexdigest(450).encode()
    return document(number, version)[:-1] + b',"pad":"%s"}' % pad


def load(
    bootstrap: str,
    topic: str,
    numbers: Iterable[int],
    version: int = 0,
    per_second: int = 0,
    make: Callable[[int, int], bytes] = document,
) -> int:
    """Write documents with librdkafka. Returns how many; all are acknowledged when this returns.

    Args:
        make: document `number` in a version.
        per_second: pace; 0 for as fast as it goes.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.num.messages": 20_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 512_000,
            "compression.type": "none",
        }
    )
    sent, began = 0, time.monotonic()
    for number in numbers:
        while True:
            try:
                producer.produce(topic, make(number, version), document_id(number))
                break
            except BufferError:
                producer.poll(0.05)
        sent += 1
        if sent % 10_000 == 0:
            producer.poll(0)
            progress_line(f"loading {sent:,} documents")
        if per_second and sent % 100 == 0:
            ahead = sent / per_second - (time.monotonic() - began)
            if ahead > 0:
                producer.poll(0)
                time.sleep(ahead)
    producer.flush()
    progress_line("")
    return sent
