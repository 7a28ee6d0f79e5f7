"""The routes of streams and tails: the forms of a scan beside pages of JSON, and `GET .../tail`."""

from __future__ import annotations

from functools import partial
from typing import Final

from fastapi import FastAPI, Request, Response

from indexer.scan.gather.answer import WrittenAnswer
from indexer.scan.gather.reads import Reads
from indexer.scan.http.endpoint import Endpoint, add_route, gone_of, index_name
from indexer.scan.http.problems import problem_response
from indexer.scan.request.parsing import Examples, from_query
from indexer.scan.request.request import ScanRequest
from indexer.scan.stream import arrow, ndjson
from indexer.scan.stream.sending import StreamResponse
from indexer.scan.stream.streams import Streams
from indexer.scan.tail import events as tail_http
from indexer.scan.tail.request import TailRequest
from indexer.scan.tail.tails import Tails

FORMS: Final = (ndjson.MEDIA_TYPE, arrow.MEDIA_TYPE)
_TAILS: Final[Examples] = {"an airport's arrivals": {"equals": ["ORD"], "initial": True}}


class _StreamRoutes:
    """The handlers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._running: tuple[Streams, Tails] | None = None

    async def stream(self, media_type: str, request: Request, name: str, parsed: ScanRequest) -> Response:
        """A scan in another form; the request is allowed and parsed."""
        streams, _ = self._of(self._endpoint.shared)
        stream = await streams.open(name, parsed, media_type, gone_of(request))

        def over(rows: int, seconds: float) -> None:
            streams.closed()
            self._count(name, "stream", rows, seconds)

        settings = self._endpoint.settings.scan
        return StreamResponse(stream, settings.stream_stall_s, self._refused, over)

    async def tail(self, request: Request) -> Response:
        parsed = from_query(TailRequest, request.query_params.multi_items())
        _, tails = self._of(self._endpoint.shared)
        name = index_name(request)
        resume = request.headers.get("last-event-id") or parsed.resume
        tail = await tails.open(name, parsed, resume, gone_of(request))

        def over(rows: int, seconds: float) -> None:
            tails.closed()
            self._count(name, "tail", rows, seconds)

        return tail_http.TailResponse(tail, self._endpoint.settings.scan, self._refused, over)

    def _of(self, shared: Reads) -> tuple[Streams, Tails]:
        """What runs on the node; made with the first request."""
        if self._running is None:
            self._running = Streams(shared), Tails(shared)
        return self._running

    def _refused(self, error: Exception) -> Response:
        return problem_response(error, self._endpoint.metrics, self._endpoint.on_bug)

    def _count(self, index: str, kind: str, rows: int, seconds: float) -> None:
        self._endpoint.metrics.answered(WrittenAnswer(b"", rows, index, kind), seconds)


def add_routes(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the forms and the route."""
    routes = _StreamRoutes(endpoint)
    for media_type in FORMS:
        endpoint.forms[media_type] = partial(routes.stream, media_type)
    add_route(app, "/tail", routes.tail, TailRequest, "GET", "Follow the changes of an index", _TAILS)
