"""The routes: scans, counts, held snapshots; streams and tails; queries; aggregates."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Final

from fastapi import FastAPI, Request, Response

from indexer.scan.aggregate.request import AggregateRequest
from indexer.scan.gather import aggregates
from indexer.scan.gather.reads import WrittenAnswer
from indexer.scan.http.endpoint import COUNT, SCAN, Endpoint, Handler, add_reads, gone_of, index_name
from indexer.scan.http.openapi import INDEX_PARAMETER, INDEX_PATH, PROBLEMS, Examples, add_route
from indexer.scan.http.problems import problem_response
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import (
    CountRequest,
    HoldRequest,
    InvalidRequestError,
    ScanRequest,
    from_query,
    parse,
)
from indexer.scan.stream import arrow, ndjson
from indexer.scan.stream.sending import StreamResponse
from indexer.scan.stream.streams import OpenLimit, Streams
from indexer.scan.tail.events import TailResponse
from indexer.scan.tail.moments import TailRequest
from indexer.scan.tail.tails import Tails
from keytide.query.parse.expressions import FUNCTIONS

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
_AGGREGATES: Final[Examples] = {
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
_LATEST: Final = (
    "SELECT flight, arrival FROM flights WHERE status = 'arrived' AND destination = 'ORD' "
    "ORDER BY arrival DESC LIMIT 10"
)
_QUERIES: Final[Examples] = {
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
_FORMS: Final = (ndjson.MEDIA_TYPE, arrow.MEDIA_TYPE)
_TAILS: Final[Examples] = {"an airport's arrivals": {"equals": ["ORD"], "initial": True}}


def add_routes(app: FastAPI, endpoint: Endpoint) -> Handler:
    """Add all routes for readers; returns the handler of scans, for the fast way to it."""
    scan = add_reads(
        app,
        SCAN,
        ScanRequest,
        endpoint.scan,
        ("Scan an index", "Scan an index by hand"),
        _SCANS,
        names=("scan", "scan_by_hand"),
    )
    add_reads(
        app,
        COUNT,
        CountRequest,
        endpoint.count,
        ("Count entries", "Count entries by hand"),
        _COUNTS,
        names=("count", "count_by_hand"),
    )
    _add_holds(app, endpoint)
    streams = _StreamRoutes(endpoint)
    for media_type in _FORMS:
        endpoint.forms[media_type] = partial(streams.stream, media_type)
    add_route(
        app,
        f"{INDEX_PATH}/tail",
        streams.tail,
        TailRequest,
        "GET",
        "Follow the changes of an index",
        _TAILS,
    )
    queries = _QueryRoutes(endpoint)
    add_reads(
        app,
        "",
        QueryRequest,
        queries.answer,
        ("Answer a SELECT, or EXPLAIN it", "Query by hand"),
        _QUERIES,
        path="/v1/query",
    )

    async def aggregate(request: Request, parsed: AggregateRequest) -> Response:
        name = index_name(request)
        return await endpoint.long_answer(
            request,
            parsed,
            lambda service, gone: aggregates.answer(service.shared, name, parsed, gone),
        )

    add_reads(
        app,
        "/aggregate",
        AggregateRequest,
        aggregate,
        (f"{', '.join(FUNCTIONS.values()).capitalize()} by group", "Aggregate by hand"),
        _AGGREGATES,
    )
    return scan


def _add_holds(app: FastAPI, endpoint: Endpoint) -> None:
    async def hold(request: Request) -> Response:
        parsed = parse(HoldRequest, await request.body())
        name = index_name(request)
        return await endpoint.answer(endpoint.service.hold(name, parsed, gone_of(request)))

    async def give_back(request: Request) -> Response:
        at = request.query_params.get("at")
        if not at:
            raise InvalidRequestError(
                "at: the token of the held snapshot is missing", next_step="add ?at=TOKEN"
            )
        await endpoint.service.give_back(index_name(request), at, gone_of(request))
        return Response(status_code=204)

    path = f"{INDEX_PATH}/snapshots"
    add_route(app, path, hold, HoldRequest, "POST", "Hold a snapshot for many reads", _HOLDS)
    app.add_api_route(
        path,
        give_back,
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


class _QueryRoutes:
    """The handlers of queries."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @cached_property
    def _service(self) -> QueryService:
        return QueryService(self._endpoint.shared)

    async def answer(self, request: Request, parsed: QueryRequest) -> Response:
        service = self._service
        return await self._endpoint.long_answer(request, parsed, lambda _, gone: service.answer(parsed, gone))


class _StreamRoutes:
    """The handlers of streams and tails."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def stream(self, media_type: str, request: Request, name: str, parsed: ScanRequest) -> Response:
        """A scan in another form; the request is allowed and parsed."""
        streams = self._streams
        stream = await streams.open(name, parsed, media_type, gone_of(request))
        over = partial(self._over, streams.limit, name, "stream")
        return StreamResponse(stream, self._endpoint.settings.scan, self._refused, over)

    async def tail(self, request: Request) -> Response:
        parsed = from_query(TailRequest, request.query_params.multi_items())
        tails = self._tails
        name = index_name(request)
        resume = request.headers.get("last-event-id") or parsed.resume
        tail = await tails.open(name, parsed, resume, gone_of(request))
        over = partial(self._over, tails.limit, name, "tail")
        return TailResponse(tail, self._endpoint.settings.scan, self._refused, over)

    @cached_property
    def _streams(self) -> Streams:
        return Streams(self._endpoint.shared)

    @cached_property
    def _tails(self) -> Tails:
        return Tails(self._endpoint.shared)

    def _refused(self, error: Exception) -> Response:
        return problem_response(error, self._endpoint.metrics.failed, self._endpoint.on_bug)

    def _over(self, limit: OpenLimit, index: str, kind: str, rows: int, seconds: float) -> None:
        limit.closed()
        self._endpoint.metrics.answered(WrittenAnswer(b"", rows, index, kind), seconds)
