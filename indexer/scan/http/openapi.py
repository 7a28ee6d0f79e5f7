"""The OpenAPI page: routes, requests with examples, answers, the forms of a scan, problem documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse

from indexer.scan.http.answers import (
    AggregateAnswer,
    CountAnswer,
    HealthAnswer,
    HoldAnswer,
    PlanAnswer,
    Problem,
    QueryAnswer,
    ReadyAnswer,
    ScanAnswer,
    ScannableIndex,
)
from indexer.scan.request.request import CountRequest, HoldRequest, Moment, ScanRequest

PROBLEM_TYPE: Final = "application/problem+json"
INDEX_PATH: Final = "/v1/indexes/{name}"
_JSON: Final = "application/json"

PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": description, "content": {"application/problem+json": {}}}
    for status, description in (
        (401, "`not-allowed`: the cluster has API tokens, and the request carries none of them"),
        (403, "`not-allowed`: a token without the scope `read`; `foreign-origin`: a page of another origin"),
        (404, "`unknown-index`"),
        (
            409,
            "`history-changed`: a rollback took back what the session or the page saw, or what is demanded",
        ),
        (410, "`snapshot-gone`: begin again"),
        (413, "`request-too-large`"),
        (415, "`unsupported-media-type`: a body that is not `application/json`"),
        (421, "`scans-elsewhere`: this node is not for scans; `nodes` has the addresses of those that are"),
        (422, "`invalid-request`, `invalid-token`, `unknown-partition`, ...: the detail says what and where"),
        (503, "`index-not-ready` with the build and slices, `node-unavailable`, `too-many-leases`, ..."),
        (
            504,
            "`timestamp-not-reached`: the wait for what was demanded ran out; `count-timeout`, "
            "`aggregate-timeout`, `query-timeout`: there is more to read than the request has time for; "
            "`node-unavailable`: a node did not answer in time",
        ),
    )
}

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

_kinds: Final[set[type[Moment]]] = {ScanRequest, CountRequest, HoldRequest}
"""The types whose schemas the page shows; `add_route` adds others."""

_TEXT: Final = {"schema": {"type": "string"}}
_EVENT: Final = {
    "schema": {
        "type": "object",
        "description": "docs/stream.md has the events; `data` is JSON, `id` is where to go on from",
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "contentMediaType": _JSON},
            "id": {"type": "string"},
        },
        "required": ["event", "data"],
    }
}
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_OF_ACTION: Final[dict[str, tuple[type, ...]]] = {
    "/scan": (ScanAnswer,),
    "/count": (CountAnswer,),
    "/aggregate": (AggregateAnswer,),
    "/snapshots": (HoldAnswer,),
    "/query": (QueryAnswer, PlanAnswer),
    "/healthz": (HealthAnswer,),
    "/readyz": (ReadyAnswer,),
}
"""End of a path -> the types of what is answered."""
_REFERENCE: Final = "#/components/schemas/{name}"


def show_types(app: FastAPI) -> None:
    """Show the types of requests and answers on the page of an application."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        page = described()
        page.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        _show_answers(page)
        return page

    app.openapi = openapi  # type: ignore[method-assign]


def _show_answers(page: dict[str, Any]) -> None:
    """Add to an OpenAPI page what is answered.

    Args:
        page: with all routes, and the status of every problem that they may answer with.
    """
    kinds: list[type] = [Problem, ScannableIndex, *(one for kinds in _OF_ACTION.values() for one in kinds)]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    page.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for path, operations in page["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            for response in responses.values():
                if PROBLEM_TYPE in response.get("content", {}):
                    response["content"][PROBLEM_TYPE] = {"schema": _reference(Problem)}
            if "200" in responses:
                responses["200"]["content"] = _content(path)
            if path == "/readyz":
                not_yet = "it cannot answer: `reasons` say why"
                responses["503"] = {"description": not_yet, "content": _content(path)}


def _content(path: str) -> dict[str, Any]:
    """Media type -> what is shown of a good answer."""
    if path.endswith("/tail"):
        return {"text/event-stream": _EVENT}
    action = path[path.rindex("/") :]
    kinds = _OF_ACTION.get(action)
    if kinds is None:
        return {_JSON: {"schema": {"type": "array", "items": _reference(ScannableIndex)}}}
    schemas = [_reference(kind) for kind in kinds]
    content: dict[str, Any] = {_JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
    if action == "/scan":
        content |= {"application/x-ndjson": _TEXT, "application/vnd.apache.arrow.stream": _BYTES}
    return content


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def schemas() -> dict[str, Any]:
    """The request types as JSON schemas, by name."""
    return _components(sorted(_kinds, key=lambda kind: kind.__name__))


def _components(kinds: Sequence[type[Moment]]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return components


@cache
def _members(kind: type[Moment]) -> Mapping[str, Any]:
    """The members of a type as JSON schemas, by name."""
    members: Mapping[str, Any] = _components([kind])[kind.__name__]["properties"]
    return members


def add_route(
    app: FastAPI,
    path: str,
    handler: Callable[[Request], Awaitable[Response]],
    kind: type[Moment],
    method: str,
    summary: str,
    examples: Examples,
    name: str | None = None,
) -> None:
    """Add a route for one kind of request, and show it on the OpenAPI page.

    Args:
        kind: the type of the request, whose members are the body or, with GET, the parameters.
        method: POST or GET.
        examples: requests that work on `EXAMPLE_INDEX`, by what they show; by hand, the first one's plain
            members are shown.
        name: of the handler, where it is not its own.
    """
    shown = _operation(kind, by_hand=method == "GET", examples=examples)
    if "{name}" in path:
        shown["parameters"] = [INDEX_PARAMETER, *shown["parameters"]]
    app.add_api_route(
        path,
        handler,
        methods=[method],
        tags=["scan"],
        summary=summary,
        response_class=JSONResponse,
        response_model=None,
        responses=PROBLEMS,
        openapi_extra=shown,
        name=name,
    )


def _operation(kind: type[Moment], *, by_hand: bool, examples: Examples) -> dict[str, Any]:
    """What the OpenAPI page says of an operation: its parameters and, unless asked by hand, its body."""
    _kinds.add(kind)
    if not by_hand:
        content = {
            "schema": {"$ref": f"#/components/schemas/{kind.__name__}"},
            "examples": {name: {"summary": name, "value": value} for name, value in examples.items()},
        }
        return {
            "parameters": [],
            "requestBody": {"content": {"application/json": content}},
        }
    first = next(iter(examples.values()), {})
    query = []
    for name, schema in _members(kind).items():
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
    return {"parameters": query}


def _as_text(value: Any) -> str:
    """A member as it stands in a query string."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    return msgspec.json.encode(value).decode()
