"""HTTP, as far as all routes of the scan endpoint share it: bodies, answers, what may go wrong.

A kind of read has a module with `add_routes(app, endpoint)`, which `indexer.serve.api` calls. Its handlers
end with `endpoint.answer` or a response of their own. Who may ask was decided before
(`keytide.serving.gate`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from time import perf_counter
from typing import Any, Final, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse
from starlette.types import Scope

from indexer.scan.gather.answer import WrittenAnswer
from indexer.scan.gather.peers import Peers
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.service import ScanService
from indexer.scan.http.metrics import ScanMetrics
from indexer.scan.http.problems import OnBug
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import MalformedRequestError
from indexer.scan.plan.waiting import Gone, unless_gone
from indexer.scan.request.parsing import Examples, operation
from indexer.scan.request.request import Moment, ScanRequest
from indexer.validation.service import Validation
from indexer.view import NodeView
from keytide.errors import UNDECODABLE, RetryableError
from keytide.settings.settings import Settings

BEFORE_NAME: Final = "/v1/indexes/"
INDEX_PATH: Final = "/v1/indexes/{name}"

PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": description, "content": {"application/problem+json": {}}}
    for status, description in (
        (401, "`not-allowed`: the cluster has API tokens, and the request carries none of them"),
        (403, "`not-allowed`: a token without the scope `read`; `foreign-origin`: a page of another origin"),
        (404, "`unknown-index`"),
        (
            409,
            "`history-changed`: a rollback took back what the session or the page saw, or what is demanded",
        ),
        (410, "`snapshot-gone`: begin again"),
        (413, "`request-too-large`"),
        (415, "`unsupported-media-type`: a body that is not `application/json`"),
        (422, "`invalid-request`, `invalid-token`, `unknown-partition`, ...: the detail says what and where"),
        (503, "`index-not-ready` with the build and slices, `node-unavailable`, `too-many-leases`, ..."),
        (
            504,
            "`timestamp-not-reached`: the wait for what was demanded ran out; `count-timeout`, "
            "`query-timeout`: there is more to read than the request has time for",
        ),
    )
}

Handler = Callable[[Request], Awaitable[Response]]
Form = Callable[[Request, str, ScanRequest], Awaitable[Response]]
"""Answers a scan (request, index name, what is asked) in another form than pages of JSON."""
RequestT = TypeVar("RequestT")


class Endpoint:
    """What all handlers share.

    Args:
        view: this node.
        settings: of the node.
        metrics: of the endpoint.
        on_bug: told of invariants that do not hold.

    Attributes:
        forms: media type -> who answers a scan that accepts it.
        closing: called when the node stops.
    """

    def __init__(self, view: NodeView, settings: Settings, metrics: ScanMetrics, on_bug: OnBug) -> None:
        self.view = view
        self.settings = settings
        self.metrics = metrics
        self.on_bug = on_bug
        scan = settings.scan
        longest = max(scan.max_hold_s, scan.lease_s, scan.tail_lease_s)
        self.local = LocalReader(
            view,
            scan.max_leases,
            longest_lease_s=longest,
            long_readers=scan.long_readers,
            client_leases=scan.max_client_leases,
        )
        self.peers = Peers(view, self.local, settings.security.tls_authority)
        self.forms: dict[str, Form] = {}
        self.closing: list[Callable[[], Awaitable[None]]] = []
        self._service: ScanService | None = None

    def start(self) -> None:
        """On the event loop, before the first request."""
        validation = Validation.of(self.view, self.peers, self.settings)
        self.closing.append(validation.close)
        self._service = ScanService(self.view, self.local, self.peers, self.settings.scan, validation)

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

    def form(self, request: Request) -> Form | None:
        """Who answers a scan in the form that the reader wants first of those that there are; None for pages
        of JSON."""
        accepted = request.headers.get("accept")
        if accepted is None or accepted == "*/*":
            return None
        for one in accepted.split(","):
            kind = one.partition(";")[0].strip().lower()
            if kind in self.forms:
                return self.forms[kind]
            if kind in ("application/json", "application/*", "*/*"):
                return None
        return None

    async def long_answer(
        self,
        request: Request,
        moment: Moment,
        work: Callable[[ScanService, Gone], Coroutine[Any, Any, WrittenAnswer]],
    ) -> Response:
        """The response of what may read much: given up when the reader goes away, or its time is over."""
        gone = gone_of(request)
        limit_s = self.shared.timeout_s(moment)
        return await self._answered(unless_gone(work(self.service, gone), gone, limit_s))

    async def answer(self, work: Callable[[ScanService], Awaitable[WrittenAnswer]]) -> Response:
        """The response of what is soon answered."""
        self.local.lanes.short()
        return await self._answered(work(self.service))

    async def _answered(self, work: Awaitable[WrittenAnswer]) -> Response:
        """The response for an answer in JSON, counted."""
        began = perf_counter()
        answer = await work
        self.metrics.answered(answer, perf_counter() - began)
        return Response(answer.body, media_type="application/json")


def add_route(
    app: FastAPI,
    action: str,
    handler: Handler,
    kind: type[Moment],
    method: str,
    summary: str,
    examples: Examples,
) -> None:
    """Add a route for one kind of request about an index, and show it on the OpenAPI page.

    Args:
        action: what follows the index's name in the path, with its slash.
        kind: the type of the request, whose members are the body or, with GET, the parameters.
        method: POST or GET.
        examples: requests that work on the index `asking.EXAMPLE_INDEX`, by what they show.
    """
    app.add_api_route(
        INDEX_PATH + action,
        handler,
        methods=[method],
        tags=["scan"],
        summary=summary,
        response_class=JSONResponse,
        response_model=None,
        responses=PROBLEMS,
        openapi_extra=operation(kind, by_hand=method == "GET", examples=examples),
    )


def client_of(scope: Scope) -> str:
    """Who asks, as budgets go: a digest of the credential, or else the address."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return _digest(value)
    address = scope.get("client")
    return address[0] if address else ""


@lru_cache(maxsize=1024)
def _digest(credential: bytes) -> str:
    return hashlib.sha256(credential).hexdigest()[:16]


def index_name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def gone_of(request: Request) -> Gone:
    """Returns when the reader of a request, whose body was read, has gone away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def body_of(request: Request) -> bytes:
    """The request's body, as `keytide.serving.gate` has read it."""
    return await request.body()


async def message_of(request: Request, decoder: msgspec.msgpack.Decoder[RequestT]) -> RequestT:
    """What another node asks.

    Raises:
        MalformedRequestError: it is no such message.
    """
    try:
        return decoder.decode(await body_of(request))
    except UNDECODABLE as error:
        raise MalformedRequestError(f"not a request of another node: {error}") from error
