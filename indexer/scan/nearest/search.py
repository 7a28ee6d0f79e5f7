"""The entries nearest to a place: searches around it, ever wider, until enough lie within.

Theory of operation
===================
Cells keep neighbours together, but no order by distance. So what lies within a radius is read, at one
snapshot, and measured. When at least as many as are wanted are at most the radius away, the nearest of all
are among them; else the search goes on with a wider one, and where it would have to read far more than is
wanted, with a narrower one. The next radius follows from how many were found in the last one; the first from
how dense the index was where it was asked before.

Each search reads the cells of its whole circle again: the last one costs more than all before it.

Where all slices are here, and there is not much around the place, it is found the short way
(`indexer.scan.nearest.here`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

import numpy as np

from indexer.scan.gather.blocks import next_block
from indexer.scan.gather.gather import examine, gather
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Target
from indexer.scan.gather.service import UNREADABLE
from indexer.scan.gather.story import add_answers
from indexer.scan.local.entry_bytes import bytes_of
from indexer.scan.nearest.found import FARTHEST, GROWTH, WIDEST, Measured, Nearest, check_size, cut
from indexer.scan.nearest.here import cells_within, nearest_here
from indexer.scan.nearest.measuring import DistanceColumn
from indexer.scan.peer.messages import Entry, OutOfTimeError
from indexer.scan.plan.radii import sought
from keytide.catalog.partitioning import Partitioning, slices_of_cells
from keytide.collation import Span
from keytide.definition.expression import DistanceTo
from keytide.geometry import NotAGeometryError
from keytide.structure.place_columns import are_quick
from keytide.structure.spatial import PLANAR_SRID, intersected, spans_of_cells

ROW_LIMIT: Final = 1_000
"""Entries of a search beyond which a narrower one is tried, or eight times as many as are wanted."""
MOST_NARROWED: Final = 8
"""Times that a narrower one is tried: what is still too much lies in one place."""
_NARROWEST: Final = 1.1
"""Between a radius with too few and one with too many: what is left is read."""


async def nearest(
    target: Target,
    shared: Reads,
    to: DistanceTo,
    wanted: int,
    reach: float = math.inf,
    *,
    ties: bool = False,
    tried: bool = False,
) -> Nearest:
    """The `wanted` entries of a target that are nearest to a place: the `work` of `Reads.read`.

    Args:
        reach: how far away they are at most.
        ties: who orders them further needs all that are as far away as the last one.
        tried: the short way was, and it is none.

    Raises:
        OutOfTimeError: it takes longer than the target's time.
        TooManyNearestError: more than `scan.max_sort_rows`, or `scan.max_query_bytes`, are to be held.
        SnapshotMissingError, RetryableError: as `service.page_of`.
    """
    if not tried and (soon := nearest_here(target, shared, to, wanted, reach, ties=ties)) is not None:
        return soon
    result = Nearest()
    record = shared.view.catalog().index(target.index)
    by_cell = record is not None and record.definition.partitioned_by_cell
    rule = Partitioning.of(record.definition, record.splits) if record is not None and by_cell else None
    column, spans = DistanceColumn(to), list(target.spans)
    most_ties = shared.settings.max_sort_rows if ties else None
    search = _Search(target, shared, to, wanted, most_ties, result, spans, rule, column)
    whole = min(WIDEST if to.place.srid == PLANAR_SRID else FARTHEST, reach)
    low, high, narrowed = 0.0, math.inf, 0  # radii with too few, and with too much to look at
    radius = min(shared.radii.first(target.index, wanted), whole)
    while True:
        result.searches += 1
        is_last = radius >= whole
        every = is_last or narrowed >= MOST_NARROWED
        spans = search.spans if is_last else await search.around(radius)
        found = await search.within(spans, math.inf if is_last else radius, every=every)
        if found is None:
            high, narrowed = radius, narrowed + 1
            radius = math.sqrt(low * high) if low else radius / GROWTH
            if low and high / low < _NARROWEST:
                narrowed = MOST_NARROWED
            continue
        nearest_ones, lie_within = found
        if is_last or lie_within >= wanted:
            shared.radii.note(target.index, radius, lie_within)
            result.entries = nearest_ones
            return result
        low = radius
        wider = radius * math.sqrt(sought(wanted) / lie_within) if lie_within else radius * GROWTH
        radius = min(max(wider, radius * 1.5), radius * GROWTH**2, whole)
        if radius >= high:
            if every or high / low < _NARROWEST**2:  # what is too much lies around here: it has to be read
                high, narrowed = math.inf, MOST_NARROWED
            else:
                radius = math.sqrt(low * high)


@dataclass(slots=True)
class _Search:
    """Reads what lies around a place.

    Attributes:
        spans: those of the target.
        most_ties: as in `cut`.
        rule: how cells fall to slices, None where they do not.
    """

    target: Target
    shared: Reads
    to: DistanceTo
    wanted: int
    most_ties: int | None
    result: Nearest
    spans: list[Span]
    rule: Partitioning | None
    column: DistanceColumn

    async def around(self, radius: float) -> list[Span]:
        """What of the target may lie within a radius."""
        asked = self.to, self.column.place, radius
        prepare, at_once = self.shared.local.threads.prepare, self.column.place.is_point
        cells = cells_within(*asked) if at_once else await prepare(cells_within, *asked)
        return intersected(self.spans, spans_of_cells(cells))

    def at(self, spans: list[Span]) -> Target:
        """The target, of those of its slices that can hold entries of some spans."""
        nodes = self.target.nodes
        named = slices_of_cells(self.rule, spans) if self.rule is not None else nodes
        if all(one in nodes for one in named):  # else the rule is not the one that the target goes by
            nodes = {one: nodes[one] for one in named}
        return replace(self.target, spans=spans, nodes=nodes)

    async def within(
        self, spans: list[Span], radius: float, *, every: bool
    ) -> tuple[list[Measured], int] | None:
        """The nearest entries of some spans that lie within a radius, in their order, and how many lie there;
        None when there is too much to look at.

        Args:
            every: however much it is.
        """
        target, nodes = self.at(spans), self.shared.nodes
        most, settings = max(ROW_LIMIT, 8 * self.wanted), self.shared.settings
        kept: list[Measured] = []
        looked_at = lie_within = size = 0
        block = ROW_LIMIT
        after, more = b"", bool(target.nodes and spans)
        while more:
            if monotonic() > target.until:
                raise OutOfTimeError(
                    f"the nearest were not found in {target.timeout_s:.1f} s",
                    next_step="allow more with timeout_ms, or say how far away they are at most",
                )
            in_use = target.in_use or bool(after)
            now = replace(target, timeout_s=target.left_s, in_use=in_use)
            try:
                page = await gather(now, nodes, after, False, block, 0, settings.stream_block_bytes)
                await self.shared.holds.keep_for_more(now, page)
                measured = await self._measured(page.entries, radius)
            except (*UNREADABLE, NotAGeometryError):
                await examine(now, nodes, after, False, block)
                raise
            add_answers(self.result, page)
            read = bytes_of(page.entries)
            block = next_block(block, len(page.entries), read, most, settings.stream_block_bytes)
            kept += measured
            size += bytes_of([entry for _, entry in measured])
            lie_within += len(measured)
            looked_at += len(page.entries)
            after, more = page.reached, page.more
            if more and looked_at >= most and not every:
                return None
            if len(kept) > 2 * most or size > settings.max_query_bytes:
                kept = cut(kept, self.wanted, self.most_ties)
                size = bytes_of([entry for _, entry in kept])
                if more and size > settings.max_query_bytes and not every:
                    return None  # (what is nearer may be smaller)
                check_size(size, settings.max_query_bytes)
        return cut(kept, self.wanted, self.most_ties), lie_within

    async def _measured(self, entries: list[Entry], most: float) -> list[Measured]:
        """The entries that are at most so far away."""

        def work() -> list[Measured]:
            away = self.column.of(entries)
            return [(float(away[at]), entries[at]) for at in np.flatnonzero(away <= most).tolist()]

        few = self.column.together and len(entries) <= ROW_LIMIT
        if few and are_quick([value for _, value in entries], areas=True):
            return work()
        return await self.shared.local.threads.run(work)
