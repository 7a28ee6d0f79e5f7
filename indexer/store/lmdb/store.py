"""The store of a slice on disk: a durable base, at most one frozen delta, and the delta that commits go to.

Theory of operation
===================
    apply        segments -> documents -> look-ups (delta, frozen, base) -> changes -> a commit into the delta
    start_fold   the delta becomes the frozen one, the next commit begins a new delta; the fold worker merges
    finish_fold  the base has it: the frozen delta is retired
    load         straight into the base, which then has no delta
    step_back    deltas are dropped, then the base goes back over one fold after the other
    open         deltas of an earlier life are deleted; the base, once its pages were checked, is the slice

The state lives here in memory between folds: the delta is thrown away at a crash, so it need not hold it. A
commit without rows (a heartbeat on a quiet stream) therefore writes nothing at all.

Nothing here waits for the fold worker: all slices of a node share the caller's thread. When the delta reaches
`delta_hard_bytes` while the frozen one is still at work, `apply` raises `fold-behind`; the caller's queue is
bounded, so the wait travels back to Kafka. So does `step_back` while a fold is at work.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec.structs import astuple

from indexer.store.environment import allocated_bytes, disk_errors
from indexer.store.fold.undo_journal import UndoJournal
from indexer.store.fold.worker import Folder
from indexer.store.formats.records import REMOVED, ledger_key, pack_line
from indexer.store.integrity.mirror import check_mirror
from indexer.store.interface import Applied, ApplyResult, Counts
from indexer.store.lmdb.base import Base
from indexer.store.lmdb.copying import Exports, LmdbExport
from indexer.store.lmdb.folding import Folding
from indexer.store.lmdb.levels import Level, View
from indexer.store.lmdb.lookup import entry_of, held_by
from indexer.store.lmdb.snapshot import LmdbSnapshot
from indexer.store.lmdb.writing import Writer, skip_lines
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.resolve.corrections import Moments, corrected_rows
from indexer.store.resolve.documents import Hashes, WindowDocuments
from indexer.store.resolve.resolve import RowChanges, resolve
from indexer.store.resolve.window import from_segments
from indexer.store.settings import StoreSettings
from keytide.errors import RetryableError, invariant
from keytide.process.sync_points import reach
from keytide.wire.columns import hashes_of
from keytide.wire.corrections import read_corrections
from keytide.wire.messages import Corrections, PutChunk, RemovalChunk, Segment

_DELTA = "delta-"


class LmdbSliceStore:
    """`SliceStore` on LMDB. Opening it takes the slice over from any earlier process.

    Args:
        folder: the slice's own; made if missing.
        initial: the state of a slice that does not exist yet.
        settings: sizes and limits.
        folds: what runs the folds, usually the node's `FoldWorker`.

    Raises:
        RetryableError: `disk-full`.
        ConfigurationError: the folder is of another format.
        StoreDamagedError: the base is not what was written.
    """

    def __init__(self, folder: Path, initial: Applied, settings: StoreSettings, folds: Folder) -> None:
        self._folder = folder.absolute()
        self._settings = settings
        self._folds = folds
        self._folder.mkdir(parents=True, exist_ok=True)
        self._base = Base(self._folder, initial, settings)
        for leftover in self._folder.glob(_DELTA + "*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._filter = self._base.load_filter()
        self._applied = self._base.applied
        self._counts = self._base.counts
        self._delta: Level | None = None
        self._delta_changes = self._delta_rows = 0
        self._delta_since: int | None = None
        self._journal = UndoJournal(self._folder, settings)
        self._journal.open(self._base.head)
        self._folding = Folding(self._base, self._journal, self._folder, settings, folds)
        self._exports = Exports(self._base.level)
        self._now = 0
        self._check_again = 0.0

    @property
    def applied(self) -> Applied:
        return self._applied

    @property
    def durable(self) -> Applied:
        return self._base.applied

    @property
    def counts(self) -> Counts:
        return self._counts

    @property
    def folding(self) -> bool:
        return self._folding.at_work

    def apply(self, segments: Sequence[Segment], applied: Applied) -> ApplyResult:
        self._leave_fold_behind()
        documents = from_segments(segments, self._filter)
        with disk_errors(self._folder):
            views = self._views()
            try:
                found = self._look_up(documents, views)
                lines = self._new_lines(segments, views)
            finally:
                _release(views)
        changes = resolve(documents, found)
        self._commit(changes, lines, documents.all_hashes)
        self._state_is(applied, changes.counts(len(lines)))
        return ApplyResult(
            len(changes.put_keys), len(changes.removed), changes.ignored, changes.looked_up, self._counts
        )

    def correct(self, corrections: Corrections, spared: frozenset[int], applied: Applied) -> int:
        self._leave_fold_behind()
        wanted = read_corrections(corrections)
        moments = Moments(corrections.timestamp, self._applied.timestamp)
        with disk_errors(self._folder):
            views = self._views()
            try:
                held = held_by(views, [one.id for one in wanted])
                changes, documents = corrected_rows(
                    wanted, held, spared, moments, lambda key: entry_of(views, key)
                )
            finally:
                _release(views)
        hashes = hashes_of(changes.back_ids + changes.gone, len(changes.back_ids) + len(changes.gone))
        self._filter.add(hashes)
        self._commit(changes, {}, lambda: hashes)
        self._state_is(applied, changes.counts(0))
        return documents

    def _commit(self, changes: RowChanges, lines: dict[bytes, bytes], hashes: Callable[[], Hashes]) -> None:
        """Write rows into the delta, and lines of the skip ledger; `hashes` of the documents that they are
        of."""
        rows = changes.rows() + len(lines)
        if not rows:
            return
        with disk_errors(self._folder):
            delta = self._delta or self._new_delta()
            delta.room.make(rows, changes.row_bytes() + sum(map(len, lines.values())))
            with delta.environment.begin(write=True) as transaction:
                writer = Writer(transaction, delta.tables, markers=True)
                writer.write(changes)
                writer.write_lines(lines)
                reach("delta-before-commit")
            reach("delta-committed")
        if delta.ids is not None:
            delta.ids.add(hashes())
        delta.changed()
        self._delta_changes += len(changes.put_keys) + len(changes.removed)
        self._delta_rows += rows

    def _state_is(self, applied: Applied, counts: Counts) -> None:
        """A commit is done: the state with it, and what the counts change by."""
        self._applied = applied
        self._counts = self._counts.plus(counts)
        invariant(min(astuple(self._counts)) >= 0, "Mirror", lambda: f"counts {self._counts}")
        self._check_at_times()

    def load(
        self, puts: Collection[PutChunk], removals: Sequence[RemovalChunk], applied: Applied
    ) -> ApplyResult:
        invariant(
            not self._delta_rows and self._folding.frozen is None and self._applied == self._base.applied,
            "BackfillIsInvisible",
            f"a micro-batch came into {self._folder} beside changes that are not folded",
        )
        result, self._filter = self._base.load(puts, removals, applied, self._filter)
        self._journal.clear()
        self._applied, self._counts = self._base.applied, self._base.counts
        self._check_at_times()
        return result

    def snapshot(self) -> LmdbSnapshot:
        with disk_errors(self._folder):
            return LmdbSnapshot(self._views(), self._applied, self._counts)

    def export(self) -> LmdbExport:
        return self._exports.open()

    def fold_due(self, now: int) -> bool:
        self._now = max(self._now, now)
        if self._folding.at_work:
            return False
        if self._folding.frozen is not None:
            return self._folding.due_again(now)
        if self._delta is None and self._applied == self._base.applied:
            self._delta_since = None
            return False
        if self._delta_since is None:
            self._delta_since = now
        settings = self._settings
        return (
            now - self._delta_since >= settings.fold_age_ms
            or self._delta_changes >= self._fold_entries()
            or (self._delta is not None and self._delta.room.used_bytes() >= settings.fold_bytes)
        )

    def start_fold(self) -> bool:
        if self._folding.at_work:
            return False
        if self._folding.frozen is None:
            if self._delta is None and self._applied == self._base.applied:
                return False
            with disk_errors(self._folder):
                delta = self._delta or self._new_delta()
            self._folding.freeze(delta, self._applied, self._counts, self._filter)
            self._delta, self._delta_since = None, None
            self._delta_changes = self._delta_rows = 0
        self._folding.submit(self._filter, self._now)
        return True

    def finish_fold(self, wait_s: float = 0.0) -> Applied | None:
        self._filter = self._folding.settle(wait_s, self._filter)
        return self._folding.take_durable()

    @property
    def horizon(self) -> Applied:
        ways = self._journal.ways
        return ways[0].applied if ways else self._base.applied

    @property
    def undo_steps(self) -> int:
        return len(self._journal.ways)

    @property
    def undo_given_up(self) -> bool:
        return self._folding.undo_given_up

    def step_back(self, holds: Callable[[Applied], bool]) -> bool:
        if holds(self._applied):
            return True
        self._end_fold()
        self._drop_deltas()
        if holds(self._applied):
            return True
        ways = self._journal.ways
        newest = max((n for n, back in enumerate(ways) if holds(back.applied)), default=None)
        if newest is None or not all(self._journal.whole(back) for back in ways[newest:]):
            return False
        for back in reversed(ways[newest:]):
            self._filter = self._base.step_back(self._journal, back, self._filter)
            self._applied, self._counts = self._base.applied, self._base.counts
        if self._settings.check_mirror_s is not None:
            self.check_mirror()
        return True

    def verify(self) -> None:
        self._base.verify()
        self._journal.verify()

    def check_mirror(self) -> None:
        snapshot = self.snapshot()
        try:
            check_mirror(snapshot)
        finally:
            snapshot.close()

    def _check_at_times(self) -> None:
        """Check a commit, unless that was done a moment ago: what is wrong then stays wrong."""
        every = self._settings.check_mirror_s
        if every is not None and time.monotonic() >= self._check_again:
            self.check_mirror()
            self._check_again = time.monotonic() + every

    def disk_bytes(self) -> int:
        return allocated_bytes(self._folder)

    def close(self) -> None:
        self._drop_deltas()
        self._exports.close()
        self._base.level.retire()

    def destroy(self) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_fold(self) -> None:
        """Take note of what the fold at work did to the base, once it has ended."""
        if self._folding.at_work:
            # One that failed is not tried again: what it would have made durable is dropped.
            with suppress(RetryableError):
                self._filter = self._folding.settle(0.0, self._filter)
        if self._folding.at_work:
            raise RetryableError(f"the fold of {self._folder} is still at work", problem_type="fold-behind")
        self._base.reload()  # also after a worker that died behind its commit
        self._journal.folded(self._base.head, self._now)

    def _drop_deltas(self) -> None:
        """Forget what the base does not have."""
        if self._delta is not None:
            self._delta.retire(delete=self._delta.folder)
            self._delta = None
        self._folding.abandon()
        self._delta_changes = self._delta_rows = 0
        self._delta_since = None
        self._applied, self._counts = self._base.applied, self._base.counts

    def _views(self) -> list[View]:
        """The last commit: views of all levels, oldest first, acquired."""
        levels = (self._base.level, self._folding.frozen, self._delta)
        views: list[View] = []
        try:
            for level in levels:
                if level is not None:
                    views.append(level.view())
        except BaseException:
            _release(views)
            raise
        return views

    def _look_up(self, documents: WindowDocuments, views: Sequence[View]) -> list[tuple[bytes, bytes]]:
        """(id, record) of the documents that are held, asking the newest level first."""
        wanted, hashes = documents.to_look_up()
        found: list[tuple[bytes, bytes]] = []
        for view in reversed(views):
            if not wanted:
                break
            ask = wanted
            if view.ids is not None:
                passing = np.flatnonzero(view.ids.test(hashes)).tolist()
                ask = [wanted[row] for row in passing]
            if not ask:
                continue
            here = view.many(sorted(ask), view.tables.back)
            found += here
            if here and view is not views[0]:
                known = {docid for docid, _ in here}
                rest = [row for row, docid in enumerate(wanted) if docid not in known]
                wanted, hashes = [wanted[row] for row in rest], hashes[rest]
        return [row for row in found if row[1] != REMOVED]

    def _new_lines(self, segments: Sequence[Segment], views: Sequence[View]) -> dict[bytes, bytes]:
        """Lines of the skip ledger that it does not have yet."""
        lines: dict[bytes, bytes] = {}
        for segment in segments:
            for line in skip_lines(segment):
                key = ledger_key(line.partition, line.offset)
                if all(view.get(key, view.tables.skips) is None for view in views):
                    lines[key] = pack_line(line)
        return lines

    def _new_delta(self) -> Level:
        # A name of its own: snapshots may keep (and later delete) deltas of a slice that was here before.
        path = Path(tempfile.mkdtemp(prefix=_DELTA, dir=self._folder))
        ids = IdFilter.for_documents(self._fold_entries(), self._settings.filter_bits)
        self._delta = Level(path, self._settings.delta_map_bytes, self._settings, sync=False, ids=ids)
        return self._delta

    def _fold_entries(self) -> int:
        settings = self._settings
        return max(settings.fold_entries, int(settings.fold_share * self._base.counts.entries))

    def _leave_fold_behind(self) -> None:
        """Keep the delta within its limit while the one before it is folded."""
        delta, settings = self._delta, self._settings
        if delta is None or delta.room.used_bytes() < settings.delta_hard_bytes:
            return
        if self._folding.frozen is None or not self._folding.at_work:
            self.start_fold()
        elif self._folding.frozen is not None:
            self._filter = self._folding.settle(0.0, self._filter)
            if self._folding.at_work:
                raise RetryableError(
                    f"the fold of {self._folder} does not keep up: the delta after it has reached its limit",
                    problem_type="fold-behind",
                )


def _release(views: Sequence[View]) -> None:
    for view in views:
        view.release()
