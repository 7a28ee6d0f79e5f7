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

import asyncio
from typing import Any, Final

import msgspec

from indexer.scan.agree import CATALOG_LAG_S, Agreed, Agreement, with_timestamp
from indexer.scan.answer import Answer, AnswerMaker, encode, explain
from indexer.scan.choose import IndexNotReadyError, SnapshotGoneError, Stamp, check_history
from indexer.scan.directory import Directory, Scannable
from indexer.scan.gather import Gathered, SnapshotMissingError, Target, count, examine, gather
from indexer.scan.leases import keep_everywhere
from indexer.scan.local import INLINE_ROWS, LocalReader
from indexer.scan.news import Gone, News, Patience
from indexer.scan.reading import TIP, Nodes
from indexer.scan.request import CountRequest, Question, ScanRequest
from indexer.scan.rows import RowMaker
from indexer.scan.selection import effective_limit
from indexer.scan.tokens import InvalidTokenError, PageToken, Seen, SessionToken, newest, sign, verify
from indexer.view import NodeView
from keytide.clock import now_ms
from keytide.collation import Span
from keytide.errors import HistoryChangedError, InvariantViolationError
from keytide.settings import ScanSettings
from keytide.timestamp import Timestamp

_UNREADABLE: Final = (InvariantViolationError, UnicodeDecodeError)
"""What gathering and decoding entries raises that cannot have been written."""


class ScanService:
    """Answers scans from any node of the cluster. Made on the event loop.

    Args:
        view: this node.
        local: its slices, and threads for long work.
        nodes: reads slices here and elsewhere.
        settings: limits and time-outs.
    """

    def __init__(self, view: NodeView, local: LocalReader, nodes: Nodes, settings: ScanSettings) -> None:
        self._local = local
        self._nodes = nodes
        self._settings = settings
        self._first_lease_ms = min(settings.first_lease_s, settings.lease_s) * 1000
        self._lease_ms = settings.lease_s * 1000
        self._directory = Directory(view)
        self._answers = AnswerMaker()
        news = News()
        self._news = news
        self._agreement = Agreement(view, self._directory, news)
        view.on_published(news.tell)

    @property
    def waiting(self) -> int:
        """How many requests wait for news."""
        return self._news.listeners

    async def scan(self, name: str, request: ScanRequest, gone: Gone) -> Answer:
        """The answer of `POST /v1/indexes/{name}/scan`.

        Args:
            gone: returns when the reader has gone away.

        Raises:
            KeytideError: the typed errors of CONTRACT §5.
            ReaderGoneError: the reader went away while the request waited.
        """
        index = await self._ready_index(name, request, gone)
        secret = self._directory.secret()
        seen = _session(request, secret)
        if request.page is not None:
            return await self._next_page(index, request, verify(request.page, PageToken, secret), seen)
        limit = effective_limit(request.limit, self._settings.default_limit, self._settings.max_limit)

        maker = RowMaker(index.shape, request.columns)

        async def work(target: Target) -> Gathered:
            return await self._read(target, maker, b"", request.reverse, limit)

        with Patience(self._timeout_s(request), gone) as patience:
            agreed = await self._agreement.read(index, request, seen, patience, self._first_lease_ms, work)
        stamp, target = agreed.stamp, agreed.target
        seen = self._seen_too(seen, index, stamp)
        page = None
        if agreed.gathered.more:
            token = PageToken(
                index.id,
                stamp.number,
                stamp.incarnation,
                stamp.fresh_at,
                [(span.low, span.high) for span in target.spans],
                list(target.by_node().items()),
                agreed.gathered.entries[-1][0],
                request.reverse,
                limit,
                list(request.columns) if request.columns is not None else None,
                seen,
            )
            page = sign(token, secret)
        return self._rows_answer(index, request, agreed, seen, page)

    async def count(self, name: str, request: CountRequest, gone: Gone) -> Answer:
        """The answer of `POST /v1/indexes/{name}/count`. Raises as `scan` does."""
        index = await self._ready_index(name, request, gone)
        secret = self._directory.secret()
        seen = _session(request, secret)
        with Patience(self._timeout_s(request), gone) as patience:
            agreed = await self._agreement.read(
                index, request, seen, patience, 0, lambda target: count(target, self._nodes)
            )
        session = sign(SessionToken(self._seen_too(seen, index, agreed.stamp)), secret)
        answer = {"count": agreed.gathered.count, **self._answers.head(agreed.stamp, session, now_ms())}
        if request.explain:
            answer["explain"] = explain(agreed, index.shape.slices)
        return Answer(encode(answer), 0, index.name, request.consistency)

    async def _ready_index(self, name: str, question: Question, gone: Gone) -> Scannable:
        """The index, waiting a moment for an end of its build that this node has not read of yet: who was
        told READY by the coordinator may scan at once.

        Raises:
            UnknownIndexError, IndexNotReadyError: as `Directory.index`.
        """
        try:
            return self._directory.index(name)
        except IndexNotReadyError as error:
            if error.extra.get("state", "BUILDING") != "BUILDING":
                raise
        with Patience(min(CATALOG_LAG_S, self._timeout_s(question)), gone) as patience:
            while True:
                with self._news.listening() as heard:
                    try:
                        return self._directory.index(name)
                    except IndexNotReadyError:
                        if not patience.left:
                            raise
                    await patience.wait(heard)

    async def _next_page(
        self, index: Scannable, request: ScanRequest, token: PageToken, seen: Seen
    ) -> Answer:
        _check_page(index, token, seen)
        target = Target(
            token.index,
            token.number,
            token.incarnation,
            [Span(low, high) for low, high in token.spans],
            {number: node for node, slices in token.nodes for number in slices},
            self._timeout_s(request),
            self._lease_ms,
            in_use=True,
        )
        try:
            maker = RowMaker(index.shape, token.columns)
            gathered = await self._read(target, maker, token.after, token.reverse, token.limit)
        except SnapshotMissingError as missing:
            raise SnapshotGoneError(
                f"slice {missing.slice} no longer holds snapshot {token.number}"
                + (f": {missing.reason}" if missing.reason else ""),
                next_step=f"start the scan again; the second page must be asked for within "
                f"{self._first_lease_ms // 1000} s (scan.first_lease_s), each further one within "
                f"{self._lease_ms // 1000} s (scan.lease_s)",
            ) from missing
        page = None
        if gathered.more:
            page = sign(
                msgspec.structs.replace(token, after=gathered.entries[-1][0]), self._directory.secret()
            )
        stamp = with_timestamp(
            Stamp(token.number, token.incarnation, Timestamp(), token.fresh_at),
            (reply.timestamp for reply in gathered.replies.values()),
        )
        agreed = Agreed(stamp, target, gathered, 0, [])
        seen = newest(token.seen, seen, self._directory.holds)
        return self._rows_answer(index, request, agreed, seen, page)

    async def _read(
        self, target: Target, maker: RowMaker, after: bytes, reverse: bool, limit: int
    ) -> Gathered:
        """Gather a page and make its rows (a large page's in a thread); keep the snapshot if there is a next.

        Raises:
            SnapshotMissingError: a slice does not hold the snapshot, or is damaged.
            InvariantViolationError: the entries cannot be, and yet no slice finds fault with its own.
        """
        try:
            gathered = await gather(target, self._nodes, after, reverse, limit)
            entries = gathered.entries
            if len(entries) <= INLINE_ROWS:
                gathered.rows = encode(maker.rows(entries))
            else:
                loop = asyncio.get_running_loop()
                gathered.rows = await loop.run_in_executor(
                    self._local.threads, lambda: encode(maker.rows(entries))
                )
        except _UNREADABLE:
            await examine(target, self._nodes, after, reverse, limit)
            raise
        if gathered.more:
            await keep_everywhere(target, self._nodes, gathered.leased)
        return gathered

    def _seen_too(self, seen: Seen, index: Scannable, stamp: Stamp) -> Seen:
        """The session after reading a stamp; a tip scan has seen nothing that could be named."""
        if stamp.number == TIP:
            return seen
        return newest(seen, {index.keyspace: (stamp.number, stamp.incarnation)}, self._directory.holds)

    def _rows_answer(
        self, index: Scannable, request: ScanRequest, agreed: Agreed, seen: Seen, page: str | None
    ) -> Answer:
        """The answer with its rows."""
        session = sign(SessionToken(seen), self._directory.secret())
        answer: dict[str, Any] = {
            "rows": msgspec.Raw(agreed.gathered.rows),
            **self._answers.head(agreed.stamp, session, now_ms()),
            "page": page,
        }
        if request.explain:
            answer["explain"] = explain(agreed, index.shape.slices)
        consistency = "tip" if agreed.stamp.number == TIP else "stable"
        return Answer(encode(answer), len(agreed.gathered.entries), index.name, consistency)

    def _timeout_s(self, question: Question) -> float:
        timeout_ms = question.timeout_ms or self._settings.default_timeout_ms
        return min(timeout_ms, self._settings.max_timeout_ms) / 1000


def _session(question: Question, secret: bytes) -> Seen:
    """What the question's session has seen."""
    return verify(question.session, SessionToken, secret).seen if question.session else {}


def _check_page(index: Scannable, token: PageToken, seen: Seen) -> None:
    """Raise unless the token is of this index and of the history that holds now."""
    if token.index != index.id:
        raise InvalidTokenError(
            f"the page token belongs to another index than {index.name}", next_step="start the scan again"
        )
    check_history(seen.get(index.keyspace), index.history)
    if token.number == TIP:
        void = token.incarnation < index.incarnation
    else:
        void = not index.history.number_holds(token.number, token.incarnation)
    if void:
        raise HistoryChangedError(
            "the source lost records, and what this scan reads was rolled back",
            next_step="start the scan again",
        )
    if token.incarnation > index.incarnation:
        raise IndexNotReadyError(
            "this node has not read of the keyspace's rollback yet", next_step="try again in a moment"
        )
