"""The durable level: opening it, its state, and backfill micro-batches straight into it.

Theory of operation
===================
The base holds state, counts and sequence number in its meta table, in the same transaction as the rows. Two
writers change it, never at once: folds (`fold`, in the worker's process) and `load` here, while a slice is
under build and has no delta.

A micro-batch is one transaction, resolved in runs of bounded size (`load_run_documents`), so that memory does
not grow with it; with a writable map the transaction's pages are the kernel's. Into a fresh base every run is
tried by appending: chunks are sorted, so `forward` is appended from end to end; `back` is sorted per run, so
its first run is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from indexer.store.documents import Documents
from indexer.store.environment import FORMAT, allocated_bytes, disk_errors
from indexer.store.filter import IdFilter
from indexer.store.fold import (
    COUNTS_KEY,
    FILTER_FILE,
    FORMAT_KEY,
    NEXT_FILTER_FILE,
    OWNER_KEY,
    SEQUENCE_KEY,
    STATE_KEY,
)
from indexer.store.interface import Applied, ApplyResult, Counts
from indexer.store.levels import Level
from indexer.store.records import ledger_key, pack_line
from indexer.store.resolve import Changes, resolve
from indexer.store.settings import StoreSettings
from indexer.store.window import from_chunk_puts, from_chunk_removals
from indexer.store.writing import Writer, skip_lines
from keytide.columns import hashes_of
from keytide.errors import ConfigurationError, invariant
from keytide.messages import PutChunk, RemovalChunk

_encode = msgspec.msgpack.Encoder().encode
_decode_applied = msgspec.msgpack.Decoder(Applied).decode
_decode_counts = msgspec.msgpack.Decoder(Counts).decode
_HASH_BLOCK = 65_536

encode_state = _encode


class Base:
    """The base of one slice, with its state as of its last commit.

    Attributes:
        level: its environment.
        owner: of this opening; a fold must name it.
        sequence: counts commits.
        applied, counts: the state, durable.
    """

    def __init__(self, folder: Path, initial: Applied, settings: StoreSettings) -> None:
        self._folder = folder
        self._settings = settings
        self.applied, self.counts, self.sequence, self.owner = initial, Counts(), 0, 0
        path = folder / "base"
        used = allocated_bytes(path) if path.exists() else 0
        self.map_bytes = max(settings.base_map_bytes, 4 * used)
        with disk_errors(folder):
            self.level = Level(path, self.map_bytes, settings, sync=settings.fsync)
        try:
            self.level.environment.reader_check()  # slots of readers that were killed would pin old pages
            self._open(initial)
        except BaseException:
            self.level.retire()
            raise

    def _open(self, initial: Applied) -> None:
        meta = self.level.tables.meta
        with (
            disk_errors(self._folder),
            self.level.environment.begin(write=True, db=meta) as transaction,
        ):
            found = transaction.get(FORMAT_KEY)
            if found is None:
                self._put_meta(transaction, initial, Counts(), 0)
                transaction.put(FORMAT_KEY, FORMAT)
            elif found != FORMAT:
                raise ConfigurationError(
                    f"{self._folder} is a slice of format {found!r}, this program reads {FORMAT!r}",
                    next_step="run the release that wrote it, or drop and build the index again",
                )
            self.owner = int(transaction.get(OWNER_KEY, b"0")) + 1
            transaction.put(OWNER_KEY, b"%d" % self.owner)
            self._read_meta(transaction)

    def reload(self) -> None:
        """Take note of a commit that a fold made."""
        with self.level.environment.begin(db=self.level.tables.meta) as transaction:
            self._read_meta(transaction)
        self.level.changed()

    def load_filter(self) -> IdFilter:
        """The saved filter, or one built from the back index when it is missing, damaged or too old."""
        saved = IdFilter.read(self._folder / FILTER_FILE)
        if saved is not None and saved[1] >= self.sequence:
            return saved[0]
        with self.level.environment.begin() as transaction:
            return self._build_filter(transaction, self.counts.documents)

    def load(
        self,
        puts: Iterable[PutChunk],
        removals: Sequence[RemovalChunk],
        applied: Applied,
        held: IdFilter,
    ) -> tuple[ApplyResult, IdFilter]:
        """`SliceStore.load`; also returns the filter to use from now on."""
        with disk_errors(self._folder):
            transaction = self.level.environment.begin(write=True)
            try:
                batch = _MicroBatch(transaction, self, held, fresh=not self.counts.entries)
                batch.remove(removals)
                for run in _runs(puts, self._settings.load_run_documents):
                    batch.put(run)
                    if batch.filter.full():
                        documents = 2 * (self.counts.documents + batch.changes.documents)
                        batch.filter = self._build_filter(transaction, documents)
                counts = self.counts.plus(batch.counts())
                self.check_rows(transaction, counts)
                self._put_meta(transaction, applied, counts, self.sequence + 1)
                self.save_filter(batch.filter, self.sequence + 1)
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
        self.applied, self.counts, self.sequence = applied, counts, self.sequence + 1
        self.level.changed()
        return batch.result(counts), batch.filter

    def save_filter(self, held: IdFilter, sequence: int) -> None:
        """Put the filter in its place; before the commit that it covers."""
        new = self._folder / NEXT_FILTER_FILE
        held.save(new, sequence, sync=self._settings.fsync)
        os.replace(new, self._folder / FILTER_FILE)

    def check_rows(self, transaction: lmdb.Transaction[bytes], counts: Counts) -> None:
        """Rows of the tables against the counts (Mirror, in its cheap form)."""
        tables = self.level.tables
        rows = {name: transaction.stat(table)["entries"] for name, table in tables._asdict().items()}
        there = (rows["forward"] + rows["long"], rows["back"], rows["skips"])
        expected = (counts.entries, counts.documents + counts.tombstones, counts.skips)
        invariant(there == expected, "Mirror", f"base has {there} rows in {self._folder}, counted {expected}")

    def copy_to(self, folder: Path, held: IdFilter) -> Applied:
        """`SliceStore.copy_to`."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / "base"
        with disk_errors(folder):
            target.mkdir()
            try:
                environment = self.level.environment
                with environment.begin(db=self.level.tables.meta) as transaction:
                    applied = _decode_applied(transaction.get(STATE_KEY, b""))
                    sequence = int(transaction.get(SEQUENCE_KEY, b""))
                    environment.copy(str(target), compact=True, txn=transaction)
                held.save(folder / FILTER_FILE, sequence, sync=self._settings.fsync)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
        return applied

    def _read_meta(self, transaction: lmdb.Transaction[bytes]) -> None:
        self.applied = _decode_applied(transaction.get(STATE_KEY, b""))
        self.counts = _decode_counts(transaction.get(COUNTS_KEY, b""))
        self.sequence = int(transaction.get(SEQUENCE_KEY, b""))

    def _put_meta(
        self, transaction: lmdb.Transaction[bytes], applied: Applied, counts: Counts, sequence: int
    ) -> None:
        meta = self.level.tables.meta
        transaction.put(STATE_KEY, _encode(applied), db=meta)
        transaction.put(COUNTS_KEY, _encode(counts), db=meta)
        transaction.put(SEQUENCE_KEY, b"%d" % sequence, db=meta)

    def _build_filter(self, transaction: lmdb.Transaction[bytes], documents: int) -> IdFilter:
        room = documents + self._settings.fold_entries
        built = IdFilter.for_documents(room, self._settings.filter_bits)
        block: list[bytes] = []
        with transaction.cursor(self.level.tables.back) as cursor:
            for docid in cursor.iternext(values=False):
                block.append(docid)
                if len(block) == _HASH_BLOCK:
                    built.add(hashes_of(block, len(block)))
                    block = []
        built.add(hashes_of(block, len(block)))
        return built


class _MicroBatch:
    """One micro-batch on its way into a transaction."""

    def __init__(
        self, transaction: lmdb.Transaction[bytes], base: Base, held: IdFilter, *, fresh: bool
    ) -> None:
        self.filter = held
        self.changes = Changes()  # sums only
        self._transaction = transaction
        self._base = base
        self._writer = Writer(transaction, base.level.tables, markers=False, append=fresh)
        self._lines: dict[bytes, bytes] = {}
        self._rows = self._bytes = self._put = self._removed = 0

    def remove(self, removals: Sequence[RemovalChunk]) -> None:
        for chunk in removals:
            self._bring(from_chunk_removals([chunk], self.filter))
            self._lines.update(
                {ledger_key(line.partition, line.offset): pack_line(line) for line in skip_lines(chunk)}
            )
        table: Any = self._base.level.tables.skips
        self._lines = {
            key: line for key, line in self._lines.items() if self._transaction.get(key, db=table) is None
        }
        self._make_room(len(self._lines), sum(map(len, self._lines.values())))
        self._writer.write_lines(self._lines)

    def put(self, run: Sequence[PutChunk]) -> None:
        self._bring(from_chunk_puts(run, self.filter))

    def _bring(self, documents: Documents) -> None:
        wanted, _ = documents.to_look_up()
        found: list[tuple[bytes, bytes]] = []
        if wanted:
            with self._transaction.cursor(self._base.level.tables.back) as cursor:
                found = cursor.getmulti(sorted(wanted))
        changes = resolve(documents, found)
        self._make_room(changes.rows(), changes.row_bytes())
        self._writer.write(changes)
        self._put += len(changes.put_keys)
        self._removed += len(changes.removed)
        self.changes.add_sums(changes)

    def _make_room(self, rows: int, row_bytes: int) -> None:
        self._rows += rows
        self._bytes += row_bytes
        self._base.level.room.make(self._rows, self._bytes)

    def counts(self) -> Counts:
        return self.changes.counts(len(self._lines))

    def result(self, counts: Counts) -> ApplyResult:
        return ApplyResult(self._put, self._removed, self.changes.ignored, self.changes.looked_up, counts)


def _runs(chunks: Iterable[PutChunk], documents: int) -> Iterator[list[PutChunk]]:
    """Chunks by runs of about so many entries."""
    run: list[PutChunk] = []
    size = 0
    for chunk in chunks:
        run.append(chunk)
        size += chunk.count
        if size >= documents:
            yield run
            run, size = [], 0
    if run:
        yield run
