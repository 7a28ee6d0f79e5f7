"""Keys in short: they stay apart, keep their shape, and have a limit."""

from __future__ import annotations

import pytest

from keytide.collation import LONGEST_TOLD, MISSING, Json, Value, decode_key, encode_key, told_key
from keytide.definition.index import MAX_KEY_PARTS
from keytide.errors import InvariantViolationError
from keytide.model.entry import MAX_KEY_BYTES

ONES: list[Json] = [1]
LONG: list[Value] = [
    "x" * 20_000,
    "x" * 20_000 + "y",
    "é" * 20_000,
    "\0" * 20_000,
    ONES * 3_000,
    [*ONES * 2_999, 2],
    {"a": ["x" * 20_000]},
    10**40_000,
    -(10**40_000),
]


def test_what_a_btree_may_hold_is_told_as_it_is() -> None:
    assert LONGEST_TOLD >= MAX_KEY_BYTES
    key = encode_key(["x" * (LONGEST_TOLD - 3)])
    assert len(key) == LONGEST_TOLD
    assert told_key(key, 1) == key


@pytest.mark.parametrize("descending", [(), (True, False, True), (False, True, False)])
def test_long_keys_stay_apart_and_keep_their_shape(descending: tuple[bool, ...]) -> None:
    keys = {encode_key(["a", one, MISSING], descending) for one in LONG}
    keys |= {encode_key([one, "x" * 20_000, None], descending) for one in LONG}
    told = {told_key(key, 3, descending) for key in keys}
    assert len(told) == len(keys) == 2 * len(LONG)
    for one in told:
        assert len(one) < 2_000
        values, end = decode_key(one, 3, descending)
        assert end == len(one)
        assert encode_key(values, descending) == one
        assert told_key(one, 3, descending) == one
        assert values[2] in (MISSING, None)
        assert values[0] == "a" or values[1] != "a"


def test_it_says_how_a_string_begins_and_what_else_there_was() -> None:
    for value, begins in (("abc" * 9_000, "abcabc"), (ONES * 9_000, "an array (90,002 bytes, digest ")):
        (shown,), _ = decode_key(told_key(encode_key([value]), 1), 1)
        assert isinstance(shown, str)
        assert shown.startswith(begins)


@pytest.mark.parametrize("value", ["\0" * 600, "é" * 300, LONG[4]])
def test_as_many_long_parts_as_there_may_be_are_within_the_limit(value: Value) -> None:
    key = encode_key([value] * MAX_KEY_PARTS)
    assert len(told_key(key, MAX_KEY_PARTS)) <= LONGEST_TOLD


def test_what_is_no_key_is_an_error() -> None:
    with pytest.raises(InvariantViolationError):
        told_key(b"\xee" * (LONGEST_TOLD + 1), 2)
