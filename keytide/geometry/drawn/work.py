"""How much work a geometry is, and that it is not too much.

Theory of operation
===================
What GEOS does with polygons (are they valid, what are they together, what is in a rectangle) grows with the
pairs of edges whose boxes overlap. A coast has three for each of its edges; a comb whose teeth are long and
aslant has all that there are, and some hundred kilobytes of it take GEOS minutes. So pairs are counted before
GEOS is asked, up to `MOST_WORK`, by a tree that costs two microseconds for an edge; and not even that where
there are too few edges to come near.

Where polygons of one geometry cross each other, they are to be made one, which takes a hundred times as long
for a pair. A polygon that is too wide for the charts of faces takes as long as many pairs, whatever it is,
and each of its holes is held against all of its outline.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import shapely

from keytide.geometry.drawn.sphere import Floats, Numbers
from keytide.geometry.geojson import MOST_WORK, TooComplexError

ALONE: Final = 2_000
"""Edges of one polygon that need not be looked at: all of their pairs are no more."""
CROSSING: Final = 100
"""Edges of two polygons that cross."""
TOUCHING: Final = 10
"""Edges of two polygons that touch, or lie on one another."""
OVERLAID: Final = 5
"""Edges of lines in a plane of which one shape is to contain the other: GEOS keeps where they cross."""
TURNED: Final = 5_000
"""A polygon that is cut to pieces on its own chart: a millisecond."""
WIDE: Final = 60_000
"""One that is not whole there, either: a dozen milliseconds."""
HOLE: Final = 1_000
"""A hole of such a one, which is looked at by itself: some tenths of a millisecond."""
_TOGETHER: Final = 4_000_000
"""Pairs that the tree may give at once: some dozens of MB."""


class Work:
    """What is left of the work that one geometry may be.

    Args:
        dear: times as much as usual that each pair of edges is.

    Attributes:
        left: in pairs of edges.
    """

    def __init__(self, dear: int = 1) -> None:
        self._most = self.left = MOST_WORK // dear

    @property
    def spent(self) -> int:
        """What is taken note of, in pairs of edges."""
        return self._most - self.left

    def spend(self, pairs: int) -> None:
        """Take note of work.

        Raises:
            TooComplexError: it is too much.
        """
        self.left -= pairs
        if self.left < 0:
            raise TooComplexError(
                "is too much work: too many of its edges lie across one another, or it has too many polygons "
                "as wide as a continent or more; simplify it, or split it into several"
            )

    def compare(self, pairs: Floats, polygon: Numbers) -> None:
        """Take note of what edges on one chart are.

        Args:
            pairs: their ends (n, 2, 2).
            polygon: which polygon each is of, ascending (n,).

        Raises:
            TooComplexError: as `spend`.
        """
        if len(pairs) < 2 or self._are_few(pairs, polygon):
            return
        lines = shapely.linestrings(pairs)
        tree = shapely.STRtree(lines)
        step = max(16, _TOGETHER // len(lines))
        for at in range(0, len(lines), step):
            one, other = tree.query(lines[at : at + step])
            one = one + at
            later = other > one
            one, other = one[later], other[later]
            self.spend(len(one))
            apart = polygon[one] != polygon[other]
            if apart.any():
                crossing, touching = _met(pairs[one[apart]], pairs[other[apart]])
                self.spend(CROSSING * crossing + TOUCHING * touching)

    def _are_few(self, pairs: Floats, polygon: Numbers) -> bool:
        """Whether they cannot be much, whatever they are."""
        starts = np.flatnonzero(np.diff(polygon, prepend=-1))
        counts = np.diff(starts, append=len(polygon))
        alone = int((counts * counts).sum()) // 2
        if alone > self.left:
            return False
        every = len(polygon) * len(polygon) // 2
        if alone + CROSSING * (every - alone) <= self.left:
            return True
        low = np.minimum.reduceat(pairs.min(axis=1), starts)
        high = np.maximum.reduceat(pairs.max(axis=1), starts)
        boxes = shapely.box(*low.T, *high.T)
        tree = shapely.STRtree(boxes)
        step = max(1, _TOGETHER // len(boxes))
        for at in range(0, len(boxes), step):
            one, other = tree.query(boxes[at : at + step])
            apart = other > one + at
            alone += CROSSING * int((counts[one[apart] + at] * counts[other[apart]]).sum())
            if alone > self.left:
                return False
        return True


def _met(one: Floats, other: Floats) -> tuple[int, int]:
    """Of pairs of edges how many cross, and how many touch."""
    a, b = _sides(one, other), _sides(other, one)
    cross = (a < 0) & (b < 0)
    touch = (a <= 0) & (b <= 0) & ~cross
    return int(np.count_nonzero(cross)), int(np.count_nonzero(touch))


def _sides(edge: Floats, other: Floats) -> Floats:
    """Below 0 where the ends of another edge lie on both sides of an edge's line, 0 where one lies on it."""
    along = edge[:, 1] - edge[:, 0]
    sides = [
        along[:, 0] * (at[:, 1] - edge[:, 0, 1]) - along[:, 1] * (at[:, 0] - edge[:, 0, 0])
        for at in (other[:, 0], other[:, 1])
    ]
    found: Floats = np.sign(sides[0]) * np.sign(sides[1])
    return found
