"""The snapshots that a slice keeps open, and who may still read them.

Theory of operation
===================
Every commit gives a `StoreSnapshot`. A ring keeps, by number:

* the newest few (a setting);
* the newest common one, which the leader has published: stable scans read it (R5);
* what is newer than that, for a slower slice may work towards any of them (R5), up to a limit: beyond it
  those of lowest rank go first (`keytide.model.landmarks`), which slower slices are least likely to reach;
* what a page token has leased, until the lease runs out (a slice that leaves gives none of a snapshot that
  nobody has leased: a token may be used by another client than it was given to);

and, whatever its number, the newest commit, for scans of the tip. The rest is closed, once nobody reads it.
The tip is shown from the first commit on whose number is not older than what is published: what a restart or
a rollback finds on the disk is the base, older than what was shown before, until the queue has been replayed.

A rollback voids numbers: their snapshots go, leases and all; what somebody is reading is closed behind him. A
reader to whom the store says that it is damaged reports it: from then on the ring gives out nothing, and the
ingest thread takes the slice out of service. A reader who only doubts (what was read contradicts itself, and
that may be the fault of the request) leaves a note: the ingest thread has the slice examined
(`indexer.hosting.scrubber`), and it serves on meanwhile.

Nothing is looked through at a commit: what may have lost its reason to be kept is known from what has
happened (it left the newest few, was passed by what is published, was outranked, its lease ran out), and that
alone is looked at. So a commit costs the same whether five hundred snapshots are leased or none.

The ingest thread adds, the endpoint's thread reads and leases: one short lock per ring (`ReaderCounts`).
Times are passed in, in milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from functools import partial
from heapq import heappop, heappush
from typing import Final

from indexer.hosting.snapshot_reader import OpenSnapshot, ReaderCounts, RingWatch, SnapshotReader
from indexer.store.interface import UNNUMBERED, StoreSnapshot
from keytide.catalog.history import History
from keytide.model.landmarks import RankedNumbers

AHEAD_LIMIT: Final = 96
"""Snapshots newer than the published one, kept for slower slices beside twice the ring. Each holds pages of
the delta. It is more than a leader remembers of a slice (`coordinator.stability.acknowledgements`: at most
64 and twice the ring), so that what it publishes is held."""
LEASED_LIMIT: Final = 512
"""Different snapshots of one slice under lease at once: half of the read transactions that a store allows."""


class SnapshotRing:
    """The open snapshots of one slice. Safe to use from several threads.

    Args:
        kept: how many of the newest to keep, at least one.

    Attributes:
        reads: how often a snapshot was given out.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._ahead = AHEAD_LIMIT + kept
        self._alone = ReaderCounts()
        self._numbered: dict[int, OpenSnapshot] = {}
        self._order: list[int] = []
        """Their numbers, ascending."""
        self._past = RankedNumbers()
        """Those past the published one, but for the newest few."""
        self._leased: set[int] = set()
        self._lease_ends: list[tuple[int, int]] = []
        """Heap of (when to look at its leases, number)."""
        self._tip: OpenSnapshot | None = None
        self._built: OpenSnapshot | None = None
        self._joined = False
        self._leaves = False
        self._published = UNNUMBERED
        self.reads = 0
        self._watch: RingWatch | None = None
        self._damage = ""
        self._doubt = ""

    # --- the ingest thread ----------------------------------------------------------------------------

    def add(self, snapshot: StoreSnapshot, number: int, now: int) -> None:
        """Take in the newest commit; the ring closes it when it is no longer needed.

        Args:
            number: of the commit, -1 when no stable scan may read it (what a restart finds, for instance:
                the slice joins the next number first).
        """
        with self._alone:
            previous, self._tip = self._tip, OpenSnapshot(snapshot, number)
            self._joined = self._joined or (number != UNNUMBERED and number >= self._published)
            if number != UNNUMBERED:
                self._number(self._tip, previous)
            if previous is not None and self._numbered.get(previous.number) is not previous:
                previous.drop()
            self._end_leases(now)

    def show_built(self, snapshot: StoreSnapshot | None) -> None:
        """A slice under build has loaded a micro-batch; None: it goes on, and shows nothing until it has the
        next. No scan sees it: who compares the build asks for it (`built`)."""
        with self._alone:
            if self._built is not None:
                self._built.drop()
            self._built = None if snapshot is None else OpenSnapshot(snapshot, snapshot.applied.batch)

    def publish(self, number: int, now: int) -> None:
        """The leader announced a newest common number."""
        with self._alone:
            if number > self._published:
                before, self._published = self._published, number
                passed = self._order[bisect_left(self._order, before) : bisect_right(self._order, number)]
                for one in passed:
                    self._past.discard(one)
                self._drop_unkept(passed)
                self._end_leases(now)

    def leave(self, leaves: bool) -> None:
        """Whether leases are given only of snapshots that somebody has leased (R42)."""
        with self._alone:
            self._leaves = leaves

    def in_use(self, now: int) -> int:
        """How many snapshots are leased, or being read."""
        with self._alone:
            kept = list(self._numbered.values())
            if self._tip is not None and self._numbered.get(self._tip.number) is not self._tip:
                kept.append(self._tip)
            return sum(1 for one in kept if one.readers or any(until > now for until in one.leases.values()))

    def expire(self, now: int) -> None:
        """Let go of what only ran-out leases held."""
        with self._alone:
            self._end_leases(now)

    def roll_back(self, history: History) -> None:
        """Let go of every snapshot whose number is void in `history`, and of the newest commit: the next
        `add` brings the one that holds."""
        with self._alone:
            tip, self._tip = self._tip, None
            self._joined = False
            if tip is not None and self._numbered.get(tip.number) is not tip:
                tip.drop()
            for number, kept in list(self._numbered.items()):
                if not history.number_holds(number, kept.snapshot.applied.incarnation):
                    del self._numbered[number]
                    kept.drop()
                    self._tell_dropped(number)
            if self._published not in self._numbered:
                self._published = max(self._numbered, default=UNNUMBERED)
            self._order = sorted(self._numbered)
            self._leased.intersection_update(self._numbered)
            self._past = RankedNumbers(n for n in self._order[: -self._kept] if n > self._published)
            self._drop_unkept(list(self._order))

    def close(self) -> None:
        """Let go of everything; readers at work finish first."""
        with self._alone:
            for kept in self._numbered.values():
                kept.drop()
            for one in (self._tip, self._built):
                if one is not None:
                    one.drop()
            self._numbered.clear()
            self._order, self._past = [], RankedNumbers()
            self._leased.clear()
            self._lease_ends.clear()
            self._tip = self._built = None
            self._tell_closed()

    def watch(self, watch: RingWatch) -> None:
        """Have it told from now on of what is kept, and first of what is kept now, in ascending order."""
        with self._alone:
            self._watch = watch
            self._show(watch)

    def show(self, watch: RingWatch) -> None:
        """Tell of what is kept now, this once."""
        with self._alone:
            self._show(watch)

    @property
    def damage(self) -> str:
        """What a reader has met and reported, empty when nothing."""
        return self._damage

    def take_doubt(self) -> str:
        """What made readers doubt since this was last asked, empty when nothing."""
        with self._alone:
            doubt, self._doubt = self._doubt, ""
            return doubt

    # --- any thread -----------------------------------------------------------------------------------

    def report_damage(self, reason: str) -> None:
        """The store says that it is damaged: nothing of this ring is given out any more, and the ingest
        thread takes the slice out of service."""
        with self._alone:
            self._damage = self._damage or reason
            self._tell_closed()

    def report_doubt(self, reason: str) -> None:
        """What a reader got contradicts itself: the ingest thread has the slice examined."""
        with self._alone:
            self._doubt = self._doubt or reason

    def acquire(self, number: int) -> SnapshotReader | None:
        """The snapshot of that number, to be released once; None when it is not held (any more)."""
        with self._alone:
            return self._reading(self._numbered.get(number))

    def find(self, number: int) -> OpenSnapshot | None:
        """The snapshot of that number, for who will read it again and again (`hold`); None when it is not
        held."""
        return self._numbered.get(number)

    def hold(self, found: OpenSnapshot, reads: int = 1) -> bool:
        """Begin to read what was found earlier; False when it is not held any more. To be given back once.

        Args:
            reads: how often to count it: 0 for who only looks it up.
        """
        with self._alone:
            if found.dropped or self._damage:
                return False
            found.readers += 1
            self.reads += reads
            return True

    def give_back(self, held: OpenSnapshot) -> None:
        """A reader has ended, perhaps in a thread that is in the midst of this ring."""
        self._alone.give_back(held)

    def tip(self) -> SnapshotReader | None:
        """The newest commit, numbered or not. Until one has joined the published numbers (again) it is the
        newest number held instead, None when there is none, or only older ones than are published."""
        with self._alone:
            if self._joined or self._tip is None:
                return self._reading(self._tip)
            newest = self._order[-1] if self._order else UNNUMBERED
            return self._reading(self._numbered.get(newest)) if newest >= self._published else None

    def built(self, build: str) -> SnapshotReader | None:
        """What a slice under build has loaded: up to the micro-batch that is the snapshot's number, and
        nothing behind it. None while it loads, and when it is not of this build (any more)."""
        with self._alone:
            kept = self._built
            there = kept is not None and kept.snapshot.applied.build == build
            return self._reading(kept) if there else None

    def newest(self) -> int:
        """The newest number held, -1 when none."""
        try:
            return self._order[-1]  # one step, which no lock has to guard: every scan asks
        except IndexError:
            return UNNUMBERED

    def numbers(self) -> list[int]:
        """All numbers held, ascending."""
        with self._alone:
            return list(self._order)

    def lease(self, number: int, holder: str, until: int) -> bool:
        """Keep a snapshot until a time for `holder`, in place of an earlier time; False when it cannot be
        kept."""
        with self._alone:
            kept = self._numbered.get(number)
            if kept is None or self._damage or (self._leaves and not kept.leases):
                return False
            if not kept.leases and len(self._leased) >= LEASED_LIMIT:
                return False
            kept.leases[holder] = until
            self._leased.add(number)
            if kept.look_at is None or until < kept.look_at:
                kept.look_at = until
                heappush(self._lease_ends, (until, number))
                if len(self._lease_ends) > 4 * LEASED_LIMIT:  # (of leases that came to end earlier)
                    looks = ((self._numbered[one].look_at, one) for one in self._leased)
                    self._lease_ends = sorted((at, one) for at, one in looks if at is not None)
            return True

    # --- inside, under the lock -----------------------------------------------------------------------

    def _reading(self, kept: OpenSnapshot | None) -> SnapshotReader | None:
        if kept is None or kept.dropped or self._damage:
            return None
        kept.readers += 1
        self.reads += 1
        return SnapshotReader(kept.snapshot, kept.number, self.report_damage, partial(self.give_back, kept))

    def _number(self, tip: OpenSnapshot, previous: OpenSnapshot | None) -> None:
        """Keep a commit under its number, and drop what it pushes out."""
        number = tip.number
        known, self._numbered[number] = self._numbered.get(number), tip
        self._leased.discard(number)
        if self._watch is not None and not self._damage:
            self._watch.kept(number, tip.snapshot)
        if known is None:
            insort(self._order, number)
        elif known is not previous:
            known.drop()
        outside = [number, *self._order[-self._kept - 1 : -self._kept]]
        for one in outside:
            if self._published < one < self._order[-self._kept :][0]:
                self._past.add(one)
        self._drop_unkept([*outside, *self._past.just_before_last(self._ahead)])

    def _end_leases(self, now: int) -> None:
        """Let go of leases that have run out, and of what they alone have kept."""
        while self._lease_ends and self._lease_ends[0][0] <= now:
            at, number = heappop(self._lease_ends)
            kept = self._numbered.get(number)
            if kept is None or kept.look_at != at:
                continue  # (dropped, replaced, or looked at before)
            kept.leases = {holder: until for holder, until in kept.leases.items() if until > now}
            kept.look_at = min(kept.leases.values(), default=None)
            if kept.look_at is not None:
                heappush(self._lease_ends, (kept.look_at, number))
            else:
                self._leased.discard(number)
                self._drop_unkept([number])

    def _drop_unkept(self, candidates: Iterable[int]) -> None:
        for number in candidates:
            kept = self._numbered.get(number)
            if kept is None or self._keeps(number):
                continue
            del self._numbered[number]
            del self._order[bisect_left(self._order, number)]
            self._past.discard(number)
            if kept is not self._tip:
                kept.drop()
            self._tell_dropped(number)

    def _show(self, watch: RingWatch) -> None:
        watch.begun()
        for number in () if self._damage else self._order:
            watch.kept(number, self._numbered[number].snapshot)

    def _tell_dropped(self, number: int) -> None:
        if self._watch is not None:
            self._watch.dropped(number)

    def _tell_closed(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.closed()

    def _keeps(self, number: int) -> bool:
        """Whether any reason above keeps a number that is held."""
        if number in self._leased or number == self._published or number in self._order[-self._kept :]:
            return True
        return number > self._published and self._past.among_last(self._ahead, number)
