"""Coverings of many convex polygons on the globe at once: the cells that `keytide.geometry.cells.quick` gives
each of them, to the bit, in a third of the time.

Theory of operation
===================
What is split when, each polygon decides by itself; which cells touch a polygon, and which are inside of it,
is worked out for all polygons of as many corners together, level by level, by the same operations on the same
numbers, for the cells of documents are on disk. Whatever is not convex, not on one face, or stands alone, is
left to the other way.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from keytide.geometry.cells.curve import LEAF, corners_around, leaves_of
from keytide.geometry.cells.geographic import face_coordinates, face_place
from keytide.geometry.cells.quick import MARGIN, MOST_CORNERS, spots_of
from keytide.geometry.drawn.sphere import Floats, Mask, Numbers
from keytide.geometry.shapes import Rings

_FEWEST: Final = 4
"""Polygons of as many corners that are worth it."""
_MOST_PAIRS: Final = 500_000
"""Pairs of a side and a corner that are looked at together: a few MB."""
_FLAT: Final = 1e-12
"""Of a polygon's bounds: what has less area has no sure direction."""


def quick_cells(rings: Rings, most: int) -> list[tuple[int, ...] | None]:
    """What `cells_of` gives each polygon; None where this is not the way.

    Args:
        rings: on the globe.
        most: cells at most, of each.
    """
    found: list[tuple[int, ...] | None] = [None] * len(rings)
    positions = rings.at.tolist()
    by_corners: dict[int, list[tuple[int, int, list[tuple[float, float]]]]] = {}
    begin = 0
    for number, count in enumerate(rings.counts.tolist()):
        placed = spots_of(positions[begin : begin + count - 1]) if count <= MOST_CORNERS + 1 else None
        if placed is not None:
            by_corners.setdefault(count - 1, []).append((number, *placed))
        begin += count
    for corners, every in by_corners.items():
        together = max(_FEWEST, _MOST_PAIRS // corners**2)
        for top in range(0, len(every), together):
            some = every[top : top + together]
            if len(some) < _FEWEST:
                continue
            numbers, faces, spots = zip(*some, strict=True)
            for at, cells in _covered(np.array(faces), np.array(spots), most).items():
                found[numbers[at]] = cells
    return found


class _Polygons:
    """Polygons of as many corners on their charts.

    Args:
        spots: (k, n, 2).
    """

    def __init__(self, spots: Floats) -> None:
        u, v = spots[:, :, 0], spots[:, :, 1]
        next_u, next_v = np.roll(u, -1, axis=1), np.roll(v, -1, axis=1)
        first_u, first_v = u[:, :1], v[:, :1]
        area = ((u - first_u) * (next_v - first_v) - (next_u - first_u) * (v - first_v)).sum(axis=1)
        turned = np.where(area > 0, 1.0, -1.0)[:, None]
        self._a, self._b = turned * (v - next_v), turned * (next_u - u)
        slack = (np.abs(self._a) + np.abs(self._b)) * MARGIN
        self._c = slack - self._a * u - self._b * v
        self.left, self.low, self.right, self.high = u.min(1), v.min(1), u.max(1), v.max(1)
        beside = self._a[:, :, None] * (u[:, None, :] - u[:, :, None])
        beside += self._b[:, :, None] * (v[:, None, :] - v[:, :, None])
        bent = (beside < -slack[:, :, None]).reshape(len(u), -1).any(axis=1)
        sure = np.abs(area) > _FLAT * (self.right - self.left) * (self.high - self.low)
        self.convex: Mask = sure & ~bent

    def look(self, of: Numbers, i: Numbers, j: Numbers, width: Numbers) -> tuple[Mask, Mask]:
        """Which cells touch their polygons (by number), and which of them are inside."""
        u0, u1 = face_coordinates(i) - MARGIN, face_coordinates(i + width) + MARGIN
        v0, v1 = face_coordinates(j) - MARGIN, face_coordinates(j + width) + MARGIN
        touches = ~((u1 < self.left[of]) | (u0 > self.right[of]) | (v1 < self.low[of]) | (v0 > self.high[of]))
        at = np.flatnonzero(touches)
        a, b, c = self._a[of[at]], self._b[of[at]], self._c[of[at]]
        u0, u1, v0, v1 = (one[at, None] for one in (u0, u1, v0, v1))
        right, up = a > 0, b > 0
        touches[at] = (a * np.where(right, u1, u0) + b * np.where(up, v1, v0) + c >= 0).all(axis=1)
        inside = np.zeros(len(touches), bool)
        inside[at] = (a * np.where(right, u0, u1) + b * np.where(up, v0, v1) + c >= 0).all(axis=1)
        return touches, inside


class _OpenCells:
    """A polygon whose covering is not done.

    Attributes:
        wave: the cells of `level` that may be split: (i, j).
        done: (level, i, j) of those that are not.
    """

    __slots__ = ("done", "level", "number", "wave")

    def __init__(self, number: int, level: int, wave: list[tuple[int, int]]) -> None:
        self.number = number
        self.level = level
        self.wave = wave
        self.done: list[tuple[int, int, int]] = []

    def goes_on(self, most: int) -> bool:
        return bool(self.wave) and self.level < LEAF and len(self.done) + len(self.wave) < most


def _covered(faces: Numbers, spots: Floats, most: int) -> dict[int, tuple[int, ...]]:
    """The coverings of those of some polygons that are convex."""
    polygons = _Polygons(spots)
    every: list[_OpenCells] = []
    bounds = np.stack((polygons.left, polygons.right, polygons.low, polygons.high), axis=1).tolist()
    for number in np.flatnonzero(polygons.convex).tolist():
        left, right, low, high = bounds[number]
        i = face_place(left - MARGIN), face_place(right + MARGIN)
        j = face_place(low - MARGIN), face_place(high + MARGIN)
        every.append(_OpenCells(number, *corners_around(i, j)))
    if not every:
        return {}
    _begin(polygons, every)
    while wave := [one for one in every if one.goes_on(most)]:
        _split(polygons, wave, most)
    return _ids(faces, every)


def _begin(polygons: _Polygons, every: list[_OpenCells]) -> None:
    """Look at the first cells."""
    of, i, j, width = _flat(every)
    touches, inside = (one.tolist() for one in polygons.look(of, i, j, width))
    at = 0
    for one in every:
        seeds, one.wave = one.wave, []
        for seed in seeds:
            if inside[at] and touches[at]:
                one.done.append((one.level, *seed))
            elif touches[at]:
                one.wave.append(seed)
            at += 1


def _flat(some: list[_OpenCells]) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """(number of the polygon, i, j, width) of all cells of some waves."""
    of = np.repeat([one.number for one in some], [len(one.wave) for one in some])
    level = np.repeat([one.level for one in some], [len(one.wave) for one in some])
    at = np.array([square for one in some for square in one.wave], np.int64)
    return of, at[:, 0], at[:, 1], 1 << LEAF - level


def _split(polygons: _Polygons, some: list[_OpenCells], most: int) -> None:
    """One level more of each."""
    of, i, j, width = _flat(some)
    below = width >> 1
    steps_i = (i[:, None] + below[:, None] * np.array((0, 0, 1, 1))).ravel()
    steps_j = (j[:, None] + below[:, None] * np.array((0, 1, 0, 1))).ravel()
    touches, inside = polygons.look(np.repeat(of, 4), steps_i, steps_j, np.repeat(below, 4))
    sizes = touches.reshape(-1, 4).sum(axis=1).tolist()
    is_touching, is_inside = touches.tolist(), (touches & inside).tolist()
    all_i, all_j = steps_i.tolist(), steps_j.tolist()
    first = 0
    for one in some:
        wave, finer = one.wave, one.level + 1
        order = sorted(range(first, first + len(wave)), key=sizes.__getitem__)
        left = len(wave)
        split: list[tuple[int, int]] = []
        for family in order:
            left -= 1
            if len(one.done) + len(split) + sizes[family] + left > most:
                one.done.append((one.level, *wave[family - first]))
                continue
            for at in range(4 * family, 4 * family + 4):
                if is_inside[at]:
                    one.done.append((finer, all_i[at], all_j[at]))
                elif is_touching[at]:
                    split.append((all_i[at], all_j[at]))
        first += len(wave)
        one.wave, one.level = split, finer


def _ids(faces: Numbers, every: list[_OpenCells]) -> dict[int, tuple[int, ...]]:
    """The cells that were found, ascending, by polygon."""
    squares = [[*one.done, *((one.level, i, j) for i, j in one.wave)] for one in every]
    counts = [len(one) for one in squares]
    table = np.array([square for one in squares for square in one], np.int64)
    face = np.repeat(faces[[one.number for one in every]], counts)
    lowest = np.uint64(1) << (2 * (LEAF - table[:, 0])).astype(np.uint64)
    leaves = leaves_of(face, table[:, 1], table[:, 2])
    ids = (leaves & ~(lowest - np.uint64(1)) | lowest).tolist()
    found: dict[int, tuple[int, ...]] = {}
    begin = 0
    for one, count in zip(every, counts, strict=True):
        found[one.number] = tuple(sorted(ids[begin : begin + count]))
        begin += count
    return found
