"""The first rows of several slices, read as one. Pure, but for what the cursors read.

Theory of operation
===================
Each slice is a few sorted levels; each level a cursor that gives rows in blocks (`LevelCursor`). Of every
cursor that has more, the last key of what it gave bounds what is known: up to the nearest of these bounds
nothing unread can lie. What lies there is put into one dictionary, of each slice the oldest level first, so
that a newer row hides an older one, and a removal marker hides both; its keys in order are the answer, or how
it begins: when they are too few, the cursors at the bound give more, and of many those that are near it, and
what lies up to the new bound follows. No row is merged twice, so rounds are cheap: slices have their rows in
clumps as a rule, for an index is partitioned by its first key part unless it says otherwise. Where nearly all
of the last rows that were found are of the cursor at the bound, it alone gives more.

Of the oldest level a cursor gives at first what its slice has of the answer, very likely, when keys are
spread evenly; of newer ones, which have less as a rule, a few rows, and more up to the bound, but hardly more
than of the oldest: a young slice has nearly all of its rows in a newer one, which is then the bound.

A page of 100 rows from eight slices of two levels takes less than half of what it takes slice by slice
(measured). Nothing is waited for, so all that is read is bounded: where many rows were removed, or slices are
far from even, the answer is None, and the long way (`StoreSnapshot.rows_of`) reads what is wanted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain, repeat
from operator import ge, gt, le, lt
from typing import Final, Protocol

LOOKED_AT: Final = 4
"""So many rows are read at most for each that is wanted, and `SPARE` more."""
SPARE: Final = 1_000
LOOKED_AT_BYTES: Final = 8 << 20
"""Of values that are read at most, about. (Keys are short: entries with long ones are in another table, and
are not read as one. A hash index has its long keys in values.)"""
_SAMPLED: Final = 16
"""One row of so many tells how large they are."""
_SHARE_OF_ENDS: Final = 8
"""One of so many cursors is near the bound."""
_SHARE_OF_READ: Final = 4
"""One of so many rows that were read is read on at least: rounds are few where many rows are removed."""
_LAST: Final = 16
_OF_ONE: Final = 12
"""So many of the last rows that were found tell of a clump when they are of one cursor."""
_CLUMPS: Final = 2
"""Of more clumps than these each is smaller than what is wanted by much: cursors are read on as elsewhere."""
_GROWTH: Final = 2
"""Of a clump so many times as many rows as before are read on: more would be in vain if it ends soon."""
_FEW: Final = 4
"""Rows of a newer level that are read at first."""


Row = tuple[bytes, bytes]
"""(key, value); of a level the value is tagged."""


class LargeRowsError(Exception):
    """The values of what is to be read are larger than there is room for."""


_Compares = Callable[[bytes, bytes], bool]


class LevelCursor(Protocol):
    """Reads one level of a commit, over and over, from one thread: tagged rows, removal markers too.

    All methods raise StoreDamagedError: what is stored cannot have been written.
    """

    @property
    def large(self) -> bool:
        """Whether some of its values are: of kilobytes, without a bound."""
        ...

    def begin(self, low: bytes, high: bytes | None, reverse: bool, count: int, room: int) -> list[Row]:
        """The first `count` rows with low <= key < high in the direction of the read, or all if there are
        fewer.

        Args:
            room: bytes of values that are read, where some are large.

        Raises:
            LargeRowsError: they are more.
        """
        ...

    def onward(self, count: int, room: int) -> list[Row]:
        """The next ones of the same span. Raises as `begin`."""
        ...

    def ends(self) -> tuple[bytes, bytes] | None:
        """The first key and the last one; None when there is none."""
        ...

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int, full: Set[bytes]
    ) -> tuple[list[Row], int]:
        """The rows of some spans, low <= key < high each, in ascending order, and how many were looked at:
        `most` + 1, and not all are given, if they are more than `most`, or their values are more than
        `LOOKED_AT_BYTES`.

        Args:
            lows, highs: of each span, disjoint and ascending.
            behind: of rows whose keys are the same behind so many bytes all but one may be left out, which is
                no removal marker; 0 for all rows.
            full: what stands there in keys none of which is left out.
        """
        ...


class _Room:
    """How many bytes of values may still be read. Counted exactly where some are large."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOKED_AT_BYTES

    def take(self, rows: Sequence[Row], *, large: bool) -> None:
        self.left -= sum([len(value) for _, value in rows]) if large else _bytes(rows)


class _Source:
    """What a cursor has given, in the direction of the read: tagged rows, and their keys.

    Attributes:
        more: whether there may be more.
        in_order: whether the keys are.
    """

    __slots__ = ("_ahead", "_at", "_cursor", "_room", "in_order", "keys", "more", "rows")

    def __init__(
        self,
        cursor: LevelCursor,
        span: tuple[bytes, bytes | None, bool],
        asked: int,
        ahead: _Compares,
        room: _Room,
    ) -> None:
        self._cursor, self._ahead, self._room = cursor, ahead, room
        self.rows = rows = cursor.begin(*span, asked, room.left)
        if cursor.large:
            room.take(rows, large=True)
        self.keys = keys = [key for key, _ in rows]
        self.more = len(rows) == asked
        self.in_order = all(map(ahead, keys, keys[1:]))
        self._at = 0

    def read_on(self, most: int, growth: int = 1) -> None:
        """Read so many times as much as was read before, or `most`."""
        count = min(growth * len(self.rows), most)
        rows = self._cursor.onward(count, self._room.left)
        self._room.take(rows, large=self._cursor.large)
        keys = [key for key, _ in rows]
        self.in_order = self.in_order and all(map(self._ahead, (self.keys[-1], *keys), keys))
        self.rows += rows
        self.keys += keys
        self.more = len(rows) == count

    def take(self, bound: bytes | None, reverse: bool) -> list[Row]:
        """The rows up to the bound that were not taken before; all if there is none."""
        at, keys = self._at, self.keys
        end = len(keys)
        if at == end or (bound is not None and self._ahead(bound, keys[at])):
            return []
        if bound is not None and self._ahead(bound, keys[-1]):
            end = end - bisect_left(keys[::-1], bound) if reverse else bisect_right(keys, bound, at)
        self._at = end
        return self.rows[at:end]


def first_rows(
    slices: Sequence[Sequence[LevelCursor]],
    low: bytes,
    high: bytes | None,
    reverse: bool,
    count: int,
    removed: bytes,
    *,
    clumped: bool = False,
) -> tuple[list[Row], list[int]] | None:
    """The first `count` rows with low <= key < high, in the direction of the read, of slices no two of which
    have a row of the same key.

    Args:
        slices: of each its levels, from the oldest to the newest.
        removed: the value that marks a row as removed. Others have a tag of one byte, which is taken off.
        clumped: whether they are likely to lie in one or two slices: then a few rows of each are read at
            first, and of a clump all that are wanted. Nothing but how much is read goes by it.

    Returns:
        Them, and how many rows of each slice were read; None when they are to be read slice by slice: they
        are too many or too far apart, or what was read is not in order, or there twice.
    """
    ahead: _Compares = gt if reverse else lt
    within: _Compares = ge if reverse else le
    nearest = max if reverse else min
    first = _share(count, len(slices))
    last, of_one, growth = _LAST, _OF_ONE, _GROWTH
    if clumped:
        first, last, of_one, growth = min(first, _FEW), _FEW, _FEW, count
    span, room = (low, high, reverse), _Room()
    sources = [
        [
            _Source(level, span, asked, ahead, room)
            for level, asked in zip(levels, chain((first,), repeat(_FEW)), strict=False)
        ]
        for levels in slices
    ]
    found: list[Row] = []
    most, clumps = LOOKED_AT * count + SPARE, 0
    while True:
        ends = [levels[0].keys[-1] for levels in sources if levels and levels[0].more]
        end = nearest(ends) if ends else None
        for levels in sources:
            enough = max(first, len(levels[0].keys)) if levels else 0
            for source in levels[1:]:
                while (
                    source.more
                    and len(source.keys) < enough
                    and (end is None or within(source.keys[-1], end))
                ):
                    source.read_on(count)
                if source.more:
                    ends.append(source.keys[-1])
        bound = nearest(ends) if ends else None
        rows = _merged(sources, bound, reverse, removed)
        if rows is None:
            return None
        found += rows
        if bound is None or len(found) >= count:
            return found[:count], [sum([len(source.keys) for source in levels]) for levels in sources]
        total = sum([len(source.keys) for levels in sources for source in levels])
        if total > most or room.left < 0:
            return None
        reached = sorted(ends, reverse=reverse)[len(ends) // _SHARE_OF_ENDS]
        still = max(count - len(found), total // _SHARE_OF_READ)
        near = [one for one in chain.from_iterable(sources) if one.more and within(one.keys[-1], reached)]
        clump = None
        if clumps < _CLUMPS and total + still <= most:
            clump = _clump(near, bound, found, within, last, of_one)
        if clump is not None:
            clump.read_on(still, growth)
            clumps += 1
            continue
        for source in near:
            source.read_on(still)


def _clump(
    near: Iterable[_Source], bound: bytes, found: Sequence[Row], within: _Compares, last: int, of_one: int
) -> _Source | None:
    """The cursor at the bound, if nearly all of the `last` rows that were found (`of_one`) are its own."""
    at_bound = [source for source in near if source.keys[-1] == bound]
    if len(found) < last or len(at_bound) != 1 or len(at_bound[0].keys) < of_one:
        return None
    # No more than so many of what was found lie at or behind that row of its own.
    return at_bound[0] if within(found[-last][0], at_bound[0].keys[-of_one]) else None


def rows_within(
    slices: Sequence[Sequence[LevelCursor]],
    lows: Sequence[bytes],
    highs: Sequence[bytes],
    most: int,
    removed: bytes,
    behind: int = 0,
) -> tuple[list[Row], list[int]] | None:
    """The rows of some spans, low <= key < high each, of several slices: one slice after the other, of each
    in ascending order.

    Args:
        slices, removed: as in `first_rows`.
        lows, highs: of each span, disjoint and ascending.
        most: rows that are looked at. Of values no more than about twice `LOOKED_AT_BYTES` are.
        behind: of a document's rows, whose keys are the same behind so many bytes, all but one may be left
            out, when they have one value, and are written and removed together; 0 for all rows.

    Returns:
        Them, and how many rows of each slice were looked at, which are more than `most` when not all were;
        None when they are not in order.
    """
    found: list[Row] = []
    read: list[int] = []
    room = LOOKED_AT_BYTES
    for levels in slices:
        given: list[list[Row]] = []
        changed: set[bytes] = set()
        looked_at = 0
        for at in range(len(levels) - 1, -1, -1) if most >= 0 else ():
            # Of documents of which newer levels tell nothing the oldest one holds nothing but what is valid.
            rows, count = levels[at].within(lows, highs, most, 0 if at else behind, changed)
            keys = [key for key, _ in rows]
            if not all(map(lt, keys, keys[1:])):
                return None
            room -= sum([len(value) for _, value in rows])
            if room < 0:
                count = max(count, most + 1)  # (they are many, if not in number)
            looked_at += count
            most -= count
            if rows:
                given.append(rows)
            if at and behind:
                changed.update([key[behind:] for key in keys])
            if most < 0:
                break
        read.append(looked_at)
        rows = given[-1] if given else []
        if len(given) > 1:  # newer ones hide them
            of_slice: dict[bytes, bytes] = {}
            for older in reversed(given):
                of_slice.update(older)
            rows = [(key, of_slice[key]) for key in sorted(of_slice)]
        found += [(key, value[1:]) for key, value in rows if value != removed]
    return found, read


def _bytes(rows: Sequence[Row]) -> int:
    """About what the values of some rows take."""
    return sum(len(value) for _, value in rows[::_SAMPLED]) * _SAMPLED


def _share(rows: int, slices: int) -> int:
    """How many of `rows` a slice has, or fewer, in many answers, when they fall to `slices` by a hash. (A
    round more costs less than rows that are read in vain.)"""
    if slices <= 1:
        return rows
    mean = rows / slices
    return math.ceil(mean + 0.5 * math.sqrt(mean)) + 1


def _merged(
    sources: Sequence[Sequence[_Source]], bound: bytes | None, reverse: bool, removed: bytes
) -> Sequence[Row] | None:
    """The rows up to the bound that were not taken before, the newest of each key, in order, without removal
    markers and tags; None when they cannot have been written."""
    runs: list[Iterable[Row]] = []
    count = 0
    for levels in sources:
        given: list[list[Row]] = []
        for source in levels:
            if not source.in_order:
                return None
            if rows := source.take(bound, reverse):
                given.append(rows)
        if not given:
            continue
        if len(given) == 1:
            runs.append(given[0])
            count += len(given[0])
        else:
            of_slice = dict(chain.from_iterable(given))
            runs.append(of_slice.items())
            count += len(of_slice)
    if len(runs) == 1 and isinstance(runs[0], list):
        return [(key, value[1:]) for key, value in runs[0] if value != removed]
    merged = dict(chain.from_iterable(runs))
    if len(merged) != count:
        return None
    return [(key, value[1:]) for key in sorted(merged, reverse=reverse) if (value := merged[key]) != removed]
