"""How large the micro-batches of a build are: what Spark plans is cut to what gets done. Pure.

Theory of operation
===================
Spark fixes the offsets of a planned batch before it runs, and a driver that dies leaves it planned: were it
one micro-batch of the build, a machine on which drivers never live as long as it takes would do it again for
ever. So the driver cuts what is planned into the micro-batches that slices know, and writes each one down
before its first end is sent (`streaming.drivers.journal.Journal`): from then on its number stands for
these offsets, whoever runs it (R22). Until then nobody has heard of it, and the next driver may cut another,
smaller one.

The first one is as large as may be: entries of micro-batch 0 are appended to empty slices, and nobody need
hear of documents that it does not hold, so what is in it is cheapest. A driver that died in its first
micro-batch has the next one begin with an eighth, until they get done between faults. One that is done says
how fast this machine is: from then on they take about as long as they should, and grow fourfold at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

SHRINK: Final = 8
"""A start that came to nothing has the next one begin with this part of its micro-batch."""
GROW: Final = 4
"""A micro-batch has this many times the documents of the one before at most: its pace may be a fluke."""
RATE_SECONDS: Final = 10
"""Under a rate limit a micro-batch has no more than this many seconds' worth, so that reading is even."""


class SizedBatch(msgspec.Struct, frozen=True):
    """A micro-batch whose number stands for these offsets.

    Attributes:
        number: of the build, from 0.
        start, end: offsets by partition; the end is exclusive.
        done: all its ends are in the queues.
    """

    number: int
    start: dict[int, int]
    end: dict[int, int]
    done: bool = False

    @property
    def reached(self) -> dict[int, int]:
        """Up to where the build is done for sure."""
        return self.end if self.done else self.start

    @property
    def finished(self) -> int:
        """Number of the last micro-batch that is done for sure, -1 when none."""
        return self.number if self.done else self.number - 1


def documents(start: Mapping[int, int], end: Mapping[int, int]) -> int:
    """Offsets from `start` to `end`."""
    return sum(max(0, stop - start.get(p, 0)) for p, stop in end.items())


def cut(start: Mapping[int, int], end: Mapping[int, int], most: int) -> dict[int, int]:
    """Where a micro-batch of about `most` offsets from `start` on ends: the same share of each partition.

    Never past `end`, and never without anything while there is something. A partition that is planned to less
    than it has been read to stays where it is: Spark cuts its plans by what the source has, and who died
    before has planned when it had something else.
    """
    whole, ends = documents(start, end), {p: max(stop, start.get(p, 0)) for p, stop in sorted(end.items())}
    if whole <= most:
        return ends
    begins = {p: start.get(p, 0) for p in ends}
    return {p: begins[p] + -(-(stop - begins[p]) * most // whole) for p, stop in ends.items()}


class Sizing:
    """How many documents the next micro-batch has.

    Args:
        most, least: bounds (`build.batch_documents`, `build.batch_least_documents`).
        seconds: how long a micro-batch should take (`build.batch_seconds`).
        size: what an earlier driver left (`struck`, or its last `size`); 0 when none did.
    """

    def __init__(self, most: int, least: int, seconds: float, size: int = 0) -> None:
        self._most, self._least, self._seconds = most, min(least, most), seconds
        self.size = self._bounded(size or most)

    def limited(self, rate: int) -> int:
        """The size under a rate limit, documents per second; 0 for none."""
        return max(1, min(self.size, RATE_SECONDS * rate)) if rate > 0 else self.size

    def struck(self) -> int:
        """What the next driver is to begin with if this one never finishes its micro-batch."""
        return self._bounded(self.size // SHRINK)

    def finished(self, done: int, seconds: float) -> None:
        """A micro-batch of `done` documents took so long."""
        if 2 * done < self.size:
            return  # what was left of a plan, or rate-limited: it says nothing of larger ones
        wanted = int(done * self._seconds / max(seconds, 0.001))
        self.size = self._bounded(min(wanted, GROW * self.size))

    def _bounded(self, size: int) -> int:
        return max(self._least, min(size, self._most))
