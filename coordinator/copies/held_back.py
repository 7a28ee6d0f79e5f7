"""What a slice's queue keeps for copies that do not get on, and which of them is given up for it. Pure (R34,
R43).

Theory of operation. A queue keeps what its slowest copy has still to read durably, so a copy that stands
still fills Kafka's disk. Past `queue_max_bytes` it is dearer than filling it anew. That frees something only
where another copy is farther on by so much, and loses nothing where that holds what is published. When all
copies stand still together, as while no timestamp is issued, none is given up: it is only told.

While a disk of Kafka is nearly full, whatever that bound is, what frees a quarter of what is to be free there
is given up: a copy whose node is silent, and one that is being filled, for which alone the queue is kept. One
that counts on a live node is not: between two folds it may lag by as much, and filling it anew takes room.
"""

from __future__ import annotations

from coordinator.copies.reports import CopyReports
from coordinator.core.nodes import HeardNodes
from coordinator.core.queue_sizes import KafkaDisk, QueueSizes
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord
from keytide.model.topics import Topics


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

    def disk(self, index: IndexRecord, number: int) -> KafkaDisk | None:
        """The disk of Kafka that a slice's queue lies on, if it is nearly full."""
        return self._sizes.full_below(self._queue(index, number))

    def crowded(self, record: CopyRecord, index: IndexRecord) -> tuple[int, KafkaDisk] | None:
        """Bytes that a queue keeps for a copy that is being filled, and for none that counts, on a disk of
        Kafka that is nearly full; None when they are few."""
        disk = self.disk(index, record.slice)
        said = [self._reports.counted(index, record.slice, node) for node in index.placement[record.slice]]
        needed = [one.queue_horizon if one else -1 for one in said if one is None or one.state != "LOST"]
        horizon = min(needed, default=-1)
        kept = self._sizes.between(self._queue(index, record.slice), record.need, horizon)
        return (kept, disk) if disk is not None and kept > self._sizes.share else None

    def bound(self, index: IndexRecord, number: int, node: str) -> int:
        """Bytes of its queue that a copy that counts may hold back beyond another one; 0: no limit."""
        silent = node not in self._nodes.live() and not self._nodes.unheard([node])
        if not silent or self.disk(index, number) is None:
            return self.most
        return min(self.most or self._sizes.share, self._sizes.share)

    def of(self, index: IndexRecord, number: int, node: str) -> int:
        """About how many bytes of a slice's queue a copy that counts has still to read durably."""
        position = self._position(index, number, node)
        return 0 if position is None else self._sizes.between(self._queue(index, number), position)

    def ahead(self, index: IndexRecord, number: int, node: str) -> list[str]:
        """The nodes whose copies of a slice are farther on than that of `node`, by more than may be."""
        most = self.bound(index, number, node)
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
