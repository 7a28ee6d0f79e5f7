"""Merging a frozen delta into the base: one transaction, in key order, durable, with the way back.

Theory of operation
===================
A fold reads the frozen delta from end to end and writes its rows into the base: puts are put, markers delete,
and what was there before comes back from the same call. The state of the slice, the counts, the sequence
number and the name of the undo file go into the same transaction, so a kill at any moment leaves the base
before the fold or after it.

Steps, and what a kill between them leaves:
1. what the rows overwrite goes to an undo file (`undo`), which reaches the disk: no state names it yet;
2. the new filter moves to its place: it contains more than the base, which is allowed;
3. the transaction commits (one fsync of data, one of the meta page): the fold has happened;
4. the checksums of the pages that it changed are written (`checksums`): without them the next opening
   examines the base in another way;
5. the caller hears of it and drops the frozen delta: after a kill it drops all deltas anyway.

A fold that is tried again after step 3 finds its own sequence number in the base and goes on from there.

The *owner* number in the base is raised by every opening of the store. A fold whose owner is not the base's
comes from a process that has been replaced; it must not move the base under its new owner's feet, and fails.

Counts are checked before the commit: forward and long rows against `entries`, back rows against documents and
tombstones, lines against `skips` (Mirror, in its cheap form).

This module runs in the fold worker and imports no numpy or msgspec, and of keytide only what costs nothing:
the worker stays small.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lmdb

from indexer.store.files.checksums import write_checksums
from indexer.store.files.pages import DamagedError
from indexer.store.fold.undo import UNDO_FOLDER, UndoWriter
from keytide.process.private_files import FILE_MODE
from keytide.process.sync_points import reach

STATE_KEY: Final = b"state"
COUNTS_KEY: Final = b"counts"
SEQUENCE_KEY: Final = b"sequence"
OWNER_KEY: Final = b"owner"
FORMAT_KEY: Final = b"format"
UNDO_KEY: Final = b"undo"
"""The name of the undo file that leads back from this state; empty or missing when none does."""

TABLES: Final = (b"forward", b"long", b"back", b"skips")
"""All tables with rows; their places are in undo files."""

LMDB_DAMAGE: Final = (
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
"""What LMDB raises when a file is not what it wrote."""

FILTER_FILE: Final = "filter"
NEXT_FILTER_FILE: Final = "filter.next"

_REMOVED: Final = b"\x00"
_BLOCK: Final = 16_384


@dataclass(frozen=True, slots=True)
class FoldJob:
    """What a fold needs to know.

    Attributes:
        slice_folder: holds `base` and the filter.
        delta_folder: the frozen delta, absolute.
        base_map_bytes, delta_map_bytes: their map sizes.
        owner, sequence: of this opening, and of the commit to make.
        state, counts: bytes for the base's meta table, in hexadecimal.
        forward, back, skips: rows that the tables must then have.
        rebuild_bits: when not 0, build the filter anew with so many bits after the commit.
        fsync: whether the commit must reach the disk.
        reserve_bytes: disk to be left free.
        undo_bytes: the largest undo file; 0 for none.
        now: milliseconds, for the undo file.
    """

    slice_folder: str
    delta_folder: str
    base_map_bytes: int
    delta_map_bytes: int
    owner: int
    sequence: int
    state: str
    counts: str
    forward: int
    back: int
    skips: int
    rebuild_bits: int
    fsync: bool
    reserve_bytes: int
    undo_bytes: int = 0
    now: int = 0

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> FoldJob:
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class FoldOutcome:
    """How a fold ended.

    Attributes:
        error: empty for success, else `disk-full`, `not-owner`, `mirror`, `damaged` or `failed`.
        detail: the story.
        undo_given_up: the way back was, for the disk is nearly full.
    """

    error: str = ""
    detail: str = ""
    undo_given_up: bool = False

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> FoldOutcome:
        return cls(**json.loads(line))


class _RefusedError(Exception):
    def __init__(self, error: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = FoldOutcome(error, detail)


Further = Callable[[], None]
"""Called whenever a fold has come a little further (`watched`)."""


def run_fold(job: FoldJob, further: Further = lambda: None) -> FoldOutcome:
    """Do it. Never raises: every end is an outcome."""
    try:
        return FoldOutcome(undo_given_up=_fold(job, further))
    except _RefusedError as refused:
        return refused.outcome
    except (lmdb.MapFullError, lmdb.DiskError) as error:
        return FoldOutcome("disk-full", str(error))
    except (DamagedError, *LMDB_DAMAGE) as error:
        return FoldOutcome("damaged", f"{type(error).__name__}: {error}")
    except (lmdb.Error, OSError) as error:
        return failed_by(error)


def failed_by(error: Exception) -> FoldOutcome:
    """The end of a fold by an error of LMDB, or of the file system."""
    full = "No space left" in str(error) or "Disk quota" in str(error)
    return FoldOutcome("disk-full" if full else "failed", f"{type(error).__name__}: {error}")


def _fold(job: FoldJob, further: Further) -> bool:
    """Whether the way back was given up, for the disk is nearly full."""
    folder = Path(job.slice_folder)
    base = lmdb.open(
        str(folder / "base"),
        map_size=job.base_map_bytes,
        mode=FILE_MODE,
        max_dbs=5,
        writemap=True,
        create=False,
        sync=job.fsync,
        metasync=job.fsync,
    )
    with base:
        delta = lmdb.open(
            job.delta_folder,
            map_size=job.delta_map_bytes,
            max_dbs=5,
            readonly=True,
            create=False,
            lock=False,  # nothing writes to it any more, and it outlives this fold
        )
        with delta:
            given_up = _merge(base, delta, folder, job, further)
        reach("fold-committed")
        further()
        _write_checksums(base, folder, job, further)
        reach("fold-checksums-written")
        if job.rebuild_bits:
            _make_filter(base, folder, job, further)
    return given_up


def _merge(
    base: lmdb.Environment, delta: lmdb.Environment, folder: Path, job: FoldJob, further: Further
) -> bool:
    """Whether the way back was given up, for the disk is nearly full."""
    with base.begin(write=True) as into, delta.begin() as source:
        meta = base.open_db(b"meta", into, create=False)
        _check_owner(into, meta, job)
        before = int(into.get(SEQUENCE_KEY, db=meta) or b"-1")
        if before == job.sequence:
            return False  # an earlier try came as far as the commit
        undo = UndoWriter(folder / UNDO_FOLDER, TABLES, job.undo_bytes) if job.undo_bytes else None
        name = ""
        try:
            rows: dict[bytes, int] = {}
            for table_name in TABLES:
                table = base.open_db(table_name, into, create=False)
                from_table = delta.open_db(table_name, source, create=False)
                _merge_table(source.cursor(from_table), into.cursor(table), table_name, undo, job, further)
                rows[table_name] = into.stat(table)["entries"]
            _check(rows, job)
            if undo is not None and not undo.full:
                previous = (into.get(UNDO_KEY, db=meta) or b"").decode()
                state, counts = (into.get(key, db=meta) or b"" for key in (STATE_KEY, COUNTS_KEY))
                # Of this opening: what a worker of an earlier one may still write has another name.
                file = f"{job.owner}-{job.sequence}"
                undo.finish(file, previous, before, job.now, state, counts, sync=job.fsync)
                name = file
        finally:
            if undo is not None and not name:
                undo.give_up()
        reach("fold-undo-written")
        further()
        _move_filter(folder, job)
        reach("fold-filter-moved")
        into.put(STATE_KEY, bytes.fromhex(job.state), db=meta)
        into.put(COUNTS_KEY, bytes.fromhex(job.counts), db=meta)
        into.put(SEQUENCE_KEY, b"%d" % job.sequence, db=meta)
        into.put(UNDO_KEY, name.encode(), db=meta)
        reach("fold-before-commit")
    return undo is not None and undo.no_room


def _merge_table(
    source: lmdb.Cursor[bytes],
    cursor: lmdb.Cursor[bytes],
    table: bytes,
    undo: UndoWriter | None,
    job: FoldJob,
    further: Further,
) -> None:
    rows = source.iternext()
    while block := list(islice(rows, _BLOCK)):
        further()
        _leave_room(undo, job)
        replace, pop = cursor.replace, cursor.pop
        was = [pop(key) if value == _REMOVED else replace(key, value) for key, value in block]
        if undo is not None:
            rows_and_old = list(zip(block, was, strict=True))
            undo.add(
                table,
                [(row[0], old) for row, old in rows_and_old if old is not None and old != row[1]],
                [row[0] for row, old in rows_and_old if old is None and row[1] != _REMOVED],
            )


def _check_owner(transaction: lmdb.Transaction[bytes], meta: Any, job: FoldJob) -> None:
    owner = int(transaction.get(OWNER_KEY, db=meta) or b"-1")
    if owner != job.owner:
        raise _RefusedError("not-owner", f"the base belongs to opening {owner}, the fold to {job.owner}")


def _write_checksums(base: lmdb.Environment, folder: Path, job: FoldJob, further: Further) -> None:
    """Step 4, with the write lock: nobody takes the slice over while the file is written."""
    with base.begin(write=True) as lock:
        _check_owner(lock, base.open_db(b"meta", lock, create=False), job)
        write_checksums(folder, job.owner, job.sequence, sync=job.fsync, further=further)


def _leave_room(undo: UndoWriter | None, job: FoldJob) -> None:
    status = os.statvfs(job.slice_folder)
    free = status.f_bavail * status.f_frsize
    if undo is not None and free < 2 * job.reserve_bytes:
        undo.leave_room()  # a fold gives room back and must go on; the way back must not
    if free < job.reserve_bytes:
        raise _RefusedError("disk-full", f"less than {job.reserve_bytes} bytes left")


def _check(rows: dict[bytes, int], job: FoldJob) -> None:
    there = (rows[b"forward"] + rows[b"long"], rows[b"back"], rows[b"skips"])
    expected = (job.forward, job.back, job.skips)
    if there != expected:
        raise _RefusedError("mirror", f"(entries, documents, lines) are {there}, counted {expected}")


def _move_filter(folder: Path, job: FoldJob) -> None:
    """Step 2: the filter that covers the commit to come, written before (`folding`), moves to its place."""
    new = folder / NEXT_FILTER_FILE
    if job.fsync:
        descriptor = os.open(new, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    os.replace(new, folder / FILTER_FILE)


def _make_filter(base: lmdb.Environment, folder: Path, job: FoldJob, further: Further) -> None:
    """A filter with exactly the base's documents, for the caller to take up."""
    from indexer.store.files.filter_file import save_filter  # only now: numpy takes memory
    from indexer.store.resolve.bloom_filter import IdFilter
    from keytide.wire.columns import hashes_of

    built = IdFilter(job.rebuild_bits, job.sequence)
    with base.begin() as transaction:
        ids = transaction.cursor(base.open_db(b"back", transaction, create=False)).iternext(values=False)
        while block := list(islice(ids, _BLOCK)):
            further()
            built.add(hashes_of(block, len(block)))
        reach("fold-filter-read")
    new = folder / NEXT_FILTER_FILE
    save_filter(built, new, job.sequence, sync=job.fsync)
    os.replace(new, folder / FILTER_FILE)
