"""Charts: planes that touch the sphere, one for each face of S2's cube, on which great circles are
straight."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import shapely

from keytide.geometry.drawn.sphere import Floats

FACES: Final = range(6)
PLANE: Final = 0
"""The one chart of a planar geometry."""
BORDER: Final = 1 + 1e-9
"""Half a face's side, and a little: pieces overlap by 6 mm, so that nothing gets lost between two faces."""
SQUARE: Final = shapely.box(-BORDER, -BORDER, BORDER, BORDER)

# Rows: (u * w, v * w, w) of a vector, for each face. Section "Geographic cells" of S2: FaceXYZtoUVW.
AXES: Final = np.array(
    [
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
        [[-1, 0, 0], [0, 0, 1], [0, 1, 0]],
        [[-1, 0, 0], [0, -1, 0], [0, 0, 1]],
        [[0, 0, -1], [0, -1, 0], [-1, 0, 0]],
        [[0, 0, -1], [1, 0, 0], [0, -1, 0]],
        [[0, 1, 0], [1, 0, 0], [0, 0, -1]],
    ],
    dtype=np.float64,
)

Shape = Any
"""A geometry of shapely."""
Stretch = tuple[int, int]
"""Positions from, until."""


def uvw(vector: Floats, face: int) -> Floats:
    """Vectors as a face sees them: (u * w, v * w, w)."""
    seen: Floats = vector @ AXES[face].T
    return seen


def face_of(vector: Floats) -> Any:
    """The face that each vector is on."""
    axis = np.abs(vector).argmax(axis=1)
    return axis + 3 * (vector[np.arange(len(vector)), axis] < 0)


# --- shapes of shapely ------------------------------------------------------------------------------------


def polygon_of(seen: Floats, rings: list[Stretch]) -> Shape:
    """A polygon of projected positions."""
    if len(rings) == 1:
        return shapely.polygons(seen[rings[0][0] : rings[0][1]])
    made = [shapely.linearrings(seen[a:b]) for a, b in rings]
    return shapely.polygons(made[0], holes=made[1:])


def line_of(seen: Floats) -> Shape:
    """A line, or the point that a line without length is."""
    if (seen == seen[0]).all():
        return shapely.points(seen[0])
    return shapely.linestrings(seen)


def one_of(polygons: Shape) -> Shape | None:
    """One shape of some polygons that do not overlap; None of none."""
    if not len(polygons):
        return None
    return polygons[0] if len(polygons) == 1 else shapely.multipolygons(polygons)


def together(polygons: list[Shape], lines: list[Shape], points: Floats) -> Shape | None:
    """One shape of several; None of nothing. Polygons that overlap become their union: GEOS's predicates are
    of valid shapes."""
    found: list[Shape] = []
    if len(polygons) > 1:
        many = shapely.multipolygons(shapely.get_parts(polygons))
        found.append(many if shapely.is_valid(many) else shapely.union_all(polygons))
    else:
        found += polygons
    if len(lines) > 1 and all(shapely.get_type_id(one) == 1 for one in lines):
        found.append(shapely.multilinestrings(lines))
    else:
        found += lines
    if len(points):
        found.append(shapely.points(points[0]) if len(points) == 1 else shapely.multipoints(points))
    if len(found) > 1:
        return shapely.geometrycollections(found)
    return found[0] if found else None
