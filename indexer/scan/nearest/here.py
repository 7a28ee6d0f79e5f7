"""The nearest, the short way: all slices are here, and not much lies around the place.

Theory of operation
===================
As the search does (`indexer.scan.nearest.search`), but a search of so few entries is little work, and so the
way to it must be short: the slices are read as one, from a snapshot that was looked up before
(`indexer.scan.local.joint`), by the cells of the disc alone (`keytide.geometry.nearby`); what of that cannot
be among the nearest is not measured; and nothing is waited for. When too few lie within the first radius, but
enough were read, as many as are wanted lie within the distance of the last of the nearest of those: that is
the next radius, and the search the last one.

What is out of the ordinary, or might take longer than others can be kept waiting for, is not done here: the
answer is None, nothing was found, and the search goes the long way. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Target
from indexer.scan.gather.service import UNREADABLE
from indexer.scan.local.once import NotShortError
from indexer.scan.nearest.found import FARTHEST, GROWTH, WIDEST, Nearest, cut
from indexer.scan.nearest.measuring import DistanceColumn
from indexer.scan.peer.messages import TIP, Entry, JointSpans
from indexer.scan.plan.radii import FEW_MORE, sought
from keytide.collation import Span
from keytide.definition.expression import DistanceTo, Relates
from keytide.definition.spatial.meaning import query_shape
from keytide.geometry import CELL_BYTES, Geometry, NotAGeometryError, spans_around
from keytide.model.entry import PLACED
from keytide.structure.spatial import MOST_SPANS, PLANAR_SRID

MOST_ENTRIES: Final = 1_000
"""Of a search, half a millisecond to read."""
_SEARCHES: Final = 6
"""The last one is of all that there is, which may be little."""
_WHOLE: Final = [Span()]
_ALL: Final = b"\xff"
"""Above every cell."""


def nearest_here(
    target: Target, shared: Reads, to: DistanceTo, wanted: int, reach: float, *, ties: bool
) -> Nearest | None:
    """What `search.nearest` gives; None when it is to be searched for the long way. Raises
    TooManyNearestError as that does."""
    if not 0 < 8 * wanted <= MOST_ENTRIES or reach < math.inf or not _is_plain(target, shared.nodes.here):
        return None
    column = DistanceColumn(to)
    if not column.together:
        return None
    whole = WIDEST if to.place.srid == PLANAR_SRID else FARTHEST
    result, slices = Nearest(), tuple(sorted(target.nodes))
    radius = min(shared.radii.first(target.index, wanted, FEW_MORE), whole)
    while result.searches < _SEARCHES:
        result.searches += 1
        is_last = radius >= whole or result.searches == _SEARCHES
        closely = shared.radii.several(target.index)
        cells = None if is_last else cells_within(to, column.place, radius, closely=closely)
        entries = _read(target, shared, slices, cells, result)
        if entries is None:
            return None
        try:
            away = column.nearest(entries, wanted)
        except (NotShortError, NotAGeometryError, *UNREADABLE):
            return None
        within = np.flatnonzero(away <= (math.inf if is_last else radius)).tolist()
        if is_last or len(within) >= wanted:
            found = [(float(away[at]), entries[at]) for at in within if away[at] < math.inf]
            result.entries = cut(found, wanted, shared.settings.max_sort_rows if ties else None)
            if result.entries and result.entries[-1][0]:
                shared.radii.note(target.index, result.entries[-1][0], len(result.entries))
            return result
        known = np.sort(away)[wanted - 1] if len(away) >= wanted else math.inf
        if known < math.inf:
            radius = min(float(known), whole)
        else:
            wider = radius * math.sqrt(sought(wanted) / len(within)) if within else radius * GROWTH
            radius = min(max(wider, radius * 1.5), whole)
    return None


def cells_within(
    to: DistanceTo, place: Geometry, radius: float, *, closely: bool = False
) -> list[tuple[int, int]]:
    """Inclusive ranges of the cells that may have what lies within a radius, ascending and disjoint.

    Args:
        place: that of `to`.
        closely: as in `spans_around`.
    """
    if place.is_point and to.place.srid != PLANAR_SRID:
        cells = spans_around(place, radius, closely=closely)
        if cells is not None:
            return cells
    with query_shape(Relates("dwithin", to.operand, to.place, radius)) as shape:
        return shape.spans(MOST_SPANS)


def _is_plain(target: Target, here: str) -> bool:
    """Whether everything is asked for, of slices that are here, at one snapshot."""
    if target.number == TIP or target.hold or target.elsewhere or list(target.spans) != _WHOLE:
        return False
    if target.filter or target.keys or target.distinct or not target.nodes:
        return False
    return all(node == here for node in target.nodes.values())


def _read(
    target: Target,
    shared: Reads,
    slices: tuple[int, ...],
    cells: Sequence[tuple[int, int]] | None,
    to: Nearest,
) -> list[Entry] | None:
    """One entry of each document that has one of these cells (None: of all); None when they are many, or are
    to be read otherwise."""
    lows, highs = [b""], [_ALL]
    if cells is not None:
        lows = [low.to_bytes(CELL_BYTES, "big") for low, _ in cells]
        highs = [(high + 1).to_bytes(CELL_BYTES, "big") for _, high in cells]
    page = shared.nodes.within_here(
        JointSpans(target.index, slices, target.number, target.incarnation, lows, highs, MOST_ENTRIES)
    )
    if page is None:
        return None
    nodes = shared.nodes
    for number in target.others.keys() & page.replies.keys():  # (one of several copies may have been behind)
        nodes.health.holds(nodes.here, (target.index, number), page.replies[number].newest)
    to.rounds += 1
    for number, count in page.read.items():
        if count:
            to.read[number] = to.read.get(number, 0) + count
            to.replies[number] = page.replies[number]
    if not to.replies:
        to.replies[slices[0]] = page.replies[slices[0]]  # (who tells of the answer needs one)
    documents = _once(page.entries)
    if documents:
        shared.radii.note_several(target.index, sum(page.read.values()) > 2 * len(documents))
    return documents


def _once(entries: list[Entry]) -> list[Entry] | None:
    """One entry of each document; None when those of one differ, which cannot be."""
    if not any(value.startswith(PLACED) for _, value in entries):
        return entries
    known: dict[bytes, Entry] = {}
    first_of, behind = known.setdefault, CELL_BYTES
    for entry in entries:
        entry_key, value = entry
        if first_of(entry_key[behind:], entry)[1] != value:
            return None
    return list(known.values())
