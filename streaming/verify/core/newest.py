"""Versions of documents with their entries, as columns: the newest of each, and what they sum up to. Pure.

Theory of operation
===================
Every record that is read becomes a *version*: its document's id, its place, and the entries that it projects
to in each index (none for a tombstone, or for what cannot be indexed or is left out). Versions are thinned
out as they come (`reduced`: of each document the newest of each source partition is left, with the largest
time that the partition has shown), travel by the first bits of the id's hash, and when all of a range are
together the newest of each document decides (`decided`): within a partition the larger offset, between
partitions the larger (time, partition), as in a slice.

No loop runs over documents, but for two ids with one 64-bit hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.wire import digests
from keytide.wire.digests import Sums
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router.core import slices_of
from streaming.core.runs import items

Array = npt.NDArray[Any]

DOCUMENTS = pa.schema(
    [
        ("hash", pa.uint64()),
        ("partition", pa.uint32()),
        ("offset", pa.int64()),
        ("time", pa.int64()),
        ("id", pa.binary()),
    ]
)
ENTRIES = pa.schema(
    [
        ("document", pa.uint32()),
        ("index", pa.uint16()),
        ("slice", pa.uint16()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class IndexPlan:
    """What must be known of an index.

    Attributes:
        id: of the index.
        slices: how many it has.
        splits: of an index by RANGE.
    """

    id: str
    slices: int
    splits: tuple[bytes, ...] = ()


class Versions(NamedTuple):
    """Versions (`DOCUMENTS`) and their entries (`ENTRIES`, `document` being a row number; ascending)."""

    documents: pa.RecordBatch
    entries: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.documents.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.documents.nbytes + self.entries.nbytes)

    def column(self, name: str) -> Array:
        """A column of numbers of the documents."""
        found: Array = self.documents.column(name).to_numpy(zero_copy_only=False)
        return found

    def take(self, rows: Array) -> Versions:
        """Those at `rows` (ascending), with their entries."""
        if len(rows) == len(self):
            return self
        kept = np.zeros(len(self), np.bool_)
        kept[rows] = True
        of = self.entries.column("document").to_numpy()
        mask = kept[of]
        left = self.entries.filter(pa.array(mask))
        places = (np.cumsum(kept) - 1).astype(np.uint32)
        columns = [pa.array(places[of[mask]]), *(left.column(name) for name in ENTRIES.names[1:])]
        return Versions(
            self.documents.take(pa.array(rows)), pa.RecordBatch.from_arrays(columns, schema=ENTRIES)
        )


def none() -> Versions:
    """No versions."""
    return Versions(
        pa.RecordBatch.from_arrays([pa.array([], field.type) for field in DOCUMENTS], schema=DOCUMENTS),
        pa.RecordBatch.from_arrays([pa.array([], field.type) for field in ENTRIES], schema=ENTRIES),
    )


def versions_of(batch: SourceBatch, plan: KeyspacePlan, indexes: Sequence[IndexPlan]) -> Versions:
    """What records project to. A record whose key is no document id is none."""
    projected = project(batch, plan, with_heard=False)
    count = len(projected.ids)
    documents = pa.RecordBatch.from_arrays(
        [
            pa.array(projected.hashes),
            pa.array(np.full(count, batch.partition, np.uint32)),
            pa.array(projected.offsets),
            pa.array(projected.times),
            pa.array(projected.ids, pa.binary()),
        ],
        schema=DOCUMENTS,
    )
    parts: list[pa.RecordBatch] = []
    for number, index in enumerate(indexes):
        made = projected.indexes[index.id]
        size = len(made.keys)
        if not size:
            continue
        values = made.values if made.values is not None else [b""] * size
        columns = [
            pa.array(made.ordinals.astype(np.uint32)),
            pa.array(np.full(size, number, np.uint16)),
            pa.array(slices_of(made.partition_keys, index.slices, index.splits)),
            pa.array(made.keys, pa.binary()),
            pa.array(values, pa.binary()),
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=ENTRIES))
    return Versions(documents, _by_document(_joined(parts, ENTRIES)))


def joined(parts: Sequence[Versions]) -> Versions:
    """All of several."""
    if not parts:
        return none()
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part) for part in parts[:-1])])
    moved = []
    for part, start in zip(parts, before.tolist(), strict=True):
        of = part.entries.column("document").to_numpy() + np.uint32(start)
        columns = [
            pa.array(of.astype(np.uint32)),
            *(part.entries.column(name) for name in ENTRIES.names[1:]),
        ]
        moved.append(pa.RecordBatch.from_arrays(columns, schema=ENTRIES))
    return Versions(_joined([part.documents for part in parts], DOCUMENTS), _joined(moved, ENTRIES))


def reduced(versions: Versions) -> Versions:
    """Of each document the newest version of each source partition, with the largest time of all of that
    partition's."""
    if len(versions) < 2:
        return versions
    hashes, partitions, offsets, times = (
        versions.column(name) for name in ("hash", "partition", "offset", "time")
    )
    order = np.lexsort((offsets, partitions, hashes))
    same = (hashes[order][1:] == hashes[order][:-1]) & (partitions[order][1:] == partitions[order][:-1])
    again = np.flatnonzero(same)
    if not len(again):
        return versions
    ids = versions.documents.column("id")
    if not _all_equal(ids, order[again], order[again + 1]):
        return _reduced_one_by_one(versions)
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    newest = order[np.concatenate([starts[1:] - 1, [len(order) - 1]])]
    largest = np.maximum.reduceat(times[order], starts)
    return _with_times(versions, newest, largest)


def decided(versions: Versions) -> tuple[Versions, Array]:
    """Of each document the newest version; and which documents have versions in several partitions (row
    numbers of the result).

    Args:
        versions: reduced, and all that there are of each document.
    """
    if len(versions) < 2:
        return versions, np.zeros(0, np.int64)
    hashes = versions.column("hash")
    if len(np.unique(hashes)) == len(hashes):
        return versions, np.zeros(0, np.int64)
    partitions, times = versions.column("partition"), versions.column("time")
    best: dict[bytes, int] = {}
    several: set[bytes] = set()
    order = np.argsort(hashes, kind="stable")
    alike = hashes[order][1:] == hashes[order][:-1]
    doubtful = np.zeros(len(hashes), np.bool_)
    doubtful[order[1:][alike]] = doubtful[order[:-1][alike]] = True
    ids = versions.documents.column("id")
    for row in np.flatnonzero(doubtful).tolist():
        name = ids[row].as_py()
        known = best.get(name)
        if known is not None:
            several.add(name)
        if known is None or (times[known], partitions[known]) < (times[row], partitions[row]):
            best[name] = row
    kept = ~doubtful
    kept[list(best.values())] = True
    rows = np.flatnonzero(kept)
    foreign = np.array(sorted(np.searchsorted(rows, best[name]) for name in several), np.int64)
    return versions.take(rows), foreign


def by_range(versions: Versions, bits: int) -> Iterator[tuple[int, Versions]]:
    """Versions by the first `bits` bits of their ids' hashes. They are sorted once and cut, for there may be
    thousands of ranges."""
    if not len(versions):
        return
    ranges = digests.buckets_of(versions.column("hash"), bits)
    order = np.argsort(ranges, kind="stable")
    places = np.empty(len(order), np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    documents = versions.documents.take(pa.array(order))
    of = places[versions.entries.column("document").to_numpy()]
    moved = np.argsort(of, kind="stable")
    of, entries = of[moved], versions.entries.take(pa.array(moved))
    edges = np.flatnonzero(np.diff(ranges[order])) + 1
    for start, end in pairwise([0, *edges.tolist(), len(order)]):
        first, last = np.searchsorted(of, [start, end]).tolist()
        mine = entries.slice(first, last - first)
        columns = [pa.array(of[first:last] - np.uint32(start)), *(mine.column(n) for n in ENTRIES.names[1:])]
        yield (
            int(ranges[order[start]]),
            Versions(
                documents.slice(start, end - start), pa.RecordBatch.from_arrays(columns, schema=ENTRIES)
            ),
        )


def sums_of(versions: Versions, indexes: Sequence[IndexPlan], bits: int) -> list[npt.NDArray[np.uint64]]:
    """Digests of decided versions: for each index u64[slices, FIELDS, 2^bits]."""
    hashes = versions.column("hash")
    buckets = digests.buckets_of(hashes, bits)
    records = digests.record_hashes(hashes, versions.column("partition"), versions.column("offset"))
    entries = versions.entries
    of = entries.column("document").to_numpy().astype(np.int64)
    numbers, places = entries.column("index").to_numpy(), entries.column("slice").to_numpy()
    ids = versions.documents.column("id")
    found = []
    for number, index in enumerate(indexes):
        sums = np.zeros((index.slices, digests.FIELDS, 1 << bits), np.uint64)
        mine = np.flatnonzero(numbers == number)
        if len(mine):
            take = pa.array(mine)
            documents, slices = of[mine], places[mine].astype(np.int64)
            keys = pc.binary_join_element_wise(
                entries.column("key").take(take), ids.take(pa.array(documents)), pa.scalar(b"", pa.binary())
            )
            _, full = digests.entry_hashes(_bytes(keys), _bytes(entries.column("value").take(take)))
            where = (slices, buckets[documents])
            np.add.at(sums[:, digests.ENTRIES], where, np.uint64(1))
            np.add.at(sums[:, digests.CONTENT], where, full)
            pairs = np.unique(slices * len(versions) + documents)
            of_pair = pairs % len(versions)
            place = (pairs // len(versions), buckets[of_pair])
            np.add.at(sums[:, digests.RECORDS], place, records[of_pair])
        found.append(sums)
    return found


def encode(versions: Versions) -> bytes:
    """For the shuffle."""
    return msgspec.msgpack.encode([_ipc(versions.documents), _ipc(versions.entries)])


def decode(body: bytes) -> Versions:
    """What `encode` made."""
    documents, entries = msgspec.msgpack.decode(body, type=tuple[bytes, bytes])
    return Versions(_read_ipc(documents, DOCUMENTS), _read_ipc(entries, ENTRIES))


def add_sums(total: Sums, part: Sums) -> None:
    """Add digests of other documents."""
    np.add(total, part, out=total)


def _ipc(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


def _read_ipc(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def _bytes(column: Any) -> list[bytes]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return items(column)  # type: ignore[return-value]


def _joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    columns = [
        pa.concat_arrays([pa.array([], field.type), *(part.column(n) for part in parts)])
        for n, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _by_document(entries: pa.RecordBatch) -> pa.RecordBatch:
    of = entries.column("document").to_numpy()
    if len(of) < 2 or bool((of[1:] >= of[:-1]).all()):
        return entries
    return entries.take(pa.array(np.argsort(of, kind="stable")))


def _all_equal(ids: pa.Array, one: Array, other: Array) -> bool:
    return bool(pc.all(pc.equal(ids.take(pa.array(one)), ids.take(pa.array(other)))).as_py())


def _with_times(versions: Versions, newest: Array, times: Array) -> Versions:
    """The versions at `newest` with other times."""
    ascending = np.argsort(newest)
    rows = newest[ascending]
    taken = versions.take(rows)
    columns = [taken.documents.column(name) for name in DOCUMENTS.names]
    columns[DOCUMENTS.get_field_index("time")] = pa.array(times[ascending])
    return Versions(pa.RecordBatch.from_arrays(columns, schema=DOCUMENTS), taken.entries)


def _reduced_one_by_one(versions: Versions) -> Versions:
    """The same, when two ids have one hash."""
    ids, partitions = versions.documents.column("id"), versions.column("partition")
    offsets, times = versions.column("offset"), versions.column("time")
    newest: dict[tuple[bytes, int], int] = {}
    largest: dict[tuple[bytes, int], int] = {}
    for row in range(len(versions)):
        name = (ids[row].as_py(), int(partitions[row]))
        largest[name] = max(largest.get(name, int(times[row])), int(times[row]))
        known = newest.get(name)
        if known is None or offsets[known] < offsets[row]:
            newest[name] = row
    return _with_times(
        versions,
        np.array(list(newest.values()), np.int64),
        np.array([largest[name] for name in newest], np.int64),
    )
