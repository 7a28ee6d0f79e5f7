"""Planted faults: small changes of the indexer's core, each of which breaks a rule. All must be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from indexer import following
from indexer.building import Building
from indexer.events import LoadBatch
from indexer.following import Following
from indexer.queue import Hearing, HeldQueue, Piece
from indexer.stamps import PendingStamps
from indexer.store.interface import Applied
from keytide.messages import Segment
from keytide.timestamp import Timestamp

Mutant = Callable[[pytest.MonkeyPatch], None]


def forget_to_split(patch: pytest.MonkeyPatch) -> None:
    """R11: a segment that a timestamp goes through is applied whole."""
    patch.setattr(following, "_cut", lambda piece: piece.segment)


def commit_what_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    """R1: the newest number is committed, heard or not."""

    def take(self: HeldQueue, applied: Timestamp, target: Timestamp) -> list[Piece]:
        return _take(self, applied, self.reachable(target))

    _take = HeldQueue.take
    patch.setattr(HeldQueue, "covers", lambda self, timestamp: True)
    patch.setattr(HeldQueue, "take", take)


def forget_the_queue_position(patch: pytest.MonkeyPatch) -> None:
    """R6: a restart reads on behind what was only held."""
    patch.setattr(Following, "_position", lambda self: self._cursor)


def skip_what_overlaps(patch: pytest.MonkeyPatch) -> None:
    """R10: a segment that must be trimmed is taken for a duplicate."""

    def hear(self: HeldQueue, segment: Segment, position: int) -> Hearing:
        if segment.start < self.heard(segment.partition):
            return Hearing.DUPLICATE
        return _hear(self, segment, position)

    _hear = HeldQueue.hear
    patch.setattr(HeldQueue, "hear", hear)


def jump_over_gaps(patch: pytest.MonkeyPatch) -> None:
    """R10: a segment beyond the position is taken as if nothing were missing."""

    def hear(self: HeldQueue, segment: Segment, position: int) -> Hearing:
        known = self.heard(segment.partition)
        if segment.start > known:
            self.hear(Segment(segment.partition, segment.epoch, known, segment.start), position)
        return _hear(self, segment, position)

    _hear = HeldQueue.hear
    patch.setattr(HeldQueue, "hear", hear)


def never_make_room(patch: pytest.MonkeyPatch) -> None:
    """R4: a full slice waits for a number."""
    patch.setattr(PendingStamps, "make_room", lambda self, position, queue: None)


def ignore_winners(patch: pytest.MonkeyPatch) -> None:
    """R22: whatever chunks have come are loaded, and those of earlier batches are not skipped."""

    def winners(self: Building, end: Any) -> list[Any]:
        return sorted(self._chunks, key=lambda key: (key.attempt, key.sequence))

    def chunk(self: Building, message: Any, position: int) -> list[Any]:
        applied = self.applied
        self.applied = Applied(build=applied.build, building=True)
        try:
            return _chunk(self, message, position)
        finally:
            self.applied = applied

    _chunk = Building._chunk
    patch.setattr(Building, "_winners", winners)
    patch.setattr(Building, "_chunk", chunk)


def end_the_build_early(patch: pytest.MonkeyPatch) -> None:
    """R22: a batch end is believed although chunks of its winners are missing."""

    def winners(self: Building, end: Any) -> list[Any]:
        return [key for key in self._chunks if key.batch == end.batch and key.attempt in end.winners][1:]

    patch.setattr(Building, "_winners", winners)


def forget_removals(patch: pytest.MonkeyPatch) -> None:
    """R21: only puts are loaded."""

    def batch_end(self: Building, end: Any) -> list[Any]:
        loads = [one for one in _batch_end(self, end) if isinstance(one, LoadBatch)]
        for load in loads:
            load.removals.clear()
        return loads

    _batch_end = Building._batch_end
    patch.setattr(Building, "_batch_end", batch_end)


def join_the_past(patch: pytest.MonkeyPatch) -> None:
    """R2: a timestamp below the position is joined."""

    def forget(self: PendingStamps, position: Timestamp, number: int) -> None:
        _forget(self, Timestamp(), number)

    _forget = PendingStamps.forget
    patch.setattr(PendingStamps, "forget", forget)


MUTANTS: tuple[Mutant, ...] = (
    forget_to_split,
    commit_what_is_not_heard,
    forget_the_queue_position,
    skip_what_overlaps,
    jump_over_gaps,
    never_make_room,
    ignore_winners,
    end_the_build_early,
    forget_removals,
    join_the_past,
)
