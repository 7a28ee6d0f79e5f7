"""A store's side of a fold: the frozen delta, the job, its end, and the filter built anew along the way."""

from __future__ import annotations

import logging
from pathlib import Path

from indexer.store.files.filter_file import read_filter, save_filter
from indexer.store.fold.fold import FILTER_FILE, NEXT_FILTER_FILE, FoldJob
from indexer.store.fold.undo_journal import UndoJournal
from indexer.store.fold.worker import Folder, FoldTicket
from indexer.store.formats.state_bytes import encode_state
from indexer.store.interface import Applied, Counts, StoreDamagedError
from indexer.store.lmdb.base import Base
from indexer.store.lmdb.levels import Level
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.settings import StoreSettings
from keytide.errors import InvariantViolationError, RetryableError, invariant
from keytide.process.sync_points import reach

log = logging.getLogger(__name__)


class Folding:
    """The fold of one store; at most one at a time.

    Attributes:
        frozen: the delta set apart, until the base has it.
        undo_given_up: the last fold has left no way back, for the disk was nearly full.
    """

    def __init__(
        self, base: Base, journal: UndoJournal, folder: Path, settings: StoreSettings, folds: Folder
    ) -> None:
        self._base, self._journal = base, journal
        self._folder, self._settings, self._folds = folder, settings, folds
        self.frozen: Level | None = None
        self._state = (base.applied, base.counts)
        self._ticket: FoldTicket | None = None
        self._new_filter_bits = 0
        self._failed = False
        self._retry_at: int | None = None
        self._untold: Applied | None = None
        self._now = 0
        self.undo_given_up = False

    @property
    def at_work(self) -> bool:
        return self._ticket is not None

    def due_again(self, now: int) -> bool:
        """Whether a fold that failed should be tried again; asked while `frozen` is there."""
        if not self._failed:
            return False
        if self._retry_at is None:
            self._retry_at = now + self._settings.fold_retry_ms
        return now >= self._retry_at

    def freeze(self, delta: Level, applied: Applied, counts: Counts, held: IdFilter) -> None:
        """Set a delta apart, with the state of the slice at its last commit."""
        invariant(self.frozen is None, "OneFold", f"two frozen deltas in {self._folder}")
        self.frozen = delta
        self._state = (applied, counts)
        wanted = IdFilter.bits_for(counts.documents + self._settings.fold_entries, self._settings.filter_bits)
        self._new_filter_bits = wanted if held.full() else 0
        if self._new_filter_bits:
            held.keep_journal()

    def submit(self, held: IdFilter, now: int) -> None:
        """Hand the frozen delta over; again, if that failed before. `now` is milliseconds.

        The filter, some megabytes of a large slice, is written by the folder's thread. It may have what later
        commits add by then: it contains more than the base in any case.
        """
        invariant(self.frozen is not None and self._ticket is None, "OneFold", "nothing to hand over")
        if self.frozen is None:
            return
        self._failed, self._retry_at, self._now = False, None, now
        reach("fold-frozen")
        next_filter, sequence = self._folder / NEXT_FILTER_FILE, self._base.sequence + 1
        self._ticket = self._folds.submit(
            self._job(self.frozen), lambda: save_filter(held, next_filter, sequence, sync=False)
        )

    def settle(self, wait_s: float, held: IdFilter) -> IdFilter:
        """Take note of the end of the fold, if it has ended; returns the filter to use from now on.

        Raises:
            RetryableError: it failed; `submit` begins it again.
            InvariantViolationError: the rows were not as counted, or another process owns the slice.
            StoreDamagedError: the base's file is not what was written.
        """
        outcome = None if self._ticket is None else self._ticket.outcome(wait_s)
        if outcome is None or self.frozen is None:
            return held
        self._ticket = None
        self._base.forget_dead_readers()  # of the worker, if it died or was ended
        if outcome.error in ("mirror", "not-owner"):
            name = "Mirror" if outcome.error == "mirror" else "OneOwner"
            raise InvariantViolationError(name, f"fold of {self._folder}: {outcome.detail}")
        if outcome.error == "damaged":
            self._failed = True
            raise StoreDamagedError(f"fold of {self._folder}: {outcome.detail}")
        if outcome.error:
            self._failed = True
            raise RetryableError(
                f"fold of {self._folder}: {outcome.detail}",
                problem_type=outcome.error,
                next_step="nothing is lost; it is tried again",
            )
        self._base.reload()
        self._journal.folded(self._base.head, self._now)
        if outcome.undo_given_up and not self.undo_given_up:
            log.warning("%s cannot step back any more: the disk is nearly full", self._folder)
        self.undo_given_up = outcome.undo_given_up
        self.frozen.retire(delete=self.frozen.folder)
        self.frozen = None
        invariant(
            (self._base.applied, self._base.counts) == self._state,
            "Mirror",
            f"the base of {self._folder} is not what was folded",
        )
        self._untold = self._base.applied
        reach("fold-settled")
        return self._with_new_filter(held) if self._new_filter_bits else held

    def take_durable(self) -> Applied | None:
        """The durable state of a fold that has ended; None when it was taken already."""
        untold, self._untold = self._untold, None
        return untold

    def abandon(self) -> None:
        """The frozen delta goes: the store closes (a fold at work is ended: it must not go on in a folder
        that is deleted, renamed or opened again), or it steps back (nothing is at work then)."""
        if self._ticket is not None:
            self._ticket.cancel()
        if self.frozen is not None:
            self.frozen.retire(delete=self.frozen.folder)
        self.frozen = self._ticket = self._untold = None
        self._failed, self._retry_at, self._new_filter_bits = False, None, 0

    def _with_new_filter(self, held: IdFilter) -> IdFilter:
        """The filter that the fold built from the base, with what came since."""
        self._new_filter_bits = 0
        built = read_filter(self._folder / FILTER_FILE)
        if built is None:
            return held
        held.replay_into(built[0])
        return built[0]

    def _job(self, frozen: Level) -> FoldJob:
        applied, counts = self._state
        return FoldJob(
            slice_folder=str(self._folder),
            delta_folder=str(frozen.folder),
            base_map_bytes=self._base.map_bytes,
            delta_map_bytes=self._settings.delta_map_bytes,
            owner=self._base.owner,
            sequence=self._base.sequence + 1,
            state=encode_state(applied).hex(),
            counts=encode_state(counts).hex(),
            forward=counts.entries,
            back=counts.documents + counts.tombstones,
            skips=counts.skips,
            rebuild_bits=self._new_filter_bits,
            fsync=self._settings.fsync,
            # Less than commits leave free: a fold is what gives the delta's room back.
            reserve_bytes=self._settings.reserve_bytes // 4,
            undo_bytes=self._settings.undo_bytes if self._settings.undo_s else 0,
            now=self._now,
        )
