"""Stability timestamps that a slice knows and has not committed, and which of them it commits next. Pure.

Theory of operation
===================
A timestamp can be *joined* when it is at or past the slice's position everywhere (R2), and committed once
everything below it is heard (R1). When several can be committed at once the slice takes the newest and
skips the rest, for each commit costs. But slices that lag skip different numbers, and a number is of use
only when all slices hold it. So, of several, the one of highest *rank* is committed on the way, then the
one of highest rank behind it, and so on to the newest: a logarithm of their number. A rank belongs to the
number alone (how often two divides a hash of it), so every slice that has the choice picks the same
landmarks. The same rank decides what is kept when more are known than the limit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from indexer.slice.mutation_queue import PendingMutations
from keytide.model.landmarks import rank
from keytide.model.timestamp import Place, Timestamp

PENDING_LIMIT: Final = 256
"""Timestamps known and not committed, per slice: with one every 10 ms more than two seconds, and every
landmark beyond that."""


class Pending(NamedTuple):
    number: int
    timestamp: Timestamp


class PendingStamps:
    """Timestamps known and not committed, by ascending number."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def newest(self) -> Timestamp | None:
        """The last that came, None when none is known."""
        return self._pending[-1].timestamp if self._pending else None

    def add(self, number: int, timestamp: Timestamp) -> None:
        """Take note of one; a number that is not newer than all others is a replay and ignored."""
        if self._pending and number <= self._pending[-1].number:
            return
        self._pending.append(Pending(number, timestamp))
        level = 0
        while len(self._pending) > PENDING_LIMIT:
            level += 1
            newest = self._pending.pop()
            self._pending = [one for one in self._pending if rank(one.number) >= level]
            self._pending.append(newest)

    def forget(self, position: Timestamp, number: int) -> None:
        """Drop what cannot be joined from `position` (R2), and all up to `number`, which is committed."""
        self._pending = [p for p in self._pending if p.number > number and p.timestamp.covers(position)]

    def next_commit(self, queue: PendingMutations) -> Pending | None:
        """The one to commit now: of those heard entirely the landmark (asked again and again, this ends at
        the newest)."""
        heard = [one for one in self._pending if queue.covers(one.timestamp)]
        if not heard:
            return None
        return max(heard, key=lambda one: (rank(one.number), one.number))

    def contradicted(self, queue: PendingMutations) -> bool:
        """Whether one of them is of another branch than what is held."""
        return any(queue.contradicts(one.timestamp) for one in self._pending)

    def vouch_for(self, partition: int, place: Place) -> bool:
        """Whether what was heard up to `place` is on the log as far as they know, or its loss is found out by
        others. Where the next of them is of a later leader, it may be lost and nobody know of it."""
        places = (one.timestamp.place(partition) for one in self._pending)
        past = next((known for known in places if known.offset >= place.offset), place)
        return past.epoch <= place.epoch

    def make_room(self, position: Timestamp, queue: PendingMutations) -> Timestamp | None:
        """Up to where a full slice should apply what it holds (R4), None when no timestamp reaches past
        `position`.

        It stays below the oldest timestamp that frees a quarter of what is held, so that this one can still
        be joined, and goes as far as the newest when none does.
        """
        furthest: Timestamp | None = None
        for one in self._pending:
            target = queue.reachable(one.timestamp)
            if position.covers(target) or queue.contradicts(one.timestamp):
                continue
            furthest = target
            if queue.bytes_below(target) * 4 >= queue.bytes:
                break
        return furthest
