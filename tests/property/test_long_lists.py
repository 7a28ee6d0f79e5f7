"""Long lists of constants behind IN mean what short ones do, however they are parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.definition import InvalidStatementError, sql
from keytide.query import Select, parse_query

constants = st.one_of(
    st.integers(0, 10**25).map(str),
    st.decimals(0, 10**6, places=3).map(str),
    st.text("aß'\\\"\n,()", max_size=4).map(lambda text: "'" + text.replace("'", "''") + "'"),
)
others = st.sampled_from(
    ["-1", "NULL", "true", "b", "2 + 2", "1e999", "(3)", "'a' 'b'", "1::text", "", "1 2", "IN (1)"]
)
lists = st.lists(st.one_of(constants, constants, constants, others), min_size=1, max_size=6)


def read(text: str) -> Select | tuple[str, int]:
    try:
        return parse_query(text)
    except InvalidStatementError as error:
        return error.message, error.column


@given(st.lists(lists, min_size=1, max_size=3), st.sampled_from(["AND", "OR", "AND NOT"]), st.booleans())
def test_they_are_read_as_sqlglot_reads_them(found: list[list[str]], between: str, negated: bool) -> None:
    how = "NOT IN" if negated else "IN"
    condition = f" {between} ".join(f"a {how} ({', '.join(one)})" for one in found)
    text = f"SELECT a FROM users WHERE {condition}"
    was = sql.LONG_LIST
    try:
        sql.LONG_LIST = 10**9  # type: ignore[misc]
        expected = read(text)
        sql.LONG_LIST = 1  # type: ignore[misc]
        assert read(text) == expected
    finally:
        sql.LONG_LIST = was  # type: ignore[misc]


def test_a_number_that_is_too_large_is_told_at_its_place() -> None:
    text = f"SELECT a FROM users WHERE a IN ({'1, ' * 100}1e999, 2)"
    with pytest.raises(InvalidStatementError, match="too large") as caught:
        parse_query(text)
    assert text[caught.value.column - 1 :].startswith("1e999")
