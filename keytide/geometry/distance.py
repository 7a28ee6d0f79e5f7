"""Distances on the spheroid and in the plane; bounds of maps.

Theory of operation
===================
As PostGIS does it for geographies: the two places that are nearest to one another are looked for on the
sphere, and the geodesic between them is measured on the spheroid WGS84 (Karney's algorithm, in PROJ).
Geometries that meet (`keytide.geometry.drawn.meeting`) are 0.0 apart.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.geojson import NotAGeometryError
from keytide.geometry.shapes import Geometry, Rings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from keytide.geometry.drawn.drawing import Drawing
    from keytide.geometry.drawn.sphere import Floats


def same_frame(a: Geometry, b: Geometry) -> bool:
    """Whether both are geographic, or both are planar (False).

    Raises:
        NotAGeometryError: they are of different frames.
    """
    if a.frame != b.frame:
        raise NotAGeometryError(f"a {a.frame} and a {b.frame} geometry have nothing to do with one another")
    return a.frame == "geographic"


@quietly
def distance(a: Geometry, b: Geometry) -> float:
    """How far two geometries are from one another, 0.0 when they meet: metres on the WGS84 spheroid between
    the points that are closest on the sphere (PostGIS' ST_Distance of geographies), or units of the plane.

    Raises:
        NotAGeometryError: they are of different frames.
    """
    import shapely

    from keytide.geometry.drawn.charts import PLANE
    from keytide.geometry.drawn.meeting import meet

    if not same_frame(a, b):
        return float(shapely.distance(a.drawing.on(PLANE), b.drawing.on(PLANE)))
    if a.is_point and b.is_point:
        return float(geodesics(a.drawing.at, b.drawing.at)[0])
    if meet(a.drawing, b.drawing):
        return 0.0
    return float(geodesics(*nearest_places(a.drawing, b.drawing))[0])


@quietly
def distances(shape: Geometry, xs: Floats, ys: Floats) -> Floats:
    """The same of many points, in range."""
    import numpy as np
    import shapely

    from keytide.geometry.drawn.charts import PLANE
    from keytide.geometry.drawn.meeting import hold
    from keytide.geometry.drawn.sphere import degrees, nearest, vectors

    if shape.frame == "planar":
        return np.asarray(shapely.distance(shape.drawing.on(PLANE), shapely.points(xs, ys)), np.float64)
    at = np.stack((xs, ys), axis=1)
    if shape.is_point:
        return geodesics(at, np.array([[shape.x, shape.y]], np.float64))
    drawing, vector = shape.drawing.prepared(), vectors(at)
    away = ~hold(drawing, vector)
    found = np.zeros(len(at))
    if away.any():
        _, places = nearest(vector[away], drawing.vector, *drawing.edges())
        found[away] = geodesics(at[away], degrees(places))
    return found


@quietly
def ring_distances(shape: Geometry, rings: Rings, wanted: int | None = None) -> Floats:
    """The same of many polygons.

    Args:
        wanted: when so many of the nearest are all that is asked for, at least 1: some of those that are
            farther away from a point on the globe than as many are infinitely far.
    """
    import numpy as np

    if shape.frame == "planar":
        import shapely

        from keytide.geometry.drawn.charts import PLANE
        from keytide.geometry.drawn.rings import polygons_of

        others = polygons_of(rings.at, rings.counts)
        return np.asarray(shapely.distance(others, shape.drawing.on(PLANE)), np.float64)
    if not shape.is_point or not len(rings):
        return np.array([distance(rings.geometry(at), shape) for at in range(len(rings))], np.float64)
    from keytide.geometry.drawn.around import RingsAround
    from keytide.geometry.drawn.sphere import farthest_of

    drawing = shape.drawing
    seen = RingsAround(rings.at, rings.counts, drawing.vector[0])
    found = np.where(seen.hold, 0.0, math.inf)
    away = ~seen.hold
    if wanted is not None and wanted < len(rings):
        chord2 = np.where(seen.hold, 0.0, seen.chord2)
        away &= seen.open | (chord2 <= farthest_of(chord2, wanted))
    if seen.open.any():
        by_itself = _asked_of_geos(drawing, rings, seen.open, found)
        for at in by_itself.tolist():
            found[at] = distance(rings.geometry(at), shape)
        away &= found > 0
        away[by_itself] = False
    measured = np.flatnonzero(away)
    if len(measured):
        found[measured] = geodesics(*seen.between(measured, drawing.at[0]))
    return found


def _asked_of_geos(
    drawing: Drawing, rings: Rings, some: NDArray[np.bool_], found: Floats
) -> NDArray[np.int64]:
    """Write 0.0 for those of some polygons that meet a place; which of them are to be asked one by one."""
    import numpy as np

    from keytide.geometry.drawn.rings import DrawnRings, meet_on

    few, at = rings.some(some), np.flatnonzero(some)
    drawn, open_ = DrawnRings(few.at, few.counts), np.ones(len(at), bool)
    for chart in drawing.whole:
        these = np.flatnonzero(open_ & drawn.whole[:, chart])
        if len(these):
            found[at[these[meet_on(drawing.on(chart), drawn.on(chart, these))]]] = 0.0
            open_[these] = False
    return at[open_]


def geodesics(a: Floats, b: Floats) -> Floats:
    """Metres between positions (n, 2) and (n, 2) or (1, 2), in degrees."""
    import numpy as np

    if len(b) != len(a):
        b = b.repeat(len(a), axis=0)
    return np.asarray(_spheroid().inv(a[:, 0], a[:, 1], b[:, 0], b[:, 1])[2], np.float64)


def load_libraries() -> None:
    """Import what tests and distances need, which takes some tenths of a second: for who would rather wait
    for that before somebody asks."""
    import shapely

    del shapely
    _spheroid()


@cache
def _spheroid() -> Any:
    import pyproj

    return pyproj.Geod(ellps="WGS84")


def nearest_places(a: Drawing, b: Drawing) -> tuple[Floats, Floats]:
    """Of two geometries that do not meet, the place of each that is nearest to the other: (1, 2) each, in
    degrees. One of them is a vertex."""
    from keytide.geometry.drawn.sphere import degrees, nearest

    from_a, on_b = nearest(a.vector, b.vector, *b.edges())
    from_b, on_a = nearest(b.vector, a.vector, *a.edges())
    i, j = int(from_a.argmin()), int(from_b.argmin())
    if from_a[i] <= from_b[j]:
        return a.at[i : i + 1], degrees(on_b[i : i + 1])
    return degrees(on_a[j : j + 1]), b.at[j : j + 1]


@quietly
def bounds(geometry: Geometry) -> tuple[float, float, float, float]:
    """(west, south, east, north) of all its points, bulging edges and poles included, for a map; west > east
    when it crosses the antimeridian, -180 and 180 when it goes round a pole."""
    if geometry.is_point:
        return geometry.x, geometry.y, geometry.x, geometry.y
    import numpy as np

    drawing = geometry.drawing
    west, south = drawing.at.min(axis=0).tolist()
    east, north = drawing.at.max(axis=0).tolist()
    if geometry.frame == "planar":
        return west, south, east, north
    from keytide.geometry.drawn.meeting import hold
    from keytide.geometry.drawn.sphere import normals

    start, end = drawing.edges()
    normal = normals(start, end)
    for side in (1, -1):
        # The northernmost place of a great circle, where it lies between the ends of the edge.
        top = np.array([0.0, 0.0, side]) - normal * (side * normal[:, 2:])
        between = (np.cross(normal, start) * top).sum(axis=1) > 0
        between &= (np.cross(end, normal) * top).sum(axis=1) > 0
        sine = np.minimum(1.0, np.linalg.norm(top[between], axis=1))
        lat = float(np.degrees(np.arcsin(sine)).max(initial=-90.0))
        if side > 0:
            north = max(north, lat)
        else:
            south = min(south, -lat)
    poles = hold(drawing, np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]))
    if poles.any():
        return -180.0, -90.0 if poles[1] else south, 180.0, 90.0 if poles[0] else north
    west, east = _meridians(drawing)
    return west, south, east, north


def _meridians(drawing: Drawing) -> tuple[float, float]:
    """(west, east) of something that holds no pole: all but the widest gap between what edges and points
    take."""
    stretches = [(float(lon), 0.0) for lon in drawing.at[:, 0]]
    for a, b in drawing.stretches():
        for lon, after in zip(
            drawing.at[a : b - 1, 0].tolist(), drawing.at[a + 1 : b, 0].tolist(), strict=True
        ):
            step = (after - lon + 180) % 360 - 180
            stretches.append((lon, step) if step >= 0 else (after, -step))
    stretches.sort()
    gap, west, east = -math.inf, -180.0, 180.0
    reached = max(lon + step for lon, step in stretches) - 360
    for lon, step in stretches:
        if lon - reached > gap:
            gap, west, east = lon - reached, lon, reached
        reached = max(reached, lon + step)
    if gap <= 0:
        return -180.0, 180.0
    return west, east if -180 <= east <= 180 else (east + 180) % 360 - 180
