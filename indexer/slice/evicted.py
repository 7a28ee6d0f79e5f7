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
    """Of one source partition: what was held, and what came behind it, ends at `end`; the queue has it from
    `position` on."""

    end: Place
    position: int


class EvictedMutations:
    """By source partition, what was held and has not come another time."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: dict[int, _Span] = {}

    def __contains__(self, partition: int) -> bool:
        return partition in self._spans

    def evict(self, queue: PendingMutations) -> list[int]:
        """Let go of all that `queue` holds; returns the source partitions of which it held anything."""
        gone = queue.evict()
        for partition, (end, position) in gone.items():
            known = self._spans.get(partition)
            if known is None:  # else that is a part of it, come again
                self._spans[partition] = _Span(end, position)
        return list(gone)

    def dropped(self, segment: Segment, limit: Place | None) -> None:
        """A segment, of which what lies below `limit` counts, continues what was let go of, and is dropped:
        nobody sends it again."""
        span = self._spans[segment.partition]
        end = Place(segment.end, segment.epoch)
        if limit is not None and limit.offset < end.offset:
            end = limit
        if not _reaches(span.end, end):
            self._spans[segment.partition] = _Span(end, span.position)

    def heard(self, partition: int, place: Place) -> None:
        """Hearing has come to `place`: all of it was sent again, or a later leader's came in its place. (What
        is of an earlier leader does not count, however far it reaches.)"""
        span = self._spans.get(partition)
        if span is not None and _reaches(place, span.end):
            del self._spans[partition]

    def wanted(self, timestamp: Timestamp, queue: PendingMutations) -> bool:
        """Whether a timestamp reaches what has not come another time."""
        return any(
            not queue.covers(Timestamp({partition: timestamp.place(partition)}, timestamp.topic_id))
            for partition in self._spans
        )

    def first_position(self) -> int | None:
        """Where the queue is to be read again, None when nothing was let go of (R6)."""
        return min((span.position for span in self._spans.values()), default=None)


def _reaches(place: Place, other: Place) -> bool:
    """Whether a place is of a later leader than another, or of the same and as far."""
    if other.epoch < 0:
        return place.offset >= other.offset
    return (place.epoch, place.offset) >= (other.epoch, other.offset)
