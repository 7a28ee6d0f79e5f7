"""Both stages of a micro-batch, as functions over Arrow batches, run by Spark's Python workers or in the
driver (`streaming.drivers.stages`).

Theory of operation
===================
    an extent -> `read_and_project` -> rows of the shuffle, by target -> `deliver_targets` -> summaries

The first stage reads (`streaming.stages.source_reader`) and projects (`streaming.core.extent_projection`),
hands blocks of sorted entries to the shuffle, and sends what every target must hear, and lines for skip
ledgers, straight to the backfill queues. The second merges the blocks of each target and sends put chunks.
Both hand back summaries (`streaming.core.micro_batches`); those of the first stage travel through the shuffle
as a row, so that exactly those count whose share went into the result.

A task sends with an idempotent producer, under a name that no other attempt has, and returns only when
everything is acknowledged. So it may fail anywhere and be run again: what a dead attempt has sent is never
named in a batch end.

Rows of the shuffle: route (an integer that Spark's hash partitioning takes to the right task), target
(number, -1 for rows that belong to none), kind (below), first (entry key of a block), body. A task reads
them ordered by target, kind and first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from keytide.wire.columns import hashes_of
from keytide.wire.entry_sums import NO_ENTRIES, EntrySums
from keytide.wire.messages import Heard, RemovalChunk, Skip
from projector.core.projection import SourceBatch
from router.recipients import BatchDocuments
from streaming.core import micro_batches as core
from streaming.core import runs
from streaming.core.extent_projection import ExtentProjection, Spill, heard_columns
from streaming.core.versions import Hashes, OffsetColumn, contained, hash_ranges, repeated
from streaming.drivers.rate_gate import TaskClient
from streaming.drivers.stages import Rows, Shuffle, StageTask
from streaming.spark.checkpoint import Extent
from streaming.stages.source_reader import read_extent
from streaming.stages.work import BatchWork, ChunkSender, plan_of, rules_of, targets_by_index

SUMMARY = 0
"""A row whose body is an encoded summary."""
HASHES = 1
"""A row whose body is u64[n]: hashes of the documents of one share."""
RETRACTION = 2
"""A row whose body is i64[1 + n]: a source partition, and offsets whose entries must be dropped."""
BLOCK = 3
"""A row whose body is a block of a run (`streaming.core.runs`)."""

ROW = "route int, target int, kind int, first binary, body binary"
ROW_ORDER = ("target", "kind", "first")
_ROW_SCHEMA = pa.schema(
    [
        ("route", pa.int32()),
        ("target", pa.int32()),
        ("kind", pa.int32()),
        ("first", pa.binary()),
        ("body", pa.binary()),
    ]
)
VERSION_ROW = "id binary, time long, partition int, offset long"
_VERSION_SCHEMA = pa.schema(
    [("id", pa.binary()), ("time", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())]
)
_SKIPS_PER_CHUNK = 5_000

_encode_summary = msgspec.msgpack.Encoder().encode
_decode_summary: msgspec.msgpack.Decoder[core.Summary] = msgspec.msgpack.Decoder(core.Summary)


# --- first stage --------------------------------------------------------------------------------


def read_and_project(
    work: BatchWork,
    client: TaskClient,
    topic: str,
    extents: Sequence[Extent],
    rows: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read the share whose number in `extents` is in the one row of this task, and `project_extent` it."""
    for extent in chosen(extents, rows):
        yield from project_extent(work, client, read_extent(work.settings, topic, extent, heed=client.heed))


def chosen(extents: Sequence[Extent], rows: Iterable[pa.RecordBatch]) -> Iterator[Extent]:
    """The extents whose numbers are in the first column of `rows`."""
    for batch in rows:
        yield from (extents[number] for number in batch.column(0).to_pylist())


def project_extent(
    work: BatchWork, client: TaskClient | None, records: Iterable[SourceBatch]
) -> Iterator[pa.RecordBatch]:
    """Records of one share to rows of the shuffle; its summary comes last, all acknowledged.

    Args:
        client: is told what is read, and has the task wait while the build may read no more.
    """
    share = ExtentProjection(
        plan_of(work.definitions), targets_by_index(work), rules_of(work), work.losers, work.spill_bytes
    )
    stage = _FirstStage(work)
    for batch in records:
        if client is not None:
            client.read(*amount(batch))
        share.add(batch)
        if share.full:
            yield from stage.spill(share.spill())
    if client is not None:
        client.finished()
    yield from stage.spill(share.spill())
    yield from stage.finish(share)


def amount(batch: SourceBatch) -> tuple[int, int]:
    """How many records, and bytes of keys and values."""
    sizes = (sum(map(len, filter(None, column))) for column in (batch.ids, batch.values))
    return len(batch.offsets), sum(sizes)


class _FirstStage:
    """Sends what slices hear, and makes the rows of the shuffle."""

    def __init__(self, work: BatchWork) -> None:
        self._work = work
        self._rules = rules_of(work)
        self._sender = ChunkSender(work)
        self._chunks: dict[int, int] = {}
        self._entries: dict[int, int] = {}
        self._sums: dict[int, EntrySums] | None = {} if work.summed else None

    def spill(self, spill: Spill) -> Iterator[pa.RecordBatch]:
        """Send the removal chunks of a spill; the rows that it brings to the shuffle."""
        work = self._work
        if work.heard:
            for base, documents in heard_columns(spill.documents, work.settings.topics.segment_target_bytes):
                batch = BatchDocuments(documents)
                by_index = {index: batch.of(rule, by_id=True) for index, rule in self._rules.items()}
                for target, (index, number) in enumerate(work.targets):
                    heard = by_index[index][number].heard
                    if heard is not None:
                        self._send(target, spill.partition, base, heard, [])
        for target, skips in sorted(spill.skips.items()):
            for start in range(0, len(skips), _SKIPS_PER_CHUNK):
                self._send(target, spill.partition, 0, None, skips[start : start + _SKIPS_PER_CHUNK])
        if len(spill.retracted):
            body = np.concatenate([[spill.partition], spill.retracted]).astype(np.int64).tobytes()
            for target in range(len(work.targets)):
                yield row(work.route(target), target, RETRACTION, b"", body)
        for target, entries in sorted(spill.entries.items()):
            self._entries[target] = self._entries.get(target, 0) + entries.num_rows
            if self._sums is not None:
                self._sums[target] = self._sums.get(target, NO_ENTRIES).plus(runs.summed(entries))
            for first, block in runs.blocks(entries, work.settings.build.chunk_bytes):
                yield row(work.route(target), target, BLOCK, first, runs.encode_block(block))

    def _send(self, target: int, partition: int, base: int, heard: Heard | None, skips: list[Skip]) -> None:
        sequence = self._chunks.get(target, 0)
        self._chunks[target] = sequence + 1
        header = self._work.header(target, self._sender.attempt)
        self._sender.send(target, RemovalChunk(*header, sequence, partition, base, heard, skips))

    def finish(self, share: ExtentProjection) -> Iterator[pa.RecordBatch]:
        """Wait for the acknowledgements, then say what was done."""
        self._sender.finish()
        routes = self._work.routes
        for route, hashes in zip(routes, hash_ranges(share.hashes, len(routes)), strict=True):
            if len(hashes):
                yield row(route, -1, HASHES, b"", hashes.tobytes())
        summary = core.ExtentSummary(
            *(self._sender.attempt, share.read, self._chunks, self._entries),
            *(share.skipped, share.left_out, self._sums),
        )
        yield row(routes[0], -1, SUMMARY, b"", _encode_summary(summary))


# --- second stage -----------------------------------------------------------------------------------------


def deliver_targets(work: BatchWork, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the shuffle, in order, to put chunks in the queues; gives summaries back."""
    stage = _SecondStage(work)
    for batch in rows:
        targets, kinds, firsts, bodies = (batch.column(name) for name in ("target", "kind", "first", "body"))
        for position in range(batch.num_rows):
            target, body = targets[position].as_py(), bodies[position].as_buffer()
            kind = kinds[position].as_py()
            if kind == SUMMARY:
                yield row(0, -1, SUMMARY, b"", body.to_pybytes())
            elif kind == HASHES:
                stage.hashes.append(np.frombuffer(body.to_pybytes(), np.uint64))
            elif kind == RETRACTION:
                stage.retract(target, np.frombuffer(body.to_pybytes(), np.int64))
            else:
                stage.block(target, runs.RunBlock(firsts[position].as_py(), runs.decode_block(body)))
    for summary in stage.finish():
        yield row(0, -1, SUMMARY, b"", _encode_summary(summary))


class _SecondStage:
    """Merges and sends target after target."""

    def __init__(self, work: BatchWork) -> None:
        self.hashes: list[Hashes] = []
        self._work = work
        self._sender = ChunkSender(work)
        self._target = -1
        self._done: list[core.TargetSummary] = []
        self._begin_target(-1)

    def _begin_target(self, target: int) -> None:
        if target == self._target:
            return
        self._end_target()
        self._target = target
        self._merge = runs.Merge()
        self._retracted: dict[int, OffsetColumn] = {}
        self._chunks = self._entries = self._dropped = 0

    def retract(self, target: int, body: OffsetColumn) -> None:
        """Versions whose entries must be dropped; they come before the blocks."""
        self._begin_target(target)
        partition, offsets = int(body[0]), body[1:]
        known = self._retracted.get(partition)
        self._retracted[partition] = np.sort(offsets if known is None else np.concatenate([known, offsets]))

    def block(self, target: int, block: runs.RunBlock) -> None:
        self._begin_target(target)
        if self._retracted:
            kept = runs.without_versions(block.entries, self._retracted)
            self._dropped += block.entries.num_rows - kept.num_rows
            block = runs.RunBlock(block.first, kept)
        for entries in self._merge.add(block):
            self._send(entries)

    def _send(self, entries: pa.RecordBatch) -> None:
        header = self._work.header(self._target, self._sender.attempt)
        for start, end in pairwise(runs.cuts(entries, self._work.settings.build.chunk_bytes)):
            self._sender.send(
                self._target, runs.put_chunk(header, self._chunks, entries.slice(start, end - start))
            )
            self._chunks += 1
        self._entries += entries.num_rows

    def _end_target(self) -> None:
        if self._target < 0:
            return
        for entries in self._merge.finish():
            self._send(entries)
        self._done.append(
            core.TargetSummary(self._target, self._sender.attempt, self._chunks, self._entries, self._dropped)
        )

    def finish(self) -> list[core.Summary]:
        """Send the rest and wait for the acknowledgements; what was done."""
        self._end_target()
        self._sender.finish()
        return [*self._done, core.ForeignSummary(repeated(self.hashes).tobytes())]


# --- documents in several source partitions ---------------------------------------------------------------


def read_and_find_versions(
    work: BatchWork,
    client: TaskClient,
    wanted: bytes,
    topic: str,
    extents: Sequence[Extent],
    rows: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The versions in one share, read again, of documents with the given hashes (u64[n], ascending)."""
    for extent in chosen(extents, rows):
        yield from find_versions(wanted, read_extent(work.settings, topic, extent, heed=client.heed))


def find_versions(wanted: bytes, records: Iterable[SourceBatch]) -> Iterator[pa.RecordBatch]:
    """The versions in one share of documents with the given hashes (u64[n], ascending), as VERSION_ROWs."""
    hashes = np.frombuffer(wanted, np.uint64)
    for batch in records:
        ids = [one or b"" for one in batch.ids]
        found = np.flatnonzero(contained(hashes_of(ids, len(ids)), hashes))
        columns = [
            pa.array([batch.ids[row] for row in found.tolist()], pa.binary()),
            pa.array(np.asarray(batch.times, np.int64)[found]),
            pa.array(np.full(len(found), batch.partition, np.int32)),
            pa.array(np.asarray(batch.offsets, np.int64)[found]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_VERSION_SCHEMA)


def row(route: int, target: int, kind: int, first: bytes, body: bytes) -> pa.RecordBatch:
    """A row of the shuffle."""
    values: list[Any] = [[route], [target], [kind], [first], [body]]
    columns = [pa.array(value, column.type) for value, column in zip(values, _ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ROW_SCHEMA)


def read_summary(body: bytes) -> core.Summary:
    """The summary in the body of a row that `deliver_targets` gave back."""
    return _decode_summary.decode(body)


# --- in the driver ------------------------------------------------------------------------------------------


def batch_shuffle(work: BatchWork, first: StageTask) -> Shuffle:
    """Both stages of a micro-batch.

    Args:
        first: tasks that give rows of the shuffle.
    """
    return Shuffle(first, functools.partial(deliver_targets, work), ROW, len(work.routes), ROW_ORDER)


def settled(work: BatchWork, rows: Rows, shares: int) -> core.SettledBatch:
    """What both stages came to, by the rows that came back.

    Args:
        shares: how many tasks of the first stage there were.
    """
    return core.settle(len(work.targets), shares, [read_summary(bytes(row["body"])) for row in rows])
