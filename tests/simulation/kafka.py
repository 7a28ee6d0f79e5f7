"""The simulated Kafka beside the source: the cluster's own topics, and the projectors' group. It survives all
crashes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import Record
from keytide.errors import RetryableError
from keytide.wire.messages import Message, Published, StabilityTimestamp
from projector.progress.commits import Committed
from tests.simulation.source import PARTITIONS, Source

CLUSTER = "sim"


class Queue:
    """One partition of a queue topic.

    Attributes:
        records: all that were ever sent; the place in the list is the offset.
        times: when they were sent.
        begin: the first that is still there.
    """

    __slots__ = ("begin", "records", "times")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.times: list[int] = []
        self.begin = 0

    def append(self, record: bytes, now: int) -> None:
        self.records.append(record)
        self.times.append(now)

    def young(self, older_than: int) -> int:
        """The first offset that is not older than that."""
        return bisect_left(self.times, older_than)

    def trim(self, before: int) -> int:
        """Delete records; returns how many went."""
        gone = max(0, before - self.begin)
        self.begin += gone
        return gone

    @property
    def end(self) -> int:
        return len(self.records)


@dataclass(slots=True)
class Kafka:
    """Topics.

    Attributes:
        queues: topic -> a queue for each partition. A topic that is not here does not exist.
        deleted: topics that were there.
        control: records; the place in the list is the number.
        control_begin: the first that is still there.
        metadata: (key, record); all of it, not compacted.
        term: the newest claim of the metadata topic: whoever writes under a lower one is fenced.
        reports: what coordinators read.
        committed: by source partition.
        owner: by source partition (projector, generation).
    """

    source: Source = field(default_factory=Source)
    queues: dict[str, list[Queue]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    control: list[StabilityTimestamp | Published] = field(default_factory=list)
    control_begin: int = 0
    metadata: list[tuple[str, Record | None]] = field(default_factory=list)
    term: int = 0
    reports: list[Message] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=lambda: [Committed(None, -1, "")] * PARTITIONS)
    owner: list[tuple[str, int]] = field(default_factory=lambda: [("", 0)] * PARTITIONS)

    def make(self, topic: str, partitions: int) -> bool:
        """Create a topic; False when it exists, with however many partitions."""
        if topic in self.queues:
            return False
        self.queues[topic] = [Queue() for _ in range(partitions)]
        self.deleted.discard(topic)
        return True

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic the partitions that it lacks."""
        present = self.queues[topic]
        present += [Queue() for _ in range(partitions - len(present))]

    def delete(self, topic: str) -> None:
        if self.queues.pop(topic, None) is not None:
            self.deleted.add(topic)

    def ends(self, topic: str) -> dict[int, int]:
        return {number: queue.end for number, queue in enumerate(self.queues.get(topic, []))}

    def queue(self, topic: str, partition: int) -> Queue | None:
        queues = self.queues.get(topic, [])
        return queues[partition] if partition < len(queues) else None

    def kept_control(self) -> list[tuple[int, StabilityTimestamp | Published]]:
        """What is left of the control topic, with the offsets."""
        return list(enumerate(self.control[self.control_begin :], self.control_begin))

    def expire(self, *, commits: bool) -> None:
        """What is kept for a time only is gone: the control topic, and the group's commits if it took that
        long. (Queues keep everything until it is trimmed.)"""
        self.control_begin = len(self.control)
        if commits:
            self.committed = [Committed(None, -1, "")] * PARTITIONS

    def commit(self, commits: Mapping[int, tuple[int, Committed]]) -> bool:
        """A group commit; False when another generation has taken over (fenced).

        Args:
            commits: partition -> generation, and what is to be committed.
        """
        if any(self.owner[partition][1] != generation for partition, (generation, _) in commits.items()):
            return False
        for partition, (_, commit) in commits.items():
            self.committed[partition] = commit
        return True

    def write(self, term: int, records: tuple[tuple[str, Record | None], ...]) -> bool:
        """A transaction of the metadata topic; False when it is fenced."""
        if term < self.term:
            return False
        self.metadata += records
        return True


class Reader:
    """Follows the metadata topic.

    Attributes:
        catalog: as far as it was read.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.catalog = Catalog()

    def read(self, most: int = 1 << 30) -> bool:
        """Take in some records; whether there were any. (A transaction may be seen in part.)"""
        begin = self.catalog.offset
        end = min(len(self._kafka.metadata), begin + most)
        if end == begin:
            return False
        for key, record in self._kafka.metadata[begin:end]:
            if record is None:
                self.catalog.remove(key)
            else:
                self.catalog.put(key, record)
        self.catalog.offset = end
        return True


class DiskFullError(RetryableError):
    """A simulated one."""

    problem_type = "disk-full"
