"""The nearest of many places to a point on the globe: which can be among them, told by bounds, and how far
away those are.

Theory of operation
===================
The exact distance (`keytide.geometry.distance`) is dear, so it is measured of those only that can be among
the nearest. Of each place two bounds are known: it is not nearer than one, nor farther than the other. Where
the upper bounds of as many as are wanted are at most u, whatever is farther than u by its lower bound is none
of them, nor as far away as the last of them.

Bounds are chords of the unit sphere, widened by what the spheroid differs from it and what rounding comes to:

* of a point, its chord, twice;
* of a polygon, from above the chord to the nearest of its corners, from below that to the circle about the
  mean of its corners which holds them: less than a hemisphere, a circle holds the edges between them as well,
  and what they go round. Both take no sine of a corner: the square of the chord between positions that differ
  by (x, y), in radians, at the latitudes p and q, is 4 sin^2(y / 2) + 4 cos p cos q sin^2(x / 2), and so at
  most y^2 + cos p cos q x^2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from keytide.geometry.cells.disc import disc_spans
from keytide.geometry.cells.quick import vector_of
from keytide.geometry.distance import geodesics, ring_distances
from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.shapes import Geometry, Rings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_ACROSS: Final = 4
"""Cells side by side of a disc: it has some 15 ranges, with 2.7 times its area."""
_CLOSELY: Final = 8
"""The same where what is read is dear: some 21 ranges, with 1.8 times its area."""
_ROUNDING: Final = 1e-9
"""Radians, 6 mm: far more than bounds are wrong by."""
_WIDEST: Final = 1.0
"""Radians, of the circle about a polygon: less than a hemisphere, with much to spare."""


def spans_around(place: Geometry, metres: float, *, closely: bool = False) -> list[tuple[int, int]] | None:
    """Inclusive ranges of cell ids, disjoint and ascending: whatever lies within a distance of a point on the
    globe has one of its `cells_of` in one of them. None where that is not the way: of wide discs.

    Args:
        closely: more and smaller ones, for what has several entries each.
    """
    from keytide.geometry.drawn.sphere import EARTH_RADIUS, SPHEROID_SLACK

    angle = metres / (EARTH_RADIUS * (1 - SPHEROID_SLACK)) + _ROUNDING
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

    at, here = np.stack((xs, ys), axis=1), np.array([[place.x, place.y]])
    if len(at) <= wanted:
        return geodesics(at, here)
    lon, lat = math.radians(place.x), math.radians(place.y)
    phi = np.radians(ys)
    north, east = np.sin((phi - lat) / 2), np.sin((np.radians(xs) - lon) / 2)
    # (Of the antipode it comes out as a little more than it can be.)
    chord2 = np.minimum(4 * (north * north + np.cos(phi) * math.cos(lat) * (east * east)), 4)
    limit = _farthest(chord2, wanted)
    some = np.flatnonzero(chord2 <= limit * limit)
    found = np.full(len(at), np.inf)
    found[some] = geodesics(at[some], here)
    return found


@quietly
def nearest_rings(place: Geometry, rings: Rings, wanted: int) -> Floats:
    """The same of many polygons."""
    import numpy as np

    from keytide.geometry.drawn.rings import DrawnRings

    least, most = ring_bounds(place, rings)
    found = np.full(len(rings), np.inf)
    # Which may hold the place, or nearly so, GEOS says. What is beside it is measured on the sphere.
    limit = _farthest(most, wanted) if len(rings) > wanted else math.inf
    open_, beside = least <= limit, least > _ROUNDING
    some = open_ & beside
    if some.any():
        few, drawing = rings.some(some), place.drawing
        drawn = DrawnRings(few.at, few.counts)
        found[some] = geodesics(*drawn.nearest(drawing.at[0], drawing.vector[0])[1:])
    rest = open_ & ~beside
    if rest.any():
        found[rest] = ring_distances(place, rings.some(rest))
    return found


def ring_bounds(place: Geometry, rings: Rings) -> tuple[Floats, Floats]:
    """Of polygons on the globe, between which bounds the chord lies to what of each is nearest to a point:
    (chords, squared chords)."""
    import numpy as np

    from keytide.geometry.drawn.sphere import vectors

    counts = rings.counts
    starts = counts.cumsum() - counts
    xs, ys = np.radians(np.ascontiguousarray(rings.at.T))
    middle_x, middle_y = np.add.reduceat(xs, starts) / counts, np.add.reduceat(ys, starts) / counts
    # The cosine of the latitude of each ring's corner that is nearest to the equator.
    cosine = np.cos(np.minimum.reduceat(np.abs(ys), starts))
    here = vector_of(place.x, place.y)
    scale = cosine * math.hypot(here[0], here[1])
    x, y = xs - math.radians(place.x), ys - math.radians(place.y)
    most = np.minimum.reduceat(y * y + scale.repeat(counts) * (x * x), starts)
    x, y = xs - middle_x.repeat(counts), ys - middle_y.repeat(counts)
    scale = cosine * np.cos(middle_y)
    width = np.sqrt(np.maximum.reduceat(y * y + scale.repeat(counts) * (x * x), starts))
    middles = vectors(np.degrees(np.stack((middle_x, middle_y), axis=1)))
    away = np.sqrt(((middles - here) ** 2).sum(axis=1))
    return np.where(width < _WIDEST, away - width, 0.0), most


def _farthest(most: Floats, wanted: int) -> float:
    """The chord on the sphere of whatever may be as near on the spheroid as so many of which squared chords
    are known."""
    import numpy as np

    from keytide.geometry.drawn.sphere import SPHEROID_SLACK

    chord = math.sqrt(min(4.0, float(np.partition(most, wanted - 1)[wanted - 1])))
    angle = 2 * math.asin(chord / 2) * (1 + SPHEROID_SLACK) / (1 - SPHEROID_SLACK) + _ROUNDING
    return 2 * math.sin(min(angle, math.pi) / 2)
