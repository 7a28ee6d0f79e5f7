"""One backfill micro-batch into an open transaction of the base, in any order and against what is held:
removals, then runs of entries. The fast way into an empty base is `bulk`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import lmdb

from indexer.store.formats.records import ledger_key, pack_line
from indexer.store.interface import ApplyResult, Counts
from indexer.store.lmdb.levels import Level
from indexer.store.lmdb.writing import Writer, skip_lines
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.resolve.documents import WindowDocuments
from indexer.store.resolve.resolve import RowChanges, resolve
from indexer.store.resolve.window import from_chunk_puts, from_chunk_removals
from keytide.wire.messages import PutChunk, RemovalChunk


class Loaded(NamedTuple):
    """What a micro-batch came to.

    Attributes:
        counts: what the store's change by.
        filter: to use from now on.
        put, removed, ignored, looked_up, appended: as in `ApplyResult`.
    """

    counts: Counts
    filter: IdFilter
    put: int
    removed: int = 0
    ignored: int = 0
    looked_up: int = 0
    appended: int = 0

    def result(self, counts: Counts) -> ApplyResult:
        return ApplyResult(self.put, self.removed, self.ignored, self.looked_up, counts, self.appended)


class MicroBatch:
    """One micro-batch on its way into a transaction."""

    def __init__(self, transaction: lmdb.Transaction[bytes], level: Level, held: IdFilter) -> None:
        self.filter = held
        self.changes = RowChanges()  # sums only
        self._transaction = transaction
        self._level = level
        self._writer = Writer(transaction, level.tables, markers=False)
        self._lines = 0
        self._rows = self._bytes = self._put = self._removed = 0

    def remove(self, removals: Sequence[RemovalChunk]) -> None:
        for chunk in removals:
            self._bring(from_chunk_removals([chunk], self.filter))
        self._lines = write_lines(self._transaction, self._level, removals)

    def put(self, run: Sequence[PutChunk]) -> None:
        self._bring(from_chunk_puts(run, self.filter))

    def _bring(self, documents: WindowDocuments) -> None:
        wanted, _ = documents.to_look_up()
        found: list[tuple[bytes, bytes]] = []
        if wanted:
            with self._transaction.cursor(self._level.tables.back) as cursor:
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
        self._level.room.make(self._rows, self._bytes)

    def loaded(self) -> Loaded:
        changes = self.changes
        counts = changes.counts(self._lines)
        return Loaded(counts, self.filter, self._put, self._removed, changes.ignored, changes.looked_up)


def write_lines(transaction: lmdb.Transaction[bytes], level: Level, removals: Sequence[RemovalChunk]) -> int:
    """Write the lines of a micro-batch that the skip ledger does not have yet; returns how many."""
    table: Any = level.tables.skips
    lines: dict[bytes, bytes] = {}
    for chunk in removals:
        for line in skip_lines(chunk):
            key = ledger_key(line.partition, line.offset)
            if key not in lines and transaction.get(key, db=table) is None:
                lines[key] = pack_line(line)
    level.room.make(len(lines), sum(map(len, lines.values())))
    Writer(transaction, level.tables, markers=False).write_lines(lines)
    return len(lines)


def runs(chunks: Iterable[PutChunk], documents: int) -> Iterator[list[PutChunk]]:
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
