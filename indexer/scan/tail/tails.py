"""Tails: the changes of a selection from snapshot to snapshot (`GET /v1/indexes/{name}/tail`).

Theory of operation
===================
A tail tells one moment (its rows too, if wanted), and then, whenever a newer snapshot is common to all
slices, what was added and removed since. The slices work out the difference themselves (`tail_changes`), from
two snapshots that are both held for the tail, so an event is exact: the rows after it are the rows of a scan
at its snapshot. A reader that is slow, or a difference that takes long, makes an event cover several
snapshots: after each the tail rests for as long as the difference took, times `RESTS`, so that tails never
take most of a node.

A snapshot without a change makes no event. The next difference is still taken from the moment told last, and
the newest moment without a change goes with the next heartbeat (`scan.tail_heartbeat_s`): an `id` without
data, which is no event either, so that a reader that comes again goes on from there.

Every event has a token with which the tail can be resumed, here or at another node, for as long as its
snapshot is held (`moments`): the last two moments told are, so that an event that did not arrive can be
had again; when the reader goes away they stay until their leases run out (`scan.tail_lease_s`).

An event may be larger than memory. Changes are collected up to `scan.stream_block_bytes`; if there are more,
they are not kept but worked out again as they are written, the added ones first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Final

from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import SliceAnswers, Target, ask, requests_of
from indexer.scan.local.reader import INLINE_ROWS
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import TooManyTailsError
from indexer.scan.plan.selection import Selection
from indexer.scan.plan.tokens import sign, verify
from indexer.scan.plan.waiting import Deadline, Gone
from indexer.scan.request.request import Moment
from indexer.scan.shape.rows import RowMaker, encode
from indexer.scan.stream.merge import BlockReader
from indexer.scan.stream.streams import OpenLimit
from indexer.scan.tail.change_over import ChangeOver, Over
from indexer.scan.tail.changes import (
    TASK,
    ChangesWanted,
    Side,
    SliceChanges,
    decode_changes,
    encode_wanted,
)
from indexer.scan.tail.moments import (
    TailRequest,
    TailToken,
    Told,
    digest_of,
    first_moment,
    gone_by,
    later_moment,
    resumed_moment,
)
from keytide.model.entry import Entry

RESTS: Final = 3
"""How long a tail rests after working out a difference, in multiples of the time that it took."""
_HEARTBEAT: Final = b": nothing new\n"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class OpenTail:
    """One tail, as `Tails.open` makes it.

    Attributes:
        head, media_type: of the answer.
        resumed: it goes on where another one ended: there is no first event.
        events: how many to tell, None for no end.
        rows: how many rows were told so far.
    """

    def __init__(
        self,
        shared: Reads,
        index: Scannable,
        request: TailRequest,
        selection: Selection,
        told: Told,
        resumed: bool,
    ) -> None:
        self.head = dict(_HEADERS)
        self.media_type = "text/event-stream"
        self.resumed = resumed
        self.events = request.events
        self.index = index.name
        self.rows = 0
        self._shared = shared
        self._request = request
        self._begin_in(index, selection)
        self._told = told
        self._before: Told | None = None
        self._telling: Told | None = None
        self._quiet: Told | None = None
        self._left: Told | None = None
        self._unnamed = False
        self._timeout_s = shared.timeout_s(request)
        self._changing = ChangeOver(shared, request, self._timeout_s)
        self._rest_until = 0.0

    # --- events -----------------------------------------------------------------

    async def first(self) -> AsyncIterator[bytes]:
        """The first event: the moment, and the rows if they are wanted, in pieces."""
        yield self._head(self._told, "snapshot")
        if self._request.initial:
            async for piece in self._array("added", self._initial()):
                yield piece
        yield b"}\n\n"

    async def next(self, gone: Gone, limit_s: float) -> AsyncIterator[bytes] | None:
        """The next event, in pieces; None when nothing changes within `limit_s` seconds.

        Raises:
            HistoryChangedError: the moment told last was rolled back.
            SnapshotGoneError: it is not held any more.
            KeytideError: as `Reads.read`.
        """
        if (over := self._changing.take(self._newest)) is not None:
            self._change_over(over)
            return None
        ends = monotonic() + limit_s
        while await self._news(gone, ends - monotonic()):
            began = monotonic()
            index = await self._shared.ready_index(self._name(), Moment(), gone, self._index.id)
            told = await later_moment(self._shared, index, self._newest, gone, self._timeout_s)
            if told is None:
                return None
            try:
                await self._changing.look(index, told)
                small = await self._changes(told)
            except BaseException:
                await asyncio.shield(self._shared.holds.give_back(told.held, self._timeout_s))
                raise
            self._rest_until = monotonic() + RESTS * (monotonic() - began)
            passed, self._quiet = self._quiet, None
            if passed is not None:
                await self._shared.holds.give_back(passed.held, self._timeout_s)
            if small is None or small.added or small.removed:
                self._telling = told
                return self._event(told, small)
            self._quiet = told
        return None

    async def heartbeat(self) -> AsyncIterator[bytes]:
        """A comment, which is no event; with the newest moment without a change, to go on from there."""
        quiet, self._quiet = self._quiet, None
        unnamed, self._unnamed = self._unnamed, False
        if quiet is None:
            name = f"id: {self._token(self._told)}\n" if unnamed else ""
            yield _HEARTBEAT + f"{name}\n".encode()
            return
        self._telling = quiet
        yield _HEARTBEAT + f"id: {self._token(quiet)}\n\n".encode()
        await self._moved(quiet)

    def renew(self) -> None:
        """Keep what was told last, and what is being told, while nothing is read from it. That it is gone is
        told by the next comparison."""
        for told in (self._before, self._left, self._told, self._quiet, self._telling):
            if told is not None:
                self._shared.holds.renew(told.held, {}, self._timeout_s)
        self._changing.renew()

    async def close(self) -> None:
        """The tail is over: it keeps nobody's place any more. What it told last can be gone on from for as
        long as there is room; what it did not get to tell is given back."""
        holds = self._shared.holds
        self._changing.close()
        for untold in (self._quiet, self._telling):
            if untold is not None and untold.held.own:
                await holds.give_back(untold.held, self._timeout_s)
        for told in (self._before, self._left, self._told):
            if told is not None and told.held.own:
                await holds.leave(told.held, self._timeout_s)

    async def _event(self, told: Told, small: SliceChanges | None) -> AsyncIterator[bytes]:
        """An event as it is sent; when all of it was taken, its moment is the one that was told."""
        yield self._head(told, "changes")
        if small is not None:
            for name, entries in (("added", small.added), ("removed", small.removed)):
                yield b',"%b":' % name.encode() + await self._rows(entries, in_order=False)
        else:
            for side in ("added", "removed"):
                async for piece in self._array(side, self._one_side(told, side)):
                    yield piece
        yield b"}\n\n"
        await self._moved(told)

    async def _moved(self, told: Told) -> None:
        """The reader has a moment: it, and the one before, are held for it."""
        self._drop(self._left)
        self._left = None
        released, self._before, self._told, self._telling = self._before, self._told, told, None
        if released is not None and released.held.own:
            await self._shared.holds.give_back(released.held, self._timeout_s)

    @property
    def _newest(self) -> Told:
        """The newest moment that was looked at."""
        return self._quiet or self._told

    def _token(self, told: Told) -> str:
        return sign(TailToken(told.held.token(told.seen), self._digest), self._shared.directory.secret())

    def _head(self, told: Told, name: str) -> bytes:
        """The lines of an event up to its moment; its JSON object is left open."""
        members = self._shared.head(told.held.stamp, told.seen)
        shown = {key: members[key] for key in ("snapshot", "timestamp", "session")}
        return f"id: {self._token(told)}\nevent: {name}\ndata: ".encode() + encode(shown)[:-1]

    async def _rows(self, entries: Sequence[Entry], *, in_order: bool = True) -> bytes:
        """Entries as a JSON array of rows; many of them are made in a thread."""
        self.rows += len(entries)

        def made() -> bytes:
            return encode(self._maker.rows(entries if in_order else sorted(entries)))

        if len(entries) <= INLINE_ROWS:
            return made()
        return await self._shared.local.threads.run(made)

    async def _array(self, name: str, blocks: AsyncIterator[Sequence[Entry]]) -> AsyncIterator[bytes]:
        """A member of the event's object: rows, however many."""
        yield b',"%b":[' % name.encode()
        comma = b""
        async for entries in blocks:
            if entries:
                yield comma + (await self._rows(entries))[1:-1]
                comma = b","
        yield b"]"

    # --- what they tell ---------------------------------------------------------

    async def _initial(self) -> AsyncIterator[Sequence[Entry]]:
        """All rows of the moment told first."""
        told = self._told
        reader = BlockReader(
            self._shared,
            replace(told.held, own=False),
            self._selection,
            self._timeout_s,
            self._shared.settings.stream_block_bytes,
        )
        try:
            while (block := await reader.next()) is not None:
                yield block.entries.items()
        finally:
            await reader.close()

    async def _changes(self, told: Told) -> SliceChanges | None:
        """All changes up to a moment; None when they are too many to be kept."""
        most = self._shared.settings.stream_block_bytes
        all_of_them = SliceChanges([], [])
        size = 0
        async for changes in self._differences(told, "both"):
            all_of_them.added += changes.added
            all_of_them.removed += changes.removed
            size += sum(len(k) + len(v) for rows in (changes.added, changes.removed) for k, v in rows)
            if size > most:
                return None
        return all_of_them

    async def _one_side(self, told: Told, side: Side) -> AsyncIterator[Sequence[Entry]]:
        async for changes in self._differences(told, side):
            yield changes.added if side == "added" else changes.removed

    async def _differences(self, told: Told, side: Side) -> AsyncIterator[SliceChanges]:
        """What changed from the moment told last to another one, slice by slice, some at a time."""
        older = self._told.held
        wanted = ChangesWanted(
            older.stamp.number,
            older.stamp.incarnation,
            max(1, self._shared.settings.stream_block_bytes // max(1, len(self._selection.slices))),
            self._request.columns is None or "include" in self._request.columns,
            side,
        )
        body = encode_wanted(wanted)
        held = told.held.at(older.copies)  # which hold the snapshot before, too, where there are any
        after = dict.fromkeys(self._selection.slices, b"")
        while after:
            selection = replace(self._selection, slices=tuple(after))

            async def work(target: Target, after: dict[int, bytes] = after) -> SliceAnswers:
                asked = SliceAnswers()
                requests = requests_of(target, target.nodes, after, task=TASK, body=body)
                await ask(target, self._shared.nodes, requests, asked)
                return asked

            agreed = await self._shared.holds.read(held, selection, self._timeout_s, work)
            further: dict[int, bytes] = {}
            for number in after:
                changes = decode_changes(agreed.gathered.replies[number].result)
                if changes.gone:  # (a copy that restarted meanwhile has the newer one only)
                    held = held.without(number, agreed.target.node_of(number))
                    if not held.copies[number]:
                        raise gone_by(number, older)
                    further[number] = after[number]
                    continue
                if changes.more:
                    further[number] = changes.reached
                yield changes
            after = further

    # --- moments ----------------------------------------------------------------

    def _change_over(self, over: Over) -> None:
        """Go on in another layout, from the newest moment. The heartbeat that follows names it; until more is
        told, a reader who did not get that may still come with what was told in the old layout."""
        self._drop(self._quiet)
        self._drop(self._left)
        self._left, self._told, self._quiet = self._told, over.told, None
        self._begin_in(over.index, over.selection)
        self._unnamed = True

    def _begin_in(self, index: Scannable, selection: Selection) -> None:
        """Read this layout from now on."""
        self._index, self._selection = index, selection
        self._digest = digest_of(selection, self._request.columns)
        self._maker = RowMaker(index.shape, self._request.columns)

    def _drop(self, told: Told | None) -> None:
        if told is not None and told.held.own:
            self._shared.holds.drop(told.held, self._timeout_s)

    def _name(self) -> str:
        """Of its index, which may be renamed meanwhile."""
        return self._shared.directory.name(self._index)

    async def _news(self, gone: Gone, limit_s: float) -> bool:
        """Wait for a newer common snapshot, for at most `limit_s` seconds; not before the tail has rested."""
        with Deadline(limit_s, gone) as patience:
            rest = self._rest_until - monotonic()
            if rest > 0:
                await patience.wait(at_most=rest)
            while True:
                with self._shared.notifier.listening() as heard:
                    number = self._shared.view.published(self._index.id)
                    history = self._shared.directory.index(self._name(), self._index.id).history
                    stamp = self._newest.held.stamp
                    if not history.number_holds(stamp.number, stamp.incarnation):
                        return True  # `later_moment` says what happened
                    if number is not None and number > stamp.number:
                        return True
                    if not patience.left:
                        return False
                    await patience.wait(heard)


class Tails:
    """Opens the tails of one node.

    Args:
        shared: of its endpoint.

    Attributes:
        limit: of those that are open.
    """

    def __init__(self, shared: Reads) -> None:
        self._shared = shared
        self.limit = OpenLimit(shared.view.node_id, "tails", shared.settings.max_tails, TooManyTailsError)

    async def open(self, name: str, request: TailRequest, resume: str | None, gone: Gone) -> OpenTail:
        """Open a tail; it counts as open until `limit.closed` is called.

        Args:
            resume: token of the event behind which to go on.

        Raises:
            TooManyTailsError: one too many.
            SnapshotGoneError: the moment to go on from is not held any more.
            KeytideError, ReaderGoneError: as a scan's.
        """
        shared = self._shared
        with self.limit.one_more():
            layout = verify(resume, TailToken, shared.directory.secret()).held.index if resume else ""
            index = await shared.ready_index(name, request, gone, layout)
            seen = shared.session(request)
            selection = await shared.selected(request, index)
            told = (
                await resumed_moment(shared, index, selection, request, resume, seen)
                if resume
                else await first_moment(shared, index, selection, request, seen, gone)
            )
            return OpenTail(shared, index, request, selection, told, bool(resume))
