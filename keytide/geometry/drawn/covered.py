"""Whether edges on a chart are covered by others, but for the tolerance.

Theory of operation
===================
What of an edge lies within the tolerance of another one is a stretch of it, for what is within a distance of
an edge is convex. An edge is covered if all such stretches together are all of it, but for what lies in
areas.

GEOS would overlay both shapes, and look for every place where edges cross: of a scribble these are as many as
pairs of its edges, each of which takes memory. But what crosses an edge gives next to none of it. So
stretches are had first of edges that run nearly the same way. Edges are told apart by their directions, and
those of one direction turned so that they lie flat: their boxes are thin, and only those meet that lie along
one another. What is left over, nearly always nothing or what is not covered, is held against all that is near
it, a few edges first.

Pairs of edges that are looked at are work (`keytide.geometry.drawn.work`).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import shapely

from keytide.geometry.drawn.charts import Shape
from keytide.geometry.drawn.sphere import TOLERANCE, Floats, Mask, Numbers
from keytide.geometry.drawn.work import Work

_AS_LONG: Final = TOLERANCE / 1000
"""What is left over is longer than this, or the edge itself is not: rounding."""
_OF_ONE_DIRECTION: Final = 100
"""Edges, or about as many: of more the directions are divided."""
_DIRECTIONS: Final = 512
_FEW: Final = 16
"""Stretches that are held against all that is near, at first; each time twice as many."""
_PIECES: Final = 16
"""Of a long edge, at most."""
_TOGETHER: Final = 250_000
"""Pairs of edges, at most, that are looked at together: some dozens of MB."""
_FLAT: Final = 1e-300
"""What runs along an edge comes no nearer to it: this near, at most."""


def parts_of(shape: Shape, dimension: int) -> Shape:
    """The points, lines or polygons of a shape."""
    parts = shapely.get_parts(shape)
    while (shapely.get_type_id(parts) > shapely.GeometryType.POLYGON).any():
        parts = shapely.get_parts(parts)
    return parts[(shapely.get_dimensions(parts) == dimension) & ~shapely.is_empty(parts)]


def edges_of(shape: Shape) -> Floats:
    """Ends of the edges of lines and rings (n, 2, 2), each once. Points are edges without length."""
    lines = np.concatenate((parts_of(shape, 1), shapely.get_rings(parts_of(shape, 2))))
    at, line = shapely.get_coordinates(lines, return_index=True)
    inner = np.flatnonzero(line[1:] == line[:-1])
    points = shapely.get_coordinates(parts_of(shape, 0))
    pairs = np.concatenate((np.stack((at[inner], at[inner + 1]), axis=1), np.stack((points, points), axis=1)))
    turned = (pairs[:, 0, 0] > pairs[:, 1, 0]) | (
        (pairs[:, 0, 0] == pairs[:, 1, 0]) & (pairs[:, 0, 1] > pairs[:, 1, 1])
    )
    pairs[turned] = pairs[turned, ::-1]
    found: Floats = np.unique(pairs.reshape(-1, 4), axis=0).reshape(-1, 2, 2)
    return found


class NearEdges:
    """Edges of a shape, and points, that many places are held against."""

    def __init__(self, shape: Shape) -> None:
        self._edges = edges_of(shape)
        pieces, self._of = _pieces(self._edges)
        self._tree = shapely.STRtree(_boxes(pieces))

    def reach(self, at: Floats) -> Mask:
        """Which of some places (n, 2) are within the tolerance of one."""
        found, most = np.zeros(len(at), bool), _at_once(self._edges)
        for first in range(0, len(at), most):
            some = at[first : first + most]
            place, piece = self._tree.query(shapely.points(some))
            low, high = _stretches(some[place], np.zeros((len(place), 2)), self._edges[self._of[piece]])
            found[first + place[(low <= 0) & (high >= 0)]] = True
        return found


def are_covered(pairs: Floats, others: Floats, areas: Shape | None, work: Work) -> bool:
    """Whether each of some edges lies within the tolerance of others, or in areas, everywhere.

    Args:
        pairs, others: their ends (n, 2, 2), (m, 2, 2).
        areas: polygons, whose edges are among the others; prepared, if they are large.
        work: what is left of it.

    Raises:
        TooComplexError: too many pairs of them are to be looked at.
    """
    low, high = pairs.min(axis=(0, 1)) - TOLERANCE, pairs.max(axis=(0, 1)) + TOLERANCE
    near = (others.max(axis=1) >= low).all(axis=1) & (others.min(axis=1) <= high).all(axis=1)
    others = others[near]
    rest = _outside(pairs, areas)
    rest = _outside(_left_by_parallels(rest, others, work), areas)
    if not len(rest):
        return True
    pieces, of = _pieces(others)
    tree, first, count, most = shapely.STRtree(_boxes(pieces)), 0, _FEW, _at_once(others)
    while first < len(rest):
        some = rest[first : first + count]
        edge, piece = tree.query(_boxes(some))
        work.spend(len(edge))
        if len(_outside(_left(some, others[of[piece]], edge), areas)):
            return False
        first, count = first + count, min(2 * count, most)
    return True


def _outside(pairs: Floats, areas: Shape | None) -> Floats:
    """Those that do not lie in areas."""
    if areas is None or not len(pairs):
        return pairs
    found: Floats = pairs[~np.asarray(shapely.covers(areas, shapely.linestrings(pairs)))]
    return found


def _left_by_parallels(pairs: Floats, others: Floats, work: Work) -> Floats:
    """What others leave of edges that run in about their direction."""
    if not len(pairs) or not len(others):
        return pairs
    directions = max(1, min(_DIRECTIONS, len(others) // _OF_ONE_DIRECTION))
    of, of_others = _direction(pairs, directions), _direction(others, directions)
    rest = []
    for direction in np.unique(of).tolist():
        some = pairs[of == direction]
        aside = (of_others - direction) % directions
        few = others[(aside <= 1) | (aside == directions - 1)]
        turn = -direction * math.pi / directions
        turned = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        tree, most = shapely.STRtree(_boxes(few @ turned)), _at_once(few)
        for first in range(0, len(some), most):
            these = some[first : first + most]
            edge, other = tree.query(_boxes(these @ turned))
            work.spend(len(edge))
            rest.append(_left(these, few[other], edge))
    return np.concatenate(rest)


def _at_once(others: Floats) -> int:
    """How many edges are held against others together."""
    return max(_FEW, _TOGETHER // max(1, len(others)))


def _direction(pairs: Floats, directions: int) -> Numbers:
    """Which of so many directions each edge runs in, either way."""
    along = pairs[:, 1] - pairs[:, 0]
    turns = np.arctan2(along[:, 1], along[:, 0]) / math.pi * directions
    return np.rint(turns).astype(np.int64) % directions


def _pieces(pairs: Floats) -> tuple[Floats, Numbers]:
    """Edges cut to pieces, that their boxes be small: (ends of the pieces, of which edge each is)."""
    if not len(pairs):
        return pairs, np.empty(0, np.int64)
    widths = np.abs(pairs[:, 1] - pairs[:, 0]).max(axis=1)
    usual = max(_AS_LONG, 4 * float(np.ptp(pairs, axis=(0, 1)).max()) / math.sqrt(len(pairs)))
    counts = np.clip(np.ceil(widths / usual), 1, _PIECES).astype(np.int64)
    of = np.repeat(np.arange(len(pairs)), counts)
    number = np.arange(len(of)) - np.repeat(counts.cumsum() - counts, counts)
    part = np.stack((number, number + 1), axis=1) / counts[of, None]
    return pairs[of, :1] + part[:, :, None] * (pairs[of, 1:] - pairs[of, :1]), of


def _boxes(pairs: Floats) -> Shape:
    """Bounds of edges, and half of what is near them."""
    low, high = pairs.min(axis=1) - TOLERANCE, pairs.max(axis=1) + TOLERANCE
    return shapely.box(low[:, 0], low[:, 1], high[:, 0], high[:, 1])


def _left(pairs: Floats, others: Floats, edge: Numbers) -> Floats:
    """What others leave of edges, as ends (k, 2, 2).

    Args:
        others: edges that may be near one: (p, 2, 2).
        edge: which one (p,).
    """
    along = pairs[:, 1] - pairs[:, 0]
    length = np.hypot(along[:, 0], along[:, 1])
    along = np.divide(along, length[:, None], out=np.zeros_like(along), where=length[:, None] > 0)
    low, high = _stretches(pairs[edge, 0], along[edge], others)
    some = low <= high
    every = np.arange(len(pairs))
    # Each edge begins with what lies before it, and ends with what lies behind.
    of = np.concatenate((every, edge[some], every))
    low = np.concatenate((np.full(len(pairs), -np.inf), low[some], length + _AS_LONG))
    high = np.concatenate((np.full(len(pairs), -_AS_LONG), high[some], np.full(len(pairs), np.inf)))
    order = np.lexsort((low, of))
    of, low, high = of[order], low[order], high[order]
    # How far stretches reach, those before included: the largest so far of numbers that grow with edges.
    by_reach = np.lexsort((high, of))
    rank = np.empty(len(of), np.int64)
    rank[by_reach] = np.arange(len(of))
    reach = high[by_reach][np.maximum.accumulate(rank)]
    gap = np.flatnonzero((of[1:] == of[:-1]) & (low[1:] > reach[:-1]))
    number = of[gap]
    start, end = np.maximum(reach[gap], 0), np.minimum(low[gap + 1], length[number])
    ends = np.stack((start, end), axis=1)[:, :, None]
    found: Floats = pairs[number, 0][:, None] + ends * along[number][:, None]
    return found


def _stretches(start: Floats, along: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Where lines come within the tolerance of edges: from and until, from where they start.

    Args:
        start, along: places (n, 2), and directions of length 1 (or 0: then it is the place alone).
        others: the ends of an edge for each line (n, 2, 2).
    """
    other = others[:, 1] - others[:, 0]
    length = np.hypot(other[:, 0], other[:, 1])
    other = np.divide(other, length[:, None], out=np.zeros_like(other), where=length[:, None] > 0)
    low, high = np.full(len(start), np.inf), np.full(len(start), -np.inf)
    for end in (others[:, 0], others[:, 1]):
        away = end - start
        middle = (away * along).sum(axis=1)
        beside = away - middle[:, None] * along
        square = TOLERANCE**2 - (beside * beside).sum(axis=1)
        half = np.sqrt(np.where(square >= 0, square, np.nan))  # (nan: never that near)
        low, high = np.fmin(low, middle - half), np.fmax(high, middle + half)
    away = start - others[:, 0]
    since, until = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    for at, step, least, most in (
        (away[:, 0] * other[:, 0] + away[:, 1] * other[:, 1], (along * other).sum(axis=1), 0.0, length),
        (
            other[:, 0] * away[:, 1] - other[:, 1] * away[:, 0],
            other[:, 0] * along[:, 1] - other[:, 1] * along[:, 0],
            -TOLERANCE,
            np.full(len(start), TOLERANCE),
        ),
    ):
        step = np.where(step == 0, _FLAT, step)
        one, two = (least - at) / step, (most - at) / step
        since, until = np.maximum(since, np.fmin(one, two)), np.minimum(until, np.fmax(one, two))
    beside_it = (since <= until) & (length > 0)
    return np.where(beside_it, np.minimum(low, since), low), np.where(
        beside_it, np.maximum(high, until), high
    )
