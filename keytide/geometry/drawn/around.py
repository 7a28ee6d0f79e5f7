"""Many polygons of one ring each, seen from one place on the globe: how near their lines come to it, and
which of them hold it. By columns: a corner takes a fifth of a microsecond.

Theory of operation
===================
With s and e the squared chords from the place to the ends of an edge, and c that of the edge itself, the
place is beside the edge, between the planes that stand on its ends, where

    c + (s - e) > s c / 2    and    c - (s - e) > e c / 2:

(n x start) . place > 0 with every cosine written as a chord, which differ where cosines are 1. So the great
circles of those few edges are worked out only.

Seen on the plane that touches the globe at the place (the gnomonic projection), great circles are straight,
and a ring goes round the place when it crosses the way from there to the east an odd number of times. That is
beyond doubt when its line is some millimetres away, a million times what rounding comes to; and the inside of
a ring is what it goes round there when all of it lies on this side of the globe, which is a smaller part of
it than the rest. What is left, GEOS is to be asked.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from keytide.geometry.drawn.sphere import Floats, Mask, Numbers, chord2_of_sines, columns, degrees, normals

_LEAST: Final = 1e-9
"""Radians, 6 mm: places that are nearer to a line may be on it."""
_THIS_SIDE: Final = 1.0
"""A squared chord: within 60 degrees of the place."""


class RingsAround:
    """Rings, seen from a place.

    Args:
        at: all positions (m, 2), ring after ring, each closed; at least one ring.
        counts: how many of them each has (n,).
        here: the place, as a vector (3,).

    Attributes:
        chord2: squared chords to what of each ring's line is nearest (n,).
        hold: which of them hold the place for sure (n,).
        open: of which it cannot be told here (n,).
    """

    def __init__(self, at: Floats, counts: Numbers, here: Floats) -> None:
        self._at = at
        self._counts = counts
        self._here = here
        self._ends: Numbers = counts.cumsum()
        self._starts: Numbers = self._ends - counts
        self._between: Numbers = self._ends[:-1] - 1  # the edges from one ring to the next one
        self._vector = columns(at)
        self._corners = _squares(self._vector - here[:, None])
        self._lengths = _squares(self._vector[:, 1:] - self._vector[:, :-1])
        self._lengths[self._between] = 0.0
        self._nearest_corner: Floats = np.minimum.reduceat(self._corners, self._starts)
        to_edge = self._nearest_edges()
        self._by_edge: Mask = to_edge < self._nearest_corner
        self.chord2: Floats = np.minimum(self._nearest_corner, to_edge)
        self.open: Mask = self.chord2 <= _LEAST**2
        self.hold: Mask = self._go_round() & ~self.open
        wide = np.maximum.reduceat(self._corners, self._starts) > _THIS_SIDE
        if wide.any():
            # What a ring holds is nearer to one of its corners than all of its chords are long.
            around = np.add.reduceat(np.append(np.sqrt(self._lengths), 0.0), self._starts)
            self.open |= wide & (np.sqrt(self._nearest_corner) <= around)
            self.hold &= ~wide

    def between(self, rings: Numbers, place: Floats) -> tuple[Floats, Floats]:
        """Positions between which the distances of some rings (k,) are to be measured, (k, 2) each: on the
        ring, and the place, which is `place` (2,) as well."""
        by_edge = self._by_edge[rings]
        edges = self._edge[rings[by_edge]]
        feet = self._here - self._sine[edges][:, None] * self._normal[edges]
        found = degrees(np.concatenate((feet, self._here[None])))
        on_rings, here = np.empty((len(rings), 2)), np.empty((len(rings), 2))
        on_rings[by_edge], here[by_edge] = found[:-1], place
        at = np.flatnonzero(self._corners == self._nearest_corner.repeat(self._counts))
        first = at[np.searchsorted(at, self._starts[rings[~by_edge]])]
        on_rings[~by_edge], here[~by_edge] = self._at[first], found[-1]
        return on_rings, here

    def _ring_of(self, edges: Numbers) -> Numbers:
        return self._ends.searchsorted(edges, side="right")

    def _nearest_edges(self) -> Floats:
        """Squared chords to what of each ring's edges is nearest, but for their ends; infinite where the
        place is beside none."""
        start, end, length = self._corners[:-1], self._corners[1:], self._lengths
        half, more = length / 2, start - end
        at = np.flatnonzero((length + more > start * half) & (length - more > end * half))
        self._normal = normals(self._vector.take(at, axis=1).T, self._vector.take(at + 1, axis=1).T)
        x, y, z = self._here.tolist()
        self._sine: Floats = self._normal[:, 0] * x + self._normal[:, 1] * y + self._normal[:, 2] * z
        square, ring = self._sine * self._sine, self._ring_of(at)
        least = np.full(len(self._counts), np.inf)
        np.minimum.at(least, ring, square)
        first = np.flatnonzero(square == least[ring])[::-1]
        self._edge = np.zeros(len(self._counts), np.int64)
        self._edge[ring[first]] = first
        return chord2_of_sines(least)

    def _go_round(self) -> Mask:
        """Which rings go round the place, if they are on this side of the globe."""
        x, y, z = self._here.tolist()
        flat = math.hypot(x, y)
        east = (-y / flat, x / flat) if flat else (0.0, 1.0)
        north = np.array((-z * east[1], z * east[0], x * east[1] - y * east[0]))
        height = north @ self._vector
        above = height > 0
        crosses = above[1:] != above[:-1]
        crosses[self._between] = False
        at = np.flatnonzero(crosses)
        along = east[0] * self._vector[0] + east[1] * self._vector[1]
        start, end, low, high = along[at], along[at + 1], height[at], height[at + 1]
        eastward = at[start + (end - start) * (low / (low - high)) > 0]
        times = np.bincount(self._ring_of(eastward), minlength=len(self._counts))
        found: Mask = times % 2 == 1
        return found


def _squares(of: Floats) -> Floats:
    """Squared lengths of vectors (3, n)."""
    found: Floats = np.add.reduce(of * of)
    return found
