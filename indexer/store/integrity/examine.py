"""A base compared with itself, in a process of its own: `python -m indexer.store.integrity.examine FOLDER
MAP_BYTES`.

Reads everything: keys ascend, every row can be decoded, forward entries are the inverse of the back index,
the counts are right, and every page of the file is in use by one tree or free. Prints empty lines,
which say that it comes further (`watched`), then one JSON object with what it found. That this process is
ended by a signal of its own doing is an answer as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import xxhash

from indexer.store.environment import DAMAGE, FORMAT, Tables
from indexer.store.files.pages import PageFile
from indexer.store.fold.fold import COUNTS_KEY, FORMAT_KEY, OWNER_KEY, SEQUENCE_KEY, STATE_KEY
from indexer.store.formats.long_rows import long_table_key, unpack_long
from indexer.store.formats.records import PUT, ledger_key, unpack_line, unpack_record
from indexer.store.formats.state_bytes import decode_applied, decode_counts
from indexer.store.interface import Counts, StoreDamagedError
from keytide.errors import InvariantViolationError
from keytide.model.entry import check_value
from keytide.process.parent_death import follow_parent
from keytide.process.program import begin
from keytide.process.sync_points import reach

_SPAN = 1 << 128
_FURTHER_ROWS = 16_384


def main() -> None:
    """Print what is found."""
    begin()
    follow_parent()
    found: dict[str, Any] = {"format": "", "owner": 0, "sequence": -1, "problem": ""}
    folder = Path(sys.argv[1])
    try:
        with (
            lmdb.open(
                str(folder / "base"),
                map_size=int(sys.argv[2]),
                max_dbs=len(Tables._fields),
                readonly=True,
                create=False,
            ) as environment,
            environment.begin() as transaction,
        ):
            _examine(transaction, environment, folder, found)
    except (*DAMAGE, lmdb.Error, StoreDamagedError, InvariantViolationError, KeyError, ValueError) as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


def _examine(
    transaction: lmdb.Transaction[bytes], environment: lmdb.Environment, folder: Path, found: dict[str, Any]
) -> None:
    tables = Tables(
        *(environment.open_db(name.encode(), transaction, create=False) for name in Tables._fields)
    )
    meta = dict(_rows(transaction, tables.meta))
    found["format"] = meta.get(FORMAT_KEY, b"").decode()
    if found["format"] not in ("", FORMAT.decode()):
        return
    _pages(transaction, environment, tables, folder)
    if FORMAT_KEY not in meta:
        expected = Counts()
    else:
        found["owner"], found["sequence"] = int(meta[OWNER_KEY]), int(meta[SEQUENCE_KEY])
        decode_applied(meta[STATE_KEY])
        expected = decode_counts(meta[COUNTS_KEY])
    forward, entries = _digest(_forward(transaction, tables))
    reach("examine-read")
    documents = tombstones = foreign = 0
    total = count = 0
    for docid, record in _rows(transaction, tables.back):
        held = unpack_record(record)
        documents += bool(held.keys)
        tombstones += not held.keys
        foreign += held.foreign
        part, keys = _digest(key + docid for key in held.keys)
        total, count = (total + part) % _SPAN, count + keys
    if (forward, entries) != (total, count):
        raise StoreDamagedError(f"{entries} entries are not the inverse of the back index ({count})")
    skips = 0
    for key, value in _rows(transaction, tables.skips):
        line = unpack_line(value)
        if ledger_key(line.partition, line.offset) != key:
            raise StoreDamagedError(f"a line of the skip ledger lies under {key.hex()}")
        skips += 1
    there = Counts(entries, documents, tombstones, skips, foreign)
    if there != expected:
        raise StoreDamagedError(f"counted {expected}, there are {there}")


def _pages(
    transaction: lmdb.Transaction[bytes], environment: lmdb.Environment, tables: Tables, folder: Path
) -> None:
    """Every page is in use once, or free. A free list that names a page in use would have the next commit
    write over it."""
    with PageFile(folder / "base") as file:
        state, _ = file.metas()
        free = file.free(state)
    names_tree = environment.open_db(None, transaction, create=False)
    stats = [transaction.stat(table) for table in (names_tree, *tables)]
    in_use = sum(one["branch_pages"] + one["leaf_pages"] + one["overflow_pages"] for one in stats)
    there = state.last + 1
    if 2 + in_use + state.free_pages + len(free) != there:
        raise StoreDamagedError(f"{there} pages: {in_use} in use, {len(free)} free")


def _rows(transaction: lmdb.Transaction[bytes], table: Any) -> Iterator[tuple[bytes, bytes]]:
    """All rows of a table; keys must ascend (so this ends, whatever the pages say)."""
    before: bytes | None = None
    for row, (key, value) in enumerate(transaction.cursor(table)):
        if not row % _FURTHER_ROWS:
            print(flush=True)
        if before is not None and key <= before:
            raise StoreDamagedError(f"keys do not ascend at {key.hex()}")
        before = key
        yield key, value


def _forward(transaction: lmdb.Transaction[bytes], tables: Tables) -> Iterator[bytes]:
    """The entry keys. Which structure they are of is not known here: but that it is one."""
    keyed: bool | None = None
    for key, value in _entries(transaction, tables):
        if value[:1] != PUT:
            raise StoreDamagedError(f"the value of {key.hex()} is none")
        before, keyed = keyed, check_value(value[1:])
        if before is not None and keyed != before:
            raise StoreDamagedError(f"the value of {key.hex()} is none of this index")
        yield key


def _entries(transaction: lmdb.Transaction[bytes], tables: Tables) -> Iterator[tuple[bytes, bytes]]:
    yield from _rows(transaction, tables.forward)
    for long_key, long_value in _rows(transaction, tables.long):
        key, value = unpack_long(long_value)
        if long_table_key(key) != long_key:
            raise StoreDamagedError(f"a long entry lies under {long_key.hex()}")
        yield key, value


def _digest(keys: Iterator[bytes]) -> tuple[int, int]:
    total = count = 0
    for key in keys:
        total += xxhash.xxh3_128_intdigest(key)
        count += 1
    return total % _SPAN, count


if __name__ == "__main__":
    main()
