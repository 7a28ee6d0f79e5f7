"""From bodies and query strings to requests, and the schemas of both for the OpenAPI page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from indexer.scan.request import CountRequest, Question, ScanRequest
from keytide.errors import CallerError

QuestionT = TypeVar("QuestionT", bound=Question)

_KEYS: Final = ("equals", "low", "high")
_NOT_A_VALUE: Final = (msgspec.MsgspecError, RecursionError)
_decoders: dict[type[Question], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (ScanRequest, CountRequest)
}


class InvalidRequestError(CallerError):
    """Not a request that the endpoint understands."""

    problem_type = "invalid-request"
    status = 422


def parse(kind: type[QuestionT], body: bytes) -> QuestionT:
    """The request in a JSON body; an empty body asks for everything.

    Raises:
        InvalidRequestError: not JSON, unknown names, wrong types.
    """
    try:
        request: QuestionT = _decoders[kind].decode(body or b"{}")
    except _NOT_A_VALUE as error:
        _refuse(error)
    return request


def from_query(kind: type[QuestionT], parameters: Iterable[tuple[str, str]]) -> QuestionT:
    """The request in a query string.

    Key parts are JSON arrays, JSON values, or plain strings; a parameter that is repeated gives several
    parts: `equals=Boston&equals=3`. `columns` may be given with commas.

    Raises:
        InvalidRequestError: unknown names, wrong types.
    """
    members: dict[str, Any] = {}
    for name, text in parameters:
        if name in _KEYS:
            value = _json_or_text(text)
            parts = value if isinstance(value, list) and name not in members else [value]
            members[name] = [*members.get(name, ()), *parts]
        elif name in members:
            raise InvalidRequestError(f"`{name}` is given twice", next_step="give it once")
        elif name == "columns":
            members[name] = [*filter(None, text.split(","))] if not text.startswith("[") else _json(text)
        elif name == "at_least":
            members[name] = _json(text)
        else:
            members[name] = text
    try:
        return msgspec.convert(members, kind, strict=False)
    except _NOT_A_VALUE as error:
        _refuse(error)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except _NOT_A_VALUE as error:
        _refuse(error)


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
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
    _, components = msgspec.json.schema_components(
        [ScanRequest, CountRequest], ref_template="#/components/schemas/{name}"
    )
    return components


def operation(kind: type[Question], *, by_hand: bool) -> dict[str, Any]:
    """What the OpenAPI page says of an operation: its parameters and, unless asked by hand, its body."""
    path = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "description": "of the index",
    }
    if not by_hand:
        reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
        return {
            "parameters": [path],
            "requestBody": {"content": {"application/json": {"schema": reference}}},
        }
    members = schemas()[kind.__name__]["properties"]
    query = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": schema.get("description", ""),
        }
        for name, schema in members.items()
    ]
    return {"parameters": [path, *query]}
