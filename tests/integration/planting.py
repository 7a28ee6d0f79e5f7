"""Planting faults in the bases of slices while their node is stopped: as a bug would, with checksums and
counts
that are right for what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from indexer.store.environment import Tables
from indexer.store.files.checksums import write_checksums
from indexer.store.fold.fold import COUNTS_KEY, OWNER_KEY, SEQUENCE_KEY, STATE_KEY
from indexer.store.formats.records import PUT, pack_record, unpack_record
from indexer.store.formats.state_bytes import decode_applied, decode_counts, encode_state
from indexer.store.interface import Counts, StoredDocument
from keytide.model.timestamp import Timestamp


def durable_timestamp(folder: Path) -> Timestamp:
    """What the base of a slice holds, also while its node runs."""
    with (
        lmdb.open(str(folder / "base"), max_dbs=5, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        meta = environment.open_db(b"meta", transaction, create=False)
        return decode_applied(bytes(transaction.get(STATE_KEY, db=meta) or b"")).timestamp


@dataclass
class Base:
    """The base of one slice, open for changes."""

    transaction: Any
    tables: Tables

    def documents(self) -> list[tuple[bytes, StoredDocument]]:
        """What the back index has."""
        rows = self.transaction.cursor(self.tables.back)
        return [(bytes(docid), unpack_record(bytes(record))) for docid, record in rows]

    def value(self, key: bytes, docid: bytes) -> bytes:
        found = self.transaction.get(key + docid, db=self.tables.forward)
        assert found is not None
        return bytes(found)[1:]

    def put_entry(self, key: bytes, docid: bytes, value: bytes) -> None:
        self.transaction.put(key + docid, PUT + value, db=self.tables.forward)

    def remove_entry(self, key: bytes, docid: bytes) -> None:
        assert self.transaction.delete(key + docid, db=self.tables.forward)

    def put_record(self, docid: bytes, held: StoredDocument) -> None:
        self.transaction.put(docid, pack_record(held), db=self.tables.back)

    def remove_record(self, docid: bytes) -> None:
        assert self.transaction.delete(docid, db=self.tables.back)


@contextmanager
def planting(folder: Path) -> Iterator[Base]:
    """Change the base of a slice whose node is stopped."""
    with (
        lmdb.open(str(folder / "base"), map_size=1 << 30, max_dbs=5) as environment,
        environment.begin(write=True) as transaction,
    ):
        tables = Tables(*(environment.open_db(name.encode(), transaction) for name in Tables._fields))
        base = Base(transaction, tables)
        yield base
        names = (COUNTS_KEY, OWNER_KEY, SEQUENCE_KEY)
        meta = {key: bytes(transaction.get(key, db=tables.meta) or b"") for key in names}
        counts = decode_counts(meta[COUNTS_KEY])
        entries = sum(transaction.stat(table)["entries"] for table in (tables.forward, tables.long))
        documents = sum(bool(held.keys) for _, held in base.documents())
        now = Counts(entries, documents, counts.tombstones, counts.skips, counts.foreign)
        transaction.put(COUNTS_KEY, encode_state(now), db=tables.meta)
    write_checksums(folder, int(meta[OWNER_KEY]), int(meta[SEQUENCE_KEY]), sync=True)


Plant = Callable[[Base], None]
