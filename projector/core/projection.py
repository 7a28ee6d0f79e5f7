"""Projection: a batch of records of one source partition to the entries of every index of the keyspace.

Theory of operation
===================
The batch comes as columns. Record keys are checked first: a record without a usable document id is a line
for the skip ledger and is not heard. All other versions are *heard*: their ids, hashes, offsets and times
are packed once, for all slices of all indexes. The values are decoded once, into just the fields that some
index needs (`decoding`), and each index's generated function (`compile`) makes its keys. A tombstone is
heard, and projects to nothing; so does a version that cannot be indexed (R12), with a line for the ledger.

The projector and the backfill call exactly this, so they cannot differ. Pure: no clock, no I/O. Errors:
none that a record can cause; a broken invariant otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from keytide.definition.index import IndexDefinition
from keytide.errors import invariant
from keytide.model.entry import MAX_ID_BYTES
from keytide.wire.columns import hashes_of, pack_heard
from keytide.wire.messages import Heard, Skip
from projector.core.compile import CompiledIndex, compile_index
from projector.core.decoding import Decoded, DocumentReader

BAD_ID: Final = "bad-id"


class KeyspacePlan:
    """How to project one keyspace: its indexes compiled, and one reader for the fields they need.

    Attributes:
        indexes: by index id.
    """

    def __init__(self, definitions: Iterable[tuple[str, IndexDefinition]]) -> None:
        self.indexes: dict[str, CompiledIndex] = {
            index_id: compile_index(definition) for index_id, definition in definitions
        }
        self.reader = DocumentReader(name for index in self.indexes.values() for name in index.fields)


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Records of one source partition, in offset order, as columns of equal length.

    Attributes:
        partition: source partition.
        epoch: leader epoch, -1 when unknown.
        start: end of the segment before, or the committed offset (R9).
        end: the consumer's position after the last record.
        offsets: of the records, within [start, end).
        ids: record keys.
        values: record values; None is a tombstone.
        times: record timestamps, milliseconds.
        below: leader epoch of what lies just below `start`, -1 when unknown.
    """

    partition: int
    epoch: int
    start: int
    end: int
    offsets: Sequence[int] | npt.NDArray[np.int64]
    ids: list[bytes | None]
    values: list[bytes | None]
    times: Sequence[int] | npt.NDArray[np.int64]
    below: int = -1


@dataclass(frozen=True, slots=True)
class Projected:
    """The entries of one index, by ascending ordinal; several of one ordinal when the index unnests.

    Attributes:
        ordinals: u32[m], index into the batch's heard documents.
        keys: canonical keys.
        partition_keys: what says the slice (`keytide.catalog.partitioning`); the same list as `keys` when
        that is the
            whole key.
        values: entry values; None when all are empty.
        skips: lines for the skip ledger, in offset order.
        left_out: reason to number of documents, for those that the definition leaves out.
    """

    ordinals: npt.NDArray[np.uint32]
    keys: list[bytes]
    partition_keys: list[bytes]
    values: list[bytes] | None
    skips: list[Skip]
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True)
class ProjectedBatch:
    """A batch, projected for several indexes.

    Attributes:
        heard: the packed columns; None when no document was heard, or they were not asked for.
        ids, offsets, times, hashes: the heard documents' columns. [n]
        indexes: index id to its entries.
    """

    partition: int
    epoch: int
    start: int
    end: int
    heard: Heard | None
    ids: list[bytes]
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    indexes: dict[str, Projected] = field(default_factory=dict)


def project(
    batch: SourceBatch, plan: KeyspacePlan, index_ids: Iterable[str] | None = None, *, with_heard: bool = True
) -> ProjectedBatch:
    """The entries that `batch` brings to the indexes `index_ids` (all of the plan by default).

    Args:
        with_heard: whether to pack the heard columns (a backfill's first micro-batch does not need them).
    """
    ids, values, offsets, times, bad_ids = _usable(batch)
    hashes = hashes_of(ids, len(ids))
    heard = pack_heard(offsets, batch.start, ids, times, hashes) if with_heard and ids else None
    result = ProjectedBatch(
        batch.partition, batch.epoch, batch.start, batch.end, heard, ids, offsets, times, hashes
    )
    ordinals: Sequence[int] = range(len(values))
    documents_bytes: list[bytes] = values  # type: ignore[assignment]
    if None in values:
        ordinals = [ordinal for ordinal in ordinals if values[ordinal] is not None]
        documents_bytes = [value for value in values if value is not None]
    decoded = plan.reader.read(documents_bytes)
    for index_id in plan.indexes if index_ids is None else index_ids:
        projected = _project_index(plan.indexes[index_id], ordinals, decoded, ids, offsets)
        if bad_ids:
            projected.skips[:] = sorted(projected.skips + bad_ids, key=lambda skip: skip.offset)
        result.indexes[index_id] = projected
    return result


def _project_index(
    index: CompiledIndex,
    ordinals: Sequence[int],
    decoded: Decoded,
    ids: list[bytes],
    offsets: npt.NDArray[np.int64],
) -> Projected:
    documents: Sequence[Any] = decoded.documents
    refused: list[tuple[int, str, str]] = []
    if decoded.refused or decoded.unindexable:
        refused, kept = _refused(index, ordinals, decoded)
        ordinals = [ordinals[position] for position in kept]
        documents = [documents[position] for position in kept]
    entries, keys, partition_keys, found, skips, left_out = index.project(ordinals, documents, ids)
    values: list[bytes] | None = None
    if isinstance(found, list):
        values = found or None
    elif found:
        values = [b""] * len(keys)
        for entry, value in found.items():
            values[entry] = value
    indexed = np.array(entries, np.uint32)
    _check_outcomes(index, indexed, len(skips) + sum(left_out.values()), len(documents))
    return Projected(
        ordinals=indexed,
        keys=keys,
        partition_keys=partition_keys,
        values=values,
        skips=[
            Skip(ordinal, int(offsets[ordinal]), ids[ordinal], reason, detail)
            for ordinal, reason, detail in sorted(refused + skips)
        ],
        left_out={reason: count for reason, count in left_out.items() if count},
    )


def _check_outcomes(
    index: CompiledIndex, indexed: npt.NDArray[np.uint32], without: int, documents: int
) -> None:
    """Every document has entries, or a line in the ledger, or is counted as left out: exactly one of them."""
    with_entries = int(np.count_nonzero(np.diff(indexed))) + 1 if len(indexed) else 0
    invariant(
        with_entries + without == documents,
        "NothingSilent",
        lambda: (
            f"{index.definition.name}: {documents} documents, {with_entries} indexed, {without} with a reason"
        ),
    )


def _refused(
    index: CompiledIndex, ordinals: Sequence[int], decoded: Decoded
) -> tuple[list[tuple[int, str, str]], list[int]]:
    """Documents that the decoding refuses for this index, and the positions of the others."""
    refused: list[tuple[int, str, str]] = []
    kept: list[int] = []
    for position, ordinal in enumerate(ordinals):
        if position in decoded.refused:
            refused.append((ordinal, *decoded.refused[position]))
            continue
        fields = decoded.unindexable.get(position)
        details = [fields[name] for name in sorted(fields) if name in index.fields] if fields else []
        if details:
            refused.append((ordinal, "not-indexable", details[0]))
        else:
            kept.append(position)
    return refused, kept


def _usable(
    batch: SourceBatch,
) -> tuple[list[bytes], list[bytes | None], npt.NDArray[np.int64], npt.NDArray[np.int64], list[Skip]]:
    """The batch's columns without the records whose key is no document id, and a skip for each of those."""
    offsets, times = np.asarray(batch.offsets, np.int64), np.asarray(batch.times, np.int64)
    ids = batch.ids
    if None not in ids and all(map(bytes.isascii, ids)):  # type: ignore[arg-type]
        sizes = list(map(len, ids))  # type: ignore[arg-type]
        if not sizes or (min(sizes) > 0 and max(sizes) <= MAX_ID_BYTES):
            return ids, batch.values, offsets, times, []  # type: ignore[return-value]
    problems = list(map(_id_problem, ids))
    if not any(problems):
        return ids, batch.values, offsets, times, []  # type: ignore[return-value]
    good = [position for position, problem in enumerate(problems) if not problem]
    skips = [
        Skip(-1, int(offsets[position]), (ids[position] or b"")[:MAX_ID_BYTES], BAD_ID, problem)
        for position, problem in enumerate(problems)
        if problem
    ]
    usable = [key for key, problem in zip(ids, problems, strict=True) if key is not None and not problem]
    return usable, [batch.values[position] for position in good], offsets[good], times[good], skips


def _id_problem(key: bytes | None) -> str:
    """Why a record key is no document id, or ""."""
    if key is None:
        return "the record has no key"
    if not key:
        return "the key is empty"
    if len(key) > MAX_ID_BYTES:
        return f"the key takes {len(key)} bytes, more than {MAX_ID_BYTES}"
    try:
        key.decode()
    except UnicodeDecodeError as error:
        return f"the key is no UTF-8 at byte {error.start}"
    return ""
