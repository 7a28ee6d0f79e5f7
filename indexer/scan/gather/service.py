"""The way of a scan: find the index, agree on a snapshot, gather, page.

Theory of operation
===================
A first page reads the newest published snapshot that satisfies the request (`agree`), again with a newer one
if a slice does not hold it or will not keep it. A page token is given only when every slice that it names
keeps the snapshot. A later page reads what its token says, from that very snapshot, or is `snapshot-gone`.

Rows are made within the read: when entries turn out to be none that can have been written, the slices
examine what they gave. The one that is damaged is then gone, and another replica is tried; if none is, it was
our bug.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import msgspec

from indexer.scan.gather.answer import WrittenAnswer, encode, explain
from indexer.scan.gather.gather import Gathered, count
from indexer.scan.gather.paging import encoded, first_lease_ms, gone_by, later, page_of, target_of, token_of
from indexer.scan.gather.reads import Reads, check_index, check_snapshot
from indexer.scan.gather.scatter import SnapshotMissingError, Target
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import TIP, SliceReader
from indexer.scan.plan.agreement import Agreed
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.holds import SnapshotHold
from indexer.scan.plan.leases import keep_everywhere
from indexer.scan.plan.selection import bounded_offset, effective_limit
from indexer.scan.plan.tokens import HeldToken, PageToken, Seen, newest, sign, verify
from indexer.scan.plan.waiting import Deadline, Gone
from indexer.scan.request.request import CountRequest, HoldRequest, ScanRequest
from indexer.scan.shape.rows import RowMaker
from indexer.validation.service import PageCheck, Validation
from indexer.view import NodeView
from keytide.errors import CallerError
from keytide.settings.settings import ScanSettings


class ScanService:
    """Answers scans from any node of the cluster. Made on the event loop.

    Args:
        view: this node.
        local: its slices, and threads for long work.
        nodes: reads slices here and elsewhere.
        settings: limits and time-outs.
        validation: compares rows with primaries; None where no primaries are set.

    Attributes:
        shared: the parts, for other kinds of reads.
    """

    def __init__(
        self,
        view: NodeView,
        local: LocalReader,
        nodes: SliceReader,
        settings: ScanSettings,
        validation: Validation | None = None,
    ) -> None:
        self._validation = validation or Validation(view, nodes, {})
        self.shared = Reads(view, local, nodes, settings)
        self._nodes = nodes
        self._settings = settings
        self._first_lease_ms = first_lease_ms(self.shared)
        self._lease_ms = settings.lease_s * 1000

    @property
    def waiting(self) -> int:
        """How many requests wait for news."""
        return self.shared.news.listeners

    async def scan(self, name: str, request: ScanRequest, gone: Gone) -> WrittenAnswer:
        """The answer of `POST /v1/indexes/{name}/scan`.

        Args:
            gone: returns when the reader has gone away.

        Raises:
            KeytideError: the typed errors of docs/reference.
            ReaderGoneError: the reader went away while the request waited.
        """
        shared = self.shared
        index = await shared.ready_index(name, request, gone)
        secret = shared.directory.secret()
        seen = shared.session(request)
        if request.page is not None:
            return await self._next_page(index, request, verify(request.page, PageToken, secret), seen)
        limit = effective_limit(request.limit, self._settings.default_limit, self._settings.max_limit)
        offset = bounded_offset(request.offset, self._settings.max_offset)
        selection = shared.selection(request, index, distinct=request.distinct)
        columns = ["key"] if request.distinct else request.columns
        maker = RowMaker(index.shape, columns)
        check = None
        if request.validate:
            limit = self._validation.rows_per_page(index.keyspace, request.limit, limit)
            check = self._validation.check(index, columns)
        began = monotonic()

        async def work(target: Target) -> Gathered:
            return await self._read(target, maker, b"", request.reverse, limit, offset, check)

        agreed = await shared.read(index, selection, request, seen, gone, work, self._first_lease_ms)
        stamp, target = agreed.stamp, agreed.target
        seen = shared.seen_too(seen, index, stamp)
        page = None
        if agreed.gathered.more:
            token = token_of(
                index.id,
                stamp,
                target,
                seen,
                after=agreed.gathered.reached,
                reverse=request.reverse,
                limit=limit,
                offset=agreed.gathered.offset_left,
                columns=columns,
                validate=request.validate,
            )
            page = sign(token, secret)
        validation = await self._validated(check, agreed, maker, began + shared.timeout_s(request))
        return self._rows_answer(index, request, agreed, seen, page, validation)

    async def count(self, name: str, request: CountRequest, gone: Gone) -> WrittenAnswer:
        """The answer of `POST /v1/indexes/{name}/count`. Raises as `scan` does."""
        shared = self.shared
        index = await shared.ready_index(name, request, gone)
        seen = shared.session(request)
        selection = shared.selection(request, index, distinct=request.distinct)
        # The part that the partitioning goes by is in the key: equal keys lie in one slice.
        apart = index.shape.partition_part is not None

        async def work(target: Target) -> Gathered:
            return await count(target, self._nodes, apart=apart)

        agreed = await shared.read(index, selection, request, seen, gone, work)
        head = shared.head(agreed.stamp, shared.seen_too(seen, index, agreed.stamp))
        answer = {"count": agreed.gathered.count, **head}
        if request.explain:
            answer["explain"] = explain(agreed, index.shape.slices)
        return WrittenAnswer(encode(answer), 0, index.name, request.consistency)

    async def hold(self, name: str, request: HoldRequest, gone: Gone) -> WrittenAnswer:
        """The answer of `POST /v1/indexes/{name}/snapshots`: a snapshot that is kept for many reads.

        Raises:
            CallerError (422): for longer than the server allows.
            TooManyLeasesError: a node keeps too many.
            KeytideError, ReaderGoneError: as `scan`.
        """
        shared = self.shared
        index = await shared.ready_index(name, request, gone)
        seen = shared.session(request)
        lease_s = request.lease_s or min(self._settings.lease_s, self._settings.max_hold_s)
        if lease_s > self._settings.max_hold_s:
            raise CallerError(
                f"lease_s {lease_s} is above this server's {self._settings.max_hold_s} s",
                status=422,
                problem_type="lease-too-long",
                next_step="ask for less: every read renews it; or raise scan.max_hold_s",
            )
        with Deadline(shared.timeout_s(request), gone) as patience:
            held = await shared.holds.take(
                index, range(index.shape.slices), request, seen, patience, lease_s * 1000
            )
        seen = shared.seen_too(seen, index, held.stamp)
        answer = {
            "at": sign(held.token(seen), shared.directory.secret()),
            **shared.head(held.stamp, seen),
            "slices": index.shape.slices,
            "expires_in_s": lease_s,
        }
        return WrittenAnswer(encode(answer), 0, index.name, "stable")

    async def give_back(self, name: str, at: str, gone: Gone) -> None:
        """`DELETE /v1/indexes/{name}/snapshots?at=token`. What is not held any more, rolled back or run out,
        is given back already.

        Raises:
            InvalidTokenError: no such token of this cluster and index.
            KeytideError: as `scan`.
        """
        index = await self.shared.ready_index(name, HoldRequest(), gone)
        token = verify(at, HeldToken, self.shared.directory.secret())
        check_index(index, token.index)
        await self.shared.holds.give_back(SnapshotHold.of(token), self.shared.timeout_s(HoldRequest()))

    async def _next_page(
        self, index: Scannable, request: ScanRequest, token: PageToken, seen: Seen
    ) -> WrittenAnswer:
        _check_page(index, token, seen)
        seen = newest(token.seen, seen, self.shared.directory.history)
        target = target_of(
            token,
            index.shape,
            seen.get(index.keyspace, ()),
            self.shared.timeout_s(request),
            self._lease_ms,
        )
        maker = RowMaker(index.shape, token.columns)
        check = None
        if token.validate:
            check = self._validation.check(index, token.columns)
        ends_at = monotonic() + target.timeout_s
        try:
            gathered = await self._read(
                target, maker, token.after, token.reverse, token.limit, token.offset, check
            )
        except SnapshotMissingError as missing:
            raise gone_by(missing, token, self.shared, "start the scan again") from missing
        agreed = later(token, target, gathered)
        seen = self.shared.seen_too(seen, index, agreed.stamp)
        page = None
        if gathered.more:
            token = msgspec.structs.replace(
                token, after=gathered.reached, offset=gathered.offset_left, seen=seen
            )
            page = sign(token, self.shared.directory.secret())
        validation = await self._validated(check, agreed, maker, ends_at)
        return self._rows_answer(index, request, agreed, seen, page, validation)

    async def _read(
        self,
        target: Target,
        maker: RowMaker,
        after: bytes,
        reverse: bool,
        limit: int,
        offset: int,
        check: PageCheck | None,
    ) -> Gathered:
        """Gather a page and make its rows (a large page's in a thread); keep the snapshot if there is a next.

        Args:
            check: learns which versions the rows come from; None when they are not validated.

        Raises:
            SnapshotMissingError: a slice does not hold the snapshot, or is damaged.
            InvariantViolationError: the entries cannot be, and yet no slice finds fault with its own.
        """
        gathered = await page_of(target, self.shared, maker.rows, after, reverse, limit, offset)
        if gathered.more and target.lease_ms:
            await keep_everywhere(target, self._nodes, gathered.leased)
        if check is not None:
            await check.ask_versions(target, gathered.entries)
        return gathered

    async def _validated(
        self, check: PageCheck | None, agreed: Agreed[Gathered], maker: RowMaker, ends_at: float
    ) -> dict[str, Any] | None:
        """Leave stale rows out of a page, and mark the others; returns what the answer says of it."""
        if check is None:
            return None
        judged = await check.judged(agreed.stamp.timestamp, ends_at - monotonic())
        entries = agreed.gathered.entries = judged.entries
        agreed.gathered.rows = await encoded(
            self.shared, len(entries), lambda: judged.marked(maker.rows(entries))
        )
        return judged.summary()

    def _rows_answer(
        self,
        index: Scannable,
        request: ScanRequest,
        agreed: Agreed[Gathered],
        seen: Seen,
        page: str | None,
        validation: dict[str, Any] | None,
    ) -> WrittenAnswer:
        """The answer with its rows."""
        answer: dict[str, Any] = {
            "rows": msgspec.Raw(agreed.gathered.rows),
            **self.shared.head(agreed.stamp, seen),
            "page": page,
        }
        if validation is not None:
            answer["validation"] = validation
        if request.explain:
            answer["explain"] = explain(agreed, index.shape.slices)
        consistency = "tip" if agreed.stamp.number == TIP else "stable"
        return WrittenAnswer(encode(answer), len(agreed.gathered.entries), index.name, consistency)


def _check_page(index: Scannable, token: PageToken, seen: Seen) -> None:
    """Raise unless the token is of this index and of the history that holds now."""
    check_snapshot(index, token.index, token.number, token.incarnation, seen)
