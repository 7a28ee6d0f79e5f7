"""Reading this node's own slices: answers `ReadRequest` and `LeaseRequest` from the snapshots that it holds.

Theory of operation
===================
Snapshots are taken hold of, leased and given back on the event loop; only reading their entries may take
long. A read of at most `INLINE_ROWS` rows is done at once (a hop to a thread costs more than the read), a
longer one, a count, a task or anything that may look at much and find little in threads, turn by turn
(`effort`), so that it holds up no other scan.

A read that belongs to a held snapshot is answered only while the hold lasts, and prolongs it.

Nothing is answered that the present history does not hold, as far as this node knows it: a request that is
behind it is told so (`HistoryAheadError`), one that is ahead finds the snapshot gone and comes again. Nor is
anything answered from a slice that is damaged or being rebuilt: it is `gone`, with its state and the reason.
Only the store itself says that it is damaged. A read that contradicts itself may be the request's fault: it
is `gone` as well, and has the slice examined, which serves on.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from indexer.scan.local.cursor import FilteredRead, pick
from indexer.scan.local.effort import ReadThreads, ReadTurn
from indexer.scan.local.examination import flaw
from indexer.scan.local.extent import entries_of, is_plain, is_short, knows_count, within_s
from indexer.scan.local.filtering import Filters
from indexer.scan.local.pace import UNHURRIED, Pace
from indexer.scan.local.task_registry import TASKS
from indexer.scan.local.tasks import SliceWork, Task, Unfinished
from indexer.scan.peer.messages import (
    TIP,
    HistoryAheadError,
    IndexUnknownHereError,
    LeaseReply,
    LeaseRequest,
    ReadReply,
    ReadRequest,
    SliceReply,
    UnknownTaskError,
)
from indexer.scan.plan.leases import LONGEST_LEASE_S, LeaseRegistry
from indexer.scan.plan.selection import Shape
from indexer.scan.plan.waiting import Gone
from indexer.view import DoubtfulReadError, NodeView, ReadableSnapshot, SliceTrouble, StoreDamagedError
from keytide.catalog.history import History
from keytide.definition import IndexDefinition
from keytide.errors import UNDECODABLE, InvariantViolationError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms

EXAMINED: Final = 50_000
"""Entries that one read looks at in a slice when it filters, counts or skips: some tens of milliseconds. It
is not a setting: `timeout_ms` bounds the whole, this only how it is divided."""
REMEMBERED: Final = 1_000
"""Indexes whose shapes are kept."""

_NOTHING: Final = Timestamp()
_NO_TROUBLE: Final = SliceTrouble("", "")
_RUN_OUT: Final = SliceTrouble("", "the hold has run out, or was given back")
_Held = list[ReadableSnapshot | None]


class LocalReader:
    """Reads the slices of this node.

    Args:
        view: the node.
        max_leases, longest_lease_s, client_leases: see `LeaseRegistry`.
        tasks: what slices can work out (`indexer.scan.local.task_registry`).
        examined: see `EXAMINED`.
        long_readers: see `ReadThreads`.

    Attributes:
        lanes: the threads.
    """

    def __init__(
        self,
        view: NodeView,
        max_leases: int,
        tasks: Mapping[str, Task] = TASKS,
        examined: int = EXAMINED,
        longest_lease_s: int = LONGEST_LEASE_S,
        long_readers: int = 1,
        client_leases: int = 100,
    ) -> None:
        self._view = view
        self._leases = LeaseRegistry(view, max_leases, longest_lease_s, client_leases)
        self._tasks = tasks
        self._examined = examined
        self._filters = Filters()
        self._shapes: dict[str, Shape] = {}
        self.lanes = ReadThreads(long_readers)

    def close(self) -> None:
        self.lanes.close()

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
        history = self._view.history(request.index)
        _check_history(request, history)
        if request.hold and request.in_use and not self._holds(request):
            return ReadReply([self._gone(request.index, one, _RUN_OUT) for one in request.slices])
        held: list[ReadableSnapshot | None] = []
        turn: ReadTurn[list[SliceReply]] | None = None
        try:
            for slice_number in request.slices:
                held.append(self._acquire(request, slice_number, history))
            if is_short(request):
                self.lanes.short()
                replies = self._read(request, held, UNHURRIED)
            else:
                turn = self.lanes.turn(
                    partial(self._read, request, held), within_s(request), first=not request.in_use
                )
                replies = await turn.result(gone)
            leased = self._keeps(request, replies) and not self._keep(request)
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
        if request.hold and not request.lease_ms:
            self._leases.give_back(request.index, request.number, request.hold, self._now())
            return LeaseReply([])
        _check_history(request, self._view.history(request.index))
        if request.hold and request.in_use and not self._holds(request):
            return LeaseReply(request.slices)
        return LeaseReply(self._keep(request))

    def _keeps(self, request: ReadRequest, replies: list[SliceReply]) -> bool:
        """Whether a read that is done keeps its snapshot: not for a hold that was given back meanwhile."""
        if not request.lease_ms or request.number == TIP:
            return False
        if request.hold:
            return not request.in_use or self._holds(request)
        return any(reply.more for reply in replies)

    def _holds(self, request: ReadRequest | LeaseRequest) -> bool:
        """Whether a held snapshot is still held here."""
        return self._leases.holds(request.index, request.number, request.hold, request.slices, self._now())

    def _acquire(self, request: ReadRequest, slice_number: int, history: History) -> ReadableSnapshot | None:
        """The slice's snapshot, None when it does not hold it as the request and the history know it."""
        if self._rebuilding(request.index, slice_number):
            return None
        if request.number == TIP:
            passed = self._view.newest(request.index, slice_number) >= request.passed
            snapshot = self._view.tip(request.index, slice_number)  # (of that number, or later)
            holds = snapshot is None or (
                passed
                and snapshot.timestamp.covers(Timestamp.of(request.covers))
                and history.incarnation == request.incarnation
                and history.holds(snapshot.timestamp, snapshot.incarnation)
            )
        else:
            snapshot = self._view.acquire(request.index, slice_number, request.number)
            holds = snapshot is None or snapshot.incarnation == request.incarnation
        if snapshot is not None and not holds:  # voided by a rollback (R31)
            snapshot.release()
            return None
        return snapshot

    def _rebuilding(self, index: str, slice_number: int) -> str:
        """The build that fills a single slice of a READY index and is not over, "" when there is none."""
        catalog = self._view.catalog()
        record = catalog.index(index)
        name = record.slice_builds.get(slice_number, "") if record is not None else ""
        build = catalog.build(name) if name else None
        return name if build is not None and build.state != "READY" else ""

    def _trouble(self, index: str, slice_number: int) -> SliceTrouble:
        """Why a slice that does not hold a snapshot may not hold it soon; empty when nothing is known."""
        build = self._rebuilding(index, slice_number)
        if build:
            return SliceTrouble("BUILDING", f"build {build} fills it anew")
        return self._view.trouble(index, slice_number) or _NO_TROUBLE

    def _read(self, request: ReadRequest, held: _Held, effort: Pace) -> list[SliceReply]:
        """Read every slice of the request. Any thread."""
        replies: list[SliceReply] = []
        for slice_number, snapshot, after in zip(request.slices, held, request.after, strict=True):
            effort.begin(len(held) - len(replies))
            if snapshot is None:
                trouble = self._trouble(request.index, slice_number)
                replies.append(self._gone(request.index, slice_number, trouble))
                continue
            try:
                replies.append(self._read_slice(request, slice_number, snapshot, after, effort))
            except StoreDamagedError as error:
                self._view.report_damage(request.index, slice_number, error.message)
                replies.append(self._gone(request.index, slice_number, SliceTrouble("LOST", error.message)))
            except DoubtfulReadError as error:
                self._view.report_doubt(request.index, slice_number, error.message)
                replies.append(
                    self._gone(request.index, slice_number, SliceTrouble("DOUBTED", error.message))
                )
        return replies

    def _read_slice(
        self,
        request: ReadRequest,
        slice_number: int,
        snapshot: ReadableSnapshot,
        after: bytes,
        effort: Pace,
    ) -> SliceReply:
        """What one slice gives.

        Raises:
            StoreDamagedError: the store is not what was written.
            DoubtfulReadError: what it gives cannot have been written.
        """
        picked = None
        entries: list[tuple[bytes, bytes]] = []
        more, counted, result = False, 0, b""
        if request.task:
            worked = self._work(request, slice_number, snapshot, after, effort)
            more = isinstance(worked, Unfinished)
            result = worked.result if isinstance(worked, Unfinished) else worked
        elif request.examine:
            self._examine(request, snapshot, after, effort)
        elif is_plain(request):
            entries = entries_of(snapshot, request, after, effort)
            keys = [key for key, _ in entries]
            if not all(map(operator.gt if request.reverse else operator.lt, keys, keys[1:])):
                raise DoubtfulReadError("entries are out of order")
            more = len(entries) >= request.limit
        elif knows_count(request):
            counted = sum(snapshot.count(low, high) for low, high in request.spans)
        else:
            picked = self._pick(request, snapshot, after, effort)
            entries, more, counted = picked.entries, picked.more, picked.counted
        if request.keys_only:
            entries = [(key, b"") for key, _ in entries]
        incarnation = request.incarnation if request.number == TIP else snapshot.incarnation
        newest = self._view.newest(request.index, slice_number)
        reply = SliceReply(
            slice_number,
            snapshot.number,
            snapshot.timestamp,
            entries,
            more,
            counted,
            False,
            newest,
            incarnation,
        )
        if picked is not None:
            reply = replace(reply, reached=picked.reached, skipped=picked.skipped, examined=picked.examined)
        return replace(reply, result=result) if result else reply

    def _pick(
        self, request: ReadRequest, snapshot: ReadableSnapshot, after: bytes, effort: Pace
    ) -> FilteredRead:
        """What a read finds that may look at much.

        Raises:
            DoubtfulReadError: what it looks at cannot have been written.
        """
        try:
            test = None
            if request.filter:
                test = self._filters.of(request.index, self._definition(request.index), request.filter)
            shape = self._shape(request.index)
            return pick(snapshot, request, after, shape, test, self._examined, effort)
        except (InvariantViolationError, UnicodeDecodeError) as error:
            raise DoubtfulReadError(f"an entry cannot be read ({error})") from error

    def _work(
        self,
        request: ReadRequest,
        slice_number: int,
        snapshot: ReadableSnapshot,
        after: bytes,
        effort: Pace,
    ) -> bytes | Unfinished:
        task = self._tasks.get(request.task)
        if task is None:
            raise self._unknown(request)
        definition = self._definition(request.index)
        try:
            return task(SliceWork(request, slice_number, snapshot, definition, after, self._view, effort))
        except UNDECODABLE as error:  # of its arguments: of an entry it is damage
            raise self._unknown(request) from error

    def _unknown(self, request: ReadRequest) -> UnknownTaskError:
        return UnknownTaskError(
            f"node {self._view.node_id} does not know how to work out {request.task}",
            next_step="run the same release on every node",
        )

    def _examine(self, request: ReadRequest, snapshot: ReadableSnapshot, after: bytes, effort: Pace) -> None:
        """Raise `DoubtfulReadError` if what the request reads cannot have been written."""
        if not is_plain(request):
            request = replace(request, limit=max(request.limit, self._examined))
        found = flaw(entries_of(snapshot, request, after, effort), request, after, self._shape(request.index))
        if found:
            raise DoubtfulReadError(found)

    def _shape(self, index: str) -> Shape:
        """An index's, worked out once: ids are not used again. Raises as `_definition`."""
        shape = self._shapes.get(index)
        if shape is None:
            shape = Shape.of(self._definition(index))
            if len(self._shapes) >= REMEMBERED:
                self._shapes.clear()
            self._shapes[index] = shape
        return shape

    def _definition(self, index: str) -> IndexDefinition:
        """An index's.

        Raises:
            IndexUnknownHereError: this node does not know it: it was dropped, or is too new.
        """
        record = self._view.catalog().index(index)
        if record is None:
            raise IndexUnknownHereError(
                f"node {self._view.node_id} knows no index {index}", next_step="try again in a moment"
            )
        return record.definition

    def _gone(self, index: str, slice_number: int, trouble: SliceTrouble) -> SliceReply:
        newest = self._view.newest(index, slice_number)
        return SliceReply(slice_number, -1, _NOTHING, [], False, 0, True, newest, -1, *trouble)

    def _keep(self, request: ReadRequest | LeaseRequest) -> list[int]:
        """Keep the snapshot of a request's slices; returns those that do not hold it."""
        return self._leases.keep(
            request.index,
            request.number,
            request.slices,
            request.lease_ms,
            in_use=request.in_use,
            now=self._now(),
            hold=request.hold,
            client=request.client,
            idle=isinstance(request, LeaseRequest) and request.idle,
        )

    def _now(self) -> int:
        return now_ms()


def _check_history(request: ReadRequest | LeaseRequest, history: History) -> None:
    """Raise `HistoryAheadError` if a rollback that this node knows of has taken back what is asked for."""
    void = (
        request.incarnation < history.incarnation
        if request.number == TIP
        else not history.number_holds(request.number, request.incarnation)
    )
    if void:
        raise HistoryAheadError(
            "the keyspace was rolled back, and the node that asks has not read of it yet",
            next_step="try again in a moment",
        )


def _release(held: _Held) -> None:
    for snapshot in held:
        if snapshot is not None:
            snapshot.release()
