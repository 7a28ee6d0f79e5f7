"""Shapes for tests of geometry, by seed: of all types, everywhere on the sphere and where it is nasty."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.geometry_oracle import Vector, cross, plus, scaled, to_degrees, unit, vector

NASTY: list[list[float]] = [
    [180, 0], [-180, 20], [179.9, -40], [0, 90], [0, -90], [30, 89.5], [45, 35.264], [45, 0], [-135, 35.264],
    [0, 0], [90, 0], [45, 45], [0, 45], [-45, -35.264],
]  # fmt: skip
"""Antimeridian, poles; corners and sides of the faces of S2's cube."""

Json = dict[str, Any]


def place(rng: random.Random) -> list[float]:
    if rng.random() < 0.4:
        lon, lat = rng.choice(NASTY)
        return [lon, lat]
    return [rng.uniform(-180, 180), math.degrees(math.asin(rng.uniform(-1, 1)))]


def beside(middle: list[float], azimuth: float, away: float) -> list[float]:
    """The position at an angle, in radians, from another one."""
    at = vector(middle)
    pole: Vector = (0.1, 0.2, 0.97) if abs(at[2]) < 0.9 else (1.0, 0.1, 0.0)
    east = unit(cross(pole, at))
    north = cross(at, east)
    ahead = plus(scaled(east, math.cos(azimuth)), scaled(north, math.sin(azimuth)))
    return to_degrees(plus(scaled(at, math.cos(away)), scaled(ahead, math.sin(away))))


def star(rng: random.Random, middle: list[float], size: float, corners: int) -> list[list[float]]:
    """A ring around a place, of at most `size` radians from it."""
    squeezed = 10 ** rng.uniform(-3, 0) if rng.random() < 0.2 else 1.0
    ring = []
    for at in range(corners):
        azimuth = 2 * math.pi * (at + rng.uniform(0, 0.6)) / corners
        x, y = math.cos(azimuth), math.sin(azimuth) * squeezed
        away = size * rng.uniform(0.5, 1.0) * math.hypot(x, y)
        ring.append(beside(middle, math.atan2(y, x), away))
    if rng.random() < 0.5:
        ring.reverse()
    return [*ring, ring[0]]


def polygon(rng: random.Random, middle: list[float], size: float) -> list[list[list[float]]]:
    rings = [star(rng, middle, size, rng.randint(3, 10))]
    if len(rings[0]) > 7 and rng.random() < 0.3:
        rings.append(star(rng, middle, size * 0.2, rng.randint(3, 5)))
    return rings


def line(rng: random.Random, middle: list[float], size: float) -> list[list[float]]:
    return [beside(middle, rng.uniform(0, 7), size * rng.random()) for _ in range(rng.randint(2, 6))]


def shape(rng: random.Random, middle: list[float], size: float, kind: str = "") -> Json:
    """A geometry of a few times `size` radians around a place. It may be none: thin rings cross when they are
    rounded."""
    kind = kind or rng.choice(
        ["Point", "MultiPoint", "LineString", "MultiLineString", "MultiPolygon", "GeometryCollection"]
        + ["Polygon"] * 4
    )
    several = [beside(middle, rng.uniform(0, 7), size * rng.random()) for _ in range(rng.randint(1, 3))]
    match kind:
        case "Point":
            return {"type": kind, "coordinates": middle}
        case "MultiPoint":
            return {"type": kind, "coordinates": several}
        case "LineString":
            return {"type": kind, "coordinates": line(rng, middle, size)}
        case "MultiLineString":
            return {"type": kind, "coordinates": [line(rng, one, size) for one in several]}
        case "Polygon":
            return {"type": kind, "coordinates": polygon(rng, middle, size)}
        case "MultiPolygon":
            return {"type": kind, "coordinates": [polygon(rng, one, size / 2) for one in several]}
        case _:
            kinds = ["Point", "LineString", "Polygon", "MultiPoint"]
            members = [shape(rng, one, size / 2, rng.choice(kinds)) for one in several]
            return {"type": "GeometryCollection", "geometries": members}


def size_of(rng: random.Random, widest: float = 1.3) -> float:
    """Radians, from a few metres to most of a hemisphere."""
    return math.exp(rng.uniform(math.log(1e-6), math.log(widest)))


def box(west: float, south: float, width: float, height: float) -> Json:
    east, north = west + width, south + height
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}


def on_lattice(rng: random.Random) -> Json:
    """A polygon of a third of the earth and more, its corners on a lattice of degrees: edges and vertices lie
    on meridians, the equator, and great circles through what else is on such a lattice. It may be none."""
    step = rng.choice([15, 30, 45])
    lats = list(range(-90, 91, step))
    ring = [[rng.randrange(-180, 180, step), rng.choice(lats)] for _ in range(rng.choice([3, 3, 4, 5]))]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}


def wide_stars(rng: random.Random) -> Json:
    """Polygons of a sixth of the earth and more, around places that corners of the cube's faces are near to,
    many of round degrees. They may be none, and lie across one another."""
    made = []
    for _ in range(rng.choice([1, 1, 3])):
        middle = [rng.choice([-180.0, -90.0, 0.0, 45.0, 90.0, 135.0]), rng.choice([-45.0, 0.0, 30.0, 45.0])]
        count, size = rng.randrange(3, 12), rng.uniform(0.5, 2.2)
        turns = [-2 * math.pi * (at + rng.uniform(-0.3, 0.3)) / count for at in range(count)]
        ring = [beside(middle, turn, size * rng.uniform(0.5, 1)) for turn in turns]
        if rng.random() < 0.5:
            ring = [[round(lon / 15) * 15.0, round(lat / 15) * 15.0] for lon, lat in ring]
        made.append([[*ring, ring[0]]])
    return {"type": "MultiPolygon", "coordinates": made}
