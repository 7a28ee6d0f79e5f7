"""The encoding of keys against a comparison written without it (fractions, lists of code points)."""

from __future__ import annotations

import struct
import sys
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keytide.collation import (
    MISSING,
    Missing,
    Span,
    Value,
    decode_key,
    decode_keys,
    encode_key,
    encode_part,
    equals_span,
    key_forms,
    merge_spans,
    prefix_span,
    skip_key,
    span,
)
from keytide.errors import InvariantViolationError
from tests import share

GREATEST = int(sys.float_info.max)
LANDMARKS = [
    0,
    1,
    255,
    2**31,
    2**53,
    2**54,
    2**63,
    2**64,
    2**1023,
    GREATEST,
    2**1024,
    10**308,
    10**400,
    10**900,
]

ordinary_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
tricky_text = st.text(
    st.sampled_from("\x00\x01\x02ab\x7f\x80\xfe\xff\u07ff\uffff\U00010000\U0001f600\U0010ffff"), max_size=5
)
texts = ordinary_text | tricky_text
integers = st.integers() | st.builds(
    lambda base, sign, step: sign * base + step,
    st.sampled_from(LANDMARKS),
    st.sampled_from([1, -1]),
    st.integers(-3, 3),
)
floats = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 0.5, 1e300, -1e300, 2.0**53, -(2.0**53), 2.0**63]
    )
    | st.sampled_from([sys.float_info.max, -sys.float_info.max])
    | st.integers(-5, 5).map(float)
)
scalars = st.none() | st.booleans() | integers | floats | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tricky_text, inner, max_size=3),
    max_leaves=10,
)
values = st.just(MISSING) | json_values
doc_ids = ordinary_text.filter(bool) | tricky_text.filter(bool)
few_values: st.SearchStrategy[Any] = st.sampled_from(
    [
        MISSING,
        None,
        False,
        True,
        -7,
        0,
        3,
        3.0,
        3.5,
        2**60,
        2**60 + 1,
        "",
        "A",
        "B",
        "Bo",
        "Bo\x00",
        "Boston",
        [],
        [1],
        [1, 2],
        {},
        {"a": 1},
    ]
)


def rank(value: Any) -> int:
    kinds: tuple[Any, ...] = (Missing, type(None), bool, (int, float), str, list, dict)
    for at, kind in enumerate(kinds):
        if isinstance(value, kind):
            return at
    raise AssertionError(value)


def sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1 as the design orders two values."""
    if rank(left) != rank(right):
        return sign(rank(left), rank(right))
    if isinstance(left, bool):
        return sign(int(left), int(right))
    if isinstance(left, int | float):
        return sign(Fraction(left), Fraction(right))
    if isinstance(left, str):
        return sign([ord(character) for character in left], [ord(character) for character in right])
    if isinstance(left, list):
        return compare_all(left, right)
    if isinstance(left, dict):
        names, others = (sorted(one, key=lambda name: [ord(c) for c in name]) for one in (left, right))
        return (
            sign(len(names), len(others))
            or compare_all(names, others)
            or compare_all([left[name] for name in names], [right[name] for name in others])
        )
    return 0


def compare_all(left: list[Any], right: list[Any], descending: tuple[bool, ...] = ()) -> int:
    """Element by element, a prefix first."""
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if (order := compare(one, other)) != 0:
            return -order if descending and descending[at] else order
    return sign(len(left), len(right))


def identical(left: Any, right: Any) -> bool:
    """Equal in type and value, -0.0 told from 0.0, members of objects in any order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(identical(left[name], right[name]) for name in left)
    return bool(left == right)


@st.composite
def keys_with_directions(
    draw: st.DrawFn, count: int = 1, part: st.SearchStrategy[Any] = values
) -> tuple[Any, ...]:
    """`count` keys of one shape, then the directions (empty, or one per part)."""
    parts = draw(st.integers(1, 3))
    directions = draw(st.just(()) | st.tuples(*[st.booleans()] * parts))
    return (*(draw(st.lists(part, min_size=parts, max_size=parts)) for _ in range(count)), directions)


@given(values, values)
@example(2**53, 2**53 + 1)
@example(2.0**53, 2**53 + 1)
@example(10**400, sys.float_info.max)
@example(-(10**400), -sys.float_info.max)
@example(-(10**400), -(10**400) - 1)
@example(-GREATEST - 1, -GREATEST)
@example(0.0, -0.0)
@example(-5e-324, 0)
@example("a", "a\x00")
@example("\uffff", "\U00010000")
@example([], [None])
@example([[]], [[], []])
@example({"a": 2}, {"b": 1})
@example({"a": 1, "b": 1}, {"z": 0})
@settings(max_examples=share.examples(600))
def test_bytes_of_a_part_order_like_the_values(left: Value, right: Value) -> None:
    order = compare(left, right)
    assert sign(encode_part(left), encode_part(right)) == order
    assert sign(encode_part(left, True), encode_part(right, True)) == -order


@given(integers | floats, integers | floats)
@settings(max_examples=share.examples(600))
def test_numbers_order_exactly(left: int | float, right: int | float) -> None:
    assert sign(encode_part(left), encode_part(right)) == sign(Fraction(left), Fraction(right))


@given(keys_with_directions(2) | keys_with_directions(2, few_values), doc_ids, doc_ids)
@settings(max_examples=share.examples(400))
def test_entry_keys_order_by_key_then_id(drawn: tuple[Any, ...], left_id: str, right_id: str) -> None:
    left, right, directions = drawn
    order = compare_all(left, right, directions) or compare(left_id, right_id)
    left_key = encode_key(left, directions) + left_id.encode()
    right_key = encode_key(right, directions) + right_id.encode()
    assert sign(left_key, right_key) == order


@given(values, values)
@settings(max_examples=share.examples(400))
def test_no_code_word_is_a_prefix_of_another(left: Value, right: Value) -> None:
    for descending in (False, True):
        one, other = encode_part(left, descending), encode_part(right, descending)
        assert one.startswith(other) == other.startswith(one) == (compare(left, right) == 0)


@given(keys_with_directions(), doc_ids)
@settings(max_examples=share.examples(500))
def test_keys_come_back_as_they_were_written(drawn: tuple[Any, ...], doc_id: str) -> None:
    key, directions = drawn
    canonical = encode_key(key, directions)
    entry_key = canonical + doc_id.encode()
    decoded, end = decode_key(entry_key, len(key), directions, key_forms(key))
    assert identical(decoded, key)
    assert entry_key[end:].decode() == doc_id
    assert skip_key(entry_key, len(key), directions) == end


@given(keys_with_directions())
def test_without_forms_numbers_keep_their_value(drawn: tuple[Any, ...]) -> None:
    key, directions = drawn
    canonical = encode_key(key, directions)
    decoded, _ = decode_key(canonical, len(key), directions)
    assert compare_all(decoded, key) == 0
    assert key_forms(decoded) == b""
    assert encode_key(decoded, directions) == canonical


@given(
    keys_with_directions(6, few_values) | keys_with_directions(3),
    st.booleans(),
    st.lists(doc_ids, min_size=6),
)
def test_keys_that_are_decoded_together_are_those_that_are_decoded_alone(
    drawn: tuple[Any, ...], in_order: bool, ids: list[str]
) -> None:
    *keys, directions = drawn
    entries = [encode_key(key, directions) + one.encode() for key, one in zip(keys * 2, ids, strict=False)]
    entries = sorted(entries) if in_order else entries
    alone = [decode_key(one, len(keys[0]), directions) for one in entries]
    together = list(decode_keys(entries, len(keys[0]), directions))
    assert [end for _, end in together] == [end for _, end in alone]
    assert all(identical(one, other) for (one, _), (other, _) in zip(together, alone, strict=True))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.integers(1, 3))
def test_foreign_bytes_among_others_are_refused_or_read(keys: list[bytes], parts: int) -> None:
    try:
        alone = [decode_key(one, parts) for one in keys]
    except InvariantViolationError:
        with pytest.raises(InvariantViolationError):
            list(decode_keys(keys, parts))
    else:
        assert repr(list(decode_keys(keys, parts))) == repr(alone)


@given(st.binary(max_size=40), st.integers(1, 3))
def test_foreign_bytes_are_refused_or_read(data: bytes, parts: int) -> None:
    for read in (decode_key, skip_key):
        try:
            read(data, parts)
        except InvariantViolationError:
            pass


@given(keys_with_directions(), st.data())
def test_a_cut_key_is_refused(drawn: tuple[Any, ...], data: st.DataObject) -> None:
    key, directions = drawn
    canonical = encode_key(key, directions)
    cut = canonical[: data.draw(st.integers(0, len(canonical) - 1))]
    with pytest.raises(InvariantViolationError):
        decode_key(cut, len(key), directions)
    with pytest.raises(InvariantViolationError):
        skip_key(cut, len(key), directions)


def one_stretch(low: list[Any], high: list[Any], directions: tuple[bool, ...]) -> bool:
    """Whether the values between the bounds lie together: one direction behind what the bounds share."""
    shared = 0
    while shared < min(len(low), len(high)) and compare(low[shared], high[shared]) == 0:
        shared += 1
    return len(set(directions[shared : max(len(low), len(high))])) <= 1


@given(keys_with_directions(12, few_values), st.data())
@settings(max_examples=share.examples(500))
def test_a_span_selects_what_a_filter_selects(drawn: tuple[Any, ...], data: st.DataObject) -> None:
    *pool, directions = drawn
    parts = len(pool[0])
    bound = st.lists(few_values, max_size=parts) | st.sampled_from(pool).flatmap(
        lambda key: st.integers(0, parts).map(lambda count: key[:count])
    )
    low, high = data.draw(bound), data.draw(bound)
    if data.draw(st.booleans()):
        high = low[:1] + high[1:]
    low_inclusive, high_inclusive = data.draw(st.booleans()), data.draw(st.booleans())
    by_value = one_stretch(low, high, directions)
    seen = () if by_value else directions

    def selected(key: list[Any]) -> bool:
        above = compare_all(key[: len(low)], low, seen) > (-1 if low_inclusive else 0)
        below = compare_all(key[: len(high)], high, seen) < (1 if high_inclusive else 0)
        return (not low or above) and (not high or below)

    made = span(low, high, low_inclusive, high_inclusive, directions, parts)
    for key in pool:
        for doc_id in (b"\x00", b"a", "\U0010ffff".encode()):
            assert (encode_key(key, directions) + doc_id in made) == selected(key), (key, low, high)


@given(
    st.lists(few_values, max_size=2),
    st.lists(few_values, min_size=1, max_size=1) | st.just([]),
    st.lists(few_values, min_size=1, max_size=1) | st.just([]),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=share.examples(300))
def test_a_range_behind_equal_parts_is_by_value_for_any_directions(
    leading: list[Any], low: list[Any], high: list[Any], directions: list[bool], inclusive: tuple[bool, bool]
) -> None:
    parts = len(leading) + 2
    made = span(leading + low, leading + high, *inclusive, directions, parts)
    for probe in [MISSING, None, False, -7, 0, 3, 3.5, "", "B", "Bo", "C", [], {}, *low, *high]:
        above = not low or compare(probe, low[0]) > (-1 if inclusive[0] else 0)
        below = not high or compare(probe, high[0]) < (1 if inclusive[1] else 0)
        if not low and leading:
            above = inclusive[0]  # equal to the lower bound in all its parts
        if not high and leading:
            below = inclusive[1]
        key = [*leading, probe, "last"]
        assert (encode_key(key, directions) + b"id" in made) == (above and below), key


@given(keys_with_directions(8, few_values), st.data())
def test_equals_and_prefix_spans_select_what_a_filter_selects(
    drawn: tuple[Any, ...], data: st.DataObject
) -> None:
    *pool, directions = drawn
    count = data.draw(st.integers(0, len(pool[0])))
    leading = data.draw(st.sampled_from(pool) | st.just([data.draw(few_values)] * len(pool[0])))[:count]
    equals = equals_span(leading, directions, len(pool[0]))
    text = data.draw(st.sampled_from(["", "B", "Bo", "Bo\x00", "Boston", "x"]))
    prefix = prefix_span(leading, text, directions, len(pool[0])) if count < len(pool[0]) else None
    for key in pool:
        entry_key = encode_key(key, directions) + b"\x00id"
        leads = compare_all(key[:count], leading) == 0
        assert (entry_key in equals) == leads
        if prefix is not None:
            assert (entry_key in prefix) == (
                leads and isinstance(key[count], str) and key[count].startswith(text)
            )


@given(tricky_text, tricky_text, st.booleans())
@example("a\x00", "a\x00\x00", False)
@example("a", "a\x00", True)
@example("\U0010ffff", "\U0010ffffb", False)
def test_prefix_spans_of_any_text(prefix: str, text: str, descending: bool) -> None:
    made = prefix_span([], prefix, (descending,), 1)
    for candidate in (text, prefix + text):
        assert (encode_part(candidate, descending) + b"id" in made) == candidate.startswith(prefix)


small_bytes = st.binary(max_size=2)


@given(
    st.lists(st.builds(Span, small_bytes, st.none() | small_bytes), max_size=6),
    st.lists(small_bytes, max_size=8),
)
def test_merged_spans_hold_the_same_and_are_disjoint(spans: list[Span], probes: list[bytes]) -> None:
    merged = merge_spans(spans)
    edges = [one.low for one in spans] + [one.high for one in spans if one.high is not None]
    for probe in probes + edges + [edge + b"\x00" for edge in edges]:
        assert any(probe in one for one in merged) == any(probe in one for one in spans)
    assert not any(one.empty for one in merged)
    for one, following in pairwise(merged):
        assert one.high is not None
        assert one.high < following.low
