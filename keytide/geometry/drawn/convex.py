"""Points in a convex polygon on the sphere: on the inner side of each of its edges' great circles. What boxes
are, and most that is asked; an eighth of what GEOS takes for a page of points."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keytide.geometry.drawn.sphere import TOLERANCE, Floats, normals

MOST_CORNERS: Final = 16
"""Of more corners a test of each costs more than GEOS."""
WIDEST: Final = math.cos(math.radians(30))
_ROUNDING: Final = 1e-15
_SHORTEST: Final = 1e-9
"""Edges that are shorter (six millimetres) do not say their side exactly enough."""
_SHARPEST: Final = -math.cos(math.radians(40))
"""Of the normals of two edges at a corner, of 40 degrees. What is within the tolerance of both edges' great
circles is three tolerances from the corner, at most; the sharper it is, the farther, up to all around."""


def inner_sides(geojson: dict[str, Any], vector: Floats) -> Floats | None:
    """The normals of the edges of a polygon, inwards: f64[corners, 3]; None if it is none, not convex, not
    small, or has a sharp corner.

    Args:
        geojson: in normal form.
        vector: its positions.
    """
    if geojson["type"] != "Polygon" or len(geojson["coordinates"]) > 1 or len(vector) > MOST_CORNERS + 1:
        return None
    corners = vector[:-1]
    middle = corners.sum(axis=0)
    if (corners @ middle < WIDEST * math.sqrt(float(middle @ middle))).any():
        return None
    ends = vector[1:]
    if (((ends - corners) ** 2).sum(axis=1) < _SHORTEST**2).any():
        return None
    found = normals(corners, ends)
    found /= np.sqrt((found**2).sum(axis=1, keepdims=True))
    if ((found * np.roll(found, -1, axis=0)).sum(axis=1) < _SHARPEST).any():
        return None
    if found[0] @ middle < 0:
        found = -found
    return None if (corners @ found.T < -_ROUNDING).any() else found


def hold_convex(sides: Floats, vector: Floats) -> NDArray[np.bool_]:
    """Which of many positions, as vectors, are on such a polygon, or within the tolerance of it."""
    return np.asarray((vector @ sides.T >= -TOLERANCE).all(axis=1))
