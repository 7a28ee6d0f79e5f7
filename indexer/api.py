"""The HTTP face of an indexer node: scans for readers (CONTRACT §5), reads for other nodes, health and
metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from pydantic import ValidationError

from indexer.scan.local import read_local
from indexer.scan.peers import READ_PATH, Peers
from indexer.scan.reading import encoder, request_decoder
from indexer.scan.request import CountRequest, Inclusion, ScanRequest
from indexer.scan.service import ScanService
from indexer.view import NodeView
from keytide.clock import now_ms
from keytide.errors import CallerError, InvariantViolationError, KeytideError
from keytide.settings import Settings

_json = msgspec.json.Encoder()
_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ScanMetrics:
    """Counters of the scan endpoint (CONTRACT §7)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "keytide_scan_seconds",
            "Time of a scan request",
            ["index", "consistency"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.rows = Counter("keytide_scan_rows", "Rows given to readers", registry=registry)
        self.errors = Counter(
            "keytide_scan_errors", "Scans that ended in an error", ["type"], registry=registry
        )


def create_app(view: NodeView, settings: Settings, registry: CollectorRegistry) -> FastAPI:
    """The application of one node.

    Args:
        view: what scans may see of the node.
        registry: its metrics; the scan endpoint's own are added.
    """
    metrics = ScanMetrics(registry)
    peers = Peers(view)
    service: ScanService | None = None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        nonlocal service
        service = ScanService(view, peers, settings.scan)
        yield
        await peers.close()

    app = FastAPI(title="Keytide scan endpoint", version="1", lifespan=lifespan)
    _add_error_handlers(app, metrics)

    async def answer(
        name: str, consistency: str, work: Callable[[ScanService], Awaitable[dict[str, Any]]]
    ) -> Response:
        assert_started = service
        if assert_started is None:
            raise CallerError(
                "the node is starting", status=503, problem_type="starting", next_step="try again in a moment"
            )
        began = now_ms()
        result = await work(assert_started)
        metrics.seconds.labels(name, consistency).observe((now_ms() - began) / 1000)
        metrics.rows.inc(len(result.get("rows", ())))
        return Response(_json.encode(result), media_type="application/json")

    @app.post("/v1/indexes/{name}/scan", tags=["scan"], summary="Scan an index")
    async def scan(name: str, request: ScanRequest) -> Response:
        """Rows of one snapshot in key order, then document id."""
        return await answer(name, request.consistency, lambda s: s.scan(name, request))

    @app.get("/v1/indexes/{name}/scan", tags=["scan"], summary="Scan an index by hand")
    async def scan_by_hand(
        name: str,
        request: Request,
        equals: Annotated[
            str | None, Query(description='JSON array, or a plain string: ["Boston"] or Boston')
        ] = None,
        low: str | None = None,
        high: str | None = None,
        inclusion: Inclusion = "both",
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        page: str | None = None,
    ) -> Response:
        """The same with query parameters; `equals`, `low`, `high`, `at_least` and `columns` may be JSON."""
        body = {name_: _from_query(name_, text) for name_, text in request.query_params.items()}
        parsed = _parse(ScanRequest, body)
        return await answer(name, parsed.consistency, lambda s: s.scan(name, parsed))

    @app.post("/v1/indexes/{name}/count", tags=["scan"], summary="Count entries")
    async def count(name: str, request: CountRequest) -> Response:
        """How many entries a selection has, at one snapshot."""
        return await answer(name, request.consistency, lambda s: s.count(name, request))

    @app.get("/v1/indexes", tags=["scan"], summary="Indexes that can be scanned")
    async def indexes() -> list[dict[str, str]]:
        return [{"name": r.name, "keyspace": r.keyspace, "state": r.state} for r in view.catalog().indexes()]

    @app.post(READ_PATH, include_in_schema=False)
    async def read(request: Request) -> Response:
        try:
            wanted = request_decoder.decode(await request.body())
        except msgspec.MsgspecError as error:
            raise CallerError(f"not a read request: {error}", status=422) from error
        return Response(encoder.encode(read_local(view, wanted, now_ms())), media_type="application/msgpack")

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "node": view.node_id}

    @app.get("/readyz", tags=["health"])
    async def readyz(response: Response) -> dict[str, Any]:
        ready = view.catalog().cluster is not None
        response.status_code = 200 if ready else 503
        return {"ready": ready, "node": view.node_id}

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    return app


def _add_error_handlers(app: FastAPI, metrics: ScanMetrics) -> None:
    """All errors as RFC 9457 problem details."""

    @app.exception_handler(KeytideError)
    async def known(_: Request, error: KeytideError) -> Response:
        if isinstance(error, InvariantViolationError):
            raise error  # our bug: crash the request loudly, with the story in the log
        metrics.errors.labels(error.problem_type).inc()
        headers = {"Retry-After": "1"} if error.status == 503 else None
        return _problem(error.problem(), error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        metrics.errors.labels("invalid-request").inc()
        return _problem(_invalid(error.errors()), 422)


def _problem(document: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document, default=str), status, headers, "application/problem+json")


def _invalid(errors: Any) -> dict[str, Any]:
    places = [
        {"field": ".".join(str(part) for part in one["loc"] if part != "body"), "problem": one["msg"]}
        for one in errors
    ]
    return {
        "type": "invalid-request",
        "title": "Invalid request",
        "status": 422,
        "detail": "; ".join(f"{place['field'] or 'body'}: {place['problem']}" for place in places),
        "errors": places,
        "next_step": "see /docs for what a scan may ask",
    }


def _from_query(name: str, text: str) -> Any:
    """A query parameter's value: JSON where it is JSON; key parts given plainly become one-part keys."""
    try:
        value: Any = json.loads(text) if name not in ("page", "session", "prefix") else text
    except ValueError:
        value = text
    if name in ("equals", "low", "high") and not isinstance(value, list):
        return [value]
    return value


def _parse(kind: type[ScanRequest], body: dict[str, Any]) -> ScanRequest:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
