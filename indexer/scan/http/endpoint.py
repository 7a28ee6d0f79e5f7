"""HTTP, as far as all routes of the scan endpoint share it: the fast way, bodies, answers, metrics.

`indexer.scan.http.routes` has what can be asked. A scan of 100 rows takes some tens of microseconds, less
than FastAPI's way to a handler, so `FastWay` (an ASGI middleware) takes the two frequent paths, scans and
reads by other nodes, straight to the very same handlers: measured, 0.05 ms less of 0.17. Who may ask was
decided before (`keytide.serving.gate`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any, Final, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Receive, Scope, Send

from indexer.scan.gather.peers import READ_PATH, Peers
from indexer.scan.gather.reads import Reads, WrittenAnswer
from indexer.scan.gather.scatter import CLIENT
from indexer.scan.gather.service import ScanService
from indexer.scan.http.openapi import INDEX_PATH, Examples, add_route
from indexer.scan.http.problems import OnBug, problem_response
from indexer.scan.local.once import NotShortError
from indexer.scan.local.reader import INLINE_ROWS, LocalReader
from indexer.scan.nearest.rows import scan_nearest
from indexer.scan.peer.messages import (
    LeaseRequest,
    MalformedRequestError,
    OutOfTimeError,
    ReadMessage,
    SliceReply,
)
from indexer.scan.peer.wellformed import check
from indexer.scan.plan.leases import Leases, longest_lease_s
from indexer.scan.plan.waiting import Gone, ReaderGoneError
from indexer.scan.request.request import CountRequest, Moment, MomentT, ScanRequest, from_query, parse
from indexer.scan.tasks import TASKS
from indexer.validation.service import Validation
from indexer.view import NodeView
from keytide.errors import UNDECODABLE, RetryableError
from keytide.http.nodes import NodeClient
from keytide.serving.gate import Need, body_of, client_of
from keytide.settings.settings import Settings
from keytide.wire.digests import Ask
from keytide.wire.index_lists import ListAsk

GRACE_S: Final = 0.25
"""How much longer than its time a request may take: it is to say itself what took so long."""
SCAN: Final = "/scan"
COUNT: Final = "/count"
_BEFORE_NAME: Final = "/v1/indexes/"
_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

Handler = Callable[[Request], Awaitable[Response]]
Form = Callable[[Request, str, ScanRequest], Awaitable[Response]]
"""Answers a scan (request, index name, what is asked) in another form than pages of JSON."""
MessageT = TypeVar("MessageT", bound=ReadMessage | LeaseRequest | Ask | ListAsk)
ResultT = TypeVar("ResultT")


class FastWay:
    """Takes the paths that are asked most past the framework, to the same handlers.

    Args:
        app: everything else.
        endpoint: what all handlers share.
        ways: the handlers; filled in once the routes are there.
    """

    def __init__(self, app: ASGIApp, endpoint: Endpoint, ways: dict[str, Handler]) -> None:
        self._app = app
        self._metrics = endpoint.metrics
        self._on_bug = endpoint.on_bug
        self._ways = ways
        self._tokens = bool(endpoint.settings.security.tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler: Handler | None = None
        if scope["type"] == "http":
            CLIENT.set(client_of(scope, tokens=self._tokens))
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"]
            if path == READ_PATH:
                handler = self._ways[READ_PATH]
            else:
                action, name = asked_index(path)
                if action == SCAN:
                    scope["path_params"] = {"name": name}
                    handler = self._ways[SCAN]
        if handler is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except Exception as error:  # noqa: BLE001 - every error is answered, and our bugs are logged
            response = problem_response(error, self._metrics.failed, self._on_bug)
        await response(scope, receive, send)


class ScanMetrics:
    """Counters of one node (docs/reference/metrics.md)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "keytide_scan_seconds",
            "Time of a scan request",
            ["index", "consistency"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._rows = Counter("keytide_scan_rows", "Rows given to readers", registry=registry)
        self._errors = Counter(
            "keytide_scan_errors", "Requests that ended in an error", ["type"], registry=registry
        )
        self._behind = Counter(
            "keytide_scan_slices_behind",
            "Slices that other nodes have asked for at a snapshot that they did not hold yet (then another "
            "copy is asked)",
            registry=registry,
        )
        self._children: dict[tuple[str, str], Histogram] = {}

    def answered(self, answer: WrittenAnswer, seconds: float) -> None:
        """Count an answer."""
        labels = (answer.index, answer.consistency)
        child = self._children.get(labels)
        if child is None:  # only names of indexes that exist come here, so there are few
            child = self._children[labels] = self._seconds.labels(*labels)
        child.observe(seconds)
        self._rows.inc(answer.rows)

    async def response(self, work: Awaitable[WrittenAnswer]) -> Response:
        """That of an answer in JSON, counted."""
        began = perf_counter()
        answer = await work
        self.answered(answer, perf_counter() - began)
        return Response(answer.body, media_type="application/json")

    def read(self, number: int, slices: Iterable[SliceReply]) -> None:
        """Count what another node has asked for in vain."""
        if behind := sum(one.gone and not one.state and one.newest < number for one in slices):
            self._behind.inc(behind)

    def failed(self, problem_type: str) -> None:
        """Count an error."""
        self._errors.labels(problem_type).inc()


class Endpoint:
    """What all handlers share.

    Args:
        view: this node.
        settings: of the node.
        metrics: of the endpoint.
        on_bug: told of invariants that do not hold.
        leases: as of `LocalReader`.
        peers_of: makes what asks nodes, this one too, of what reads its slices; else `Peers`.

    Attributes:
        forms: media type -> who answers a scan that accepts it.
        closing: called when the node stops.
    """

    def __init__(
        self,
        view: NodeView,
        settings: Settings,
        metrics: ScanMetrics,
        on_bug: OnBug,
        leases: Leases | None = None,
        peers_of: Callable[[LocalReader], Peers] | None = None,
    ) -> None:
        self.view = view
        self.settings = settings
        self.metrics = metrics
        self.on_bug = on_bug
        scan = settings.scan
        self.local = LocalReader(
            view,
            scan.max_leases,
            TASKS,
            longest_lease_s=longest_lease_s(scan),
            long_readers=scan.long_readers,
            client_leases=scan.max_client_leases,
            leases=leases,
        )
        authority = settings.security.tls_authority
        self.peers = peers_of(self.local) if peers_of else Peers(view, self.local, NodeClient(authority))
        self.forms: dict[str, Form] = {}
        self.closing: list[Callable[[], Awaitable[None]]] = []
        self._service: ScanService | None = None

    def start(self) -> None:
        """On the event loop, before the first request."""
        validation = Validation.of(self.view, self.peers, self.settings)
        self.closing.append(validation.close)
        self._service = ScanService(
            self.view,
            self.local,
            self.peers,
            self.settings.scan,
            validation,
            max_body_bytes=self.settings.http.max_body_bytes,
        )

    async def close(self) -> None:
        for close in self.closing:
            await close()
        await self.peers.close()
        self.local.close()

    @property
    def service(self) -> ScanService:
        """Scans, counts, held snapshots.

        Raises:
            RetryableError: the node is starting.
        """
        if self._service is None:
            raise RetryableError(
                "the node is starting", problem_type="starting", next_step="try again in a moment"
            )
        return self._service

    @property
    def shared(self) -> Reads:
        """What every kind of read shares. Raises as `service`."""
        return self.service.shared

    # --- handlers -----------------------------------------------------------------

    async def scan(self, request: Request, parsed: ScanRequest) -> Response:
        """A page of rows, or all of them in another form."""
        form, name = self._form(request), index_name(request)
        if form is not None:
            return await form(request, name, parsed)
        if (near := parsed.near) is not None and near.limit is not None:
            with suppress(NotShortError):  # most are
                gone = gone_of(request)
                return await self.answer(scan_nearest(self.shared, name, parsed, near, gone, soon=True))
            return await self.long_answer(
                request, parsed, lambda service, gone: scan_nearest(service.shared, name, parsed, near, gone)
            )
        if parsed.distinct or parsed.offset or (parsed.limit or 0) > INLINE_ROWS:
            return await self.long_answer(
                request, parsed, lambda service, gone: service.scan(name, parsed, gone)
            )
        return await self.answer(self.service.scan(name, parsed, gone_of(request)))

    async def count(self, request: Request, parsed: CountRequest) -> Response:
        """How many entries there are."""
        name = index_name(request)
        return await self.long_answer(
            request, parsed, lambda service, gone: service.count(name, parsed, gone)
        )

    async def long_answer(
        self,
        request: Request,
        moment: Moment,
        work: Callable[[ScanService, Gone], Coroutine[Any, Any, WrittenAnswer]],
    ) -> Response:
        """The response of what may read much: given up when the reader goes away, or its time is over."""
        gone = gone_of(request)
        limit_s = self.shared.timeout_s(moment)
        return await self.metrics.response(unless_gone(work(self.service, gone), gone, limit_s))

    async def answer(self, work: Awaitable[WrittenAnswer]) -> Response:
        """The response of what is soon answered."""
        self.local.threads.short_at = monotonic()
        return await self.metrics.response(work)

    def _form(self, request: Request) -> Form | None:
        """Who answers a scan in the form that the reader wants first of those that there are; None for pages
        of JSON."""
        accepts = (value for name, value in request.scope["headers"] if name == b"accept")
        accepted = next(accepts, b"*/*").decode("latin-1")
        if accepted == "*/*":
            return None
        for one in accepted.split(","):
            kind = one.partition(";")[0].strip().lower()
            if kind in self.forms:
                return self.forms[kind]
            if kind in ("application/json", "application/*", "*/*"):
                return None
        return None


async def unless_gone(work: Coroutine[Any, Any, ResultT], gone: Gone, limit_s: float) -> ResultT:
    """The outcome of `work`, which is cancelled when nobody waits for it any more. So is what it has asked of
    other nodes: its connections to them are closed.

    Args:
        limit_s: the time of its request. Work looks at it itself; what does not is cut off a moment later.

    Raises:
        ReaderGoneError: the reader went away first.
        OutOfTimeError: the time ran out.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, timeout=limit_s + GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise ReaderGoneError
        raise OutOfTimeError(
            f"the request was not done in {limit_s:.1f} s",
            next_step="allow more with timeout_ms, or ask for less",
        )
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def add_reads(
    app: FastAPI,
    action: str,
    kind: type[MomentT],
    answer: Callable[[Request, MomentT], Awaitable[Response]],
    summaries: tuple[str, str],
    examples: Examples,
    *,
    names: tuple[str, str] = ("posted", "by_hand"),
    path: str = INDEX_PATH,
) -> Handler:
    """Add the routes of one kind of read: POST, and GET for what is asked by hand; returns the handler of the
    first.

    Args:
        action: what follows `path`, with its slash.
        summaries, names: of both.
        examples: as of `add_route`.
    """

    async def posted(request: Request) -> Response:
        return await answer(request, parse(kind, await body_of(request)))

    async def by_hand(request: Request) -> Response:
        return await answer(request, from_query(kind, request.query_params.multi_items()))

    for method, handler, summary, name in zip(
        ("POST", "GET"), (posted, by_hand), summaries, names, strict=True
    ):
        add_route(app, path + action, handler, kind, method, summary, examples, name)
    return posted


def needs(_: str, path: str) -> Need:
    """What opens a path of a node."""
    if path.startswith("/v1/"):
        return "read"
    return "cluster" if path.startswith("/internal/") else None


def asked_index(path: str) -> tuple[str, str]:
    """What the path of a read asks (`SCAN`), and the name of the index; "" of another path."""
    if not path.startswith(_BEFORE_NAME):
        return "", ""
    name, slash, action = path[len(_BEFORE_NAME) :].partition("/")
    return (slash + action, name) if name else ("", "")


def index_name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def gone_of(request: Request) -> Gone:
    """Returns when the reader of a request, whose body was read, has gone away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def message_of(
    request: Request, decoder: msgspec.msgpack.Decoder[MessageT], view: NodeView
) -> MessageT:
    """What another node asks.

    Raises:
        MalformedRequestError: it is no such message, or makes no sense.
    """
    try:
        message = decoder.decode(await body_of(request))
    except UNDECODABLE as error:
        raise MalformedRequestError(f"not a request of another node: {error}") from error
    check(message, view.catalog())
    return message
