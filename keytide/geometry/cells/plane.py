"""Planar cells: a quadtree over all doubles, which needs no bounds.

Theory of operation
===================
The bits of doubles, with the sign turned round, are in the order of the numbers. Their top 30 are the place
of a coordinate, `i` or `j`: a sign, eleven bits of the exponent, eighteen of the fraction. So a cell is a
rectangle whose bounds are doubles, exactly; a leaf is about a 262,144th of its coordinates wide; and whether
coordinates are millimetres or light years, there is nothing to be chosen. What it costs: around zero cells
are narrow, so a shape across an axis has a poor covering.

Face 0, and its curve, are those of `keytide.geometry.cells.curve`.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from keytide.geometry.cells.curve import leaf_of, leaves_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DROPPED: Final = 34
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_PAIR: Final = struct.Struct("<dd")
_BITS: Final = struct.Struct("<QQ")


def place_of(value: float) -> int:
    """i (or j) of a coordinate, 0..2^30-1."""
    bits: int = _BITS.unpack(_PAIR.pack(value + 0.0, 0.0))[0]
    return (bits ^ _ALL if bits & _SIGN else bits | _SIGN) >> _DROPPED


def coordinate_of(place: int) -> float:
    """The least coordinate that has a place, 0..2^30; infinite beyond what numbers there are."""
    bits = place << _DROPPED
    if place >> 30:
        return math.inf
    value: float = _PAIR.unpack(_BITS.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL, 0))[0]
    return value if value == value else (math.inf if bits & _SIGN else -math.inf)


def planar_leaf(x: float, y: float) -> int:
    """The leaf of a position."""
    i, j = _BITS.unpack(_PAIR.pack(x + 0.0, y + 0.0))  # -0.0 is 0.0
    return leaf_of(
        0,
        (i ^ _ALL if i & _SIGN else i | _SIGN) >> _DROPPED,
        (j ^ _ALL if j & _SIGN else j | _SIGN) >> _DROPPED,
    )


def places_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """i (or j) of many coordinates."""
    import numpy as np

    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)
    turned = np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(_SIGN))
    return (turned >> np.uint64(_DROPPED)).astype(np.int64)


def planar_leaves(xs: NDArray[np.float64], ys: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The leaves of many positions."""
    i, j = places_of(xs), places_of(ys)
    return leaves_of(i * 0, i, j)


def lowest_of(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """The least coordinates that have these places, 0..2^30; infinite beyond what numbers there are. The
    greatest is just below that of the next place."""
    import numpy as np

    turned = places.astype(np.uint64) << np.uint64(_DROPPED)
    positive = places >> 29 & 1 == 1
    values = np.where(positive, turned ^ np.uint64(_SIGN), ~turned).view(np.float64)
    values = np.where(np.isnan(values), np.where(positive, np.inf, -np.inf), values)
    return np.where(places >> 30 == 1, np.inf, values)
