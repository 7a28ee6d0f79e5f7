"""The nearest of many places to a point on the globe: where they may be, and how far away those are that can
be among them.

Theory of operation
===================
The exact distance (`keytide.geometry.distance`) is dear, so it is measured of those only that can be among
the nearest. Chords of the unit sphere tell that: what the spheroid differs from it, and rounding, are bounded
(`keytide.geometry.drawn.sphere.farthest_of`). Whatever is farther than as many as are wanted is none of them,
nor as far away as the last of them.

The chord of a point is had without three coordinates of it: the square of the chord between positions that
differ by (x, y), in radians, at the latitudes p and q, is 4 sin^2(y / 2) + 4 cos p cos q sin^2(x / 2). Those
of polygons are had by `keytide.geometry.drawn.around`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from keytide.geometry.cells.disc import disc_spans
from keytide.geometry.cells.quick import vector_of
from keytide.geometry.distance import geodesics
from keytide.geometry.shapes import Geometry

if TYPE_CHECKING:
    from keytide.geometry.drawn.sphere import Floats

_ACROSS: Final = 4
"""Cells side by side of a disc: it has some 17 ranges, with 2.5 times its area."""
_CLOSELY: Final = 6
"""The same where what is read is dear: some 21 ranges, with 1.9 times its area."""


def spans_around(place: Geometry, metres: float, *, closely: bool = False) -> list[tuple[int, int]] | None:
    """Inclusive ranges of cell ids, disjoint and ascending: whatever lies within a distance of a point on the
    globe has one of its `cells_of` in one of them. None where that is not the way: of wide discs.

    Args:
        closely: more and smaller ones, for what has several entries each.
    """
    from keytide.geometry.drawn.sphere import EARTH_RADIUS, ROUNDING, SPHEROID_SLACK

    angle = metres / (EARTH_RADIUS * (1 - SPHEROID_SLACK)) + ROUNDING
    return disc_spans(vector_of(place.x, place.y), angle, _CLOSELY if closely else _ACROSS)


def nearest_points(place: Geometry, xs: Floats, ys: Floats, wanted: int) -> Floats:
    """How far the nearest of many points on the globe, in range, are from one.

    Args:
        wanted: how many of them, at least 1.

    Returns:
        Metres, as `distance` has them; infinite for some of those that are farther away than as many as are
        wanted.
    """
    import numpy as np

    from keytide.geometry.drawn.sphere import farthest_of

    at, here = np.stack((xs, ys), axis=1), np.array([[place.x, place.y]])
    if len(at) <= wanted:
        return geodesics(at, here)
    lon, lat = math.radians(place.x), math.radians(place.y)
    phi = np.radians(ys)
    north, east = np.sin((phi - lat) / 2), np.sin((np.radians(xs) - lon) / 2)
    # (Of the antipode it comes out as a little more than it can be.)
    chord2 = np.minimum(4 * (north * north + np.cos(phi) * math.cos(lat) * (east * east)), 4)
    some = np.flatnonzero(chord2 <= farthest_of(chord2, wanted))
    found = np.full(len(at), np.inf)
    found[some] = geodesics(at[some], here)
    return found
