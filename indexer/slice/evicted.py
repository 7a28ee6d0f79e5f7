"""What a full slice has let go of, and where its mutation queue has it (R4, R6). Pure.

It holds the slice's queue position, and so what may be deleted of the queue (R34), until it has come again.
"""

from __future__ import annotations

from dataclasses import dataclass

from indexer.slice.mutation_queue import PendingMutations
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import Segment


@dataclass(frozen=True, slots=True)
class _Span:
    """Of one source partition: what was held ends at `end`; the queue has it from `position` on."""

    end: Place
    position: int


class EvictedMutations:
    """By source partition, what was held and has not come another time."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: dict[int, _Span] = {}

    def __contains__(self, partition: int) -> bool:
        return partition in self._spans

    def evict(self, queue: PendingMutations) -> None:
        """Let go of all that `queue` holds."""
        for partition, (end, position) in queue.evict().items():
            known = self._spans.get(partition)
            first = position if known is None else min(position, known.position)
            self._spans[partition] = _Span(end, first)

    def heard(self, segment: Segment, until: int) -> None:
        """Hearing has come to offset `until` by a segment: sent again, or a later leader's in its place."""
        span = self._spans.get(segment.partition)
        if span is not None and (until >= span.end.offset or segment.epoch > span.end.epoch):
            del self._spans[segment.partition]

    def wanted(self, timestamp: Timestamp, queue: PendingMutations) -> bool:
        """Whether a timestamp reaches what has not come another time."""
        return any(
            not queue.covers(Timestamp({partition: timestamp.place(partition)}, timestamp.topic_id))
            for partition in self._spans
        )

    def first_position(self) -> int | None:
        """Where the queue is to be read again, None when nothing was let go of (R6)."""
        return min((span.position for span in self._spans.values()), default=None)
