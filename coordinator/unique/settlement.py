"""Which suspicions against UNIQUE indexes a stability timestamp settles (R35). Pure.

Theory of operation
===================
Two documents that have one key at a timestamp T1 need not have had it at any moment: a value that moved from
one to the other shows twice when T1 covers the second write and not the first, which lies in another
partition. But both writes were in the log, the first before the second, when T1 was issued. So the source's
ends, looked up after T1 was issued, lie past both; and documents that still have the key at a T2 that covers
these ends, in the same versions, both had it when the ends were looked up.

The leader issues timestamps and samples sources, so it can say for every timestamp which number it settles:
the newest one that was issued before a sample began whose ends the timestamp covers. Slices need no more than
that number (`indexer.unique.suspects`). A slice first sees a duplicate at a number m; everything up to the
settled number n came before it in the control topic, so m <= n means that m, too, was issued before that
sample.

The ends are high watermarks. The stable ends would not do: where a transaction wrote to two partitions, its
end may be known in one of them before the other, and a timestamp can cover one half of it and the stable end
below the other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from coordinator.core.source_status import SourceStatus
from keytide.model.timestamp import Timestamp

SAMPLES_KEPT: Final = 32
"""Samples whose ends no timestamp covers yet. When there are more (projectors are late), every second one
goes: what it would have settled is settled by the next. The oldest stays."""
ISSUES_KEPT: Final = 4096
"""Numbers issued since the last sample: far more than one second brings."""


@dataclass(slots=True)
class Settling:
    """What the timestamps of one keyspace's incarnation settle.

    Attributes:
        settled: the newest number that is settled, -1 when none is.
    """

    settled: int = -1
    _issued: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=ISSUES_KEPT))
    """(when it was issued, number), ascending; of those before the last sample only the newest."""
    _samples: list[tuple[int, Timestamp]] = field(default_factory=list)
    """(newest number issued before, ends), ascending."""

    def issued(self, issued_at: int, number: int) -> None:
        """A timestamp was delivered under this number."""
        self._issued.append((issued_at, number))

    def sampled(self, source: SourceStatus) -> None:
        """The source's ends were looked up."""
        before = -1
        while self._issued and self._issued[0][0] < source.sampled_at:
            before = self._issued.popleft()[1]
        if before < 0 or not source.exists:
            return  # nothing new was issued since the last sample, which settles as much
        self._samples.append((before, Timestamp.of(source.high, source.topic_id)))
        if len(self._samples) > SAMPLES_KEPT:
            self._samples = self._samples[::2]

    def by(self, content: Timestamp) -> int:
        """The number that a timestamp of this content settles; contents only grow."""
        covered = [number for number, ends in self._samples if content.covers(ends)]
        if covered:
            self.settled = max(self.settled, *covered)
            self._samples = [one for one in self._samples if one[0] > self.settled]
        return self.settled
