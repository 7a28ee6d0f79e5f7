"""Geographic cells: which leaf a position is in, as the S2 library says.

Theory of operation
===================
S2 puts a cube around the sphere. A point of it, seen from the centre, is at (u, v) on one of six faces, -1..1
each; a quadratic function takes u and v to s and t, 0..1, so that cells are of about one size; and 2^30 times
s and t are the leaf (about a centimetre).

*The same on every machine.* Cells are on disk, and compared between processes. But the sines of two machines,
or of Python and numpy on one, differ in the last bit, and once in about ten million points that bit decides.
So what is not clear, where 2^30 s is within `_UNCLEAR` of a whole number, is worked out in whole numbers of
192 bits instead (`_exact_leaf`): the leaf of a position is that of exact arithmetic, always. S2 itself, in
doubles, may say a neighbour there, a centimetre away, which no query notices: coverings have a margin
(`keytide.geometry.cells.covering`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from keytide.geometry.cells.curve import SIDE, leaf_of, leaves_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RADIAN: Final = math.pi / 180
_UNCLEAR: Final = 2e-5
"""Of a leaf's side. Doubles are wrong by 2e-6 of it at most: s by 1.5e-15."""
_CLEAR: Final = 1 - _UNCLEAR


def leaf_at(lon: float, lat: float) -> int:
    """The leaf of a position in degrees, |lon| <= 180 and |lat| <= 90."""
    phi = lat * _RADIAN
    theta = lon * _RADIAN
    cosine = math.cos(phi)
    x, y, z = math.cos(theta) * cosine, math.sin(theta) * cosine, math.sin(phi)
    ax, ay, az = abs(x), abs(y), abs(z)
    if ax > ay and ax > az:
        face, u, v = (0, y / x, z / x) if x > 0 else (3, z / x, y / x)
    elif ay >= ax and ay > az:
        face, u, v = (1, -x / y, z / y) if y > 0 else (4, z / y, -x / y)
    else:
        face, u, v = (2, -x / z, -y / z) if z > 0 else (5, -y / z, -x / z)
    s = 0.5 * math.sqrt(1 + 3 * u) if u >= 0 else 1 - 0.5 * math.sqrt(1 - 3 * u)
    t = 0.5 * math.sqrt(1 + 3 * v) if v >= 0 else 1 - 0.5 * math.sqrt(1 - 3 * v)
    i, j = int(s := s * SIDE), int(t := t * SIDE)
    # Exact zeros, of the equator and the meridian of Greenwich, are clear.
    if (_UNCLEAR < s - i < _CLEAR or u == 0.0) and (_UNCLEAR < t - j < _CLEAR or v == 0.0):
        return leaf_of(face, i, j)
    return _exact_leaf(lon, lat)


def face_place(u: float) -> int:
    """i (or j) of a coordinate u (or v) of a face, -1..1, as doubles have it."""
    s = 0.5 * math.sqrt(1 + 3 * u) if u >= 0 else 1 - 0.5 * math.sqrt(1 - 3 * u)
    return int(s * SIDE)


def face_coordinate(place: int) -> float:
    """The least u (or v) of an i (or j), 0..2^30."""
    s = place / SIDE
    return (4 * s * s - 1) / 3 if s >= 0.5 else (1 - 4 * (1 - s) * (1 - s)) / 3


def face_coordinates(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """u (or v) of i (or j), 0..2^30."""
    import numpy as np

    s = places / SIDE
    upper = s >= 0.5
    s = np.where(upper, s, 1 - s)
    u = (4 * s * s - 1) / 3
    return np.where(upper, u, -u)


def leaves_at(lons: NDArray[np.float64], lats: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The leaves of many positions."""
    import numpy as np

    phi, theta = lats * _RADIAN, lons * _RADIAN
    cosine = np.cos(phi)
    x, y, z = np.cos(theta) * cosine, np.sin(theta) * cosine, np.sin(phi)
    ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
    axis = np.where((ax > ay) & (ax > az), 0, np.where((ay >= ax) & (ay > az), 1, 2))
    longest = np.choose(axis, (x, y, z))
    face = np.where(longest > 0, axis, axis + 3)
    one = np.choose(face, (y, -x, -x, z, z, -y)) / longest
    other = np.choose(face, (z, z, -y, y, -x, -x)) / longest
    found, clear = [], np.ones(len(x), bool)
    for u in (one, other):
        root = 0.5 * np.sqrt(1 + 3 * np.abs(u))
        s = np.where(u >= 0, root, 1 - root) * SIDE
        i = s.astype(np.int64)
        rest = s - i
        clear &= (rest > _UNCLEAR) & (rest < _CLEAR) | (u == 0.0)
        found.append(np.clip(i, 0, SIDE - 1))
    ids = leaves_of(face, found[0], found[1])
    for at in np.flatnonzero(~clear):
        ids[at] = _exact_leaf(float(lons[at]), float(lats[at]))
    return ids


# --- what doubles leave open ------------------------------------------------------------------------------

_BITS: Final = 192
_ONE: Final = 1 << _BITS
_PI: Final = int(
    Fraction("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
    * _ONE
)
_SAME: Final = 1 << _BITS - 100
"""What is nearer than this is the same: a face's edge at 45 degrees, the corner of a cell."""


def _sine(degrees: Fraction) -> int:
    """sin * 2^192, wrong by less than 2^-180."""
    degrees = (degrees + 180) % 360 - 180
    if abs(degrees) > 90:
        degrees = (180 if degrees > 0 else -180) - degrees
    angle = degrees.numerator * _PI // (degrees.denominator * 180)
    square = angle * angle >> _BITS
    term, total, n = angle, angle, 1
    while abs(term) > 1:
        n += 2
        term = -(term * square >> _BITS) // (n * (n - 1))
        total += term
    return total


def _exact_leaf(lon: float, lat: float) -> int:
    """The leaf of a position, in whole numbers. 60 us."""
    east, north = Fraction(lon), Fraction(lat)
    cosine = _sine(north + 90)
    x, y = _sine(east + 90) * cosine >> _BITS, _sine(east) * cosine >> _BITS
    z = _sine(north)
    x, y, z = (0 if abs(one) < _SAME else one for one in (x, y, z))
    # As S2 chooses among equals: a later axis.
    if abs(x) > abs(y) + _SAME and abs(x) > abs(z) + _SAME:
        face, u, v, w = (0, y, z, x) if x > 0 else (3, z, y, x)
    elif abs(y) > abs(z) + _SAME:
        face, u, v, w = (1, -x, z, y) if y > 0 else (4, z, -x, y)
    else:
        face, u, v, w = (2, -x, -y, z) if z > 0 else (5, -y, -x, z)
    return leaf_of(face, _exact_place(u, w), _exact_place(v, w))


def _exact_place(u: int, w: int) -> int:
    """i (or j) of u / w."""
    ratio = (abs(u) << _BITS) // abs(w)
    half_root = math.isqrt((_ONE + 3 * ratio) << _BITS) // 2
    place = (half_root if (u < 0) == (w < 0) else _ONE - half_root) * SIDE
    return max(0, min(SIDE - 1, place + _SAME * SIDE >> _BITS))
