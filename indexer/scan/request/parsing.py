"""From bodies and query strings to requests, and the schemas of both for the OpenAPI page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from indexer.scan.request.request import CountRequest, HoldRequest, Moment, ScanRequest
from keytide.errors import UNDECODABLE, CallerError
from keytide.http.loose_json import BrokenJsonError, json_or_text

MomentT = TypeVar("MomentT", bound=Moment)
Examples = Mapping[str, Mapping[str, Any]]
"""What it shows -> a request."""

EXAMPLE_INDEX: Final = "arrivals"
"""Of `make demo`: (destination, arrival DESC) INCLUDE (flight, ...)."""
INDEX_PARAMETER: Final[Mapping[str, Any]] = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "of the index",
    "example": EXAMPLE_INDEX,
}

_KEYS: Final = ("equals", "low", "high")
_kinds: Final[set[type[Moment]]] = {ScanRequest, CountRequest, HoldRequest}
"""The types whose schemas the OpenAPI page shows; `operation` adds those of other modules."""


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
                case msgspec.inspect.ListType() | msgspec.inspect.DictType() | msgspec.inspect.VarTupleType():
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
        _refuse(error)
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
        _refuse(error)


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


def _refuse(error: Exception) -> NoReturn:
    """Raise `InvalidRequestError` that says where the request is wrong."""
    if isinstance(error, RecursionError):
        raise InvalidRequestError("arrays or objects are nested too deep") from error
    what, _, where = str(error).partition(" - at ")
    field = where.strip("`").removeprefix("$").removeprefix(".")
    raise InvalidRequestError(
        f"{field or 'request'}: {what}",
        next_step="see /docs for what may be asked",
        errors=[{"field": field, "problem": what}],
    ) from error


# --- OpenAPI --------------------------------------------------------------


def schemas() -> dict[str, Any]:
    """The request types as JSON schemas, by name."""
    kinds = sorted(_kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return components


def operation(kind: type[Moment], *, by_hand: bool, examples: Examples) -> dict[str, Any]:
    """What the OpenAPI page says of an operation: its parameters and, unless asked by hand, its body.

    Args:
        examples: requests that work on `EXAMPLE_INDEX`; by hand, the first one's plain members are shown.
    """
    _kinds.add(kind)
    if not by_hand:
        content = {
            "schema": {"$ref": f"#/components/schemas/{kind.__name__}"},
            "examples": {name: {"summary": name, "value": value} for name, value in examples.items()},
        }
        return {
            "parameters": [INDEX_PARAMETER],
            "requestBody": {"content": {"application/json": content}},
        }
    first = next(iter(examples.values()), {})
    query = []
    for name, schema in schemas()[kind.__name__]["properties"].items():
        one = {
            "name": name,
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": schema.get("description", ""),
        }
        if name in first:
            one["example"] = _as_text(first[name])
        query.append(one)
    return {"parameters": [INDEX_PARAMETER, *query]}


def _as_text(value: Any) -> str:
    """A member as it stands in a query string."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    return msgspec.json.encode(value).decode()
