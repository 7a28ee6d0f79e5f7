"""The admin API (docs/reference) and the web page.

Every handler looks at the leader, or changes it, through the service's control loop; nothing here keeps
state. A change is answered when what it wrote is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Query, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from coordinator.http import metrics
from coordinator.http.forwarding import PassOn
from coordinator.http.job_routes import add_jobs
from coordinator.http.leader_access import LeaderAccess
from coordinator.http.list_routes import add_lists, in_half
from coordinator.http.move_routes import add_moves
from coordinator.http.problems import add_error_handlers
from coordinator.kafka.field_notices import notice
from coordinator.leader import Leader
from coordinator.process.service import CoordinatorService
from coordinator.statements.altering import named
from coordinator.statements.commands import CommandResult
from coordinator.statements.origin_body import OriginBody
from coordinator.statements.origin_reach import reach_of
from coordinator.views import health, views
from keytide.definition.errors import QueryElsewhereError
from keytide.definition.statement import Alteration, CreateIndex, SplitPartition, parse_statement
from keytide.http.nodes import NodeClient
from keytide.model.health import Verdict, single
from keytide.process.clock import now_ms
from keytide.serving.docs import add_docs
from keytide.serving.gate import Need, RequestGate

PAGE = Path(__file__).parent / "page"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'self'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
LOOP_LIMIT_MS = 2_000
MAX_RATE: Final = 100_000_000
"""Documents per second: more than any build reads, and far from what arithmetic on it overflows."""


class StatementBody(BaseModel):
    """A statement to run."""

    statement: str = Field(
        description="CREATE INDEX, ALTER INDEX, DROP INDEX or BUILD INDEX", examples=["DROP INDEX by_city"]
    )


class BuildBody(BaseModel):
    """What to build."""

    indexes: list[str] = Field(description="names of deferred or failed indexes of one keyspace")
    rate_limit: int | None = Field(None, ge=1, le=MAX_RATE, description="documents per second")
    origin: OriginBody | None = Field(None, description="a table to begin with, not the log's beginning")
    verify: bool | Literal["full"] | None = Field(
        None,
        description="READY only once it is known that slices store what the source says: by sums, or, with "
        "`full`, by a second read of the source; as the setting build.verify says by default",
    )


class RateBody(BaseModel):
    """A new limit of a build's rate."""

    rate_limit: int | None = Field(None, ge=1, le=MAX_RATE, description="documents per second; null for none")


def create_app(service: CoordinatorService, url: str, started: Callable[[], None] = lambda: None) -> FastAPI:
    """The application.

    Args:
        url: where it is reached.
        started: called when it begins to serve.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        started()
        yield
        await nodes.close()

    nodes = NodeClient(service.settings.security.tls_authority)
    app = FastAPI(title="Keytide coordinator", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    add_docs(app)
    add_error_handlers(app)
    app.add_middleware(PassOn, service=service)
    app.add_middleware(RequestGate, settings=service.settings, needs=_needs)
    access = LeaderAccess(service)
    _add_statements(app, access, nodes)
    _add_indexes(app, access)
    _add_builds(app, access)
    add_jobs(app, access, _PAGE_HEADERS)
    add_lists(app, access, nodes)
    add_moves(app, access)
    _add_cluster(app, access, url)
    _add_health(app, access)
    return app


def _needs(method: str, path: str) -> Need:
    """What opens a path of the coordinator."""
    if not path.startswith("/v1/"):
        return None
    return "read" if method in ("GET", "HEAD") else "admin"


def _described(outcome: CommandResult) -> dict[str, Any]:
    return {
        "message": outcome.message,
        "index": outcome.index.name if outcome.index else None,
        "build": outcome.build.id if outcome.build else None,
    }


def _add_statements(app: FastAPI, access: LeaderAccess, nodes: NodeClient) -> None:
    @app.post("/v1/statements", tags=["statements"], summary="Run a statement")
    async def statements(body: StatementBody) -> dict[str, Any]:
        """CREATE, ALTER, DROP and BUILD INDEX. Answers when the change is in the dictionary; a build goes
        on after that."""
        try:
            statement = await asyncio.to_thread(parse_statement, body.statement)  # (it may have shapes)
        except QueryElsewhereError as query:
            known = await access.look(views.nodes)
            query.extra["nodes"] = [
                node["url"] for node in known if node["live"] and node["url"] and "scan" in node["roles"]
            ]
            raise
        keyspace = source = None
        if isinstance(statement, CreateIndex):
            keyspace = statement.definition.keyspace
        elif isinstance(statement, Alteration) and statement.asks_for_layout:
            if isinstance(statement, SplitPartition) and not statement.at:
                statement = await in_half(access, nodes, statement)
            keyspace = await access.look(lambda leader, _: named(leader.dictionary, statement.name).keyspace)
        if keyspace is not None:
            source = await access.of_kafka(access.service.sample, keyspace)
        outcome = await access.change(lambda commands, now: commands.execute(statement, source, now))
        said = ""
        if isinstance(statement, CreateIndex) and source is not None:
            said = await asyncio.to_thread(notice, access.service.settings, statement.definition, source)
        return {**_described(outcome), "notice": said or None}


def _add_indexes(app: FastAPI, access: LeaderAccess) -> None:
    @app.get("/v1/indexes", tags=["indexes"], summary="All indexes")
    async def indexes() -> Any:
        return await access.look(
            lambda leader, now: [views.index(leader, one, now) for one in leader.dictionary.catalog.listed()]
        )

    @app.get("/v1/indexes/{name}", tags=["indexes"], summary="One index")
    async def index(name: str) -> Any:
        """With its slices, each copy, and what holds the queue of each (`queue_held_by`)."""

        def show(leader: Leader, now: int) -> views.Document:
            record = leader.dictionary.index_named(name)
            document = views.index(leader, record, now)
            return {**document, "slice_states": views.slices(leader, record, now)}

        return await access.look(show)

    @app.delete(
        "/v1/indexes/{name}",
        tags=["indexes"],
        status_code=202,
        summary="Drop an index",
    )
    async def drop(name: str) -> Any:
        outcome = await access.change(lambda commands, now: commands.drop(name, now))
        return _described(outcome)


def _shown(build: str) -> Callable[[Leader, int], views.Document]:
    return lambda leader, now: views.build(leader, leader.builds.registry.get(build), now)


def _add_builds(app: FastAPI, access: LeaderAccess) -> None:
    @app.post("/v1/builds", tags=["builds"], status_code=202, summary="Start a build")
    async def start(body: BuildBody) -> Any:
        """One read of the source builds all of them."""
        rate_limit, origin, source = body.rate_limit or 0, None, None
        if body.origin is not None and body.indexes:
            settings = access.service.settings
            allowed = settings.build.origin_paths, settings.build.origin_urls
            origin, first = body.origin.table(reach_of(settings.data_dir, *allowed)), body.indexes[0]
            keyspace = await access.look(lambda leader, _: leader.dictionary.index_named(first).keyspace)
            source = await access.of_kafka(access.service.sample, keyspace)
            origin = await access.of_kafka(access.service.with_epochs, origin, keyspace)
        outcome = await access.change(
            lambda commands, now: commands.build(body.indexes, rate_limit, now, origin, source, body.verify)
        )
        return await access.look(_shown(outcome.build.id if outcome.build else ""))

    @app.get("/v1/builds", tags=["builds"], summary="All builds, oldest first")
    async def builds() -> Any:
        return await access.look(
            lambda leader, now: [views.build(leader, one, now) for one in leader.builds.registry.all()]
        )

    @app.get("/v1/builds/{build}", tags=["builds"], summary="One build")
    async def show(build: str) -> Any:
        return await access.look(_shown(build))

    @app.post("/v1/builds/{build}/cancel", tags=["builds"], summary="Cancel a build")
    async def cancel(build: str) -> Any:
        """Its indexes are DEFERRED again."""
        await access.change(lambda commands, now: commands.cancel(build, now))
        return await access.look(_shown(build))

    @app.post("/v1/builds/{build}/pause", tags=["builds"], summary="Pause a build")
    async def pause(build: str) -> Any:
        """Its driver is stopped; what is done is kept, but for the micro-batch under way. One that waits for
        its turn does not start."""
        await access.change(lambda commands, now: commands.pause(build, now))
        return await access.look(_shown(build))

    @app.post("/v1/builds/{build}/resume", tags=["builds"], summary="Resume a build")
    async def resume(build: str) -> Any:
        """It goes on where it was, unless `paused` says what is in the way."""
        await access.change(lambda commands, now: commands.resume(build, now))
        return await access.look(_shown(build))

    @app.patch("/v1/builds/{build}", tags=["builds"], summary="Change its rate")
    async def throttle(build: str, body: RateBody) -> Any:
        """Takes effect within seconds, also in the middle of a micro-batch."""
        await access.change(lambda commands, now: commands.throttle(build, body.rate_limit or 0, now))
        return await access.look(_shown(build))


def _add_cluster(app: FastAPI, access: LeaderAccess, url: str) -> None:
    @app.get("/v1/cluster", tags=["cluster"], summary="Where everything is")
    async def cluster() -> Any:
        return await access.look(
            lambda leader, now: views.cluster(leader, access.service.settings.kafka.bootstrap, url, now)
        )

    @app.post("/v1/cluster/upgrade", tags=["cluster"], summary="Use the newest version of the protocol")
    async def upgrade() -> Any:
        """What every node, projector and driver must speak; who speaks less ends from then on, gateways and
        coordinators that stand by among them, and nobody can go back to the release before. Answers with
        `message`, and `protocol` as `GET /v1/cluster`."""
        outcome = await access.change(lambda commands, now: commands.upgrade(now))
        protocol = await access.look(lambda leader, _: views.protocol(leader))
        return {"message": outcome.message, "protocol": protocol}

    @app.get("/v1/nodes", tags=["cluster"], summary="Indexer nodes")
    async def nodes() -> Any:
        return await access.look(views.nodes)

    @app.get("/v1/topology", tags=["cluster"], summary="Which node holds which slice")
    async def topology() -> Any:
        return await access.look(views.topology)

    @app.get("/v1/stability", tags=["cluster"], summary="Stability timestamps")
    async def stability() -> Any:
        return await access.look(views.stability)

    @app.get("/v1/events", tags=["cluster"], summary="What happened lately")
    async def events(
        after: Annotated[int, Query(ge=0, description="only events with a higher number")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Any:
        """Numbers begin anew in each term."""
        lines = await access.look(lambda leader, _: access.service.events.after(after, limit))
        return [line.as_json(access.service.term) for line in lines]


def _add_health(app: FastAPI, access: LeaderAccess) -> None:
    async def health_now() -> Verdict:
        if not access.service.leads:
            return access.service.verdict_of_standby()
        try:
            return await asyncio.wait_for(access.look(health.of), LOOP_LIMIT_MS / 1000)
        except TimeoutError:
            return single(
                "cluster",
                access.service.settings.cluster,
                "failing",
                f"the coordinator's control loop has not answered for {LOOP_LIMIT_MS / 1000:.0f} s",
                "see its log; end it, and another one leads",
            )

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/health", tags=["health"], summary="Is the cluster well?")
    async def whole(response: Response) -> dict[str, Any]:
        """One verdict, with a reason and a next step for everything that is not in order; 503 when something
        fails now. The page, `keytide status`, `keytide doctor` and the metrics show the same one."""
        verdict = await health_now()
        response.status_code = 503 if verdict.status == "failing" else 200
        return verdict.as_json()

    @app.get("/readyz", tags=["health"])
    async def readyz(response: Response) -> dict[str, Any]:
        """Ready when it leads, its control loop answers and Kafka does: what else fails is no reason to send
        requests elsewhere. 503 while it stands by."""
        verdict = await health_now()
        ready = access.service.leads and verdict.worst_of("cluster", "kafka") != "failing"
        response.status_code = 200 if ready else 503
        known = {
            "ready": ready,
            "term": access.service.term,
            "uptime_ms": now_ms() - access.service.started_at,
        }
        return {
            **known,
            "status": verdict.status,
            "reasons": verdict.as_json()["reasons"] if not ready else [],
        }

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        if access.service.leads:
            page = await access.look(metrics.render)
        else:
            page = metrics.standing_by(await health_now())
        return Response(page, media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in ("page.css", "page.js", "map.js", "land.js", "icon.svg"):
            return Response(status_code=404)
        return FileResponse(PAGE / name, headers=_PAGE_HEADERS)
