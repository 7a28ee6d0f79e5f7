"""Long lists of constants behind IN mean what short ones do, however they are parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.definition.errors import InvalidStatementError
from keytide.query.parse import long_lists
from keytide.query.parse.select import Select
from keytide.query.parse.statement import parse_query

constants = st.one_of(
    st.integers(0, 10**25).map(str),
    st.decimals(0, 10**6, places=3).map(str),
    st.text("aß'\\\"\n,()", max_size=4).map(lambda text: "'" + text.replace("'", "''") + "'"),
)
others = st.sampled_from(
    ["-1", "NULL", "true", "b", "2 + 2", "1e999", "(3)", "'a' 'b'", "1::text", "", "1 2", "IN (1)"]
)
lists = st.lists(st.one_of(constants, constants, constants, others), min_size=1, max_size=6)


def read(text: str) -> Select | tuple[str, int, int]:
    try:
        return parse_query(text)
    except InvalidStatementError as error:
        return error.reason, error.line, error.column  # (a caret may be shorter)


@given(st.lists(lists, min_size=1, max_size=3), st.sampled_from(["AND", "OR", "AND NOT"]), st.booleans())
def test_they_are_read_as_sqlglot_reads_them(found: list[list[str]], between: str, negated: bool) -> None:
    how = "NOT IN" if negated else "IN"
    condition = f" {between} ".join(f"a {how} ({', '.join(one)})" for one in found)
    text = f"SELECT a FROM users WHERE {condition}"
    was = long_lists.LONG_LIST
    try:
        long_lists.LONG_LIST = 10**9  # type: ignore[misc]
        expected = read(text)
        long_lists.LONG_LIST = 1  # type: ignore[misc]
        assert read(text) == expected
    finally:
        long_lists.LONG_LIST = was  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'x IN (1, 2)' FROM users WHERE a IN (1, 2) AND b = 'it''s IN (3, 4)'",
        'SELECT "a IN (1, 2)" FROM users WHERE "in" IN (1, 2) AND b.in (1, 2)',
        "SELECT a -- IN (1, 2)\n FROM users WHERE a IN (1, 2)",
        "SELECT a /* ' */ FROM users WHERE a IN ('x', 'IN (1, 2)') /* ' */",
        "SELECT a FROM users WHERE a IN (e'\\'', 'IN (1, 2)')",
        "SELECT a FROM users WHERE a IN ($$'$$, ' IN (1, 2)')",
        "SELECT a FROM users WHERE a IN (1, 2",
        "SELECT a FROM users WHERE a IN ('1', '2)",
        "EXPLAIN SELECT a FROM users WHERE a IN (1, 2) OR b IN\n(\n1\n,\n'é', 3e2, 0.5)",
        "explain select a from users where a not in (00, 1e5, 1.)",
        "SELECT a FROM users WHERE a IN (1, 2) IN (1, 2)",
        "SELECT a FROM users WHERE IN (1, 2)",
        "SELECT begin(1, 2) FROM users WHERE a = ANY(b) AND 1 IN (1, 2)",
    ],
)
def test_what_only_looks_like_a_list_is_none(text: str) -> None:
    was = long_lists.LONG_LIST
    try:
        long_lists.LONG_LIST = 10**9  # type: ignore[misc]
        expected = read(text)
        long_lists.LONG_LIST = 1  # type: ignore[misc]
        assert read(text) == expected
    finally:
        long_lists.LONG_LIST = was  # type: ignore[misc]


def test_lists_that_do_not_end_cost_no_more_than_their_length() -> None:
    text = "SELECT a FROM users WHERE a " + "IN ('" + "''" * 20_000 + " IN (1, 2" * 2_000
    assert long_lists._shortened(text) == (text, {})  # (with steps back it would take hours)


def test_a_number_that_is_too_large_is_told_at_its_place() -> None:
    text = f"SELECT a FROM users WHERE a IN ({'1, ' * 100}1e999, 2)"
    with pytest.raises(InvalidStatementError, match="too large") as caught:
        parse_query(text)
    assert text[caught.value.column - 1 :].startswith("1e999")
