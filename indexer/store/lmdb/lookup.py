"""Single look-ups over the levels of a slice, newest first, that ask no filter: for corrections, which must
not believe what ought to hold."""

from __future__ import annotations

from collections.abc import Sequence

from indexer.store.formats.long_rows import long_table_key, unpack_long
from indexer.store.formats.records import REMOVED, unpack_record
from indexer.store.interface import StoredDocument
from indexer.store.lmdb.levels import View
from keytide.model.entry import INLINE_LIMIT


def held_by(views: Sequence[View], ids: Sequence[bytes]) -> dict[bytes, StoredDocument]:
    """What the back index has of some documents.

    Args:
        views: oldest first.
    """
    records: dict[bytes, bytes] = {}
    wanted = sorted(set(ids))
    for view in views:
        records.update(view.many(wanted, view.tables.back))
    return {docid: unpack_record(record) for docid, record in records.items() if record != REMOVED}


def entry_of(views: Sequence[View], entry_key: bytes) -> bytes | None:
    """The value of an entry, without its tag; None when there is no such entry."""
    long = len(entry_key) > INLINE_LIMIT
    key = long_table_key(entry_key) if long else entry_key
    for view in reversed(views):
        row = view.get(key, view.tables.long if long else view.tables.forward)
        if row is not None:
            if row == REMOVED:
                return None
            return unpack_long(row)[1][1:] if long else row[1:]
    return None
