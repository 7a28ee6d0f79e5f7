"""The way of a scan: find the index, agree on a snapshot, gather, page.

Theory of operation
===================
A first page reads the newest published snapshot that satisfies the request (`Reads.read`), again with a newer
one if a slice does not hold it or will not keep it. A page token names everything that the next page needs
(`tokens.PageToken`), so that any node answers it from the same snapshot; it is given only when every slice
that it names keeps the snapshot. A later page reads what its token says, from that very snapshot, or is
`snapshot-gone`.

Rows are made within the read: when entries turn out to be none that can have been written, the slices
examine what they gave. The one that is damaged is then gone, and another replica is tried; if none is, it was
our bug.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from indexer.scan.gather.gather import Gathered, count, examine, gather
from indexer.scan.gather.holds import SnapshotHold
from indexer.scan.gather.reads import Reads, WrittenAnswer
from indexer.scan.gather.scatter import Agreed, Target, monotonic
from indexer.scan.gather.story import explain
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import TIP, Entry, SliceReader
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import PageSnapshotGoneError, SnapshotMissingError, catching_up
from indexer.scan.plan.selection import Stamp
from indexer.scan.plan.tokens import (
    HeldToken,
    KeyedPageToken,
    PageToken,
    Seen,
    by_node,
    copies_of,
    newest,
    sign,
    verify,
)
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import CountRequest, HoldRequest, Moment, ScanRequest
from indexer.scan.shape.rows import RowMaker, encode
from indexer.validation.page import PageCheck
from indexer.validation.service import Validation
from indexer.view import NodeView
from keytide.errors import CallerError, InvariantViolationError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import wall_ms
from keytide.settings.http import MAX_BODY_BYTES
from keytide.settings.settings import ScanSettings

UNREADABLE: Final = (InvariantViolationError, UnicodeDecodeError)
"""What gathering and decoding entries raises that cannot have been written."""


class ScanService:
    """Answers scans from any node of the cluster. Made on the event loop.

    Args:
        view: this node.
        local: its slices, and threads for long work.
        nodes: reads slices here and elsewhere.
        settings: limits and time-outs.
        validation: compares rows with primaries; None where no primaries are set.
        wall, choose, max_body_bytes: as in `Reads`.

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
        *,
        wall: Callable[[], int] = wall_ms,
        choose: Callable[[Sequence[str]], str] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._validation = validation or Validation(view, nodes, {})
        self.shared = Reads(view, local, nodes, settings, wall, choose, max_body_bytes)
        self._settings = settings

    @property
    def waiting(self) -> int:
        """How many requests wait for another snapshot."""
        return self.shared.notifier.listeners

    async def scan(self, name: str, request: ScanRequest, gone: Gone) -> WrittenAnswer:
        """The answer of `POST /v1/indexes/{name}/scan`.

        Args:
            gone: returns when the reader has gone away.

        Raises:
            KeytideError: the typed errors of docs/reference.
            ReaderGoneError: the reader went away while the request waited.
        """
        shared = self.shared
        if request.page is not None:
            token = verify(request.page, KeyedPageToken, shared.directory.secret())
            index = await shared.ready_index(name, request, gone, token.index)
            return await self._next_page(index, request, token, shared.session(request))
        index = await shared.ready_index(name, request, gone)
        seen = shared.session(request)
        limit, offset = page_bounds(request.limit, request.offset, self._settings)
        selection = await shared.selected(request, index, distinct=request.distinct, reverse=request.reverse)
        columns = ["key"] if request.distinct else request.columns
        maker = RowMaker(index.shape, columns)
        check = None
        if request.validate:
            limit = self._validation.rows_per_page(index.keyspace, request.limit, limit)
            check = self._validation.check(index, columns)
        ends_at = monotonic() + shared.timeout_s(request)

        async def work(target: Target) -> Gathered:
            return await self._page(target, maker, b"", request.reverse, limit, offset, check)

        agreed = await shared.read(index, selection, request, seen, gone, work, first_lease_ms(shared))
        seen = shared.seen_too(seen, index, agreed.stamp)
        onward = None
        if agreed.gathered.more:
            onward = agreed.target.page_token(
                agreed.stamp,
                seen,
                agreed.gathered.kept(agreed.target),
                after=agreed.gathered.reached,
                reverse=request.reverse,
                limit=limit,
                offset=agreed.gathered.offset_left,
                columns=columns,
                validate=request.validate,
            )
        return await self._answer(index, request, agreed, seen, onward, maker, check, ends_at)

    async def _next_page(
        self, index: Scannable, request: ScanRequest, token: KeyedPageToken, seen: Seen
    ) -> WrittenAnswer:
        shared = self.shared
        maker = RowMaker(index.shape, token.columns)
        check = self._validation.check(index, token.columns) if token.validate else None
        ends_at = monotonic() + shared.timeout_s(request)

        async def work(target: Target) -> Gathered:
            return await self._page(
                target, maker, token.after, token.reverse, token.limit, token.offset, check
            )

        again = "start the scan again"
        agreed, seen = await next_page(index, request, token, token.keys, seen, shared, work, again)
        onward = None
        if agreed.gathered.more:
            onward = msgspec.structs.replace(
                token,
                nodes=onward_nodes(token, agreed.target),
                after=agreed.gathered.reached,
                offset=agreed.gathered.offset_left,
                seen=seen,
            )
        return await self._answer(index, request, agreed, seen, onward, maker, check, ends_at)

    async def _page(
        self,
        target: Target,
        maker: RowMaker,
        after: bytes,
        reverse: bool,
        limit: int,
        offset: int,
        check: PageCheck | None,
    ) -> Gathered:
        """A page; with its rows' versions, if they are to be validated."""
        gathered = await page_of(target, self.shared, maker.page, after, reverse, limit, offset)
        if check is not None:
            await check.ask_versions(target, gathered.entries)
        return gathered

    async def _answer(
        self,
        index: Scannable,
        request: ScanRequest,
        agreed: Agreed[Gathered],
        seen: Seen,
        onward: PageToken | None,
        maker: RowMaker,
        check: PageCheck | None,
        ends_at: float,
    ) -> WrittenAnswer:
        """The answer; of validated rows without those that are stale, and the others marked."""
        gathered, head = agreed.gathered, self.shared.head(agreed.stamp, seen)
        following = None if onward is None else KeyedPageToken.of(onward, agreed.target.keys)
        validated: dict[str, Any] = {}
        if check is not None:
            judged = await check.judged(agreed.stamp.timestamp, ends_at - monotonic())
            entries = gathered.entries = judged.entries
            gathered.rows = await self.shared.encoded(
                len(entries), lambda: judged.marked(maker.rows(entries))
            )
            validated["validation"] = judged.summary()
        answer: dict[str, Any] = {
            "rows": msgspec.Raw(gathered.rows),
            **head,
            "page": self.shared.page(following, head["session"]),
            **validated,
        }
        if request.explain:
            answer["explain"] = explain(agreed, index.shape.slices)
        consistency = "tip" if agreed.stamp.number == TIP else "stable"
        return WrittenAnswer(encode(answer), len(gathered.entries), index.name, consistency)

    async def count(self, name: str, request: CountRequest, gone: Gone) -> WrittenAnswer:
        """The answer of `POST /v1/indexes/{name}/count`. Raises as `scan` does."""
        shared = self.shared
        index = await shared.ready_index(name, request, gone)
        seen = shared.session(request)
        selection = await shared.selected(request, index, distinct=request.distinct)

        async def work(target: Target) -> Gathered:
            return await count(target, shared.nodes, apart=index.shape.keys_apart)

        agreed = await shared.read(index, selection, request, seen, gone, work)
        head = shared.head(agreed.stamp, shared.seen_too(seen, index, agreed.stamp))
        answer = {"count": agreed.gathered.count, **head}
        if request.explain:
            answer["explain"] = explain(agreed, index.shape.slices)
        return WrittenAnswer(msgspec.json.encode(answer), 0, index.name, request.consistency)

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
        held = await shared.hold(index, range(index.shape.slices), request, seen, gone, lease_s * 1000)
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
        token = verify(at, HeldToken, self.shared.directory.secret())
        index = await self.shared.ready_index(name, HoldRequest(), gone, token.index)
        index.check_index(token.index)
        await self.shared.holds.give_back(SnapshotHold.of(token), self.shared.timeout_s(HoldRequest()))


# --- pages, of queries too --------------------------------------------------------------------------------


def page_bounds(limit: int | None, offset: int, settings: ScanSettings) -> tuple[int, int]:
    """The page size and the offset to use.

    Raises:
        CallerError (422): more than the server allows.
    """
    if limit is not None and limit > settings.max_limit:
        raise CallerError(
            f"limit {limit} is above this server's {settings.max_limit} rows per page",
            status=422,
            problem_type="limit-too-large",
            next_step="ask for smaller pages and follow the page tokens",
        )
    if offset > settings.max_offset:
        raise CallerError(
            f"offset {offset} is above this server's {settings.max_offset}",
            status=422,
            problem_type="offset-too-large",
            next_step="follow the page tokens, which cost nothing for rows gone by, or use `low`",
        )
    return settings.default_limit if limit is None else limit, offset


async def page_of(
    target: Target,
    shared: Reads,
    rows: Callable[[Sequence[Entry]], Any],
    after: bytes,
    reverse: bool,
    limit: int,
    offset: int,
    most: int | None = None,
    weight: int = 1,
) -> Gathered:
    """A page of entries with its rows. If a next one follows, all slices keep the snapshot.

    Args:
        rows: makes the rows of entries.
        most: rows of all pages from this one on; None for no limit.
        weight: how many common rows each takes as long as.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot, or is damaged.
        InvariantViolationError: the entries cannot be, and yet no slice finds fault with its own.
        RetryableError: a node did not answer.
    """
    room = shared.settings.max_page_bytes
    try:
        gathered = await gather(target, shared.nodes, after, reverse, limit, offset, room)
        entries = gathered.entries
        gathered.rows = await shared.encoded(len(entries) * weight, lambda: rows(entries))
    except UNREADABLE:  # (each slice at the copy that has answered)
        await examine(target, shared.nodes, after, reverse, limit + offset)
        raise
    gathered.more = gathered.more and (most is None or len(entries) < most)
    if gathered.more and not gathered.kept_everywhere(target):
        # (Where all rows were to be on one page no lease was asked for; and then they were too large.)
        leasing = target if target.lease_ms else replace(target, lease_ms=first_lease_ms(shared))
        await shared.holds.keep(leasing, gathered.leased, newest=not target.in_use)
    return gathered


async def next_page(
    index: Scannable,
    moment: Moment,
    token: PageToken,
    keys: frozenset[bytes],
    seen: Seen,
    shared: Reads,
    work: Callable[[Target], Awaitable[Gathered]],
    again: str,
) -> tuple[Agreed[Gathered], Seen]:
    """A later page, agreed on by the first one; and what the session has seen with it.

    Args:
        keys: that entries must have one of; empty for all.
        seen: what the session had seen.
        work: reads the page.
        again: what to do when its snapshot is gone, in words.

    Raises:
        PageSnapshotGoneError: a slice does not hold the snapshot any more.
        KeytideError: as `Scannable.check_snapshot`; of newest states, a slice is behind.
    """
    index.check_snapshot(token.index, token.number, token.incarnation, seen)
    seen = newest(token.seen, seen, shared.directory.history)
    saw, lease_s = seen.get(index.keyspace, ()), shared.settings.lease_s
    target = Target.of(token, index.shape, saw, shared.timeout_s(moment), lease_s * 1000, keys)
    try:
        gathered = await work(target)
    except SnapshotMissingError as missing:
        if token.number == TIP:
            raise catching_up(missing) from missing
        missing.raise_if_passing()
        raise PageSnapshotGoneError(
            f"slice {missing.slice} no longer holds snapshot {token.number}"
            + (f": {missing.reason}" if missing.reason else ""),
            next_step=f"{again}; the second page must be asked for within "
            f"{first_lease_ms(shared) // 1000} s (scan.first_lease_s), each further one within "
            f"{lease_s} s (scan.lease_s)",
        ) from missing
    stamp = Stamp(token.number, token.incarnation, Timestamp(), token.fresh_at).of(gathered.timestamps())
    return Agreed(stamp, target, gathered, 0, []), shared.seen_too(seen, index, stamp)


def onward_nodes(token: PageToken, target: Target) -> list[tuple[str, list[int]]]:
    """What a token names: the same copies, of each slice the one first that has answered."""
    copies = copies_of(token.nodes)
    for number, node in target.elsewhere.items():
        copies[number].sort(key=lambda one, node=node: one != node)  # type: ignore[misc]
    return by_node(copies) if target.elsewhere else token.nodes


def first_lease_ms(shared: Reads) -> int:
    """How long the token of a first page keeps its snapshot."""
    return min(shared.settings.first_lease_s, shared.settings.lease_s) * 1000
