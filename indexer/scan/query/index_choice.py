"""Which index a query is answered from: the catalog's indexes of its keyspace, as candidates for a plan.

An index that would serve and is being built makes the query wait a moment, and then fail as a scan of it
does: that it is not ready is the news, not that there is none. Of several it waits for the first that is
ready, and hears of one that is being built rather than of one that is to be built again.

Planning waits, for counts of entries and for threads, and meanwhile a new layout may take a name over (R45).
A plan is of the layout that it was made on, whose slices and spans say nothing of another one: the layout is
looked up by its id once the plan is there, and read if it still serves; else the query is planned again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from indexer.scan.gather.reads import Reads
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import IndexNotReadyError, PageSnapshotGoneError, UnknownIndexError
from indexer.scan.plan.tokens import HeldToken, verify
from indexer.scan.plan.waiting import Gone
from indexer.scan.query.request import QueryRequest
from indexer.scan.query.sizes import IndexSizes
from keytide.geometry import is_small
from keytide.query.parse.select import Select
from keytide.query.parse.statement import parse_query
from keytide.query.plan.choose import NoIndexError, choose, described
from keytide.query.plan.plan import Candidate, Plan, Refusal, plan_on

_INLINE_CHARACTERS: Final = 2_000
"""Longer queries are parsed and planned in a thread."""
_SHAPES: Final = re.compile(r"ST_(GeomFromGeoJSON|MakeEnvelope)", re.IGNORECASE)
_GEOJSON: Final = re.compile(r"ST_GeomFromGeoJSON", re.IGNORECASE)
_INLINE_SHAPES: Final = 1
"""So are queries of more shapes, or of one in GeoJSON that is not small."""
PLANNINGS: Final = 3
"""How often a query is planned whose indexes are replaced or dropped while it is."""


ResultT = TypeVar("ResultT")


class IndexChooser:
    """Plans queries on the indexes that this node knows.

    Args:
        shared: the parts of the node's endpoint.
    """

    def __init__(self, shared: Reads) -> None:
        self._shared = shared
        self._sizes = IndexSizes(shared)

    async def parsed(self, text: str) -> Select:
        """The query in `text`.

        Raises:
            InvalidStatementError: there is none; says why and where.
        """
        if _is_soon_planned(text):
            return parse_query(text)
        return await self._in_thread(text, parse_query, text)

    async def plan_on(self, select: Select, candidate: Candidate) -> Plan | Refusal:
        """As `keytide.query.plan.plan.plan_on`."""
        if _is_soon_planned(select.text):
            return plan_on(select, candidate)
        return await self._in_thread(select.text, plan_on, select, candidate)

    async def chosen(
        self, select: Select, request: QueryRequest, gone: Gone
    ) -> tuple[Plan, dict[str, Any], Scannable]:
        """The plan to follow, how EXPLAIN shows it, and the layout that it is a plan of.

        Raises:
            NoIndexError: no index serves.
            IndexNotReadyError: one would, and is not ready; or what was planned on was gone each time.
        """
        for _ in range(PLANNINGS):
            there = self._layouts(select.keyspace)
            try:
                plan, shown = await self._made(select, request, gone)
            except NoIndexError:
                if self._layouts(select.keyspace) == there:
                    raise
                continue  # (a new layout may have come while the old one was looked for)
            index = self._shared.directory.layout(plan.index.id)
            if index is not None:
                return plan, shown, index
        raise IndexNotReadyError(
            f"the query was planned {PLANNINGS} times, and each time indexes of {select.keyspace} were "
            "replaced or dropped meanwhile",
            next_step="try again in a moment",
        )

    def _layouts(self, keyspace: str) -> set[str]:
        """Ids of the indexes that bear their names."""
        catalog = self._shared.view.catalog()
        return {one.id for one in catalog.indexes(keyspace) if catalog.bears_name(one)}

    async def _made(self, select: Select, request: QueryRequest, gone: Gone) -> tuple[Plan, dict[str, Any]]:
        """A plan on the indexes as they are now, and how EXPLAIN shows it. Raises as `chosen`."""
        only = None
        if request.at is not None:
            only = verify(request.at, HeldToken, self._shared.directory.secret()).index
        candidates = await self._candidates(select.keyspace, only)
        try:
            return await self._planned(select, candidates)
        except NoIndexError as none:
            if only is not None:
                none.next_step = f"leave `at` out: it is of another index; or {none.next_step}"
            if unready := await self._unready(select, candidates):
                with suppress(UnknownIndexError):  # (it was dropped: the query has not named it)
                    await self._shared.ready_index(unready[0], request, gone, others=unready[1:])
                return await self._planned(select, await self._candidates(select.keyspace, only))
            raise

    async def _planned(self, select: Select, candidates: list[Candidate]) -> tuple[Plan, dict[str, Any]]:
        indexes = list(self._shared.view.catalog().indexes())
        taken, keyspaces = {one.name for one in indexes}, {one.keyspace for one in indexes}
        if _is_soon_planned(select.text):
            return _choose(select, candidates, taken, keyspaces)
        return await self._in_thread(select.text, _choose, select, candidates, taken, keyspaces)

    async def _in_thread(self, text: str, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Have a part of planning done that is not soon done.

        Args:
            text: of the query.
        """
        threads = self._shared.local.threads
        return await (threads.prepare if _SHAPES.search(text) else threads.run)(work, *arguments)

    async def _unready(self, select: Select, candidates: list[Candidate]) -> list[str]:
        """Indexes that would serve if they were ready."""
        waiting = [replace(one, trouble="") for one in candidates if one.trouble]
        return [one.name for one in waiting if isinstance(await self.plan_on(select, one), Plan)]

    async def _candidates(self, keyspace: str, only: str | None) -> list[Candidate]:
        """The indexes of a keyspace.

        Args:
            only: id of the one that may serve, None for all.
        """
        found: list[Candidate] = []
        catalog = self._shared.view.catalog()
        for record in catalog.indexes():
            definition = record.definition
            wanted = catalog.bears_name(record) if only is None else record.id == only
            if definition.keyspace != keyspace or record.state == "DROPPING" or not wanted:
                continue
            try:
                ready = self._shared.directory.index(record.name, record.id)
            except IndexNotReadyError as error:
                found.append(Candidate(record.name, definition, None, error.message, id=record.id))
                continue
            except (PageSnapshotGoneError, UnknownIndexError):
                continue  # it went while others were counted
            if ready.id == record.id:
                entries = await self._sizes.of(ready)
                found.append(Candidate(record.name, definition, entries, splits=record.splits, id=record.id))
        return found


def _choose(
    select: Select, candidates: list[Candidate], taken: Collection[str], keyspaces: Collection[str]
) -> tuple[Plan, dict[str, Any]]:
    """The best plan, and how EXPLAIN shows it. Any thread."""
    plan, others, refusals = choose(select, candidates, taken, keyspaces)
    return plan, described(plan, others, refusals)


def _is_soon_planned(text: str) -> bool:
    """Whether a query is parsed and planned in some milliseconds."""
    if len(text) > _INLINE_CHARACTERS or len(_SHAPES.findall(text)) > _INLINE_SHAPES:
        return False
    return _GEOJSON.search(text) is None or _has_small_shape(text)


def _has_small_shape(text: str) -> bool:
    """Whether the one GeoJSON in a query is small for sure."""
    try:
        return is_small(msgspec.json.decode(text[text.find("{") : text.rfind("}") + 1]))
    except (msgspec.DecodeError, RecursionError):
        return False  # (or there are braces elsewhere)
