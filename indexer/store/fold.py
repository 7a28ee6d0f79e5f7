"""Merging a frozen delta into the base: one transaction, in key order, durable.

Theory of operation
===================
A fold reads the frozen delta from end to end and writes its rows into the base: puts are put, markers delete.
The state of the slice, the counts and the sequence number go into the same transaction, so a kill at any
moment leaves the base before the fold or after it.

Steps, and what a kill between them leaves:
1. the new filter moves to its place: it contains more than the base, which is allowed;
2. the transaction commits (one fsync of data, one of the meta page): the fold has happened;
3. the caller hears of it and drops the frozen delta: after a kill it drops all deltas anyway.

The *owner* number in the base is raised by every opening of the store. A fold whose owner is not the base's
comes from a process that has been replaced; it must not move the base under its new owner's feet, and fails.

Counts are checked before the commit: forward and long rows against `entries`, back rows against documents and
tombstones, lines against `skips` (Mirror, in its cheap form).

This module runs in the fold worker and imports no numpy, msgspec or keytide: the worker stays small.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lmdb

STATE_KEY: Final = b"state"
COUNTS_KEY: Final = b"counts"
SEQUENCE_KEY: Final = b"sequence"
OWNER_KEY: Final = b"owner"
FORMAT_KEY: Final = b"format"

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

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> FoldJob:
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class FoldOutcome:
    """How a fold ended.

    Attributes:
        error: empty for success, else `disk-full`, `not-owner`, `mirror` or `failed`.
        detail: the story.
    """

    error: str = ""
    detail: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> FoldOutcome:
        return cls(**json.loads(line))


class _RefusedError(Exception):
    def __init__(self, error: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = FoldOutcome(error, detail)


def run_fold(job: FoldJob) -> FoldOutcome:
    """Do it. Never raises: every end is an outcome."""
    try:
        _fold(job)
    except _RefusedError as refused:
        return refused.outcome
    except (lmdb.MapFullError, lmdb.DiskError) as error:
        return FoldOutcome("disk-full", str(error))
    except (lmdb.Error, OSError) as error:
        full = "No space left" in str(error) or "Disk quota" in str(error)
        return FoldOutcome("disk-full" if full else "failed", f"{type(error).__name__}: {error}")
    return FoldOutcome()


def _fold(job: FoldJob) -> None:
    folder = Path(job.slice_folder)
    base = lmdb.open(
        str(folder / "base"),
        map_size=job.base_map_bytes,
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
            _move_filter(folder, job)
            _merge(base, delta, job)
        if job.rebuild_bits:
            _rebuild_filter(base, folder, job)


def _merge(base: lmdb.Environment, delta: lmdb.Environment, job: FoldJob) -> None:
    with base.begin(write=True) as into, delta.begin() as source:
        meta = base.open_db(b"meta", into, create=False)
        owner = int(into.get(OWNER_KEY, db=meta) or b"-1")
        if owner != job.owner:
            raise _RefusedError("not-owner", f"the base belongs to opening {owner}, the fold to {job.owner}")
        rows: dict[bytes, int] = {}
        for name in (b"forward", b"long", b"back", b"skips"):
            table = base.open_db(name, into, create=False)
            _merge_table(source, delta.open_db(name, source, create=False), into, table, job)
            rows[name] = into.stat(table)["entries"]
        _check(rows, job)
        into.put(STATE_KEY, bytes.fromhex(job.state), db=meta)
        into.put(COUNTS_KEY, bytes.fromhex(job.counts), db=meta)
        into.put(SEQUENCE_KEY, b"%d" % job.sequence, db=meta)


def _merge_table(
    source: lmdb.Transaction[bytes],
    from_table: Any,
    into: lmdb.Transaction[bytes],
    to_table: Any,
    job: FoldJob,
) -> None:
    rows = source.cursor(from_table).iternext()
    cursor = into.cursor(to_table)
    while block := list(islice(rows, _BLOCK)):
        _leave_room(job)
        puts = [row for row in block if row[1] != _REMOVED]
        cursor.putmulti(puts)
        if len(puts) < len(block):
            for key, value in block:
                if value == _REMOVED and cursor.set_key(key):
                    cursor.delete()


def _leave_room(job: FoldJob) -> None:
    status = os.statvfs(job.slice_folder)
    if status.f_bavail * status.f_frsize < job.reserve_bytes:
        raise _RefusedError("disk-full", f"less than {job.reserve_bytes} bytes left")


def _check(rows: dict[bytes, int], job: FoldJob) -> None:
    there = (rows[b"forward"] + rows[b"long"], rows[b"back"], rows[b"skips"])
    expected = (job.forward, job.back, job.skips)
    if there != expected:
        raise _RefusedError("mirror", f"(entries, documents, lines) are {there}, counted {expected}")


def _move_filter(folder: Path, job: FoldJob) -> None:
    """Step 1: the filter that covers the commit to come, written by the caller, moves to its place."""
    new = folder / NEXT_FILTER_FILE
    if job.fsync:
        descriptor = os.open(new, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    os.replace(new, folder / FILTER_FILE)


def _rebuild_filter(base: lmdb.Environment, folder: Path, job: FoldJob) -> None:
    """A filter with exactly the base's documents, for the caller to take up."""
    from indexer.store.filter import IdFilter  # only now: numpy takes memory
    from keytide.columns import hashes_of

    built = IdFilter(job.rebuild_bits)
    with base.begin() as transaction:
        ids = transaction.cursor(base.open_db(b"back", transaction, create=False)).iternext(values=False)
        while block := list(islice(ids, _BLOCK)):
            built.add(hashes_of(block, len(block)))
    new = folder / NEXT_FILTER_FILE
    built.save(new, job.sequence, sync=job.fsync)
    os.replace(new, folder / FILTER_FILE)
