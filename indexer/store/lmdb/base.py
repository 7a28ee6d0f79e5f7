"""The durable level: opening it, its state, backfill micro-batches straight into it, steps back.

Theory of operation
===================
The base holds state, counts, sequence number and the name of its newest undo file in its meta table, in the
same transaction as the rows. Two writers change it, never at once: folds (`fold`, in the worker's process)
and, while none is at work, this module: `load` for a slice under build, which has no delta, and `step_back`.

Before the base is opened its pages are compared with their checksums (`opening`), and after every commit the
checksums are brought up to it. When that last step fails, the commit stands all the same, and the next one or
the next opening makes up for it.

A micro-batch is one transaction, read in runs of bounded size (`load_run_documents`), so that memory does not
grow with it; with a writable map the transaction's pages are the kernel's. Into an empty base it is appended
(`bulk`), else, or when it is not in order, every run is resolved and put (`loading`). No way leads back over
a micro-batch: a keyspace that loses records has its builds begin again.

A step back is one transaction too. It counts as a new commit (the sequence number rises), with the state of
an old one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import lmdb

from indexer.store.environment import FORMAT, Tables, allocated_bytes, disk_errors
from indexer.store.files.checksums import write_checksums
from indexer.store.files.filter_file import read_filter, save_filter
from indexer.store.fold.fold import (
    COUNTS_KEY,
    FILTER_FILE,
    FORMAT_KEY,
    NEXT_FILTER_FILE,
    OWNER_KEY,
    SEQUENCE_KEY,
    STATE_KEY,
    UNDO_KEY,
)
from indexer.store.fold.undo_journal import Back, UndoJournal
from indexer.store.formats.state_bytes import decode_applied, decode_counts, encode_state
from indexer.store.integrity.opening import check_base, verify_base
from indexer.store.interface import Applied, ApplyResult, Counts
from indexer.store.lmdb.bulk import BulkLoad, NotInOrderError
from indexer.store.lmdb.levels import Level
from indexer.store.lmdb.loading import Loaded, MicroBatch, runs, write_lines
from indexer.store.lmdb.writing import delete_sorted
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.settings import StoreSettings
from keytide.errors import ConfigurationError, RetryableError, invariant
from keytide.process.sync_points import reach
from keytide.wire.columns import hashes_of
from keytide.wire.messages import PutChunk, RemovalChunk

_HASH_BLOCK = 65_536
_OPENINGS = 5

log = logging.getLogger(__name__)


class Base:
    """The base of one slice, with its state as of its last commit.

    Attributes:
        level: its environment.
        owner: of this opening; a fold must name it.
        sequence: counts commits.
        applied, counts: the state, durable.
        head: the undo file that leads back from it, empty for none.

    Raises:
        StoreDamagedError: it is not what was written.
    """

    def __init__(self, folder: Path, initial: Applied, settings: StoreSettings) -> None:
        self._folder = folder
        self._settings = settings
        self.applied, self.counts, self.sequence, self.owner, self.head = initial, Counts(), 0, 0, ""
        path = folder / "base"
        used = allocated_bytes(path) if path.exists() else 0
        self.map_bytes = max(settings.base_map_bytes, 4 * used)
        for _ in range(_OPENINGS):
            checked = check_base(folder, self.map_bytes, settings.stall_s)
            with disk_errors(folder):
                self.level = Level(path, self.map_bytes, settings, sync=settings.fsync)
            try:
                self.forget_dead_readers()
                if self._open(initial, checked):
                    with disk_errors(folder):
                        self._write_checksums()
                    return
            except BaseException:
                self.level.retire()
                raise
            self.level.retire()
        raise RetryableError(f"{folder} is being changed by another process", problem_type="slice-in-use")

    def _open(self, initial: Applied, checked: int) -> bool:
        """Take the base over; False when it is no longer the one that was checked (a fold of the process
        before this one came in between)."""
        meta = self.level.tables.meta
        with (
            disk_errors(self._folder),
            self.level.environment.begin(write=True, db=meta) as transaction,
        ):
            if 0 < checked < transaction.id() - 1:
                return False
            found = transaction.get(FORMAT_KEY)
            if found is None:
                put_state(transaction, self.level.tables, initial, Counts(), 0, "")
                transaction.put(FORMAT_KEY, FORMAT)
            elif found != FORMAT:
                raise ConfigurationError(
                    f"{self._folder} is a slice of format {found!r}, this program reads {FORMAT!r}",
                    next_step="run the release that wrote it, or drop and build the index again",
                )
            self.owner = int(transaction.get(OWNER_KEY, b"0")) + 1
            transaction.put(OWNER_KEY, b"%d" % self.owner)
            self._read_meta(transaction)
        return True

    def forget_dead_readers(self) -> None:
        """Free the reader slots of processes that are gone. A process that is killed within a read
        transaction leaves its slot behind, and no page that was freed since would ever be used again: the
        base would grow with every fold."""
        with disk_errors(self._folder):
            gone = self.level.environment.reader_check()
        if gone:
            log.info("freed %d read transactions of killed processes in %s", gone, self._folder)

    def reload(self) -> None:
        """Take note of a commit that a fold made."""
        with (
            disk_errors(self._folder),
            self.level.environment.begin(db=self.level.tables.meta) as transaction,
        ):
            self._read_meta(transaction)
        self.level.changed()

    def load_filter(self) -> IdFilter:
        """The saved filter, or one built from the back index when it is missing, damaged or of other
        commits."""
        saved = read_filter(self._folder / FILTER_FILE)
        if saved is not None and saved[0].since <= self.sequence <= saved[1]:
            return saved[0]
        with disk_errors(self._folder), self.level.environment.begin() as transaction:
            return self._build_filter(transaction, self.counts.documents, self.sequence)

    def load(
        self,
        puts: Collection[PutChunk],
        removals: Sequence[RemovalChunk],
        applied: Applied,
        held: IdFilter,
    ) -> tuple[ApplyResult, IdFilter]:
        """`SliceStore.load`; also returns the filter to use from now on."""
        if self._empty():
            with suppress(NotInOrderError):
                return self._load(self._append, puts, removals, applied, held)
        return self._load(self._put, puts, removals, applied, held)

    def _empty(self) -> bool:
        """Whether no document is held, not even a tombstone of one."""
        return not (self.counts.entries or self.counts.documents or self.counts.tombstones)

    def _load(
        self,
        way: Callable[..., Loaded],
        puts: Collection[PutChunk],
        removals: Sequence[RemovalChunk],
        applied: Applied,
        held: IdFilter,
    ) -> tuple[ApplyResult, IdFilter]:
        """One micro-batch, in one of two ways, in one transaction."""
        with disk_errors(self._folder):
            transaction = self.level.environment.begin(write=True)
            try:
                loaded = way(transaction, puts, removals, held)
                counts = self.counts.plus(loaded.counts)
                self.check_rows(transaction, counts)
                put_state(transaction, self.level.tables, applied, counts, self.sequence + 1, "")
                self.save_filter(loaded.filter, self.sequence + 1)
                reach("load-before-commit")
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
        reach("load-committed")
        self._committed(applied, counts, "")
        self.level.room.give_back()
        return loaded.result(counts), loaded.filter

    def _put(
        self,
        transaction: lmdb.Transaction[bytes],
        puts: Collection[PutChunk],
        removals: Sequence[RemovalChunk],
        held: IdFilter,
    ) -> Loaded:
        """Run by run, against what is held."""
        batch = MicroBatch(transaction, self.level, held)
        batch.remove(removals)
        for run in runs(puts, self._settings.load_run_documents):
            batch.put(run)
            if batch.filter.full():
                documents = 2 * (self.counts.documents + batch.changes.documents)
                batch.filter = self._build_filter(transaction, documents, self.sequence + 1)
        return batch.loaded()

    def _append(
        self,
        transaction: lmdb.Transaction[bytes],
        puts: Collection[PutChunk],
        removals: Sequence[RemovalChunk],
        held: IdFilter,
    ) -> Loaded:
        """In order, into an empty base: nothing is held, so what is only heard removes nothing."""
        lines = write_lines(transaction, self.level, removals)
        bulk = BulkLoad(transaction, self.level, self._folder)
        try:
            for run in runs(puts, self._settings.load_run_documents):
                bulk.put(run)
            if bulk.entries:
                room = bulk.entries + self._settings.fold_entries
                held = IdFilter.for_documents(room, self._settings.filter_bits, self.sequence + 1)
            bulk.finish(held)
        finally:
            bulk.close()
        counts = Counts(bulk.entries, bulk.documents, skips=lines)
        return Loaded(counts, held, bulk.entries, appended=bulk.entries)

    def step_back(self, journal: UndoJournal, back: Back, held: IdFilter) -> IdFilter:
        """Go back to the state before the last fold; returns the filter to use from now on.

        Args:
            back: the newest way of the journal, and whole.
        """
        reach("step-back-before")
        tables = self.level.tables._asdict()
        with disk_errors(self._folder):
            transaction = self.level.environment.begin(write=True)
            try:
                self.level.room.make(back.step.rows, back.step.row_bytes)
                for block in journal.blocks(back):
                    table = tables[block.table.decode()]
                    with transaction.cursor(table) as cursor:
                        cursor.putmulti(block.old)
                    delete_sorted(transaction, table, block.new)
                self.check_rows(transaction, back.counts)
                if held.since > back.step.sequence:
                    held = self._build_filter(transaction, back.counts.documents, self.sequence + 1)
                put_state(
                    transaction,
                    self.level.tables,
                    back.applied,
                    back.counts,
                    self.sequence + 1,
                    back.step.previous,
                )
                self.save_filter(held, self.sequence + 1)
                reach("step-back-half")
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
        self._committed(back.applied, back.counts, back.step.previous)
        journal.stepped_back()
        self.level.room.give_back()
        reach("step-back-done")
        return held

    def verify(self) -> None:
        """`SliceStore.verify`, of the pages."""
        view = self.level.view()  # keeps the environment open, should the store be closed meanwhile
        try:
            with disk_errors(self._folder):
                verify_base(self._folder, self.level.environment, self.map_bytes, self._settings.stall_s)
        finally:
            view.release()

    def _committed(self, applied: Applied, counts: Counts, head: str) -> None:
        self.applied, self.counts, self.head = applied, counts, head
        self.sequence += 1
        self.level.changed()
        try:
            self._write_checksums()
        except OSError as error:
            log.warning("no checksums of %s for now: %s", self._folder, error)

    def _write_checksums(self) -> None:
        """Bring the checksums up to the base; with its write lock, so that nobody takes it over meanwhile."""
        environment, meta = self.level.environment, self.level.tables.meta
        with environment.begin(write=True, db=meta) as lock:
            if int(lock.get(OWNER_KEY, b"-1")) == self.owner:
                write_checksums(self._folder, self.owner, self.sequence, sync=self._settings.fsync)

    def save_filter(self, held: IdFilter, sequence: int) -> None:
        """Put the filter in its place; before the commit that it covers."""
        put_filter(self._folder, held, sequence, sync=self._settings.fsync)

    def check_rows(self, transaction: lmdb.Transaction[bytes], counts: Counts) -> None:
        """Rows of the tables against the counts (Mirror, in its cheap form)."""
        there, expected = table_rows(transaction, self.level.tables), counted_rows(counts)
        invariant(there == expected, "Mirror", f"base has {there} rows in {self._folder}, counted {expected}")

    def _read_meta(self, transaction: lmdb.Transaction[bytes]) -> None:
        self.applied = decode_applied(transaction.get(STATE_KEY, b""))
        self.counts = decode_counts(transaction.get(COUNTS_KEY, b""))
        self.sequence = int(transaction.get(SEQUENCE_KEY, b""))
        self.head = transaction.get(UNDO_KEY, b"").decode()

    def _build_filter(self, transaction: lmdb.Transaction[bytes], documents: int, sequence: int) -> IdFilter:
        """One with what the back index holds in a transaction, which is (or is to be) commit `sequence`."""
        room = documents + self._settings.fold_entries
        built = IdFilter.for_documents(room, self._settings.filter_bits, sequence)
        add_documents(built, transaction, self.level.tables)
        return built


def put_state(
    transaction: lmdb.Transaction[bytes],
    tables: Tables,
    applied: Applied,
    counts: Counts,
    sequence: int,
    head: str,
) -> None:
    """Write the state of a base; `head` names the undo file that leads back from it, empty for none."""
    for key, value in (
        (STATE_KEY, encode_state(applied)),
        (COUNTS_KEY, encode_state(counts)),
        (SEQUENCE_KEY, b"%d" % sequence),
        (UNDO_KEY, head.encode()),
    ):
        transaction.put(key, value, db=tables.meta)


def table_rows(transaction: lmdb.Transaction[bytes], tables: Tables) -> tuple[int, int, int]:
    """Rows there are: entries, documents (tombstones included), lines."""
    rows = {name: transaction.stat(table)["entries"] for name, table in tables._asdict().items()}
    return rows["forward"] + rows["long"], rows["back"], rows["skips"]


def counted_rows(counts: Counts) -> tuple[int, int, int]:
    """What `table_rows` must be."""
    return counts.entries, counts.documents + counts.tombstones, counts.skips


def put_filter(folder: Path, held: IdFilter, sequence: int, *, sync: bool) -> None:
    """Save a filter in a slice's folder; `sequence` is that of the commit to come, which it covers."""
    save_filter(held, folder / NEXT_FILTER_FILE, sequence, sync=sync)
    os.replace(folder / NEXT_FILTER_FILE, folder / FILTER_FILE)


def add_documents(built: IdFilter, transaction: lmdb.Transaction[bytes], tables: Tables) -> None:
    """Add all that the back index holds to a filter."""
    with transaction.cursor(tables.back) as cursor:
        ids = cursor.iternext(values=False)
        while block := list(islice(ids, _HASH_BLOCK)):
            built.add(hashes_of(block, len(block)))
