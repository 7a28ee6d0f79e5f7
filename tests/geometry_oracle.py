"""Geometry by brute force, without a library: what `keytide.geometry` is held against.

On the sphere: every edge against every edge, by triple products; inside is the side of a ring that fewer of
some points spread over the sphere are on; geodesics by Vincenty's iteration. In the plane: fractions,
exactly. What is a matter of rounding is not answered: `None`, for anything that `BAND` would change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

BAND = 1e-9
"""Radians, six millimetres: what is nearer to a boundary is not judged."""

Vector = tuple[float, float, float]
Edge = tuple[Vector, Vector]
Flat = tuple[Fraction, Fraction]
FlatEdge = tuple[Flat, Flat]


class Pieces(NamedTuple):
    """Points, lines and polygons of a geometry, as positions in degrees or units."""

    points: list[list[float]]
    lines: list[list[list[float]]]
    polygons: list[list[list[list[float]]]]


def pieces(geojson: dict[str, Any]) -> Pieces:
    found = Pieces([], [], [])
    kind = geojson["type"]
    if kind == "GeometryCollection":
        for one in map(pieces, geojson["geometries"]):
            found.points.extend(one.points)
            found.lines.extend(one.lines)
            found.polygons.extend(one.polygons)
        return found
    at: Any = geojson["coordinates"]
    several = at if kind.startswith("Multi") else [at]
    found[("Point", "LineString", "Polygon").index(kind.removeprefix("Multi"))].extend(several)
    return found


# --- vectors ----------------------------------------------------------------------------------------------


def vector(position: list[float]) -> Vector:
    lon, lat = math.radians(position[0]), math.radians(position[1])
    return (math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat))


def dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def cross(a: Vector, b: Vector) -> Vector:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def scaled(a: Vector, by: float) -> Vector:
    return (a[0] * by, a[1] * by, a[2] * by)


def plus(a: Vector, b: Vector) -> Vector:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def unit(a: Vector) -> Vector:
    return scaled(a, 1 / math.sqrt(dot(a, a)))


def angle(a: Vector, b: Vector) -> float:
    across = cross(a, b)
    return math.atan2(math.sqrt(dot(across, across)), dot(a, b))


def normal(edge: Edge) -> Vector | None:
    """Left of an edge; exact for short ones. None where it has no length."""
    a, b = edge
    across = cross(plus(a, b), plus(b, scaled(a, -1)))
    return unit(across) if dot(across, across) > 0 else None


def to_degrees(a: Vector) -> list[float]:
    return [
        math.degrees(math.atan2(a[1], a[0])),
        math.degrees(math.atan2(a[2], math.hypot(a[0], a[1]))),
    ]


def foot(p: Vector, edge: Edge) -> Vector:
    """The place of an edge that is nearest to a point."""
    a, b = edge
    n = normal(edge)
    if n is not None:
        flat = plus(p, scaled(n, -dot(p, n)))
        if dot(flat, flat) > 0 and dot(flat, cross(n, a)) > 0 and dot(flat, cross(b, n)) > 0:
            return unit(flat)
    return a if angle(p, a) < angle(p, b) else b


def crosses(one: Edge, other: Edge) -> bool:
    """Whether two arcs cross within both; what touches only may be either."""
    (a, b), (c, d) = one, other
    n, m = normal(one), normal(other)
    if n is None or m is None:
        return False
    sides = dot(n, c), dot(n, d), dot(m, a), dot(m, b)
    return sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0 and sides[0] * sides[3] > 0


# --- on the sphere ----------------------------------------------------------------------------------------


def spread(count: int) -> list[Vector]:
    """Points spread over the sphere, evenly (a Fibonacci lattice)."""
    golden = math.pi * (3 - math.sqrt(5))
    found = []
    for at in range(count):
        z = 1 - (2 * at + 1) / count
        r = math.sqrt(1 - z * z)
        found.append((r * math.cos(golden * at), r * math.sin(golden * at), z))
    return found


SPREAD = spread(700)
AWAY = unit((0.3133, -0.7411, 0.5939))


class Ring:
    """A ring of great circles, and its smaller side."""

    def __init__(self, positions: list[list[float]]) -> None:
        at = [vector(one) for one in positions]
        self.vertices = at
        self.edges = list(itertools.pairwise(at))
        middle = (sum(one[0] for one in at), sum(one[1] for one in at), sum(one[2] for one in at))
        self.outside_parity: int | None = 0
        self.reference = AWAY
        if dot(middle, middle) > 1e-9 and max(angle(unit(middle), one) for one in at) < 1.5:
            self.reference = scaled(unit(middle), -1)
        else:
            odd = sum(self.parity(one) for one in SPREAD)
            self.outside_parity = None if abs(odd - 350) < 70 else int(odd > 350)

    def parity(self, p: Vector) -> int:
        """Crossings on the way from the reference, by way of a place off the straight one."""
        between = unit(plus(plus(p, self.reference), scaled(unit(cross(p, AWAY[1:] + AWAY[:1])), 0.7)))
        way = [(self.reference, between), (between, p)]
        return sum(crosses(step, edge) for step in way for edge in self.edges) % 2

    def holds(self, p: Vector) -> bool | None:
        if any(angle(p, foot(p, edge)) < BAND for edge in self.edges):
            return None
        return None if self.outside_parity is None else self.parity(p) != self.outside_parity


class Sphere:
    """A geographic geometry."""

    def __init__(self, geojson: dict[str, Any]) -> None:
        found = pieces(geojson)
        self.points = [vector(one) for one in found.points]
        self.lines = [[vector(one) for one in line] for line in found.lines]
        self.polygons = [[Ring(ring) for ring in rings] for rings in found.polygons]

    def edges(self) -> Iterator[Edge]:
        for line in self.lines:
            yield from itertools.pairwise(line)
        yield from self.boundary()
        yield from ((one, one) for one in self.points)

    def boundary(self) -> Iterator[Edge]:
        for rings in self.polygons:
            for ring in rings:
                yield from ring.edges

    def inside(self, p: Vector) -> bool | None:
        """Whether a point is within a polygon of it."""
        unsure = False
        for outline, *holes in self.polygons:
            held = outline.holds(p)
            within = [hole.holds(p) for hole in holes]
            if held and not any(within) and None not in within:
                return True
            unsure |= held is None or bool(held and None in within)
        return None if unsure else False

    def holds(self, p: Vector) -> bool | None:
        inside = self.inside(p)
        if inside:
            return True
        near = any(angle(p, foot(p, edge)) < BAND for edge in self.edges())
        return None if near else inside


def closest(a: Sphere, b: Sphere) -> list[tuple[float, Vector, Vector]]:
    """(angle, place of a, place of b) of all pairs of vertices and edges, nearest first."""
    found = []
    for one, other, turned in ((a, b, False), (b, a, True)):
        vertices = {p for edge in one.edges() for p in edge}
        for p in vertices:
            for edge in other.edges():
                q = foot(p, edge)
                found.append((angle(p, q), q, p) if turned else (angle(p, q), p, q))
    return sorted(found)


def meet(a: Sphere, b: Sphere) -> bool | None:
    for one in a.edges():
        for other in b.edges():
            if crosses(one, other):
                return True if clearly(one, other) else None
    held = [a.inside(next(iter(b.edges()))[0]), b.inside(next(iter(a.edges()))[0])]
    for p in {edge[0] for edge in b.edges()}:
        held.append(a.inside(p))
    for p in {edge[0] for edge in a.edges()}:
        held.append(b.inside(p))
    if any(held):
        return True
    if closest(a, b)[0][0] < BAND or None in held:
        return None
    return False


def clearly(one: Edge, other: Edge) -> bool:
    """Whether crossing edges do so far from all their ends."""
    pairs = [(one[0], other), (one[1], other), (other[0], one), (other[1], one)]
    return all(angle(p, foot(p, edge)) > BAND for p, edge in pairs)


def covers(a: Sphere, b: Sphere) -> bool | None:
    """Whether all of b is within a."""
    held = [a.holds(p) for edge in b.edges() for p in edge]
    if False in held:
        return False
    boundary = list(a.boundary())
    for one in b.edges():
        for other in boundary:
            if crosses(one, other):
                return False if clearly(one, other) and len(a.polygons) == 1 else None
    if None in held or a.lines or a.points:
        return None
    for edge in b.edges():
        for other in boundary:
            near = [angle(q, foot(q, edge)) for q in other] + [angle(q, foot(q, other)) for q in edge]
            if min(near) < BAND:
                return None
    within = [b.inside(p) for edge in boundary for p in edge]
    if any(within):
        return False if len(a.polygons) == 1 else None
    return None if None in within else True


# --- cells ------------------------------------------------------------------------------------------------


def s2_leaf(position: list[float]) -> tuple[int, float]:
    """(the id of the leaf, how far from its sides the position is: 0..0.5 of a side), bit by bit, as the S2
    library's pages tell it."""
    x, y, z = vector(position)
    axis = max(range(3), key=lambda at: abs((x, y, z)[at]))
    positive = (x, y, z)[axis] > 0
    face = axis if positive else axis + 3
    u, v = {
        0: lambda: (y / x, z / x),
        1: lambda: (-x / y, z / y),
        2: lambda: (-x / z, -y / z),
        3: lambda: (z / x, y / x),
        4: lambda: (z / y, -x / y),
        5: lambda: (-y / z, -x / z),
    }[face]()
    at = [2**30 * (0.5 * math.sqrt(1 + 3 * w) if w >= 0 else 1 - 0.5 * math.sqrt(1 - 3 * w)) for w in (u, v)]
    i, j = (min(2**30 - 1, int(one)) for one in at)
    clear = min(min(one - int(one), 1 - (one - int(one))) for one in at)
    # Hilbert's curve, one level at a time: which quarter, in which the curve is turned how.
    swap, invert = face & 1 == 1, False
    cell = face
    for level in range(29, -1, -1):
        a, b = i >> level & 1, j >> level & 1
        if swap:
            a, b = b, a
        if invert:
            a, b = 1 - a, 1 - b
        step = {(0, 0): 0, (0, 1): 1, (1, 1): 2, (1, 0): 3}[a, b]
        if step == 0:
            swap = not swap
        elif step == 3:
            swap, invert = not swap, not invert
        cell = cell << 2 | step
    return cell << 1 | 1, clear


# --- on the spheroid --------------------------------------------------------------------------------------

MAJOR, FLATTENING = 6378137.0, 1 / 298.257223563
MINOR = MAJOR * (1 - FLATTENING)


def geodesic(a: list[float], b: list[float]) -> float | None:
    """Metres between two positions, by Vincenty's inverse formula; None where it does not converge, near the
    other side of the earth."""
    u = math.atan((1 - FLATTENING) * math.tan(math.radians(a[1])))
    v = math.atan((1 - FLATTENING) * math.tan(math.radians(b[1])))
    east = math.radians((b[0] - a[0] + 540) % 360 - 180)
    lam = east
    for _ in range(200):
        x = math.cos(v) * math.sin(lam)
        y = math.cos(u) * math.sin(v) - math.sin(u) * math.cos(v) * math.cos(lam)
        sine = math.hypot(x, y)
        if sine == 0:
            return 0.0
        cosine = math.sin(u) * math.sin(v) + math.cos(u) * math.cos(v) * math.cos(lam)
        sigma = math.atan2(sine, cosine)
        alpha = math.cos(u) * math.cos(v) * math.sin(lam) / sine
        cos2 = 1 - alpha * alpha
        mid = cosine - 2 * math.sin(u) * math.sin(v) / cos2 if cos2 > 0 else 0.0
        c = FLATTENING / 16 * cos2 * (4 + FLATTENING * (4 - 3 * cos2))
        inner = sigma + c * sine * (mid + c * cosine * (2 * mid * mid - 1))
        before, lam = lam, east + (1 - c) * FLATTENING * alpha * inner
        if abs(lam) > math.pi:
            return None
        if abs(lam - before) < 1e-13:
            break
    else:
        return None
    w = cos2 * (MAJOR**2 - MINOR**2) / MINOR**2
    p = 1 + w / 16384 * (4096 + w * (-768 + w * (320 - 175 * w)))
    q = w / 1024 * (256 + w * (-128 + w * (74 - 47 * w)))
    third = q / 6 * mid * (4 * sine * sine - 3) * (4 * mid * mid - 3)
    less = q * sine * (mid + q / 4 * (cosine * (2 * mid * mid - 1) - third))
    return MINOR * p * (sigma - less)


def possible_distances(a: Sphere, b: Sphere) -> list[float | None]:
    """Metres between those pairs of places that are about as near as the nearest: which of them is taken is a
    matter of rounding."""
    pairs = closest(a, b)
    limit = pairs[0][0] * (1 + 1e-9) + 1e-12
    return [geodesic(to_degrees(p), to_degrees(q)) for far, p, q in pairs[:40] if far <= limit]


# --- in the plane -----------------------------------------------------------------------------------------


def flat(position: list[float]) -> Flat:
    return (Fraction(position[0]), Fraction(position[1]))


def side(a: Flat, b: Flat, p: Flat) -> int:
    turn = (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])
    return (turn > 0) - (turn < 0)


def on_edge(p: Flat, edge: FlatEdge) -> bool:
    a, b = edge
    between = min(a[0], b[0]) <= p[0] <= max(a[0], b[0]) and min(a[1], b[1]) <= p[1] <= max(a[1], b[1])
    return between and side(a, b, p) == 0


def edges_of(positions: list[list[float]]) -> list[FlatEdge]:
    at = [flat(one) for one in positions]
    return list(itertools.pairwise(at))


def common_places(one: FlatEdge, other: FlatEdge) -> list[Flat]:
    """Where two edges meet: nowhere, in one place, or the two ends of a stretch."""
    (a, b), (c, d) = one, other
    found = [p for p in (c, d) if on_edge(p, one)] + [p for p in (a, b) if on_edge(p, other)]
    if found:
        return found
    if side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0:
        n = (d[1] - c[1]) * (b[0] - a[0]) - (d[0] - c[0]) * (b[1] - a[1])
        t = ((d[0] - c[0]) * (a[1] - c[1]) - (d[1] - c[1]) * (a[0] - c[0])) / n
        return [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]))]
    return []


class FlatPolygon:
    """One polygon of a plane."""

    def __init__(self, rings: list[list[list[float]]]) -> None:
        self.rings = [edges_of(ring) for ring in rings]
        self.edges = [edge for ring in self.rings for edge in ring]

    def where(self, p: Flat) -> int:
        """1 inside, 0 on the boundary, -1 outside."""
        if any(on_edge(p, edge) for edge in self.edges):
            return 0
        odd = False
        for a, b in self.edges:
            if (a[1] > p[1]) != (b[1] > p[1]):
                odd ^= p[0] < a[0] + (p[1] - a[1]) / (b[1] - a[1]) * (b[0] - a[0])
        return 1 if odd else -1

    def middles(self, others: list[FlatEdge]) -> Iterator[Flat]:
        yield from middles(self.edges, others)


def middles(edges: list[FlatEdge], others: list[FlatEdge]) -> Iterator[Flat]:
    """The middles of edges, after these are cut where others meet them."""
    for a, b in edges:
        cuts = sorted({a, b, *(p for other in others for p in common_places((a, b), other))})
        for p, q in itertools.pairwise(cuts):
            yield ((p[0] + q[0]) / 2, (p[1] + q[1]) / 2)


def flat_covers(a: FlatPolygon, b: FlatPolygon) -> bool:
    """Whether b is within a; the same as OGC's within, for areas."""
    return all(a.where(p) >= 0 for p in b.middles(a.edges)) and not any(
        b.where(p) > 0 for p in a.middles(b.edges)
    )


def flat_meet(a: FlatPolygon, b: FlatPolygon) -> bool:
    if any(common_places(one, other) for one in a.edges for other in b.edges):
        return True
    return a.where(b.edges[0][0]) > 0 or b.where(a.edges[0][0]) > 0
