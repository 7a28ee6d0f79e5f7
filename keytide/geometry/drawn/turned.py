"""Single polygons on charts of their own: what a face of the cube sees of one that is not whole on it.

Theory of operation
===================
On the plane that touches the sphere in the middle of a polygon great circles are straight as on any chart, so
the square of a face is a convex polygon there, or what of it lies on this side of the globe is. GEOS cuts the
polygon with it, and what is left is seen by the face. That is one cut for each face, of whatever is within 87
degrees of its middle: all that there is, but for polygons that go half around the earth, or nearly so
(`keytide.geometry.drawn.wide`). At 87 degrees rounding comes to a 40th of the tolerance.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import shapely

from keytide.geometry.drawn.charts import AXES, BORDER, Shape, one_of, polygon_of
from keytide.geometry.drawn.sphere import Floats

LEAST_W: Final = 0.2
"""What is whole on a chart of a face has at least so much of w: it is within 78 degrees of its middle."""
_LEAST_TURNED: Final = 0.05
"""The same of a chart of one polygon."""
_HORIZON: Final = 0.02
"""Squares are cut off here: nothing that is whole on such a chart has less of w."""
_TURNS: Final = 20
_CORNERS: Final = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]]) * BORDER + [0, 0, 1]


class TurnedPolygon:
    """A polygon on a chart around its middle.

    Args:
        axes: of the chart, rows as those of `AXES`.
        shape: the polygon there.
    """

    def __init__(self, axes: Floats, shape: Shape) -> None:
        self.axes = axes
        self.shape = shape

    @classmethod
    def of(cls, rings: list[Floats]) -> TurnedPolygon | None:
        """That of rings, as vectors, each closed; None where they are too wide."""
        vector = np.concatenate(rings)
        axes = _axes_around(vector)
        if axes is None:
            return None
        seen = vector @ axes.T
        ends = np.cumsum([len(ring) for ring in rings]).tolist()
        return cls(axes, polygon_of(seen[:, :2] / seen[:, 2:], list(pairwise([0, *ends]))))

    def edges(self) -> Floats:
        """Ends of all edges on the chart (n, 2, 2)."""
        at, ring = shapely.get_coordinates(shapely.get_rings(self.shape), return_index=True)
        inner = np.flatnonzero(ring[1:] == ring[:-1])
        found: Floats = np.stack((at[inner], at[inner + 1]), axis=1)
        return found

    def piece(self, face: int) -> Shape | None:
        """What is seen of it on the square of a face."""
        square = _cut_off((_CORNERS @ AXES[face]) @ self.axes.T)
        if len(square) < 3:
            return None
        within = shapely.intersection(self.shape, shapely.polygons(square[:, :2] / square[:, 2:]))
        parts = shapely.get_parts(within)
        found = one_of(parts[shapely.get_dimensions(parts) == 2])
        return None if found is None else shapely.transform(found, lambda at: self._seen_by(face, at))

    def _seen_by(self, face: int, at: Floats) -> Floats:
        seen = (np.column_stack((at, np.ones(len(at)))) @ self.axes) @ AXES[face].T
        flat: Floats = seen[:, :2] / seen[:, 2:]
        return flat


def _axes_around(vector: Floats) -> Floats | None:
    """A chart on which vectors are seen whole; None if none is found."""
    w = _middle(vector)
    if w is None:
        return None
    u = np.cross(np.eye(3)[int(np.abs(w).argmin())], w)
    u /= np.linalg.norm(u)
    return np.stack((u, np.cross(w, u), w))


def _middle(vector: Floats) -> Floats | None:
    """A place that vectors are all near enough to: their mean, drawn to whichever is the farthest away, less
    each time (Badoiu and Clarkson, 2003)."""
    middle = vector.mean(axis=0)
    for turn in range(2, _TURNS):
        length = float(np.linalg.norm(middle))
        near = vector @ middle
        if length and float(near.min()) >= _LEAST_TURNED * length:
            found: Floats = middle / length
            return found
        middle = middle + (vector[int(near.argmin())] - middle) / turn
    return None


def _cut_off(corners: Floats) -> Floats:
    """What of a convex polygon, as a chart sees it, lies before its horizon."""
    found = []
    above = corners[:, 2] - _HORIZON * np.linalg.norm(corners, axis=1).max()
    for one, other in pairwise([*range(len(corners)), 0]):
        if above[one] >= 0:
            found.append(corners[one])
        if (above[one] < 0) != (above[other] < 0):
            part = above[one] / (above[one] - above[other])
            found.append(corners[one] + part * (corners[other] - corners[one]))
    return np.array(found).reshape(-1, 3)
