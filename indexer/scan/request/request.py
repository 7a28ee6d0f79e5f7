"""What a reader may ask of the scan endpoint (docs/reference), decoded and checked in one go.

The OpenAPI page shows the schemas that msgspec derives from these types, so that what is shown and what is
checked cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from keytide.errors import UNDECODABLE, CallerError
from keytide.http.loose_json import BrokenJsonError, json_or_text
from keytide.model.hints import did_you_mean

_KEYS: Final = ("equals", "low", "high")
PLACES: Final = ("within", "contains", "intersects", "near")
"""Members that only spatial indexes answer."""

Inclusion = Literal["both", "low", "high", "neither"]
Consistency = Literal["stable", "tip"]
Column = Literal["key", "id", "include"]
ColumnType = Literal["text", "bigint", "double", "boolean", "json"]
Order = Literal["key", "any"]
KeyParts = list[Any]
"""Leading key parts: JSON values as they are, integers of any size exactly."""
Equals = Annotated[
    KeyParts | None, Meta(description="leading key parts that must be equal", examples=[["JFK"]])
]
Low = Annotated[KeyParts | None, Meta(description="lower bound: leading key parts")]
High = Annotated[KeyParts | None, Meta(description="upper bound: leading key parts")]
InclusionParameter = Annotated[
    Inclusion, Meta(description="which of the bounds `low` and `high` belong to the range")
]
Prefix = Annotated[
    str | None,
    Meta(description="strings that begin so, in the key part after `equals` (without it the first)"),
]


class OffsetAndEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in a source partition, as answers show it: the next offset and the leader epoch."""

    offset: Annotated[int, Meta(ge=0)]
    epoch: Annotated[int, Meta(ge=-1)] = -1


AtLeast = dict[int, Annotated[int, Meta(ge=0)] | OffsetAndEpoch] | None
"""Source partition -> next offset, with or without the leader epoch under which it was written."""


class Moment(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """From which moment in time: what every question has."""

    consistency: Annotated[
        Consistency,
        Meta(description="`stable`: one agreed snapshot of all slices; `tip`: each slice's newest state"),
    ] = "stable"
    at_least: Annotated[
        AtLeast,
        Meta(
            description="source partition -> next offset (record offset + 1) that the snapshot must include; "
            "with the leader epoch, an offset that the source has lost is told at once (409)",
            examples=[{"0": 1}],
        ),
    ] = None
    session: Annotated[
        str | None,
        Meta(
            description="token of an earlier answer: never see an older snapshot than that one; several with "
            "commas between them"
        ),
    ] = None
    max_staleness_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="how old the snapshot may be at most")
    ] = None
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="longest wait for such a snapshot and for the slices"),
    ] = None
    at: Annotated[
        str | None,
        Meta(description="token of a held snapshot (`POST .../snapshots`): read exactly that one"),
    ] = None
    explain: Annotated[bool, Meta(description="add how the snapshot was chosen")] = False

    def __post_init__(self) -> None:
        if self.at is None:
            return
        if self.consistency != "stable" or self.at_least or self.max_staleness_ms is not None:
            raise ValueError(
                "`at` names the snapshot: leave out `consistency`, `at_least` and `max_staleness_ms`"
            )


GeometryParameter = Annotated[
    dict[str, Any] | list[float] | None,
    Meta(
        description="a GeoJSON geometry, a point [lon, lat], or a box [west, south, east, north]",
        examples=[[-74.3, 40.5, -73.7, 40.9]],
    ),
]


class Near(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What lies around a place, of a spatial index."""

    point: Annotated[
        dict[str, Any] | list[float],
        Meta(description="[lon, lat], or any GeoJSON geometry", examples=[[-73.78, 40.64]]),
    ]
    metres: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="how far away at most (units, of a plane)", examples=[500_000]),
    ] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="only so many, the nearest first, each with its `distance`", examples=[5]),
    ] = None

    def __post_init__(self) -> None:
        if self.metres is None and self.limit is None:
            raise ValueError("`near` takes `metres`, `limit`, or both")


class SpanRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One stretch of an index's keys.

    At most one of `equals`, `low`/`high`, `prefix` (which may follow `equals`); nothing selects the whole
    index.
    """

    equals: Equals = None
    low: Low = None
    high: High = None
    inclusion: InclusionParameter = "both"
    prefix: Prefix = None

    def __post_init__(self) -> None:
        check_bounds(self)


class Question(Moment, frozen=True):
    """Which entries, and from which moment in time.

    One stretch of keys as in `SpanRequest`, or several in `spans`; nothing selects the whole index.
    """

    equals: Equals = None
    low: Low = None
    high: High = None
    inclusion: InclusionParameter = "both"
    prefix: Prefix = None
    spans: Annotated[
        list[SpanRequest] | None,
        Meta(
            description="several stretches, in place of one; where they overlap, entries come once",
            examples=[[{"equals": ["JFK"]}, {"low": ["S"], "high": ["T"]}]],
        ),
    ] = None
    within: Annotated[GeometryParameter, Meta(description="of a spatial index: what lies within")] = None
    contains: Annotated[GeometryParameter, Meta(description="of a spatial index: what contains it")] = None
    intersects: Annotated[GeometryParameter, Meta(description="of a spatial index: what meets it")] = None
    near: Annotated[Near | None, Meta(description="of a spatial index: what lies around a place")] = None
    srid: Annotated[
        int | None,
        Meta(description="the system that the place is in: refused if that of the index is another one"),
    ] = None
    slices: Annotated[
        Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)] | None,
        Meta(description="only these slices of the index: for readers that divide the work"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self)
        if self.spans is not None and any(
            bound is not None for bound in (self.equals, self.low, self.high, self.prefix)
        ):
            raise ValueError("give either `spans` or one of `equals`, `low`/`high`, `prefix`, not both")
        check_places(self)

    @property
    def place_member(self) -> str | None:
        """Which of `PLACES` is asked; None when the question is about none."""
        none = self.within is None and self.contains is None and self.intersects is None and self.near is None
        return None if none else next(name for name in PLACES if getattr(self, name) is not None)

    @property
    def nearest(self) -> int | None:
        """How many of the nearest are asked for; None when that is not the question."""
        return None if self.near is None else self.near.limit


def check_places(one: Question) -> None:
    """Raise `ValueError` if a question is about several places, or keys as well, or about a system alone."""
    places = [name for name in PLACES if getattr(one, name) is not None]
    keys = [name for name in (*_KEYS, "prefix", "spans") if getattr(one, name) is not None]
    if len(places) > 1 or (places and keys):
        raise ValueError(f"give one of {', '.join(f'`{name}`' for name in [*places, *keys])}, not several")
    if one.srid is not None and not places:
        raise ValueError(f"`srid` is of a place: give one of {', '.join(f'`{name}`' for name in PLACES)}")


def check_bounds(one: SpanRequest | Question) -> None:
    """Raise `ValueError` if a stretch is bounded in two ways, or says which of no bounds it takes."""
    if one.low is None and one.high is None:
        if one.inclusion != "both":
            raise ValueError("`inclusion` is of `low` and `high`: leave it out, or give one of them")
        return
    if one.equals is not None:
        raise ValueError("give either `equals` or `low`/`high`, not both")
    if one.prefix is not None:
        raise ValueError("give either `prefix` or `low`/`high`, not both")


class ScanRequest(Question, frozen=True):
    """Body of `POST /v1/indexes/{name}/scan`."""

    reverse: Annotated[bool, Meta(description="rows in descending key order")] = False
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="rows per page")] = None
    offset: Annotated[Annotated[int, Meta(ge=0)], Meta(description="rows to leave out at the start")] = 0
    distinct: Annotated[
        bool, Meta(description="one row per key, with the key only, however many entries have it")
    ] = False
    columns: Annotated[list[Column] | None, Meta(description="what each row holds")] = None
    page: Annotated[
        str | None,
        Meta(description="token of an earlier answer: its next page; the selection is in the token"),
    ] = None
    types: Annotated[
        dict[str, ColumnType] | None,
        Meta(description="of an Arrow stream: column -> its type, in place of what is inferred"),
    ] = None
    order: Annotated[
        Order, Meta(description="of a stream: `any` gives rows as slices have them, in no order, and faster")
    ] = "key"
    validate: Annotated[
        bool,
        Meta(description="ask the primary for each row's document, and leave out rows that are stale"),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distinct and self.columns is not None and self.columns != ["key"]:
            raise ValueError('a `distinct` row stands for many documents: `columns` can only be ["key"]')
        if self.distinct and self.validate:
            raise ValueError("a `distinct` row stands for many documents: it cannot be validated")
        if self.page is not None and self.at is not None:
            raise ValueError("a page token names its snapshot: leave out `at`")
        said = self.distinct or self.reverse or self.offset or self.validate or self.order != "key"
        given = (self.limit, self.page, self.types)
        if self.nearest is not None and (said or any(one is not None for one in given)):
            raise ValueError(
                "`near` with `limit` gives the nearest, nearest first, in one answer: leave out `limit` "
                "outside of it, `offset`, `reverse`, `distinct`, `validate`, `page`, `types` and `order`"
            )


class CountRequest(Question, frozen=True):
    """Body of `POST /v1/indexes/{name}/count`."""

    distinct: Annotated[bool, Meta(description="count keys, however many entries have them")] = False


class HoldRequest(Moment, frozen=True):
    """Body of `POST /v1/indexes/{name}/snapshots`: hold a snapshot, so that many reads see the same one."""

    lease_s: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="how long it is held after its last use", examples=[60]),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consistency != "stable":
            raise ValueError("only a `stable` snapshot can be held")
        if self.at is not None:
            raise ValueError("`at` is held already")


# --- decoding ---------------------------------------------------------------------------------------------


MomentT = TypeVar("MomentT", bound=Moment)


class InvalidRequestError(CallerError):
    """Not a request that the endpoint understands."""

    problem_type = "invalid-request"
    status = 422


@cache
def _decoder(kind: type[MomentT]) -> msgspec.json.Decoder[MomentT]:
    return msgspec.json.Decoder(kind)


@cache
def _structured(kind: type[Moment]) -> frozenset[str]:
    """The members that are arrays or objects."""
    described = msgspec.inspect.type_info(kind)
    found = set()
    for field in described.fields if isinstance(described, msgspec.inspect.StructType) else ():
        types = [field.type]
        while types:
            match types.pop():
                case msgspec.inspect.Metadata(type=inner):
                    types.append(inner)
                case msgspec.inspect.UnionType(types=inner):
                    types += inner
                case (
                    msgspec.inspect.ListType()
                    | msgspec.inspect.DictType()
                    | msgspec.inspect.VarTupleType()
                    | msgspec.inspect.StructType()
                ):
                    found.add(field.encode_name)
    return frozenset(found)


def parse(kind: type[MomentT], body: bytes) -> MomentT:
    """The request in a JSON body; an empty body asks for everything.

    Raises:
        InvalidRequestError: not JSON, unknown names, wrong types.
    """
    try:
        request: MomentT = _decoder(kind).decode(body or b"{}")
    except UNDECODABLE as error:
        _refuse(error, kind)
    return request


def from_query(kind: type[MomentT], parameters: Iterable[tuple[str, str]]) -> MomentT:
    """The request in a query string.

    Key parts are JSON arrays, JSON values, or plain strings (`keytide.http.loose_json`); a parameter that is
    repeated gives several parts: `equals=Boston&equals=3`. Other lists are JSON, or strings with commas
    between them; objects are JSON.

    Raises:
        InvalidRequestError: unknown names, wrong types.
    """
    members: dict[str, Any] = {}
    lists = _structured(kind)
    for name, text in parameters:
        if name in _KEYS:
            value = _json_or_text(name, text)
            parts = value if isinstance(value, list) and name not in members else [value]
            members[name] = [*members.get(name, ()), *parts]
        elif name in members:
            raise InvalidRequestError(f"`{name}` is given twice", next_step="give it once")
        elif name in lists:
            members[name] = _json(text) if text[:1] in ("[", "{") else [*filter(None, text.split(","))]
        else:
            members[name] = text
    try:
        return msgspec.convert(members, kind, strict=False)
    except UNDECODABLE as error:
        _refuse(error, kind)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE as error:
        _refuse(error)


def _json_or_text(name: str, text: str) -> Any:
    try:
        return json_or_text(text)
    except BrokenJsonError as error:
        raise InvalidRequestError(
            f"`{name}` looks like JSON, and is none: {error}",
            next_step="texts within JSON stand in double quotes, and so does a text that begins like JSON",
        ) from error
    except RecursionError as error:
        _refuse(error)


def _refuse(error: Exception, kind: type[msgspec.Struct] | None = None) -> NoReturn:
    """Raise `InvalidRequestError` that says where a request of this kind is wrong, and what may be meant."""
    if isinstance(error, RecursionError):
        raise InvalidRequestError("arrays or objects are nested too deep") from error
    what, _, where = str(error).partition(" - at ")
    field = where.strip("`").removeprefix("$").removeprefix(".")
    mistyped = "" if field else what.partition("unknown field `")[2].rstrip("`")
    members = [one.encode_name for one in msgspec.structs.fields(kind)] if kind else []
    raise InvalidRequestError(
        f"{field or 'request'}: {what}",
        next_step=did_you_mean(mistyped, members, "see /docs for what may be asked"),
        errors=[{"field": field, "problem": what}],
    ) from error
