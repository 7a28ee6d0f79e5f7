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

from keytide.geometry.drawn.charts import FACES, SQUARE, Shape, face_of, one_of, uvw
from keytide.geometry.drawn.covered import are_covered, edges_of, parts_of
from keytide.geometry.drawn.drawing import Drawing
from keytide.geometry.drawn.sphere import TOLERANCE, Floats
from keytide.geometry.drawn.work import Work

_MANY: Final = 50
"""Points for which it is worth to sort edges by where they are."""
_FEW: Final = 100
"""Positions of two shapes with lines, of which all pairs are soon looked at."""
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
    if len(rest) > _MANY:
        near[rest] = drawing.near(shape).reach(np.stack((u[rest], v[rest]), axis=1))
    else:
        near[rest] = shapely.dwithin(shape, shapely.points(u[rest], v[rest]), TOLERANCE)
    found[some] = near


def cover(a: Drawing, b: Drawing) -> bool:
    """Whether a geographic geometry covers another: no place of that is outside of it.

    Raises:
        TooComplexError: too many edges of both lie along one another.
    """
    chart, work = common(a, b), Work()
    if chart is not None:
        return covers_on(a.on(chart), b.on(chart), work)
    for face in FACES:
        other = b.piece(face)
        if other is None:
            continue
        other, one = _on_square(other), a.piece(face)
        if not shapely.is_empty(other) and (one is None or not covers_on(one, other, work)):
            return False
    return True


def covers_on(one: Shape, other: Shape, work: Work | None = None) -> bool:
    """Whether a shape on a chart covers another, but for the tolerance. Raises as `cover`.

    Args:
        work: what is left of it.
    """
    bounds = shapely.bounds((one, other))
    beyond = bounds[1] - bounds[0]
    if beyond[:2].min() < -TOLERANCE or beyond[2:].max() > TOLERANCE:
        return False
    if _are_few(one, other) and shapely.covers(one, other):
        return True
    if shapely.get_dimensions(one) < shapely.get_dimensions(other):
        return False
    areas, theirs = _areas(one), _areas(other)
    if not are_covered(edges_of(other), edges_of(one), areas, work or Work()):
        return False
    # What an area does not cover of another one lies between edges that are near to one another.
    rest = shapely.get_parts(shapely.difference(theirs, areas)) if theirs is not None else ()
    return not bool(np.any(shapely.area(rest) > TOLERANCE * shapely.length(rest)))


def _on_square(shape: Shape) -> Shape:
    """What of a shape lies on the square of its face. Lines are not looked at for where they cross."""
    areas = shapely.intersection(np.concatenate((parts_of(shape, 2), parts_of(shape, 0))), SQUARE)
    lines = shapely.clip_by_rect(parts_of(shape, 1), *SQUARE.bounds)
    return shapely.geometrycollections(np.concatenate((areas, lines)))


def _are_few(one: Shape, other: Shape) -> bool:
    """Whether GEOS may be asked of all edges together: of lines it looks at all pairs."""
    return (
        int(shapely.get_num_coordinates((one, other)).sum()) <= _FEW
        or len(parts_of(one, 1)) + len(parts_of(other, 1)) == 0
    )


def _areas(shape: Shape) -> Shape | None:
    """The polygons of a shape, ready to be asked about many edges."""
    found = one_of(parts_of(shape, 2))
    shapely.prepare(found)
    return found
