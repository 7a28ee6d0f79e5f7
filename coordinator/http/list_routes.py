"""`GET /v1/indexes/{name}/skipped` and `/violations`: gathered from the nodes that hold the slices.

All nodes are asked at once, each for one page of its slices; what they answer is one page. When a node does
not answer the whole request fails: a page with holes that nobody sees would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import aiohttp
import msgspec
from fastapi import FastAPI, Query

from coordinator.http.leader_access import LeaderAccess
from coordinator.leader import Leader
from coordinator.views import index_lists as list_views
from coordinator.views import views
from keytide.catalog.catalog import IndexRecord
from keytide.errors import UNDECODABLE, RetryableError
from keytide.http.tls import trusted
from keytide.process.clock import wall_ms
from keytide.serving.cluster_credential import credential
from keytide.serving.gate import MESSAGE
from keytide.wire.index_lists import LARGEST_PAGE, LISTS_PATH, ListAsk, ListPage, encoder, page_decoder
from keytide.wire.messages import SliceStatus

Statuses = list[SliceStatus | None]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="lines on the page, at most")]
PageToken = Annotated[str | None, Query(description="`page` of the page before; none for the first")]


def add_lists(app: FastAPI, access: LeaderAccess) -> None:
    """Add the routes."""

    @app.get(
        "/v1/indexes/{name}/skipped",
        tags=["indexes"],
        summary="Versions that could not be indexed",
    )
    async def skipped(name: str, limit: Limit = 100, page: PageToken = None) -> Any:
        """The skip ledger, by partition and offset; the first page also counts lines by reason."""
        index, pages, statuses = await _gather(access, name, "skipped", page, limit)
        return list_views.skipped(index, pages, limit, page is None, list_views.total(statuses, "skipped"))

    @app.get(
        "/v1/indexes/{name}/violations",
        tags=["indexes"],
        summary="Keys of a UNIQUE index that several documents have",
    )
    async def violations(name: str, limit: Limit = 100, page: PageToken = None) -> Any:
        """By key, with all documents that have it."""
        index, pages, statuses = await _gather(access, name, "violations", page, limit)
        if index.violated is not None and not index.placement:
            return list_views.kept_violations(index, index.violated, page, limit)
        return list_views.violations(
            index, pages, limit, list_views.total(statuses, "violations"), exact=list_views.exact(statuses)
        )


async def _gather(
    access: LeaderAccess, name: str, what: str, page: str | None, limit: int
) -> tuple[IndexRecord, Sequence[ListPage], Statuses]:
    """The index, one page of each node that holds slices of it, and what its slices last said."""

    def look(leader: Leader, now: int) -> tuple[IndexRecord, dict[str, str], dict[str, str], Statuses, str]:
        index = leader.dictionary.index_named(name)
        known = {one["id"]: one["url"] for one in views.nodes(leader, now) if one["url"]}
        live = {one["id"]: one["url"] for one in views.nodes(leader, now) if one["live"] and one["url"]}
        statuses = views.slice_statuses(leader, index)
        cluster = leader.dictionary.catalog.cluster
        return index, known, live, statuses, cluster.secret if cluster else ""

    index, known, live, statuses, secret = await access.look(look)
    asked = list_views.asks(index, what, page, limit, live)
    settings = access.service.settings
    headers = {"Authorization": credential(secret, wall_ms()), "Content-Type": MESSAGE}
    limits = aiohttp.ClientTimeout(total=float(settings.coordinator.request_timeout_s))
    secure = any((known.get(node) or "").startswith("https:") for node, _ in asked)
    trust = trusted(settings.security.tls_authority) if secure else True
    connector = aiohttp.TCPConnector(ssl=trust)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=limits) as session:
        tasks = [asyncio.ensure_future(_ask(session, node, known.get(node), ask)) for node, ask in asked]
        try:
            return index, await asyncio.gather(*tasks), statuses
        finally:
            for task in tasks:
                task.cancel()


async def _ask(session: aiohttp.ClientSession, node: str, url: str | None, ask: ListAsk) -> ListPage:
    """A node's page.

    Raises:
        RetryableError: it does not answer, or not with a page.
    """
    if url is None:
        raise _unavailable(node, "it is not known where it is")
    try:
        async with session.post(url + LISTS_PATH, data=encoder.encode(ask)) as response:
            body = await response.read()
            if response.status == 200:
                return page_decoder.decode(body)
    except TimeoutError as error:
        raise _unavailable(node, "it did not answer in time") from error
    except (aiohttp.ClientError, *UNDECODABLE) as error:
        raise _unavailable(node, str(error)) from error
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except UNDECODABLE as error:
        raise _unavailable(node, f"it answered {response.status}") from error
    raise RetryableError(
        f"node {node}: {problem.get('detail') or response.status}",
        problem_type=str(problem.get("type") or "node-unavailable"),
        next_step=str(problem.get("next_step") or "try again"),
    )


def _unavailable(node: str, why: str) -> RetryableError:
    return RetryableError(
        f"node {node}, which holds slices of the index, cannot be asked: {why}",
        problem_type="node-unavailable",
        next_step="try again, or see `keytide node list`",
    )
