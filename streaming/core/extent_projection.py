"""The first stage: what a task makes of its share, the records of one source partition. Pure.

Theory of operation
===================
Records come in offset order, in the projector's own batches (`streaming.stages.source_reader`), and are
projected with its core. What they project to is kept, as columns, until the share ends; then the newest
version of each document is known, and only its entries go on (a tombstone or a version that cannot be
projected goes on as nothing).

A share that takes more than `limit` bytes goes on in *spills*. Of the earlier ones the task keeps ids and
offsets only; when a later spill has a newer version of a document, the older one is *retracted*: the second
stage drops its entries.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.catalog.partitioning import Partitioning
from keytide.errors import invariant
from keytide.wire.columns import pack_times
from keytide.wire.messages import Heard, Skip
from projector.core.projection import KeyspacePlan, Projected, SourceBatch, project
from router.core import hash_modulo, slices_of
from streaming.core.micro_batches import add_counts
from streaming.core.runs import SCHEMA, blob, lengths, numbers
from streaming.core.versions import Hashes, OffsetColumn, contained, newest_versions

Array = npt.NDArray[Any]

SPILL_BYTES = 192 * 1024 * 1024
"""About what a task keeps of its share: ids, keys, values, and DOCUMENT_BYTES a document and entry."""
DOCUMENT_BYTES = 64
SKIP_BYTES = 600

DOCUMENTS = pa.schema(
    [("id", pa.binary()), ("hash", pa.uint64()), ("offset", pa.int64()), ("time", pa.int64())]
)
"""Versions of documents of one source partition, in offset order."""
_ENTRIES = pa.schema(
    [("ordinal", pa.int64()), ("slice", pa.uint16()), ("key", pa.binary()), ("value", pa.binary())]
)
"""Entries of one index; ordinals count through the documents of the spill."""


class Spill(NamedTuple):
    """What a share, or a part of it, comes to.

    Attributes:
        partition: source partition, -1 when nothing was read.
        documents: the newest version of each document (`DOCUMENTS`).
        entries: target number -> entries of those versions, unsorted.
        retracted: offsets of versions in earlier spills that are no longer the newest; ascending.
        skips: target number -> lines for its skip ledger, superseded versions included.
    """

    partition: int
    documents: pa.RecordBatch
    entries: dict[int, pa.RecordBatch]
    retracted: OffsetColumn
    skips: dict[int, list[Skip]]


class ExtentProjection:
    """Collects one share.

    Args:
        plan: the indexes of the build.
        targets: index id -> target number of each of its slices, -1 where the build does not fill it: what
            belongs there is dropped at once.
        rules: index id -> how its entries fall to its slices.
        losers: partition -> offsets of versions whose document has a newer one in another partition.
        limit: bytes after which a spill is full.

    Attributes:
        read: records read so far.
        skipped: index id -> reason -> lines for the ledgers of slices that are filled, so far.
        left_out: index id -> reason -> documents, so far.
    """

    def __init__(
        self,
        plan: KeyspacePlan,
        targets: Mapping[str, Sequence[int]],
        rules: Mapping[str, Partitioning],
        losers: Mapping[int, OffsetColumn],
        limit: int = SPILL_BYTES,
    ) -> None:
        self._plan = plan
        self._rules = rules
        self._targets = {index: np.array(numbers, np.int64) for index, numbers in targets.items()}
        self._partly = {index for index, numbers in self._targets.items() if (numbers < 0).any()}
        self._losers = losers
        self._limit = limit
        self.read = 0
        self.skipped: dict[str, dict[str, int]] = {}
        self.left_out: dict[str, dict[str, int]] = {}
        self._partition = -1
        self._earlier = _no_documents()
        self._clear()

    def _clear(self) -> None:
        self._bytes = self._heard = 0
        self._documents = [_no_documents()]
        self._entries: dict[str, list[pa.RecordBatch]] = {index: [] for index in self._plan.indexes}
        self._skips: dict[int, list[Skip]] = {}

    @property
    def full(self) -> bool:
        """Whether a spill should be taken now."""
        return self._bytes >= self._limit

    @property
    def hashes(self) -> Hashes:
        """Hashes of all documents of the spills taken so far, each once."""
        return numbers(self._earlier, "hash")

    def add(self, batch: SourceBatch) -> None:
        """Project the next records of the share."""
        if not len(batch.offsets):
            return
        invariant(
            self._partition in (-1, batch.partition),
            "OneShareOnePartition",
            lambda: f"records of partition {batch.partition} in a share of partition {self._partition}",
        )
        self._partition = batch.partition
        self.read += len(batch.offsets)
        projected = project(batch, self._plan, with_heard=False)
        for index, made in projected.indexes.items():
            self._add_index(index, made, projected.hashes)
        ids = pa.array(projected.ids, pa.binary())
        columns = [ids, *map(pa.array, (projected.hashes, projected.offsets, projected.times))]
        self._documents.append(pa.RecordBatch.from_arrays(columns, schema=DOCUMENTS))
        self._bytes += ids.nbytes + DOCUMENT_BYTES * len(ids)
        self._heard += len(ids)

    def _add_index(self, index: str, made: Projected, hashes: Hashes) -> None:
        targets = self._targets[index]
        if made.keys:
            routes = slices_of(made.partition_keys, self._rules[index], hashes[made.ordinals])
            columns = [
                pa.array(made.ordinals.astype(np.int64) + self._heard),
                pa.array(routes),
                pa.array(made.keys, pa.binary()),
                pa.array(made.values or [b""] * len(made.keys), pa.binary()),
            ]
            entries = pa.RecordBatch.from_arrays(columns, schema=_ENTRIES)
            if index in self._partly:
                entries = entries.filter(pa.array(targets[routes] >= 0))
            self._entries[index].append(entries)
            self._bytes += sum(entries.column(name).nbytes for name in ("key", "value"))
            self._bytes += DOCUMENT_BYTES * len(entries)
        reasons: dict[str, int] = {}
        places = hash_modulo([skip.id for skip in made.skips], len(targets))
        for skip, target in zip(made.skips, targets[places].tolist(), strict=True):
            if target < 0:
                continue
            reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
            self._bytes += SKIP_BYTES
            # The ordinal would count in heard columns that are not sent: partition and offset do.
            line = Skip(-1, skip.offset, skip.id, skip.reason, skip.detail)
            self._skips.setdefault(target, []).append(line)
        add_counts(self.skipped, {index: reasons} if reasons else {})
        add_counts(self.left_out, {index: made.left_out} if made.left_out else {})

    def spill(self) -> Spill:
        """What was added since the last spill; begins a new one."""
        documents = pa.concat_batches(self._documents)
        newest = newest_versions(numbers(documents, "hash"), documents.column("id"))
        winning = newest.copy()
        if (losers := self._losers.get(self._partition)) is not None:
            winning &= ~contained(numbers(documents, "offset"), losers)
        entries: dict[int, pa.RecordBatch] = {}
        for index, made in self._entries.items():
            if made:
                entries.update(self._by_target(index, pa.concat_batches(made), winning, documents))
        skips = self._skips
        self._clear()
        if not newest.all():
            documents = documents.filter(pa.array(newest))
        return Spill(self._partition, documents, entries, self._retract(documents), skips)

    def _retract(self, documents: pa.RecordBatch) -> OffsetColumn:
        """Offsets of earlier versions that `documents` replaces; then these are earlier ones, too."""
        count = len(self._earlier)
        both = pa.concat_batches([self._earlier, documents])
        newest = newest_versions(numbers(both, "hash"), both.column("id")) if count else None
        self._earlier = both if newest is None else both.filter(pa.array(newest))
        offsets: OffsetColumn = numbers(both, "offset")[:count]
        return offsets if newest is None else offsets[~newest[:count]]

    def _by_target(
        self, index: str, made: pa.RecordBatch, winning: Array, documents: pa.RecordBatch
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The entries of the winning versions, by target number."""
        targets = self._targets[index].tolist()
        rows = np.flatnonzero(winning[numbers(made, "ordinal")])
        made = made.take(pa.array(rows[np.argsort(numbers(made, "slice")[rows], kind="stable")]))
        edges = np.searchsorted(numbers(made, "slice"), np.arange(len(targets) + 1))
        for target, (start, end) in zip(targets, pairwise(edges.tolist()), strict=True):
            if start == end:
                continue
            mine = made.slice(start, end - start)
            of = documents.take(mine.column("ordinal"))
            columns = [
                pa.array(np.full(end - start, self._partition, np.uint32)),
                of.column("offset").cast(pa.uint64()),
                of.column("time"),
                of.column("id"),
                mine.column("key"),
                mine.column("value"),
            ]
            yield target, pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def heard_columns(documents: pa.RecordBatch, limit: int) -> Iterator[tuple[int, Heard]]:
    """Documents as heard columns, each at most about `limit` bytes, with what their offsets count from."""
    if not len(documents):
        return
    offsets = numbers(documents, "offset")
    sizes = lengths(documents.column("id")) + 4 + 8 + 1 + 8
    parts = (np.cumsum(sizes) - sizes) // limit
    # Offsets travel as u32 from the first one of a part on.
    spans = (offsets - offsets[0]) >> 31
    edges = [0, *(np.flatnonzero(np.diff(parts) | np.diff(spans)) + 1).tolist(), len(documents)]
    for start, end in pairwise(edges):
        mine, base = documents.slice(start, end - start), int(offsets[start])
        time_base, times = pack_times(numbers(mine, "time"))
        yield (
            base,
            Heard(
                count=end - start,
                offsets=(offsets[start:end] - base).astype("<u4").tobytes(),
                time_base=time_base,
                times=times,
                id_lengths=lengths(mine.column("id")).astype(np.uint8).tobytes(),
                ids=blob(mine.column("id")),
                hashes=numbers(mine, "hash").astype("<u8", copy=False).tobytes(),
            ),
        )


@functools.cache
def _no_documents() -> pa.RecordBatch:
    """(Not made when the module is imported: what pyarrow makes of a list has it import pandas.)"""
    return pa.RecordBatch.from_pylist([], DOCUMENTS)
