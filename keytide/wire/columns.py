"""Columns of messages: packing and reading the byte strings of `Heard` and `Puts`, and cutting segments at
offsets.

Theory of operation
===================
A message carries thousands of documents as one byte string per field (`keytide.wire.messages`): fixed-width
numbers, little endian, and for names and keys a column of lengths beside all the bytes in one. numpy reads
the numbers in place (`numpy.frombuffer`); of the bytes a reader cuts out what it needs, all (`heard_ids`)
or a chosen few (`pick`).

Segments are cut at offsets (R11: at T; R10: where one overlaps what was heard). Ordinals of
puts and skips count from the first document of their own segment, so the later part is numbered anew.

Everything here is pure and vectorised; nothing loops over documents but the slicing of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash
from msgspec.structs import replace

from keytide.errors import invariant
from keytide.wire.messages import Heard, Puts, Segment
from keytide.wire.presence import is_present, part_of

Array: TypeAlias = npt.NDArray[Any]
U32_END = 2**32


def hashes_of(items: Iterable[bytes], count: int) -> npt.NDArray[np.uint64]:
    """xxh3_64 of each item: the hash that routing and filters use everywhere. u64[count]."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, items), np.uint64, count)


def lengths_of(items: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Bytes of each item. i64[n]."""
    return np.fromiter(map(len, items), np.int64, len(items))


# --- reading ------------------------------------------------------------------------------------------------


def unpack(lengths: Array, blob: bytes) -> list[bytes]:
    """All items of a column of bytes, in order.

    Args:
        lengths: [n], bytes of each.
        blob: the items, one after the other.
    """
    if (width := _common_width(lengths)) is not None:
        equal: list[bytes] = _equal_items(width, blob).tolist()
        return equal
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    items: list[bytes] = []
    start = 0
    for end in ends:
        items.append(blob[start:end])
        start = end
    return items


def pick(lengths: Array, blob: bytes, ordinals: Array) -> list[bytes]:
    """The items at `ordinals`, in that order; the cost of slicing is theirs alone."""
    if (width := _common_width(lengths)) is not None:
        equal: list[bytes] = _equal_items(width, blob)[ordinals].tolist()
        return equal
    ends = np.cumsum(lengths, dtype=np.int64)
    chosen = ends[ordinals]
    starts = chosen - lengths[ordinals]
    return [blob[start:end] for start, end in zip(starts.tolist(), chosen.tolist(), strict=True)]


def _common_width(lengths: Array) -> int | None:
    """The length of all items, if they have one and it is not 0: numpy then cuts them, four times as fast."""
    if not len(lengths):
        return None
    width = int(lengths[0])
    return width if width and (len(lengths) == 1 or bool((lengths == width).all())) else None


def _equal_items(width: int, blob: bytes) -> Any:
    """The items as an array of raw bytes of this width (which, unlike `S`, keeps zero bytes at the end)."""
    return np.frombuffer(blob, np.dtype((np.void, width)))


def heard_offsets(heard: Heard, start: int) -> npt.NDArray[np.int64]:
    """Absolute offsets of the versions of a segment that begins at `start`. i64[n]."""
    return np.frombuffer(heard.offsets, "<u4").astype(np.int64) + start


def heard_times(heard: Heard) -> npt.NDArray[np.int64]:
    """Record timestamps in milliseconds. i64[n]."""
    if not heard.times:
        return np.full(heard.count, heard.time_base, np.int64)
    kind = "<u4" if len(heard.times) == 4 * heard.count else "<i8"
    return np.frombuffer(heard.times, kind).astype(np.int64) + heard.time_base


def heard_hashes(heard: Heard) -> npt.NDArray[np.uint64]:
    """Hashes of the document ids, in place. u64[n]."""
    return np.frombuffer(heard.hashes, "<u8")


def heard_ids(heard: Heard, ordinals: Array | None = None) -> list[bytes]:
    """The document ids: all, or those at `ordinals` (for the few that pass a filter)."""
    lengths = np.frombuffer(heard.id_lengths, np.uint8)
    if ordinals is None:
        return unpack(lengths, heard.ids)
    return pick(lengths, heard.ids, ordinals)


def has_documents(segment: Segment, start: int, end: int) -> bool:
    """Whether the source has a document at offsets [start, end) of a segment, heard or not."""
    low, high = max(start, segment.start) - segment.start, end - segment.start
    if segment.present:
        return is_present(segment.present, low, high)
    if segment.heard is None or low >= high:
        return False
    offsets = np.frombuffer(segment.heard.offsets, "<u4")
    at = int(np.searchsorted(offsets, low))
    return at < len(offsets) and int(offsets[at]) < high


class PutsView(NamedTuple):
    """`Puts` as a reader uses it.

    Attributes:
        ordinals: u32[m], ascending index into the segment's heard documents.
        keys: the canonical keys.
        values: the entry values; None when every value is empty.
    """

    ordinals: npt.NDArray[np.uint32]
    keys: list[bytes]
    values: list[bytes] | None


def puts_columns(puts: Puts) -> PutsView:
    """All entries of `puts`."""
    values = None
    if puts.value_lengths:
        values = unpack(np.frombuffer(puts.value_lengths, "<u4"), puts.values)
    keys = unpack(np.frombuffer(puts.key_lengths, "<u2"), puts.keys)
    return PutsView(np.frombuffer(puts.ordinals, "<u4"), keys, values)


# --- packing ------------------------------------------------------------------------------------------------


def pack_times(times: Array) -> tuple[int, bytes]:
    """`time_base` and `times` of a Heard from record timestamps. i64[n], n > 0."""
    base = int(times.min())
    deltas = times - base
    greatest = int(deltas.max())
    if greatest == 0:
        return base, b""
    return base, deltas.astype("<u4" if greatest < U32_END else "<i8").tobytes()


def pack_heard(offsets: Array, start: int, ids: Sequence[bytes], times: Array, hashes: Array) -> Heard:
    """The columns of n > 0 versions in offset order.

    Args:
        offsets: i64[n], absolute, ascending, from `start` on.
        start: where the segment begins.
        ids: 1 to 250 bytes each.
        times: i64[n], milliseconds.
        hashes: u64[n], `hashes_of(ids)`.
    """
    relative = offsets - start
    invariant(
        int(relative[0]) >= 0 and int(relative[-1]) < U32_END,
        "SegmentSpan",
        lambda: f"offsets {offsets[0]} to {offsets[-1]} do not fit a segment that starts at {start}",
    )
    time_base, packed_times = pack_times(times)
    return Heard(
        count=len(ids),
        offsets=relative.astype("<u4").tobytes(),
        time_base=time_base,
        times=packed_times,
        id_lengths=lengths_of(ids).astype(np.uint8).tobytes(),
        ids=b"".join(ids),
        hashes=hashes.astype("<u8", copy=False).tobytes(),
    )


def pack_puts(ordinals: Array, keys: Sequence[bytes], values: Sequence[bytes] | None) -> Puts | None:
    """The columns of entries by ascending ordinal; None for no entries."""
    if not keys:
        return None
    some = values is not None and any(values)
    return Puts(
        count=len(keys),
        ordinals=ordinals.astype("<u4", copy=False).tobytes(),
        key_lengths=lengths_of(keys).astype("<u2").tobytes(),
        keys=b"".join(keys),
        value_lengths=lengths_of(values).astype("<u4").tobytes() if some and values is not None else b"",
        values=b"".join(values) if some and values is not None else b"",
    )


def chosen(heard: Heard, ordinals: Array) -> Heard:
    """Some of the heard documents, one or more.

    Args:
        ordinals: of those, ascending.
    """
    width = len(heard.times) // heard.count
    times = np.frombuffer(heard.times, np.dtype((np.void, width)))[ordinals].tobytes() if width else b""
    lengths = np.frombuffer(heard.id_lengths, np.uint8)
    return Heard(
        count=len(ordinals),
        offsets=np.frombuffer(heard.offsets, "<u4")[ordinals].tobytes(),
        time_base=heard.time_base,
        times=times,
        id_lengths=lengths[ordinals].tobytes(),
        ids=b"".join(pick(lengths, heard.ids, ordinals)),
        hashes=np.frombuffer(heard.hashes, "<u8")[ordinals].tobytes(),
    )


# --- cutting ------------------------------------------------------------------------------------------------


def cut_segment(segment: Segment, offset: int) -> tuple[Segment, Segment]:
    """The part below `offset` and the part from it on; either may be empty ([x, x) without documents).

    An offset outside of the segment cuts nothing: one of the parts is then the segment itself.
    """
    if offset <= segment.start:
        return _empty(segment, segment.start), segment
    if offset >= segment.end:
        return segment, _empty(segment, segment.end)
    middle, entries = _boundaries(segment, offset)
    count = segment.heard.count if segment.heard else 0
    lower_skips = [skip for skip in segment.skips if skip.offset < offset]
    upper_skips = [
        replace(skip, ordinal=skip.ordinal - middle if skip.ordinal >= 0 else -1)
        for skip in segment.skips
        if skip.offset >= offset
    ]
    heard, puts = segment.heard, segment.puts
    lower = replace(
        segment,
        end=offset,
        heard=_part_of_heard(heard, 0, middle, 0),
        puts=_part_of_puts(puts, 0, entries, 0),
        skips=lower_skips,
        present=part_of(segment.present, 0, offset - segment.start),
    )
    upper = replace(
        segment,
        start=offset,
        heard=_part_of_heard(heard, middle, count, offset - segment.start),
        puts=_part_of_puts(puts, entries, puts.count if puts else 0, middle),
        skips=upper_skips,
        below=segment.epoch,
        present=part_of(segment.present, offset - segment.start, segment.end - segment.start),
    )
    return lower, upper


def segment_from(segment: Segment, offset: int) -> Segment:
    """What of the segment lies at or past `offset` (R10: an overlapping segment is cut)."""
    return cut_segment(segment, offset)[1]


def _empty(segment: Segment, at: int) -> Segment:
    return Segment(segment.partition, segment.epoch, at, at)


def _boundaries(segment: Segment, offset: int) -> tuple[int, int]:
    """How many documents, and how many entries, lie below `offset`."""
    if segment.heard is None:
        return 0, 0
    offsets = np.frombuffer(segment.heard.offsets, "<u4")
    middle = int(np.searchsorted(offsets, offset - segment.start))
    if segment.puts is None:
        return middle, 0
    return middle, int(np.searchsorted(np.frombuffer(segment.puts.ordinals, "<u4"), middle))


def _part_of_heard(heard: Heard | None, low: int, high: int, moved: int) -> Heard | None:
    """Documents `low` to `high` (exclusive) of a Heard, for a segment that starts `moved` further on."""
    if heard is None or low >= high:
        return None
    lengths = np.frombuffer(heard.id_lengths, np.uint8)
    begin = int(lengths[:low].sum(dtype=np.int64))
    end = begin + int(lengths[low:high].sum(dtype=np.int64))
    width = len(heard.times) // heard.count
    return Heard(
        count=high - low,
        offsets=(np.frombuffer(heard.offsets, "<u4")[low:high] - np.uint32(moved)).tobytes(),
        time_base=heard.time_base,
        times=heard.times[low * width : high * width],
        id_lengths=heard.id_lengths[low:high],
        ids=heard.ids[begin:end],
        hashes=heard.hashes[8 * low : 8 * high],
    )


def _part_of_puts(puts: Puts | None, low: int, high: int, moved: int) -> Puts | None:
    """Entries `low` to `high` (exclusive) of a Puts, their ordinals less `moved`."""
    if puts is None or low >= high:
        return None
    lengths = np.frombuffer(puts.key_lengths, "<u2")
    begin = int(lengths[:low].sum(dtype=np.int64))
    end = begin + int(lengths[low:high].sum(dtype=np.int64))
    value_lengths, values = b"", b""
    if puts.value_lengths:
        sizes = np.frombuffer(puts.value_lengths, "<u4")
        value_begin = int(sizes[:low].sum(dtype=np.int64))
        value_end = value_begin + int(sizes[low:high].sum(dtype=np.int64))
        if value_end > value_begin:
            value_lengths = puts.value_lengths[4 * low : 4 * high]
            values = puts.values[value_begin:value_end]
    return Puts(
        count=high - low,
        ordinals=(np.frombuffer(puts.ordinals, "<u4")[low:high] - np.uint32(moved)).tobytes(),
        key_lengths=puts.key_lengths[2 * low : 2 * high],
        keys=puts.keys[begin:end],
        value_lengths=value_lengths,
        values=values,
    )
