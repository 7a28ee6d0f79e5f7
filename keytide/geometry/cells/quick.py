"""Coverings of what there mostly is, small circles and polygons, by few scalar steps.

Theory of operation
===================
As S2's region coverer: the few cells around the middle that are about as large as the shape, of which the
largest are split as long as there are few enough, and those that do not touch it are left out. On the chart
of a face (`keytide.geometry.drawn.charts`) cells are rectangles and the polygon is convex there as well, so
they touch unless a side of either of them parts them. A circle is a polygon of eight sides around it. That
takes a tenth of what GEOS and arrays take for so few cells.

What is not small, not convex, or not on one face of the cube is left to `keytide.geometry.cells.covering`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from keytide.geometry.cells.curve import LEAF, cell_of, corners_around
from keytide.geometry.cells.geographic import face_coordinate, face_place
from keytide.geometry.cells.plane import coordinate_of, place_of
from keytide.geometry.geojson import Frame

WIDEST: Final = math.radians(20)
"""Of a shape's circle."""
_LARGEST: Final = 1e150
"""Coordinate of a plane: the area of what is larger is more than doubles hold."""
MOST_CORNERS: Final = 128
MOST_HOLLOW: Final = 2.0
"""How many times larger than a polygon its hull may be."""
CORNERS: Final = 8
"""Of the polygon around a circle, which is five percent larger."""
MARGIN: Final = 1e-10
"""In units of a face, half a millimetre: more than what rounding and the tolerance of meeting come to."""
_TURNS: Final = [
    (math.cos(2 * math.pi * number / CORNERS), math.sin(2 * math.pi * number / CORNERS))
    for number in range(CORNERS)
]
"""The corners of that polygon around a circle of radius 1, but for the five percent."""

Vector = tuple[float, float, float]
Spot = tuple[float, float]
"""(u, v) on a chart."""
HalfPlane = tuple[float, float, float]
"""a * u + b * v + c is at least 0 on the inner side."""
CrossedSquare = tuple[int, int, Sequence[HalfPlane]]
"""(i, j) of a cell whose level is known, and the sides of the polygon that may cross it."""


def vector_of(lon: float, lat: float) -> Vector:
    """A position in degrees as a vector of length 1."""
    phi, theta = math.radians(lat), math.radians(lon)
    cosine = math.cos(phi)
    return math.cos(theta) * cosine, math.sin(theta) * cosine, math.sin(phi)


def circle_cells(middle: Vector, angle: float, most: int) -> list[int] | None:
    """A covering of what is within an angle of a place on the globe; None where this is not the way.

    Args:
        middle: the place, of length 1.
        angle: radians.
        most: cells at most, four at least.
    """
    if not 0 <= angle <= WIDEST:
        return None
    around = math.tan(angle + MARGIN) / math.cos(math.pi / CORNERS)
    least = min(range(3), key=lambda axis: abs(middle[axis]))
    axis = (float(least == 0), float(least == 1), float(least == 2))
    east = _unit(_cross(axis, middle))
    north = _cross(middle, east)
    corners = []
    for a, b in _TURNS:
        x, y = around * a, around * b
        corners.append(
            (
                middle[0] + x * east[0] + y * north[0],
                middle[1] + x * east[1] + y * north[1],
                middle[2] + x * east[2] + y * north[2],
            )
        )
    placed = _on_face(middle, corners)
    return None if placed is None else _cells(*placed, face_place, face_coordinate, MARGIN, most)


def polygon_cells(geojson: Mapping[str, Any], frame: Frame, most: int) -> list[int] | None:
    """A covering of one polygon, by its hull where it is not much less than that; None where this is not the
    way, and of anything else.

    Args:
        geojson: in normal form.
    """
    if geojson["type"] != "Polygon":
        return None
    ring = geojson["coordinates"][0][:-1]
    if len(ring) > MOST_CORNERS:
        return None
    if frame == "planar":
        return _in_plane([(float(x), float(y)) for x, y in ring], most)
    placed = spots_of(ring)
    return None if placed is None else _cells(*placed, face_place, face_coordinate, MARGIN, most)


def spots_of(ring: Sequence[Sequence[float]]) -> tuple[int, list[Spot]] | None:
    """A face, and where on its chart the corners of a polygon on the globe are, in degrees, the first one not
    repeated; None if it is not small, or not on one face."""
    corners = [vector_of(x, y) for x, y in ring]
    xs, ys, zs = zip(*corners, strict=True)
    total = (sum(xs), sum(ys), sum(zs))
    if _dot(total, total) < 1e-9:
        return None
    middle = _unit(total)
    if min(_dot(middle, corner) for corner in corners) < math.cos(WIDEST):
        return None
    return _on_face(middle, corners)


def planar_circle_cells(x: float, y: float, distance: float, most: int) -> list[int] | None:
    """A covering of what is within a distance of a place in a plane; None where this is not the way."""
    around = distance * (1 + 1e-12) / math.cos(math.pi / CORNERS)
    spots = [(x + around * a, y + around * b) for a, b in _TURNS]
    return _in_plane(spots, most)


def _on_face(middle: Vector, corners: Sequence[Vector]) -> tuple[int, list[Spot]] | None:
    face = _face_of(middle)
    spots = [_spot(face, corner) for corner in corners]
    if max(max(abs(u), abs(v)) for u, v in spots) >= 1 - MARGIN:
        return None
    return face, spots


def _in_plane(spots: Sequence[Spot], most: int) -> list[int] | None:
    largest = max(max(abs(x), abs(y)) for x, y in spots)
    if not largest < _LARGEST:
        return None
    return _cells(0, spots, place_of, coordinate_of, largest * 1e-13, most)


def _cells(
    face: int,
    spots: Sequence[Spot],
    place: Callable[[float], int],
    coordinate: Callable[[int], float],
    margin: float,
    most: int,
) -> list[int] | None:
    """The covering of a polygon on a chart; None if it fills its hull too little.

    Args:
        place: i (or j) of a coordinate of the chart.
        coordinate: the least coordinate of a place, 0..2^30.
        margin: by which cells are taken larger than they are.
    """
    sides = _sides(spots, margin)
    if sides is None:
        hull = _hull(spots)
        if _area(hull) > MOST_HOLLOW * abs(_area(spots)) or (sides := _sides(hull, margin)) is None:
            return None
    us, vs = zip(*spots, strict=True)
    bounds = (min(us), min(vs), max(us), max(vs))
    i = place(bounds[0] - margin), place(bounds[2] + margin)
    j = place(bounds[1] - margin), place(bounds[3] + margin)
    level, seeds = corners_around(i, j)
    width = 1 << LEAF - level
    look = functools.partial(_looked_at, bounds=bounds, lines=_Lines(coordinate), margin=margin)
    wave, done = look(seeds, width, sides)
    found = [(level, a, b) for a, b, _ in done]
    while wave and level < LEAF and len(found) + len(wave) < most:
        below, finer = width >> 1, level + 1
        families = []
        for square in wave:
            a, b, crossing = square
            steps = [(a, b), (a, b + below), (a + below, b), (a + below, b + below)]
            families.append((square, *look(steps, below, crossing)))
        families.sort(key=_size)
        left = len(families)
        split: list[CrossedSquare] = []
        for square, touching, within in families:
            left -= 1
            if len(found) + len(split) + len(touching) + len(within) + left <= most:
                split += touching
                found += [(finer, c, d) for c, d, _ in within]
            else:
                found.append((level, *square[:2]))
        wave, width, level = split, below, finer
    found += [(level, a, b) for a, b, _ in wave]
    return sorted(cell_of((face, a, b, at)) for at, a, b in found)


class _Lines(dict[int, float]):
    """The least coordinates of places: a grid's lines belong to many cells."""

    def __init__(self, coordinate: Callable[[int], float]) -> None:
        self._coordinate = coordinate

    def __missing__(self, place: int) -> float:
        found = self[place] = self._coordinate(place)
        return found


def _size(family: tuple[CrossedSquare, list[CrossedSquare], list[CrossedSquare]]) -> int:
    return len(family[1]) + len(family[2])


def _looked_at(
    corners: Sequence[tuple[int, int]],
    width: int,
    sides: Sequence[HalfPlane],
    bounds: tuple[float, float, float, float],
    lines: _Lines,
    margin: float,
) -> tuple[list[CrossedSquare], list[CrossedSquare]]:
    """Which cells touch the polygon, and which are inside of it.

    Args:
        corners: the least ones of the cells.
        sides: of the polygon; without those on whose inner side all of these cells lie.
        bounds: (left, low, right, high) of the polygon.
    """
    left, low, right, high = bounds
    touching: list[CrossedSquare] = []
    within: list[CrossedSquare] = []
    for i, j in corners:
        u0, u1 = lines[i] - margin, lines[i + width] + margin
        if u1 < left or u0 > right:
            continue
        v0, v1 = lines[j] - margin, lines[j + width] + margin
        if v1 < low or v0 > high:
            continue
        crossing = []
        for side in sides:
            a, b, c = side
            if a * (u1 if a > 0 else u0) + b * (v1 if b > 0 else v0) + c < 0:
                break
            # (Of cells at the ends of a plane a corner is infinite: what is no number is not inside.)
            if not a * (u0 if a > 0 else u1) + b * (v0 if b > 0 else v1) + c >= 0:
                crossing.append(side)
        else:
            (touching if crossing else within).append((i, j, crossing))
    return touching, within


def _sides(spots: Sequence[Spot], margin: float) -> list[HalfPlane] | None:
    """The sides of a polygon, from its first corner; None if it is not convex."""
    ring = [*spots[1:], spots[0]]
    turned = 1.0 if _area(spots) > 0 else -1.0
    found: list[HalfPlane] = []
    slacks: list[float] = []
    for one, other in zip(spots, ring, strict=True):
        a, b = turned * (one[1] - other[1]), turned * (other[0] - one[0])
        slacks.append(slack := (abs(a) + abs(b)) * margin)
        found.append((a, b, slack - a * one[0] - b * one[1]))
    return None if _reaches_out(spots, found, slacks) else found


def _reaches_out(spots: Sequence[Spot], sides: Sequence[HalfPlane], slacks: Sequence[float]) -> bool:
    """Whether a corner lies beyond a side, by more than its slack."""
    if len(spots) <= CORNERS:
        return any(
            a * (u - u0) + b * (v - v0) < -slack
            for (u0, v0), (a, b, _), slack in zip(spots, sides, slacks, strict=True)
            for u, v in spots
        )
    import numpy as np

    at, lines = np.array(spots), np.array(sides)
    beside = lines[:, :1] * (at[:, 0] - at[:, :1]) + lines[:, 1:2] * (at[:, 1] - at[:, 1:])
    return bool((beside < -np.array(slacks)[:, None]).any())


def _area(spots: Sequence[Spot]) -> float:
    """Twice the area of a polygon, negative when its corners go clockwise."""
    u0, v0 = spots[0]
    return sum(
        (one[0] - u0) * (other[1] - v0) - (other[0] - u0) * (one[1] - v0)
        for one, other in zip(spots, [*spots[1:], spots[0]], strict=True)
    )


def _hull(spots: Sequence[Spot]) -> list[Spot]:
    """The convex hull of some positions, counter-clockwise (Andrew's monotone chain)."""
    ordered = sorted(set(spots))
    if len(ordered) < 3:
        return ordered
    found: list[Spot] = []
    for half in (ordered, ordered[::-1]):
        chain: list[Spot] = []
        for spot in half:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], spot) <= 0:
                chain.pop()
            chain.append(spot)
        found += chain[:-1]
    return found


def _turn(one: Spot, two: Spot, three: Spot) -> float:
    """Above 0 when the way goes to the left."""
    return (two[0] - one[0]) * (three[1] - one[1]) - (two[1] - one[1]) * (three[0] - one[0])


def _face_of(vector: Vector) -> int:
    x, y, z = map(abs, vector)
    axis = 0 if x > y and x > z else 1 if y > z else 2
    return axis if vector[axis] > 0 else axis + 3


def _spot(face: int, vector: Vector) -> Spot:
    """Where a vector is on the chart of a face that it is in front of."""
    x, y, z = vector
    u, v, w = (
        (y, z, x),
        (-x, z, y),
        (-x, -y, z),
        (-z, -y, -x),
        (-z, x, -y),
        (y, x, -z),
    )[face]
    return u / w, v / w


def _dot(one: Vector, other: Vector) -> float:
    return one[0] * other[0] + one[1] * other[1] + one[2] * other[2]


def _cross(one: Vector, other: Vector) -> Vector:
    return (
        one[1] * other[2] - one[2] * other[1],
        one[2] * other[0] - one[0] * other[2],
        one[0] * other[1] - one[1] * other[0],
    )


def _unit(vector: Vector) -> Vector:
    length = math.sqrt(_dot(vector, vector))
    return vector[0] / length, vector[1] / length, vector[2] / length
