"""What every kind of read shares: finding the index, agreeing on a moment, reading, telling the moment.

A scan, a count, an aggregate, a query, a stream differ in what they do with a `Target`. Each calls, in turn,

    index = await shared.ready_index(name, moment, gone)
    seen = shared.session(moment)
    selection = shared.selection(question, index)
    agreed = await shared.read(index, selection, moment, seen, gone, work)      # work: Target -> Asked
    answer = {..., **shared.head(index, agreed.stamp, shared.seen_too(seen, index, agreed.stamp))}

and one that reads more than once from the same moment takes `shared.open` in place of `read`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from indexer.scan.gather.answer import AnswerMaker
from indexer.scan.gather.held_pages import HeldPages
from indexer.scan.gather.scatter import SnapshotMissingError, Target
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import TIP, SliceReader
from indexer.scan.plan.agreement import CATALOG_LAG_S, Agreed, Agreement, AskedT, with_timestamp
from indexer.scan.plan.choose import IndexNotReadyError, PageSnapshotGoneError, Stamp, check_history
from indexer.scan.plan.directory import IndexDirectory, Scannable
from indexer.scan.plan.holds import HoldRegistry, SnapshotHold
from indexer.scan.plan.selection import Selection, selection_of
from indexer.scan.plan.tokens import (
    HeldToken,
    InvalidTokenError,
    Saw,
    Seen,
    SessionToken,
    newest,
    saw_tip,
    sign,
    verify,
)
from indexer.scan.plan.waiting import Deadline, Gone, SnapshotNotifier
from indexer.scan.request.request import Moment, Question
from indexer.view import NodeView
from keytide.errors import HistoryChangedError
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings


class Reads:
    """The parts of one node's scan endpoint. Made on the event loop.

    Args:
        view: this node.
        local: its slices, and threads for long work.
        nodes: reads slices here and elsewhere.
        settings: limits and time-outs.
    """

    def __init__(
        self, view: NodeView, local: LocalReader, nodes: SliceReader, settings: ScanSettings
    ) -> None:
        self.view = view
        self.local = local
        self.nodes = nodes
        self.settings = settings
        self.directory = IndexDirectory(view)
        self.answers = AnswerMaker()
        self.news = SnapshotNotifier()
        self.agreement = Agreement(view, self.directory, self.news)
        self.holds = HoldRegistry(self.agreement, nodes)
        view.on_published(self.news.tell)

    async def ready_index(self, name: str, moment: Moment, gone: Gone) -> Scannable:
        """The index, waiting a moment for an end of its build that this node has not read of yet: who was
        told READY by the coordinator may scan at once.

        Raises:
            UnknownIndexError, IndexNotReadyError: as `IndexDirectory.index`.
        """
        try:
            return self.directory.index(name)
        except IndexNotReadyError as error:
            if error.extra.get("state", "BUILDING") != "BUILDING":
                raise
        with Deadline(min(CATALOG_LAG_S, self.timeout_s(moment)), gone) as patience:
            while True:
                with self.news.listening() as heard:
                    try:
                        return self.directory.index(name)
                    except IndexNotReadyError:
                        if not patience.left:
                            raise
                    await patience.wait(heard)

    def timeout_s(self, moment: Moment) -> float:
        """How long a request may wait."""
        timeout_ms = moment.timeout_ms or self.settings.default_timeout_ms
        return min(timeout_ms, self.settings.max_timeout_ms) / 1000

    def session(self, moment: Moment) -> Seen:
        """What a request's session has seen. Tokens of several answers may be given, with commas between
        them: of answers to requests that ran at the same time, none covers the others.

        Raises:
            InvalidTokenError: a token is none.
        """
        if not moment.session:
            return {}
        secret = self.directory.secret()
        seen: Seen = {}
        for token in moment.session.split(","):
            found = verify(token, SessionToken, secret).seen
            seen = newest(seen, found, self.directory.history) if seen else found
        return seen

    def seen_too(self, seen: Seen, index: Scannable, stamp: Stamp) -> Seen:
        """The session after reading a stamp."""
        if stamp.number != TIP:
            saw: Saw = (stamp.number, stamp.incarnation)
        elif stamp.tip is not None:
            saw = saw_tip(stamp.incarnation, stamp.tip)
        else:
            return seen  # (no slice was asked)
        return newest(seen, {index.keyspace: saw}, self.directory.history)

    def selection(self, question: Question, index: Scannable, *, distinct: bool = False) -> Selection:
        """What a request selects in an index. Raises as `selection_of`."""
        return selection_of(question, index.shape, self.settings.max_spans, distinct=distinct)

    def head(self, stamp: Stamp, seen: Seen) -> dict[str, Any]:
        """The members that every answer has: snapshot, timestamp, session, staleness.

        Args:
            seen: what the session has seen with this answer.
        """
        return self.answers.head(stamp, sign(SessionToken(seen), self.directory.secret()), now_ms())

    async def read(
        self,
        index: Scannable,
        selection: Selection,
        moment: Moment,
        seen: Seen,
        gone: Gone,
        work: Callable[[Target], Awaitable[AskedT]],
        lease_ms: int = 0,
    ) -> Agreed[AskedT]:
        """Do `work` at a moment: at the snapshot that it names, or the newest that satisfies it.

        Args:
            work: reads a target; may be called again with another one.
            lease_ms: how long the snapshot is to be kept for a page token that may follow.

        Raises:
            KeytideError: the typed errors of docs/reference.
            ReaderGoneError: the reader went away while the request waited.
        """
        if moment.at is not None:
            held = self.held(index, moment.at, seen)
            return await self.read_held(held, selection, self.timeout_s(moment), work)
        with Deadline(self.timeout_s(moment), gone) as patience:
            return await self.agreement.read(index, selection, moment, seen, patience, lease_ms, work)

    async def read_held(
        self,
        held: SnapshotHold,
        selection: Selection,
        timeout_s: float,
        work: Callable[[Target], Awaitable[AskedT]],
    ) -> Agreed[AskedT]:
        """Do `work` at a held snapshot, and renew its lease.

        Raises:
            SnapshotGoneError: it is not held any more.
            KeytideError: as `read`.
        """
        target = held.target(selection, timeout_s)
        try:
            asked = await work(target)
        except SnapshotMissingError as missing:
            raise held.gone(missing) from missing
        self.holds.renew(held, asked.leased, timeout_s)
        stamp = with_timestamp(held.stamp, (reply.timestamp for reply in asked.replies.values()))
        return Agreed(stamp, target, asked, 0, [])

    def held(self, index: Scannable, at: str, seen: Seen) -> SnapshotHold:
        """The held snapshot that a token names.

        Raises:
            InvalidTokenError: no such token of this cluster and index.
            HistoryChangedError: a rollback has taken it back.
            IndexNotReadyError: this node has not read of a rollback yet.
        """
        token = verify(at, HeldToken, self.directory.secret())
        check_snapshot(index, token.index, token.number, token.incarnation, seen)
        return SnapshotHold.of(token)

    async def open(
        self,
        index: Scannable,
        selection: Selection,
        moment: Moment,
        seen: Seen,
        gone: Gone,
        *,
        reverse: bool = False,
        offset: int = 0,
        lease_ms: int | None = None,
    ) -> HeldPages:
        """One moment to read from page by page: held from now until it is closed.

        Args:
            lease_ms: how long it is held without being read from; by default as page tokens are.

        Raises:
            KeytideError, ReaderGoneError: as `read`.
        """
        if moment.at is not None:
            held, own = self.held(index, moment.at, seen), False
        else:
            with Deadline(self.timeout_s(moment), gone) as patience:
                lasting = self.settings.lease_s * 1000 if lease_ms is None else lease_ms
                slices = selection.slices or range(index.shape.slices)
                held = await self.holds.take(index, slices, moment, seen, patience, lasting)
                own = True
        return HeldPages(self, held, own, selection, self.timeout_s(moment), reverse, offset)


def check_index(index: Scannable, of_index: str) -> None:
    """Raise unless a token is of this index."""
    if of_index != index.id:
        raise InvalidTokenError(
            f"the token belongs to another index than {index.name}",
            next_step="start the scan again, without the token",
        )


def check_snapshot(index: Scannable, of_index: str, number: int, incarnation: int, seen: Seen) -> None:
    """Raise unless the snapshot that a token names is of this index and of the history that holds now."""
    check_index(index, of_index)
    check_history(seen.get(index.keyspace), index.history)
    if number == TIP:
        void = incarnation < index.incarnation
    else:
        void = not index.history.number_holds(number, incarnation)
    if void:
        raise HistoryChangedError(
            "the source lost records, and what this scan reads was rolled back",
            next_step="start the scan again",
        )
    if incarnation > index.incarnation:
        raise IndexNotReadyError(
            "this node has not read of the keyspace's rollback yet", next_step="try again in a moment"
        )


__all__ = ["PageSnapshotGoneError", "Reads", "check_index", "check_snapshot"]
