"""Canonical keys that are a GeoJSON polygon of one ring, and nothing else: what most areas of a spatial index
are. Between a head and a tail that are always the same stand its positions, whose bytes are of one length
(`keytide.collation`): so those of many keys are read as one table, without decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from keytide.collation import Json, encode_part
from keytide.collation.layout import TAG_NEGATIVE, TAG_NUMBER
from keytide.geometry import Frame, Rings
from keytide.geometry.geojson import MOST_COORDINATES
from keytide.structure.point_keys import doubles

_LEAST: Final = 4
"""Positions of a ring."""
_POSITION: Final = encode_part([0.5, 0.5])
_WIDTH: Final = len(_POSITION)
_PLAIN: Final = encode_part({"type": "Polygon", "coordinates": [[[0.5, 0.5]]]})
_HEAD: Final = _PLAIN[: _PLAIN.index(_POSITION)]
_TAIL: Final = _PLAIN[len(_HEAD) + _WIDTH :]
_SHORTEST: Final = len(_HEAD) + _LEAST * _WIDTH + len(_TAIL)
_NUMBER: Final = 10
"""Bytes of a number: tag, bits, no residual."""
_TAGS: Final = 0xFF ^ TAG_NEGATIVE ^ TAG_NUMBER
"""Of a number's tag, all but the sign."""
_MASK: Final = np.array([[0xFF, _TAGS], [0xFF, _TAGS], [0xFF, 0xFF]], np.uint8).view("u2")
_SAME: Final = np.frombuffer(b"".join(_POSITION[at : at + 2] for at in (0, 10, 20)), "u2")[:, None] & _MASK
"""What is the same of positions, in pairs of bytes that stand `_NUMBER` apart: where the list or a number
begins or ends, without residuals. Between them stand the numbers' bits."""


def is_ring_key(key: bytes) -> bool:
    """Whether a key is that of such a polygon, most likely: told by its ends and its length."""
    return (
        len(key) >= _SHORTEST
        and (len(key) - _SHORTEST) % _WIDTH == 0
        and key.startswith(_HEAD)
        and key.endswith(_TAIL)
    )


def are_ring_keys(keys: Sequence[bytes]) -> bool:
    """Whether some keys all are those of such polygons, told by all bytes but the coordinates': what an index
    holds of them is closed and in range."""
    if not all(map(is_ring_key, keys)):
        return False
    written = b"".join([key[len(_HEAD) : -len(_TAIL)] for key in keys])
    return not _unlike(written).any()


def rings_of(keys: Sequence[bytes], frame: Frame) -> tuple[npt.NDArray[np.bool_], Rings]:
    """Which of some keys are such polygons (bool[n]), closed and with coordinates in range; and those."""
    are, at, counts, unlike = _positions(keys)
    rings = Rings(at.T, counts, frame)
    if not len(counts):
        return are, rings
    ends = counts.cumsum()
    starts = ends - counts
    west, south = MOST_COORDINATES[frame]
    closed = at.take(starts, axis=1) == at.take(ends - 1, axis=1)
    far = np.abs(at)
    # (What is no number is not within the bounds.)
    if closed.all() and far[0].max() <= west and far[1].max() <= south and not unlike.any():
        return are, rings
    fine = ~unlike.any(axis=0) & (far[0] <= west) & (far[1] <= south)
    are[are] = whole = np.logical_and.reduceat(fine, starts) & closed.all(axis=0)
    return are, rings.some(whole)


def _positions(
    keys: Sequence[bytes],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Which of some keys are such polygons, most likely (bool[n]); their positions one after the other, by
    columns (2, m), how many each has, and what `_unlike` says of them."""
    are = np.array([*map(is_ring_key, keys)], np.bool_)
    chosen = keys if are.all() else [keys[at] for at in are.nonzero()[0].tolist()]
    bodies = [key[len(_HEAD) : -len(_TAIL)] for key in chosen]
    written = b"".join(bodies)
    counts = np.array([len(body) // _WIDTH for body in bodies], np.int64)
    size = (2, len(written) // _WIDTH)
    if not bodies:
        return are, np.empty(size), counts, np.empty((3, 0), np.bool_)
    tags = np.ndarray(size, "u1", written, 1, (_NUMBER, _WIDTH))
    at = doubles(tags, np.ndarray(size, ">u8", written, 2, (_NUMBER, _WIDTH)))
    return are, at, counts, _unlike(written)


def _unlike(written: bytes) -> npt.NDArray[np.bool_]:
    """Where positions differ from others in more than their coordinates (3, m)."""
    pairs = np.ndarray((3, len(written) // _WIDTH), "u2", written, 0, (_NUMBER, _WIDTH))
    found: npt.NDArray[np.bool_] = pairs & _MASK != _SAME
    return found


def decoded_rings(keys: Sequence[bytes]) -> list[Json]:
    """The value of each key that is such a polygon, written without forms; None for another one."""
    are, at, counts, unlike = _positions(keys)
    found: list[Json] = [None] * len(keys)
    whole = at == np.floor(at)
    positions: list[Json] = at.T.tolist()
    for one in np.flatnonzero(whole.any(axis=0)).tolist() if whole.any() else ():
        positions[one] = [int(number) if number.is_integer() else number for number in at[:, one].tolist()]
    ends, some_unlike = counts.cumsum().tolist(), bool(unlike.any())
    begin = 0
    for number, end in zip(np.flatnonzero(are).tolist(), ends, strict=True):
        if not (some_unlike and unlike[:, begin:end].any()):
            found[number] = {"coordinates": [positions[begin:end]], "type": "Polygon"}
        begin = end
    return found
