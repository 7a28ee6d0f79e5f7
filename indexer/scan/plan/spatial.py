"""What a request asks of places, as conditions (`keytide.definition.spatial`). Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from indexer.scan.request.request import Near, Question
from keytide.definition.expression import DistanceTo, Expression, PlaceLiteral, Relates, RelationName
from keytide.errors import CallerError
from keytide.geometry import NotAGeometryError, TooComplexError, envelope, geometry_of, is_small, point
from keytide.structure.spatial import frame_of


class NotSpatialError(CallerError):
    """Something was asked of an index that only a spatial one answers."""

    problem_type = "index-not-spatial"
    status = 422


MAX_PLACE_BYTES: Final = 32 * 1024
"""Some 1,500 positions."""


def takes_long(question: Question) -> bool:
    """Whether the place that a request asks about is to be made ready in a thread: it may take longer than
    others can be kept waiting for."""
    if question.near is not None:
        return not is_point(question.near.point)
    given = next((one for one in (question.within, question.contains, question.intersects) if one), None)
    return not is_small(given)


def is_point(value: object) -> bool:
    """Whether a place of a request can be nothing but a point."""
    return isinstance(value, list) or (isinstance(value, dict) and value.get("type") == "Point")


def place_condition(question: Question, key: Expression | None, srid: int) -> Relates | None:
    """What a request asks of places, but for how many; None when it asks for all, or nothing of them.

    Args:
        key: of the index, None if it is not spatial.
        srid: of the index.

    Raises:
        NotSpatialError: of an index of another structure.
        CallerError (422): what is given is no place.
    """
    asked = question.place_member
    if asked is None:
        return None
    if key is None:
        raise NotSpatialError(
            f"only a spatial index answers `{asked}`",
            next_step="ask an index USING spatial: CREATE INDEX name ON keyspace USING spatial (location)",
        )
    if question.srid is not None and question.srid != srid:
        raise CallerError(
            f"the index has places in system {srid}, and what is asked is in system {question.srid}",
            status=422,
            problem_type="invalid-request",
            next_step="ask an index of that system, or leave `srid` out",
        )
    relations: tuple[RelationName, ...] = ("within", "contains", "intersects")
    for relation in relations:
        if (given := getattr(question, relation)) is not None:
            return Relates(relation, key, place_literal(relation, given, srid))
    if question.near is None or question.near.metres is None:
        return None
    place = place_literal("near.point", question.near.point, srid)
    return Relates("dwithin", key, place, question.near.metres)


def place_literal(field: str, value: object, srid: int) -> PlaceLiteral:
    """A place of a request: a GeoJSON geometry, [x, y], or [west, south, east, north].

    Args:
        field: where it stands.

    Raises:
        CallerError (422): it is none.
    """
    frame = frame_of(srid)
    if len(msgspec.json.encode(value)) > MAX_PLACE_BYTES:
        raise CallerError(
            f"{field}: a place has at most {MAX_PLACE_BYTES:,} bytes in a request",
            status=422,
            problem_type="invalid-request",
            next_step="give a coarser one, or ask by SELECT, which takes more",
        )
    try:
        if not isinstance(value, list):
            geometry = geometry_of(value, frame)
        elif len(value) == 2:
            geometry = point(value[0], value[1], frame)
        elif len(value) == 4:
            geometry = envelope(value[0], value[1], value[2], value[3], frame)
        else:
            raise NotAGeometryError(f"{len(value)} numbers are neither a point nor a box")
    except TooComplexError as error:
        raise CallerError(
            f"{field}: the geometry {error}",
            status=422,
            problem_type=error.problem_type,
            next_step="simplify the shape, or split it and ask for its parts one by one",
            errors=[{"field": field, "problem": str(error)}],
        ) from error
    except NotAGeometryError as error:
        raise CallerError(
            f"{field}: this is no geometry: {error}",
            status=422,
            problem_type="invalid-request",
            next_step="give a GeoJSON geometry, a point [lon, lat], or a box [west, south, east, north]",
            errors=[{"field": field, "problem": str(error)}],
        ) from error
    return PlaceLiteral(msgspec.json.encode(geometry.geojson).decode(), srid)


def nearest_of(near: Near, key: Expression, srid: int) -> DistanceTo:
    """The distance that a request wants the least of. Raises as `place_condition`."""
    return DistanceTo(key, place_literal("near.point", near.point, srid))
