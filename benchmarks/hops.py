"""Where a document's freshness goes: how long each hop took, from the source to the answer of a scan.

Theory of operation: nothing is added to what is measured. Each message of Keytide's own topics has the time
at which its sender made it, so the topics are read afterwards, and each document is found in them: in the
segments of a queue, in a report of progress, in a timestamp, in what nodes acknowledged and in what was
published. All clocks are this machine's; Kafka keeps milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import Bench
from keytide.errors import KeytideError, invariant
from keytide.model.topics import Topics
from keytide.wire.messages import Acknowledged, Progress, Published, SegmentBatch, StabilityTimestamp, decode

HOPS: Final = ("written", "projected", "reported", "stamped", "committed", "published", "answered")
"""Until Kafka has acknowledged the document, its segment is sent, its progress is reported (all queues have
acknowledged), a timestamp that covers it is sent, the last slice says that it holds it, its number is
published, the scan has answered."""


class Probe(NamedTuple):
    """One document that was written and looked for. Times in milliseconds since the epoch."""

    partition: int
    offset: int
    began: float
    written: float
    answered: float

    @property
    def took(self) -> float:
        return self.answered - self.began


class _Log(NamedTuple):
    """What the topics say, in order.

    Attributes:
        sent: by source partition (end of a segment, when it was sent).
        reported: by source partition (acknowledged offset, when that was said).
        stamps: (offsets by partition, number, when).
        acknowledged: number -> when its last slice said so.
        published: (number, when).
    """

    sent: dict[int, list[tuple[int, int]]]
    reported: dict[int, list[tuple[int, int]]]
    stamps: list[tuple[dict[int, int], int, int]]
    acknowledged: dict[int, int]
    published: list[tuple[int, int]]


def hops(bench: Bench, probes: Sequence[Probe], cluster: str = "keytide") -> dict[str, list[float]]:
    """Hop -> how long it took for each document, in milliseconds."""
    log = _read(bench, Topics(cluster))
    found: dict[str, list[float]] = {name: [] for name in HOPS}
    for probe in probes:
        end = probe.offset + 1
        sent = _first(log.sent[probe.partition], end)
        reported = _first(log.reported[probe.partition], end)
        stamps = ((n, at) for places, n, at in log.stamps if places.get(probe.partition, 0) >= end)
        number, stamped = next(stamps)
        published_number, published = next(one for one in log.published if one[0] >= number)
        committed = log.acknowledged[published_number]
        times = (probe.began, probe.written, sent, reported, stamped, committed, published, probe.answered)
        for name, before, at in zip(HOPS, times, times[1:], strict=False):
            found[name].append(at - before)
    return found


def _first(places: list[tuple[int, int]], end: int) -> int:
    """When a place was first at or past `end`."""
    where = bisect_left(places, (end, 0))
    invariant(where < len(places), "BenchmarkHops", f"nothing reaches {end}")
    return places[where][1]


def _read(bench: Bench, topics: Topics) -> _Log:
    (index,) = (record["id"] for record in bench.admin.call("GET", "/v1/indexes"))
    log = _Log(defaultdict(list), defaultdict(list), [], {}, [])
    for topic in (topics.mutations(index), topics.reports, topics.control):
        for offset, at, data in _records(bench.bootstrap, topic):
            try:
                message = decode(data)
            except KeytideError:
                continue
            match message:
                case SegmentBatch(segments=segments):
                    for one in segments:
                        _note(log.sent[one.partition], one.end, at)
                case Progress(partitions=partitions):
                    for line in partitions:
                        _note(log.reported[line.partition], line.acked, at)
                case Acknowledged(number=number):
                    log.acknowledged[number] = max(at, log.acknowledged.get(number, 0))
                case StabilityTimestamp(timestamp=timestamp):
                    places = {partition: place.offset for partition, place in timestamp.places.items()}
                    log.stamps.append((places, offset, at))
                case Published(numbers=numbers):
                    log.published.append((numbers.get(index, -1), at))
    return log


def _note(places: list[tuple[int, int]], end: int, at: int) -> None:
    if not places or end > places[-1][0]:
        places.append((end, at))


def _records(bootstrap: str, topic: str) -> Iterator[tuple[int, int, bytes]]:
    """(offset, time, value) of partition 0, from what is kept of it to its present end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "hops", "enable.auto.commit": False})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, low)])
    position = low
    while position < high:
        for message in consumer.consume(1_000, 1.0):
            position = (message.offset() or 0) + 1
            yield position - 1, message.timestamp()[1], message.value() or b""
    consumer.close()
