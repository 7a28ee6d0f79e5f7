"""What operations, casts and conditions give, value by value."""

from __future__ import annotations

import pytest

from keytide.collation import MISSING, Json, Value
from keytide.definition import semantics
from keytide.definition.semantics import LikePattern


def same(left: Value, right: Value) -> bool:
    return type(left) is type(right) and left == right


@pytest.mark.parametrize(
    ("function", "left", "right", "result"),
    [
        ("add", 2**53, 1, 2**53 + 1),
        ("add", 1, 0.5, 1.5),
        ("add", 1, "1", None),
        ("add", True, 1, None),
        ("add", None, 1, None),
        ("add", MISSING, None, MISSING),
        ("add", 10**400, 1.0, None),
        ("add", 1e308, 1e308, None),
        ("subtract", 1, 10**30, 1 - 10**30),
        ("multiply", 10**30, 10**30, 10**60),
        ("multiply", 1e200, 1e200, None),
        ("divide", 6, 3, 2),
        ("divide", 7, 2, 3.5),
        ("divide", -7, 2, -3.5),
        ("divide", 7.0, 2, 3.5),
        ("divide", 1, 0, None),
        ("divide", 1.0, 0, None),
        ("divide", 10**400 + 1, 10, None),
        ("divide", MISSING, 0, MISSING),
        ("modulo", 7, 3, 1),
        ("modulo", -7, 3, -1),
        ("modulo", 7, -3, 1),
        ("modulo", -7.5, 2, -1.5),
        ("modulo", 7, 0, None),
        ("modulo", 7.0, 0.0, None),
        ("concatenate", "a", "b", "ab"),
        ("concatenate", "a", 1, None),
        ("concatenate", "a", MISSING, MISSING),
    ],
)
def test_operators(function: str, left: Value, right: Value, result: Value) -> None:
    assert same(getattr(semantics, function)(left, right), result)


@pytest.mark.parametrize(
    ("function", "value", "result"),
    [
        ("lower", "ÄB", "äb"),
        ("upper", "straße", "STRASSE"),
        ("length", "a😀", 2),
        ("length", [1], None),
        ("lower", 1, None),
        ("upper", MISSING, MISSING),
        ("negate", 5, -5),
        ("negate", True, None),
        ("cast_text", 5.0, "5"),
        ("cast_text", -0.0, "0"),
        ("cast_text", 0.1, "0.1"),
        ("cast_text", True, "true"),
        ("cast_text", [1], None),
        ("cast_bigint", 2.5, 2),
        ("cast_bigint", 3.5, 4),
        ("cast_bigint", 1e20, 10**20),
        ("cast_bigint", " +12 ", 12),
        ("cast_bigint", "1.5", None),
        ("cast_bigint", "١", None),
        ("cast_bigint", "1" * 5000, None),
        ("cast_bigint", False, 0),
        ("cast_bigint", MISSING, MISSING),
        ("cast_double", 1, 1.0),
        ("cast_double", 10**400, None),
        ("cast_double", "-1.5e3", -1500.0),
        ("cast_double", "1e999", None),
        ("cast_double", "nan", None),
        ("cast_double", "", None),
        ("cast_boolean", "Yes", True),
        ("cast_boolean", "of", False),
        ("cast_boolean", "o", None),
        ("cast_boolean", 2, True),
        ("cast_boolean", 0.0, False),
        ("cast_boolean", None, None),
    ],
)
def test_functions(function: str, value: Value, result: Value) -> None:
    assert same(getattr(semantics, function)(value), result)


def test_numbers_of_more_digits_than_python_writes_become_null() -> None:
    assert semantics.cast_text(10**5000) is None


def test_coalesce() -> None:
    assert semantics.coalesce(MISSING, None, 0, 1) == 0
    assert semantics.coalesce(MISSING, None) is None
    assert semantics.coalesce(MISSING) is None


@pytest.mark.parametrize(
    ("left", "right", "equal", "less"),
    [
        (1, 1.0, True, False),
        (2**53, 2**53 + 1, False, True),
        (float(2**53), 2**53 + 1, False, True),
        ("a", "b", False, True),
        ("\uffff", "😀", False, True),
        (False, True, False, True),
        (1, True, False, None),
        (1, "1", False, None),
        (None, 1, None, None),
        (None, None, None, None),
        (MISSING, 1, None, None),
        ([1, 2], [1, 2.0], True, False),
        ([1], [1, 2], False, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, False),
        ([], {}, False, None),
    ],
)
def test_comparisons(left: Value, right: Value, equal: bool | None, less: bool | None) -> None:
    assert semantics.equal(left, right) is equal
    assert semantics.less(left, right) is less
    assert semantics.less_or_equal(left, right) is (None if less is None else less or equal)


def test_values_too_deep_for_an_order_compare_as_unknown() -> None:
    deep: Json = 1
    for _ in range(100):
        deep = [deep]
    assert semantics.equal(deep, deep) is None
    assert semantics.less(deep, deep) is None


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("a%", "a", True),
        ("%c", "abc", True),
        ("%b%", "abc", True),
        ("a%a", "a", False),
        ("a_c", "a\nc", True),
        ("_%_", "a", False),
        ("_%_", "ab", True),
        ("%", "", True),
        ("", "", True),
        ("", "a", False),
        ("%ab%b", "ab", False),
        ("%ab%b", "abb", True),
        ("a.c", "abc", False),
        ("100\\%", "100%", True),
        ("100\\%", "1000", False),
        ("\\_%", "_x", True),
        ("%a_c%c%", "xabcabcc", True),
    ],
)
def test_like(pattern: str, text: str, matches: bool) -> None:
    assert LikePattern(pattern, "\\")(text) is matches


def test_like_of_other_values_is_unknown() -> None:
    assert LikePattern("%", "\\")(1) is None
    assert LikePattern("%", "\\")(MISSING) is None
    assert LikePattern("a!%", "!")("a%") is True
    assert LikePattern("a\\%", "")("a\\x") is True


@pytest.mark.timeout(60)
def test_like_does_not_backtrack() -> None:
    assert LikePattern("%a%a%a%a%a%a%b", "\\")("a" * 500_000) is False
