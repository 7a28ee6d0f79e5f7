"""Routing: the entries of one index to its slices, and one segment per slice.

Theory of operation
===================
A partition is the hash of the partition key modulo the number of partitions, or the range between two splits
that the partition key falls into; of several slices, the hash of the document id says which
(`keytide.catalog.partitioning` has the rules, and answers for single keys). Every slice of an index gets a
segment for every batch, with the full range of offsets [start, end), even when the batch brings it nothing:
it knows how far it has heard (ADR 2), and hears of every document that it may hold under another key
(`router.recipients`). A line of the skip ledger goes to the slice of hash(document id).

The hash, the order of encoded values, and the slice they give, are on the disks of running clusters: they
never change.

R20, limits: `bounded` splits and groups segments into messages of at most about a number of bytes, at
offset boundaries. One version that is larger alone stays whole here and goes out in parts
(`keytide.wire.parts.split`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from keytide.catalog.partitioning import Partitioning
from keytide.errors import invariant
from keytide.wire.columns import cut_segment, hashes_of, heard_hashes, pack_puts
from keytide.wire.messages import Puts, Segment, Skip
from router.recipients import BatchDocuments, SliceDocuments

NO_HASHES: Final[npt.NDArray[np.uint64]] = np.zeros(0, np.uint64)

_SEGMENT_BYTES: Final = 100
"""What a segment takes beside its documents."""
_DOCUMENT_BYTES: Final = 4 + 8 + 1 + 8
"""What one heard document takes beside its id: offset, time, length, hash."""
_ENTRY_BYTES: Final = 4 + 2 + 4
"""What one entry takes beside its key and value."""
_SKIP_BYTES: Final = 1 + 5 + 9 + 3 * 5
"""What a line of the skip ledger takes beside its id and texts, at most, in MessagePack: that it is an array,
the ordinal, the offset, and how long each of the three is."""
_CHARACTER_BYTES: Final = 4
"""What a character takes in UTF-8, at most."""


class Entries(Protocol):
    """What is routed: one index's part of a projected batch (`projector.core.projection.Projected`)."""

    @property
    def ordinals(self) -> npt.NDArray[np.uint32]: ...
    @property
    def keys(self) -> list[bytes]: ...
    @property
    def partition_keys(self) -> list[bytes]: ...
    @property
    def values(self) -> list[bytes] | None: ...
    @property
    def skips(self) -> list[Skip]: ...


def hash_modulo(items: Sequence[bytes], count: int) -> npt.NDArray[np.uint16]:
    """The hash (xxh3_64) of each item modulo `count`: of a partition key that is its partition, of the
    document id of a line of the skip ledger its slice. u16[n]."""
    return (hashes_of(items, len(items)) % np.uint64(count)).astype(np.uint16)


def slices_of(
    partition_keys: Sequence[bytes], rule: Partitioning, id_hashes: npt.NDArray[np.uint64] = NO_HASHES
) -> npt.NDArray[np.uint16]:
    """The slice of each entry, by its partition key. u16[n].

    Args:
        id_hashes: hash (xxh3_64) of each entry's document id, u64[n]; needed where partitions are of several
            slices.
    """
    invariant(not rule.unknown, "SplitsKnown", "entries are routed before their splits are found")
    invariant(
        len(rule.splits) < rule.partitions,
        "SplitsKnown",
        "entries are routed by splits of another definition",
    )
    if rule.splits:
        # Fixed widths compare like the bytes themselves: keys and splits are code words, none of which is a
        # prefix of another, so they differ within the shorter one, before any byte that is cut or filled in.
        kind = f"S{max(map(len, rule.splits))}"
        splits = np.array(rule.splits, kind)
        found = np.searchsorted(splits, np.array(partition_keys, kind), side="right").astype(np.uint16)
    else:
        found = hash_modulo(partition_keys, rule.partitions)
    if not rule.spread:
        return found
    number = id_hashes % np.array(rule.spread, np.uint64)[found]
    return (np.array(rule.starts, np.uint16)[found] + number).astype(np.uint16)


def route(
    entries: Entries, rule: Partitioning, hashes: npt.NDArray[np.uint64] = NO_HASHES
) -> list[tuple[Puts | None, list[Skip]]]:
    """What goes to each slice: its entries, by ascending ordinal, and its lines of the skip ledger.

    Args:
        hashes: of the ids of the batch's heard documents; needed where partitions are of several slices.
    """
    slices = rule.slices
    routed: list[tuple[Puts | None, list[Skip]]] = [(None, []) for _ in range(slices)]
    if entries.keys:
        of_ids = hashes[entries.ordinals] if rule.spread else hashes
        of_entry = slices_of(entries.partition_keys, rule, of_ids)
        order = np.argsort(of_entry, kind="stable")  # a radix sort, for 16 bits
        ends = np.cumsum(np.bincount(of_entry, minlength=slices)).tolist()
        ordinals = entries.ordinals[order]
        keys = list(map(entries.keys.__getitem__, order.tolist()))
        values = None if entries.values is None else list(map(entries.values.__getitem__, order.tolist()))
        start = 0
        for number, end in enumerate(ends):
            if end > start:
                some = None if values is None else values[start:end]
                routed[number] = (pack_puts(ordinals[start:end], keys[start:end], some), [])
            start = end
    if entries.skips:
        of_skip = hash_modulo([skip.id for skip in entries.skips], slices).tolist()
        for skip, number in zip(entries.skips, of_skip, strict=True):
            routed[number][1].append(skip)
    return routed


def segments(
    entries: Entries, rule: Partitioning, empty: Segment, batch: BatchDocuments, *, by_id: bool = False
) -> list[Segment]:
    """One segment per slice, in slice order; a sync message where there is nothing to say.

    Args:
        rule: of the index.
        empty: the sync message of the batch that was projected.
        by_id: `IndexRecord.hears_by_id`; else every slice hears every document.
    """
    hashes = NO_HASHES if batch.heard is None else heard_hashes(batch.heard)
    routed = route(entries, rule, hashes)
    return [
        _filled(empty, puts, skips, documents)
        for (puts, skips), documents in zip(routed, batch.of(rule, by_id), strict=True)
    ]


def _filled(empty: Segment, puts: Puts | None, skips: list[Skip], documents: SliceDocuments) -> Segment:
    """The segment of one slice, from puts and skips with ordinals of the whole batch."""
    ordinals = documents.ordinals
    if ordinals is not None:
        if puts is not None:
            puts = replace(puts, ordinals=_places(ordinals, np.frombuffer(puts.ordinals, "<u4")))
        # A line falls to a slice by its id alone, and that may not hear of its document: `offset` names it.
        skips = [replace(skip, ordinal=-1) for skip in skips]
    return replace(empty, heard=documents.heard, puts=puts, skips=skips, present=documents.present)


def _places(ordinals: npt.NDArray[np.int64], put: npt.NDArray[np.uint32]) -> bytes:
    """Where the documents of entries are among those that their slice hears of. u32[m]."""
    found = np.searchsorted(ordinals, put)
    heard = bool(len(ordinals)) and bool((ordinals[np.minimum(found, len(ordinals) - 1)] == put).all())
    invariant(heard, "RoutedByIds", "entries go to a slice that does not hear of their documents")
    return found.astype("<u4").tobytes()


def segment_bytes(segment: Segment) -> int:
    """About how many bytes the segment takes in a message (never less)."""
    return (
        _bytes_without_documents(segment)
        + int(_document_sizes(segment).sum())
        + sum(map(_skip_bytes, segment.skips))
    )


def bounded(all_segments: Sequence[Segment], limit: int) -> list[list[Segment]]:
    """The segments for one slice as the contents of one or more messages of about `limit` bytes or less each.

    Order is kept, so the segments of one source partition stay adjacent. A piece of one document may be
    larger than `limit`.
    """
    messages: list[list[Segment]] = [[]]
    room = limit
    for segment in all_segments:
        for piece in split_segment(segment, limit):
            size = segment_bytes(piece)
            if messages[-1] and size > room:
                messages.append([])
                room = limit
            messages[-1].append(piece)
            room -= size
    return messages


def split_segment(segment: Segment, limit: int) -> list[Segment]:
    """Adjacent pieces of about `limit` bytes or less, cut between documents; a larger document is a piece
    of its own."""
    if segment_bytes(segment) <= limit or segment.heard is None:
        return [segment]
    offsets = np.frombuffer(segment.heard.offsets, "<u4").astype(np.int64) + segment.start
    sizes = _document_sizes(segment)
    positions = {offset: ordinal for ordinal, offset in enumerate(offsets.tolist())}
    for skip in segment.skips:  # one without a document counts with the document that follows it
        ordinal = positions.get(skip.offset, int(np.searchsorted(offsets, skip.offset)))
        sizes[min(ordinal, len(sizes) - 1)] += _skip_bytes(skip)
    pieces: list[Segment] = []
    least = _bytes_without_documents(segment)
    rest, used = segment, least
    for ordinal, size in enumerate(sizes.tolist()):
        if used > least and used + size > limit:
            piece, rest = cut_segment(rest, int(offsets[ordinal]))
            pieces.append(piece)
            used = least
        used += size
    pieces.append(rest)
    return pieces


def _bytes_without_documents(segment: Segment) -> int:
    return _SEGMENT_BYTES + len(segment.present)


def _document_sizes(segment: Segment) -> npt.NDArray[np.int64]:
    """Bytes of each heard document with its entries. i64[n]."""
    heard, puts = segment.heard, segment.puts
    if heard is None:
        return np.zeros(0, np.int64)
    sizes = np.frombuffer(heard.id_lengths, np.uint8).astype(np.int64) + _DOCUMENT_BYTES
    if puts is not None:
        entry_sizes = np.frombuffer(puts.key_lengths, "<u2").astype(np.int64) + _ENTRY_BYTES
        if puts.value_lengths:
            entry_sizes += np.frombuffer(puts.value_lengths, "<u4")
        np.add.at(sizes, np.frombuffer(puts.ordinals, "<u4"), entry_sizes)
    return sizes


def _skip_bytes(skip: Skip) -> int:
    # (Reasons are ASCII.)
    return _SKIP_BYTES + len(skip.id) + len(skip.reason) + _CHARACTER_BYTES * len(skip.detail)
