"""What conditions and distances of places mean, on JSON values: shared by everything that evaluates them.

A value that is no GeoJSON geometry, in the system of the place that it is compared with, stands in no
relation to it and has no distance: unknown and NULL, as `keytide.definition.semantics` has it of other wrong
types. On the globe (srid 4326) a relation counts what lies on the edge, and distances are metres, as in
PostGIS' geography; in a plane (srid 0) they are those of its geometry (`keytide.geometry`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from keytide.collation import MISSING, Value
from keytide.definition.expression import DistanceTo, PlaceLiteral, Relates
from keytide.geometry import Geometry, NotAGeometryError, QueryShape, distance, geometry_of, known_geometry
from keytide.geometry import point as point_of
from keytide.structure.spatial import frame_of

_KEPT: Final = 64
_KEPT_CHARACTERS: Final = 10_000
"""Of a place: what is prepared of larger ones is not kept."""
_kept: Final[dict[Relates, QueryShape]] = {}
"""Those that nobody uses at the moment; taking one out and putting it back are one step each."""


def geometry_literal(place: PlaceLiteral) -> Geometry:
    """The geometry of a place that a statement gives. (It is in normal form there: it was read before.)"""
    return known_geometry(msgspec.json.decode(place.geojson), frame_of(place.srid))


@contextmanager
def query_shape(node: Relates) -> Iterator[QueryShape]:
    """What a condition asks of places, for one at a time: it is made where it is not kept, and kept for who
    comes next. (A plan reads its spans, and then slices test what they find.)"""
    shape = _kept.pop(node, None) or QueryShape(node.relation, geometry_literal(node.place), node.metres)
    yield shape
    if len(_kept) >= _KEPT:
        _kept.clear()
    if len(node.place.geojson) <= _KEPT_CHARACTERS:
        _kept[node] = shape


def relates(node: Relates) -> Callable[[Value], bool | None]:
    """Whether a value stands in the relation; None when it is no place."""

    def test(value: Value) -> bool | None:
        geometry = _geometry(value, node.place.srid)
        if geometry is None:
            return None
        with query_shape(node) as shape:
            return shape.test(geometry)

    return test


def distance_to(node: DistanceTo) -> Callable[[Value], Value]:
    """How far a value is from the place: metres, or units of the plane; NULL when it is no place."""
    place = geometry_literal(node.place)

    def measured(value: Value) -> Value:
        if value is MISSING:
            return MISSING
        geometry = _geometry(value, node.place.srid)
        if geometry is None:
            return None
        found = distance(geometry, place)
        return found if math.isfinite(found) else None

    return measured


def point(x: Value, y: Value) -> Value:
    """The GeoJSON point of two values; MISSING when one is, NULL when one is no number."""
    if type(x) in (int, float) and type(y) in (int, float):
        return {"type": "Point", "coordinates": [x, y]}  # type: ignore[list-item]
    return MISSING if x is MISSING or y is MISSING else None


def check_point(x: Value, y: Value, srid: int) -> None:
    """Raise `NotAGeometryError` if there are two values, of which one is no number: of such a point `point`
    says NULL, as if the document had none, and who wrote it should hear of it."""
    if x is not MISSING and y is not MISSING and x is not None and y is not None and point(x, y) is None:
        point_of(x, y, frame_of(srid))  # this says what is wrong with them


def _geometry(value: Any, srid: int) -> Geometry | None:
    if type(value) is not dict:
        return None
    try:
        return geometry_of(value, frame_of(srid))
    except NotAGeometryError:
        return None
