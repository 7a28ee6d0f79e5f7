"""Messages made by hand: what a projector and a Spark task would send, from plain versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keytide.wire.columns import hashes_of, pack_heard, pack_puts
from keytide.wire.messages import Heard, PutChunk, Puts, RemovalChunk, Segment, SegmentBatch, Skip

TOPIC_ID = "source-1"


class Version(NamedTuple):
    """A record of the source.

    Attributes:
        keys: canonical keys of its entries; () for a tombstone or a document that the index leaves out.
        bad: cannot be projected (R12): counts as a tombstone, and is in the skip ledger.
        value: of all its entries.
    """

    partition: int
    offset: int
    id: bytes
    keys: tuple[bytes, ...]
    bad: bool = False
    value: bytes = b""

    @property
    def time(self) -> int:
        return 1_000_000 + self.offset


def slice_of_key(key: bytes, slices: int) -> int:
    """Routing: by the last byte, so that tests can see it."""
    return key[-1] % slices


def slice_of_id(docid: bytes, slices: int) -> int:
    return int(hashes_of([docid], 1)[0]) % slices


def segment(
    partition: int,
    start: int,
    end: int,
    versions: Sequence[Version],
    slice_number: int = 0,
    slices: int = 1,
    epoch: int = 0,
) -> Segment:
    """The segment [start, end) for one slice: all versions are heard, its own entries are put."""
    return Segment(
        partition,
        epoch,
        start,
        end,
        _heard(versions, start),
        _puts(versions, slice_number, slices),
        _skips(versions, slice_number, slices),
    )


def batch(
    segments: Sequence[Segment],
    index: str = "i",
    slice_number: int = 0,
    sender: str = "p",
    incarnation: int = 0,
) -> SegmentBatch:
    return SegmentBatch(index, slice_number, sender, TOPIC_ID, incarnation, 1, list(segments), 0)


def put_chunk(
    entries: Sequence[tuple[bytes, Version]],
    *,
    build: str,
    index: str,
    slice_number: int,
    run: str,
    number: int,
    attempt: str,
    sequence: int,
) -> PutChunk:
    """A chunk of (canonical key, version), sorted here."""
    rows = sorted(entries, key=lambda row: (row[0] + row[1].id, row[1].offset))
    puts = pack_puts(
        np.arange(len(rows), dtype=np.uint32), [key for key, _ in rows], [row.value for _, row in rows]
    )
    return PutChunk(
        build=build,
        index=index,
        slice=slice_number,
        run=run,
        batch=number,
        attempt=attempt,
        sequence=sequence,
        count=len(rows),
        partitions=np.array([row.partition for _, row in rows], "<u4").tobytes(),
        offsets=np.array([row.offset for _, row in rows], "<u8").tobytes(),
        times=np.array([row.time for _, row in rows], "<i8").tobytes(),
        id_lengths=bytes(len(row.id) for _, row in rows),
        ids=b"".join(row.id for _, row in rows),
        key_lengths=puts.key_lengths if puts else b"",
        keys=puts.keys if puts else b"",
        value_lengths=puts.value_lengths if puts else b"",
        values=puts.values if puts else b"",
    )


def removal_chunk(
    versions: Sequence[Version],
    *,
    build: str,
    index: str,
    slice_number: int,
    slices: int,
    run: str,
    number: int,
    attempt: str,
    sequence: int,
    partition: int,
    heard: bool = True,
) -> RemovalChunk:
    """A chunk of heard versions of one partition, in offset order, and skips.

    Args:
        heard: False for the first micro-batch, which sends skips alone.
    """
    base = versions[0].offset if versions else 0
    return RemovalChunk(
        build=build,
        index=index,
        slice=slice_number,
        run=run,
        batch=number,
        attempt=attempt,
        sequence=sequence,
        partition=partition,
        base=base,
        heard=_heard(versions, base) if heard else None,
        skips=_skips(versions, slice_number, slices),
    )


def _heard(versions: Sequence[Version], start: int) -> Heard | None:
    if not versions:
        return None
    ids = [version.id for version in versions]
    return pack_heard(
        np.array([version.offset for version in versions], np.int64),
        start,
        ids,
        np.array([version.time for version in versions], np.int64),
        hashes_of(ids, len(ids)),
    )


def _puts(versions: Sequence[Version], slice_number: int, slices: int) -> Puts | None:
    rows = [
        (ordinal, key, version.value)
        for ordinal, version in enumerate(versions)
        for key in version.keys
        if not version.bad and slice_of_key(key, slices) == slice_number
    ]
    ordinals = np.array([ordinal for ordinal, _, _ in rows], np.uint32)
    return pack_puts(ordinals, [key for _, key, _ in rows], [value for _, _, value in rows])


def _skips(versions: Sequence[Version], slice_number: int, slices: int) -> list[Skip]:
    return [
        Skip(ordinal, version.offset, version.id, "not-json", "")
        for ordinal, version in enumerate(versions)
        if version.bad and slice_of_id(version.id, slices) == slice_number
    ]
