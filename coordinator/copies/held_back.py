"""What a slice's queue keeps for copies that do not get on, and which of them is given up for it. Pure (R34,
R43).

Theory of operation. A queue keeps what its slowest copy has still to read durably, so a copy that stands
still fills Kafka's disk. Past `queue_max_bytes` it is dearer than filling it anew. That frees something only
where another copy is farther on by so much, and loses nothing where that holds what is published. When all
copies stand still together, as while no timestamp is issued, none is given up: it is only told.

While a disk of Kafka is nearly full, whatever that bound is, what frees a quarter of what is to be free there
is given up, one at a time, for Kafka takes a minute to delete: a copy whose node has been silent for longer
than a restart takes, and one that is being filled, for which alone the queue is kept. One that counts on a
live node is not: between two folds it may lag by as much, and filling it anew takes room.
"""

from __future__ import annotations

from typing import Final

from coordinator.copies.reports import CopyReports
from coordinator.core.nodes import HeardNodes
from coordinator.core.queue_sizes import KafkaDisk, QueueSizes
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord
from keytide.model.topics import Topics

AWAY_MS: Final = 30_000
"""Silence for so long is no restart."""
DELETED_MS: Final = 90_000
"""From an order to delete records until a disk has the room: Kafka deletes files a minute later
(file.delete.delay.ms), and tells sizes each ten seconds."""


class HeldBack:
    """Compares copies by how far they have read their slice's queue.

    Args:
        sizes: of queues.
        most: bytes that a copy may hold back beyond another one; 0: no limit.
    """

    def __init__(
        self, topics: Topics, nodes: HeardNodes, reports: CopyReports, sizes: QueueSizes, most: int
    ) -> None:
        self.most = most
        self._topics = topics
        self._nodes = nodes
        self._reports = reports
        self._sizes = sizes
        self._relieved_at: dict[tuple[int, str], int] = {}

    def disk(self, index: IndexRecord, number: int) -> KafkaDisk | None:
        """The disk of Kafka that a slice's queue lies on, if it is nearly full."""
        return self._sizes.full_below(self._queue(index, number))

    def crowded(self, record: CopyRecord, index: IndexRecord, now: int) -> tuple[int, KafkaDisk] | None:
        """Bytes that a queue keeps for a copy that is being filled and for no other one, on a disk of Kafka
        that is nearly full; None when they are few, or the disk has been relieved a moment ago."""
        disk = self._to_relieve(index, record.slice, now)
        if disk is None:
            return None
        kept = index.copies_kept(record.slice).items()
        said = [self._reports.said(node, index.id, record.slice, copy) for node, copy in kept]
        needed = [one.queue_horizon if one else -1 for one in said if one is None or one.state != "LOST"]
        filling = self._reports.filling(index, record.slice)
        needed += [one.need for one in filling if one.id != record.id]
        bytes_ = self._sizes.between(self._queue(index, record.slice), record.need, min(needed, default=-1))
        return (bytes_, disk) if bytes_ > self._sizes.noticeable_bytes else None

    def bound(self, index: IndexRecord, number: int, node: str, now: int) -> int:
        """Bytes of its queue that a copy that counts may hold back beyond another one; 0: no limit."""
        if not self._nodes.silent_for(node, AWAY_MS) or self._to_relieve(index, number, now) is None:
            return self.most
        return min(self.most or self._sizes.noticeable_bytes, self._sizes.noticeable_bytes)

    def relieved(self, index: IndexRecord, number: int, now: int) -> None:
        """A copy was given up for the disk that its queue lies on."""
        if (disk := self.disk(index, number)) is not None:
            self._relieved_at[disk.broker, disk.folder] = now

    def _to_relieve(self, index: IndexRecord, number: int, now: int) -> KafkaDisk | None:
        """A disk that is nearly full, unless Kafka has not had the time to delete what was given up last."""
        disk = self.disk(index, number)
        last = self._relieved_at.get((disk.broker, disk.folder)) if disk is not None else None
        return None if last is not None and 0 <= now - last < DELETED_MS else disk

    def of(self, index: IndexRecord, number: int, node: str) -> int:
        """About how many bytes of a slice's queue a copy that counts has still to read durably."""
        position = self._position(index, number, node)
        return 0 if position is None else self._sizes.between(self._queue(index, number), position)

    def ahead(self, index: IndexRecord, number: int, node: str, now: int) -> list[str]:
        """The nodes whose copies of a slice are farther on than that of `node`, by more than may be."""
        most = self.bound(index, number, node, now)
        position = self._position(index, number, node) if most else None
        if position is None:
            return []
        queue = self._queue(index, number)
        others = {one: self._position(index, number, one) for one in index.placement[number] if one != node}
        return [
            one
            for one, theirs in others.items()
            if theirs is not None and self._sizes.between(queue, position, theirs) > most
        ]

    def _queue(self, index: IndexRecord, number: int) -> tuple[str, int]:
        return self._topics.mutations(index.id), number

    def _position(self, index: IndexRecord, number: int, node: str) -> int | None:
        """What a copy has durably read of its queue. Nothing, if its node is silent and has not said so in
        this term; None if it may still say so."""
        status = self._reports.counted(index, number, node)
        if status is not None:
            return status.queue_position
        return None if node in self._nodes.live() or self._nodes.unheard([node]) else 0
