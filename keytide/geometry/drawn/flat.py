"""Whether planar shapes contain others: what GEOS says, but of collections that have points.

GEOS 3.14 says of a collection of an area and a point that it contains no polygon which the point is outside
of, whatever the area contains. The points of a collection hold nothing but points, so lines and areas are
asked of its other parts alone.
"""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray

from keytide.geometry.drawn.charts import Shape


def contains(one: Shape, other: Shape) -> bool:
    """Whether a shape contains another: all of it, and not by its boundary alone (OGC)."""
    points, rest = _parted(one)
    held_points, held = _parted(other)
    if points is None or rest is None or held is None:
        return bool(shapely.contains(one, other))
    if held_points is None:
        return bool(shapely.contains(rest, held))
    return bool(
        shapely.covers(one, held_points)
        and shapely.covers(rest, held)
        and (shapely.contains(rest, held) or shapely.contains(one, held_points))
    )


def contains_areas(one: Shape, areas: NDArray[np.object_]) -> NDArray[np.bool_]:
    """The same of many polygons."""
    _, rest = _parted(one)
    return np.zeros(len(areas), bool) if rest is None else np.asarray(shapely.contains(rest, areas))


def _parted(shape: Shape) -> tuple[Shape | None, Shape | None]:
    """The points of a shape, and what it has of lines and areas."""
    if shapely.get_type_id(shape) != _COLLECTION:
        return (shape, None) if shapely.get_dimensions(shape) == 0 else (None, shape)
    parts = shapely.get_parts(shape)
    extended = shapely.get_dimensions(parts) > 0
    if extended.all():
        return None, shape
    return _one_of(parts[~extended]), _one_of(parts[extended])


def _one_of(parts: NDArray[np.object_]) -> Shape | None:
    if len(parts) < 2:
        return parts[0] if len(parts) else None
    return shapely.geometrycollections(parts)


_COLLECTION = 7
