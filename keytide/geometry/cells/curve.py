"""Cell ids: squares of a quadtree along a Hilbert curve, exactly as the S2 library has them.

Theory of operation
===================
A cell of level n (0..30) is a square of 2^(30-n) leaves by as many: `i` and `j` are the leaf at its least
corner, 0..2^30-1 each. Its id, 64 bits, is three bits of the face, two bits for each level along the curve, a
one, and zeros. So ids of one level go along the curve; what is within a cell is [id - lsb + 1, id + lsb - 1],
`lsb` being the id's lowest one; and the cell of level n around a leaf is found by masking.

The curve goes by tables of six levels at a time (after S2's lookup tables, of four): where one is in the
4 orientations that a square may have, and which of the 64 x 64 smaller squares one enters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAF: Final = 30
"""The level of leaves."""
SIDE: Final = 1 << LEAF
"""Leaves along the side of a face."""
Square = tuple[int, int, int, int]
"""(face, i, j, level)."""
_STEP: Final = 6
_SQUARES: Final = 1 << _STEP
_LOW: Final = _SQUARES - 1

# By orientation and position along the curve: which quarter (i * 2 + j), and what its orientation is (to be
# combined by exclusive or). S2's kPosToIJ and kPosToOrientation: 1 swaps i and j, 2 inverts both.
_QUARTERS: Final = ((0, 1, 3, 2), (0, 2, 3, 1), (3, 2, 0, 1), (3, 1, 0, 2))
_TURNS: Final = (1, 0, 0, 3)


_TABLE: Final[list[int]] = []


def curve_table() -> list[int]:
    """[orientation, i, j] of six levels -> position along the curve * 4 + orientation there. Made when it is
    first needed (12 ms); threads that come at once all make it, and put the same there."""
    if not _TABLE:
        _TABLE[:] = _made()
    return _TABLE


def _made() -> list[int]:
    squares = {(turn, 0, 0): turn for turn in range(4)}
    for _ in range(_STEP):
        finer = {}
        for (start, i, j), found in squares.items():
            for step, quarter in enumerate(_QUARTERS[found & 3]):
                key = (start, i << 1 | quarter >> 1, j << 1 | quarter & 1)
                finer[key] = (found >> 2 << 2 | step) << 2 | (found & 3) ^ _TURNS[step]
        squares = finer
    table = [0] * (4 * _SQUARES * _SQUARES)
    for (start, i, j), found in squares.items():
        table[(start * _SQUARES + i) * _SQUARES + j] = found
    return table


def leaf_of(face: int, i: int, j: int) -> int:
    """The id of a leaf."""
    table = _TABLE or curve_table()
    a = table[(face & 1) << 12 | i >> 24 << 6 | j >> 24]
    b = table[(a & 3) << 12 | (i >> 12 & 0xFC0) | j >> 18 & 63]
    c = table[(b & 3) << 12 | (i >> 6 & 0xFC0) | j >> 12 & 63]
    d = table[(c & 3) << 12 | (i & 0xFC0) | j >> 6 & 63]
    e = table[(d & 3) << 12 | (i << 6 & 0xFC0) | j & 63]
    return face << 61 | a >> 2 << 49 | b >> 2 << 37 | c >> 2 << 25 | d >> 2 << 13 | e >> 2 << 1 | 1


def least_of(face: int, i: int, j: int, shift: int) -> int:
    """The least id of the cell, 2**shift leaves wide, that a leaf is in, less one. Of a wide cell the first
    steps tell it."""
    table = _TABLE or curve_table()
    a = table[(face & 1) << 12 | i >> 24 << 6 | j >> 24]
    b = table[(a & 3) << 12 | (i >> 12 & 0xFC0) | j >> 18 & 63]
    if shift < 2 * _STEP:
        return leaf_of(face, i, j) & -(2 << 2 * shift)
    found = face << 61 | a >> 2 << 49 | b >> 2 << 37
    if shift < 3 * _STEP:
        found |= table[(b & 3) << 12 | (i >> 6 & 0xFC0) | j >> 12 & 63] >> 2 << 25
    return found & -(2 << 2 * shift)


def leaves_of(face: NDArray[np.int64], i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The ids of many leaves."""
    import numpy as np

    table = np.array(curve_table())
    turn = face & 1
    ids = face
    for level in range(LEAF - _STEP, -1, -_STEP):
        found = table[turn << 12 | (i >> level & _LOW) << _STEP | j >> level & _LOW]
        ids = ids << 2 * _STEP | found >> 2
        turn = found & 3
    # Faces 4 and 5 set the sign bit: the shift is one of unsigned numbers.
    return ids.astype(np.uint64) << np.uint64(1) | np.uint64(1)


def parent_of(cell: int, level: int) -> int:
    """The cell of a level that a cell of this or a finer level is in."""
    lsb = 1 << 2 * (LEAF - level)
    return cell & -lsb | lsb


def level_of(cell: int) -> int:
    """The level of a cell, 0..30."""
    return LEAF - ((cell & -cell).bit_length() - 1) // 2


def corners_around(i: tuple[int, int], j: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    """(level, least corners) of at most four cells that hold a rectangle of leaves, from and to which are
    given."""
    level = max(0, LEAF - max(i[1] - i[0], j[1] - j[0]).bit_length())
    width = 1 << LEAF - level
    return level, [
        (a, b)
        for a in range(i[0] // width * width, i[1] + 1, width)
        for b in range(j[0] // width * width, j[1] + 1, width)
    ]


def span_of(cell: int) -> tuple[int, int]:
    """The least and the greatest id within a cell, its own lying between them."""
    lsb = cell & -cell
    return cell - lsb + 1, cell + lsb - 1


def cell_of(square: Square) -> int:
    """The id of a cell."""
    face, i, j, level = square
    return parent_of(leaf_of(face, i, j), level)
