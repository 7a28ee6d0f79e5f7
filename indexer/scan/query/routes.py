"""The routes of queries."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse

from indexer.scan.http.endpoint import PROBLEMS, Endpoint, body_of
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.parsing import Examples, from_query, operation, parse

PATH: Final = "/v1/query"

_LATEST: Final = (
    "SELECT flight, arrival FROM flights WHERE status = 'arrived' AND destination = 'ORD' "
    "ORDER BY arrival DESC LIMIT 10"
)
_EXAMPLES: Final[Examples] = {
    "the latest arrivals at an airport": {"sql": _LATEST},
    "how many flights have arrived where": {
        "sql": "SELECT destination, COUNT(*) AS flights, AVG(arrival_delay) FROM flights "
        "WHERE status = 'arrived' AND destination IN ('ORD', 'BOS') GROUP BY destination"
    },
    "flights that touch an airport": {
        "sql": "SELECT id, status FROM flights WHERE 'ORD' = ANY(airports) LIMIT 10"
    },
    "how a query is answered": {"sql": f"EXPLAIN {_LATEST}"},
}


class _QueryRoutes:
    """The handlers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._service: QueryService | None = None

    async def posted(self, request: Request) -> Response:
        return await self._answer(request, parse(QueryRequest, await body_of(request)))

    async def by_hand(self, request: Request) -> Response:
        return await self._answer(request, from_query(QueryRequest, request.query_params.multi_items()))

    async def _answer(self, request: Request, parsed: QueryRequest) -> Response:
        if self._service is None:
            self._service = QueryService(self._endpoint.shared)
        service = self._service
        return await self._endpoint.long_answer(request, parsed, lambda _, gone: service.answer(parsed, gone))


def add_routes(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""
    routes = _QueryRoutes(endpoint)
    for method, handler, summary in (
        ("POST", routes.posted, "Answer a SELECT, or EXPLAIN it"),
        ("GET", routes.by_hand, "Query by hand"),
    ):
        shown: dict[str, Any] = operation(QueryRequest, by_hand=method == "GET", examples=_EXAMPLES)
        shown["parameters"] = [one for one in shown["parameters"] if one["in"] != "path"]
        app.add_api_route(
            PATH,
            handler,
            methods=[method],
            tags=["scan"],
            summary=summary,
            response_class=JSONResponse,
            response_model=None,
            responses=PROBLEMS,
            openapi_extra=shown,
        )
