"""`GET /v1/indexes/{name}/skipped`, `/violations`, `/load` and `/map`: from the nodes that hold the slices.

All nodes are asked at once, each for one page of its slices; what they answer is one page. When a node does
not answer the whole request fails: a page with holes that nobody sees would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, Final, NamedTuple

from fastapi import FastAPI, Query
from msgspec.structs import replace

from coordinator.http.leader_access import LeaderAccess
from coordinator.leader import Leader
from coordinator.statements.advice import halving_split
from coordinator.statements.partitions import literal_of
from coordinator.views import index_lists as list_views
from coordinator.views import loads, views
from coordinator.views import map_samples as map_views
from coordinator.views.slices import nodes_to_ask, slice_statuses
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.definition.statement import SplitPartition
from keytide.errors import UNDECODABLE, RetryableError
from keytide.http.node_protocol import TRY_AGAIN, NoAnswerError, NodeUnavailableError, RefusedError
from keytide.http.nodes import NodeClient
from keytide.wire.index_lists import LARGEST_PAGE, LISTS_PATH, ListAsk, ListPage, encoder, page_decoder
from keytide.wire.messages import SliceStatus

Statuses = list[SliceStatus | None]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="lines on the page, at most")]
PageTokenParameter = Annotated[str | None, Query(description="`page` of the page before; none for the first")]
OneSlice = Annotated[int | None, Query(ge=0, description="values of this slice, hot or not")]
LOOK_S: Final = 2.0
"""How often it is seen whether a node that has not answered yet is live: one that stands still is told of
before whoever asks gives up, and takes the coordinator for silent."""


def add_lists(app: FastAPI, access: LeaderAccess, nodes: NodeClient) -> None:
    """Add the routes."""

    @app.get(
        "/v1/indexes/{name}/skipped",
        tags=["indexes"],
        summary="Versions that could not be indexed",
    )
    async def skipped(name: str, limit: Limit = 100, page: PageTokenParameter = None) -> Any:
        """The skip ledger, by partition and offset; the first page also counts lines by reason."""
        index, pages, statuses = await _gather(access, nodes, name, "skipped", page, limit)
        return list_views.skipped(index, pages, limit, page is None, list_views.total(statuses, "skipped"))

    @app.get(
        "/v1/indexes/{name}/violations",
        tags=["indexes"],
        summary="Keys of a UNIQUE index that several documents have",
    )
    async def violations(name: str, limit: Limit = 100, page: PageTokenParameter = None) -> Any:
        """By key, with all documents that have it."""
        index, pages, statuses = await _gather(access, nodes, name, "violations", page, limit)
        if index.violated is not None and not index.placement:
            return list_views.kept_violations(index, index.violated, page, limit)
        return list_views.violations(
            index, pages, limit, list_views.total(statuses, "violations"), exact=list_views.exact(statuses)
        )

    @app.get("/v1/indexes/{name}/load", tags=["indexes"], summary="What its slices get, and what helps")
    async def load(name: str, slice: OneSlice = None) -> Any:
        """Rates of each slice; those that are hot, with what helps; and the values with most of what is
        written to them (without a hot one: to the one that is written to most), by a sample of the last
        minutes."""

        def look(leader: Leader, now: int) -> tuple[IndexRecord, list[tuple[str, ListAsk]], _Ways]:
            index = leader.dictionary.index_named(name)
            slices = loads.slices_to_ask(leader, index, slice)
            return index, loads.asks(index, slices, nodes_to_ask(leader, index)), _ways(leader, now)

        index, asked, ways = await access.look(look)
        answers = await asyncio.gather(
            *(_ask(access, nodes, [one], ways) for one in asked), return_exceptions=True
        )
        written, unasked = [], dict[str, str]()
        for (node, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, RetryableError):  # it stands still, or is of an earlier release
                unasked[node] = answer.message
            elif isinstance(answer, BaseException):
                raise answer
            else:
                written += [one for page in answer for one in page.written]
        document = await access.look(lambda leader, _: loads.load(leader, index, written))
        return {**document, "unasked": unasked}

    @app.get("/v1/indexes/{name}/map", tags=["indexes"], summary="A sample of a spatial index, for a map")
    async def sample(name: str, limit: Limit = 500) -> Any:
        """Bounding boxes of some geometries, [west, south, east, north], spread over where there are any: not
        for statistics."""

        def look(leader: Leader, now: int) -> tuple[IndexRecord, list[tuple[str, ListAsk]], _Ways]:
            index = leader.dictionary.index_named(name)
            asked = map_views.asks(index, limit, nodes_to_ask(leader, index))
            return index, asked, _ways(leader, now)

        index, asked, ways = await access.look(look)
        return map_views.map_answer(index, await _ask(access, nodes, asked, ways), limit)


async def in_half(access: LeaderAccess, nodes: NodeClient, statement: SplitPartition) -> SplitPartition:
    """SPLIT PARTITION where half of what is written to the partition lies; as it is where nobody can say.

    Raises:
        NoSuchIndexError: there is none.
        RetryableError: the slice's node does not answer.
    """

    def look(leader: Leader, now: int) -> tuple[IndexRecord, list[tuple[str, ListAsk]], _Ways]:
        index, number = leader.dictionary.index_named(statement.name), statement.partition
        asked: list[tuple[str, ListAsk]] = []
        if (
            index.definition.partition_kind == "range"
            and index.placement
            and number < index.definition.partitions
        ):
            first, end = Partitioning.of(index.definition, index.splits).starts[number : number + 2]
            asked = loads.asks(index, range(first, end), nodes_to_ask(leader, index))
        return index, asked, _ways(leader, now)

    index, asked, ways = await access.look(look)
    written = [one for page in await _ask(access, nodes, asked, ways) for one in page.written]
    split = next(
        (at for one in written if (at := halving_split(index, statement.partition, one)) is not None), None
    )
    literal = literal_of(split) if split is not None else None
    return statement if literal is None else replace(statement, at=(literal,))


class _Ways(NamedTuple):
    """How nodes are asked: where they are, and the credential."""

    urls: dict[str, str]
    secret: str


def _ways(leader: Leader, now: int) -> _Ways:
    urls = {one["id"]: one["url"] for one in views.nodes(leader, now) if one["url"]}
    return _Ways(urls, leader.dictionary.catalog.secret)


async def _gather(
    access: LeaderAccess, nodes: NodeClient, name: str, what: str, page: str | None, limit: int
) -> tuple[IndexRecord, Sequence[ListPage], Statuses]:
    """The index, one page of each node that holds slices of it, and what its slices last said."""

    def look(leader: Leader, now: int) -> tuple[IndexRecord, list[str], Statuses, _Ways]:
        index = leader.dictionary.index_named(name)
        asked_nodes, statuses = nodes_to_ask(leader, index), slice_statuses(leader, index)
        return index, asked_nodes, statuses, _ways(leader, now)

    index, asked_nodes, statuses, ways = await access.look(look)
    asked = list_views.asks(index, what, page, limit, asked_nodes)
    return index, await _ask(access, nodes, asked, ways), statuses


async def _ask(
    access: LeaderAccess, nodes: NodeClient, asked: Sequence[tuple[str, ListAsk]], ways: _Ways
) -> Sequence[ListPage]:
    """Ask nodes, all at once.

    Raises:
        RetryableError: one does not answer, or not with a page.
    """
    limit_s = float(access.service.settings.coordinator.request_timeout_s)

    async def answer(node: str, ask: ListAsk) -> bytes:
        if node not in ways.urls:
            raise NoAnswerError("it is not known where it is")
        return await nodes.ask(ways.urls[node] + LISTS_PATH, encoder.encode(ask), ways.secret, limit_s)

    tasks = [
        asyncio.ensure_future(_page(node, _while_live(access, node, answer(node, ask))))
        for node, ask in asked
    ]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _while_live(access: LeaderAccess, node: str, answer: Coroutine[Any, Any, bytes]) -> bytes:
    """What a node answers.

    Raises:
        NoAnswerError: nothing, and it is not live.
        Others: as `answer`.
    """

    def live(leader: Leader, now: int) -> bool:
        return any(one["live"] for one in views.nodes(leader, now) if one["id"] == node)

    task = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            if not await access.look(live):
                raise NoAnswerError("it does not answer, and is not live")
        return task.result()
    finally:
        task.cancel()


async def _page(node: str, answer: Coroutine[Any, Any, bytes]) -> ListPage:
    """A node's page.

    Raises:
        RetryableError: it does not answer, or not with a page.
    """
    try:
        return page_decoder.decode(await answer)
    except RefusedError as refused:
        if refused.type:
            raise RetryableError(
                f"node {node}: {refused.detail or refused.status}",
                problem_type=refused.type,
                next_step=refused.next_step or "try again",
            ) from refused
        why = f"it answered {refused.status}"
    except (TimeoutError, NoAnswerError, *UNDECODABLE) as error:
        why = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
    raise NodeUnavailableError(
        f"node {node}, which holds slices of the index, cannot be asked: {why}",
        next_step=TRY_AGAIN,
    )
