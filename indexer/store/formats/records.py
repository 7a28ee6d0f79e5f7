"""Bytes of the back index and of the skip ledger.

A *record* is a back index value: HEADER (22 bytes, little endian), then the document's canonical keys. Its
first byte is the level tag (`PUT`), as everywhere in a store; a removal marker is the single byte `REMOVED`.
With `MANY` the keys are each preceded by their length (u16), else there is exactly one and it is the rest. No
key at all (with MANY) is a remembered tombstone. One key is by far the most frequent case, and its entry key
is a slice and a concatenation.

Headers are packed and read thousands at a time through numpy (`HEADER`).

What is read here was written here. Bytes that nothing here could have written are damage
(`StoreDamagedError`), however they came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.store.interface import SkipLine, StoreDamagedError, StoredDocument

PUT: Final = b"\x01"
"""First byte of every value that is there, in every table and level."""
REMOVED: Final = b"\x00"
"""A removal marker: hides what older levels hold. Only in deltas."""

MANY: Final = 1
FOREIGN: Final = 2

HEADER: Final = np.dtype(
    [("tag", "u1"), ("flags", "u1"), ("partition", "<u4"), ("time", "<i8"), ("offset", "<u8")]
)
HEADER_BYTES: Final = HEADER.itemsize
_RAW_HEADER: Final = np.dtype((np.void, HEADER_BYTES))
_HEADER: Final = Struct("<BBIqQ")
_LENGTH: Final = Struct("<H")
_LEDGER_KEY: Final = Struct(">IQ")

_encode_line = msgspec.msgpack.Encoder().encode
_decode_line = msgspec.msgpack.Decoder(SkipLine).decode


def pack_headers(
    partitions: npt.NDArray[np.int64], times: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> list[bytes]:
    """Headers of documents with one key each, without flags."""
    headers = np.zeros(len(partitions), HEADER)
    headers["tag"] = 1
    headers["partition"] = partitions
    headers["time"] = times
    headers["offset"] = offsets
    return cast(list[bytes], headers.view(_RAW_HEADER).tolist())


def read_headers(records: Sequence[bytes]) -> npt.NDArray[np.void]:
    """The headers of records as a structured array of dtype `HEADER`.

    Raises:
        StoreDamagedError: one of them is no record.
    """
    data = b"".join([record[:HEADER_BYTES] for record in records])
    headers = np.frombuffer(data, HEADER) if len(data) == HEADER_BYTES * len(records) else None
    if headers is None or (headers["tag"] != 1).any():
        raise StoreDamagedError("a back index row is no record")
    return headers


def pack_record(held: StoredDocument) -> bytes:
    """The record of one document."""
    flags = (FOREIGN if held.foreign else 0) | (MANY if len(held.keys) != 1 else 0)
    header = _HEADER.pack(1, flags, held.partition, held.time, held.offset)
    if len(held.keys) == 1:
        return header + held.keys[0]
    return header + b"".join(_LENGTH.pack(len(key)) + key for key in held.keys)


def unpack_record(record: bytes) -> StoredDocument:
    """The document behind a record (not a marker).

    Raises:
        StoreDamagedError: it is no record.
    """
    try:
        tag, flags, partition, time, offset = _HEADER.unpack_from(record)
        keys = record_keys(record, flags)
    except error as failure:
        raise StoreDamagedError(f"a back index row is no record: {record[:80].hex()}") from failure
    if tag != 1 or flags > MANY | FOREIGN:
        raise StoreDamagedError(f"a back index row is no record: {record[:80].hex()}")
    return StoredDocument(partition, offset, time, keys, bool(flags & FOREIGN))


def record_keys(record: bytes, flags: int) -> tuple[bytes, ...]:
    """The canonical keys in a record."""
    if not flags & MANY:
        return (record[HEADER_BYTES:],)
    keys: list[bytes] = []
    position = HEADER_BYTES
    while position < len(record):
        (length,) = _LENGTH.unpack_from(record, position)
        position += 2
        keys.append(record[position : position + length])
        position += length
    if position > len(record):
        raise StoreDamagedError(f"a back index row ends within a key: {record[:80].hex()}")
    return tuple(keys)


def ledger_key(partition: int, offset: int) -> bytes:
    """The key of a skip ledger line: in order of partition, then offset."""
    return _LEDGER_KEY.pack(partition, offset)


def pack_line(line: SkipLine) -> bytes:
    return PUT + _encode_line(line)


def unpack_line(value: bytes) -> SkipLine:
    """A line of the skip ledger.

    Raises:
        StoreDamagedError: it is none.
    """
    try:
        return _decode_line(memoryview(value)[1:])
    except msgspec.MsgspecError as failure:
        raise StoreDamagedError(f"a row of the skip ledger is no line: {value[:80].hex()}") from failure
