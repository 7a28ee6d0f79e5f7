"""Messages made quickly: what `projector.core.projection`, `router.core` and `keytide.wire.columns` make,
without numpy (which costs more than all else for the two or three documents of a simulated poll). A test
compares the two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from keytide.wire.messages import Heard, PutChunk, Puts, RemovalChunk, Segment, Skip
from keytide.wire.presence import presence
from projector.core.projection import SourceBatch
from tests.simulation.source import HASHES, Layout, Version, projection


def pack_heard(
    versions: Sequence[Version], start: int, batch: Sequence[Version] | None = None
) -> Heard | None:
    """The versions of a segment that begins at `start`.

    Args:
        batch: all versions of which they are some.
    """
    count = len(versions)
    if not count:
        return None
    ids = [version.id for version in versions]
    times = [version.time for version in batch or versions]
    base, same = min(times), min(times) == max(times)
    deltas = b"" if same else struct.pack(f"<{count}I", *(version.time - base for version in versions))
    return Heard(
        count,
        struct.pack(f"<{count}I", *(version.offset - start for version in versions)),
        base,
        deltas,
        bytes(map(len, ids)),
        b"".join(ids),
        struct.pack(f"<{count}Q", *(HASHES[docid] for docid in ids)),
    )


def pack_puts(versions: Sequence[Version], layout: Layout, number: int) -> Puts | None:
    """The entries of a segment for slice `number` of an index."""
    ordinals, keys, values = [], [], []
    for ordinal, version in enumerate(versions):
        for key, value in version.made_in(layout).puts[number]:
            ordinals.append(ordinal)
            keys.append(key)
            values.append(value)
    if not keys:
        return None
    count = len(keys)
    some = any(values)
    return Puts(
        count,
        struct.pack(f"<{count}I", *ordinals),
        struct.pack(f"<{count}H", *map(len, keys)),
        b"".join(keys),
        struct.pack(f"<{count}I", *map(len, values)) if some else b"",
        b"".join(values) if some else b"",
    )


def pack_skips(versions: Sequence[Version], layout: Layout, number: int) -> list[Skip]:
    """Lines for the ledger of slice `number` of an index."""
    return [
        Skip(ordinal, version.offset, version.id, *skip)
        for ordinal, version in enumerate(versions)
        if (skip := version.made_in(layout).skip[number]) is not None
    ]


def segments_of(batch: SourceBatch, layout: Layout, by_id: bool = False) -> list[Segment]:
    """One segment for each slice of an index.

    Args:
        by_id: each hears of the documents alone that their ids let it hold.
    """
    place = (batch.partition, batch.epoch, batch.start, batch.end)
    if not batch.offsets:
        return [Segment(*place, below=batch.below)] * layout.slices
    versions = [
        _version(batch, offset, docid or b"", document, time, layout)
        for offset, docid, document, time in zip(
            batch.offsets, batch.ids, batch.values, batch.times, strict=True
        )
    ]
    if by_id:
        return [_segment_by_id(batch, versions, layout, number) for number in range(layout.slices)]
    heard = pack_heard(versions, batch.start)
    return [
        Segment(
            *place,
            heard,
            pack_puts(versions, layout, number),
            pack_skips(versions, layout, number),
            batch.below,
        )
        for number in range(layout.slices)
    ]


def _segment_by_id(batch: SourceBatch, versions: Sequence[Version], layout: Layout, number: int) -> Segment:
    """That of one slice, which hears of the documents alone that it may hold. (A line of the ledger may be of
    another one.)"""
    mine = held_by(versions, layout, number)
    heard = pack_heard(mine, batch.start, versions)
    puts, skips = pack_puts(mine, layout, number), pack_skips(versions, layout, number)
    present = b""
    if len(mine) < len(versions):
        present = presence(np.array([version.offset - batch.start for version in versions]))
        skips = [replace(skip, ordinal=-1) for skip in skips]
    return Segment(
        batch.partition, batch.epoch, batch.start, batch.end, heard, puts, skips, batch.below, present
    )


def held_by(versions: Sequence[Version], layout: Layout, number: int) -> list[Version]:
    """Those that their ids let a slice hold."""
    return [version for version in versions if layout.hears(version.id, number)]


def _version(
    batch: SourceBatch, offset: int, docid: bytes, document: bytes | None, time: int, layout: Layout
) -> Version:
    made = projection(docid, document, layout)
    return Version(batch.partition, offset, batch.epoch, docid, document, time, -1, layout, made, ())


def put_chunk(
    entries: Sequence[tuple[bytes, bytes, Version]], build: str, index: str, number: int, name: ChunkName
) -> PutChunk:
    """A chunk of (canonical key, value, version), sorted."""
    count = len(entries)
    run, batch, attempt, sequence = name
    return PutChunk(
        build,
        index,
        number,
        run,
        batch,
        attempt,
        sequence,
        count,
        struct.pack(f"<{count}I", *(version.partition for _, _, version in entries)),
        struct.pack(f"<{count}Q", *(version.offset for _, _, version in entries)),
        struct.pack(f"<{count}q", *(version.time for _, _, version in entries)),
        bytes(len(version.id) for _, _, version in entries),
        b"".join(version.id for _, _, version in entries),
        struct.pack(f"<{count}H", *(len(key) for key, _, _ in entries)),
        b"".join(key for key, _, _ in entries),
        struct.pack(f"<{count}I", *(len(value) for _, value, _ in entries)),
        b"".join(value for _, value, _ in entries),
    )


def removal_chunk(
    versions: Sequence[Version],
    layout: Layout,
    build: str,
    index: str,
    number: int,
    name: ChunkName,
    heard: bool,
) -> RemovalChunk | None:
    """A chunk of what one slice hears of the versions of one partition, in offset order, and of its lines of
    the ledger; None when there is neither.

    Args:
        heard: False for the first micro-batch, which sends skips alone.
    """
    mine = held_by(versions, layout, number)
    others = [version for version in versions if version not in mine]
    skips = pack_skips(mine, layout, number)
    skips += [replace(skip, ordinal=-1) for skip in pack_skips(others, layout, number)]
    if not skips and not (heard and mine):
        return None
    base = mine[0].offset if mine else skips[0].offset
    run, batch, attempt, sequence = name
    return RemovalChunk(
        build,
        index,
        number,
        run,
        batch,
        attempt,
        sequence,
        versions[0].partition,
        base,
        pack_heard(mine, base) if heard else None,
        skips,
    )


ChunkName = tuple[str, int, str, int]
"""(run, batch, attempt, sequence)."""
