"""Entry values, and the keys of long entries."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.collation import encode_key
from keytide.errors import InvariantViolationError
from keytide.model.entry import (
    INLINE_LIMIT,
    MAX_ID_BYTES,
    long_group,
    long_key,
    pack_value,
    unpack_value,
)

LMDB_LIMIT = 511


def test_nothing_to_hold_is_no_bytes() -> None:
    assert pack_value(b"") == pack_value(b"", None) == b""
    assert unpack_value(b"") == (b"", None)


@pytest.mark.parametrize("forms", [b"", b"\x00", b"\x80\x01"])
@pytest.mark.parametrize("include", [None, b"{}", b'{"a":1}'])
def test_values_come_back(forms: bytes, include: bytes | None) -> None:
    value = pack_value(forms, include)
    assert unpack_value(value) == (forms, include)
    if value:
        assert msgspec.msgpack.decode(value) == [forms, include]


@pytest.mark.parametrize("value", [b"\x00", b"\x93\xc4\x00\xc0\xc0", b"\x92\xc4", b"garbage"])
def test_foreign_values_are_our_bug(value: bytes) -> None:
    with pytest.raises(InvariantViolationError, match="EntryDecodes"):
        unpack_value(value)


def test_the_limit_leaves_room_below_that_of_lmdb() -> None:
    assert INLINE_LIMIT < LMDB_LIMIT
    assert len(long_key(b"k" * 16_000, b"i" * MAX_ID_BYTES)) == 416 < LMDB_LIMIT


def test_long_keys_differ_by_key_and_by_id() -> None:
    shared = encode_key(["x" * 600])[:500]
    keys = {
        long_key(shared + tail, doc_id) for tail in (b"a\x00\x01", b"b\x00\x01") for doc_id in (b"1", b"2")
    }
    assert len(keys) == 4
    assert {long_group(key) for key in keys} == {shared[:400]}
    assert long_key(shared, b"1") == long_key(shared, b"1")


texts = st.builds(
    lambda head, length, tail: head + "x" * length + tail,
    st.text("ab", max_size=2),
    st.integers(240, 420),
    st.text("ab", max_size=2),
)


@given(texts, texts, st.booleans())
def test_groups_of_the_long_table_are_in_key_order(left: str, right: str, descending: bool) -> None:
    one, other = encode_key([left], (descending,)), encode_key([right], (descending,))
    group, other_group = long_group(long_key(one, b"i" * 250)), long_group(long_key(other, b"j" * 250))
    if group < other_group:
        assert one < other
        assert long_key(one, b"i" * 250) < long_key(other, b"j" * 250)
    elif one == other:
        assert group == other_group
