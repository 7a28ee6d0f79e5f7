"""Arithmetic on the unit sphere: positions as vectors, edges as arcs of great circles. Own code, on numpy.

Positions are rows (x, y, z) of arrays; an edge is a pair of them less than 180 degrees apart, and the shorter
arc between them. Distances are squared chords: they order points as angles do, and are exact for those that
are near.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

EARTH_RADIUS: Final = 6_371_008.771_415
"""Metres: the mean radius of WGS84, which PostGIS takes for its sphere as well."""
SPHEROID_SLACK: Final = 0.007
"""Geodesics on the spheroid are as long as arcs on the sphere, give or take this share: 0.9944 at the equator
along a meridian, 1.0045 at the poles."""
TOLERANCE: Final = 1e-5 / EARTH_RADIUS
"""Radians, ten micrometres: what is as near as this meets."""
ROUNDING: Final = 1e-9
"""Radians, 6 mm: far more than distances are wrong by."""
_POLE: Final = 90.0
_ANTIMERIDIAN: Final = 180.0
_MOST_PAIRS: Final = 100_000
"""Pairs of points and edges that are looked at together: a few MB."""
_MOST_COLUMNS: Final = 2_000
_CORNERS: Final = [(x, y, z) for x in (-0.41, 0.43) for y in (-0.59, 0.57) for z in (-0.69, 0.71)]
_APEXES: Final = np.array([np.array(one) / math.hypot(*one) for one in _CORNERS])
"""Directions, of no lattice, that areas are summed from."""


def vectors(at: Floats) -> Floats:
    """Unit vectors of positions (n, 2) in degrees. Poles and the antimeridian are one place, whatever is
    written."""
    found = np.empty((len(at), 3))
    _write(at, found.T)
    return found


def columns(at: Floats) -> Floats:
    """The same as columns (3, n)."""
    found = np.empty((3, len(at)))
    _write(at, found)
    return found


def _write(at: Floats, vector: Floats) -> None:
    radians = np.radians(at)
    sines, cosines = np.sin(radians), np.cos(radians)
    # Most documents are nowhere near; looking costs less than changing nothing.
    east, north = np.abs(at).max(axis=0, initial=0.0).tolist()
    if north == _POLE:
        cosines[:, 1][np.abs(at[:, 1]) == _POLE] = 0.0
    if east == _ANTIMERIDIAN:
        sines[:, 0][np.abs(at[:, 0]) == _ANTIMERIDIAN] = 0.0
    np.multiply(cosines[:, 0], cosines[:, 1], out=vector[0])
    np.multiply(sines[:, 0], cosines[:, 1], out=vector[1])
    vector[2] = sines[:, 1]


def degrees(vector: Floats) -> Floats:
    """Positions (n, 2) in degrees of vectors (n, 3) of any length."""
    lon = np.arctan2(vector[:, 1], vector[:, 0])
    lat = np.arctan2(vector[:, 2], np.hypot(vector[:, 0], vector[:, 1]))
    found: Floats = np.degrees(np.stack((lon, lat), axis=1))
    return found


def chord2_of(angle: float) -> float:
    """The squared chord of an angle in radians, pi at most."""
    return 4 * math.sin(min(angle, math.pi) / 2) ** 2


def farthest_of(chord2: Floats, wanted: int) -> float:
    """The squared chord of whatever may be as near, on the spheroid, as so many of which at most these are
    known."""
    chord = math.sqrt(min(4.0, float(np.partition(chord2, wanted - 1)[wanted - 1])))
    angle = 2 * math.asin(chord / 2) * (1 + SPHEROID_SLACK) / (1 - SPHEROID_SLACK) + ROUNDING
    return chord2_of(angle) if angle < math.pi else math.inf  # (a chord may come out as a little too long)


def normals(start: Floats, end: Floats) -> Floats:
    """Unit vectors left of edges (zero for an edge without length). (end - start) x (end + start) is twice
    start x end, and exact where they are near (S2's RobustCrossProd)."""
    across = cross(start + end, end - start)
    length = np.sqrt((across * across).sum(axis=1, keepdims=True))
    found: Floats = np.divide(across, length, out=np.zeros_like(across), where=length > 0)
    return found


def cross(one: Floats, other: Floats) -> Floats:
    """Cross products of rows (n, 3): numpy's takes several times as long for so few."""
    found = np.empty(one.shape)
    for axis, (a, b) in enumerate(((1, 2), (2, 0), (0, 1))):
        np.subtract(one[:, a] * other[:, b], one[:, b] * other[:, a], out=found[:, axis])
    return found


def nearest(points: Floats, vertices: Floats, start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """What of some vertices and edges is nearest to each point.

    Returns:
        (squared chords (n,), the nearest places (n, 3)).
    """
    best = np.full(len(points), np.inf)
    place = np.zeros((len(points), 3))
    normal = normals(start, end)
    ahead, behind = cross(normal, start), cross(end, normal)
    columns = max(1, min(_MOST_COLUMNS, max(len(vertices), len(start))))
    rows = _MOST_PAIRS // columns
    for top in range(0, len(points), rows):
        some = slice(top, top + rows)
        for left in range(0, len(vertices), columns):
            _vertices_near(points[some], vertices[left : left + columns], best[some], place[some])
        for left in range(0, len(start), columns):
            few = slice(left, left + columns)
            _edges_near(points[some], normal[few], ahead[few], behind[few], best[some], place[some])
    return best, place


def _vertices_near(points: Floats, vertices: Floats, best: Floats, place: Floats) -> None:
    """Take note of vertices that are nearer than the best so far; in place."""
    chord2 = np.zeros((len(points), len(vertices)))
    for axis in range(3):
        chord2 += (points[:, axis, None] - vertices[None, :, axis]) ** 2
    at = chord2.argmin(axis=1)
    found = chord2[np.arange(len(points)), at]
    better = found < best
    best[better] = found[better]
    place[better] = vertices[at[better]]


def _edges_near(
    points: Floats, normal: Floats, ahead: Floats, behind: Floats, best: Floats, place: Floats
) -> None:
    """The same of the inner points of edges."""
    _, square = _beside(points, normal, ahead, behind)
    at = square.argmin(axis=1)
    chosen = normal[at]
    # (What a matrix product comes to depends, in its last bit, on what is multiplied beside it.)
    sine = chosen[:, 0] * points[:, 0] + chosen[:, 1] * points[:, 1] + chosen[:, 2] * points[:, 2]
    found = chord2_of_sines(np.where(np.isfinite(square[np.arange(len(points)), at]), sine * sine, np.inf))
    better = found < best
    best[better] = found[better]
    foot = points - sine[:, None] * chosen
    place[better] = foot[better]


def nearest_of_edges(points: Floats, start: Floats, end: Floats) -> Floats:
    """How near the nearest of some points is to each edge, where it is beside it: squared chords, infinite
    where none is."""
    normal = normals(start, end)
    ahead, behind = cross(normal, start), cross(end, normal)
    best = np.full(len(start), np.inf)
    height = max(1, _MOST_PAIRS // len(start))
    for top in range(0, len(points), height):
        _, square = _beside(points[top : top + height], normal, ahead, behind)
        best = np.minimum(best, chord2_of_sines(square.min(axis=0)))
    return best


def _beside(points: Floats, normal: Floats, ahead: Floats, behind: Floats) -> tuple[Floats, Floats]:
    """Sines of points' distances to great circles, and their squares where a point is beside an edge: between
    the planes that stand on its ends; infinite elsewhere. (points, edges) both."""
    sine = points @ normal.T
    beside = (points @ ahead.T > 0) & (points @ behind.T > 0)
    return sine, np.where(beside, sine * sine, np.inf)


def chord2_of_sines(square: Floats) -> Floats:
    """Squared chords of squared sines, of angles up to 90 degrees."""
    known = np.minimum(1.0, square)
    return np.where(np.isfinite(square), 2 * known / (1 + np.sqrt(1 - known)), np.inf)


def crossings(q: Floats, r: Floats, start: Floats, end: Floats) -> tuple[int, float]:
    """How many edges the arc from q to r crosses, and how far its great circle stays away from their ends:
    with an end on it, nothing tells which of the edges there are crossed. q and r lie on no edge.
    """
    plane = np.cross(q, r)
    length = float(np.linalg.norm(plane))
    if not length:
        return 0, 0.0
    from_side, to_side = start @ plane, end @ plane
    across = cross(start, end)
    q_side, r_side = across @ q, across @ r
    # They cross where each has its ends on both sides of the other, and on the same half of the sphere.
    crossed = (from_side * to_side < 0) & (q_side * r_side < 0) & (from_side * q_side < 0)
    return int(np.count_nonzero(crossed)), float(np.abs(from_side).min() / length)


def signed_area(ring: Floats) -> float:
    """The area left of a closed ring (n, 3), first vertex not repeated: 0..4 pi. The sum of triangles that
    its edges make with one place (Eriksson, 1990), as far as can be from being opposite to a vertex: what a
    ring goes there and back is nothing, to rounding, which the turns at its corners do not tell."""
    apex = _APEXES[int((_APEXES @ ring.T).min(axis=1).argmax())]
    after = np.roll(ring, -1, axis=0)
    from_apex = ring @ apex
    volume = cross(ring, after) @ apex
    rest = 1 + from_apex + np.roll(from_apex, -1) + (ring * after).sum(axis=1)
    return float(2 * np.arctan2(volume, rest).sum()) % (4 * math.pi)
