"""What a scan process answers itself: plain pages, read as one; it passes on everything else.

Theory of operation
===================
A scan goes its way here as it does on the node (`indexer.scan`), under the node's name, to the place where
slices are read: a page whose slices are all pinned here is read as one (`indexer.scan.local.joint`). Whoever
comes to where one reads otherwise (`PagePeers.read_here`) gives up: nothing was answered by then, and the
request goes to the node as it came (`passing`). So there is no second way of a scan, and none that could give
another answer: what this process does not hold, does not know, or finds wrong is the node's to tell of.

What cannot be a plain page is passed on at once: other routes, other forms, filters, offsets, validated rows,
newest states.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from msgspec import structs
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indexer.scan.gather.peers import LEASE_PATH, Peers
from indexer.scan.gather.scatter import CLIENT
from indexer.scan.gather.service import ScanService
from indexer.scan.http.endpoint import ScanMetrics, gone_of, needs, scanned_index
from indexer.scan.http.problems import OnBug, problem_response
from indexer.scan.local.joint import JointReads
from indexer.scan.local.reader import INLINE_ROWS, LocalReader
from indexer.scan.peer.messages import (
    JointPage,
    JointRead,
    JointSpans,
    LeaseReply,
    LeaseRequest,
    ReadReply,
    ReadRequest,
    encoder,
    lease_reply_decoder,
)
from indexer.scan.plan.leases import longest_lease_s
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import ScanRequest, parse
from indexer.scan_processes.leases import GrantedLeases, longer
from indexer.scan_processes.messages import Sample
from indexer.scan_processes.passing import HalfAnsweredError, Passing
from indexer.view import NodeView
from keytide.http.nodes import NodeClient
from keytide.process.clock import now_ms
from keytide.serving.gate import RequestGate, client_of
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

_JSON: Final = frozenset({b"*/*", b"application/json"})


class PassedOnError(Exception):
    """A request is the node's to answer. Never answered to anybody."""


class PagePeers(Peers):
    """Reads pages of what is pinned here; leases are the node's.

    Args:
        passing: to the node.
        nodes: asks other nodes for leases.
        longest_lease_s: the node keeps nothing for longer.
    """

    def __init__(
        self,
        view: NodeView,
        local: LocalReader,
        passing: Passing,
        nodes: NodeClient,
        longest_lease_s: int,
    ) -> None:
        super().__init__(view, local, nodes)
        self._longest_ms = 1000 * longest_lease_s
        self._passing = passing
        self._leases = GrantedLeases()
        self._asked: dict[bytes, asyncio.Task[LeaseReply]] = {}
        self._first = JointReads(view, self._leases, now_ms).first
        self.first_here, self.within_here, self.read_here = self._page, self._spans, self._other

    def _page(self, asked: JointRead) -> JointPage:
        page = self._first(asked)
        if page is None:
            raise PassedOnError
        return page

    def _spans(self, asked: JointSpans) -> JointPage:
        raise PassedOnError

    async def _other(self, request: ReadRequest, gone: Gone | None = None) -> ReadReply:
        raise PassedOnError

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
        reply = await self._ask(self.here, LEASE_PATH, asked, lease_reply_decoder, timeout_s)
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
        self.metrics = ScanMetrics(registry)
        self._view, self._settings, self._passing, self._on_bug = view, settings, passing, on_bug
        self._nodes = _Nodes(settings.security.tls_authority, view, passing)
        self._local = LocalReader(view, settings.scan.max_leases)
        self._service: ScanService | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body: bytes | None = None
        try:
            name = _page_of(scope)
            if name is not None and self._service is not None:
                request = Request(scope, receive)
                body = await request.body()
                parsed = parse(ScanRequest, body)
                if _plain(parsed):
                    with suppress(PassedOnError):
                        response = await self._page(self._service, name, parsed, request)
                        await response(scope, receive, send)
                        return
            await self._passing.on(scope, receive, send, body)
        except HalfAnsweredError as error:
            log.warning("half an answer to %s %s: %s", scope["method"], scope["path"][:200], error)
        except Exception as error:  # noqa: BLE001 - every error is answered, and our bugs are logged
            response = problem_response(error, self.metrics.failed, self._on_bug)
            await response(scope, receive, send)

    async def _page(self, service: ScanService, name: str, parsed: ScanRequest, request: Request) -> Response:
        CLIENT.set(client_of(request.scope, tokens=bool(self._settings.security.tokens)))
        return await self.metrics.response(service.scan(name, parsed, gone_of(request)))

    async def _live(self, receive: Receive, send: Send) -> None:
        """What a server asks at its beginning and end."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                peers = PagePeers(
                    self._view, self._local, self._passing, self._nodes, longest_lease_s(self._settings.scan)
                )
                most = self._settings.http.max_body_bytes
                self._service = ScanService(
                    self._view, self._local, peers, self._settings.scan, max_body_bytes=most
                )
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._nodes.close()
                await self._passing.close()
                self._local.close()
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


def _page_of(scope: Scope) -> str | None:
    """The name of the index of which a page, as JSON, is asked; None when something else is."""
    for header, value in scope["headers"]:
        if header == b"accept" and value not in _JSON:
            return None
    return scanned_index(scope["path"]) if scope["method"] == "POST" else None


def _plain(asked: ScanRequest) -> bool:
    """Whether it may be answered with a plain page: what is not is seen here, or passed on a little later."""
    return (
        asked.consistency == "stable"
        and asked.at is None
        and (asked.limit or 0) < INLINE_ROWS
        and not (asked.offset or asked.distinct or asked.validate)
        and asked.near is None
    )
