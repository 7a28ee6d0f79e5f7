"""Canonical keys that are a GeoJSON polygon of one ring, and nothing else: what most areas of a spatial index
are. Between a head and a tail that are always the same stand its positions, whose bytes are of one length
(`keytide.collation`): so those of many keys are read as one table, without decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from keytide.collation import Json, encode_part
from keytide.geometry import Frame, Rings
from keytide.geometry.geojson import MOST_COORDINATES
from keytide.structure.point_keys import doubles, mask_of

_LEAST: Final = 4
"""Positions of a ring."""
_POSITION: Final = encode_part([0.5, 0.5])
_WIDTH: Final = len(_POSITION)
_PLAIN: Final = encode_part({"type": "Polygon", "coordinates": [[[0.5, 0.5]]]})
_HEAD: Final = _PLAIN[: _PLAIN.index(_POSITION)]
_TAIL: Final = _PLAIN[len(_HEAD) + _WIDTH :]
_SHORTEST: Final = len(_HEAD) + _LEAST * _WIDTH + len(_TAIL)
_X: Final = 1
_Y: Final = _X + 10
_MASK: Final = mask_of(_WIDTH, (_X, _Y))
_SAME: Final = np.frombuffer(_POSITION, np.uint8) & _MASK
"""What is the same of positions: where the list begins and ends, and no residuals."""
_WRITTEN: Final = np.dtype(
    {
        "names": ["x_tag", "x", "y_tag", "y"],
        "formats": ["u1", ">u8", "u1", ">u8"],
        "offsets": [_X, _X + 1, _Y, _Y + 1],
        "itemsize": _WIDTH,
    }
)
"""Where the numbers of a position stand."""


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
    table = np.frombuffer(b"".join([key[len(_HEAD) : -len(_TAIL)] for key in keys]), np.uint8)
    return not (table.reshape(-1, _WIDTH) & _MASK != _SAME).any()


def rings_of(keys: Sequence[bytes], frame: Frame) -> tuple[npt.NDArray[np.bool_], Rings]:
    """Which of some keys are such polygons (bool[n]), closed and with coordinates in range; and those."""
    are = np.fromiter(map(is_ring_key, keys), np.bool_, len(keys))
    bodies = [keys[at][len(_HEAD) : -len(_TAIL)] for at in np.flatnonzero(are).tolist()]
    written = np.frombuffer(b"".join(bodies), _WRITTEN)
    counts = np.array([len(body) for body in bodies], np.int64) // _WIDTH
    at = np.empty((len(written), 2))
    if not len(counts):
        return are, Rings(at, counts, frame)
    at[:, 0] = doubles(written["x_tag"], written["x"])
    at[:, 1] = doubles(written["y_tag"], written["y"])
    ends = counts.cumsum()
    starts = ends - counts
    most = MOST_COORDINATES[frame]
    rings = Rings(at, counts, frame)
    unlike = written.view(np.uint8).reshape(-1, _WIDTH) & _MASK != _SAME
    closed = at[starts] == at[ends - 1]
    # (What is no number is not within the bounds.)
    if not unlike.any() and closed.all() and (abs(at).max(axis=0) <= most).all():
        return are, rings
    fine = ~unlike.any(axis=1) & (abs(at) <= most).all(axis=1)
    are[are] = whole = np.logical_and.reduceat(fine, starts) & closed.all(axis=1)
    return are, rings.some(whole)


def decoded_rings(keys: Sequence[bytes]) -> list[Json]:
    """The value of each key that is such a polygon, written without forms; None for another one."""
    are, rings = rings_of(keys, "planar")
    found: list[Json] = [None] * len(keys)
    whole = (rings.at == np.floor(rings.at)).any(axis=1)
    positions: list[Json] = rings.at.tolist()
    for at in np.flatnonzero(whole).tolist():
        x, y = rings.at[at].tolist()
        positions[at] = [int(one) if one.is_integer() else one for one in (x, y)]
    begin = 0
    for at, count in zip(np.flatnonzero(are).tolist(), rings.counts.tolist(), strict=True):
        found[at] = {"coordinates": [positions[begin : begin + count]], "type": "Polygon"}
        begin += count
    return found
