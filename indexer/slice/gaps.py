"""What is missing in a slice's mutation queue, by source partition. Pure.

A segment that begins beyond what was heard is dropped and comes again (R10). Once the queue's end was met and
it has not come, time runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keytide.model.timestamp import Place
from keytide.wire.messages import Segment


@dataclass(slots=True)
class _Gap:
    """Hearing must reach `needed`, where a segment of leader epoch `epoch` begins. `since`: the queue's end
    was met without what is missing."""

    needed: int
    epoch: int
    since: int | None = None


class Gaps:
    """The gaps of one slice.

    Args:
        limit_ms: how long one may stay open.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._open: dict[int, _Gap] = {}

    def dropped(self, segment: Segment) -> None:
        """A segment lies beyond what was heard."""
        self._open.setdefault(segment.partition, _Gap(segment.start, segment.epoch))

    def forget(self, partition: int) -> None:
        """Nothing is known to be missing of a source partition."""
        self._open.pop(partition, None)

    def extended(self, partition: int, heard: int) -> None:
        """Hearing has come to `heard`."""
        gap = self._open.get(partition)
        if gap is not None:
            gap.since = None
            if heard >= gap.needed:
                del self._open[partition]

    def end_met(self, now: int) -> None:
        """The end of the queue was met."""
        for gap in self._open.values():
            gap.since = now if gap.since is None else gap.since

    def late(self, now: int) -> list[int]:
        """The partitions with gaps that stayed open for too long."""
        limit = self._limit_ms
        return [
            p for p, gap in sorted(self._open.items()) if gap.since is not None and now - gap.since > limit
        ]

    def described(self, partition: int, heard: Callable[[int], Place]) -> str:
        """A gap, with offset and leader epoch on both sides."""
        gap, place = self._open[partition], heard(partition)
        return (
            f"partition {partition} from {place.offset} (leader epoch {place.epoch}), while {gap.needed} "
            f"(leader epoch {gap.epoch}) is there"
        )
