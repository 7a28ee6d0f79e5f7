"""The routes of scans, counts and held snapshots."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request, Response

from indexer.scan.http.endpoint import (
    INDEX_PATH,
    PROBLEMS,
    Endpoint,
    Handler,
    add_route,
    body_of,
    gone_of,
    index_name,
)
from indexer.scan.local.extent import INLINE_ROWS
from indexer.scan.request.parsing import INDEX_PARAMETER, Examples, InvalidRequestError, from_query, parse
from indexer.scan.request.request import CountRequest, HoldRequest, Moment, ScanRequest

_SCANS: Final[Examples] = {
    "the latest arrivals at an airport": {"equals": ["ORD"], "limit": 10},
    "a range of keys": {"low": ["A"], "high": ["C"], "inclusion": "low", "limit": 10},
    "strings that begin so": {"prefix": "S", "limit": 10},
    "several stretches": {
        "spans": [{"equals": ["BOS"]}, {"prefix": "L"}],
        "columns": ["key", "id"],
        "limit": 10,
    },
    "keys, each once": {"equals": ["ORD"], "distinct": True, "limit": 10},
    "the second ten": {"limit": 10, "offset": 10},
    "from the other end": {"reverse": True, "limit": 10},
    "with how the snapshot was chosen": {"limit": 1, "explain": True},
    "each slice's newest state": {"equals": ["ORD"], "limit": 10, "consistency": "tip"},
}
_COUNTS: Final[Examples] = {
    "flights to an airport": {"equals": ["ORD"]},
    "keys, each once": {"prefix": "B", "distinct": True},
    "everything": {},
}
_HOLDS: Final[Examples] = {"for a minute after its last use": {"lease_s": 60}}


class _ScanRoutes:
    """The handlers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def scan(self, request: Request) -> Response:
        return await self._scan(request, parse(ScanRequest, await body_of(request)))

    async def scan_by_hand(self, request: Request) -> Response:
        return await self._scan(request, from_query(ScanRequest, request.query_params.multi_items()))

    async def _scan(self, request: Request, parsed: ScanRequest) -> Response:
        form = self._endpoint.form(request)
        if form is not None:
            return await form(request, index_name(request), parsed)
        if parsed.distinct or parsed.offset or (parsed.limit or 0) > INLINE_ROWS:
            return await self._endpoint.long_answer(
                request, parsed, lambda service, gone: service.scan(index_name(request), parsed, gone)
            )
        return await self._endpoint.answer(
            lambda service: service.scan(index_name(request), parsed, gone_of(request))
        )

    async def count(self, request: Request) -> Response:
        return await self._count(request, parse(CountRequest, await body_of(request)))

    async def count_by_hand(self, request: Request) -> Response:
        return await self._count(request, from_query(CountRequest, request.query_params.multi_items()))

    async def _count(self, request: Request, parsed: CountRequest) -> Response:
        return await self._endpoint.long_answer(
            request, parsed, lambda service, gone: service.count(index_name(request), parsed, gone)
        )

    async def hold(self, request: Request) -> Response:
        parsed = parse(HoldRequest, await body_of(request))
        return await self._endpoint.answer(
            lambda service: service.hold(index_name(request), parsed, gone_of(request))
        )

    async def give_back(self, request: Request) -> Response:
        at = request.query_params.get("at")
        if not at:
            raise InvalidRequestError(
                "at: the token of the held snapshot is missing", next_step="add ?at=TOKEN"
            )
        await self._endpoint.service.give_back(index_name(request), at, gone_of(request))
        return Response(status_code=204)


def add_routes(app: FastAPI, endpoint: Endpoint) -> Handler:
    """Add the routes; returns the handler of scans, for the fast way to it."""
    routes = _ScanRoutes(endpoint)
    kinds: list[tuple[str, Handler, type[Moment], str, str, Examples]] = [
        ("/scan", routes.scan, ScanRequest, "POST", "Scan an index", _SCANS),
        ("/scan", routes.scan_by_hand, ScanRequest, "GET", "Scan an index by hand", _SCANS),
        ("/count", routes.count, CountRequest, "POST", "Count entries", _COUNTS),
        ("/count", routes.count_by_hand, CountRequest, "GET", "Count entries by hand", _COUNTS),
        ("/snapshots", routes.hold, HoldRequest, "POST", "Hold a snapshot for many reads", _HOLDS),
    ]
    for action, handler, kind, method, summary, examples in kinds:
        add_route(app, action, handler, kind, method, summary, examples)
    app.add_api_route(
        f"{INDEX_PATH}/snapshots",
        routes.give_back,
        methods=["DELETE"],
        tags=["scan"],
        summary="Give a held snapshot back",
        status_code=204,
        response_class=Response,
        response_model=None,
        responses=PROBLEMS,
        openapi_extra={
            "parameters": [
                INDEX_PARAMETER,
                {
                    "name": "at",
                    "in": "query",
                    "required": True,
                    "schema": {"type": "string"},
                    "description": "its token; one that has run out is given back already",
                },
            ]
        },
    )
    return routes.scan
