"""What the store's tests share: segments and chunks from plain tuples, and the naive model of a slice."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from indexer.store.copies import EXPORT_TABLES, StoreFilling, Table
from indexer.store.files.pages import PageFile
from indexer.store.fold.worker import Folder
from indexer.store.interface import Applied, Row, SliceStore, StoreExport, StoreSnapshot
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import MIB, StoreSettings
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from keytide.wire.columns import hashes_of, lengths_of, pack_heard, pack_puts
from keytide.wire.messages import PutChunk, RemovalChunk, Segment, Skip

SMALL = StoreSettings(
    base_map_bytes=256 * MIB,
    delta_map_bytes=256 * MIB,
    delta_hard_bytes=64 * MIB,
    reserve_bytes=MIB,
    load_run_documents=5,
    max_readers=64,
    fsync=False,
    check_mirror_s=0,
    filter_bits=64,
    fold_entries=1,
)
"""Everything small, so that every limit is met; every commit is checked."""


@dataclass(frozen=True)
class Version:
    """One version of one document, with what it brings to the slice under test."""

    id: bytes
    partition: int
    offset: int
    time: int = 1_000
    entries: tuple[Row, ...] = ()


def key(text: str) -> bytes:
    """A self-delimiting canonical key."""
    return b"\x30" + text.encode() + b"\x00"


def segment(versions: Sequence[Version], start: int, end: int, skips: Sequence[Skip] = ()) -> Segment:
    """A segment of one partition from versions in offset order."""
    if not versions:
        return Segment(0, 0, start, end, None, None, list(skips))
    ids = [version.id for version in versions]
    offsets = np.array([version.offset for version in versions], np.int64)
    times = np.array([version.time for version in versions], np.int64)
    heard = pack_heard(offsets, start, ids, times, hashes_of(ids, len(ids)))
    rows = [(ordinal, *entry) for ordinal, version in enumerate(versions) for entry in version.entries]
    puts = pack_puts(
        np.array([ordinal for ordinal, _, _ in rows], np.uint32),
        [entry_key for _, entry_key, _ in rows],
        [value for _, _, value in rows],
    )
    return Segment(versions[0].partition, 0, start, end, heard, puts, list(skips))


def segments(versions: Sequence[Version], cuts: int = 1) -> list[Segment]:
    """Segments of several partitions, each cut into up to `cuts` pieces."""
    pieces: list[Segment] = []
    for partition in sorted({version.partition for version in versions}):
        mine = sorted((v for v in versions if v.partition == partition), key=lambda v: v.offset)
        size = -(-len(mine) // cuts)
        for first in range(0, len(mine), size):
            some = mine[first : first + size]
            pieces.append(segment(some, some[0].offset, some[-1].offset + 1))
    return pieces


def chunks(versions: Sequence[Version], size: int = 4) -> list[PutChunk]:
    """Sorted put chunks from the entries of versions."""
    rows = [(entry_key + v.id, entry_key, value, v) for v in versions for entry_key, value in v.entries]
    rows.sort(key=lambda row: (row[0], row[3].partition, row[3].offset))
    return [_chunk(rows[first : first + size], first // size) for first in range(0, len(rows), size)]


def _chunk(rows: Sequence[tuple[bytes, bytes, bytes, Version]], sequence: int) -> PutChunk:
    ids = [version.id for _, _, _, version in rows]
    keys = [entry_key for _, entry_key, _, _ in rows]
    values = [value for _, _, value, _ in rows]
    return PutChunk(
        build="b",
        index="i",
        slice=0,
        run="r",
        batch=0,
        attempt="a",
        sequence=sequence,
        count=len(rows),
        partitions=np.array([row[3].partition for row in rows], "<u4").tobytes(),
        offsets=np.array([row[3].offset for row in rows], "<u8").tobytes(),
        times=np.array([row[3].time for row in rows], "<i8").tobytes(),
        id_lengths=lengths_of(ids).astype(np.uint8).tobytes(),
        ids=b"".join(ids),
        key_lengths=lengths_of(keys).astype("<u2").tobytes(),
        keys=b"".join(keys),
        value_lengths=lengths_of(values).astype("<u4").tobytes() if any(values) else b"",
        values=b"".join(values),
    )


def removals(versions: Sequence[Version], skips: Sequence[Skip] = ()) -> list[RemovalChunk]:
    """Removal chunks: all of the versions are heard."""
    found = []
    for piece in segments([Version(v.id, v.partition, v.offset, v.time) for v in versions]):
        found.append(
            RemovalChunk("b", "i", 0, "r", 0, "a", 0, piece.partition, piece.start, piece.heard, list(skips))
        )
    return found


def lmdb_store(folder: Path, folds: Folder, settings: StoreSettings = SMALL) -> LmdbSliceStore:
    return LmdbSliceStore(folder, Applied(), settings, folds)


def base_bytes(folder: Path) -> int:
    """How large the base of a slice's folder is: up to the last page that any of its trees has used. (On disk
    there is what was made room for besides.)"""
    with PageFile(folder / "base") as file:
        state, _ = file.metas()
        return (state.last + 1) * state.page_bytes


def pinning(store: LmdbSliceStore) -> tuple[int, int]:
    """Read transactions on a store's base: (of this process, of others). Each keeps its commit's pages."""
    lines = [line.split() for line in store._base.level.environment.readers().splitlines()[1:]]
    pids = [int(pid) for pid, _, transaction in lines if transaction != "-"]
    return pids.count(os.getpid()), len(pids) - pids.count(os.getpid())


def grows(folder: Path, fold: Callable[[], object]) -> bool:
    """Whether the base of a slice's folder gets larger with folds (`fold`) that change it but bring nothing
    more."""
    for _ in range(3):
        fold()
    settled = base_bytes(folder)
    for _ in range(6):
        fold()
    return base_bytes(folder) > 1.1 * settled + 4 * 4_096


def fill(filling: StoreFilling, export: StoreExport, most_bytes: int = 200, most_chunks: int = -1) -> None:
    """Bring what an export has into a filling, from its place on: so many chunks, or all and the end."""
    first, after = filling.place
    for table in EXPORT_TABLES[EXPORT_TABLES.index(first) :]:
        while rows := export.rows(table, after, most_bytes):
            if not most_chunks:
                return
            filling.put(table, rows)
            after = rows[-1][0]
            assert filling.place == (table, after)
            most_chunks -= 1
        after = b""
    assert filling.rows == export.rows_total
    filling.finish(export.applied, export.counts)
    assert filling.finished


def exported(export: StoreExport) -> list[tuple[Table, list[Row]]]:
    """All that an export has."""
    return [(table, export.rows(table, b"", 1 << 30)) for table in EXPORT_TABLES]


def state(number: int = 0, **offsets: int) -> Applied:
    """A state; offsets as p0=5."""
    return Applied(
        Timestamp.of({int(name[1:]): offset for name, offset in offsets.items()}),
        number,
        queue_position=number,
    )


def rows_of(snapshot: StoreSnapshot, *args: object, **kwargs: object) -> list[Row]:
    """All rows of a read, checking that no block is empty."""
    found: list[Row] = []
    for block in snapshot.rows(*args, **kwargs):  # type: ignore[arg-type]
        assert block, "an empty block"
        found += block
    return found


def all_rows(store: SliceStore) -> list[Row]:
    snapshot = store.snapshot()
    try:
        return rows_of(snapshot)
    finally:
        snapshot.close()


@dataclass
class Model:
    """A slice as the sum of all versions it was told, worked out from scratch every time.

    A document of one partition is what its version with the largest offset says. A document of several
    partitions is replayed in the order of arrival.
    """

    told: list[Version] = field(default_factory=list)

    def tell(self, versions: Sequence[Version]) -> None:
        self.told += versions

    def copy(self) -> Model:
        return Model(list(self.told))

    def rows(self) -> list[Row]:
        by_id: dict[bytes, list[Version]] = {}
        for version in self.told:
            by_id.setdefault(version.id, []).append(version)
        found: dict[bytes, bytes] = {}
        for docid, told in by_id.items():
            # A row of a table is older than every record, and forgotten beside one.
            versions = [version for version in told if version.partition != TABLE_PARTITION] or told
            if len({version.partition for version in versions}) == 1:
                newest = max(version.offset for version in versions)
                entries = [row for v in versions if v.offset == newest for row in v.entries]
            else:
                entries = _replay(versions)
            found.update({entry_key + docid: value for entry_key, value in entries})
        return sorted(found.items())


def _replay(versions: Sequence[Version]) -> list[Row]:
    """The rule for an id in several partitions, one arrival after the other."""
    holder: Version | None = None  # its `time` is the largest that its partition showed while it held
    met: set[int] = set()
    for version in versions:
        if holder is None:
            if version.entries:
                holder, met = version, {version.partition}
            continue
        met.add(version.partition)
        same = version.partition == holder.partition
        if same and version.offset == holder.offset:
            entries = tuple(dict(holder.entries + version.entries).items())
            holder = Version(holder.id, holder.partition, holder.offset, holder.time, entries)
            continue
        wins = (
            version.offset > holder.offset
            if same
            else (version.time, version.partition) > (holder.time, holder.partition)
        )
        if not wins:
            continue
        time = max(version.time, holder.time) if same else version.time
        holder = Version(version.id, version.partition, version.offset, time, version.entries)
        if not version.entries and len(met) == 1:
            holder = None  # forgotten: nothing says that this id is special
    return [] if holder is None else list(holder.entries)
