"""What is read of several slices at once is what their rows are, one by one and merged, whatever their levels
hold; and what cannot have been written is left to whoever reads slice by slice."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.store import joint
from indexer.store.formats.records import PUT, REMOVED
from indexer.store.interface import Row
from indexer.store.joint import (
    LOOKED_AT,
    LOOKED_AT_BYTES,
    SPARE,
    LargeRowsError,
    LevelCursor,
    first_rows,
    rows_within,
)
from tests import share

Level = dict[bytes, bytes]
"""Tagged rows, in whatever order a test wants them given."""


class Rows:
    """A level in memory. Gives its rows in the order of the dictionary if `as_is`."""

    def __init__(self, level: Level, *, as_is: bool = False) -> None:
        self.level = level
        self.as_is = as_is
        self.read = 0
        self.large = any(len(value) > 2_000 for value in level.values())

    def begin(self, low: bytes, high: bytes | None, reverse: bool, count: int, room: int) -> list[Row]:
        rows = list(self.level.items()) if self.as_is else sorted(self.level.items(), reverse=reverse)
        self._rows = iter([row for row in rows if low <= row[0] and (high is None or row[0] < high)])
        return self.onward(count, room)

    def onward(self, count: int, room: int) -> list[Row]:
        found = list[Row]()
        for row in islice(self._rows, count):
            found.append(row)
            self.read += 1
            room -= len(row[1])
            if self.large and room < 0:
                raise LargeRowsError
        return found

    def ends(self) -> tuple[bytes, bytes] | None:
        return (min(self.level), max(self.level)) if self.level else None

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int, full: Set[bytes]
    ) -> tuple[list[Row], int]:
        spans = list(zip(lows, highs, strict=True))
        rows = list(self.level.items()) if self.as_is else sorted(self.level.items())
        rows = [row for row in rows if any(low <= row[0] < high for low, high in spans)][: most + 1]
        first = {key[behind:]: key for key, value in reversed(rows) if value != REMOVED}
        left = [
            row for row in rows if first.get(row[0][behind:], row[0]) == row[0] or row[0][behind:] in full
        ]
        return left if behind else rows, len(rows)


def read(
    slices: Sequence[Sequence[LevelCursor]],
    low: bytes,
    high: bytes | None,
    reverse: bool,
    count: int,
    *,
    clumped: bool = False,
) -> list[Row] | None:
    try:
        found = first_rows(slices, low, high, reverse, count, REMOVED, clumped=clumped)
    except LargeRowsError:
        return None
    if found is None:
        return None
    rows, looked = found
    assert len(looked) == len(slices)
    assert sum(looked) >= len(rows)
    return rows


def oracle(
    slices: Sequence[Sequence[Level]], low: bytes, high: bytes | None, reverse: bool, count: int
) -> list[Row]:
    """All rows of all slices, merged by the rule and cut."""
    live: dict[bytes, bytes] = {}
    for levels in slices:
        merged: Level = {}
        for level in levels:
            merged |= level
        live |= {key: value[1:] for key, value in merged.items() if value != REMOVED}
    inside = [row for row in live.items() if low <= row[0] and (high is None or row[0] < high)]
    return sorted(inside, reverse=reverse)[:count]


KEYS = st.integers(0, 400)
VERSIONS = st.tuples(st.integers(0, 5), st.lists(KEYS, max_size=5, unique=True), st.integers(0, 3))
"""A document, the cells it has from now on, and its value."""
VALUES = st.sampled_from([PUT, PUT + b"a", PUT + b"b", REMOVED])


@st.composite
def worlds(draw: st.DrawFn) -> list[list[Level]]:
    """Slices, each key in the slice that it belongs to: spread, or in stretches; removals in newer levels."""
    count = draw(st.integers(1, 5))
    spread = draw(st.booleans())
    slices: list[list[Level]] = [[{} for _ in range(draw(st.integers(0, 3)))] for _ in range(count)]
    for level in range(3):
        for key, value in draw(
            st.dictionaries(KEYS, VALUES, max_size=draw(st.sampled_from([3, 40, 300])))
        ).items():
            levels = slices[key % count if spread else key * count // 401]
            if level < len(levels) and (level or value != REMOVED):
                levels[level][b"k%03d" % key] = value
    return slices


@settings(max_examples=share.examples(400))
@given(worlds(), KEYS, st.none() | KEYS, st.booleans(), st.sampled_from([1, 2, 7, 40, 101, 500]))
def test_the_first_rows_are_those_of_all_slices(
    slices: list[list[Level]], low: int, high: int | None, reverse: bool, count: int
) -> None:
    bounds = (b"k%03d" % low, None if high is None else b"k%03d" % high)
    cursors: list[list[LevelCursor]] = [[Rows(level) for level in levels] for levels in slices]
    for clumped in (False, True):  # cursors are used again and again
        found = read(cursors, *bounds, reverse, count, clumped=clumped)
        assert found == oracle(slices, *bounds, reverse, count)


@settings(max_examples=share.examples(300))
@given(worlds(), st.lists(KEYS, max_size=8, unique=True).map(sorted))
def test_the_rows_of_spans_are_those_of_all_slices(slices: list[list[Level]], ends: list[int]) -> None:
    bounds = [b"k%03d" % end for end in ends]
    lows, highs = bounds[: len(bounds) // 2 * 2 : 2], bounds[1::2]
    cursors: list[list[LevelCursor]] = [[Rows(level) for level in levels] for levels in slices]
    expected = [
        row for low, high in zip(lows, highs, strict=True) for row in oracle(slices, low, high, False, 500)
    ]
    found = rows_within(cursors, lows, highs, 2_000, REMOVED)
    assert found is not None
    assert sorted(found[0]) == expected
    assert len(found[1]) == len(slices)


@settings(max_examples=share.examples(300))
@given(
    st.lists(st.lists(VERSIONS, max_size=12), min_size=1, max_size=3), st.lists(KEYS, min_size=2, max_size=8)
)
def test_of_each_document_that_is_in_spans_one_row_is_found(
    written: list[list[tuple[int, list[int], int]]], ends: list[int]
) -> None:
    """Documents have several rows, of one value, which are written and removed together."""
    levels: list[Level] = []
    cells: dict[int, list[int]] = {}
    for number, versions in enumerate(written):
        level: Level = {}
        for document, wanted, value in versions:
            for cell in cells.get(document, []):
                level.pop(b"%03d-%d" % (cell, document), None)
                if number:
                    level[b"%03d-%d" % (cell, document)] = REMOVED
            level.update({b"%03d-%d" % (cell, document): PUT + b"%d" % value for cell in wanted})
            cells[document] = wanted
        levels.append(level)
    bounds = [b"%03d" % end for end in sorted(set(ends))]
    lows, highs = bounds[: len(bounds) // 2 * 2 : 2], bounds[1::2]
    cursors: list[LevelCursor] = [Rows(level) for level in levels]
    every = rows_within([cursors], lows, highs, 2_000, REMOVED)
    some = rows_within([cursors], lows, highs, 2_000, REMOVED, 3)
    assert every is not None
    assert some is not None
    assert set(some[0]) <= set(every[0])
    assert {(key[3:], value) for key, value in some[0]} == {(key[3:], value) for key, value in every[0]}
    assert some[1] == every[1]
    if len(levels) == 1:
        assert len(some[0]) == len({key[3:] for key, _ in some[0]})


def test_rows_of_spans_that_cannot_have_been_written_are_left_to_others() -> None:
    torn = Rows({b"b": PUT, b"a": PUT}, as_is=True)
    for levels in ([torn], [Rows({b"c": PUT}), torn]):
        assert rows_within([levels], [b""], [b"z"], 10, REMOVED) is None


def test_no_slices_have_no_rows() -> None:
    assert read([], b"", None, False, 5) == []
    assert read([[]], b"", None, True, 5) == []


def test_a_page_reads_little_more_than_it_gives() -> None:
    slices = [{b"k%06d" % key: PUT for key in range(10_000) if key % 8 == at} for at in range(8)]
    cursors = [Rows(level) for level in slices]
    found = read([[one] for one in cursors], b"k005000", None, False, 101)
    assert found is not None
    assert [key for key, _ in found] == [b"k%06d" % key for key in range(5_000, 5_101)]
    assert sum(one.read for one in cursors) < 200


def test_what_lies_in_one_slice_alone_is_read_there() -> None:
    full, rest = {b"a%04d" % key: PUT for key in range(2_000)}, {b"b%04d" % key: PUT for key in range(2_000)}
    cursors = [Rows(full), *(Rows(rest if at == 1 else {}) for at in range(1, 8))]
    found = read([[one] for one in cursors], b"", None, False, 101)
    assert found is not None
    assert found == [(b"a%04d" % key, b"") for key in range(101)]
    assert cursors[1].read < 40


def test_what_would_take_long_is_left_to_others() -> None:
    """Rows that were removed are looked at, and are none of the answer: so many that a bound holds."""
    base: Level = {b"k%06d" % key: PUT for key in range(20_000)}
    delta: Level = dict.fromkeys(base, REMOVED)
    levels = Rows(base), Rows(delta)
    assert read([levels], b"", None, False, 101) is None
    assert levels[0].read + levels[1].read < 4 * (LOOKED_AT * 101 + SPARE)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_newer_level_that_is_denser_than_the_oldest_is_not_read_through(reverse: bool) -> None:
    base: Level = {b"k%06d" % key: PUT for key in range(0, 200_000, 500)}
    delta: Level = {b"k%06d" % key: PUT for key in range(200_000) if key % 500}
    levels = Rows(base), Rows(delta)
    found = read([levels], b"", None, reverse, 101)
    keys = range(199_999, 199_898, -1) if reverse else range(101)
    assert found == [(b"k%06d" % key, b"") for key in keys]
    assert levels[1].read <= 2 * 128


@pytest.mark.parametrize("count", [101, 2_000])
@pytest.mark.parametrize("removed", [1, 2])
def test_many_slices_are_not_merged_over_and_over(
    count: int, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is merged is bounded, not only what is read, and so are the rounds, each of which looks at all
    levels."""
    merged, rounds, merge = 0, 0, joint._merged

    def counted(sources: Sequence[Sequence[joint._Source]], *others: Any) -> Sequence[Row] | None:
        nonlocal merged, rounds
        before = sum(source._at for levels in sources for source in levels)
        rows = merge(sources, *others)
        merged += sum(source._at for levels in sources for source in levels) - before
        rounds += 1
        return rows

    monkeypatch.setattr(joint, "_merged", counted)
    slices = [{b"k%06d" % key: PUT for key in range(40_000) if key % 64 == at} for at in range(64)]
    gone = [dict.fromkeys(list(level)[::removed], REMOVED) for level in slices]
    read([[Rows(one), Rows(other)] for one, other in zip(slices, gone, strict=True)], b"", None, False, count)
    assert merged <= 2 * (LOOKED_AT * count + SPARE)
    assert rounds <= 60


class Asked(Rows):
    """Notes how much it was read on by, and how much was read before."""

    def __init__(self, level: Level) -> None:
        super().__init__(level)
        self.asked: list[tuple[int, int]] = []

    def onward(self, count: int, room: int) -> list[Row]:
        self.asked.append((count, self.read))
        return super().onward(count, room)


def clumps(rows: int, value: bytes = PUT, slices: int = 8) -> list[Asked]:
    """So many rows that follow one another lie in one slice, the next ones in the next."""
    return [
        Asked({b"k%06d" % key: value for key in range(8_000) if key // rows % slices == at})
        for at in range(slices)
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", [100, 1_000])
@pytest.mark.parametrize("clumped", [False, True])
def test_of_a_clump_nothing_is_read_but_what_is_wanted(rows: int, reverse: bool, clumped: bool) -> None:
    levels = clumps(rows)
    found = read([[one] for one in levels], b"", None, reverse, 101, clumped=clumped)
    assert found == [(b"k%06d" % (7_999 - key if reverse else key), b"") for key in range(101)]
    begun = len(levels) * levels[0].asked[0][0]
    assert begun == len(levels) * (4 if clumped else 16)
    assert sum(one.read for one in levels) - begun <= 101
    assert sum(bool(one.asked[1:]) for one in levels) == 1, "slices that have nothing of it were read on"


@pytest.mark.parametrize("rows", [1, 10, 20, 30, 50])
@pytest.mark.parametrize("count", [101, 1_001])
def test_where_clumps_are_small_they_cost_little(
    rows: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken for a clump ends soon: not half as much more is read as without looking for any."""

    def all_that_is_read() -> int:
        levels = clumps(rows)
        assert len(read([[one] for one in levels], b"", None, False, count) or ()) == count
        return sum(one.read for one in levels)

    looking = all_that_is_read()
    monkeypatch.setattr(joint, "_CLUMPS", 0)
    assert looking <= 1.4 * all_that_is_read()


def test_large_rows_that_were_removed_are_left_to_others() -> None:
    """They are all held at once: fewer of them are."""
    base: Level = {b"k%06d" % key: PUT + bytes(100_000) for key in range(1_000)}
    delta: Level = dict.fromkeys(base, REMOVED)
    levels = Rows(base), Rows(delta)
    assert read([levels], b"", None, False, 21) is None
    assert levels[0].read * 100_000 < 2 * LOOKED_AT_BYTES


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("slices", [1, 3, 40])
def test_large_rows_are_left_to_others_before_they_are_all_read(slices: int, reverse: bool) -> None:
    """However many slices share them: what is held at once is bounded."""
    each = [
        Rows({b"k%06d" % key: PUT + bytes(100_000) for key in range(at, 1_000, slices)})
        for at in range(slices)
    ]
    levels: list[list[LevelCursor]] = [[one] for one in each]
    assert read(levels, b"", None, reverse, 1_000) is None
    assert sum(one.read for one in each) * 100_000 < 1.1 * LOOKED_AT_BYTES
    few = read(levels, b"", None, reverse, 20)
    assert few is not None
    assert len(few) == 20


def test_of_spans_with_large_rows_no_more_is_looked_at_than_may_be() -> None:
    """All that is in them is held at once: however few they are, they are many. (A hash index has its keys in
    values.)"""
    each: list[list[LevelCursor]] = [
        [Rows({b"%d-%04d" % (number, key): PUT + bytes(100_000) for key in range(50)})] for number in range(8)
    ]
    found = rows_within(each, [b"0"], [b"9"], 1_000, REMOVED)
    assert found is not None
    assert sum(found[1]) > 1_000
    assert len(found[0]) * 100_000 < 2 * LOOKED_AT_BYTES
    found = rows_within(each[:1], [b"0"], [b"9"], 1_000, REMOVED)
    assert found is not None
    assert (len(found[0]), found[1]) == (50, [50])


def test_what_cannot_have_been_written_is_left_to_others() -> None:
    torn = Rows({b"b": PUT, b"a": PUT, b"c": PUT}, as_is=True)
    assert read([[torn]], b"", None, False, 10) is None
    twice: list[list[LevelCursor]] = [[Rows({b"a": PUT, b"b": PUT})], [Rows({b"b": PUT})]]
    assert read(twice, b"", None, False, 10) is None
    in_newer: list[list[LevelCursor]] = [
        [Rows({b"a": PUT}), Rows({b"b": PUT})],
        [Rows({}), Rows({b"b": PUT})],
    ]
    assert read(in_newer, b"", None, True, 10) is None
