"""Digests of what a slice holds, by bucket of document id: worked out by slices and, independently, from the
source; and the messages by which verification, and new layouts, ask nodes. Pure.

Theory of operation
===================
A document falls into one of 2^bits *buckets* by the first bits of xxh3_64(document id). A digest has, for
one slice of one index and each bucket, sums over 64-bit hashes (modulo 2^64), so that parts can be added up
in any order:

    ENTRIES   how many forward entries there are
    CONTENT   hashes of (canonical key, id, value) of the forward entries
    RECORDS   hashes of (id, partition, offset): the versions of the documents that have entries
    FORWARD   hashes of (canonical key, id) of all forward entries
    BACK      the same of what the back index has

Index and source agree on a bucket when the first three do; the last two say whether a slice agrees with
itself. What the source cannot tell (documents whose version lies below its first offset, `floors`) is left
out of the first three and counted.

A difference hides only if its hashes sum up to the same 64-bit number: not by chance in any lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from keytide.model.timestamp import Timestamp
from keytide.wire.columns import hashes_of
from keytide.wire.entry_sums import BuiltAnswer, BuiltAsk

Sums = npt.NDArray[np.uint64]
"""u64[FIELDS, buckets]."""
Hashes = npt.NDArray[np.uint64]
Stage = Literal["forward", "back"]
"""Of reading a slice: its entries, then its back index."""

ENTRIES: Final = 0
CONTENT: Final = 1
RECORDS: Final = 2
FORWARD: Final = 3
BACK: Final = 4
FIELDS: Final = 5
MAX_BITS: Final = 16
"""65,536 buckets: 2.6 MB of sums for each slice."""
BUCKET_DOCUMENTS: Final = 256
"""Aimed at: what must be looked at one by one when a bucket differs, against the size of the sums."""

_ODD_1: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_ODD_3: Final = np.uint64(0x165667B19E3779F9)


def bits_for(documents: int) -> int:
    """How many bits of buckets suit so many documents."""
    return min(MAX_BITS, max(0, (documents // BUCKET_DOCUMENTS).bit_length()))


def buckets_of(id_hashes: Hashes, bits: int) -> npt.NDArray[np.int64]:
    """The bucket of each document, by the hash of its id. i64[n]."""
    if not bits:
        return np.zeros(len(id_hashes), np.int64)
    return (id_hashes >> np.uint64(64 - bits)).astype(np.int64)


def no_sums(bits: int) -> Sums:
    """Those of nothing."""
    return np.zeros((FIELDS, 1 << bits), np.uint64)


def entry_hashes(entry_keys: Sequence[bytes], values: Sequence[bytes] | None) -> tuple[Hashes, Hashes]:
    """Of each entry the hash of its entry key, and of entry key and value.

    Args:
        entry_keys: canonical key and document id.
        values: None when all are empty.
    """
    keys = hashes_of(entry_keys, len(entry_keys))
    if values is None or not any(values):
        return keys, keys
    filled = np.fromiter(map(bool, values), np.bool_, len(values))
    mixed = keys * _ODD_1 ^ hashes_of(values, len(values))
    return keys, np.where(filled, mixed, keys)


def record_hashes(id_hashes: Hashes, partitions: npt.ArrayLike, offsets: npt.ArrayLike) -> Hashes:
    """A hash of each document's version."""
    partition = np.asarray(partitions, np.uint64)
    offset = np.asarray(offsets, np.int64).astype(np.uint64)
    mixed = id_hashes ^ (partition * _ODD_2) ^ ((offset + np.uint64(1)) * _ODD_3)
    mixed ^= mixed >> np.uint64(29)
    result: Hashes = mixed * _ODD_1
    return result


def add(sums: Sums, field: int, buckets: npt.NDArray[np.int64], amounts: Hashes | int) -> None:
    """Add amounts to their buckets."""
    np.add.at(sums[field], buckets, np.uint64(amounts) if isinstance(amounts, int) else amounts)


def below(floors: Mapping[int, int], partition: int, offset: int) -> bool:
    """Whether a version lies below what the source still holds."""
    return offset < floors.get(partition, 0)


def differing(index: Sums, source: Sums) -> npt.NDArray[np.int64]:
    """The buckets of one slice that must be looked at, ascending.

    Args:
        index: of the slice, all fields.
        source: the first three fields count.
    """
    apart = (index[: RECORDS + 1] != source[: RECORDS + 1]).any(axis=0)
    apart |= index[FORWARD] != index[BACK]
    found: npt.NDArray[np.int64] = np.flatnonzero(apart)
    return found


# --- what a node is asked ---------------------------------------------------------------------------------

VERIFY_PATH: Final = "/internal/v1/verify"

_Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Place = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Bits = Annotated[int, msgspec.Meta(ge=0, le=MAX_BITS)]


class PinAsk(msgspec.Struct, frozen=True, array_like=True, tag="pin"):
    """Hold a snapshot of some slices of an index, READY or not, for `lease_ms` from now.

    Attributes:
        number: -1 holds nothing, and only tells what there is.
        lease_ms: 0 gives it back.
    """

    index: str
    slices: list[_Count]
    number: _Number
    incarnation: _Number
    hold: str
    lease_ms: _Count


class SlicePin(msgspec.Struct, frozen=True, array_like=True):
    """What one slice answers: whether it holds the snapshot, its timestamp, and the newest number it has; and
    of the snapshot its entries, and documents that were met in two source partitions."""

    slice: int
    held: bool
    number: int
    newest: int
    incarnation: int
    timestamp: Timestamp
    reason: str = ""
    entries: int = 0
    foreign: int = 0


class PinAnswer(msgspec.Struct, frozen=True, array_like=True, tag="pinned"):
    """One for each slice that was asked about."""

    slices: list[SlicePin]


class DigestAsk(msgspec.Struct, frozen=True, array_like=True, tag="digest"):
    """Sum up a part of one slice: forward entries, or the back index, behind `after`.

    Attributes:
        bits: of the buckets.
        floors: source partition -> first offset that the source still holds; documents whose version lies
            below are left out of what is compared with the source.
        limit: rows that are looked at, about.
    """

    index: str
    slice: _Count
    number: _Number
    incarnation: _Number
    stage: Stage
    bits: _Bits
    floors: dict[_Partition, _Place]
    after: bytes
    limit: _Count


class DuplicateKey(msgspec.Struct, frozen=True, array_like=True):
    """Two documents, one after the other in key order, that have one key in a UNIQUE index."""

    key: bytes
    """As `keytide.collation.told_key` has it."""
    ids: tuple[bytes, bytes]


class DigestAnswer(msgspec.Struct, frozen=True, array_like=True, tag="digested"):
    """Attributes:
    sums: u64[FIELDS, 2^bits], little endian.
    reached: behind which row to go on, when there is `more`.
    left_out: entries (or, of the back index, documents) of versions below the floors.
    duplicates: those found, in key order.
    """

    sums: bytes
    more: bool
    reached: bytes
    rows: int
    left_out: int
    duplicates: list[DuplicateKey]


class RowsAsk(msgspec.Struct, frozen=True, array_like=True, tag="rows"):
    """Give the rows of chosen documents among the next `limit` rows of one slice behind `after`: of documents
    in some buckets, or with some ids.

    Attributes:
        buckets, bits: ascending; empty for none.
        ids: ascending; empty for none.
        bytes_limit: the answer ends once it has about as much.
    """

    index: str
    slice: _Count
    number: _Number
    incarnation: _Number
    stage: Stage
    bits: _Bits
    buckets: list[_Count]
    ids: list[bytes]
    after: bytes
    limit: _Count
    bytes_limit: _Count


class BackRow(msgspec.Struct, frozen=True, array_like=True):
    """What the back index has of one document."""

    id: bytes
    partition: int
    offset: int
    time: int
    keys: tuple[bytes, ...]
    foreign: bool


class RowsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="rows-found"):
    """Attributes:
    entries: (id, canonical key, value) of forward entries.
    back: of documents.
    """

    entries: list[tuple[bytes, bytes, bytes]]
    back: list[BackRow]
    more: bool
    reached: bytes


# --- for a new layout that begins with the entries of the old one (R44) -----------------------------------


class EntriesAsk(msgspec.Struct, frozen=True, array_like=True, tag="entries"):
    """Give the entries of one slice behind an entry key, in key order, with their versions.

    Attributes:
        limit, bytes_limit: the answer ends once it has about as many rows, or as much.
    """

    index: str
    slice: _Count
    number: _Number
    incarnation: _Number
    after: bytes
    limit: _Count
    bytes_limit: _Count


class EntriesAnswer(msgspec.Struct, frozen=True, array_like=True, tag="entries-found"):
    """Entries by columns, one row each.

    Attributes:
        keys: canonical ones.
        partitions, offsets, times: u32[n], u64[n], i64[n], little endian.
        reached: the entry key behind which to go on, when there is `more`.
    """

    ids: list[bytes]
    keys: list[bytes]
    values: list[bytes]
    partitions: bytes
    offsets: bytes
    times: bytes
    more: bool
    reached: bytes


class SkipsAsk(msgspec.Struct, frozen=True, array_like=True, tag="skips"):
    """Give lines of the skip ledger of one slice behind (partition, offset), in that order.

    Attributes:
        after: None for its beginning.
    """

    index: str
    slice: _Count
    number: _Number
    incarnation: _Number
    after: tuple[_Partition, _Place] | None
    limit: _Count


class SkippedVersion(msgspec.Struct, frozen=True, array_like=True):
    """A line of the skip ledger."""

    partition: int
    offset: int
    id: bytes
    reason: str
    detail: str


class SkipsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="skips-found"):
    """Lines; none when there are no more."""

    lines: list[SkippedVersion]


Ask = PinAsk | DigestAsk | RowsAsk | EntriesAsk | SkipsAsk | BuiltAsk
Answer = PinAnswer | DigestAnswer | RowsAnswer | EntriesAnswer | SkipsAnswer | BuiltAnswer

encode: Final = msgspec.msgpack.Encoder().encode
ask_decoder: Final = msgspec.msgpack.Decoder(Ask)
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
