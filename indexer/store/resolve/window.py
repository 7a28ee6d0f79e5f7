"""Segments and chunks of a window, read against the filter into `WindowDocuments`.

Theory of operation
===================
A slice may hear of every document of the keyspace, and few concern it: those with entries for this slice,
and those that it may hold under another key. So the columns of all segments of a window are joined, tested
against the filter at once, and only the relevant documents become Python bytes.

The filter is asked before this window's own puts are added to it (may the document be held already? then it
must be looked up) and after (a document that was put and then heard again without a put is relevant).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.resolve.documents import Ints, WindowDocuments, newest
from keytide.wire.columns import hashes_of, heard_hashes, heard_offsets, heard_times, pick, unpack
from keytide.wire.messages import PutChunk, Puts, RemovalChunk, Segment


def from_segments(segments: Sequence[Segment], held: IdFilter) -> WindowDocuments:
    """The documents of a window that concern this slice. Adds the ids of entries to the filter.

    Args:
        segments: those of one partition in offset order.
    """
    heard = [(segment, segment.heard) for segment in segments if segment.heard is not None]
    if not heard:
        return _nothing()
    counts = [columns.count for _, columns in heard]
    bases = np.cumsum([0, *counts])
    hashes = np.concatenate([heard_hashes(columns) for _, columns in heard])
    ordinals, keys_of, values = _joined_puts([segment.puts for segment, _ in heard], bases)

    maybe_held = held.test(hashes)
    held.add(hashes[_steps(ordinals)])
    relevant = np.flatnonzero(held.test(hashes)) if len(ordinals) else np.flatnonzero(maybe_held)
    id_lengths = np.frombuffer(b"".join(columns.id_lengths for _, columns in heard), np.uint8)
    ids = pick(id_lengths, b"".join(columns.ids for _, columns in heard), relevant)
    partitions = np.repeat(np.array([segment.partition for segment, _ in heard], np.int64), counts)[relevant]
    offsets = np.concatenate([heard_offsets(columns, segment.start) for segment, columns in heard])[relevant]
    times = np.concatenate([heard_times(columns) for _, columns in heard])[relevant]
    place = np.full(bases[-1], -1, np.int64)
    place[relevant] = np.arange(len(relevant))
    return newest(
        ids,
        partitions,
        offsets,
        times,
        maybe_held[relevant],
        hashes[relevant],
        place[ordinals],
        keys_of,
        values,
    )


def from_chunk_puts(chunk_run: Sequence[PutChunk], held: IdFilter) -> WindowDocuments:
    """The documents of a run of put chunks. Adds their ids to the filter."""
    joined = b"".join
    ids = unpack(
        np.frombuffer(joined(c.id_lengths for c in chunk_run), np.uint8), joined(c.ids for c in chunk_run)
    )
    hashes = hashes_of(ids, len(ids))
    maybe_held = held.test(hashes)
    held.add(hashes)
    keys, values = entry_columns(
        joined(c.key_lengths for c in chunk_run),
        joined(c.keys for c in chunk_run),
        [(c.count, c.value_lengths, c.values) for c in chunk_run],
    )
    return newest(
        ids,
        np.frombuffer(joined(c.partitions for c in chunk_run), "<u4").astype(np.int64),
        np.frombuffer(joined(c.offsets for c in chunk_run), "<u8").astype(np.int64),
        np.frombuffer(joined(c.times for c in chunk_run), "<i8").astype(np.int64),
        maybe_held,
        hashes,
        np.arange(len(ids)),
        keys,
        values,
    )


def from_chunk_removals(removals: Iterable[RemovalChunk], held: IdFilter) -> WindowDocuments:
    """The documents of removal chunks that may be held: heard, without entries."""
    segments = [
        Segment(chunk.partition, -1, chunk.base, chunk.base, chunk.heard, None, chunk.skips)
        for chunk in removals
    ]
    return from_segments(segments, held)


def _nothing() -> WindowDocuments:
    none = np.empty(0, np.int64)
    return WindowDocuments(
        [], {}, none, none, none, np.empty(0, np.bool_), np.empty(0, np.uint64), none, [], None
    )


def _joined_puts(
    puts: Sequence[Puts | None], bases: npt.NDArray[np.int64]
) -> tuple[Ints, list[bytes], list[bytes] | None]:
    """Ordinals (over all segments), canonical keys and values of the entries of a window."""
    there = [(columns, int(base)) for columns, base in zip(puts, bases, strict=False) if columns is not None]
    if not there:
        return np.empty(0, np.int64), [], None
    ordinals = [np.frombuffer(columns.ordinals, "<u4").astype(np.int64) + base for columns, base in there]
    keys, values = entry_columns(
        b"".join(columns.key_lengths for columns, _ in there),
        b"".join(columns.keys for columns, _ in there),
        [(columns.count, columns.value_lengths, columns.values) for columns, _ in there],
    )
    return np.concatenate(ordinals), keys, values


def entry_columns(
    key_lengths: bytes, keys: bytes, values: Sequence[tuple[int, bytes, bytes]]
) -> tuple[list[bytes], list[bytes] | None]:
    """Keys and values of the entries of several messages.

    Args:
        values: (number of entries, value lengths, values) of each message; lengths may be b"" for none.

    Returns:
        The keys, and the values or None when all are empty.
    """
    pieces = unpack(np.frombuffer(key_lengths, "<u2"), keys)
    if not any(lengths for _, lengths, _ in values):
        return pieces, None
    lengths = [
        np.frombuffer(lengths, "<u4") if lengths else np.zeros(count, "<u4") for count, lengths, _ in values
    ]
    return pieces, unpack(np.concatenate(lengths), b"".join(data for _, _, data in values))


def _steps(ordinals: Ints) -> Ints:
    """Each ordinal once (they ascend)."""
    if len(ordinals) < 2:
        return ordinals
    return ordinals[np.concatenate(([True], ordinals[1:] != ordinals[:-1]))]
