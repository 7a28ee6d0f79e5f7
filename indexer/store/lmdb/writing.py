"""One window's rows into one LMDB transaction: with removal markers (deltas) or with deletions (base).

Rows go in sorted by key, so that neighbouring rows find their pages in the processor's cache and each page is
copied once. Entry keys that are too long for LMDB go to the long table (`keytide.model.entry`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import lmdb

from indexer.store.environment import Tables
from indexer.store.formats.long_rows import long_table_key, long_value
from indexer.store.formats.records import PUT, REMOVED
from indexer.store.interface import Row, SkipLine
from indexer.store.resolve.resolve import RowChanges
from keytide.model.entry import INLINE_LIMIT
from keytide.wire.messages import RemovalChunk, Segment


def skip_lines(part: Segment | RemovalChunk) -> list[SkipLine]:
    """The lines that a segment or chunk brings to the skip ledger."""
    return [SkipLine(part.partition, skip.offset, skip.id, skip.reason, skip.detail) for skip in part.skips]


class Writer:
    """Writes rows into one transaction.

    Args:
        markers: whether removals leave a marker (deltas) or delete (base).
    """

    def __init__(self, transaction: lmdb.Transaction[bytes], tables: Tables, *, markers: bool) -> None:
        self._transaction = transaction
        self._tables = tables
        self._markers = markers

    def write(self, changes: RowChanges) -> None:
        """Write a window's changes."""
        tables = self._tables
        self._remove_entries(changes.removed)
        self.put_entries(changes.put_keys, changes.put_values)
        self._remove(tables.back, changes.gone)
        self._put(tables.back, changes.back_ids, changes.back_records)

    def write_lines(self, lines: dict[bytes, bytes]) -> None:
        """Put lines of the skip ledger: ledger key -> line."""
        self._put(self._tables.skips, list(lines), list(lines.values()))

    def put_entries(self, keys: list[bytes], values: list[bytes] | None) -> None:
        """Put entries: their keys, and their tagged values (None: all are the bare tag)."""
        if keys and max(map(len, keys)) > INLINE_LIMIT:
            tagged = values or [PUT] * len(keys)
            pairs = list(zip(keys, tagged, strict=True))
            long = [pair for pair in pairs if len(pair[0]) > INLINE_LIMIT]
            self._put(
                self._tables.long,
                [long_table_key(key) for key, _ in long],
                [long_value(key, value) for key, value in long],
            )
            pairs = [pair for pair in pairs if len(pair[0]) <= INLINE_LIMIT]
            keys = [key for key, _ in pairs]
            values = None if values is None else [value for _, value in pairs]
        self._put(self._tables.forward, keys, values)

    def _remove_entries(self, keys: list[bytes]) -> None:
        if keys and max(map(len, keys)) > INLINE_LIMIT:
            self._remove(self._tables.long, [long_table_key(key) for key in keys if len(key) > INLINE_LIMIT])
            keys = [key for key in keys if len(key) <= INLINE_LIMIT]
        self._remove(self._tables.forward, keys)

    def _put(self, table: Any, keys: list[bytes], values: Sequence[bytes] | None) -> None:
        """Put rows; all values are the bare tag when None."""
        if not keys:
            return
        if values is None:
            ordered = sorted(keys)
            self._put_sorted(table, zip(ordered, repeat(PUT)))
            return
        rows = dict(zip(keys, values, strict=True))
        ordered = sorted(rows)
        self._put_sorted(table, zip(ordered, map(rows.__getitem__, ordered), strict=True))

    def _put_sorted(self, table: Any, rows: Iterator[Row]) -> None:
        with self._transaction.cursor(table) as cursor:
            cursor.putmulti(rows)

    def _remove(self, table: Any, keys: Iterable[bytes]) -> None:
        ordered = sorted(keys)
        if not ordered:
            return
        if self._markers:
            with self._transaction.cursor(table) as cursor:
                cursor.putmulti(zip(ordered, repeat(REMOVED)))
            return
        delete_sorted(self._transaction, table, ordered)


def delete_sorted(transaction: lmdb.Transaction[bytes], table: Any, keys: Iterable[bytes]) -> None:
    """Delete rows by ascending key; keys that are not there are passed over."""
    with transaction.cursor(table) as cursor:
        for key in keys:
            if cursor.set_key(key):
                cursor.delete()
