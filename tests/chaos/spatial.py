"""Geometries of all sorts in documents, conditions on them, and which documents meet these: plain arithmetic.

In the plane everything has edges along the axes, so comparing numbers tells; the numbers of documents and of
conditions are never equal. On the globe there are points only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from deploy.demo.spheroid import metres_between

Box = tuple[float, float, float, float]
SIZE: Final = 1_000
"""Of the plane's square."""
NO_GEOMETRIES: Final[tuple[Any, ...]] = (
    None,
    7,
    "POINT(1 2)",
    [1.5, 2.5],
    {"type": "Point"},
    {"type": "Point", "coordinates": [1.5]},
    {"type": "Point", "coordinates": ["1", "2"]},
    {"type": "LineString", "coordinates": [[1.5, 2.5]]},
    {"type": "Polygon", "coordinates": [[[0.5, 0.5], [1.5, 0.5], [1.5, 1.5]]]},
    {"type": "Circle", "coordinates": [1.5, 2.5]},
)
NO_COORDINATES: Final[tuple[Any, ...]] = (
    "7.1",
    "east",
    [7.1],
    {"degrees": 7.1},
    True,
    False,
    180.5,
    -1e300,
    10**40,
)
"""What is neither a longitude nor a latitude, and is there."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A condition.

    Attributes:
        request: its member of a scan's request.
        keeps: whether a geometry meets it.
        distance: of the nearest, how far a geometry is.
    """

    request: dict[str, Any]
    keeps: Callable[[Any], bool] | None = None
    distance: Callable[[Any], float] | None = None


def geometry(chance: random.Random) -> Any:
    """What a document has as its geometry in the plane; now and then it is none."""
    x = chance.random()
    if x < 0.05:
        return chance.choice(NO_GEOMETRIES)
    if x < 0.55:
        return {"coordinates": _at(chance), "type": "Point"}
    if x < 0.7:
        return {"coordinates": [_at(chance) for _ in range(chance.randrange(2, 5))], "type": "MultiPoint"}
    west, south = _at(chance)
    wide, high = (chance.choice((0.1, 7.0, 130.0, 800.0)) for _ in range(2))
    if x < 0.8:
        return {"coordinates": [[west, south], [round(west + wide, 2), south]], "type": "LineString"}
    east, north = round(west + wide, 2), round(south + high, 2)
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"coordinates": [ring], "type": "Polygon"}


def position(chance: random.Random) -> tuple[float, float]:
    """Longitude and latitude of a point on the globe; some are crowded."""
    if chance.random() < 0.5:
        return round(chance.uniform(6, 8), 3) + 0.0005, round(chance.uniform(50, 51), 3) + 0.0005
    return round(chance.uniform(-179, 179), 2) + 0.005, round(chance.uniform(-89, 89), 2) + 0.005


def spoilt(chance: random.Random, lon: float, lat: float) -> dict[str, Any]:
    """The fields of a point; now and then one of them, or both, are wrong, null or not there."""
    fields: dict[str, Any] = {"lon": lon, "lat": lat}
    if chance.random() < 0.1:
        for name in chance.choice((("lon",), ("lat",), ("lon", "lat"))):
            x = chance.random()
            if x < 0.2:
                del fields[name]
            else:
                fields[name] = None if x < 0.4 else chance.choice(NO_COORDINATES)
    return fields


def is_position(lon: Any, lat: Any) -> bool:
    """Whether two values of JSON are longitude and latitude of a point on the globe."""
    numbers = type(lon) in (int, float) and type(lat) in (int, float)
    return numbers and abs(lon) <= 180 and abs(lat) <= 90


def is_geometry(value: Any) -> bool:
    """Whether a value of `geometry` is one."""
    return value not in NO_GEOMETRIES


def ask_plane(chance: random.Random) -> Asked:
    """A condition on geometries in the plane."""
    west, south = chance.randrange(-50, SIZE), chance.randrange(-50, SIZE)
    box = (west, south, west + chance.choice((1, 60, 900)), south + chance.choice((1, 60, 900)))
    sort = chance.choice(("within", "intersects", "contains", "near", "nearest"))
    if sort == "within":
        return Asked({"within": list(box)}, lambda one: _within(_bounds(one), box))
    if sort == "intersects":
        return Asked({"intersects": list(box)}, lambda one: any(_meet(part, box) for part in _parts(one)))
    if sort == "contains":
        return Asked({"contains": [west, south]}, lambda one: _has(one, west, south))
    return _near(
        chance, lambda one: min(_apart(part, west, south) for part in _parts(one)), west, south, SIZE
    )


def ask_globe(chance: random.Random) -> Asked:
    """A condition on points on the globe."""
    lon, lat = (
        (7.0, 50.5) if chance.random() < 0.5 else (chance.randrange(-180, 180), chance.randrange(-90, 90))
    )

    def distance(point: Any) -> float:
        try:
            there, up = point["coordinates"]
            return metres_between(there, up, lon, lat)
        except ValueError:  # on the other side of the globe
            return math.inf

    return _near(chance, distance, lon, lat, 10_000_000)


def _near(chance: random.Random, distance: Callable[[Any], float], x: float, y: float, whole: float) -> Asked:
    metres = whole * chance.choice((0.001, 0.01, 0.1, 0.9))
    if chance.random() < 0.5:
        return Asked({"near": {"point": [x, y], "metres": metres}}, lambda one: distance(one) <= metres)
    near = {"point": [x, y], "limit": chance.choice((1, 5, 40))}
    if chance.random() < 0.5:
        return Asked({"near": near}, None, distance)
    return Asked({"near": {**near, "metres": metres}}, lambda one: distance(one) <= metres, distance)


def _at(chance: random.Random) -> list[float]:
    return [round(chance.randrange(SIZE) + chance.randrange(1, 10) / 10 + 0.03, 2) for _ in range(2)]


def _parts(value: Any) -> list[Box]:
    """The boxes that a geometry consists of; those of points and lines have no width."""
    match value:
        case {"type": "Point", "coordinates": [x, y]}:
            return [(x, y, x, y)]
        case {"type": "MultiPoint", "coordinates": points}:
            return [(x, y, x, y) for x, y in points]
        case {"type": "LineString", "coordinates": [[west, south], [east, north]]}:
            return [(west, south, east, north)]
        case {"type": "Polygon", "coordinates": [[[west, south], _, [east, north], *_]]}:
            return [(west, south, east, north)]
    raise ValueError(f"{value} is not made here")


def _bounds(value: Any) -> Box:
    west, south, east, north = zip(*_parts(value), strict=True)
    return min(west), min(south), max(east), max(north)


def _within(one: Box, box: Box) -> bool:
    return box[0] < one[0] and box[1] < one[1] and one[2] < box[2] and one[3] < box[3]


def _meet(one: Box, box: Box) -> bool:
    return one[0] < box[2] and box[0] < one[2] and one[1] < box[3] and box[1] < one[3]


def _has(value: Any, x: float, y: float) -> bool:
    west, south, east, north = _bounds(value)
    return value["type"] == "Polygon" and west < x < east and south < y < north


def _apart(one: Box, x: float, y: float) -> float:
    return math.hypot(max(one[0] - x, 0, x - one[2]), max(one[1] - y, 0, y - one[3]))
