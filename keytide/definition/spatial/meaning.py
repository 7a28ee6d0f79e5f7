"""What conditions and distances of places mean, on JSON values: shared by everything that evaluates them.

A value that is no GeoJSON geometry, in the system of the place that it is compared with, stands in no
relation to it and has no distance: unknown and NULL, as `keytide.definition.semantics` has it of other wrong
types. On the globe (srid 4326) a relation counts what lies on the edge, and distances are metres, as in
PostGIS' geography; in a plane (srid 0) they are those of its geometry (`keytide.geometry`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from keytide.collation import MISSING, Value
from keytide.definition.expression import DistanceTo, PlaceLiteral, Relates
from keytide.geometry import Geometry, NotAGeometryError, QueryShape, distance, geometry_of, known_geometry
from keytide.structure.spatial import frame_of

_KEPT: Final = 64
_of_thread: Final = threading.local()


def geometry_literal(place: PlaceLiteral) -> Geometry:
    """The geometry of a place that a statement gives. (It is in normal form there: it was read before.)"""
    return known_geometry(msgspec.json.decode(place.geojson), frame_of(place.srid))


def region_of(node: Relates) -> QueryShape:
    """What a condition asks of places. Made once for each thread that asks, and kept for a while: a plan
    reads its spans, and then slices test what they find."""
    kept: dict[Relates, QueryShape] | None = getattr(_of_thread, "kept", None)
    if kept is None:
        kept = _of_thread.kept = {}
    found = kept.get(node)
    if found is None:
        if len(kept) >= _KEPT:
            kept.clear()
        found = kept[node] = QueryShape(node.relation, geometry_literal(node.place), node.metres)
    return found


def relates(node: Relates) -> Callable[[Value], bool | None]:
    """Whether a value stands in the relation; None when it is no place."""

    def test(value: Value) -> bool | None:
        geometry = _geometry(value, node.place.srid)
        return None if geometry is None else region_of(node).test(geometry)

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


def _geometry(value: Any, srid: int) -> Geometry | None:
    if type(value) is not dict:
        return None
    try:
        return geometry_of(value, frame_of(srid))
    except NotAGeometryError:
        return None
