"""`POST /v1/query`: a SELECT answered from the index that serves it best, at one moment.

Theory of operation
===================
The query is parsed and planned on every index of its keyspace (`keytide.query`); what comes of it is a read
like any other: a selection (spans, slices, filter) at a moment, by the rules of scans. Spans and slices are
those of one layout, so what is read is the layout that was planned on, by its id and not by the name, which
another one may have taken over meanwhile. Rows in an index's
order come in pages, whose tokens carry the snapshot and the query. Sorted rows and groups come in one answer;
settings bound them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

from indexer.scan.gather.gather import Gathered
from indexer.scan.gather.reads import Reads, WrittenAnswer
from indexer.scan.gather.scatter import Agreed, AskedT, Target
from indexer.scan.gather.service import first_lease_ms, next_page, onward_nodes, page_bounds, page_of
from indexer.scan.gather.story import explain
from indexer.scan.peer.messages import TIP, OutOfTimeError
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import PageSnapshotGoneError
from indexer.scan.plan.selection import Selection, sifts
from indexer.scan.plan.tokens import InvalidTokenError, PageToken, Seen, Token, verify
from indexer.scan.plan.waiting import Gone
from indexer.scan.query.groups import GroupReader
from indexer.scan.query.index_choice import IndexChooser
from indexer.scan.query.request import QueryRequest, QueryToken
from indexer.scan.query.rows import OutputMaker, Sorted, sorted_rows
from indexer.scan.request.request import InvalidRequestError
from indexer.scan.shape.rows import encode
from keytide.query.plan.plan import Candidate, Plan


class QueryService:
    """Answers queries.

    Args:
        shared: the parts of the node's endpoint.
    """

    def __init__(self, shared: Reads) -> None:
        self._shared = shared
        self._chooser = IndexChooser(shared)

    async def answer(self, request: QueryRequest, gone: Gone) -> WrittenAnswer:
        """The answer of `POST /v1/query`.

        Args:
            gone: returns when the reader has gone away.

        Raises:
            NoIndexError: no index serves; says which CREATE INDEX would.
            KeytideError: the typed errors of docs/reference; of statements; of sorting and aggregates.
            ReaderGoneError: the reader went away while the request waited.
        """
        shared = self._shared
        secret = shared.directory.secret()
        seen = shared.session(request)
        began = monotonic()
        if request.page is not None:
            return await self._next_page(request, verify(request.page, QueryToken, secret), seen, gone)
        select = await self._chooser.parsed(request.sql)
        plan, shown, index = await self._chooser.chosen(select, request, gone)
        if select.explain:
            return WrittenAnswer(encode(shown), 0, plan.index.name, request.consistency)
        request = self._with_the_rest(request, began)
        query = _PlannedQuery(shared, index, plan, request, seen, gone, shown)
        if select.grouped:
            return await query.groups()
        if not plan.ordered and select.limit != 0:
            return await query.sorted()
        return await query.first_page()

    def _with_the_rest(self, request: QueryRequest, began: float) -> QueryRequest:
        """A request with what planning has left of its time.

        Raises:
            OutOfTimeError: nothing.
        """
        allowed_s = self._shared.timeout_s(request)
        left_ms = int((allowed_s - (monotonic() - began)) * 1000)
        if left_ms < 1:
            raise OutOfTimeError(
                f"planning the query took all of its {allowed_s:.1f} s",
                next_step="allow more with timeout_ms",
            )
        return msgspec.structs.replace(request, timeout_ms=left_ms)

    async def _next_page(
        self, request: QueryRequest, token: QueryToken, seen: Seen, gone: Gone
    ) -> WrittenAnswer:
        if request.sql and request.sql != token.sql:
            raise InvalidRequestError(
                "the page token belongs to another query", next_step="send the same `sql`, or leave it out"
            )
        shared = self._shared
        record = shared.view.catalog().index(token.scan.index)
        if record is None:
            raise PageSnapshotGoneError("the index that served the query was dropped", next_step="ask again")
        index = await shared.ready_index(record.name, request, gone, record.id)
        select = await self._chooser.parsed(token.sql)
        candidate = Candidate(record.name, record.definition, splits=record.splits, id=record.id)
        plan = await self._chooser.plan_on(select, candidate)
        if not isinstance(plan, Plan):
            raise InvalidTokenError(
                f"this node does not read the query as the one that made the token did ({plan.reason})",
                next_step="run the same release on every node, and ask again",
            )
        return await _PlannedQuery(shared, index, plan, request, seen, gone, None).next_page(token)


@dataclass(slots=True)
class _PlannedQuery:
    """A query whose plan and index are known.

    Attributes:
        seen: what the session has seen.
        explained: the plan, for `explain`.
    """

    shared: Reads
    index: Scannable
    plan: Plan
    request: QueryRequest
    seen: Seen
    gone: Gone
    explained: dict[str, Any] | None

    # --- rows in the index's order ------------------------------------------------

    async def first_page(self) -> WrittenAnswer:
        plan, select = self.plan, self.plan.select
        limit, offset = page_bounds(self.request.limit, select.offset, self.shared.settings)
        one_page = select.limit is not None and select.limit <= limit
        limit = limit if select.limit is None else min(limit, select.limit)
        maker = OutputMaker(plan)

        async def work(target: Target) -> Gathered:
            return await self._page(target, maker, b"", plan.reverse, limit, offset, select.limit)

        # What filters or leaves out may stop before its page is full, when its time is over. (Where keys are
        # sought only who makes their digests collide on purpose gets that far, and is told to ask again.)
        highs = (one.high for one in plan.reading.spans)
        for_sure = one_page and not sifts(plan.filter or offset, plan.reading.keys, highs)
        agreed = await self._read(work, 0 if for_sure else first_lease_ms(self.shared))
        token = agreed.target.page_token(
            agreed.stamp,
            self.seen,
            agreed.gathered.kept(agreed.target),
            after=b"",
            reverse=plan.reverse,
            limit=self.request.limit or 0,
            offset=0,
        )
        return self._rows_answer(agreed, token, select.limit)

    async def next_page(self, token: QueryToken) -> WrittenAnswer:
        scan = token.scan
        limit, _ = page_bounds(scan.limit or None, 0, self.shared.settings)
        limit = limit if token.left is None else min(limit, token.left)
        maker = OutputMaker(self.plan)

        async def work(target: Target) -> Gathered:
            return await self._page(target, maker, scan.after, scan.reverse, limit, scan.offset, token.left)

        keys = frozenset(self._selection.keys)  # (the query says them)
        agreed, self.seen = await next_page(
            self.index, self.request, scan, keys, self.seen, self.shared, work, "ask again"
        )
        return self._rows_answer(agreed, msgspec.structs.replace(scan, seen=self.seen), token.left)

    async def _page(
        self,
        target: Target,
        maker: OutputMaker,
        after: bytes,
        reverse: bool,
        limit: int,
        offset: int,
        left: int | None,
    ) -> Gathered:
        """A page, if there is anything to be had.

        Args:
            left: how many rows the query's LIMIT allows.
        """
        if not limit:
            return Gathered()
        rows, weight = maker.rows, maker.weight
        return await page_of(target, self.shared, rows, after, reverse, limit, offset, left, weight)

    def _rows_answer(self, agreed: Agreed[Gathered], token: PageToken, left: int | None) -> WrittenAnswer:
        """The answer with a page of rows.

        Args:
            token: where this page began.
            left: how many rows the LIMIT allowed before it.
        """
        gathered, following = agreed.gathered, None
        if gathered.more:
            onward = msgspec.structs.replace(
                token,
                nodes=onward_nodes(token, agreed.target),
                after=gathered.reached,
                offset=gathered.offset_left,
            )
            still = None if left is None else left - len(gathered.entries)
            following = QueryToken(onward, self.plan.select.text, still)
        return self._answer(agreed, msgspec.Raw(gathered.rows or b"[]"), len(gathered.entries), following)

    # --- sorted rows, groups ------------------------------------------------------

    async def sorted(self) -> WrittenAnswer:
        maker = OutputMaker(self.plan)

        async def work(target: Target) -> Sorted:
            return await sorted_rows(target, self.shared, self.plan, maker)

        agreed = await self._read(work, first_lease_ms(self.shared))
        rows = agreed.gathered.rows
        written = msgspec.Raw(await self.shared.local.threads.run(encode, rows))
        return self._answer(agreed, written, len(rows), None)

    async def groups(self) -> WrittenAnswer:
        reader = GroupReader(self.plan, self.shared)
        agreed = await self._read(reader.work, first_lease_ms(self.shared))
        run = self.shared.local.threads.run
        found = await run(reader.rows, agreed.gathered)
        rows = msgspec.Raw(await run(encode, found.rows))
        extra = {"ignored": found.ignored} if found.ignored else {}
        return self._answer(agreed, rows, len(found.rows), None, **extra)

    @property
    def _selection(self) -> Selection:
        """What the plan selects."""
        plan = self.plan
        if plan.select.limit == 0:
            return Selection((), ())
        return Selection(
            plan.reading.spans, plan.slices, plan.filter, in_order=plan.in_order, keys=plan.reading.keys
        )

    async def _read(self, work: Callable[[Target], Awaitable[AskedT]], lease_ms: int) -> Agreed[AskedT]:
        """Read what the plan selects; from now on the session has seen it."""
        agreed = await self.shared.read(
            self.index, self._selection, self.request, self.seen, self.gone, work, lease_ms
        )
        self.seen = self.shared.seen_too(self.seen, self.index, agreed.stamp)
        return agreed

    def _answer(
        self, agreed: Agreed[AskedT], rows: msgspec.Raw, count: int, following: Token | None, **extra: Any
    ) -> WrittenAnswer:
        """The answer of a query.

        Args:
            following: where the next page begins; None without one.
            extra: further members.
        """
        head = self.shared.head(agreed.stamp, self.seen)
        body: dict[str, Any] = {
            "columns": [one.name for one in self.plan.outputs],
            "rows": rows,
            "index": self.index.name,
            **head,
            "page": self.shared.page(following, head["session"]),
            **extra,
        }
        if self.request.explain:
            body["explain"] = explain(agreed, self.index.shape.slices)
            if self.explained is not None:
                body["plan"] = self.explained
        consistency = "tip" if agreed.stamp.number == TIP else "stable"
        return WrittenAnswer(encode(body), count, self.index.name, consistency)
