"""Sums over entries: the same however a set of entries is cut and ordered, and others for any other set."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.model.timestamp import TABLE_PARTITION
from keytide.wire.entry_sums import NO_ENTRIES, EntrySums, content_of, sums_of, versions_of
from tests import share


class Entry(NamedTuple):
    key: bytes
    value: bytes
    partition: int
    offset: int


ENTRIES = st.lists(
    st.builds(
        Entry,
        st.binary(min_size=1, max_size=6),
        st.binary(max_size=4),
        st.sampled_from([0, 1, 7, TABLE_PARTITION]),
        st.integers(0, (1 << 62) - 1),
    ),
    max_size=30,
)


def total(entries: Sequence[Entry]) -> EntrySums:
    keys, values, partitions, offsets = zip(*entries, strict=True) if entries else ((), (), (), ())
    return sums_of(keys, values, partitions, offsets)


@given(ENTRIES, st.randoms(use_true_random=False), st.integers(1, 5))
@settings(max_examples=share.examples(200))
def test_order_and_parts_make_no_difference(entries: list[Entry], chance: random.Random, parts: int) -> None:
    mixed = list(entries)
    chance.shuffle(mixed)
    cuts = sorted(chance.randrange(len(mixed) + 1) for _ in range(parts))
    pieces = [mixed[start:end] for start, end in zip([0, *cuts], [*cuts, len(mixed)], strict=True)]
    summed = NO_ENTRIES
    for piece in pieces:
        summed = summed.plus(total(piece))
    assert summed == total(entries)


@given(ENTRIES, st.randoms(use_true_random=False), st.integers(1, 5))
@settings(max_examples=share.examples(100))
def test_both_trees_of_a_slice_sum_up_to_what_was_projected(
    entries: list[Entry], chance: random.Random, size: int
) -> None:
    """Whatever blocks they are read in, and whether a block has any values."""
    forward = sorted(entries)
    back = list(entries)
    chance.shuffle(back)
    found = NO_ENTRIES
    for start in range(0, len(forward), size):
        some = forward[start : start + size]
        values = [one.value for one in some]
        content = content_of([one.key for one in some], values if any(values) else None)
        found = found.plus(EntrySums(len(some), content))
    for start in range(0, len(back), size):
        some = back[start : start + size]
        versions = versions_of(
            [one.key for one in some], [one.partition for one in some], [one.offset for one in some]
        )
        found = found.plus(EntrySums(0, 0, versions))
    assert found == total(entries)


GIVEN = [Entry(b"k%d" % at, b"v%d" % (at % 3) if at % 4 else b"", at % 2, 100 + at) for at in range(12)]


def _swapped(entries: list[Entry], one: int, other: int, *names: str) -> list[Entry]:
    first, second = entries[one], entries[other]
    entries[one] = first._replace(**{name: getattr(second, name) for name in names})
    entries[other] = second._replace(**{name: getattr(first, name) for name in names})
    return entries


@pytest.mark.parametrize(
    "change",
    [
        lambda some: some[1:],
        lambda some: [*some, some[0]],
        lambda some: [*some[2:], some[2], some[2]],  # as many, and others
        lambda some: [some[0]._replace(key=b"k"), *some[1:]],
        lambda some: [some[0]._replace(value=b"\x00"), *some[1:]],
        lambda some: [some[1]._replace(value=b""), *some[2:], some[0]],
        lambda some: [some[0]._replace(partition=1), *some[1:]],
        lambda some: [some[0]._replace(offset=101), *some[1:]],
        lambda some: _swapped(some, 1, 2, "value"),
        lambda some: _swapped(some, 0, 2, "offset"),
        lambda some: _swapped(some, 0, 1, "partition", "offset"),
    ],
)
def test_any_other_entries_sum_up_to_something_else(change: Callable[[list[Entry]], list[Entry]]) -> None:
    assert total(change(list(GIVEN))) != total(GIVEN)


def test_sums_do_not_change_with_a_release() -> None:
    """A driver and a node of two releases work them out."""
    assert total(GIVEN) == EntrySums(12, 2374747371899833195, 12940000185007224317)
