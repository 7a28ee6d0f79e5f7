"""One backfill micro-batch into an open transaction of the base: removals, then runs of entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import lmdb

from indexer.store.documents import Documents
from indexer.store.filter import IdFilter
from indexer.store.interface import ApplyResult, Counts
from indexer.store.levels import Level
from indexer.store.records import ledger_key, pack_line
from indexer.store.resolve import Changes, resolve
from indexer.store.window import from_chunk_puts, from_chunk_removals
from indexer.store.writing import Writer, skip_lines
from keytide.messages import PutChunk, RemovalChunk


class MicroBatch:
    """One micro-batch on its way into a transaction."""

    def __init__(
        self, transaction: lmdb.Transaction[bytes], level: Level, held: IdFilter, *, fresh: bool
    ) -> None:
        self.filter = held
        self.changes = Changes()  # sums only
        self._transaction = transaction
        self._level = level
        self._writer = Writer(transaction, level.tables, markers=False, append=fresh)
        self._lines: dict[bytes, bytes] = {}
        self._rows = self._bytes = self._put = self._removed = 0

    def remove(self, removals: Sequence[RemovalChunk]) -> None:
        for chunk in removals:
            self._bring(from_chunk_removals([chunk], self.filter))
            self._lines.update(
                {ledger_key(line.partition, line.offset): pack_line(line) for line in skip_lines(chunk)}
            )
        table: Any = self._level.tables.skips
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

    def counts(self) -> Counts:
        return self.changes.counts(len(self._lines))

    def result(self, counts: Counts) -> ApplyResult:
        return ApplyResult(self._put, self._removed, self.changes.ignored, self.changes.looked_up, counts)


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
