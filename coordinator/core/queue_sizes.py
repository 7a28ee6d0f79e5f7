"""How much is in mutation queues, and free on the disks that they lie on, as Kafka has said. Pure.

Theory of operation. Kafka tells the bytes of a whole queue on a broker's disk, with what was deleted from the
middle of its oldest segment. So the bytes between two offsets are worked out from by how much the queue has
grown from one answer to the next, the newest growth counting most. Where segments were deleted meanwhile that
is too little, never too much; where nothing has grown yet, nothing is known, and nothing is held against
anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

QueuePartition = tuple[str, int]
"""(topic, partition)."""


class QueueSize(NamedTuple):
    """A queue partition.

    Attributes:
        begin, end: first offset that is there, and the next one.
        bytes: what one replica of it takes, the largest.
    """

    begin: int
    end: int
    bytes: int


BELIEVED: Final = 6
"""Questions without an answer in a row, after which nothing is known of disks: a minute of them."""


class KafkaDisk(NamedTuple):
    """A folder of a broker's, and the disk below it.

    Attributes:
        free, total: bytes of the disk.
        queues: what of the cluster's topics lies there.
    """

    broker: int
    folder: str
    free: int
    total: int
    queues: frozenset[QueuePartition]

    @property
    def words(self) -> str:
        """The disk, for people."""
        return f"the disk of {self.folder} of Kafka's broker {self.broker}"


class QueueSizes:
    """The newest sizes.

    Args:
        least: bytes that are to be free on each disk of Kafka.

    Attributes:
        by_partition: what Kafka has told of each.
        disks: of Kafka, that have something of the cluster, as it has told.
        full: those with less than is to be free, until they have a quarter more than that.
    """

    def __init__(self, least: int = 0) -> None:
        self.by_partition: Mapping[QueuePartition, QueueSize] = {}
        self.disks: Sequence[KafkaDisk] = ()
        self.full: Sequence[KafkaDisk] = ()
        self.least = least
        self._untold_times = 0
        self._grown: dict[QueuePartition, tuple[int, int]] = {}
        """Bytes and offsets, the older ones halved at each growth."""

    @property
    def noticeable_bytes(self) -> int:
        """Bytes by which a disk is told from a full one, and that are worth giving something up for."""
        return self.least // 4

    @property
    def untold(self) -> bool:
        """Whether Kafka was asked and has not said."""
        return self._untold_times > 0

    def told(self, sizes: Mapping[QueuePartition, QueueSize] | None, disks: Sequence[KafkaDisk] = ()) -> None:
        """Take an answer over; None: there was none. What was known of disks is believed for some more such
        answers: a broker that does not answer may be the one whose disk is full."""
        self._untold_times = self._untold_times + 1 if sizes is None else 0
        if sizes is None:
            if self._untold_times > BELIEVED:
                self.disks = self.full = ()
            return
        were = {(disk.broker, disk.folder) for disk in self.full}
        self.disks = [disk for disk in disks if disk.queues]
        self.full = [
            disk
            for disk in self.disks
            if disk.free < self.least + (self.noticeable_bytes if (disk.broker, disk.folder) in were else 0)
        ]
        grown: dict[QueuePartition, tuple[int, int]] = {}
        for place, size in sizes.items():
            before = self.by_partition.get(place)
            if before is None or size.end < before.end:
                continue  # (one that ends earlier was made anew)
            count, offsets = self._grown.get(place, (0, 0))
            if size.bytes > before.bytes and size.end > before.end:
                count = count // 2 + size.bytes - before.bytes
                offsets = offsets // 2 + size.end - before.end
            grown[place] = count, offsets
        self.by_partition, self._grown = dict(sizes), grown

    def full_below(self, place: QueuePartition) -> KafkaDisk | None:
        """The full disk that a queue lies on, if it does."""
        return next((disk for disk in self.full if place in disk.queues), None)

    def between(self, place: QueuePartition, first: int, last: int | None = None) -> int:
        """About how many bytes lie in [first, last), as far as they are still there; 0 while that is not
        known.

        Args:
            last: None: the queue's end.
        """
        size, (count, offsets) = self.by_partition.get(place), self._grown.get(place, (0, 0))
        if size is None or not offsets:
            return 0
        length = min(size.end, size.end if last is None else last) - max(size.begin, first)
        return min(size.bytes, max(0, length) * count // offsets)
