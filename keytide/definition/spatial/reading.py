"""Places in sqlglot's tree to our own nodes: PostGIS' functions, and no others of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from sqlglot import exp

from keytide.definition.expression import (
    Call,
    DistanceTo,
    Expression,
    Literal,
    PlaceLiteral,
    Predicate,
    Relates,
    RelationName,
)
from keytide.definition.values import ValueReader
from keytide.geometry import MOST_WORK, Geometry, NotAGeometryError, envelope, geometry_of, point
from keytide.structure.spatial import GEOGRAPHIC_SRID, PLANAR_SRID, frame_of

FLIPPED_RELATIONS: Final[dict[RelationName, RelationName]] = {
    "within": "contains",
    "contains": "within",
    "intersects": "intersects",
    "dwithin": "dwithin",
}
"""The relation that says the same with its operands exchanged."""
_RELATIONS: Final[dict[str, RelationName]] = {f"ST_{name.upper()}": name for name in FLIPPED_RELATIONS}
_POINTS: Final = ("ST_POINT", "ST_MAKEPOINT", "POINT")
_MAKERS: Final = (*_POINTS, "ST_MAKEENVELOPE", "ST_GEOMFROMGEOJSON", "ST_SETSRID")
_SYSTEMS: Final = (GEOGRAPHIC_SRID, PLANAR_SRID)
_CONSTANT: Final = (
    "Write ST_Point(lon, lat), ST_MakeEnvelope(west, south, east, north) or ST_GeomFromGeoJSON('...')."
)


class PlaceReader(ValueReader):
    """Reads expressions that may say something of places."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._shapes: dict[tuple[str, int], PlaceLiteral] = {}  # (a query may say one in several clauses)
        self._work = 0  # of all of them

    def _expression(self, node: exp.Expr) -> Expression:
        name, arguments = _call(node)
        if name in _RELATIONS:
            raise self._error("a condition cannot stand here", node, "Move it to the WHERE clause.")
        if name == "ST_DISTANCE":
            operand, place, _ = self._operands(name, node, arguments)
            return DistanceTo(operand, place)
        if name in _POINTS:
            if len(arguments) != 2:
                raise self._error(f"{name} takes a longitude and a latitude here", node)
            return Call("point", (self._expression(arguments[0]), self._expression(arguments[1])))
        if name in _MAKERS:
            raise self._error(
                f"{name} says a place, which is compared with one of the document",
                node,
                "As in ST_Within(location, ...), or ST_Distance(location, ...).",
            )
        return super()._expression(node)

    def _relation(self, node: exp.Expr) -> Predicate | None:
        """The condition on places that stands at a node; None when it is another one."""
        name, arguments = _call(node)
        relation = _RELATIONS.get(name)
        if relation is None:
            return None
        metres = 0.0
        if relation == "dwithin":
            if len(arguments) != 3:
                raise self._error(f"{name} takes a path, a place, and how many metres lie between them", node)
            *arguments, last = arguments
            metres = self._number(last, "a distance")
            if metres < 0:
                raise self._error("a distance is not negative", last)
        operand, place, flipped = self._operands(name, node, arguments)
        return Relates(FLIPPED_RELATIONS[relation] if flipped else relation, operand, place, metres)

    def _operands(
        self, name: str, node: exp.Expr, arguments: Sequence[exp.Expr]
    ) -> tuple[Expression, PlaceLiteral, bool]:
        """What of the document is compared, with which place, and whether the place was said first."""
        if len(arguments) != 2:
            raise self._error(f"{name} takes a path and a place", node)
        first, second = (_is_place(one) for one in arguments)
        if first == second:
            said = "two places, and nothing of the document" if first else "nothing that is a place by itself"
            raise self._error(f"{name} was given {said}", node, _CONSTANT)
        path, place = arguments[::-1] if first else arguments
        return self._expression(path), self._place(place), first

    def _place(self, node: exp.Expr, said: int | None = None) -> PlaceLiteral:
        """A place of constants.

        Args:
            said: the system that ST_SetSRID around it says, whatever it says itself. Its numbers are read in
                that one alone: those of a plane need not be degrees.
        """
        name, arguments = _call(node)
        if name == "ST_SETSRID":
            if len(arguments) != 2:
                raise self._error("ST_SetSRID takes a place and a system", node)
            srid = self._srid(arguments[1])
            return self._place(arguments[0], srid if said is None else said)
        srid = GEOGRAPHIC_SRID
        takes = 4 if name == "ST_MAKEENVELOPE" else 1 if name == "ST_GEOMFROMGEOJSON" else 2
        if len(arguments) == takes + 1:
            *arguments, last = arguments
            srid = self._srid(last)
        if said is not None:
            srid = said
        if len(arguments) != takes:
            words = {1: "a GeoJSON geometry in quotes", 2: "a longitude and a latitude"}
            raise self._error(f"{name} takes {words.get(takes, 'west, south, east and north')}", node)
        if takes == 1:
            return self._geojson(node, arguments[0], srid)
        numbers = [self._number(one, "a coordinate") for one in arguments]
        if takes == 2:
            return self._literal(node, srid, lambda frame: point(numbers[0], numbers[1], frame))
        west, south, east, north = numbers
        return self._literal(node, srid, lambda frame: envelope(west, south, east, north, frame))

    def _geojson(self, node: exp.Expr, text: exp.Expr, srid: int) -> PlaceLiteral:
        if not isinstance(text, exp.Literal) or not text.is_string:
            raise self._error("ST_GeomFromGeoJSON takes a GeoJSON geometry in quotes", node)
        if (known := self._shapes.get((text.this, srid))) is not None:
            return known
        try:
            value = msgspec.json.decode(str(text.this))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._error(f"this is no JSON: {error}", text) from error
        found = self._shapes[text.this, srid] = self._literal(
            text, srid, lambda frame: geometry_of(value, frame)
        )
        return found

    def _literal(self, node: exp.Expr, srid: int, make: Callable[..., Geometry]) -> PlaceLiteral:
        try:
            geometry = make(frame_of(srid))
        except NotAGeometryError as error:
            raise self._error(f"this is no geometry: {error}", node) from error
        self._work += geometry.work
        if self._work > MOST_WORK:
            raise self._error(
                "the geometries of one statement are too much work together",
                node,
                "Simplify them, or ask for them one by one.",
            )
        return PlaceLiteral(msgspec.json.encode(geometry.geojson).decode(), srid)

    def _srid(self, node: exp.Expr) -> int:
        srid = self._number(node, "a system")
        if srid not in _SYSTEMS:
            raise self._error(
                f"there is no system {srid:g} here",
                node,
                "There are 4326, longitude and latitude (the default), and 0, a plane.",
            )
        return int(srid)

    def _number(self, node: exp.Expr, what: str) -> float:
        found = self._expression(node)
        if not isinstance(found, Literal) or type(found.value) not in (int, float):
            raise self._error(f"{what} is a number", node)
        try:
            number = float(found.value)  # type: ignore[arg-type]
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._error("this number is too large", node)
        return number


def _call(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """The function that is called at a node, in upper case, and its arguments; "" for none."""
    if isinstance(node, exp.Paren):
        return _call(node.this)
    if isinstance(node, exp.Anonymous):
        return str(node.this).upper(), list(node.expressions)
    if isinstance(node, exp.StPoint):
        return "ST_POINT", [one for one in node.args.values() if one is not None]
    if isinstance(node, exp.StDistance | exp.Distance):
        return "ST_DISTANCE", [one for one in node.args.values() if one is not None]
    return "", []


def _is_place(node: exp.Expr) -> bool:
    """Whether a node says a place by itself, of constants."""
    name, _ = _call(node)
    says = name in _MAKERS
    return says and not any(isinstance(below, exp.Column) for below in node.walk())
