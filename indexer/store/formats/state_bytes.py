"""The bytes of a slice's state and counts, in the base's meta table and in undo files."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from indexer.store.interface import Applied, Counts, StoreDamagedError

encode_state = msgspec.msgpack.Encoder().encode
_applied = msgspec.msgpack.Decoder(Applied)
_counts = msgspec.msgpack.Decoder(Counts)

_T = TypeVar("_T")


def decode_applied(data: bytes) -> Applied:
    """The state in `data`.

    Raises:
        StoreDamagedError: it is none.
    """
    return _decode(_applied, data)


def decode_counts(data: bytes) -> Counts:
    """The counts in `data`.

    Raises:
        StoreDamagedError: they are none.
    """
    return _decode(_counts, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise StoreDamagedError(f"a state of a slice cannot be read: {error} in {data[:80].hex()}") from error
