"""Canonical keys that are a GeoJSON point of two coordinates, and nothing else: what nearly every key of a
spatial index is. Their bytes are of one length (`keytide.collation`), and so the coordinates are found in
them without decoding, one by one and in columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from keytide.collation import encode_part
from keytide.collation.layout import TAG_NEGATIVE, TAG_NUMBER
from keytide.geometry import Frame, point_cell
from keytide.geometry.geojson import MOST_COORDINATES
from keytide.model.entry import pack_keyed_value

_NUMBER: Final = 10
"""Bytes of a double: tag, bits, no residual."""
_TAGS: Final = (TAG_NEGATIVE, TAG_NUMBER)
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_PLAIN: Final = encode_part({"type": "Point", "coordinates": [0.5, 0.5]})
_HEAD: Final = _PLAIN[: _PLAIN.index(encode_part(0.5))]
_TAIL: Final = _PLAIN[len(_HEAD) + 2 * _NUMBER :]
LENGTH: Final = len(_PLAIN)
_X: Final = len(_HEAD)
_Y: Final = _X + _NUMBER
_WRITTEN: Final = np.dtype(
    {
        "names": ["x_tag", "x", "y_tag", "y"],
        "formats": ["u1", ">u8", "u1", ">u8"],
        "offsets": [_X, _X + 1, _Y, _Y + 1],
        "itemsize": LENGTH,
    }
)
"""Where the numbers of such a key stand."""
_BEFORE: Final = bytes((0xC4, LENGTH))
"""Of a byte string of that length in msgpack."""
VALUE_HEAD: Final = pack_keyed_value(b"", None, _PLAIN)[:-LENGTH]
"""What the value of an entry begins with that has nothing but such a key."""
_numbers_at: Final = struct.Struct(">BQBBQB").unpack_from
_unpack_doubles: Final = struct.Struct(">dd").unpack
_pack_bits: Final = struct.Struct(">QQ").pack


def plain_points(
    values: Sequence[Any], frame: Frame
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Which of some JSON values are such points, in range, whose numbers have no form of their own (a float
    has one that is integral, infinite or NaN): bool[n], and the coordinates of those (float64[m] each)."""
    pairs = [
        pair
        if type(one) is dict
        and len(one) == 2
        and one.get("type") == "Point"
        and type(pair := one.get("coordinates")) is list
        and len(pair) == 2
        and type(pair[0]) is float is type(pair[1])
        else None
        for one in values
    ]
    are = np.fromiter((one is not None for one in pairs), np.bool_, len(pairs))
    at = np.fromiter(chain.from_iterable(filter(None, pairs)), np.float64).reshape(-1, 2)
    # (What is not finite is not in range.)
    plain = ((np.abs(at) <= MOST_COORDINATES[frame]) & (at != np.floor(at))).all(axis=1)
    if not plain.all():
        are[are], at = plain, at[plain]
    return are, at[:, 0], at[:, 1]


def keys_of_points(xs: npt.NDArray[np.float64], ys: npt.NDArray[np.float64]) -> list[bytes]:
    """The canonical keys of points that are plain."""
    table = np.empty((len(xs), LENGTH), np.uint8)
    table[:] = np.frombuffer(_PLAIN, np.uint8)
    for at, numbers in ((_X, xs), (_Y, ys)):
        bits = np.ascontiguousarray(numbers).view(np.uint64)
        negative = bits >= _SIGN
        table[negative, at] = TAG_NEGATIVE
        written = np.where(negative, ~bits, bits).astype(">u8")
        table[:, at + 1 : at + 9] = written.view(np.uint8).reshape(-1, 8)
    return rows_of(table)


def rows_of(table: npt.NDArray[np.uint8]) -> list[bytes]:
    """The bytes of each row."""
    if not len(table):
        return []
    rows: list[bytes] = np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1])))[:, 0].tolist()
    return rows


def point_of(key: bytes) -> tuple[float, float] | None:
    """The coordinates of a key, None when it is not such a point."""
    if len(key) != LENGTH or not key.startswith(_HEAD) or not key.endswith(_TAIL):
        return None
    tag, first, residual, other, second, more = _numbers_at(key, _X)
    if residual or more or not (tag in _TAGS and other in _TAGS):
        return None
    if tag == TAG_NEGATIVE:
        first ^= _ALL
    if other == TAG_NEGATIVE:
        second ^= _ALL
    return _unpack_doubles(_pack_bits(first, second))


def is_point_value(value: bytes) -> bool:
    """Whether a value is that of such a point, most likely: told by its end."""
    return value.startswith(b"\x93") and value[-LENGTH - 2 : -LENGTH] == _BEFORE


def point_cell_of(key: bytes, frame: Frame) -> int | None:
    """The cell of a key; None when it is no such point, or lies out of range."""
    found = point_of(key)
    if found is None:
        return None
    x, y = found
    most_x, most_y = MOST_COORDINATES[frame]
    if abs(x) > most_x or abs(y) > most_y:
        return None
    return point_cell(x, y, frame)


def points_of(
    keys: Sequence[bytes],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Which of some keys are such points (bool[n]), and the coordinates of those (float64[m] each)."""
    whole = [len(key) == LENGTH for key in keys]
    if not any(whole):
        return np.zeros(len(keys), np.bool_), np.empty(0), np.empty(0)
    chosen = keys if all(whole) else [key for key, one in zip(keys, whole, strict=True) if one]
    written = np.frombuffer(b"".join(chosen), _WRITTEN)
    are = np.array(whole, np.bool_)
    unlike = written.view(np.uint8).reshape(-1, LENGTH) & _MASK != _SAME
    if unlike.any():
        fine = ~unlike.any(axis=1)
        are[are] = fine
        written = written[fine]
    return are, doubles(written["x_tag"], written["x"]), doubles(written["y_tag"], written["y"])


def mask_of(length: int, numbers: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The bits of an encoding that are the same whatever doubles, without residuals, stand in it.

    Args:
        numbers: where their codes begin.
    """
    mask = np.full(length, 0xFF, np.uint8)
    for at in numbers:
        mask[at] ^= TAG_NEGATIVE ^ TAG_NUMBER  # one bit
        mask[at + 1 : at + 9] = 0
    return mask


def doubles(tags: npt.NDArray[np.uint8], written: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """The numbers of codes: their tags, and the eight bytes behind them."""
    bits, negative = written.astype(np.uint64, order="C"), tags == TAG_NEGATIVE
    if negative.any():
        bits = np.where(negative, ~bits, bits)
    return bits.view(np.float64)


_MASK: Final = mask_of(LENGTH, (_X, _Y))
_SAME: Final = np.frombuffer(_PLAIN, np.uint8) & _MASK
"""What is the same of such keys: all but the numbers."""
