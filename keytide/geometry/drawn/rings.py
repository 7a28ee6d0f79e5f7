"""Many polygons of one ring each, drawn and measured together.

What `keytide.geometry.drawn.drawing` does of one geometry and GEOS is asked about it, in arrays: a document's
polygon takes microseconds then, where one by one it takes a hundred times as many. Those that are not whole
on a chart of the shape that they are held against are left to be looked at one by one.
"""

from __future__ import annotations

import numpy as np
import shapely

from keytide.geometry.drawn.charts import Shape, uvw
from keytide.geometry.drawn.drawing import bound_areas
from keytide.geometry.drawn.meeting import covers_on
from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.drawn.sphere import TOLERANCE, Floats, Mask, Numbers, vectors
from keytide.geometry.drawn.turned import LEAST_W
from keytide.geometry.drawn.work import ALONE


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


def polygons_of(seen: Floats, counts: Numbers) -> Shape:
    """Polygons of rings in a plane, one behind the other."""
    return shapely.polygons(shapely.linearrings(seen, indices=np.repeat(np.arange(len(counts)), counts)))


@quietly
def are_sound(at: Floats, counts: Numbers, geographic: bool) -> Mask:
    """Which of many rings neither cross nor touch themselves, and bound an area, as `Drawing.check` sees it;
    False, too, of those on the globe that are whole on no chart, and of those that may be too much work."""
    few = counts <= ALONE
    if not few.all():
        found = np.zeros(len(counts), bool)
        found[few] = are_sound(at[few.repeat(counts)], counts[few], geographic)
        return found
    if not len(counts):
        return np.zeros(0, bool)
    if not geographic:
        return np.asarray(shapely.is_valid(polygons_of(at, counts)))
    drawn, found = DrawnRings(at, counts), np.zeros(len(counts), bool)
    first = np.where(drawn.whole.any(axis=1), drawn.whole.argmax(axis=1), -1)
    for chart in set(first[first >= 0].tolist()):
        some = np.flatnonzero(first == chart)
        seen = drawn.on(chart, some)
        found[some] = shapely.is_valid(seen) & bound_areas(seen)
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
