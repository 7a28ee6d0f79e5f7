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
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.catalog.partitioning import Partitioning
from keytide.wire import digests
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router.core import slices_of
from streaming.core.runs import entry_keys, items, numbers

Array = npt.NDArray[Any]
Versions: TypeAlias = pa.RecordBatch
"""Versions, as `VERSIONS` has them."""

ENTRY = pa.struct(
    [("index", pa.uint16()), ("slice", pa.uint16()), ("key", pa.binary()), ("value", pa.binary())]
)
VERSIONS = pa.schema(
    [
        ("hash", pa.uint64()),
        ("partition", pa.uint32()),
        ("offset", pa.int64()),
        ("time", pa.int64()),
        ("id", pa.binary()),
        ("entries", pa.list_(ENTRY)),
    ]
)


@dataclass(frozen=True)
class IndexPlan:
    """What must be known of an index.

    Attributes:
        id: of the index.
        rule: how its entries fall to its slices.
    """

    id: str
    rule: Partitioning


def versions_of(batch: SourceBatch, plan: KeyspacePlan, indexes: Sequence[IndexPlan]) -> Versions:
    """What records project to. A record whose key is no document id is none."""
    projected = project(batch, plan, with_heard=False)
    count = len(projected.ids)
    owners: list[Array] = [np.zeros(0, np.int64)]
    parts = [pa.array([], ENTRY)]
    for number, index in enumerate(indexes):
        made = projected.indexes[index.id]
        size = len(made.keys)
        if not size:
            continue
        values = made.values if made.values is not None else [b""] * size
        columns = [
            pa.array(np.full(size, number, np.uint16)),
            pa.array(slices_of(made.partition_keys, index.rule, projected.hashes[made.ordinals])),
            pa.array(made.keys, pa.binary()),
            pa.array(values, pa.binary()),
        ]
        owners.append(made.ordinals)
        parts.append(pa.StructArray.from_arrays(columns, fields=list(ENTRY)))
    of = np.concatenate(owners)
    entries = pa.concat_arrays(parts).take(pa.array(np.argsort(of, kind="stable")))
    edges = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=count))]).astype(np.int32)
    columns = [
        pa.array(projected.hashes),
        pa.array(np.full(count, batch.partition, np.uint32)),
        pa.array(projected.offsets),
        pa.array(projected.times),
        pa.array(projected.ids, pa.binary()),
        pa.ListArray.from_arrays(pa.array(edges), entries),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=VERSIONS)


def joined(parts: Sequence[Versions]) -> Versions:
    """All of several."""
    return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], VERSIONS)


def reduced(versions: Versions) -> Versions:
    """Of each document the newest version of each source partition, with the largest time of all of that
    partition's."""
    if len(versions) < 2:
        return versions
    hashes, partitions, offsets, times = (
        numbers(versions, name) for name in ("hash", "partition", "offset", "time")
    )
    order = np.lexsort((offsets, partitions, hashes))
    same = (hashes[order][1:] == hashes[order][:-1]) & (partitions[order][1:] == partitions[order][:-1])
    again = np.flatnonzero(same)
    if not len(again):
        return versions
    ids = versions.column("id")
    one, other = ids.take(pa.array(order[again])), ids.take(pa.array(order[again + 1]))
    if not pc.all(pc.equal(one, other)).as_py():
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
    hashes = numbers(versions, "hash")
    if len(np.unique(hashes)) == len(hashes):
        return versions, np.zeros(0, np.int64)
    partitions, times = numbers(versions, "partition"), numbers(versions, "time")
    best: dict[bytes, int] = {}
    several: set[bytes] = set()
    order = np.argsort(hashes, kind="stable")
    alike = hashes[order][1:] == hashes[order][:-1]
    doubtful = np.zeros(len(hashes), np.bool_)
    doubtful[order[1:][alike]] = doubtful[order[:-1][alike]] = True
    ids = versions.column("id")
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
    return versions.take(pa.array(rows)), foreign


def by_range(versions: Versions, bits: int) -> Iterator[tuple[int, Versions]]:
    """Versions by the first `bits` bits of their ids' hashes. They are sorted once and cut, for there may be
    thousands of ranges."""
    if not len(versions):
        return
    ranges = digests.buckets_of(numbers(versions, "hash"), bits)
    order = np.argsort(ranges, kind="stable")
    ordered = versions.take(pa.array(order))
    edges = np.flatnonzero(np.diff(ranges[order])) + 1
    for start, end in pairwise([0, *edges.tolist(), len(order)]):
        yield int(ranges[order[start]]), ordered.slice(start, end - start)


def sums_of(versions: Versions, indexes: Sequence[IndexPlan], bits: int) -> list[npt.NDArray[np.uint64]]:
    """Digests of decided versions: for each index u64[slices, FIELDS, 2^bits]."""
    hashes = numbers(versions, "hash")
    buckets = digests.buckets_of(hashes, bits)
    records = digests.record_hashes(hashes, numbers(versions, "partition"), numbers(versions, "offset"))
    entries = versions.column("entries").flatten()
    of = np.repeat(np.arange(len(versions)), pc.list_value_length(versions.column("entries")))
    of_index, of_slice = (entries.field(name).to_numpy() for name in ("index", "slice"))
    ids = versions.column("id")
    found = []
    for number, index in enumerate(indexes):
        sums = np.zeros((index.rule.slices, digests.FIELDS, 1 << bits), np.uint64)
        mine = np.flatnonzero(of_index == number)
        if len(mine):
            taken = entries.take(pa.array(mine))
            documents, slices = of[mine], of_slice[mine].astype(np.int64)
            keys = entry_keys(taken.field("key"), ids.take(pa.array(documents)))
            _, full = digests.entry_hashes(_bytes(keys), _bytes(taken.field("value")))
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
    return bytes(versions.serialize())


def decode(body: bytes) -> Versions:
    """What `encode` made."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), VERSIONS)


def _bytes(column: pa.Array) -> list[bytes]:
    return items(column)  # type: ignore[return-value] # none is null


def _with_times(versions: Versions, newest: Array, times: Array) -> Versions:
    """The versions at `newest` with other times."""
    ascending = np.argsort(newest)
    taken = versions.take(pa.array(newest[ascending]))
    return taken.set_column(VERSIONS.get_field_index("time"), "time", pa.array(times[ascending]))


def _reduced_one_by_one(versions: Versions) -> Versions:
    """The same, when two ids have one hash."""
    ids, partitions = versions.column("id"), numbers(versions, "partition")
    offsets, times = numbers(versions, "offset"), numbers(versions, "time")
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
