"""The routes of aggregates."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request, Response

from indexer.scan.aggregate import aggregates as aggregate
from indexer.scan.aggregate.request import AggregateRequest
from indexer.scan.http.endpoint import Endpoint, add_route, body_of, index_name
from indexer.scan.request.parsing import Examples, from_query, parse

_EXAMPLES: Final[Examples] = {
    "flights per airport": {"functions": ["count"], "group_by": ["destination"], "limit": 10},
    "how late flights to one airport are": {
        "functions": [
            "count",
            {"function": "avg", "of": "arrival_delay", "as": "average"},
            {"function": "max", "of": "arrival_delay", "as": "worst"},
        ],
        "equals": ["ORD"],
    },
    "by where they come from": {
        "functions": ["count", "avg(arrival_delay)", "count(distinct flight)"],
        "group_by": ["origin"],
        "equals": ["ORD"],
    },
}


class _AggregateRoutes:
    """The handlers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def posted(self, request: Request) -> Response:
        return await self._answer(request, parse(AggregateRequest, await body_of(request)))

    async def by_hand(self, request: Request) -> Response:
        return await self._answer(request, from_query(AggregateRequest, request.query_params.multi_items()))

    async def _answer(self, request: Request, parsed: AggregateRequest) -> Response:
        return await self._endpoint.long_answer(
            request,
            parsed,
            lambda service, gone: aggregate.answer(service.shared, index_name(request), parsed, gone),
        )


def add_routes(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""
    routes = _AggregateRoutes(endpoint)
    add_route(
        app,
        "/aggregate",
        routes.posted,
        AggregateRequest,
        "POST",
        "Count, sum, min, max, avg by group",
        _EXAMPLES,
    )
    add_route(app, "/aggregate", routes.by_hand, AggregateRequest, "GET", "Aggregate by hand", _EXAMPLES)
