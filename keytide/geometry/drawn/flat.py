"""Whether planar shapes contain others: what GEOS says, but of collections that have points.

GEOS 3.14 says of a collection of an area and a point that it contains no polygon which the point is outside
of, whatever the area contains. The points of a collection hold nothing but points, so lines and areas are
asked of its other parts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from keytide.geometry.drawn.charts import Shape
from keytide.geometry.drawn.covered import edges_of, parts_of
from keytide.geometry.drawn.work import OVERLAID, Work

_COLLECTION: Final = 7
"""GEOS' type of a collection of several kinds."""


@dataclass(frozen=True, slots=True)
class FlatShape:
    """A shape in the plane; made once for many questions (`Drawing.flat`).

    Attributes:
        whole: the shape.
        points: its points, of a collection that has more than those; None where there are none.
        rest: what it has of lines and areas.
    """

    whole: Shape
    points: Shape | None
    rest: Shape

    @classmethod
    def of(cls, shape: Shape, ready: Callable[[Shape], Shape]) -> FlatShape:
        """That of a shape.

        Args:
            ready: what is done with a part that is asked about.
        """
        if shapely.get_type_id(shape) != _COLLECTION:
            return cls(shape, None, shape)
        parts = shapely.get_parts(shape)
        extended = shapely.get_dimensions(parts) > 0
        if extended.all() or not extended.any():
            return cls(shape, None, shape)
        return cls(shape, ready(_one_of(parts[~extended])), ready(_one_of(parts[extended])))


def contains(one: FlatShape, other: FlatShape) -> bool:
    """Whether a shape contains another: all of it, and not by its boundary alone (OGC).

    Raises:
        TooComplexError: they have lines, and too many edges of both lie across one another.
    """
    _weigh(one.whole, other.whole)
    if one.points is None or shapely.get_dimensions(other.whole) == 0:
        return bool(shapely.contains(one.whole, other.whole))
    if other.points is None:
        return bool(shapely.contains(one.rest, other.whole))
    return bool(
        shapely.covers(one.whole, other.points)
        and shapely.covers(one.rest, other.rest)
        and (shapely.contains(one.rest, other.rest) or shapely.contains(one.whole, other.points))
    )


def _weigh(one: Shape, other: Shape) -> None:
    """See that GEOS does not look at too many places where edges of lines cross, which it keeps."""
    bounds = shapely.bounds((one, other))
    within = (bounds[0, :2] <= bounds[1, :2]).all() and (bounds[0, 2:] >= bounds[1, 2:]).all()
    if within and len(parts_of(one, 1)) and len(parts_of(other, 1)):
        edges = np.concatenate((edges_of(one), edges_of(other)))
        Work(OVERLAID).compare(edges, np.zeros(len(edges), np.int64))


def contains_areas(one: FlatShape, areas: NDArray[np.object_]) -> NDArray[np.bool_]:
    """The same of many polygons."""
    return np.asarray(shapely.contains(one.rest, areas))


def _one_of(parts: NDArray[np.object_]) -> Shape:
    return parts[0] if len(parts) == 1 else shapely.geometrycollections(parts)
