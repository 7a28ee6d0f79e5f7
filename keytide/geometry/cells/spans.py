"""Spans: the stretches of cell ids that a query reads.

Theory of operation
===================
A document may match only if a cell of its covering and one of the query's hold a place in common: then one of
them is within the other. Cells within a cell of the query are a range of ids; those that one of them is
within are single ids, one for each level that a document's cell may have. What is beside one another is
merged; when there are still more than may be, the narrowest gaps are read as well.

A document that contains the shape has a cell around any place of it. One place is enough, and has the fewest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from keytide.geometry.cells.covering import (
    Outline,
    covering,
    covering_of,
    point_cell,
    rectangles,
    shapes_of,
)
from keytide.geometry.cells.curve import LEAF, Square, level_of, parent_of, span_of
from keytide.geometry.cells.geographic import face_coordinates
from keytide.geometry.cells.quick import circle_cells, planar_circle_cells, polygon_cells, vector_of
from keytide.geometry.drawn.quiet import quietly

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from keytide.geometry.drawn.drawing import Drawing
    from keytide.geometry.drawn.sphere import Mask
    from keytide.geometry.geojson import Relation
    from keytide.geometry.shapes import Geometry

    Places = NDArray[np.int64]

_EVERYTHING: Final = [(1, (6 << 61) - 1)]


def spans_of(
    relation: Relation, shape: Geometry, drawing: Callable[[], Drawing], metres: float, most: int
) -> list[tuple[int, int]]:
    """What `QueryShape.spans` gives.

    Args:
        drawing: gives the shape's, prepared, where it is needed.
    """
    cells = _quick_cells(relation, shape, metres, max(8, most // 2))
    if cells is None:
        cells = _cells(relation, shape, drawing(), metres, most)
    return _merged(_with_ancestors(cells), most)


@quietly
def _cells(relation: Relation, shape: Geometry, drawing: Drawing, metres: float, most: int) -> list[int]:
    """The cells of a query; none for everything."""
    if relation == "contains":
        x, y = drawing.at[0].tolist()
        return [point_cell(x, y, shape.frame)]
    if relation == "dwithin" and metres > 0:
        if shape.frame == "planar":
            return covering(_PlanarBuffer(drawing, metres), most)
        angle = _angle(metres)
        return covering(_Buffer(drawing, angle), most) if angle < math.pi else []
    if shape.is_point and shape.frame == "planar":
        return [point_cell(shape.x, shape.y, shape.frame)]
    return covering_of(drawing, most)


def _quick_cells(relation: Relation, shape: Geometry, metres: float, most: int) -> list[int] | None:
    """The same of a circle, and of one polygon; None of anything else, and where that is not the way."""
    planar = shape.frame == "planar"
    if relation == "contains":
        return [point_cell(shape.x, shape.y, shape.frame)] if shape.is_point else None
    if shape.is_point:
        if relation != "dwithin" or not metres:
            return None
        if planar:
            return planar_circle_cells(shape.x, shape.y, metres, most)
        return circle_cells(vector_of(shape.x, shape.y), _angle(metres), most)
    return None if relation == "dwithin" else polygon_cells(shape.geojson, shape.frame, most)


def _angle(metres: float) -> float:
    """At least the angle that a distance comes to on the sphere."""
    from keytide.geometry.drawn.sphere import EARTH_RADIUS, SPHEROID_SLACK

    return metres / (EARTH_RADIUS * (1 - SPHEROID_SLACK)) + 1e-11


def _with_ancestors(cells: list[int]) -> list[tuple[int, int]]:
    if not cells:
        return _EVERYTHING
    found = {span_of(cell) for cell in cells}
    ancestors: set[int] = set()
    for cell in cells:
        for level in range(level_of(cell) - 1, -1, -1):
            ancestor = parent_of(cell, level)
            if ancestor in ancestors:
                break  # and so are those around it
            ancestors.add(ancestor)
    found.update((ancestor, ancestor) for ancestor in ancestors)
    return sorted(found)


def _merged(spans: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Those that touch become one (between two neighbouring cells' leaves there is an even number, which is
    no leaf's id), then those with the narrowest gaps."""
    found = [spans[0]]
    for low, high in spans[1:]:
        if low <= found[-1][1] + 2:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    if len(found) <= most:
        return found
    gaps = sorted(range(1, len(found)), key=lambda at: found[at][0] - found[at - 1][1])
    kept = sorted(gaps[len(found) - most :])
    starts, ends = [0, *kept], [*kept, len(found)]
    return [(found[a][0], found[b - 1][1]) for a, b in zip(starts, ends, strict=True)]


class _PlanarBuffer:
    """What is within a distance of a planar drawing."""

    def __init__(self, drawing: Drawing, distance: float) -> None:
        self.drawing = drawing
        self.shape = next(iter(shapes_of(drawing).values()))
        self.distance = distance * (1 + 1e-12)

    def seeds(self) -> list[Square]:
        return [(0, 0, 0, 0)]

    def look(self, face: int, i: Places, j: Places, level: int) -> tuple[Mask, Mask]:
        import numpy as np
        import shapely

        del face
        left, low, right, high = rectangles(self.drawing, self.shape, i, j, level, self.distance)
        touches = np.asarray(shapely.dwithin(self.shape, shapely.box(left, low, right, high), self.distance))
        return touches, touches & False


class _Buffer:
    """What is within an angle of a geographic drawing."""

    def __init__(self, drawing: Drawing, angle: float) -> None:
        self.drawing = drawing
        self.outline = Outline(drawing)
        self.edges = drawing.edges()
        self.angle = angle

    def seeds(self) -> list[Square]:
        from keytide.geometry.drawn.charts import FACES

        return [(face, 0, 0, 0) for face in FACES]

    def look(self, face: int, i: Places, j: Places, level: int) -> tuple[Mask, Mask]:
        import numpy as np

        from keytide.geometry.drawn.charts import AXES
        from keytide.geometry.drawn.sphere import chord2_of, nearest, nearest_of_edges

        width = 1 << LEAF - level
        sides = [face_coordinates(at) for at in (i, i + width, j, j + width)]
        corners = np.ones((len(i), 4, 3))
        for corner, (u, v) in enumerate(((0, 2), (1, 2), (1, 3), (0, 3))):
            corners[:, corner, 0], corners[:, corner, 1] = sides[u], sides[v]
        corners = corners @ AXES[face]
        corners /= np.linalg.norm(corners, axis=2, keepdims=True)
        start, end = corners.reshape(-1, 3), np.roll(corners, -1, axis=1).reshape(-1, 3)
        limit = chord2_of(self.angle)
        chord2 = nearest(start, self.drawing.vector, *self.edges)[0].reshape(-1, 4)
        beside = nearest_of_edges(self.drawing.vector, start, end).reshape(-1, 4)
        touches = (chord2.min(axis=1) <= limit) | (beside.min(axis=1) <= limit)
        if face in self.outline.shapes:
            touches |= self.outline.look(face, i, j, level)[0]
        # All of its corners near to one place of the drawing, or in it: so is what lies between them, if the
        # angle is less than a quarter of the earth.
        return touches, touches & False
