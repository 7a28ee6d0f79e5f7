"""The first stage: what a task makes of its share, the records of one source partition. Pure.

Theory of operation
===================
Records come in offset order, in the projector's own batches (`streaming.stages.source_reader`), and are
projected with its core. What they project to is kept, as columns, until the share ends; then the newest
version of each document is known, and only its entries go on (a tombstone or a version that cannot be
projected goes on as nothing).

A share that takes more than `limit` bytes goes on in *portions*. Of the earlier ones the task keeps ids and
offsets only; when a later portion has a newer version of a document, the older one is *retracted*: the second
stage drops its entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.errors import invariant
from keytide.wire.columns import pack_times
from keytide.wire.messages import Heard, Skip
from projector.core.projection import KeyspacePlan, Projected, SourceBatch, project
from router.core import slices_of
from streaming.core.micro_batches import add_counts
from streaming.core.runs import SCHEMA, blob, lengths
from streaming.core.versions import Hashes, Offsets, contained, newest_versions

Array = npt.NDArray[Any]

PORTION_BYTES = 192 * 1024 * 1024
"""About what a task keeps of its share: ids, keys, values, and DOCUMENT_BYTES a document and entry."""
DOCUMENT_BYTES = 64
SKIP_BYTES = 600


class HeardPiece(NamedTuple):
    """Heard columns that fit one message; `base` is what their offsets count from."""

    base: int
    heard: Heard


class PartitionDocuments(NamedTuple):
    """Versions of documents of one source partition, as columns in offset order."""

    ids: pa.Array
    hashes: Hashes
    offsets: Offsets
    times: Offsets

    def take(self, ordinals: Array) -> PartitionDocuments:
        return PartitionDocuments(
            self.ids.take(pa.array(ordinals)),
            self.hashes[ordinals],
            self.offsets[ordinals],
            self.times[ordinals],
        )


class Portion(NamedTuple):
    """What a share, or a part of it, comes to.

    Attributes:
        partition: source partition, -1 when nothing was read.
        documents: the newest version of each document.
        entries: slot number -> entries of those versions, unsorted.
        retracted: offsets of versions in earlier portions that are no longer the newest; ascending.
        skips: slot number -> lines for its skip ledger, superseded versions included.
    """

    partition: int
    documents: PartitionDocuments
    entries: dict[int, pa.RecordBatch]
    retracted: Offsets
    skips: dict[int, list[Skip]]


class _Entries(NamedTuple):
    """Entries of one index from one batch: ordinals count through the portion."""

    ordinals: npt.NDArray[np.int64]
    slices: npt.NDArray[np.uint16]
    keys: pa.Array
    values: pa.Array

    def where(self, kept: npt.NDArray[np.bool_]) -> _Entries:
        """Those entries for which `kept` is true."""
        mask = pa.array(kept)
        return _Entries(
            self.ordinals[kept], self.slices[kept], self.keys.filter(mask), self.values.filter(mask)
        )


class ShareProjection:
    """Collects one share.

    Args:
        plan: the indexes of the build.
        slots: index id -> slot number of each of its slices, -1 where the build does not fill it: what
            belongs there is dropped at once.
        losers: partition -> offsets of versions whose document has a newer one in another partition.
        limit: bytes after which a portion is full.
        splits: index id -> its splits, of those by RANGE.

    Attributes:
        read: records read so far.
        skipped: index id -> reason -> lines for the ledgers of slices that are filled, so far.
        left_out: index id -> reason -> documents, so far.
    """

    def __init__(
        self,
        plan: KeyspacePlan,
        slots: Mapping[str, Sequence[int]],
        losers: Mapping[int, Offsets],
        limit: int = PORTION_BYTES,
        splits: Mapping[str, Sequence[bytes]] = MappingProxyType({}),
    ) -> None:
        self._plan = plan
        self._splits = splits
        self._slots = {index: np.array(numbers, np.int64) for index, numbers in slots.items()}
        self._partly = {index for index, numbers in self._slots.items() if (numbers < 0).any()}
        self._losers = losers
        self._limit = limit
        self.read = 0
        self.skipped: dict[str, dict[str, int]] = {}
        self.left_out: dict[str, dict[str, int]] = {}
        self._partition = -1
        self._earlier = _NOTHING
        self._clear()

    def _clear(self) -> None:
        self._bytes = self._heard = 0
        self._documents: list[PartitionDocuments] = []
        self._entries: dict[str, list[_Entries]] = {index: [] for index in self._plan.indexes}
        self._skips: dict[int, list[Skip]] = {}

    @property
    def full(self) -> bool:
        """Whether a portion should be taken now."""
        return self._bytes >= self._limit

    @property
    def hashes(self) -> Hashes:
        """Hashes of all documents of the portions taken so far, each once."""
        return self._earlier.hashes

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
            self._add_index(index, made)
        ids = pa.array(projected.ids, pa.binary())
        self._documents.append(PartitionDocuments(ids, projected.hashes, projected.offsets, projected.times))
        self._bytes += ids.nbytes + DOCUMENT_BYTES * len(ids)
        self._heard += len(ids)

    def _add_index(self, index: str, made: Projected) -> None:
        numbers = self._slots[index]
        slices = len(numbers)
        if made.keys:
            keys = pa.array(made.keys, pa.binary())
            values = _empty(len(keys)) if made.values is None else pa.array(made.values, pa.binary())
            ordinals = made.ordinals.astype(np.int64) + self._heard
            routes = slices_of(made.partition_keys, slices, self._splits.get(index, ()))
            entries = _Entries(ordinals, routes, keys, values)
            if index in self._partly:
                entries = entries.where(numbers[entries.slices] >= 0)
            self._entries[index].append(entries)
            self._bytes += (
                entries.keys.nbytes + entries.values.nbytes + DOCUMENT_BYTES * len(entries.ordinals)
            )
        reasons: dict[str, int] = {}
        places = slices_of([skip.id for skip in made.skips], slices)
        for skip, slot in zip(made.skips, numbers[places].tolist(), strict=True):
            if slot < 0:
                continue
            reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
            self._bytes += SKIP_BYTES
            # The ordinal would count in heard columns that are not sent: partition and offset do.
            line = Skip(-1, skip.offset, skip.id, skip.reason, skip.detail)
            self._skips.setdefault(slot, []).append(line)
        add_counts(self.skipped, {index: reasons} if reasons else {})
        add_counts(self.left_out, {index: made.left_out} if made.left_out else {})

    def portion(self) -> Portion:
        """What was added since the last portion; begins a new one."""
        documents = _joined(self._documents)
        newest = newest_versions(documents.hashes, documents.ids)
        winning = newest & ~contained(documents.offsets, self._losers.get(self._partition, _NOTHING.offsets))
        entries: dict[int, pa.RecordBatch] = {}
        for index, made in self._entries.items():
            entries.update(self._by_slot(index, made, winning, documents))
        skips = self._skips
        self._clear()
        if not newest.all():
            documents = documents.take(np.flatnonzero(newest))
        return Portion(self._partition, documents, entries, self._retract(documents), skips)

    def _retract(self, documents: PartitionDocuments) -> Offsets:
        """Offsets of earlier versions that `documents` replaces; then these are earlier ones, too."""
        count = len(self._earlier.hashes)
        if not count:
            self._earlier = documents
            return _NOTHING.offsets
        both = _joined([self._earlier, documents])
        newest = newest_versions(both.hashes, both.ids)
        self._earlier = both.take(np.flatnonzero(newest))
        return both.offsets[:count][~newest[:count]]

    def _by_slot(
        self, index: str, made: list[_Entries], winning: Array, documents: PartitionDocuments
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The entries of the winning versions, by slot number."""
        if not made:
            return
        numbers = self._slots[index].tolist()
        ordinals = np.concatenate([part.ordinals for part in made])
        of_entry = np.concatenate([part.slices for part in made])
        keys, values = (
            pa.concat_arrays([part.keys for part in made]),
            pa.concat_arrays([part.values for part in made]),
        )
        rows = np.flatnonzero(winning[ordinals])
        rows = rows[np.argsort(of_entry[rows], kind="stable")]
        edges = np.searchsorted(of_entry[rows], np.arange(len(numbers) + 1))
        for number, (start, end) in enumerate(pairwise(edges.tolist())):
            if start == end:
                continue
            take, of = pa.array(rows[start:end]), ordinals[rows[start:end]]
            columns = [
                pa.array(np.full(end - start, self._partition, np.uint32)),
                pa.array(documents.offsets[of].astype(np.uint64)),
                pa.array(documents.times[of]),
                documents.ids.take(pa.array(of)),
                keys.take(take),
                values.take(take),
            ]
            yield numbers[number], pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def heard_pieces(documents: PartitionDocuments, limit: int) -> Iterator[HeardPiece]:
    """Documents as heard columns, cut so that each piece is at most about `limit` bytes."""
    count = len(documents.hashes)
    if count == 0:
        return
    sizes = lengths(documents.ids) + 4 + 8 + 1 + 8
    pieces = (np.cumsum(sizes) - sizes) // limit
    # Offsets travel as u32 from the first one of a piece on.
    spans = (documents.offsets - documents.offsets[0]) >> 31
    edges = [0, *(np.flatnonzero(np.diff(pieces) | np.diff(spans)) + 1).tolist(), count]
    for start, end in pairwise(edges):
        ids, base = documents.ids.slice(start, end - start), int(documents.offsets[start])
        time_base, times = pack_times(documents.times[start:end])
        yield HeardPiece(
            base,
            Heard(
                count=end - start,
                offsets=(documents.offsets[start:end] - base).astype("<u4").tobytes(),
                time_base=time_base,
                times=times,
                id_lengths=lengths(ids).astype(np.uint8).tobytes(),
                ids=blob(ids),
                hashes=documents.hashes[start:end].astype("<u8", copy=False).tobytes(),
            ),
        )


_NOTHING = PartitionDocuments(
    pa.array([], pa.binary()), np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
)


def _joined(parts: list[PartitionDocuments]) -> PartitionDocuments:
    if len(parts) < 2:
        return parts[0] if parts else _NOTHING
    return PartitionDocuments(
        pa.concat_arrays([part.ids for part in parts]),
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.times for part in parts]),
    )


def _empty(count: int) -> pa.Array:
    return pa.array([b""], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
