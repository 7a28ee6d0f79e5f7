"""Many polygons of one ring each, drawn and measured together.

What `keytide.geometry.drawn.drawing` does of one geometry and GEOS is asked about it, in arrays: a document's
polygon takes microseconds then, where one by one it takes a hundred times as many. Those that are not whole
on a chart of the shape that they are held against are left to be looked at one by one.
"""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray

from keytide.geometry.drawn.charts import Shape, uvw
from keytide.geometry.drawn.drawing import LEAST_W
from keytide.geometry.drawn.meeting import TOLERANCE, covers_on
from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.drawn.sphere import Floats, chord2_of_sines, cross, degrees, normals, vectors

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class DrawnRings:
    """Rings on the globe.

    Args:
        at: all positions (m, 2), ring after ring, each closed.
        counts: how many of them each has (n,).

    Attributes:
        whole: whether each is whole on each chart (n, 6).
    """

    def __init__(self, at: Floats, counts: Numbers) -> None:
        self._at = at
        self._counts = counts
        self._starts: Numbers = counts.cumsum() - counts
        self._vector = vectors(at)
        low = np.minimum.reduceat(self._vector, self._starts, axis=0)
        high = np.maximum.reduceat(self._vector, self._starts, axis=0)
        self.whole: Mask = np.concatenate((low >= LEAST_W, high <= -LEAST_W), axis=1)

    def on(self, chart: int, some: Numbers) -> Shape:
        """Some of them, which are whole on a chart, as polygons there."""
        chosen = np.zeros(len(self._counts), bool)
        chosen[some] = True
        seen = uvw(self._vector[np.repeat(chosen, self._counts)], chart)
        return polygons_of(seen[:, :2] / seen[:, 2:], self._counts[some])

    def around(self, chart: int, spot: Floats) -> Mask:
        """Which of them may meet a place of a chart, (2,): they are whole there, and it lies in their box."""
        seen = uvw(self._vector, chart)
        spots = seen[:, :2] / seen[:, 2:]
        low = np.minimum.reduceat(spots, self._starts, axis=0)
        high = np.maximum.reduceat(spots, self._starts, axis=0)
        inside = (low <= spot + TOLERANCE) & (spot - TOLERANCE <= high)
        found: Mask = inside.all(axis=1) & self.whole[:, chart]
        return found

    def nearest(self, place: Floats, vector: Floats) -> tuple[Floats, Floats, Floats]:
        """What of each ring is nearest to a place, which is `vector` (3,) as well.

        Returns:
            (squared chords (n,), positions (n, 2) between which the distance is to be measured: on the ring,
            and the place).
        """
        to_corners = ((self._vector - vector) ** 2).sum(axis=1)
        start, end = self._vector[:-1], self._vector[1:]
        normal = normals(start, end)
        sine = normal @ vector
        beside = (cross(normal, start) @ vector > 0) & (cross(end, normal) @ vector > 0)
        beside[(self._starts - 1)[1:]] = False  # from one ring to the next one
        square = np.full(len(self._vector), np.inf)
        square[:-1][beside] = sine[beside] ** 2
        corner, edge = self._least(to_corners), self._least(square)
        to_edge = chord2_of_sines(square[edge])
        on_ring = self._at[corner]
        here = np.broadcast_to(degrees(vector[None]), on_ring.shape).copy()
        nearer = np.flatnonzero(to_edge < to_corners[corner])
        at = edge[nearer]
        on_ring[nearer] = degrees(vector - sine[at][:, None] * normal[at])
        here[nearer] = place
        return np.minimum(to_corners[corner], to_edge), on_ring, here

    def _least(self, of: Floats) -> Numbers:
        """The first of each ring's positions for which a number is the least."""
        least = np.repeat(np.minimum.reduceat(of, self._starts), self._counts)
        at = np.flatnonzero(of == least)
        found: Numbers = at[np.searchsorted(at, self._starts)]
        return found


def polygons_of(seen: Floats, counts: Numbers) -> Shape:
    """Polygons of rings in a plane, one behind the other."""
    return shapely.polygons(shapely.linearrings(seen, indices=np.repeat(np.arange(len(counts)), counts)))


@quietly
def are_sound(at: Floats, counts: Numbers, geographic: bool) -> Mask:
    """Which of many rings neither cross nor touch themselves, as `Drawing.check` sees it; False, too, of
    those on the globe that are whole on no chart."""
    if not len(counts):
        return np.zeros(0, bool)
    if not geographic:
        return np.asarray(shapely.is_valid(polygons_of(at, counts)))
    drawn, found = DrawnRings(at, counts), np.zeros(len(counts), bool)
    first = np.where(drawn.whole.any(axis=1), drawn.whole.argmax(axis=1), -1)
    for chart in set(first[first >= 0].tolist()):
        some = np.flatnonzero(first == chart)
        found[some] = shapely.is_valid(drawn.on(chart, some))
    return found


def meet_on(shape: Shape, others: Shape) -> Mask:
    """Which of many shapes of a chart meet one (`keytide.geometry.drawn.meeting.meet`)."""
    found: Mask = np.asarray(shapely.intersects(shape, others))
    rest = np.flatnonzero(~found)
    if len(rest):
        found[rest] = shapely.dwithin(shape, others[rest], TOLERANCE)
    return found


def covered_on(shape: Shape, others: Shape) -> Mask:
    """Which of many shapes of a chart one covers (`keytide.geometry.drawn.meeting.cover`)."""
    found: Mask = np.asarray(shapely.covers(shape, others))
    beyond = shapely.bounds(others) - shapely.bounds(shape)
    near = (beyond[:, :2] >= -TOLERANCE).all(axis=1) & (beyond[:, 2:] <= TOLERANCE).all(axis=1)
    for at in np.flatnonzero(near & ~found).tolist():
        found[at] = covers_on(shape, others[at])
    return found
