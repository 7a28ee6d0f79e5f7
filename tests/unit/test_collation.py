"""Key encoding: the bytes on disk pinned, hostile values, forms, refusals, limits."""

from __future__ import annotations

import copy
import decimal
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from keytide.collation import (
    MAX_DEPTH,
    MISSING,
    NotIndexableError,
    Span,
    decode_key,
    encode_key,
    encode_part,
    equals_span,
    key_forms,
    merge_spans,
    prefix_span,
    skip_key,
    span,
    successor,
    to_json_value,
)
from keytide.errors import CallerError, InvariantViolationError

GREATEST = int(sys.float_info.max)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (MISSING, "08"),
        (None, "10"),
        (False, "18"),
        (True, "19"),
        (-1, "20 400fffffffffffff 00"),
        (0, "21 0000000000000000 00"),
        (-0.0, "21 0000000000000000 00"),
        (1, "21 3ff0000000000000 00"),
        (1.0, "21 3ff0000000000000 00"),
        (2**53, "21 4340000000000000 00"),
        (2**53 + 1, "21 4340000000000000 01 01"),
        (-(2**53) - 1, "20 3cbffffffffffffe 01 01"),
        (GREATEST + 256, "21 7fefffffffffffff 02 0100"),
        (-GREATEST - 256, "20 000fffffffffffff fd feff"),
        ("", "30 0001"),
        ("a\x00b", "30 61 00ff 62 0001"),
        ("é", "30 c3a9 0001"),
        ([], "40 01"),
        ([None, ["x"]], "40 10 40 30 78 0001 01 01"),
        ({}, "50 00"),
        ({"b": None, "a\x00": True}, "50 02 61 00ff 0001 62 0001 19 10"),
    ],
)
def test_the_bytes_are_pinned_because_they_are_on_disk(value: Any, encoded: str) -> None:
    expected = bytes.fromhex(encoded)
    assert encode_part(value) == expected
    assert encode_part(value, descending=True) == bytes(byte ^ 0xFF for byte in expected)


def test_a_string_is_encoded_alike_at_the_top_and_inside() -> None:
    for text in ("", "Boston", "\x00", "a\x00\x00b", "\U0001f600"):
        assert encode_part([text]) == b"\x40" + encode_part(text) + b"\x01"


ASCENDING: list[Any] = [
    MISSING,
    None,
    False,
    True,
    -(10**5000),
    -(10**400) - 1,
    -(10**400),
    -GREATEST - 2**1100,
    -GREATEST - 1,
    -GREATEST,
    -(2**53) - 2,
    -(2**53) - 1,
    -(2**53),
    -1.5,
    -1,
    -5e-324,
    0,
    5e-324,
    sys.float_info.min,
    1,
    1.5,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**53 + 2,
    10**308,
    1.1e308,
    GREATEST - 1,
    GREATEST,
    GREATEST + 1,
    2**1024,
    10**400,
    10**400 + 1,
    10**5000,
    "",
    "\x00",
    "\x00\x00",
    "\x00a",
    "\x01",
    "A",
    "A\x00",
    "A\x01",
    "a",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
    [],
    [None],
    [None, None],
    [[]],
    [{}],
    {},
    {"z": 1},
    {"a": None, "b": None},
    {"a": 1, "b": None},
    {"a": 1, "c": None},
    {str(number): 0 for number in range(247)},
    {str(number): 0 for number in range(248)},
    {str(number): 0 for number in range(300)},
]


@pytest.mark.parametrize("descending", [False, True])
def test_hostile_values_keep_their_order_and_come_back(descending: bool) -> None:
    encoded = [encode_part(value, descending) for value in ASCENDING]
    assert encoded == sorted(set(encoded), reverse=descending)
    for value, part in zip(ASCENDING, encoded, strict=True):
        for doc_id in (b"\x00", b"\x01", b"id", "\U0010ffff".encode()):
            values, end = decode_key(part + doc_id, 1, (descending,), key_forms([value]))
            assert values == [value]
            assert type(values[0]) is type(value)
            assert end == len(part) == skip_key(part + doc_id, 1, (descending,))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], {"a": -math.inf}])
def test_non_finite_numbers_are_refused(value: Any) -> None:
    with pytest.raises(NotIndexableError, match="not finite") as caught:
        encode_key(["Boston", value])
    assert isinstance(caught.value, CallerError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.problem_type == "not-indexable"


@pytest.mark.parametrize("value", ["ab\ud800", "ab\udfff\x00", ["ab\ud800"], {"ab\ud800": 1}])
def test_lone_surrogates_are_refused_with_their_place(value: Any) -> None:
    with pytest.raises(NotIndexableError, match="character 2"):
        encode_part(value)


@pytest.mark.parametrize(
    "value", [b"bytes", decimal.Decimal(1), (1,), {1: 2}, [MISSING], {"a": MISSING}, object()]
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    key_forms([value])
    with pytest.raises(NotIndexableError):
        encode_part(value)


def test_nesting_has_a_stated_limit() -> None:
    deepest = nested(MAX_DEPTH)
    encoded = encode_part(deepest)
    assert decode_key(encoded, 1) == ([deepest], len(encoded))
    for depth in (MAX_DEPTH + 1, 100_000):
        key_forms([nested(depth)])
        with pytest.raises(NotIndexableError, match="nested"):
            encode_part(nested(depth))
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = {"a": value}
    with pytest.raises(NotIndexableError, match="nested"):
        encode_part(value)


@pytest.mark.parametrize(
    ("key", "forms"),
    [
        (["Boston", 3, 2.5, True, None, MISSING], ""),
        ([5.0], "00"),
        ([-0.0], "01"),
        ([1, 5.0, [2, -0.0], {"b": 1e300, "a": 7}], "02 07 0a"),
        ([[0] * 64 + [1.0]], "8001"),
    ],
)
def test_forms_note_integral_floats_by_ordinal(key: list[Any], forms: str) -> None:
    assert key_forms(key) == bytes.fromhex(forms)
    decoded, _ = decode_key(encode_key(key), len(key), (), bytes.fromhex(forms))
    assert repr(decoded) == repr(key).replace("{'b': 1e+300, 'a': 7}", "{'a': 7, 'b': 1e+300}")


def test_integral_doubles_decode_as_integers_without_forms() -> None:
    (five, big), _ = decode_key(encode_key([5.0, 1e300]), 2)
    assert (type(five), five) == (int, 5)
    assert (type(big), big) == (int, int(1e300))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff",
        b"\x30abc",
        b"\x30\xff\x00\x01",
        b"\x21\x00\x00",
        b"\x21" + b"\x40" * 8 + b"\x05\x01",
        b"\x40" * 10_000,
    ],
)
def test_bytes_that_are_no_key_are_our_bug(data: bytes) -> None:
    with pytest.raises(InvariantViolationError, match="KeyDecodes"):
        decode_key(data, 1)


def test_forms_that_end_within_a_number_are_our_bug() -> None:
    with pytest.raises(InvariantViolationError, match="KeyDecodes"):
        decode_key(encode_key([1, 2]), 2, (), b"\x00\x80")


def test_missing_is_one_falsy_thing() -> None:
    assert not MISSING
    assert repr(MISSING) == "MISSING"
    assert copy.deepcopy(MISSING) is MISSING
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert to_json_value(MISSING) is None
    assert to_json_value("x") == "x"


def test_directions_must_cover_the_key() -> None:
    with pytest.raises(InvariantViolationError):
        encode_key(["a", "b"], (True,))


@pytest.mark.parametrize("descending", [(), (True,), (False,)])
def test_bounds_of_one_part_are_by_value_whatever_the_direction(descending: tuple[bool, ...]) -> None:
    def chosen(made: Span) -> list[int]:
        return [number for number in range(10) if encode_key([number], descending) + b"id" in made]

    assert chosen(span([3], [6], True, True, descending, 1)) == [3, 4, 5, 6]
    assert chosen(span([3], [6], True, False, descending, 1)) == [3, 4, 5]
    assert chosen(span([3], [6], False, True, descending, 1)) == [4, 5, 6]
    assert chosen(span([3], [6], False, False, descending, 1)) == [4, 5]
    assert chosen(span([8], None, False, False, descending, 1)) == [9]
    assert chosen(span(None, [2], True, True, descending, 1)) == [0, 1, 2]
    assert chosen(span(None, [], True, True, descending, 1)) == list(range(10))
    assert span([6], [3], True, True, descending, 1).empty


def test_a_range_behind_an_equal_part_is_by_value_in_mixed_directions() -> None:
    directions = (False, True)
    made = span(["A", 3], ["A", 6], True, False, directions, 2)
    chosen = [
        (city, number)
        for city in "AB"
        for number in range(10)
        if encode_key([city, number], directions) + b"id" in made
    ]
    assert chosen == [("A", 3), ("A", 4), ("A", 5)]


def test_bounds_of_mixed_directions_are_places_in_the_index() -> None:
    directions = (False, True)  # the index's order: A 9 ... A 0, B 9 ... B 0
    made = span(["A", 3], ["B", 8], True, True, directions, 2)
    chosen = [
        (city, number)
        for city in "AB"
        for number in range(10)
        if encode_key([city, number], directions) + b"id" in made
    ]
    assert chosen == [("A", 0), ("A", 1), ("A", 2), ("A", 3), ("B", 8), ("B", 9)]


def test_more_parts_than_the_key_has_are_the_callers_fault() -> None:
    attempts: list[Callable[[], Span]] = [
        lambda: span(["a", "b"], None, True, True, (), 1),
        lambda: span(None, ["a", "b"], True, True, (), 1),
        lambda: equals_span(["a", "b"], (), 1),
        lambda: prefix_span(["a"], "b", (), 1),
    ]
    for make in attempts:
        with pytest.raises(CallerError, match="the index has 1") as caught:
            make()
        assert caught.value.next_step


def test_successor_is_just_above_every_continuation() -> None:
    assert successor(b"a") == b"b"
    assert successor(b"a\xff\xff") == b"b"
    with pytest.raises(InvariantViolationError):
        successor(b"\xff")


def test_merging_joins_touching_and_overlapping_spans() -> None:
    spans = [
        Span(b"d", b"e"),
        Span(b"a", b"b"),
        Span(b"b", b"c"),
        Span(b"x", b"x"),
        Span(b"dd", b"f"),
        Span(b"y"),
        Span(b"z", b"zz"),
    ]
    assert merge_spans(spans) == [Span(b"a", b"c"), Span(b"d", b"f"), Span(b"y")]
    assert merge_spans([]) == []
