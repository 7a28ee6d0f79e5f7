"""A sample of a keyspace: which offsets are read, what tasks make of them, and what that says.

Theory of operation
===================
Of each source partition a task reads a few blocks of offsets, evenly spread over its length (`spread`), so
that old and new documents count alike; a small source is read whole. It projects what it reads with the
projector's core, and hands back, for every index, the partition keys of the entries, each with the document
that it is of. Of a document that is in the sample several times the newest version counts
(`SampleResult.splits`).

Of an index on UNNEST a block may bring many more entries than documents: then every k-th is kept, and counts
for k.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.model.timestamp import TABLE_PARTITION
from keytide.settings.settings import Settings
from projector.core.projection import KeyspacePlan, SourceBatch, project
from streaming.core.quantiles import KEY_BYTES, splits_of
from streaming.drivers.rate_gate import TaskClient
from streaming.spark.checkpoint import Extent
from streaming.stages.work import plan_of

BLOCKS: Final = 16
"""Of each source partition at most: each is a place of its own in the log, and a start of a reader."""
MOST_BLOCKS: Final = 128
"""Of all partitions together, where there are fewer partitions than that."""
LEAST_BLOCK: Final = 500
"""Records: shorter blocks would take longer to find than to read."""
SAMPLE_BYTES: Final = 512 << 20
"""Of records, over all blocks: of large documents the sample has fewer."""
KEPT_ENTRIES: Final = 4
"""Entries for each document of a batch, beyond which they are thinned."""
ROW: Final = "body binary"
_SCHEMA: Final = pa.schema([("body", pa.binary())])

Definitions = tuple[tuple[str, bytes], ...]


class Sampled(msgspec.Struct, array_like=True):
    """What one batch of records came to.

    Attributes:
        hashes: u64[n], of the ids of its documents.
        offsets: i64[n], of these versions; those of tables are below zero.
        entries: index id -> (u32[m] the document of each entry, its partition key, how many it counts for).
    """

    hashes: bytes
    offsets: bytes
    entries: dict[str, tuple[bytes, list[bytes], int]]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Sampled)


def spread(starts: Mapping[int, int], ends: Mapping[int, int], documents: int) -> list[Extent]:
    """Blocks of offsets, evenly over every partition, that hold about so many records.

    Args:
        starts, ends: the offsets that a reader can have, by partition.
    """
    lengths = {partition: max(0, end - starts[partition]) for partition, end in sorted(ends.items())}
    whole = sum(lengths.values())
    if whole <= documents:
        return [Extent(p, starts[p], starts[p] + length) for p, length in lengths.items() if length]
    blocks = max(1, min(BLOCKS, MOST_BLOCKS // len(lengths)))
    found: list[Extent] = []
    for partition, length in lengths.items():
        wanted = -(-documents * length // whole)
        count = max(1, min(blocks, wanted // LEAST_BLOCK)) if wanted else 0
        for number in range(count):
            begin, end = length * number // count, length * (number + 1) // count
            size = min(end - begin, -(-wanted // count))
            first = starts[partition] + begin + (end - begin - size) // 2
            found.append(Extent(partition, first, first + size))
    return found


class SampleResult:
    """What a sample found, while it is put together.

    Attributes:
        documents: versions that were looked at.
    """

    def __init__(self) -> None:
        self.documents = 0
        self._parts: list[Sampled] = []

    def add(self, body: bytes) -> None:
        """Take the row of a task."""
        self._parts.append(_decoder.decode(body))
        self.documents += len(self._parts[-1].hashes) // 8

    def splits(self, index: str, slices: int) -> tuple[tuple[bytes, ...], int]:
        """The splits of an index, and from how many entries they were found."""
        weights: dict[bytes, int] = {}
        total = 0
        for part, newest in zip(self._parts, self._newest(), strict=True):
            ordinals, keys, weight = part.entries.get(index, (b"", [], 1))
            kept = newest[np.frombuffer(ordinals, np.uint32)].tolist()
            for key, counts in zip(keys, kept, strict=True):
                if counts:
                    weights[key] = weights.get(key, 0) + weight
                    total += 1
        ordered = sorted(weights)
        return splits_of(ordered, [weights[key] for key in ordered], slices), total

    def _newest(self) -> list[npt.NDArray[np.bool_]]:
        """For each part, which of its documents are the newest of the sample."""
        if not self._parts:
            return []
        hashes = np.concatenate([np.frombuffer(part.hashes, np.uint64) for part in self._parts])
        offsets = np.concatenate([np.frombuffer(part.offsets, np.int64) for part in self._parts])
        order = np.lexsort((offsets, hashes))
        last = np.ones(len(order), bool)
        last[:-1] = hashes[order][1:] != hashes[order][:-1]
        newest = np.zeros(len(order), bool)
        newest[order[last]] = True
        edges = np.cumsum([len(part.hashes) // 8 for part in self._parts])[:-1]
        return np.split(newest, edges)


# --- tasks -------------------------------------------------------------------------------------------------


def sample_blocks(
    settings: Settings,
    client: TaskClient,
    topic: str,
    definitions: Definitions,
    extents: Sequence[Extent],
    rows: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read the blocks whose numbers are in the first column of `rows`."""
    from streaming.stages.source_reader import read_extent
    from streaming.stages.tasks import chosen

    room = SAMPLE_BYTES // max(1, len(extents))
    for extent in chosen(extents, rows):
        read = 0
        for records in read_extent(settings, topic, extent, heed=client.heed):
            yield _row(sampled(records, plan_of(definitions)))
            read += sum(map(len, filter(None, records.values)))
            if read > room:
                break


def sample_rows(definitions: Definitions, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for the rows (key, value) of a table."""
    from streaming.backfill.table_origin import as_records

    for records in as_records(0, rows, []):
        yield _row(sampled(records, plan_of(definitions)))


def sampled(batch: SourceBatch, plan: KeyspacePlan) -> Sampled:
    """What a batch comes to."""
    projected = project(batch, plan, with_heard=False)
    offsets = projected.offsets
    if batch.partition == TABLE_PARTITION:
        offsets = np.full(len(projected.ids), -1, np.int64)  # older than every record
    entries: dict[str, tuple[bytes, list[bytes], int]] = {}
    for index, made in projected.indexes.items():
        step = max(1, len(made.keys) // (KEPT_ENTRIES * max(1, len(projected.ids))))
        keys = [key[:KEY_BYTES] for key in made.partition_keys[::step]]
        entries[index] = (made.ordinals[::step].astype(np.uint32).tobytes(), keys, step)
    return Sampled(projected.hashes.astype(np.uint64).tobytes(), offsets.astype(np.int64).tobytes(), entries)


def _row(found: Sampled) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([_encode(found)], pa.binary())], schema=_SCHEMA)
