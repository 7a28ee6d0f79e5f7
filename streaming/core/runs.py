"""Sorted runs of entries: made by the first stage, merged by the second, packed into chunks. Pure.

Theory of operation
===================
This is an external merge sort with Spark's shuffle in the middle, and no row of Spark's is ever an entry. A
first-stage task sorts what its share brings to each target and cuts that *run* into blocks of about
`chunk_bytes`; a block is one row of the shuffle: (target, first entry key, the columns as an Arrow record
batch). Spark sorts the few rows of a target by first key, spilling if it must, and the second stage merges:
once it has read a row whose first key is k, no entry below k is still to come, so what it holds below k can
be sorted and sent. It holds about one block of every run, whatever the size of the micro-batch.

The order is that of entry keys (canonical key, then document id), as bytes.

Columns of a block (`SCHEMA`), one row per entry: partition, offset and time name the version; id, key
(canonical) and value (`keytide.model.entry`) are what stores keep.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.wire.entry_sums import EntrySums, sums_of
from keytide.wire.messages import PutChunk
from streaming.core.versions import OffsetColumn, contained

SCHEMA = pa.schema(
    [
        ("partition", pa.uint32()),
        ("offset", pa.uint64()),
        ("time", pa.int64()),
        ("id", pa.binary()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
FIXED_BYTES = 4 + 8 + 8 + 1 + 2 + 4
"""Bytes of an entry in a chunk beside its id, key and value."""
MERGE_BYTES = 16 * 1024 * 1024
"""The second stage holds this much beside what it cannot send yet: sorting goes in large pieces."""

Array = npt.NDArray[Any]


class RunBlock(NamedTuple):
    """A part of a run: its first entry key and its entries."""

    first: bytes
    entries: pa.RecordBatch


def numbers(batch: pa.RecordBatch, name: str) -> Array:
    """A column of numbers."""
    found: Array = batch.column(name).to_numpy(zero_copy_only=False)
    return found


def lengths(column: pa.Array) -> Array:
    """Bytes of each item of a binary column. i64[n]."""
    found: Array = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def blob(column: pa.Array) -> bytes:
    """All items of a binary column, one after the other."""
    if len(column) == 0:
        return b""
    _, offsets, data = column.buffers()
    if data is None:
        return b""
    ends = np.frombuffer(offsets, np.int32)
    start, end = int(ends[column.offset]), int(ends[column.offset + len(column)])
    return bytes(data.slice(start, end - start))


def items(column: pa.Array) -> list[bytes | None]:
    """A binary column as Python bytes (several times faster than `to_pylist`)."""
    filled = pc.fill_null(column, b"") if column.null_count else column
    data, ends = blob(filled), np.cumsum(lengths(filled)).tolist()
    found: list[bytes | None] = []
    start = 0
    for end in ends:
        found.append(data[start:end])
        start = end
    if column.null_count:
        for position in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[position] = None
    return found


def entry_keys(keys: pa.Array, ids: pa.Array) -> pa.Array:
    """The entry keys of canonical keys and document ids."""
    joined = pc.binary_join_element_wise(keys, ids, pa.scalar(b"", pa.binary()))
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def summed(entries: pa.RecordBatch) -> EntrySums:
    """What entries sum up to, in whatever order."""
    keys, values = entry_keys(entries.column("key"), entries.column("id")), entries.column("value")
    found: list[bytes] | None = items(values) if lengths(values).any() else None  # type: ignore[assignment]
    return sums_of(
        items(keys),  # type: ignore[arg-type] # none is null
        found,
        numbers(entries, "partition"),
        numbers(entries, "offset"),
    )


def sort_run(entries: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
    """The entries in entry key order, and their entry keys."""
    keys = entry_keys(entries.column("key"), entries.column("id"))
    order = pc.sort_indices(keys)
    return entries.take(order), keys.take(order)


def cuts(entries: pa.RecordBatch, limit: int) -> list[int]:
    """Where to cut so that each piece is about `limit` bytes, and holds one entry at least: [0, ..., n]."""
    count = entries.num_rows
    if count == 0:
        return [0]
    sizes = np.full(count, FIXED_BYTES, np.int64)
    for name in ("id", "key", "value"):
        sizes += lengths(entries.column(name))
    before = np.cumsum(sizes) - sizes
    pieces = before // limit
    edges = np.flatnonzero(np.diff(pieces)) + 1
    return [0, *edges.tolist(), count]


def blocks(entries: pa.RecordBatch, limit: int) -> Iterator[RunBlock]:
    """Sort the entries that a share brings to one target, and cut them into blocks of about `limit` bytes."""
    if entries.num_rows == 0:
        return
    ordered, keys = sort_run(entries)
    edges = cuts(ordered, limit)
    for start, end in pairwise(edges):
        yield RunBlock(keys[start].as_py(), ordered.slice(start, end - start))


def without_versions(entries: pa.RecordBatch, versions: Mapping[int, OffsetColumn]) -> pa.RecordBatch:
    """The entries but for those of the given versions (partition -> offsets, ascending)."""
    partitions = numbers(entries, "partition")
    offsets = numbers(entries, "offset").astype(np.int64)
    drop = np.zeros(entries.num_rows, np.bool_)
    for partition, unwanted in versions.items():
        drop |= (partitions == partition) & contained(offsets, unwanted)
    return entries.filter(pa.array(~drop)) if drop.any() else entries


def encode_block(entries: pa.RecordBatch) -> bytes:
    """A block as bytes, only the slice that it is; `decode_block` reads it in place."""
    return bytes(entries.serialize())


def decode_block(data: pa.Buffer | bytes) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)


class Merge:
    """Merges the runs of one target; blocks must come in the order of their first keys.

    Args:
        limit: bytes held before anything is merged.
    """

    def __init__(self, limit: int = MERGE_BYTES) -> None:
        self._limit = limit
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, block: RunBlock) -> Iterator[pa.RecordBatch]:
        """Take a block; gives out, in order, entries that nothing can come before any more."""
        if self._bytes >= self._limit:
            yield from self._release(block.first)
        self._held.append(block.entries)
        self._bytes += block.entries.nbytes

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rest."""
        yield from self._release(None)

    def _release(self, bound: bytes | None) -> Iterator[pa.RecordBatch]:
        if not self._held:
            return
        joined = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        ordered, keys = sort_run(joined)
        ready = ordered.num_rows if bound is None else bisect_left(keys, bound, key=lambda key: key.as_py())
        rest = ordered.slice(ready)
        self._held = [rest] if rest.num_rows else []
        # What cannot go yet counts as nothing: else a bound that moves slowly would have it sorted again
        # for every block.
        self._bytes = 0
        if ready:
            yield ordered.slice(0, ready)


class ChunkHeader(NamedTuple):
    """Whose chunk it is: the first fields of a PutChunk and of a RemovalChunk, in their order."""

    build: str
    index_id: str
    slice: int
    run: str
    batch: int
    attempt: str


def put_chunk(header: ChunkHeader, sequence: int, entries: pa.RecordBatch) -> PutChunk:
    """Pack sorted entries into the message for a slice."""
    values = entries.column("value")
    value_lengths = lengths(values)
    some = bool(value_lengths.any())
    return PutChunk(
        *header,
        sequence=sequence,
        count=entries.num_rows,
        partitions=numbers(entries, "partition").astype("<u4", copy=False).tobytes(),
        offsets=numbers(entries, "offset").astype("<u8", copy=False).tobytes(),
        times=numbers(entries, "time").astype("<i8", copy=False).tobytes(),
        id_lengths=lengths(entries.column("id")).astype(np.uint8).tobytes(),
        ids=blob(entries.column("id")),
        key_lengths=lengths(entries.column("key")).astype("<u2").tobytes(),
        keys=blob(entries.column("key")),
        value_lengths=value_lengths.astype("<u4").tobytes() if some else b"",
        values=blob(values) if some else b"",
    )
