"""The first stage: what a task makes of its share, the records of one source partition. Pure.

Theory of operation
===================
Records come in offset order, in Arrow batches, and are projected batch by batch with the projector's own
core. What they project to is kept, as columns, until the share ends; then the newest version of each
document is known, and only its entries go on (a tombstone or a version that cannot be projected goes on as
nothing).

A share that takes more than `limit` bytes is handled in *portions*, each like a share of its own. The newest
version is then known per portion only. That is no harm in a micro-batch whose documents all slices hear: they
put aside what is older than what they heard. In the first micro-batch nobody hears anything (there is nothing
to remove), so a document in two portions, or in two source partitions, must be noticed: each portion hands on
the sorted hashes of its documents, the second stage compares them, and if any is found twice, the driver runs
the micro-batch again with everything heard (`streaming.driver`).

Input columns: partition, offset (integers), timestamp (microseconds), key, value (binary, may be null).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.columns import pack_times
from keytide.errors import invariant
from keytide.messages import Heard, Skip
from projector.core import KeyspacePlan, Projected, SourceBatch, project
from router.core import slices_of
from streaming.core import add_counts
from streaming.runs import SCHEMA, blob, lengths

Array = npt.NDArray[Any]

PORTION_BYTES = 192 * 1024 * 1024
"""About what a task keeps of its share: ids, keys, values, and DOCUMENT_BYTES a document and entry."""
DOCUMENT_BYTES = 64
SKIP_BYTES = 600
_HASHES_END = 1 << 64


class HeardPiece(NamedTuple):
    """Heard columns that fit one message; `base` is what their offsets count from."""

    base: int
    heard: Heard


class Portion(NamedTuple):
    """What a share (or a part of it) comes to.

    Attributes:
        partition: source partition, -1 when nothing was read.
        ids, hashes, offsets, times: the newest version of each document, by offset.
        entries: slot number -> entries of those versions, unsorted.
        skips: slot number -> lines for its skip ledger, superseded versions included.
    """

    partition: int
    ids: pa.Array
    hashes: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    entries: dict[int, pa.RecordBatch]
    skips: dict[int, list[Skip]]


class _Entries(NamedTuple):
    """Entries of one index from one Arrow batch: ordinals count through the portion."""

    ordinals: npt.NDArray[np.int64]
    slices: npt.NDArray[np.uint16]
    keys: pa.Array
    values: pa.Array


class Share:
    """Collects one share.

    Args:
        plan: the indexes of the build.
        first_slots: index id -> slot number of its slice 0.
        slices: index id -> number of slices.
        limit: bytes after which a portion is full.

    Attributes:
        documents: records read so far.
        skipped, left_out: index id -> reason -> count, so far.
    """

    def __init__(
        self,
        plan: KeyspacePlan,
        first_slots: Mapping[str, int],
        slices: Mapping[str, int],
        limit: int = PORTION_BYTES,
    ) -> None:
        self._plan = plan
        self._first_slots = first_slots
        self._slices = slices
        self._limit = limit
        self.documents = 0
        self.skipped: dict[str, dict[str, int]] = {}
        self.left_out: dict[str, dict[str, int]] = {}
        self._partition = -1
        self._clear()

    def _clear(self) -> None:
        self._heard = 0
        self._bytes = 0
        self._ids: list[pa.Array] = []
        self._columns: list[tuple[Array, Array, Array]] = []
        self._entries: dict[str, list[_Entries]] = {index: [] for index in self._plan.indexes}
        self._skips: dict[int, list[Skip]] = {}

    @property
    def full(self) -> bool:
        """Whether a portion should be taken now."""
        return self._bytes >= self._limit

    def add(self, records: pa.RecordBatch) -> None:
        """Project the next records of the share."""
        if records.num_rows == 0:
            return
        batch = source_batch(records)
        invariant(
            self._partition in (-1, batch.partition),
            "OneShareOnePartition",
            lambda: f"records of partition {batch.partition} in a share of partition {self._partition}",
        )
        self._partition = batch.partition
        self.documents += records.num_rows
        projected = project(batch, self._plan, with_heard=False)
        for index, made in projected.indexes.items():
            self._add_index(index, made)
        ids = pa.array(projected.ids, pa.binary())
        self._ids.append(ids)
        self._columns.append((projected.hashes, projected.offsets, projected.times))
        self._bytes += ids.nbytes + DOCUMENT_BYTES * len(ids)
        self._heard += len(projected.ids)

    def _add_index(self, index: str, made: Projected) -> None:
        slices = self._slices[index]
        if made.keys:
            keys = pa.array(made.keys, pa.binary())
            values = _empty(len(keys)) if made.values is None else pa.array(made.values, pa.binary())
            self._entries[index].append(
                _Entries(
                    made.ordinals.astype(np.int64) + self._heard,
                    slices_of(made.partition_keys, slices),
                    keys,
                    values,
                )
            )
            self._bytes += keys.nbytes + values.nbytes + DOCUMENT_BYTES * len(keys)
        reasons: dict[str, int] = {}
        places = slices_of([skip.id for skip in made.skips], slices)
        for skip, place in zip(made.skips, places.tolist(), strict=True):
            reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
            # The ordinal would count in heard columns that are not sent: partition and offset do.
            line = Skip(-1, skip.offset, skip.id, skip.reason, skip.detail)
            self._skips.setdefault(self._first_slots[index] + place, []).append(line)
        self._bytes += SKIP_BYTES * len(made.skips)
        if reasons:
            add_counts(self.skipped, {index: reasons})
        if made.left_out:
            add_counts(self.left_out, {index: made.left_out})

    def portion(self) -> Portion:
        """What was added since the last portion; begins a new one."""
        ids = _joined(self._ids)
        hashes, offsets, times = (
            np.concatenate(columns) if columns else np.zeros(0, kind)
            for columns, kind in zip(
                zip(*self._columns, strict=True) if self._columns else ((), (), ()),
                (np.uint64, np.int64, np.int64),
                strict=True,
            )
        )
        newest = newest_versions(hashes, ids)
        entries: dict[int, pa.RecordBatch] = {}
        for index, made in self._entries.items():
            entries.update(self._by_slot(index, made, newest, ids, offsets, times))
        skips = self._skips
        self._clear()
        if newest.all():
            return Portion(self._partition, ids, hashes, offsets, times, entries, skips)
        kept = np.flatnonzero(newest)
        return Portion(
            self._partition,
            ids.take(pa.array(kept)),
            hashes[kept],
            offsets[kept],
            times[kept],
            entries,
            skips,
        )

    def _by_slot(
        self, index: str, made: list[_Entries], newest: Array, ids: pa.Array, offsets: Array, times: Array
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The entries of the newest versions, by slot number."""
        if not made:
            return
        ordinals = np.concatenate([part.ordinals for part in made])
        slices = np.concatenate([part.slices for part in made])
        keys, values = _joined([part.keys for part in made]), _joined([part.values for part in made])
        rows = np.flatnonzero(newest[ordinals])
        rows = rows[np.argsort(slices[rows], kind="stable")]
        edges = np.searchsorted(slices[rows], np.arange(self._slices[index] + 1))
        for number in range(self._slices[index]):
            chosen = rows[edges[number] : edges[number + 1]]
            if not len(chosen):
                continue
            take, of = pa.array(chosen), ordinals[chosen]
            columns = [
                pa.array(np.full(len(chosen), self._partition, np.uint32)),
                pa.array(offsets[of].astype(np.uint64)),
                pa.array(times[of]),
                ids.take(pa.array(of)),
                keys.take(take),
                values.take(take),
            ]
            yield self._first_slots[index] + number, pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def source_batch(records: pa.RecordBatch) -> SourceBatch:
    """Spark's Kafka rows as the projector takes them."""
    partitions = records.column("partition").to_numpy()
    partition = int(partitions[0])
    invariant(
        bool((partitions == partition).all()),
        "OneShareOnePartition",
        lambda: f"source partitions {sorted(set(partitions.tolist()))} in one share",
    )
    offsets = records.column("offset").to_numpy().astype(np.int64)
    micros = pc.cast(records.column("timestamp"), pa.int64()).to_numpy(zero_copy_only=False)
    return SourceBatch(
        partition=partition,
        epoch=-1,
        start=int(offsets[0]),
        end=int(offsets[-1]) + 1,
        offsets=offsets,
        ids=items(records.column("key")),
        values=items(records.column("value")),
        times=np.asarray(micros, np.int64) // 1000,
    )


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


def newest_versions(hashes: npt.NDArray[np.uint64], ids: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each version is the last of its document. bool[n].

    Args:
        hashes: of the ids; documents with one hash are told apart by their ids.
        ids: in offset order.
    """
    newest = np.ones(len(hashes), np.bool_)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(again):
        return newest
    older, newer = order[again], order[again + 1]
    if pc.all(pc.equal(ids.take(pa.array(older)), ids.take(pa.array(newer)))).as_py():
        newest[older] = False
        return newest
    last: dict[bytes, int] = {}  # two ids with one hash: once in a lifetime
    for ordinal in np.union1d(older, newer).tolist():
        name = ids[ordinal].as_py()
        if name in last:
            newest[last[name]] = False
        last[name] = ordinal
    return newest


def heard_pieces(portion: Portion, limit: int) -> Iterator[HeardPiece]:
    """The documents of a portion as heard columns, cut so that each piece is at most about `limit` bytes."""
    count = len(portion.hashes)
    if count == 0:
        return
    sizes = lengths(portion.ids) + 4 + 8 + 1 + 8
    pieces = (np.cumsum(sizes) - sizes) // limit
    # Offsets travel as u32 from the first one on.
    pieces += (portion.offsets - portion.offsets[0]) >> 31
    edges = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), count]
    for start, end in pairwise(edges):
        ids, base = portion.ids.slice(start, end - start), int(portion.offsets[start])
        time_base, times = pack_times(portion.times[start:end])
        yield HeardPiece(
            base,
            Heard(
                count=end - start,
                offsets=(portion.offsets[start:end] - base).astype("<u4").tobytes(),
                time_base=time_base,
                times=times,
                id_lengths=lengths(ids).astype(np.uint8).tobytes(),
                ids=blob(ids),
                hashes=portion.hashes[start:end].astype("<u8", copy=False).tobytes(),
            ),
        )


def hash_ranges(hashes: npt.NDArray[np.uint64], ranges: int) -> list[npt.NDArray[np.uint64]]:
    """The hashes in order, cut into `ranges` equal ranges of the 64-bit numbers."""
    bounds = np.array([number * _HASHES_END // ranges for number in range(1, ranges)], np.uint64)
    ordered = np.sort(hashes)
    return np.split(ordered, np.searchsorted(ordered, bounds))


def repeated(portions: list[npt.NDArray[np.uint64]]) -> int:
    """How many hashes lie in more than one of the arrays (each without repetitions)."""
    if len(portions) < 2:
        return 0
    ordered = np.sort(np.concatenate(portions))
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    return len(np.unique(again))


def _empty(count: int) -> pa.Array:
    return pa.array([b""], pa.binary()).take(pa.array(np.zeros(count, np.int64)))


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], pa.binary())
