"""What a scan process answers itself: stable scans and counts of what is pinned here; it passes on the rest.

Theory of operation
===================
A scan goes its way here as it does on the node (`indexer.scan`), under the node's name, down to the snapshots
that are pinned here (`node`). Whoever finds that a slice does not hold what is asked for, or that anything is
wrong with it, gives up (`PagePeers`): nothing was answered by then, and the request goes to the node as it
came (`passing`). So there is no second way of a scan, and none that could give another answer: what this
process does not hold, does not know, or finds wrong is the node's to tell of.

What reads newest states or a hold, asks other nodes or primaries, or is another route or form, is passed on
at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import structs
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indexer.scan.gather.peers import LEASE_PATH, Peers
from indexer.scan.gather.scatter import CLIENT
from indexer.scan.http.endpoint import COUNT, SCAN, Endpoint, ScanMetrics, asked_index, needs
from indexer.scan.http.problems import OnBug, problem_response
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import (
    TIP,
    LeaseReply,
    LeaseRequest,
    ReadReply,
    ReadRequest,
    encoder,
    lease_reply_decoder,
)
from indexer.scan.plan.leases import TooManyLeasesError, lease_of, longest_lease_s
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import CountRequest, Question, ScanRequest, parse
from indexer.scan_processes.core.leases import GrantedLeases, longer
from indexer.scan_processes.core.messages import Sample
from indexer.scan_processes.passing import HalfAnsweredError, Passing
from indexer.view import NodeView
from keytide.errors import KeytideError
from keytide.http.nodes import NodeClient
from keytide.process.clock import now_ms
from keytide.serving.gate import RequestGate, body_of, client_of
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

_JSON: Final = frozenset({b"*/*", b"application/json"})


class PassedOnError(Exception):
    """A request is the node's to answer. Never answered to anybody."""


class PagePeers(Peers):
    """Reads what is pinned here; leases are the node's.

    Args:
        leases: what the node has granted.
        passing: to the node.
        nodes: asks other nodes for leases.
        longest_lease_s: the node keeps nothing for longer.
    """

    def __init__(
        self,
        view: NodeView,
        local: LocalReader,
        leases: GrantedLeases,
        passing: Passing,
        nodes: NodeClient,
        longest_lease_s: int,
    ) -> None:
        super().__init__(view, local, nodes)
        self._longest_ms = 1000 * longest_lease_s
        self._leases, self._passing = leases, passing
        self._asked: dict[bytes, asyncio.Task[LeaseReply]] = {}
        self.read_here = self._pinned

    async def _pinned(self, request: ReadRequest, gone: Gone | None = None) -> ReadReply:
        """As `LocalReader.read`, of snapshots that are all pinned here, and nothing is the matter with."""
        paging, shape = request.paging, request.shape
        if request.consistency.number == TIP or paging.hold or shape.examine or shape.task:
            raise PassedOnError
        reply = await self._local.read(request, gone)
        if any(one.gone for one in reply.slices):
            raise PassedOnError
        if paging.lease_ms and not reply.leased and any(one.more for one in reply.slices):
            lease = await self.lease(self.here, lease_of(request), paging.within_ms / 1000)
            reply = structs.replace(reply, leased=not lease.missing)
        return reply

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        raise PassedOnError

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        if node != self.here:
            return await super().lease(node, request, timeout_s)
        key = encoder.encode(request)
        task = self._asked.get(key)
        if task is None:  # (many pages at once need the same)
            task = self._asked[key] = asyncio.ensure_future(self._lease_here(request, timeout_s))
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(task)

    async def _lease_here(self, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        began, lease_ms = now_ms(), min(longer(request.lease_ms), self._longest_ms)
        # (The node does not renew a lease that lasts for as long as is asked for.)
        asked = structs.replace(request, lease_ms=lease_ms)
        try:
            reply = await self._ask(self.here, LEASE_PATH, asked, lease_reply_decoder, timeout_s)
        except KeytideError as error:
            if error.problem_type == TooManyLeasesError.problem_type:
                raise PassedOnError from error  # the node says it itself, with what to do next
            raise
        kept = [one for one in request.slices if one not in reply.missing]
        self._leases.granted(request, kept, began, began + lease_ms)
        return reply


class _Nodes(NodeClient):
    """Asks nodes, this process's own over its socket."""

    def __init__(self, authority: str, view: NodeView, passing: Passing) -> None:
        super().__init__(authority, self._by_either)
        self._view, self._passing = view, passing

    async def _by_either(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        own = self._view.node_url(self._view.node_id)
        if own is None or not url.startswith(f"{own}/"):
            return await self._by_session(url, body, headers, timeout_s)
        return await self._passing.ask(url.removeprefix(own), body, headers, timeout_s)


class PageApplication:
    """The application of a scan process, behind the gate that all requests pass.

    Args:
        view: what is pinned here.
        passing: to the node.
        registry: of this process's metrics, which are the node's.
        on_bug: told of invariants that do not hold.
    """

    def __init__(
        self, view: NodeView, settings: Settings, passing: Passing, registry: CollectorRegistry, on_bug: OnBug
    ) -> None:
        leases, nodes = GrantedLeases(), _Nodes(settings.security.tls_authority, view, passing)
        longest_s = longest_lease_s(settings.scan)

        def peers_of(local: LocalReader) -> Peers:
            return PagePeers(view, local, leases, passing, nodes, longest_s)

        self._endpoint = endpoint = Endpoint(view, settings, ScanMetrics(registry), on_bug, leases, peers_of)
        self._passing, self._tokens, self._serving = passing, bool(settings.security.tokens), False

        async def scan(request: Request, body: bytes) -> Response | None:
            parsed = parse(ScanRequest, body)
            return await endpoint.scan(request, parsed) if _pinned(parsed) and not parsed.validate else None

        async def count(request: Request, body: bytes) -> Response | None:
            parsed = parse(CountRequest, body)
            return await endpoint.count(request, parsed) if _pinned(parsed) else None

        self._ways: dict[str, Callable[[Request, bytes], Awaitable[Response | None]]] = {
            SCAN: scan,
            COUNT: count,
        }
        """What each answers; None for what may not be answered here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body: bytes | None = None
        try:
            if self._serving and scope["method"] == "POST" and _wants_json(scope):
                action, name = asked_index(scope["path"])
                if (way := self._ways.get(action)) is not None:
                    CLIENT.set(client_of(scope, tokens=self._tokens))
                    scope["path_params"] = {"name": name}
                    request = Request(scope, receive)
                    body = await body_of(request)
                    with suppress(PassedOnError):
                        response = await way(request, body)
                        if response is not None:
                            await response(scope, receive, send)
                            return
            await self._passing.on(scope, receive, send, body)
        except HalfAnsweredError as error:
            log.warning("half an answer to %s %s: %s", scope["method"], scope["path"][:200], error)
        except Exception as error:  # noqa: BLE001 - every error is answered, and our bugs are logged
            response = problem_response(error, self.metrics.failed, self._endpoint.on_bug)
            await response(scope, receive, send)

    @property
    def metrics(self) -> ScanMetrics:
        """Of this process."""
        return self._endpoint.metrics

    async def _live(self, receive: Receive, send: Send) -> None:
        """What a server asks at its beginning and end."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._endpoint.start()
                self._serving = True
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._endpoint.close()
                await self._passing.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def gated(application: PageApplication, settings: Settings, view: NodeView) -> RequestGate:
    """The application behind the gate."""
    return RequestGate(
        application, settings, needs, lambda: view.catalog().secret, application.metrics.failed
    )


def samples_of(registry: CollectorRegistry) -> list[Sample]:
    """What is counted, but for when counting began."""
    return [
        Sample(one.name, dict(one.labels), one.value)
        for family in registry.collect()
        for one in family.samples
        if not one.name.endswith("_created")
    ]


def _wants_json(scope: Scope) -> bool:
    """Whether the answer is to be JSON, as far as can be told at a glance."""
    return all(value in _JSON for header, value in scope["headers"] if header == b"accept")


def _pinned(asked: Question) -> bool:
    """Whether what is asked may be answered from what is pinned: what is not is seen here, or passed on a
    little later."""
    return asked.consistency == "stable" and asked.at is None and asked.nearest is None
