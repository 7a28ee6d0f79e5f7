"""GeoJSON (RFC 7946): what is a geometry, what is wrong with one, and its normal form.

Theory of operation
===================
A value is read once, and comes out as its normal form and as `Parts`: points, lines and polygons, flat,
whatever its type and its nesting. The parts share their lists of positions with the normal form.

Whether rings cross themselves is asked where they can be drawn (`keytide.geometry.drawn.drawing`); the rest
is here: types, members, numbers and their ranges, how many positions, closed rings. Longitudes beyond 180 and
latitudes beyond 90 degrees are refused, where PostGIS wraps them round with a notice: such a document nearly
always has latitude and longitude the wrong way round, and who wrote it should hear of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from keytide.errors import CallerError

Frame = Literal["geographic", "planar"]
"""How coordinates are meant: degrees of longitude and latitude on WGS84 (srid 4326), or a plane (srid 0)."""
Relation = Literal["intersects", "within", "contains", "dwithin"]
"""What a document is to a shape: it meets it, lies within it, contains it, is within so many metres of it."""
Position = list[float]
"""Two numbers, whole ones as int: longitude and latitude, or x and y."""

MOST_NESTED: Final = 8
"""GeometryCollections within one another."""
MOST_PLANAR: Final = 1e150
"""Coordinates of a plane, at most: products of two of them are still numbers."""
FEW_POSITIONS: Final = 64
"""Of one line or polygon, with which all that is made ready of it takes some milliseconds."""
FEW_DEGREES: Final = 45
"""How far they are apart; of what is wider each takes tenths of a millisecond."""
MOST_WORK: Final = 2_000_000
"""Of a geometry, or of all that one statement gives, in pairs of edges: some tenths of a second."""
_WHOLE: Final = 2.0**53
"""Whole numbers up to here are written as int, so that no document has two normal forms."""
MOST_COORDINATES: Final[dict[Frame, tuple[float, float]]] = {
    "geographic": (180.0, 90.0),
    "planar": (MOST_PLANAR, MOST_PLANAR),
}
"""How far x and y may go either way."""


class NotAGeometryError(CallerError, ValueError):
    """A value is no geometry of its frame; the text says what is wrong with it, for who wrote the document:
    "ring 2 of polygon 1 is not closed". Such a document goes to the skip ledger."""

    problem_type = "not-a-geometry"
    status = 422


class TooComplexError(NotAGeometryError):
    """A geometry is more work than one may be: millions of its edges lie across one another, or hundreds of
    its polygons are as wide as continents. Simplify it, or split it into several. Such a document goes to the
    skip ledger."""

    problem_type = "geometry-too-complex"


@dataclass(slots=True)
class Parts:
    """What a geometry consists of. A ring is closed: its last position is its first one; the first ring of a
    polygon is its outline, the others are its holes."""

    points: list[Position] = field(default_factory=list)
    lines: list[list[Position]] = field(default_factory=list)
    polygons: list[list[list[Position]]] = field(default_factory=list)


def read(value: object, frame: Frame) -> tuple[dict[str, Any], Parts]:
    """(normal form, parts) of a decoded JSON value.

    Raises:
        NotAGeometryError: it is no geometry.
    """
    parts = Parts()
    return _read(value, frame, parts, 0), parts


def is_small(value: object) -> bool:
    """Whether a decoded JSON value takes some milliseconds to be read and covered: a point, or one line or
    polygon of few positions that are no continents apart. What is no geometry may be told either way."""
    if not isinstance(value, dict):
        return True
    kind, coordinates = value.get("type"), value.get("coordinates")
    if not isinstance(coordinates, (list, tuple)):
        return kind != "GeometryCollection"
    if kind == "Polygon":
        rings = [ring for ring in coordinates if isinstance(ring, (list, tuple))]
        return sum(map(len, rings)) <= FEW_POSITIONS and all(map(_is_near_itself, rings))
    if kind in ("LineString", "MultiPoint"):
        return len(coordinates) <= FEW_POSITIONS and _is_near_itself(coordinates)
    return kind == "Point"


def _is_near_itself(positions: list[Any] | tuple[Any, ...]) -> bool:
    """Whether positions are no continents apart, or none."""
    try:
        return all(
            max(one[axis] for one in positions) - min(one[axis] for one in positions) <= FEW_DEGREES
            for axis in (0, 1)
        )
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return True  # (to be refused as soon)


def known_parts(geojson: dict[str, Any]) -> Parts:
    """The parts of a normal form, unchecked."""
    parts = Parts()
    _take(geojson, parts)
    return parts


def number(value: object, what: str, most: float) -> float:
    """A coordinate in its normal form.

    Raises:
        NotAGeometryError: it is no number, or out of range.
    """
    if type(value) is float or type(value) is int:
        if -most <= value <= most:
            return _normal(value)
        if value != value or value in (float("inf"), float("-inf")):
            raise NotAGeometryError(f"{what} {value} is not a finite number")
        shown = (
            value if abs(value) < 1e16 else f"{'-' if value < 0 else ''}a number of {_digits(value)} digits"
        )
        raise NotAGeometryError(f"{what} {shown} is out of -{most:g}..{most:g}")
    raise NotAGeometryError(f"{what} {_shown(value)} is not a number")


def xy(x: object, y: object, frame: Frame) -> tuple[float, float]:
    """Two coordinates in their normal form. Raises as `number`."""
    most_x, most_y = MOST_COORDINATES[frame]
    name_x, name_y = ("longitude", "latitude") if frame == "geographic" else ("x", "y")
    return number(x, name_x, most_x), number(y, name_y, most_y)


def _normal(value: float) -> float:
    if -_WHOLE <= value <= _WHOLE:
        return int(value) if type(value) is int or value.is_integer() else value
    return float(value)


def _digits(value: float) -> int:
    """How long a number is, without writing it down."""
    if type(value) is int:
        return int(value.bit_length() * 0.30103) + 1
    return len(str(int(value))) - (value < 0)


def _shown(value: object) -> str:
    """A value that is not what it should be, as whoever wrote JSON knows it."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, (list, tuple)) else "a number"


# --- types ------------------------------------------------------------------------------------------------


def _read(value: object, frame: Frame, parts: Parts, depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotAGeometryError("a geometry is an object with type and coordinates")
    kind = value.get("type")
    if kind == "GeometryCollection":
        return _read_collection(value, frame, parts, depth)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        if kind is None:
            raise NotAGeometryError("type is missing")
        if kind in ("Feature", "FeatureCollection"):
            raise NotAGeometryError(f"a {kind} is not a geometry: give its geometry")
        unknown = f"unknown type {_shown(kind)}" if isinstance(kind, str) else f"type is {_shown(kind)}"
        raise NotAGeometryError(unknown)
    coordinates = value.get("coordinates")
    if not isinstance(coordinates, (list, tuple)):
        raise NotAGeometryError(f"coordinates of a {kind} are an array")
    if not coordinates:
        raise NotAGeometryError("is empty")
    return {"type": kind, "coordinates": reader(coordinates, frame, parts)}


def _read_collection(value: dict[Any, Any], frame: Frame, parts: Parts, depth: int) -> dict[str, Any]:
    members = value.get("geometries")
    if not isinstance(members, (list, tuple)):
        raise NotAGeometryError("geometries of a GeometryCollection are an array")
    if not members:
        raise NotAGeometryError("is empty")
    if depth == MOST_NESTED:
        raise NotAGeometryError(f"more than {MOST_NESTED} GeometryCollections are in one another")
    return {
        "type": "GeometryCollection",
        "geometries": [_read(one, frame, parts, depth + 1) for one in members],
    }


def _read_point(coordinates: Any, frame: Frame, parts: Parts) -> Position:
    if not 2 <= len(coordinates) <= 3:
        raise NotAGeometryError("coordinates of a Point are 2 or 3 numbers")
    position = _positions((coordinates,), frame, "coordinates of a Point")[0]
    parts.points.append(position)
    return position


def _read_points(coordinates: Any, frame: Frame, parts: Parts) -> list[Position]:
    positions = _positions(coordinates, frame, "MultiPoint")
    parts.points += positions
    return positions


def _read_line(coordinates: Any, frame: Frame, parts: Parts, name: str = "line") -> list[Position]:
    positions = _positions(_array(coordinates, name), frame, name)
    if len(positions) < 2:
        raise NotAGeometryError(f"{name} has fewer than 2 positions")
    parts.lines.append(positions)
    return positions


def _read_lines(coordinates: Any, frame: Frame, parts: Parts) -> list[list[Position]]:
    return [_read_line(one, frame, parts, f"line {i}") for i, one in enumerate(coordinates, 1)]


def _read_polygon(coordinates: Any, frame: Frame, parts: Parts, of: str = "") -> list[list[Position]]:
    rings = []
    for i, ring in enumerate(coordinates, 1):
        name = f"ring {i}{of}"
        positions = _positions(_array(ring, name), frame, name)
        if positions[0] != positions[-1]:
            raise NotAGeometryError(f"{name} is not closed")
        if len(positions) < 4:
            raise NotAGeometryError(f"{name} has fewer than 4 positions")
        rings.append(positions)
    parts.polygons.append(rings)
    return rings


def _read_polygons(coordinates: Any, frame: Frame, parts: Parts) -> list[list[list[Position]]]:
    return [
        _read_polygon(_array(one, f"polygon {i}"), frame, parts, f" of polygon {i}")
        for i, one in enumerate(coordinates, 1)
    ]


_READERS: Final[dict[str, Callable[[Any, Frame, Parts], object]]] = {
    "Point": _read_point,
    "MultiPoint": _read_points,
    "LineString": _read_line,
    "MultiLineString": _read_lines,
    "Polygon": _read_polygon,
    "MultiPolygon": _read_polygons,
}


def _array(value: object, name: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise NotAGeometryError(f"{name} is not an array of positions")
    if not value:
        raise NotAGeometryError(f"{name} is empty")
    return value


def _positions(values: Any, frame: Frame, name: str) -> list[Position]:
    """The positions of a line or ring, in their normal form. The loop that nearly all of reading is."""
    most_x, most_y = MOST_COORDINATES[frame]
    found: list[Position] = []
    for value in values:
        if type(value) is not list or len(value) != 2:
            value = _position(value, f"position {len(found) + 1} of {name}")
        x, y = value
        if type(x) is not float or not -most_x <= x <= most_x or x.is_integer():
            x, _ = xy(x, 0, frame)
        if type(y) is not float or not -most_y <= y <= most_y or y.is_integer():
            _, y = xy(0, y, frame)
        found.append([x, y])
    return found


def _position(value: object, name: str) -> Any:
    """The first two members of a position that is not plainly a pair."""
    if not isinstance(value, (list, tuple)):
        raise NotAGeometryError(f"{name} is not an array of 2 or 3 numbers")
    if not 2 <= len(value) <= 3:
        raise NotAGeometryError(f"{name} has {len(value)} numbers, not 2 or 3")
    if len(value) == 3 and type(value[2]) not in (int, float):
        raise NotAGeometryError(f"altitude {_shown(value[2])} is not a number")
    return value[:2]


# --- what was read before ---------------------------------------------------------------------------------


def _take(geojson: dict[str, Any], parts: Parts) -> None:
    match geojson["type"]:
        case "Point":
            parts.points.append(geojson["coordinates"])
        case "MultiPoint":
            parts.points += geojson["coordinates"]
        case "LineString":
            parts.lines.append(geojson["coordinates"])
        case "MultiLineString":
            parts.lines += geojson["coordinates"]
        case "Polygon":
            parts.polygons.append(geojson["coordinates"])
        case "MultiPolygon":
            parts.polygons += geojson["coordinates"]
        case _:
            for one in geojson["geometries"]:
                _take(one, parts)
