"""What every kind of read shares: finding the index, agreeing on a moment, reading, telling the moment.

A scan, a count, an aggregate, a query, a stream differ in what they do with a `Target`. Each calls, in turn,

    index = await shared.ready_index(name, moment, gone)
    seen = shared.session(moment)
    selection = await shared.selected(question, index)
    agreed = await shared.read(index, selection, moment, seen, gone, work)  # work: Target -> SliceAnswers
    answer = {..., **shared.head(agreed.stamp, shared.seen_too(seen, index, agreed.stamp))}

and one that reads more than once from the same moment takes `shared.open` in place of `read`.

Nearly always the newest published snapshot satisfies a request, and every slice holds it: it is read at once.
Else `indexer.scan.plan.agreement` waits, and tries again.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from indexer.scan.gather.gather import Gathered
from indexer.scan.gather.holds import HoldRegistry, SnapshotHold
from indexer.scan.gather.scatter import Agreed, AskedT, Target, monotonic
from indexer.scan.local.reader import INLINE_ROWS, LocalReader
from indexer.scan.peer.messages import TIP, SliceReader
from indexer.scan.plan.agreement import HINDRANCES, Agreement, Hindrance
from indexer.scan.plan.directory import IndexDirectory, Scannable
from indexer.scan.plan.errors import IndexNotReadyError, PageTokenTooLargeError, UnknownIndexError
from indexer.scan.plan.radii import Radii
from indexer.scan.plan.readiness import first_ready
from indexer.scan.plan.selection import Selection, Stamp, demanded_offsets, filter_json, selection_of
from indexer.scan.plan.spatial import takes_long
from indexer.scan.plan.tokens import HeldToken, Saw, Seen, SessionToken, Token, newest, saw_tip, sign, verify
from indexer.scan.plan.waiting import Deadline, Gone, SnapshotNotifier
from indexer.scan.request.request import Moment, Question
from indexer.scan.shape.rows import encode
from indexer.view import NodeView
from keytide.definition.normal import ordered_statement
from keytide.model.timestamp import Timestamp
from keytide.process.clock import wall_ms
from keytide.settings.http import MAX_BODY_BYTES
from keytide.settings.settings import ScanSettings
from keytide.structure import NotOrderedError

BESIDE_TOKENS: Final = 1_024
"""Bytes of a request for a page beside its tokens."""


class WrittenAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer, and what the metrics count of it.

    Attributes:
        body: JSON.
        rows: how many rows are in it.
        index: the index's name.
    """

    body: bytes
    rows: int
    index: str
    consistency: str


class Reads:
    """The parts of one node's scan endpoint. Made on the event loop.

    Args:
        view: this node.
        local: its slices, and threads for long work.
        nodes: reads slices here and elsewhere.
        settings: limits and time-outs.
        wall: the machine's clock, ms. Waits and time-outs go by the clock of the event loop.
        choose: one of several replicas; the less busy one of two if it is not given.
        max_body_bytes: the largest request that readers can send.
    """

    def __init__(
        self,
        view: NodeView,
        local: LocalReader,
        nodes: SliceReader,
        settings: ScanSettings,
        wall: Callable[[], int] = wall_ms,
        choose: Callable[[Sequence[str]], str] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.view = view
        self.local = local
        self.nodes = nodes
        self.settings = settings
        self.directory = IndexDirectory(view, wall, choose or self._less_busy)
        self.notifier = SnapshotNotifier()
        self.holds = HoldRegistry(nodes)
        self.radii = Radii()
        self._max_body_bytes = max_body_bytes
        self._wall = wall
        self._timestamp: Timestamp | None = None
        self._timestamp_json = msgspec.Raw(b"{}")
        self._session: tuple[object, ...] = ()
        self._session_token = ""
        view.on_published(self.notifier.tell)

    def _less_busy(self, replicas: Sequence[str]) -> str:
        """Of two on nodes that answer the one with less to do."""
        healthy = self.nodes.health.answering(replicas, monotonic()) or replicas
        return self.nodes.health.less_busy(*random.choices(healthy, k=2))

    def _replica(self, index: Scannable, number: int, without: set[str] | None = None) -> str:
        """Where to read a slice, if possible not at some nodes, not where it lags, and not where it is behind
        while another node that has it answers."""
        copies = index.placement[number]
        if len(copies) == 1:
            return copies[0]
        health, of, now = self.nodes.health, (index.id, number), monotonic()
        if behind := health.behind(of, now):
            counted = [one for one in health.waited_for(copies, of) if not (without and one in without)]
            for there in ([one for one in counted if one not in behind], counted):
                if health.answering(there, now):
                    return self.directory.replica(there)
        return self.directory.replica(copies, without)

    async def ready_index(
        self, name: str, moment: Moment, gone: Gone, layout: str = "", others: Sequence[str] = ()
    ) -> Scannable:
        """The index, waiting a moment for its beginning, or the end of its build, that this node has not read
        of yet: who was told READY by the coordinator may scan at once.

        Args:
            layout: as in `IndexDirectory.index`, of a token; that of `moment.at` is taken by itself.
            others: indexes that would do as well: the first that is ready is taken.

        Raises:
            InvalidTokenError: `moment.at` is no token of this cluster.
            UnknownIndexError, IndexNotReadyError: as `first_ready`.
        """
        if moment.at is not None:
            layout = verify(moment.at, HeldToken, self.directory.secret()).index
        with suppress(IndexNotReadyError, UnknownIndexError):
            return self.directory.index(name, layout)
        names, timeout_s = (name, *others), self.timeout_s(moment)
        return await first_ready(self.directory, self.notifier, names, layout, timeout_s, gone)

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

    async def selected(self, question: Question, index: Scannable, **how: bool) -> Selection:
        """As `selection`; a place that takes long is made ready in a thread."""
        if question.place_member and takes_long(question):
            return await self.local.threads.prepare(partial(self.selection, question, index, **how))
        return self.selection(question, index, **how)

    def selection(
        self,
        question: Question,
        index: Scannable,
        *,
        distinct: bool = False,
        reverse: bool = False,
        nearest: bool = False,
    ) -> Selection:
        """What a request selects. Raises as `selection_of`: NotOrderedError says what would serve."""
        most = self.settings.max_spans
        try:
            return selection_of(
                question, index.shape, most, distinct=distinct, reverse=reverse, nearest=nearest
            )
        except NotOrderedError as error:
            catalog = self.view.catalog()
            if (record := catalog.index(index.id)) is not None:
                statement = ordered_statement(record.definition, {one.name for one in catalog.indexes()})
                error.next_step = f"{error.next_step.removesuffix('.')}: {statement}"
                error.extra["create_index"] = statement
            raise

    def head(self, stamp: Stamp, seen: Seen) -> dict[str, Any]:
        """The members that every answer has: snapshot, timestamp, session, staleness.

        Args:
            seen: what the session has seen with this answer.
        """
        timestamp = stamp.timestamp
        if timestamp is not self._timestamp:  # the same for many scans, and written once
            self._timestamp, self._timestamp_json = timestamp, msgspec.Raw(encode(timestamp.as_json()))
        secret = self.directory.secret()
        if self._session != (session := (secret, *seen.items())):  # (so, too)
            self._session, self._session_token = session, sign(SessionToken(seen), secret)
        return {
            "snapshot": None if stamp.number == TIP else stamp.number,
            "timestamp": self._timestamp_json,
            "session": self._session_token,
            "staleness_ms": max(0, self._wall() - stamp.fresh_at) if stamp.fresh_at else None,
        }

    async def encoded(self, count: int, rows: Callable[[], Any]) -> bytes:
        """So many rows as JSON; many of them are made in a thread."""
        if count <= INLINE_ROWS:
            return encode(rows())
        return await self.local.threads.run(lambda: encode(rows()))

    def page(self, token: Token | None, session: str) -> str | None:
        """A page token as an answer has it.

        Args:
            token: None where no page follows.
            session: of the same answer.

        Raises:
            PageTokenTooLargeError: no request could bring it back.
        """
        if token is None:
            return None
        written = sign(token, self.directory.secret())
        if (size := len(written) + len(session) + BESIDE_TOKENS) > self._max_body_bytes:
            raise PageTokenTooLargeError(size, self._max_body_bytes)
        return written

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
            work: reads a target; may be called again with another one. May raise `Hindrance`.
            lease_ms: how long the snapshot is to be kept for a page token that may follow.

        Raises:
            KeytideError: the typed errors of docs/reference.
            ReaderGoneError: the reader went away while the request waited.
        """
        timeout_s = self.timeout_s(moment)
        if moment.at is not None:
            held = self.named_hold(index, moment.at, seen)
            return await self.holds.read(held, selection, timeout_s, work)
        return await self._agree(index, selection, moment, seen, gone, timeout_s, work, lease_ms)

    async def _agree(
        self,
        index: Scannable,
        selection: Selection,
        moment: Moment,
        seen: Seen,
        gone: Gone,
        timeout_s: float,
        work: Callable[[Target], Awaitable[AskedT]],
        lease_ms: int,
    ) -> Agreed[AskedT]:
        """Do `work` on the newest snapshot that satisfies a moment."""
        began = monotonic()
        tested, keys = filter_json(selection), frozenset(selection.keys)

        async def read_at(
            index: Scannable, stamp: Stamp, nodes: Mapping[int, str], waited_for: list[str]
        ) -> Agreed[AskedT]:
            target = Target(
                index.id,
                stamp.number,
                stamp.incarnation,
                selection.spans,
                nodes,
                max(0.001, timeout_s - (monotonic() - began)),
                lease_ms,
                False,
                tested,
                selection.distinct,
                in_order=selection.in_order,
                saw=seen.get(index.keyspace, ()),
                others=self.directory.others(index.placement, nodes),
                leaving={number: there for number, there in index.leaving.items() if number in nodes},
                keys=keys,
            )
            gathered = await work(target)
            waited_ms = int((monotonic() - began) * 1000)
            return Agreed(stamp.of(gathered.timestamps()), target, gathered, waited_ms, waited_for)

        slices, nodes = selection.slices, {}
        hindrance: Hindrance | None = None
        at_least = demanded_offsets(moment, index.partitions)
        stamp, lacking = self.directory.newest_stamp(index, moment, seen, at_least)
        if stamp is not None and lacking is None and not index.out:
            nodes = {number: self._replica(index, number) for number in slices}
            try:
                return await read_at(index, stamp, nodes, [])
            except HINDRANCES as error:
                hindrance = error
        with Deadline(timeout_s, gone, monotonic() - began) as deadline:
            agreement = Agreement(
                self.view, self.directory, self.notifier, slices, moment, seen, deadline, self._replica
            )
            return await agreement.read(index, nodes, read_at, hindrance)

    async def hold(
        self,
        index: Scannable,
        slices: Sequence[int],
        moment: Moment,
        seen: Seen,
        gone: Gone,
        lease_ms: int,
        *,
        kind: str = "",
        timeout_s: float | None = None,
        copies: Mapping[int, Sequence[str]] | None = None,
    ) -> SnapshotHold:
        """Hold the newest snapshot that satisfies a moment. Of the tip nothing is held: the answer says where
        to read it.

        Args:
            kind: how its id begins.
            timeout_s: longest wait; that of the moment if it is not given.
            copies: slice -> nodes that may hold it, the first one first; any if it is not given.

        Raises:
            TooManyLeasesError: a node keeps too many.
            KeytideError, ReaderGoneError: as `read`.
        """
        hold = "" if moment.consistency == "tip" else kind + secrets.token_hex(8)
        timeout_s = self.timeout_s(moment) if timeout_s is None else timeout_s

        async def take(target: Target) -> Gathered:
            if copies is not None:
                target = target.at(copies)
            return await self.holds.take(replace(target, spans=(), hold=hold))

        selection = Selection((), slices)
        agreed = await self._agree(index, selection, moment, seen, gone, timeout_s, take, lease_ms)
        held = agreed.gathered.kept(agreed.target)
        saw = seen.get(index.keyspace, ())
        return SnapshotHold(index.id, hold, agreed.stamp, held, lease_ms, seen, saw, own=True)

    def named_hold(self, index: Scannable, at: str, seen: Seen) -> SnapshotHold:
        """The held snapshot that a token names.

        Raises:
            InvalidTokenError: no such token of this cluster and index.
            HistoryChangedError: a rollback has taken it back.
            IndexNotReadyError: this node has not read of a rollback yet.
        """
        token = verify(at, HeldToken, self.directory.secret())
        index.check_snapshot(token.index, token.number, token.incarnation, seen)
        return SnapshotHold.of(token)

    async def open(
        self, index: Scannable, selection: Selection, moment: Moment, seen: Seen, gone: Gone
    ) -> SnapshotHold:
        """One moment to read from many times: held from now, and as long without being read from as page
        tokens are. To be given back if it is `own`.

        Raises:
            KeytideError, ReaderGoneError: as `read`.
        """
        if moment.at is not None:
            return self.named_hold(index, moment.at, seen)
        slices = selection.slices or range(index.shape.slices)
        return await self.hold(index, slices, moment, seen, gone, self.settings.lease_s * 1000)
