"""The HTTP face of an indexer node: scans for readers (CONTRACT §5), reads for other nodes, health and
metrics.

Theory of operation
===================
FastAPI has the routes and shows them at /docs. A scan of 100 rows takes some tens of microseconds, less than
FastAPI's way to a handler, so `FastWay` (an ASGI middleware) takes the two frequent paths, scans and reads by
other nodes, straight to the very same handlers: measured, 0.05 ms less of 0.17. Bodies are decoded by msgspec
into the types of `indexer.scan.request`, whose schemas the OpenAPI page shows. All errors are RFC 9457
problem details (`indexer.scan.problems`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from indexer.scan.answer import Answer
from indexer.scan.asking import from_query, operation, parse, schemas
from indexer.scan.local import LocalReader
from indexer.scan.metrics import ScanMetrics
from indexer.scan.news import Gone
from indexer.scan.peers import LEASE_PATH, READ_PATH, Peers
from indexer.scan.problems import OnBug, add_problem_handlers, problem_response
from indexer.scan.reading import MalformedRequestError, encoder, lease_decoder, read_decoder
from indexer.scan.request import CountRequest, Question, ScanRequest
from indexer.scan.service import ScanService
from indexer.view import NodeView
from keytide.errors import CallerError, NotServedYetError, RetryableError
from keytide.http_security import Guard, reading_token
from keytide.settings import Settings

_BEFORE_NAME: Final = "/v1/indexes/"
_SCAN: Final = "/scan"
_COUNT: Final = "/count"

MAX_BODY_BYTES: Final = 1 << 20
"""Largest request body: far above any key, far below what would hurt."""

MAX_MESSAGE_BYTES: Final = 64 << 20
"""Largest request of another node: a place to go on from for each of a thousand slices, with long keys."""

_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": description, "content": {"application/problem+json": {}}}
    for status, description in (
        (401, "`not-allowed`: the cluster has API tokens, and the request carries none of them"),
        (403, "`not-allowed`: a token without the scope `read`"),
        (404, "`unknown-index`"),
        (
            409,
            "`history-changed`: a rollback took back what the session or the page saw, or what is demanded",
        ),
        (410, "`snapshot-gone`: begin the scan again"),
        (422, "`invalid-request`, `invalid-token`, `unknown-partition`, ...: the detail says what and where"),
        (503, "`index-not-ready` with the build and slices, `node-unavailable`, `too-many-leases`, ..."),
        (504, "`timestamp-not-reached`: the wait for what was demanded ran out"),
    )
}

_TO_COME: Final = (
    ("POST", "/v1/indexes/{name}/aggregate", "count, or fetch the rows and aggregate them"),
    ("GET", "/v1/indexes/{name}/tail", "scan again with the session of the last answer"),
    ("POST", "/v1/query", "scan an index: POST /v1/indexes/{name}/scan"),
)
"""What the contract has and a later release brings, and what to do until then."""

Handler = Callable[[Request], Awaitable[Response]]
RequestT = TypeVar("RequestT")


class _Endpoint:
    """The handlers, and what they share."""

    def __init__(
        self, view: NodeView, settings: Settings, registry: CollectorRegistry, on_bug: OnBug
    ) -> None:
        self.on_bug = on_bug
        self._view = view
        self._settings = settings
        self._local = LocalReader(view, settings.scan.max_leases)
        self._guard = Guard(settings.security)
        self._peers = Peers(view, self._local, reading_token(settings.security))
        self._service: ScanService | None = None
        self.metrics = ScanMetrics(registry)

    def start(self) -> None:
        """On the event loop, before the first request."""
        self._service = ScanService(self._view, self._local, self._peers, self._settings.scan)

    async def close(self) -> None:
        await self._peers.close()
        self._local.close()

    async def allow(self, request: Request) -> None:
        """Every handler's first step: FastAPI's dependencies are not on the fast way.

        Raises:
            NotAllowedError: the request may not read.
        """
        headers = request.headers
        self._guard.require(headers.get("authorization", ""), "read", headers.get("host", ""))

    async def scan(self, request: Request) -> Response:
        await self.allow(request)
        parsed = parse(ScanRequest, await _body(request))
        return await self._answer(request, lambda s: s.scan(_name(request), parsed, _gone(request)))

    async def scan_by_hand(self, request: Request) -> Response:
        await self.allow(request)
        parsed = from_query(ScanRequest, request.query_params.multi_items())
        return await self._answer(request, lambda s: s.scan(_name(request), parsed, _gone(request)))

    async def count(self, request: Request) -> Response:
        await self.allow(request)
        parsed = parse(CountRequest, await _body(request))
        return await self._answer(request, lambda s: s.count(_name(request), parsed, _gone(request)))

    async def count_by_hand(self, request: Request) -> Response:
        await self.allow(request)
        parsed = from_query(CountRequest, request.query_params.multi_items())
        return await self._answer(request, lambda s: s.count(_name(request), parsed, _gone(request)))

    async def read(self, request: Request) -> Response:
        await self.allow(request)
        wanted = await _message(request, read_decoder)
        return Response(encoder.encode(await self._local.read(wanted)), media_type="application/msgpack")

    async def lease(self, request: Request) -> Response:
        await self.allow(request)
        wanted = await _message(request, lease_decoder)
        return Response(encoder.encode(self._local.lease(wanted)), media_type="application/msgpack")

    async def _answer(self, request: Request, work: Callable[[ScanService], Awaitable[Answer]]) -> Response:
        if self._service is None:
            raise RetryableError(
                "the node is starting", problem_type="starting", next_step="try again in a moment"
            )
        began = perf_counter()
        answer = await work(self._service)
        self.metrics.answered(answer, perf_counter() - began)
        return Response(answer.body, media_type="application/json")


class FastWay:
    """Takes the paths that are asked most past the framework, to the same handlers.

    Args:
        app: everything else.
        endpoint: the handlers.
    """

    def __init__(self, app: ASGIApp, endpoint: _Endpoint) -> None:
        self._app = app
        self._metrics = endpoint.metrics
        self._on_bug = endpoint.on_bug
        self._scan: Handler = endpoint.scan
        self._read: Handler = endpoint.read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler: Handler | None = None
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"]
            if path == READ_PATH:
                handler = self._read
            elif path.startswith(_BEFORE_NAME) and path.endswith(_SCAN):
                name = path[len(_BEFORE_NAME) : -len(_SCAN)]
                if name and "/" not in name:
                    scope["path_params"] = {"name": name}
                    handler = self._scan
        if handler is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except Exception as error:  # noqa: BLE001 - every error is answered, and our bugs are logged
            response = problem_response(error, self._metrics, self._on_bug)
        await response(scope, receive, send)


def create_app(
    view: NodeView,
    settings: Settings,
    registry: CollectorRegistry,
    on_bug: OnBug = lambda _: None,
) -> FastAPI:
    """The application of one node.

    Args:
        view: what scans may see of the node.
        registry: its metrics; the scan endpoint's own are added.
        on_bug: called once a request has found an invariant broken, before it is answered; the node should
            end when it is.
    """
    endpoint = _Endpoint(view, settings, registry, on_bug)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        endpoint.start()
        yield
        await endpoint.close()

    app = FastAPI(title="Keytide scan endpoint", version="1", lifespan=lifespan)
    add_problem_handlers(app, endpoint.metrics, on_bug)
    app.add_middleware(FastWay, endpoint=endpoint)
    _add_scans(app, endpoint)

    @app.get(
        "/v1/indexes",
        tags=["scan"],
        summary="Indexes that can be scanned",
        dependencies=[Depends(endpoint.allow)],
    )
    async def indexes() -> list[dict[str, str]]:
        return [{"name": r.name, "keyspace": r.keyspace, "state": r.state} for r in view.catalog().indexes()]

    @app.get("/healthz", tags=["health"], summary="Whether the process lives")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "node": view.node_id}

    @app.get("/readyz", tags=["health"], summary="Whether the node can answer")
    async def readyz(response: Response) -> dict[str, Any]:
        ready = view.catalog().cluster is not None
        response.status_code = 200 if ready else 503
        return {"ready": ready, "node": view.node_id}

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_scans(app: FastAPI, endpoint: _Endpoint) -> None:
    """The routes of scans and of other nodes' reads, and their schemas."""
    app.add_api_route(READ_PATH, endpoint.read, methods=["POST"], include_in_schema=False)
    app.add_api_route(LEASE_PATH, endpoint.lease, methods=["POST"], include_in_schema=False)
    routes: list[tuple[str, Handler, type[Question], str, str]] = [
        (_SCAN, endpoint.scan, ScanRequest, "POST", "Scan an index"),
        (_SCAN, endpoint.scan_by_hand, ScanRequest, "GET", "Scan an index by hand"),
        (_COUNT, endpoint.count, CountRequest, "POST", "Count entries"),
        (_COUNT, endpoint.count_by_hand, CountRequest, "GET", "Count entries by hand"),
    ]
    for action, handler, kind, method, summary in routes:
        app.add_api_route(
            f"{_BEFORE_NAME}{{name}}{action}",
            handler,
            methods=[method],
            tags=["scan"],
            summary=summary,
            response_class=JSONResponse,
            response_model=None,
            responses=_PROBLEMS,
            openapi_extra=operation(kind, by_hand=method == "GET"),
        )
    for method, path, step in _TO_COME:
        app.add_api_route(path, _refusal(endpoint, path, step), methods=[method], tags=["not there yet"])
    described = app.openapi

    def openapi() -> dict[str, Any]:
        page = described()
        page.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        return page

    app.openapi = openapi  # type: ignore[method-assign]


def _refusal(endpoint: _Endpoint, path: str, next_step: str) -> Handler:
    async def refuse(request: Request) -> Response:
        await endpoint.allow(request)
        raise NotServedYetError(f"{path} is not there yet", next_step=next_step)

    return refuse


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _gone(request: Request) -> Gone:
    """Returns when the reader of a request, whose body was read, has gone away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def _body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The request's body.

    Raises:
        CallerError (413): it is too large.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise CallerError(
                f"the request is larger than {limit} bytes",
                status=413,
                problem_type="request-too-large",
                next_step="no key is that long: shorten the bounds",
            )
        chunks.append(chunk)
    return b"".join(chunks)


async def _message(request: Request, decoder: msgspec.msgpack.Decoder[RequestT]) -> RequestT:
    try:
        return decoder.decode(await _body(request, MAX_MESSAGE_BYTES))
    except msgspec.MsgspecError as error:
        raise MalformedRequestError(f"not a request of another node: {error}") from error
