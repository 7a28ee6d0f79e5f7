"""Byte strings by columns against lists of objects: the same order, comparisons, searches and choices, of
strings that have anything at their ends, and are much alike."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.model import byte_columns
from keytide.model.byte_columns import (
    PADDING,
    ByteColumn,
    Bytes,
    EntryColumns,
    Places,
    Words,
    ascending,
    gathered,
    joined,
    joined_entries,
    order_of,
)
from tests import share

likely = st.sampled_from(
    [
        *(b"", b"\0", b"\0" * 8, b"\0" * 17, b"a", b"a\0"),
        *(b"abcdefgh", b"abcdefgh\0", b"abcdefghi", b"\xff" * 8, b"\xff" * 9),
    ]
)
strings = st.tuples(likely, st.binary(max_size=3) | likely).map(b"".join) | st.binary(max_size=40)
lists = st.lists(strings, max_size=40)
long_strings = st.tuples(st.sampled_from([b"z" * 60, b"z" * 72, b"z" * 300]), strings).map(b"".join)


@settings(max_examples=share.examples(600), deadline=None)
@given(
    st.lists(strings | long_strings, max_size=40),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 4, byte_columns.FEW]),
    st.sampled_from([1, 2, byte_columns.MOST_PASSES]),
    st.sampled_from([8, byte_columns.MOST_BYTES]),
)
def test_columns_are_ordered_as_lists_are(
    items: list[bytes], in_order: bool, reverse: bool, few: int, passes: int, size: int
) -> None:
    if in_order:
        items = sorted(set(items), reverse=reverse)
    with (
        mock.patch.object(byte_columns, "FEW", few),
        mock.patch.object(byte_columns, "MOST_PASSES", passes),
        mock.patch.object(byte_columns, "MOST_BYTES", size),
    ):
        check_order(items)


def check_order(items: list[bytes]) -> None:
    column = ByteColumn.of(items)
    order, steps = order_of(column)
    assert order.tolist() == sorted(range(len(items)), key=items.__getitem__)
    found = column.take(order).items()
    assert found == sorted(items)
    if steps is None:
        assert len(set(items)) == len(items)
    else:
        assert steps.tolist() == [one != other for one, other in pairwise(found)]
        assert not steps.all()
    assert ascending(column) == all(one < other for one, other in pairwise(items))
    assert ascending(column, reverse=True) == all(one > other for one, other in pairwise(items))


def words_read(items: list[bytes]) -> int:
    """Words that are looked at to put these strings in order, and to see that they are."""
    read = 0
    words_at = byte_columns.words_at

    def counted(data: Bytes, places: Places) -> Words:
        nonlocal read
        read += len(places)
        return words_at(data, places)

    with mock.patch.object(byte_columns, "words_at", counted):
        check_order(items)
        check_order(items[::2] + items[1::2])
    return read


@pytest.mark.parametrize(
    "few",
    [
        [b"z" * 16_000 + b"a", b"z" * 16_000 + b"b"],
        [b"z" * 5_000 + b"%04d" % at for at in range(1_000)],
        [b"z" * 40, b"z" * 40 + b"\0"],
    ],
    ids=["two that are long", "many that are long", "zeros at the end"],
)
def test_strings_that_are_alike_do_not_drag_the_others_along(few: list[bytes]) -> None:
    many = [b"k%020d" % (at * 7919) for at in range(3_000)]
    assert words_read(many + few) < words_read(many) + 50 * max(len(few), byte_columns.FEW)


def test_equal_strings_are_found_without_an_object_for_each() -> None:
    items = sorted([b"k%020d" % at for at in range(3_000)] * 2)
    with mock.patch.object(ByteColumn, "items", side_effect=AssertionError):
        order, steps = order_of(ByteColumn.of(items))
    assert order.tolist() == [*range(6_000)]
    assert steps is not None
    assert steps.tolist() == [one != other for one, other in pairwise(items)]


@settings(max_examples=share.examples(200), deadline=None)
@given(lists, strings, st.data())
def test_columns_are_cut_and_searched_as_lists_are(
    items: list[bytes], key: bytes, data: st.DataObject
) -> None:
    items.sort()
    column = ByteColumn.of(items)
    assert (column.rows, column.size, column.items()) == (len(items), sum(map(len, items)), items)
    assert column.before(key) == bisect_left(items, key)
    assert column.before(key, equal=True) == bisect_right(items, key)
    backwards = ByteColumn.of(items[::-1])
    assert backwards.before(key, reverse=True) == len(items) - bisect_right(items, key)
    assert backwards.before(key, reverse=True, equal=True) == len(items) - bisect_left(items, key)
    begin = data.draw(st.integers(0, len(items)))
    end = data.draw(st.integers(begin, len(items)))
    part = column.part(begin, end)
    assert part.items() == items[begin:end]
    assert (
        joined([part, column, ByteColumn.of([]), part]).items() == items[begin:end] + items + items[begin:end]
    )
    assert joined([]).items() == []
    padded = np.concatenate([column.data, np.frombuffer(PADDING, np.uint8)])
    ends = [one[: len(one) // 2] for one in items]
    halves = gathered(padded, column.offsets[:-1][::-1], column.lengths[::-1] // 2)
    assert halves.items() == ends[::-1]


@settings(max_examples=share.examples(100), deadline=None)
@given(st.lists(st.lists(st.tuples(strings, st.sampled_from([b"", b"", b"value"])), max_size=5), max_size=4))
def test_entries_are_joined_with_their_values(parts: list[list[tuple[bytes, bytes]]]) -> None:
    columns = [EntryColumns.of(part) for part in parts]
    whole = joined_entries(columns)
    assert whole.items() == [entry for part in parts for entry in part]
    assert (whole.values is None) == (not any(value for part in parts for _, value in part))
    assert whole.size == sum(len(key) + len(value) for part in parts for key, value in part)
