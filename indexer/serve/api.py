"""The HTTP face of an indexer node: scans for readers (docs/reference), reads for other nodes, health and
metrics.

Theory of operation
===================
`RequestGate` (`keytide.serving.gate`) decides who may ask what, and reads bodies. FastAPI has the routes and
shows them at /docs; the two frequent paths go past it (`indexer.scan.http.endpoint.FastWay`). Bodies are
decoded by msgspec into the types of `indexer.scan.request.request`, whose schemas the OpenAPI page shows. All
errors are RFC 9457 problem details (`indexer.scan.http.problems`).
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.registry import Collector
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from indexer.copying.messages import COPY_PATH
from indexer.digests.answering import answer as answer_verifier
from indexer.scan.gather.peers import LEASE_PATH, READ_PATH
from indexer.scan.http.endpoint import (
    SCAN,
    Endpoint,
    FastWay,
    Handler,
    ScanMetrics,
    gone_of,
    message_of,
    needs,
)
from indexer.scan.http.openapi import PROBLEMS, show_types
from indexer.scan.http.problems import OnBug, add_problem_handlers
from indexer.scan.http.routes import add_routes
from indexer.scan.peer.messages import encoder, lease_decoder, read_decoder
from indexer.serve.copies import CopyEndpoint
from indexer.serve.index_lists import page
from indexer.serve.roles import ReadersElsewhere
from indexer.view import NodeView
from keytide.http.node_protocol import MESSAGE
from keytide.model.health import LEVELS, Verdict, verdict
from keytide.model.protocol import SPOKEN
from keytide.model.roles import ROLES, Role
from keytide.process.clock import now_ms
from keytide.serving.docs import add_docs
from keytide.serving.gate import GatedApplication, RequestGate
from keytide.settings.settings import Settings
from keytide.wire import digests
from keytide.wire import index_lists as lists


def create_app(
    view: NodeView,
    settings: Settings,
    registry: CollectorRegistry,
    on_bug: OnBug = lambda _: None,
    health: Callable[[], Verdict] = lambda: verdict(()),
    roles: Sequence[Role] = ROLES,
    shown: Collector | None = None,
) -> FastAPI:
    """The application of one node.

    Args:
        view: what scans may see of the node.
        registry: its metrics; the scan endpoint's own are added.
        on_bug: called once a request has found an invariant broken, before it is answered; the node should
            end when it is.
        health: how the node is, as it sees itself.
        roles: what the node is for.
        shown: the metrics as their page has them; those of the registry if it is not given.
    """
    endpoint = Endpoint(view, settings, ScanMetrics(registry), on_bug)
    ways: dict[str, Handler] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        endpoint.start()
        yield
        await endpoint.close()

    app = GatedApplication(
        title="Keytide scan endpoint", version="1", lifespan=lifespan, docs_url=None, redoc_url=None
    )
    add_docs(app)
    add_problem_handlers(app, endpoint.metrics.failed, on_bug)
    way: ASGIApp = FastWay(app.framework, endpoint, ways)
    if "scan" not in roles:
        way = ReadersElsewhere(way, view, endpoint.metrics.failed)
    gate = RequestGate(way, settings, needs, lambda: view.catalog().secret, endpoint.metrics.failed)
    app.gate = ServerErrorMiddleware(gate, app.exception_handlers[Exception])
    ways[SCAN] = add_routes(app, endpoint)
    ways[READ_PATH] = _add_nodes(app, endpoint)
    show_types(app)

    @app.get(
        "/v1/indexes",
        tags=["scan"],
        summary="Indexes that can be scanned",
        responses={status: PROBLEMS[status] for status in (401, 403, 421)},
    )
    async def indexes() -> list[dict[str, str | int]]:
        return [
            {
                "name": record.name,
                "keyspace": record.keyspace,
                "state": record.state,
                "statement": record.definition.statement,
                "slices": record.slices,
            }
            for record in view.catalog().listed()
        ]

    @app.get("/healthz", tags=["health"], summary="Whether the process lives")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "node": view.node_id}

    @app.get("/readyz", tags=["health"], summary="Whether the node can answer")
    async def readyz(response: Response) -> dict[str, Any]:
        own = health()
        ready = view.catalog().cluster is not None and own.status != "failing"
        response.status_code = 200 if ready else 503
        return {
            "ready": ready,
            "node": view.node_id,
            "roles": list(roles),
            "protocol": SPOKEN,
            **own.as_json(),
        }

    status = Gauge(
        "keytide_health_status",
        "How the node is, as it sees itself: 0 ok, 1 degraded, 2 failing; /readyz says why",
        ["subject_kind"],
        registry=registry,
    ).labels("node")

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        status.set(LEVELS[health().status])
        return Response(
            generate_latest(cast(CollectorRegistry, shown or registry)), media_type=CONTENT_TYPE_LATEST
        )

    return app


def _add_nodes(app: FastAPI, endpoint: Endpoint) -> Handler:
    """The routes for other nodes; returns the handler of reads."""
    view, threads = endpoint.view, endpoint.local.threads
    copies = CopyEndpoint(view)
    endpoint.closing.append(copies.close)

    async def read(request: Request) -> Response:
        wanted = await message_of(request, read_decoder, view)
        reply = await endpoint.local.read(wanted.request(), gone_of(request))
        endpoint.metrics.read(wanted.number, reply.slices)
        return _message(reply)

    async def lease(request: Request) -> Response:
        return _message(endpoint.local.lease(await message_of(request, lease_decoder, view)))

    async def verify(request: Request) -> Response:
        ask = await message_of(request, digests.ask_decoder, view)
        work = functools.partial(answer_verifier, view, ask, now_ms())
        turn = threads.turn(work, None, first=isinstance(ask, digests.PinAsk))
        return _message(await turn.result(gone_of(request)))

    async def list_page(request: Request) -> Response:
        ask = await message_of(request, lists.ask_decoder, view)
        return _message(await threads.run(page, view, ask))

    async def copy(request: Request) -> Response:
        return Response(await copies.answer(await request.body()), media_type=MESSAGE)

    routes = {
        READ_PATH: read,
        LEASE_PATH: lease,
        digests.VERIFY_PATH: verify,
        lists.LISTS_PATH: list_page,
        COPY_PATH: copy,
    }
    for path, handler in routes.items():
        app.add_api_route(path, handler, methods=["POST"], include_in_schema=False)
    return read


def _message(answer: msgspec.Struct) -> Response:
    return Response(encoder.encode(answer), media_type=MESSAGE)
