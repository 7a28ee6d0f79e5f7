"""Byte strings by columns against lists of objects: the same order, comparisons, searches and choices, of
strings that have anything at their ends, and are much alike."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.model.byte_columns import (
    PADDING,
    ByteColumn,
    EntryColumns,
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


@settings(max_examples=share.examples(400), deadline=None)
@given(lists, st.booleans(), st.booleans())
def test_columns_are_ordered_as_lists_are(items: list[bytes], in_order: bool, reverse: bool) -> None:
    if in_order:
        items = sorted(set(items), reverse=reverse)
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
