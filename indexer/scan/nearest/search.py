"""The entries nearest to a place: searches around it, ever wider, until enough lie within.

Theory of operation
===================
Cells keep neighbours together, but no order by distance. So what lies within a radius is read, at one
snapshot, and measured. When at least as many as are wanted are at most the radius away, the nearest of all
are among them; else the search goes on with a wider one, and where it would have to read far more than is
wanted, with a narrower one. The next radius follows from how many were found in the last one; the first from
how dense the index was where it was asked before.

Each search reads the cells of its whole circle again: the last one costs more than all before it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

import numpy as np

from indexer.scan.gather.gather import examine, gather
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import SliceAnswers, Target
from indexer.scan.gather.service import UNREADABLE
from indexer.scan.gather.story import add_answers
from indexer.scan.nearest.measuring import DistanceColumn
from indexer.scan.peer.messages import Entry, OutOfTimeError
from indexer.scan.plan.radii import MARGIN
from keytide.collation import Span
from keytide.definition.expression import DistanceTo, Relates
from keytide.definition.spatial.meaning import region_of
from keytide.geometry import NotAGeometryError
from keytide.structure.spatial import PLANAR_SRID, intersected, spans_of

Measured = tuple[float, Entry]
"""An entry, behind how far away it is."""
ROW_LIMIT: Final = 1_000
"""Entries of a search beyond which a narrower one is tried, or eight times as many as are wanted."""
FARTHEST: Final = 20_100_000.0
"""Metres: from anywhere on the globe all of it lies within."""
WIDEST: Final = 1e15
"""Units of a plane: beyond, all of it is read."""
_GROWTH: Final = 8.0
MOST_NARROWED: Final = 8
"""Times that a narrower one is tried: what is still too much lies in one place."""
_NARROWEST: Final = 1.1
"""Between a radius with too few and one with too many: what is left is read."""


@dataclass(slots=True)
class Nearest(SliceAnswers):
    """What was found.

    Attributes:
        entries: the nearest first, those at one distance in the order of the index; more than were wanted
            where some are as far away as the last one.
        searches: how many radii were tried.
    """

    entries: list[Measured] = field(default_factory=list)
    searches: int = 0


async def nearest(target: Target, shared: Reads, to: DistanceTo, wanted: int) -> Nearest:
    """The `wanted` entries of a target that are nearest to a place: the `work` of `Reads.read`.

    Raises:
        OutOfTimeError: it takes longer than the target's time.
        SnapshotMissingError, RetryableError: as `service.page_of`.
    """
    result = Nearest()
    search = _Search(
        target, shared, to, max(ROW_LIMIT, 8 * wanted), result, list(target.spans), DistanceColumn(to)
    )
    whole = WIDEST if to.place.srid == PLANAR_SRID else FARTHEST
    low, high, narrowed = 0.0, math.inf, 0  # radii with too few, and with too many
    radius = min(shared.radii.first(target.index, wanted), whole)
    while True:
        result.searches += 1
        spans = search.around(radius)
        is_last = radius >= whole or spans == search.spans
        narrow = narrowed >= MOST_NARROWED or (low > 0.0 and high / low < _NARROWEST)
        entries = await search.read(search.spans if is_last else spans, every=is_last or narrow)
        if entries is None:
            high, narrowed = radius, narrowed + 1
            radius = math.sqrt(low * high) if low else radius / _GROWTH
            continue
        found = await search.measured(entries, math.inf if is_last else radius)
        if is_last or len(found) >= wanted:
            shared.radii.note(target.index, radius, len(found))
            result.entries = _nearest(found, wanted)
            return result
        low = radius
        wider = radius * math.sqrt(MARGIN * wanted / len(found)) if found else radius * _GROWTH
        radius = min(max(wider, radius * 1.5), radius * _GROWTH**2, whole)
        if radius >= high:
            radius = math.sqrt(low * high)


def _nearest(found: list[Measured], wanted: int) -> list[Measured]:
    """The first of some entries, and those that are as far away as the last of these."""
    found.sort(key=_place)
    if len(found) <= wanted:
        return found
    return found[: bisect_right(found, found[wanted - 1][0], key=_distance)]


def _distance(one: Measured) -> float:
    return one[0]


def _place(one: Measured) -> tuple[float, bytes]:
    return one[0], one[1][0]


@dataclass(slots=True)
class _Search:
    """Reads what lies around a place.

    Attributes:
        most: entries of one search that goes on narrower when there are more.
        spans: those of the target.
    """

    target: Target
    shared: Reads
    to: DistanceTo
    most: int
    result: Nearest
    spans: list[Span]
    column: DistanceColumn

    def around(self, radius: float) -> list[Span]:
        """What of the target may lie within a radius."""
        circle = Relates("dwithin", self.to.operand, self.to.place, radius)
        return intersected(self.spans, spans_of(region_of(circle)))

    async def measured(self, entries: list[Entry], most: float) -> list[Measured]:
        """The entries that are at most so far away."""

        def work() -> list[Measured]:
            away = self.column.of(entries)
            return [(away[at], entries[at]) for at in np.flatnonzero(away <= most).tolist()]

        try:
            if len(entries) <= ROW_LIMIT:
                return work()
            return await self.shared.local.threads.run(work)
        except (*UNREADABLE, NotAGeometryError):
            await examine(self.target, self.shared.nodes, b"", False, self.most)
            raise

    async def read(self, spans: list[Span], every: bool) -> list[Entry] | None:
        """The entries of some spans; None when they are too many.

        Args:
            every: however many they are.
        """
        target, nodes = self.target, self.shared.nodes
        found: list[Entry] = []
        after, more = b"", bool(target.nodes and spans)
        while more:
            if monotonic() > target.until:
                raise OutOfTimeError(
                    f"the nearest were not found in {target.timeout_s:.1f} s",
                    next_step="allow more with timeout_ms, or say how far away they are at most",
                )
            in_use = target.in_use or bool(after)
            now = replace(target, spans=spans, timeout_s=target.left_s, in_use=in_use)
            try:
                page = await gather(now, nodes, after, False, self.most)
            except UNREADABLE:
                await examine(now, nodes, after, False, self.most)
                raise
            add_answers(self.result, page)
            found += page.entries
            after, more = page.reached, page.more
            if more and len(found) >= self.most and not every:
                return None
        return found
