"""Bytes of the long table: entries whose keys are too long for LMDB (`keytide.model.entry`)."""

from __future__ import annotations

from struct import Struct
from typing import Final

from indexer.store.formats.records import PUT, REMOVED
from indexer.store.interface import StoreDamagedError
from keytide.model.entry import long_key

_LENGTH: Final = Struct("<H")
_LONG_HEAD: Final = 1 + _LENGTH.size


def long_table_key(entry_key: bytes) -> bytes:
    """The long table's key of a long entry key: its first bytes and a digest. The whole entry key stands in
    for the canonical one, so that all groups have prefixes of one length."""
    return long_key(entry_key, b"")


def long_value(entry_key: bytes, value: bytes) -> bytes:
    """The long table's value of a long entry. `value` is tagged; a removal marker stays as it is."""
    if value == REMOVED:
        return REMOVED
    return PUT + _LENGTH.pack(len(entry_key)) + entry_key + value[1:]


def unpack_long(value: bytes) -> tuple[bytes, bytes]:
    """Entry key and tagged value of a row of the long table (not a marker).

    Raises:
        StoreDamagedError: it is none.
    """
    length = _LENGTH.unpack_from(value, 1)[0] if len(value) >= _LONG_HEAD else len(value)
    end = _LONG_HEAD + length
    if end > len(value):
        raise StoreDamagedError(f"a row of the long table ends within its key: {value[:80].hex()}")
    return value[_LONG_HEAD:end], PUT + value[end:]
