"""A micro-batch into an empty slice: both trees written from end to end, by appending.

Theory of operation
===================
The entries of a slice come from Spark in the order of their keys (one task merges all of a slice), so
`forward` is appended as they are read. `back` is ordered by document id: its rows are sorted on the way, in
runs of bounded size (`sorting`), and appended behind. LMDB then fills page after page, copies none, and looks
nothing up: nothing can be held in an empty slice, so neither can anything be removed.

What cannot be done so is noticed, never guessed: entries out of order, or two versions of one document (the
attempts of several tasks, in tests; Spark's tasks have settled that), raise `NotInOrderError`, and the caller
begins again with `loading`, which takes everything in any order. Keys that are too long for LMDB's own go to
`long`, whose keys are in no order, by putting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from indexer.store.files.external_sort import SortedRuns
from indexer.store.formats.records import HEADER_BYTES, PUT, pack_headers, pack_record, unpack_record
from indexer.store.interface import Row
from indexer.store.lmdb.levels import Level
from indexer.store.lmdb.writing import Writer
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.resolve.window import entry_columns
from keytide.model.entry import INLINE_LIMIT
from keytide.wire.columns import hashes_of, unpack
from keytide.wire.messages import PutChunk

_docid = itemgetter(0)


class NotInOrderError(Exception):
    """The entries are not what can be appended."""


class BulkLoad:
    """Entries into an open transaction of an empty base.

    Args:
        folder: of the slice, for scratch.

    Attributes:
        entries, documents: written so far.
    """

    def __init__(self, transaction: lmdb.Transaction[bytes], level: Level, folder: Path) -> None:
        self.entries = self.documents = 0
        self._transaction = transaction
        self._level = level
        self._writer = Writer(transaction, level.tables, markers=False)
        self._back = SortedRuns(folder)
        self._rows = self._bytes = 0

    def put(self, run: Sequence[PutChunk]) -> None:
        """Append the entries of some chunks, which follow those of the run before.

        Raises:
            NotInOrderError: they do not.
        """
        joined = b"".join
        ids = unpack(np.frombuffer(joined(c.id_lengths for c in run), np.uint8), joined(c.ids for c in run))
        keys, values = entry_columns(
            joined(c.key_lengths for c in run),
            joined(c.keys for c in run),
            [(c.count, c.value_lengths, c.values) for c in run],
        )
        headers = pack_headers(
            np.frombuffer(joined(c.partitions for c in run), "<u4").astype(np.int64),
            np.frombuffer(joined(c.times for c in run), "<i8").astype(np.int64),
            np.frombuffer(joined(c.offsets for c in run), "<u8").astype(np.int64),
        )
        entry_keys = [key + docid for key, docid in zip(keys, ids, strict=True)]
        key_bytes, id_bytes = sum(map(len, keys)), sum(map(len, ids))
        value_bytes = sum(map(len, values or ()))
        longest = max(map(len, entry_keys), default=0)
        # A long entry stands in its row with its entry key in the value as well.
        size = (2 if longest > INLINE_LIMIT else 1) * (key_bytes + id_bytes) + value_bytes + len(ids)
        self._make_room(2 * len(ids), size + key_bytes + id_bytes + HEADER_BYTES * len(ids))
        tagged = None if values is None else [PUT + value for value in values]
        if longest > INLINE_LIMIT:
            entry_keys, tagged = self._put_long(entry_keys, tagged)
        values_of = repeat(PUT) if tagged is None else tagged
        forward = zip(entry_keys, values_of, strict=False)
        self._append(self._level.tables.forward, forward, len(entry_keys))
        self.entries += len(ids)
        self._back.add(zip(ids, map(bytes.__add__, headers, keys), strict=True))

    def _put_long(
        self, keys: list[bytes], tagged: list[bytes] | None
    ) -> tuple[list[bytes], list[bytes] | None]:
        """Put the entries whose keys are too long; returns the others."""
        long = [place for place, key in enumerate(keys) if len(key) > INLINE_LIMIT]
        found = [keys[place] for place in long]
        if len(set(found)) < len(found):
            raise NotInOrderError
        self._writer.put_entries(found, None if tagged is None else [tagged[place] for place in long])
        there = set(long)
        rest = [place for place in range(len(keys)) if place not in there]
        return [keys[place] for place in rest], None if tagged is None else [tagged[place] for place in rest]

    def finish(self, built: IdFilter) -> None:
        """Append the back index, and add all ids to a filter.

        Raises:
            NotInOrderError: a document has two versions.
        """
        pending: list[Row] = []
        for block in self._back.merged():
            rows = _united(pending + block)
            pending = [rows.pop()]  # the next block may have more keys of it
            self._append_back(rows, built)
        self._append_back(pending, built)

    def _append_back(self, rows: list[Row], built: IdFilter) -> None:
        if not rows:
            return
        self._append(self._level.tables.back, iter(rows), len(rows))
        built.add(hashes_of(map(_docid, rows), len(rows)))
        self.documents += len(rows)

    def _append(self, table: Any, rows: Iterator[Row], count: int) -> None:
        with self._transaction.cursor(table) as cursor:
            _, added = cursor.putmulti(rows, append=True)
        if added != count:
            raise NotInOrderError

    def _make_room(self, rows: int, row_bytes: int) -> None:
        self._rows += rows
        self._bytes += row_bytes
        self._level.room.make(self._rows, self._bytes)

    def close(self) -> None:
        """Give scratch files back."""
        self._back.close()


def _united(rows: list[Row]) -> list[Row]:
    """Rows of the back index in order of id, one for each document.

    Raises:
        NotInOrderError: a document has two versions, or a key twice.
    """
    if len(set(map(_docid, rows))) == len(rows):
        return rows
    united: list[Row] = []
    for docid, record in rows:
        if not united or united[-1][0] != docid:
            united.append((docid, record))
            continue
        held, more = unpack_record(united[-1][1]), unpack_record(record)
        added = tuple(key for key in more.keys if key not in held.keys)
        if more._replace(keys=()) != held._replace(keys=()) or len(added) < len(more.keys):
            raise NotInOrderError
        united[-1] = (docid, pack_record(held._replace(keys=held.keys + added)))
    return united
