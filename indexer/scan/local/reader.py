"""Reading this node's own slices: answers `ReadRequest` and `LeaseRequest` from the snapshots that it holds.

Theory of operation
===================
Snapshots are taken hold of, leased and given back on the event loop; only reading their entries may take
long. A read of at most `INLINE_ROWS` rows is done at once (a hop to a thread costs more than the read), a
longer one, a count, a task or anything that may look at much and find little in threads, turn by turn
(`effort`), so that it holds up no other scan.

A read of a held snapshot is answered, slice by slice, only while the hold lasts there, and prolongs it.

Nothing is answered that the present history does not hold, as far as this node knows it: a request that is
behind it is told so (`HistoryAheadError`), one that is ahead finds the snapshot gone and comes again. Nor is
anything answered from a slice that is damaged or being rebuilt: it is `gone`, with its state and the reason.
Only the store itself says that it is damaged. A read that contradicts itself may be the request's fault: it
is `gone` as well, and has the slice examined, which serves on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Final

from msgspec.structs import replace

from indexer.scan.local.cursor import EXAMINED, SliceSearch, entries_of, without_values
from indexer.scan.local.effort import ReadThreads, ReadTurn
from indexer.scan.local.examining import examined as flaw_of
from indexer.scan.local.joint import JointReads
from indexer.scan.local.once import NotShortError, OncePerDocument, SoonDone, finds_places
from indexer.scan.local.tasks import UNHURRIED, Pace, Task, Unfinished
from indexer.scan.peer.messages import (
    TIP,
    Entry,
    HistoryAheadError,
    LeaseReply,
    LeaseRequest,
    ReadConsistency,
    ReadReply,
    ReadRequest,
    SliceReply,
)
from indexer.scan.plan.directory import rebuilding
from indexer.scan.plan.leases import LONGEST_LEASE_S, LeaseRegistry, Leases, lease_of
from indexer.scan.plan.selection import sifts
from indexer.scan.plan.waiting import Gone
from indexer.view import DoubtfulReadError, NodeView, ReadableSnapshot, SliceTrouble, StoreDamagedError
from keytide.catalog.history import History
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms

INLINE_ROWS: Final = 2_000
"""Rows that are read or written as JSON on the event loop: about 2 ms."""
SEEK_ROWS: Final = 20
"""A seek to a further span costs about as much as so many rows, also when nothing lies in it."""
ROW_BYTES: Final = 16 * 1024
"""A key of up to so many bytes counts as a row: one of a btree has no more, and few are read of each."""
LONGEST_READ_S: Final = 3_600.0
"""Whatever a message says. `scan.max_timeout_ms` is far below it."""

_NOTHING: Final = Timestamp()
_NO_TROUBLE: Final = SliceTrouble("", "")
_RUN_OUT: Final = SliceTrouble("", "the hold has run out, or was given back")
_Held = list[ReadableSnapshot | None]


class LocalReader:
    """Reads the slices of this node.

    Args:
        view: the node.
        max_leases, longest_lease_s, client_leases: see `LeaseRegistry`.
        tasks: what slices can work out, by name (`indexer.scan.local.tasks`).
        examined: see `EXAMINED`.
        long_readers: see `ReadThreads`.
        now: the clock that leases go by, ms.
        leases: where they are taken; this node's own if it is not given.

    Attributes:
        threads: the threads.
        first, within: read slices as one (`JointReads`).
    """

    def __init__(
        self,
        view: NodeView,
        max_leases: int,
        tasks: Mapping[str, Task] | None = None,
        examined: int = EXAMINED,
        longest_lease_s: int = LONGEST_LEASE_S,
        long_readers: int = 1,
        client_leases: int = 100,
        now: Callable[[], int] = now_ms,
        leases: Leases | None = None,
    ) -> None:
        self._view = view
        self._now = now
        self._leases = leases or LeaseRegistry(view, max_leases, longest_lease_s, client_leases)
        joint = JointReads(view, self._leases, now)
        self.first, self.within = joint.first, joint.within
        self._search = SliceSearch(view, tasks or {}, examined)
        self.threads = ReadThreads(long_readers)

    def close(self) -> None:
        self.threads.close()

    async def read(self, request: ReadRequest, gone: Gone | None = None) -> ReadReply:
        """Answer from the snapshots held here. A slice without the snapshot is marked `gone`, never answered
        from another one.

        Args:
            gone: returns when the one who asks has gone away: a long read is given up then. It is, too, when
                the caller is cancelled.

        Raises:
            OutOfTimeError: it was not done within the request's time.
            ReaderGoneError: whoever asked has gone away.
            TooManyLeasesError: a lease was asked for, and is one too many.
            HistoryAheadError: the snapshot was rolled back.
            UnknownTaskError: this release has no such task.
        """
        span, moment, paging = request.span, request.consistency, request.paging
        index, slices, hold = span.index, span.slices, paging.hold
        history = self._view.history(index)
        _check_history(moment.number, moment.incarnation, history)
        if hold and paging.in_use and (run_out := self._run_out(index, moment.number, hold, slices)):
            return await self._read_others(request, run_out, gone)
        held: list[ReadableSnapshot | None] = []
        turn: ReadTurn[list[SliceReply]] | None = None
        try:
            for number in slices:
                held.append(self._acquire(index, number, moment, history))
            soon = SoonDone(INLINE_ROWS) if self._several(index) else None
            short = is_short(request) if soon is None else finds_places(request, soon.rows)
            at_once = self._read_at_once(request, held, soon) if short else None
            if at_once is not None:
                replies = at_once
            else:
                turn = self.threads.turn(
                    partial(self._read, request, held), within_s(request), first=not paging.in_use
                )
                replies = await turn.result(gone)
            leased = self._keeps(request, replies) and not self._leases.keep(lease_of(request), self._now())
            return ReadReply(replies, leased)
        finally:
            if turn is None:
                _release(held)
            else:  # the thread may still be at it, though nobody waits any more
                turn.done.add_done_callback(lambda _: _release(held))

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Keep snapshots that are held here, or give a hold back.

        Raises:
            TooManyLeasesError: one too many.
            HistoryAheadError: the snapshot was rolled back.
        """
        index, number, hold, slices = request.index, request.number, request.hold, request.slices
        if hold and not request.lease_ms:
            self._leases.give_back(index, number, hold, self._now())
            return LeaseReply([])
        _check_history(number, request.incarnation, self._view.history(index))
        run_out = self._run_out(index, number, hold, slices) if hold and request.in_use else []
        slices = [one for one in slices if one not in run_out]
        missing = slices and self._leases.keep(replace(request, slices=slices), self._now())
        return LeaseReply([*run_out, *missing])

    def _keeps(self, request: ReadRequest, replies: list[SliceReply]) -> bool:
        """Whether a read that is done keeps its snapshot: not for a hold that was given back meanwhile."""
        paging, number, span = request.paging, request.consistency.number, request.span
        if not paging.lease_ms or number == TIP:
            return False
        if paging.hold:
            return not (paging.in_use and self._run_out(span.index, number, paging.hold, span.slices))
        return any(reply.more for reply in replies)

    def _run_out(self, index: str, number: int, hold: str, slices: Sequence[int]) -> list[int]:
        """The slices on which a hold does not last here."""
        lasting = self._leases.lasting(index, number, hold, self._now())
        return [one for one in slices if one not in lasting]

    async def _read_others(self, request: ReadRequest, run_out: list[int], gone: Gone | None) -> ReadReply:
        """Answer for the slices on which a hold lasts, of which this may be the last copy; of the others that
        it does not."""
        span, index = request.span, request.span.index
        replies = {one: self._gone(index, one, _RUN_OUT) for one in run_out}
        after = {one: at for one, at in zip(span.slices, span.after, strict=True) if one not in replies}
        if after:
            others = replace(span, slices=list(after), after=list(after.values()))
            read = await self.read(replace(request, span=others), gone)
            replies |= {reply.slice: reply for reply in read.slices}
        return ReadReply([replies[one] for one in span.slices])

    def _acquire(
        self, index: str, slice_number: int, moment: ReadConsistency, history: History
    ) -> ReadableSnapshot | None:
        """The slice's snapshot, None when it does not hold it as the request and the history know it."""
        if rebuilding(self._view.catalog(), index, slice_number):
            return None
        if moment.number == TIP:
            passed = self._view.newest(index, slice_number) >= moment.passed
            snapshot = self._view.tip(index, slice_number)  # (of that number, or later)
            holds = snapshot is None or (
                passed
                and snapshot.timestamp.covers(Timestamp.of(moment.covers))
                and history.incarnation == moment.incarnation
                and history.holds(snapshot.timestamp, snapshot.incarnation)
            )
        else:
            snapshot = self._view.acquire(index, slice_number, moment.number)
            holds = snapshot is None or snapshot.incarnation == moment.incarnation
        if snapshot is not None and not holds:  # voided by a rollback (R31)
            snapshot.release()
            return None
        return snapshot

    def _trouble(self, index: str, slice_number: int) -> SliceTrouble:
        """Why a slice that does not hold a snapshot may not hold it soon; empty when nothing is known."""
        build = rebuilding(self._view.catalog(), index, slice_number)
        if build:
            return SliceTrouble("BUILDING", f"build {build} fills it anew")
        return self._view.trouble(index, slice_number) or _NO_TROUBLE

    def _read_at_once(
        self, request: ReadRequest, held: _Held, soon: SoonDone | None
    ) -> list[SliceReply] | None:
        """Do a short read; None where it turns out to be none: who makes digests collide on purpose may have
        much looked at for little."""
        self.threads.short_at = monotonic()
        try:
            return self._read(request, held, None, soon)
        except NotShortError:
            return None

    def _read(
        self, request: ReadRequest, held: _Held, pace: Pace | None, soon: SoonDone | None = None
    ) -> list[SliceReply]:
        """Read every slice of the request. Any thread; with a pace if it is not short, else maybe `soon`."""
        replies: list[SliceReply] = []
        index = request.span.index
        for number, snapshot, after in zip(request.span.slices, held, request.span.after, strict=True):
            if pace is not None:
                pace.begin(len(held) - len(replies))
            if snapshot is None:
                replies.append(self._gone(index, number, self._trouble(index, number)))
                continue
            try:
                replies.append(self._read_slice(request, number, snapshot, after, pace, soon))
            except StoreDamagedError as error:
                self._view.report_damage(index, number, error.message)
                replies.append(self._gone(index, number, SliceTrouble("LOST", error.message)))
            except DoubtfulReadError as error:
                self._view.report_doubt(index, number, error.message)
                replies.append(self._gone(index, number, SliceTrouble("DOUBTED", error.message)))
        return replies

    def _read_slice(
        self,
        request: ReadRequest,
        number: int,
        snapshot: ReadableSnapshot,
        after: bytes,
        pace: Pace | None,
        soon: SoonDone | None,
    ) -> SliceReply:
        """What one slice gives.

        Raises:
            StoreDamagedError, DoubtfulReadError: it is not what was written.
            NotShortError: without a pace only: not all of what is found is wanted, or it is long to test.
        """
        span, limit, shape, whole = request.span, request.paging.limit, request.shape, snapshot
        if not shape.examine and self._several(span.index):
            snapshot = OncePerDocument(snapshot, span.spans)
        entries: list[Entry] = []
        more, counted, result, reached, skipped, examined = False, 0, b"", b"", 0, 0
        if shape.task:
            worked = self._search.work(request, number, snapshot, after, pace or UNHURRIED)
            more = isinstance(worked, Unfinished)
            result = worked.result if isinstance(worked, Unfinished) else worked
        elif shape.examine:
            most = limit if is_plain(request) else max(limit, self._search.examined)
            index_shape = self._search.shape(span.index)
            if found := flaw_of(snapshot, span, after, most, index_shape, pace or UNHURRIED):
                raise DoubtfulReadError(found)
        elif is_plain(request) or (limit and pace is None and not shape.filter):
            entries, more = entries_of(snapshot, request, after, pace)
            if shape.keys and not self._search.all_wanted(entries, request):
                raise NotShortError
            keys = [key for key, _ in entries]
            if not all(map(operator.gt if span.reverse else operator.lt, keys, keys[1:])):
                raise DoubtfulReadError("entries are out of order")
        elif knows_count(request) and snapshot is whole:
            counted = sum(snapshot.count(low, high) for low, high in span.spans)
        else:
            searched = self._search.find(request, whole, after, pace or UNHURRIED, soon)
            entries, more, reached, examined = searched.found
            counted, skipped = searched.counted, searched.skipped
        if shape.keys_only:
            entries = without_values(entries)
        moment = request.consistency
        return SliceReply(
            number,
            snapshot.number,
            snapshot.timestamp,
            entries,
            more,
            counted,
            False,
            self._view.newest(span.index, number),
            moment.incarnation if moment.number == TIP else snapshot.incarnation,
            "",
            "",
            reached,
            skipped,
            examined,
            result,
        )

    def _several(self, index: str) -> bool:
        """Whether a document may have several entries; so of an index that is not known here (any more)."""
        record = self._view.catalog().index(index)
        return record is None or record.definition.structure.several

    def _gone(self, index: str, slice_number: int, trouble: SliceTrouble) -> SliceReply:
        newest = self._view.newest(index, slice_number)
        return SliceReply(slice_number, -1, _NOTHING, [], False, 0, True, newest, -1, *trouble)


def _check_history(number: int, incarnation: int, history: History) -> None:
    """Raise `HistoryAheadError` if a rollback that this node knows of has taken back what is asked for."""
    if incarnation < history.incarnation if number == TIP else not history.number_holds(number, incarnation):
        raise HistoryAheadError(
            "the keyspace was rolled back, and the node that asks has not read of it yet",
            next_step="try again in a moment",
        )


def _release(held: _Held) -> None:
    for snapshot in held:
        if snapshot is not None:
            snapshot.release()


def is_plain(request: ReadRequest) -> bool:
    """Whether the first entries that are found are those that are wanted."""
    shape = request.shape
    return bool(request.paging.limit) and not (
        shape.filter or shape.keys or shape.distinct or request.paging.skip
    )


def knows_count(request: ReadRequest) -> bool:
    """Whether this is a count that the store knows without reading."""
    shape = request.shape
    return not (request.paging.limit or shape.filter or shape.keys or shape.distinct) and all(
        not low and high is None for low, high in request.span.spans
    )


def is_short(request: ReadRequest) -> bool:
    """Whether the read is done faster than a thread is asked to do it, as far as can be told."""
    span, paging, shape = request.span, request.paging, request.shape
    tests, keys = shape.filter or shape.distinct or paging.skip, shape.keys
    if shape.task or shape.examine:
        return False
    if paging.limit and not sifts(tests, keys, (high for _, high in span.spans)):
        seeks = SEEK_ROWS * max(0, len(span.spans) - 1)  # the first one is in the measure of `INLINE_ROWS`
        weight = 1 + max(map(len, keys), default=0) // ROW_BYTES
        return (paging.limit + seeks) * len(span.slices) * weight <= INLINE_ROWS
    return knows_count(request)


def within_s(request: ReadRequest) -> float | None:
    """How long a read may take; None for what its limit bounds."""
    if is_plain(request) or not request.paging.within_ms:
        return None
    return min(request.paging.within_ms / 1000, LONGEST_READ_S)
