"""How a snapshot of a slice is read, by whoever holds it, or of several slices as one."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from indexer.store.formats.records import REMOVED
from indexer.store.interface import SkipLine, StoreDamagedError, StoredDocument, StoreSnapshot
from indexer.store.joint import LevelCursor, first_rows, rows_within
from keytide.model.byte_columns import EntryColumns
from keytide.model.timestamp import Timestamp

ReadT = TypeVar("ReadT")


@dataclass(slots=True)
class OpenSnapshot:
    """An open snapshot: how many readers it has, and until when whom it is leased to. `look_at` is
    when its leases are looked at next."""

    snapshot: StoreSnapshot
    number: int
    readers: int = 0
    leases: dict[str, int] = field(default_factory=dict)
    look_at: int | None = None
    dropped: bool = False

    def drop(self) -> None:
        """Close it now, or when its last reader is gone."""
        if not self.dropped:
            self.dropped = True
            if self.readers == 0:
                self.snapshot.close()


class ReaderCounts:
    """Counts who reads the snapshots of a slice, and gives them to one thread while they change (`with`).

    A reader is given back without the lock: Python collects an abandoned read, and so ends it, wherever some
    thread allocates, also under this lock, for which that thread would wait for ever. What is given back
    waits until the lock is free.
    """

    __slots__ = ("_given_back", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_back: deque[OpenSnapshot] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._given_back:
            self._take_back()

    def give_back(self, held: OpenSnapshot) -> None:
        """A reader has ended, perhaps in a thread that has the lock."""
        self._given_back.append(held)
        self._take_back()

    def _take_back(self) -> None:
        """Close what nobody reads any more; whoever has the lock does so when it has it no longer."""
        while self._given_back and self._lock.acquire(blocking=False):
            try:
                while self._given_back:
                    kept = self._given_back.popleft()
                    kept.readers -= 1
                    if kept.dropped and kept.readers == 0:
                        kept.snapshot.close()
            finally:
                self._lock.release()


class SnapshotReader:
    """One reader's hold on a snapshot (`indexer.view.ReadableSnapshot`, which says what methods give). The
    ring knows of a `StoreDamagedError` by the time that it is raised.

    Args:
        damaged: told what the store says of damage.
        give_back: called once.
    """

    __slots__ = ("_give_back", "_released", "_snapshot", "_telling", "incarnation", "number", "timestamp")

    def __init__(
        self,
        snapshot: StoreSnapshot,
        number: int,
        damaged: Callable[[str], None],
        give_back: Callable[[], None],
    ) -> None:
        self._snapshot = snapshot
        self._telling, self._give_back = _Telling(damaged), give_back
        self._released = False
        self.number = number
        self.incarnation = snapshot.applied.incarnation
        self.timestamp: Timestamp = snapshot.applied.timestamp

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        with self._telling:
            yield from self._snapshot.rows(low, high, reverse, limit, start_after)

    def rows_of(
        self,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        with self._telling:
            yield from self._snapshot.rows_of(spans, reverse, limit)

    def entry_columns(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool, limit: int
    ) -> Iterator[EntryColumns]:
        with self._telling:
            yield from self._snapshot.entry_columns(spans, reverse, limit)

    def count(self, low: bytes, high: bytes | None) -> int:
        with self._telling:
            return self._snapshot.count(low, high)

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        with self._telling:
            yield from self._snapshot.back_rows(after)

    @property
    def foreign(self) -> int:
        return self._snapshot.counts.foreign

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        with self._telling:
            held = self._snapshot.backs(ids)
        found = map(held.get, ids)
        return [one if one is not None and one.keys else None for one in found]

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        with self._telling:
            return self._snapshot.skips(limit, after)

    def release(self) -> None:
        """Give the snapshot back. Once is enough; more does nothing."""
        if not self._released:
            self._released = True
            self._give_back()


class _Telling:
    """Tells on what the store says of damage."""

    __slots__ = ("_damaged",)

    def __init__(self, damaged: Callable[[str], None]) -> None:
        self._damaged = damaged

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StoreDamagedError):
            self._damaged(error.message)


class HoldsSnapshots(Protocol):
    """What gives out snapshots: a ring (`indexer.hosting.snapshots.SnapshotRing`)."""

    def find(self, number: int) -> OpenSnapshot | None:
        """The snapshot of that number, to be read again and again; None when it is not held."""
        ...

    def hold(self, found: OpenSnapshot, reads: int = 1) -> bool:
        """Begin to read, which is counted `reads` times; False when it is not held any more."""
        ...

    def give_back(self, held: OpenSnapshot) -> None:
        """End a reading that has begun."""
        ...

    def report_damage(self, reason: str) -> None:
        """The store says that it is damaged."""
        ...


class RingWatch(Protocol):
    """Told, under the ring's lock, which numbers can be read. It must not ask the ring, nor wait."""

    def begun(self) -> None:
        """What is kept by now follows, in ascending order."""
        ...

    def kept(self, number: int, snapshot: StoreSnapshot) -> None:
        """A number is held from now on, in place of another commit under it if there was one."""
        ...

    def dropped(self, number: int) -> None:
        """It is held no more."""
        ...

    def closed(self) -> None:
        """Nothing is held, or given out, any more."""
        ...


class _TellingCursor:
    """A level's cursor that tells on what the store says of damage."""

    __slots__ = ("_cursor", "_damaged", "large")

    def __init__(self, cursor: LevelCursor, damaged: Callable[[str], None]) -> None:
        self._cursor, self._damaged, self.large = cursor, damaged, cursor.large

    def begin(
        self, low: bytes, high: bytes | None, reverse: bool, count: int, room: int
    ) -> list[tuple[bytes, bytes]]:
        try:
            return self._cursor.begin(low, high, reverse, count, room)
        except StoreDamagedError as error:
            self._damaged(error.message)
            raise

    def onward(self, count: int, room: int) -> list[tuple[bytes, bytes]]:
        try:
            return self._cursor.onward(count, room)
        except StoreDamagedError as error:
            self._damaged(error.message)
            raise

    def ends(self) -> tuple[bytes, bytes] | None:
        try:
            return self._cursor.ends()
        except StoreDamagedError as error:
            self._damaged(error.message)
            raise

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int, full: Set[bytes]
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        try:
            return self._cursor.within(lows, highs, most, behind, full)
        except StoreDamagedError as error:
            self._damaged(error.message)
            raise


class JointReader:
    """A snapshot of several slices (`indexer.view.JointSnapshot`). For one thread.

    It has a hold on the snapshots only while it reads them. Between two reads a ring may let go of one, and
    its store closes what its cursors read; that is found out before they are used again.

    Args:
        slices: of each its ring, and the snapshot.
        levels: of each snapshot.
    """

    def __init__(
        self,
        slices: Sequence[tuple[HoldsSnapshots, OpenSnapshot]],
        levels: Sequence[Sequence[LevelCursor]],
    ) -> None:
        self._slices, self._levels = slices, levels
        self._ends: list[tuple[bytes, bytes]] | None = None
        self._clumped = False
        """Whether nearly all that was read last was of one or two slices."""
        self.timestamps: list[Timestamp] = [one.snapshot.applied.timestamp for _, one in slices]
        self.incarnations = [one.snapshot.applied.incarnation for _, one in slices]

    @classmethod
    def of(cls, rings: Sequence[HoldsSnapshots], number: int) -> JointReader | None:
        """That number in all of these rings; None when one does not hold it, or is to be read alone."""
        slices: list[tuple[HoldsSnapshots, OpenSnapshot]] = []
        levels: list[Sequence[LevelCursor]] = []
        for ring in rings:
            found = ring.find(number)
            if found is None or not ring.hold(found, reads=0):
                return None
            try:
                with _Telling(ring.report_damage):
                    cursors = found.snapshot.levels()
            finally:
                ring.give_back(found)
            if cursors is None:
                return None
            slices.append((ring, found))
            levels.append([_TellingCursor(one, ring.report_damage) for one in cursors])
        return cls(slices, levels)

    def first(
        self, low: bytes, high: bytes | None, reverse: bool, count: int
    ) -> tuple[list[tuple[bytes, bytes]], list[int]] | None:
        """See `indexer.view.JointSnapshot.first`."""
        every = range(len(self._slices))
        found = self._held(
            every,
            lambda levels: first_rows(levels, low, high, reverse, count, REMOVED, clumped=self._clumped),
        )
        if found is not None and len(every) > 2:
            self._clumped = sum(sorted(found[1])[-2:]) >= len(found[0])
        return found

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int
    ) -> tuple[list[tuple[bytes, bytes]], list[int]] | None:
        """See `indexer.view.JointSnapshot.within`. Of slices that are stretches of the order one or two hold
        what is near to one another: the others are left alone."""
        ends = self._ends or self._held(range(len(self._slices)), self._look_at_ends)
        if ends is None:
            return None
        some = [
            at
            for at, (first, last) in enumerate(ends)
            if bisect_right(highs, first) < bisect_right(lows, last)  # the spans between them
        ]
        found = self._held(some, lambda levels: rows_within(levels, lows, highs, most, REMOVED, behind))
        if found is None:
            return None
        counts = [0] * len(ends)
        for at, count in zip(some, found[1], strict=True):
            counts[at] = count
        return found[0], counts

    def _look_at_ends(self, levels: Sequence[Sequence[LevelCursor]]) -> list[tuple[bytes, bytes]]:
        """The first and the last key of each slice, which stay what they are."""
        self._ends = [_around([one.ends() for one in each]) for each in levels]
        return self._ends

    def _held(
        self, some: Sequence[int], read: Callable[[Sequence[Sequence[LevelCursor]]], ReadT | None]
    ) -> ReadT | None:
        """Read the levels of some of the slices with a hold on the snapshots; None when there is none to be
        had."""
        held: list[tuple[HoldsSnapshots, OpenSnapshot]] = []
        try:
            for at in some:
                ring, snapshot = self._slices[at]
                if not ring.hold(snapshot):
                    return None
                held.append((ring, snapshot))
            return read([self._levels[at] for at in some])
        finally:
            for ring, snapshot in held:
                ring.give_back(snapshot)


def _around(ends: Sequence[tuple[bytes, bytes] | None]) -> tuple[bytes, bytes]:
    """The first and the last key of several levels; of none between two of which nothing lies."""
    known = [one for one in ends if one is not None]
    if not known:
        return b"", b""
    return min(first for first, _ in known), max(last for _, last in known)
