"""How much is in mutation queues, as Kafka has said. Pure.

Theory of operation. Kafka tells the bytes of a whole queue on a broker's disk, with what was deleted from the
middle of its oldest segment. So the bytes between two offsets are worked out from by how much the queue has
grown from one answer to the next, the newest growth counting most. Where segments were deleted meanwhile that
is too little, never too much; where nothing has grown yet, nothing is known, and nothing is held against
anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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


class QueueSizes:
    """The newest sizes.

    Attributes:
        by_partition: what Kafka has told of each.
        untold: Kafka was asked and has not said.
    """

    def __init__(self) -> None:
        self.by_partition: Mapping[QueuePartition, QueueSize] = {}
        self.untold = False
        self._grown: dict[QueuePartition, tuple[int, int]] = {}
        """Bytes and offsets, the older ones halved at each growth."""

    def told(self, sizes: Mapping[QueuePartition, QueueSize] | None) -> None:
        """Take an answer over; None: there was none."""
        self.untold = sizes is None
        if sizes is None:
            return
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
