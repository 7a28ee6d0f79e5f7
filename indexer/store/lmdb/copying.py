"""Both ends of a copy on LMDB: a commit of a base as rows of its tables, and a base that is filled with them.

Theory of operation
===================
*Export.* One read transaction on the base: rows, state, counts and sequence number belong together, whatever
folds do meanwhile. Its name is that of the opening of the store (drawn at random), the owner and the sequence
number, which rises with every commit, steps back included. An export ends with its store at the latest, for
an environment can be opened once in a process, and the slice may be opened again.

*Filling.* An environment like a base's, in the place of one, whose tables are written from end to end by
appending (as in `bulk`). Each `put` is one transaction, with what has been put in the meta table: so a kill
at any moment leaves whole chunks, and what says how far they reach. Its format is another one than a slice's,
so that nobody takes it for one. `finish` makes it one, in one transaction: format, state and counts.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from indexer.store.copies import EXPORT_TABLES, Table
from indexer.store.environment import FORMAT, allocated_bytes, disk_errors
from indexer.store.files.checksums import CHECKSUMS_FILE, write_checksums
from indexer.store.fold.fold import COUNTS_KEY, FILTER_FILE, FORMAT_KEY, OWNER_KEY, SEQUENCE_KEY, STATE_KEY
from indexer.store.formats.state_bytes import decode_applied, decode_counts
from indexer.store.interface import Applied, Counts, Row, StoreDamagedError
from indexer.store.lmdb.base import add_documents, counted_rows, put_filter, put_state, table_rows
from indexer.store.lmdb.levels import Level, View
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.settings import StoreSettings
from keytide.errors import ConfigurationError, RetryableError, invariant
from keytide.process.sync_points import reach

_FILLING_FORMATS: Final = b"keytide-filling-"
FILLING_FORMAT: Final = _FILLING_FORMATS + b"1"
"""In the place of a slice's format, until the rows are all there."""
_FILLING_KEY: Final = b"filling"

_FIRST_BLOCK: Final = 64
_LARGE_ROW: Final = 4_096
"""Bytes; a first block of larger ones may come to more than was asked for."""
_LARGEST_BLOCK: Final = 1_024
"""As for scans (`merge`): between two blocks others of the process get on."""
_ROW_COST: Final = 200
"""Bytes that a row counts for beside its own: packing and reading small ones takes a time for each, in which
nobody else of the process gets on."""
_SPINE: Final = 64
"""Pages that a chunk changes beside those that it fills: the last ones of a tree, the free list."""
_ROW_BYTES: Final = 32
_OWNER: Final = 0
_SEQUENCE: Final = 0

log = logging.getLogger(__name__)


class LmdbExport:
    """`StoreExport` of a base.

    Args:
        view: acquired for it.
        opening: names the opening of its store.
        closed: is told when it is closed.
    """

    def __init__(self, view: View, opening: str, closed: Callable[[LmdbExport], None]) -> None:
        self._view = view
        self._tell_closed = closed
        self._lock = threading.Lock()
        self._closed = False
        meta = {
            key: view.get(key, view.tables.meta) or b""
            for key in (STATE_KEY, COUNTS_KEY, SEQUENCE_KEY, OWNER_KEY)
        }
        self.applied = decode_applied(meta[STATE_KEY])
        self.counts = decode_counts(meta[COUNTS_KEY])
        self.rows_total = sum(counted_rows(self.counts))
        self.generation = f"{opening}-{meta[OWNER_KEY].decode()}-{meta[SEQUENCE_KEY].decode()}"

    def rows(self, table: str, after: bytes, most_bytes: int) -> list[Row]:
        with self._lock:
            if self._closed:
                raise RetryableError("the export was closed", problem_type="snapshot-closed")
            view = self._view.acquire()
        try:
            with disk_errors(view.folder), view.cursor(getattr(view.tables, table)) as cursor:
                return _rows(cursor, after, most_bytes)
        finally:
            view.release()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._view.release()
        self._tell_closed(self)


def _rows(cursor: lmdb.Cursor[bytes], after: bytes, most_bytes: int) -> list[Row]:
    """Rows behind a key, in blocks: the more of them, the smaller they are."""
    if not cursor.set_range(after) or (after and cursor.key() == after and not cursor.next()):
        return []
    there = cursor.iternext()
    found: list[Row] = []
    size, left = max(1, min(_FIRST_BLOCK, most_bytes // _LARGE_ROW)), most_bytes
    while left > 0 and (block := list(islice(there, size))):
        found += block
        block_bytes = sum(map(len, chain.from_iterable(block))) + _ROW_COST * len(block)
        left -= block_bytes
        size = max(1, min(8 * size, _LARGEST_BLOCK, left * len(block) // block_bytes))
    return found


class Exports:
    """The exports of a store that is open. `open` may be called on any thread.

    Args:
        level: the base.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self._opening = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._open: set[LmdbExport] | None = set()

    def open(self) -> LmdbExport:
        """The base's last commit.

        Raises:
            RetryableError: `snapshot-closed`, `too-many-snapshots`.
        """
        with self._lock:
            if self._open is None:
                raise RetryableError("the store was closed", problem_type="snapshot-closed")
            with disk_errors(self._level.folder):
                view = self._level.view()
            try:
                made = LmdbExport(view, self._opening, self._closed)
            except BaseException:
                view.release()
                raise
            self._open.add(made)
        return made

    def _closed(self, export: LmdbExport) -> None:
        with self._lock:
            if self._open is not None:
                self._open.discard(export)

    def close(self) -> None:
        """Close them all, and open no more. Those who read finish first."""
        with self._lock:
            exports, self._open = list(self._open or ()), None
        for export in exports:
            export.close()


class _Filled(msgspec.Struct, frozen=True, array_like=True):
    """What a filling has, in its meta table."""

    generation: str = ""
    table: Table = EXPORT_TABLES[0]
    key: bytes = b""
    rows: int = 0


class LmdbSliceFilling:
    """`StoreFilling` on LMDB. Opening it goes on with what an earlier process has put. What cannot be read,
    or is another release's, is thrown away: there is more of it where it came from.

    Args:
        folder: where the slice's store is to be; made if missing. What else lies there is left alone.

    Raises:
        RetryableError: `disk-full`.
        ConfigurationError: the folder has a slice of another format.
    """

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        self._folder = folder.absolute()
        self._settings = settings
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except StoreDamagedError as error:
            log.warning("a copy is begun anew, for what there is of it cannot be read: %s", error)
            self._throw_away()
            self._open()

    @property
    def generation(self) -> str:
        return self._filled.generation

    @property
    def place(self) -> tuple[Table, bytes]:
        return self._filled.table, self._filled.key

    @property
    def rows(self) -> int:
        return self._filled.rows

    def _open(self) -> None:
        path = self._folder / "base"
        used = allocated_bytes(path) if path.exists() else 0
        map_bytes = max(self._settings.base_map_bytes, 4 * used)
        with disk_errors(self._folder):
            self._level = Level(path, map_bytes, self._settings, sync=self._settings.fsync)
        try:
            self._read()
        except BaseException:
            self._level.retire()
            raise

    def _read(self) -> None:
        meta = self._level.tables.meta
        with disk_errors(self._folder), self._level.environment.begin(write=True, db=meta) as transaction:
            found = transaction.get(FORMAT_KEY)
            if found is None:
                transaction.put(FORMAT_KEY, FILLING_FORMAT)
            elif found.startswith(_FILLING_FORMATS) and found != FILLING_FORMAT:
                raise StoreDamagedError(f"{self._folder} is of format {found!r}")
            elif found not in (FILLING_FORMAT, FORMAT):
                raise ConfigurationError(
                    f"{self._folder} has a slice of format {found!r}, this program fills {FILLING_FORMAT!r}",
                    next_step="run the release that wrote it",
                )
            self.finished = found == FORMAT
            data = transaction.get(_FILLING_KEY)
        try:
            self._filled = _Filled() if data is None else msgspec.msgpack.decode(data, type=_Filled)
        except msgspec.MsgspecError as error:
            raise StoreDamagedError(f"{self._folder}: what was filled cannot be read: {error}") from error

    def begin(self, generation: str) -> None:
        if self._filled != _Filled() or self.finished:
            self.close()
            self._throw_away()
            self._open()
        filled = _Filled(generation)
        with disk_errors(self._folder), self._level.environment.begin(write=True) as transaction:
            self._level.room.make(_SPINE, 0)
            self._say(transaction, filled)
        self._filled = filled

    def _throw_away(self) -> None:
        for name in (CHECKSUMS_FILE, FILTER_FILE):  # before the base: without one they would be damage
            (self._folder / name).unlink(missing_ok=True)
        if (self._folder / "base").exists():
            shutil.rmtree(self._folder / "base")

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        if not rows:
            return
        before = self._filled
        invariant(
            EXPORT_TABLES.index(table) >= EXPORT_TABLES.index(before.table) and not self.finished,
            "Mirror",
            f"rows of {table} came behind those of {before.table} into {self._folder}",
        )
        filled = _Filled(before.generation, table, rows[-1][0], before.rows + len(rows))
        with disk_errors(self._folder), self._level.environment.begin(write=True) as transaction:
            row_bytes = sum(map(len, chain.from_iterable(rows)))
            # Rows at the end fill new pages, one after the other, so they need no room for copies of others.
            self._level.room.make(_SPINE, row_bytes + _ROW_BYTES * len(rows))
            with transaction.cursor(getattr(self._level.tables, table)) as cursor:
                _, added = cursor.putmulti(rows, append=True)
            invariant(added == len(rows), "Mirror", f"rows of {table} are out of order in {self._folder}")
            self._say(transaction, filled)
            reach("filling-before-commit")
        self._filled = filled
        reach("filling-committed")

    def finish(self, applied: Applied, counts: Counts) -> None:
        if self.finished:
            return
        level, settings = self._level, self._settings
        with disk_errors(self._folder), level.environment.begin(write=True) as transaction:
            there, expected = table_rows(transaction, level.tables), counted_rows(counts)
            if there != expected:
                raise StoreDamagedError(f"{self._folder} was filled with {there} rows, counted {expected}")
            level.room.make(_SPINE, 0)
            room = counts.documents + settings.fold_entries
            held = IdFilter.for_documents(room, settings.filter_bits, _SEQUENCE)
            add_documents(held, transaction, level.tables)
            put_filter(self._folder, held, _SEQUENCE, sync=settings.fsync)
            put_state(transaction, level.tables, applied, counts, _SEQUENCE, "")
            transaction.put(OWNER_KEY, b"%d" % _OWNER, db=level.tables.meta)
            transaction.put(FORMAT_KEY, FORMAT, db=level.tables.meta)
            transaction.delete(_FILLING_KEY, db=level.tables.meta)
            reach("filling-before-finish")
        self.finished = True
        reach("filling-finished")
        level.room.give_back()
        try:
            with level.environment.begin(write=True, db=level.tables.meta):
                write_checksums(self._folder, _OWNER, _SEQUENCE, sync=settings.fsync)
        except OSError as error:  # its opening examines it, then, and writes them
            log.warning("no checksums of %s for now: %s", self._folder, error)

    def close(self) -> None:
        self._level.retire()

    def _say(self, transaction: lmdb.Transaction[bytes], filled: _Filled) -> None:
        transaction.put(_FILLING_KEY, msgspec.msgpack.encode(filled), db=self._level.tables.meta)
