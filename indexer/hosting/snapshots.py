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

The ingest thread adds, the endpoint's thread reads and leases: one short lock per ring. Times are passed in,
in milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from indexer.store.interface import UNNUMBERED, SkipLine, StoreDamagedError, StoredDocument, StoreSnapshot
from keytide.catalog.history import History
from keytide.model.landmarks import rank
from keytide.model.timestamp import Timestamp

AHEAD_LIMIT: Final = 96
"""Snapshots newer than the published one, kept for slower slices beside twice the ring. Each holds pages of
the delta. It is more than a leader remembers of a slice (`coordinator.stability.acknowledgements`: at most
64 and twice the ring), so that what it publishes is held."""
LEASED_LIMIT: Final = 512
"""Different snapshots of one slice under lease at once: half of the read transactions that a store allows."""


@dataclass(slots=True)
class _OpenSnapshot:
    """An open snapshot: how many readers it has, and until when whom it is leased to."""

    snapshot: StoreSnapshot
    number: int
    readers: int = 0
    leases: dict[str, int] = field(default_factory=dict)
    dropped: bool = False


class SnapshotRing:
    """The open snapshots of one slice. Safe to use from several threads.

    Args:
        kept: how many of the newest to keep.

    Attributes:
        reads: how often a snapshot was given out.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._ahead = AHEAD_LIMIT + kept
        self._lock = threading.Lock()
        self._numbered: dict[int, _OpenSnapshot] = {}
        self._tip: _OpenSnapshot | None = None
        self._joined = False
        self._leaves = False
        self._published = UNNUMBERED
        self.reads = 0
        self._damage = ""
        self._doubt = ""

    # --- the ingest thread ----------------------------------------------------------------------------

    def add(self, snapshot: StoreSnapshot, number: int, now: int) -> None:
        """Take in the newest commit; the ring closes it when it is no longer needed.

        Args:
            number: of the commit, -1 when no stable scan may read it (what a restart finds, for instance:
                the slice joins the next number first).
        """
        with self._lock:
            previous, self._tip = self._tip, _OpenSnapshot(snapshot, number)
            self._joined = self._joined or (number != UNNUMBERED and number >= self._published)
            if number != UNNUMBERED:
                known = self._numbered.get(number)
                if known is not None and known is not previous:
                    _drop(known)
                self._numbered[number] = self._tip
            if previous is not None and self._numbered.get(previous.number) is not previous:
                _drop(previous)
            self._drop_unkept(now)

    def publish(self, number: int, now: int) -> None:
        """The leader announced a newest common number."""
        with self._lock:
            if number > self._published:
                self._published = number
                self._drop_unkept(now)

    def leave(self, leaves: bool) -> None:
        """Whether leases are given only of snapshots that somebody has leased (R42)."""
        with self._lock:
            self._leaves = leaves

    def in_use(self, now: int) -> int:
        """How many snapshots are leased, or being read."""
        with self._lock:
            kept = list(self._numbered.values())
            if self._tip is not None and self._numbered.get(self._tip.number) is not self._tip:
                kept.append(self._tip)
            return sum(1 for one in kept if one.readers or any(until > now for until in one.leases.values()))

    def expire(self, now: int) -> None:
        """Let go of what only ran-out leases held."""
        with self._lock:
            self._drop_unkept(now)

    def roll_back(self, history: History) -> None:
        """Let go of every snapshot whose number is void in `history`, and of the newest commit: the next
        `add` brings the one that holds."""
        with self._lock:
            tip, self._tip = self._tip, None
            self._joined = False
            if tip is not None and self._numbered.get(tip.number) is not tip:
                _drop(tip)
            for number, kept in list(self._numbered.items()):
                if not history.number_holds(number, kept.snapshot.applied.incarnation):
                    del self._numbered[number]
                    _drop(kept)
            if self._published not in self._numbered:
                self._published = max(self._numbered, default=UNNUMBERED)

    def close(self) -> None:
        """Let go of everything; readers at work finish first."""
        with self._lock:
            for kept in self._numbered.values():
                _drop(kept)
            if self._tip is not None:
                _drop(self._tip)
            self._numbered.clear()
            self._tip = None

    @property
    def damage(self) -> str:
        """What a reader has met and reported, empty when nothing."""
        return self._damage

    def take_doubt(self) -> str:
        """What made readers doubt since this was last asked, empty when nothing."""
        with self._lock:
            doubt, self._doubt = self._doubt, ""
            return doubt

    # --- any thread -----------------------------------------------------------------------------------

    def report_damage(self, reason: str) -> None:
        """The store says that it is damaged: nothing of this ring is given out any more, and the ingest
        thread takes the slice out of service."""
        with self._lock:
            self._damage = self._damage or reason

    def report_doubt(self, reason: str) -> None:
        """What a reader got contradicts itself: the ingest thread has the slice examined."""
        with self._lock:
            self._doubt = self._doubt or reason

    def acquire(self, number: int) -> SnapshotReader | None:
        """The snapshot of that number, to be released once; None when it is not held (any more)."""
        with self._lock:
            return self._reading(self._numbered.get(number))

    def tip(self) -> SnapshotReader | None:
        """The newest commit, numbered or not. Until one has joined the published numbers (again) it is the
        newest number held instead, None when there is none, or only older ones than are published."""
        with self._lock:
            if self._joined or self._tip is None:
                return self._reading(self._tip)
            newest = max(self._numbered, default=UNNUMBERED)
            return self._reading(self._numbered.get(newest)) if newest >= self._published else None

    def newest(self) -> int:
        """The newest number held, -1 when none."""
        with self._lock:
            return max(self._numbered, default=UNNUMBERED)

    def numbers(self) -> list[int]:
        """All numbers held, ascending."""
        with self._lock:
            return sorted(self._numbered)

    def lease(self, number: int, holder: str, until: int) -> bool:
        """Keep a snapshot until a time for `holder`, in place of an earlier time; False when it cannot be
        kept."""
        with self._lock:
            kept = self._numbered.get(number)
            if kept is None or self._damage or (self._leaves and not kept.leases):
                return False
            leased = sum(1 for one in self._numbered.values() if one.leases)
            if not kept.leases and leased >= LEASED_LIMIT:
                return False
            kept.leases[holder] = until
            return True

    # --- inside, under the lock -----------------------------------------------------------------------

    def _reading(self, kept: _OpenSnapshot | None) -> SnapshotReader | None:
        if kept is None or kept.dropped or self._damage:
            return None
        kept.readers += 1
        self.reads += 1
        return SnapshotReader(self, kept)

    def _release(self, kept: _OpenSnapshot) -> None:
        with self._lock:
            kept.readers -= 1
            if kept.dropped and kept.readers == 0:
                kept.snapshot.close()

    def _drop_unkept(self, now: int) -> None:
        """Drop what no reason above keeps."""
        numbers = sorted(self._numbered)
        keep = set(numbers[-self._kept :])
        keep.add(self._published)
        ahead = [number for number in numbers if number > self._published and number not in keep]
        keep.update(sorted(ahead, key=lambda number: (rank(number), number))[-self._ahead :])
        for number in numbers:
            kept = self._numbered[number]
            if kept.leases:
                kept.leases = {holder: until for holder, until in kept.leases.items() if until > now}
            if number in keep or kept.leases:
                continue
            del self._numbered[number]
            if kept is not self._tip:
                _drop(kept)


class SnapshotReader:
    """One reader's hold on a snapshot (`indexer.view.ReadableSnapshot`)."""

    __slots__ = ("_kept", "_released", "_ring", "incarnation", "number", "timestamp")

    def __init__(self, ring: SnapshotRing, kept: _OpenSnapshot) -> None:
        self._ring = ring
        self._kept = kept
        self._released = False
        self.number = kept.number
        self.incarnation = kept.snapshot.applied.incarnation
        self.timestamp: Timestamp = kept.snapshot.applied.timestamp

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Blocks of (entry key, value) in entry key order.

        Raises:
            StoreDamagedError: the slice is damaged; the ring knows by then.
        """
        try:
            yield from self._kept.snapshot.rows(low, high, reverse, limit, start_after)
        except StoreDamagedError as error:
            self._ring.report_damage(error.message)
            raise

    def rows_of(
        self,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """The same of several spans. Raises as `rows` does."""
        try:
            yield from self._kept.snapshot.rows_of(spans, reverse, limit)
        except StoreDamagedError as error:
            self._ring.report_damage(error.message)
            raise

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many entries lie in [low, high). Raises as `rows` does."""
        try:
            return self._kept.snapshot.count(low, high)
        except StoreDamagedError as error:
            self._ring.report_damage(error.message)
            raise

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        """What the back index has, by document id, behind `after`. Raises as `rows`."""
        try:
            yield from self._kept.snapshot.back_rows(after)
        except StoreDamagedError as error:
            self._ring.report_damage(error.message)
            raise

    @property
    def foreign(self) -> int:
        """Documents that were met in two source partitions, ever."""
        return self._kept.snapshot.counts.foreign

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        """What the back index has of each document, None for one without entries here. Raises as `rows`
        does."""
        try:
            held = self._kept.snapshot.backs(ids)
        except StoreDamagedError as error:
            self._ring.report_damage(error.message)
            raise
        found = map(held.get, ids)
        return [one if one is not None and one.keys else None for one in found]

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        """Lines of the skip ledger behind (partition, offset). Raises as `rows` does."""
        try:
            return self._kept.snapshot.skips(limit, after)
        except StoreDamagedError as error:
            self._ring.report_damage(error.message)
            raise

    def release(self) -> None:
        """Give the snapshot back. Once is enough; more does nothing."""
        if not self._released:
            self._released = True
            self._ring._release(self._kept)


def _drop(kept: _OpenSnapshot) -> None:
    """Close it now, or when its last reader is gone."""
    if not kept.dropped:
        kept.dropped = True
        if kept.readers == 0:
            kept.snapshot.close()
