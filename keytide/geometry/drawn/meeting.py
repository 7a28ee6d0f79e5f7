"""Whether geometries on charts meet, and whether one covers another: geographic, with PostGIS' tolerance.

Theory of operation
===================
On a chart GEOS decides exactly, of positions that were rounded when they were projected (a nanometre). So
that a point on an edge, or a box that ends at another's edge, is not a matter of such rounding, what is
within `TOLERANCE` meets, and is covered: PostGIS' ST_Intersects of geographies is ST_Distance < 0.00001.

The tolerance is applied in units of the chart: ten micrometres in its middle, a third of that at a face's
corner.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from keytide.geometry.drawn.charts import FACES, SQUARE, Shape, face_of, uvw
from keytide.geometry.drawn.drawing import Drawing
from keytide.geometry.drawn.sphere import TOLERANCE, Floats

_MANY: Final = 50
"""Points for which a halo is worth its making."""
_HORIZON: Final = 0.1
"""What has less of w on a chart is nowhere near to what is whole on it."""


def common(a: Drawing, b: Drawing) -> int | None:
    """A chart on which both are whole."""
    for chart in a.whole:
        if chart in b.whole:
            return chart
    return None


def meet(a: Drawing, b: Drawing) -> bool:
    """Whether two geographic geometries have a place in common."""
    chart = common(a, b)
    if chart is not None:
        return _meet_on(a.on(chart), b.on(chart))
    for face in FACES:
        one, other = a.piece(face), b.piece(face)
        if one is not None and other is not None and _meet_on(one, other):
            return True
    return False


def _meet_on(one: Shape, other: Shape) -> bool:
    return bool(shapely.intersects(one, other)) or bool(shapely.dwithin(one, other, TOLERANCE))


def hold(drawing: Drawing, vector: Floats) -> NDArray[np.bool_]:
    """Which of many positions, as vectors, are on a geographic geometry."""
    found = np.zeros(len(vector), bool)
    if drawing.whole:
        chart = drawing.whole[0]
        _hold_some(found, drawing, drawing.on(chart), uvw(vector, chart), slice(None))
        return found
    faces = face_of(vector)
    for face in np.unique(faces).tolist():
        shape = drawing.piece(face)
        if shape is not None:
            some = np.flatnonzero(faces == face)
            _hold_some(found, drawing, shape, uvw(vector[some], face), some)
    return found


def _hold_some(
    found: NDArray[np.bool_],
    drawing: Drawing,
    shape: Shape,
    seen: Floats,
    some: NDArray[np.int64] | slice,
) -> None:
    """Say which of some positions, as a chart sees them, are on a shape; in place."""
    w = seen[:, 2]
    ahead = w > _HORIZON
    divisor = np.where(ahead, w, 1.0)
    u, v = seen[:, 0] / divisor, seen[:, 1] / divisor
    left, low, right, high = shape.bounds
    margin = 2 * TOLERANCE
    near = ahead & (u >= left - margin) & (u <= right + margin) & (v >= low - margin) & (v <= high + margin)
    at = np.flatnonzero(near)
    on = np.asarray(shapely.intersects_xy(shape, u[at], v[at]))
    rest = at[~on]
    near[rest] = False
    if len(rest) > _MANY:
        rest = rest[np.asarray(shapely.intersects_xy(drawing.halo(shape), u[rest], v[rest]))]
    near[rest] = shapely.dwithin(shape, shapely.points(u[rest], v[rest]), TOLERANCE)
    found[some] = near


def cover(a: Drawing, b: Drawing) -> bool:
    """Whether a geographic geometry covers another: no place of that is outside of it."""
    chart = common(a, b)
    if chart is not None:
        return covers_on(a.on(chart), b.on(chart))
    for face in FACES:
        other = b.piece(face)
        if other is None:
            continue
        other = shapely.intersection(other, SQUARE)
        one = a.piece(face)
        if not shapely.is_empty(other) and (one is None or not covers_on(one, other)):
            return False
    return True


def covers_on(one: Shape, other: Shape) -> bool:
    """Whether a shape on a chart covers another, but for the tolerance."""
    bounds = shapely.bounds((one, other))
    beyond = bounds[1] - bounds[0]
    if beyond[:2].min() < -TOLERANCE or beyond[2:].max() > TOLERANCE:
        return False
    if shapely.covers(one, other):
        return True
    if shapely.get_dimensions(one) < shapely.get_dimensions(other):
        return False
    if shapely.get_type_id(other) > _POLYGON:
        return all(covers_on(one, part) for part in shapely.get_parts(other))
    if not _all_near(one, shapely.get_coordinates(other)):
        return False
    if shapely.get_type_id(one) == _COLLECTION:
        one = shapely.union_all(shapely.get_parts(one))
    rest = shapely.difference(other, one)
    if shapely.area(rest) > TOLERANCE * shapely.length(rest):
        return False
    for part in shapely.get_parts(rest):
        at = shapely.get_coordinates(part)
        if not _all_near(one, at) or not _all_near(one, (at[1:] + at[:-1]) / 2):
            return False
    return True


_POLYGON: Final = 3
_COLLECTION: Final = 7


def _all_near(one: Shape, at: Floats) -> bool:
    """Whether positions on a chart are all on a shape, or near it."""
    out = at[~np.asarray(shapely.intersects_xy(one, at[:, 0], at[:, 1]))]
    return not len(out) or bool(np.all(shapely.dwithin(one, shapely.points(out), TOLERANCE)))
