"""What runs in Spark's Python workers (or, for a small source, in the driver): functions over batches.

Theory of operation
===================
    an extent -> `gather` -> versions by range -> shuffle, ordered by range -> `sum_up` -> digests

A task of the first stage reads an extent itself, as those of builds do (ADR 20), and holds one spill of
what it has read; a task of the second what one range has, thinned out whenever it grows. Both are bounded,
whatever the size of the source. What comes back to the driver are digests: so many bytes for each slice and
bucket, whatever the number of documents.

    an extent -> `find` -> versions of chosen documents

does it for the few documents of buckets that differ.

Nothing is written, so a task may run any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from keytide.settings.settings import Settings
from keytide.wire import digests
from keytide.wire.columns import hashes_of
from projector.core.projection import SourceBatch
from streaming.core.runs import numbers
from streaming.drivers.rate_gate import TaskClient
from streaming.spark.checkpoint import Extent
from streaming.stages.source_reader import read_extent
from streaming.stages.tasks import amount, chosen
from streaming.stages.work import plan_of
from streaming.verify.core import newest

SPILL_BYTES = 64 << 20
"""What a task holds, about, before it thins out and hands on."""

ROW = "route int, place int, body binary"
_ROW_SCHEMA = pa.schema([("route", pa.int32()), ("place", pa.int32()), ("body", pa.binary())])


@dataclass(frozen=True)
class VerifyWork:
    """What tasks must know; pickled with them.

    Attributes:
        definitions: index id -> its definition as JSON.
        indexes: in the same order.
        bits: of the buckets.
        range_bits: of the ranges; not more than `bits`.
        routes: route of each shuffle partition (`streaming.core.micro_batches.exact_routes`).
        until: source partition -> the snapshot's next offset: records from there on came later.
        buckets: with `find`: those that are looked for.
        ids: further documents that are looked for.
    """

    definitions: tuple[tuple[str, bytes], ...]
    indexes: tuple[newest.IndexPlan, ...]
    bits: int
    range_bits: int
    routes: tuple[int, ...]
    until: dict[int, int]
    buckets: tuple[int, ...] = ()
    ids: frozenset[bytes] = field(default_factory=frozenset)
    spill_bytes: int = SPILL_BYTES


@dataclass(frozen=True)
class SourceTasks:
    """What the tasks of one reading read; pickled with them.

    Attributes:
        settings: without secrets that only other parts need.
        extents: one for each task.
        client: is told what is read, and has the task wait while no more may be.
    """

    settings: Settings = field(repr=False)
    topic: str
    extents: Sequence[Extent]
    client: TaskClient

    def read(self, rows: Iterable[pa.RecordBatch]) -> Iterator[SourceBatch]:
        """What is left of the extents whose numbers are in the first column of `rows`."""
        for extent in chosen(self.extents, rows):
            for batch in read_extent(self.settings, self.topic, extent, whole=False, heed=self.client.heed):
                self.client.read(*amount(batch))
                yield batch
            # A compacted source has fewer records than offsets: only this says that all is read.
            self.client.finished()


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """What one range comes to: for each index the bytes of u64[slices, FIELDS, buckets of the range]."""

    documents: int
    foreign: int
    sums: list[bytes]


class DocumentVersions(msgspec.Struct, frozen=True, array_like=True):
    """Chosen documents of one task: versions below the snapshot, and those that came later."""

    before: bytes
    later: bytes


_encode = msgspec.msgpack.Encoder().encode
decode_counted = msgspec.msgpack.Decoder(Counted).decode
decode_found = msgspec.msgpack.Decoder(DocumentVersions).decode


def read_and_gather(
    work: VerifyWork, source_tasks: SourceTasks, rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the extent whose number is in the one row of this task, and `gather` it."""
    return gather(work, source_tasks.read(rows))


def read_and_find(
    work: VerifyWork, source_tasks: SourceTasks, rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the extent whose number is in the one row of this task, and `find` documents in it."""
    return find(work, source_tasks.read(rows))


def gather(work: VerifyWork, records: Iterable[SourceBatch]) -> Iterator[pa.RecordBatch]:
    """Records to versions by range (rows of the shuffle)."""
    plan = plan_of(work.definitions)
    held: list[newest.Versions] = []
    size = 0
    for batch in records:
        held.append(newest.versions_of(batch, plan, work.indexes))
        size += held[-1].nbytes
        if size >= work.spill_bytes:
            yield from _hand_on(work, held)
            held, size = [], 0
    yield from _hand_on(work, held)


def _hand_on(work: VerifyWork, held: list[newest.Versions]) -> Iterator[pa.RecordBatch]:
    for place, some in newest.by_range(newest.reduced(newest.joined(held)), work.range_bits):
        yield _row(work.routes[place % len(work.routes)], place, newest.encode(some))


def sum_up(work: VerifyWork, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the shuffle, ordered by range, to the digests of each range."""
    held: list[newest.Versions] = []
    size, present = 0, -1
    for batch in rows:
        places, bodies = batch.column("place"), batch.column("body")
        for position in range(batch.num_rows):
            place = places[position].as_py()
            if place != present:
                yield from _count(work, present, held)
                held, size, present = [], 0, place
            held.append(newest.decode(bodies[position].as_py()))
            size += held[-1].nbytes
            if size >= work.spill_bytes:
                held = [newest.reduced(newest.joined(held))]
                size = held[0].nbytes // 2  # what is left is not thinned out by every further row
    yield from _count(work, present, held)


def _count(work: VerifyWork, place: int, held: list[newest.Versions]) -> Iterator[pa.RecordBatch]:
    if place < 0:
        return
    won, foreign = newest.decided(newest.reduced(newest.joined(held)))
    width = 1 << (work.bits - work.range_bits)
    start = place * width
    sums = [
        np.ascontiguousarray(one[:, :, start : start + width]).astype("<u8").tobytes()
        for one in newest.sums_of(won, work.indexes, work.bits)
    ]
    yield _row(0, place, _encode(Counted(len(won), len(foreign), sums)))


def find(work: VerifyWork, records: Iterable[SourceBatch]) -> Iterator[pa.RecordBatch]:
    """Records to the versions of chosen documents; one row."""
    plan = plan_of(work.definitions)
    wanted = np.zeros(1 << work.bits, np.bool_)
    wanted[list(work.buckets)] = True
    before, later = newest.joined([]), newest.joined([])
    for batch in records:
        some = _looked_for(batch, wanted, work)
        if not some.ids:
            continue
        versions = newest.versions_of(some, plan, work.indexes)
        until = work.until.get(int(numbers(versions, "partition")[0]), 0) if len(versions) else 0
        below = numbers(versions, "offset") < until
        before = newest.reduced(newest.joined([before, versions.filter(pa.array(below))]))
        later = newest.reduced(newest.joined([later, versions.filter(pa.array(~below))]))
    if len(before) or len(later):
        yield _row(0, 0, _encode(DocumentVersions(newest.encode(before), newest.encode(later))))


def _looked_for(batch: SourceBatch, wanted: Any, work: VerifyWork) -> SourceBatch:
    """The records of a batch whose documents are looked for."""
    ids = [docid or b"" for docid in batch.ids]
    mask = wanted[digests.buckets_of(hashes_of(ids, len(ids)), work.bits)]
    if work.ids:
        mask |= np.fromiter((docid in work.ids for docid in ids), np.bool_, len(ids))
    rows = np.flatnonzero(mask)
    chosen_rows = rows.tolist()
    return replace(
        batch,
        offsets=np.asarray(batch.offsets, np.int64)[rows],
        ids=[batch.ids[row] for row in chosen_rows],
        values=[batch.values[row] for row in chosen_rows],
        times=np.asarray(batch.times, np.int64)[rows],
    )


def _row(route: int, place: int, body: bytes) -> pa.RecordBatch:
    values: list[Any] = [[route], [place], [body]]
    columns = [pa.array(value, column.type) for value, column in zip(values, _ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ROW_SCHEMA)
