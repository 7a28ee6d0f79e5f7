"""Errors say what may have been meant."""

from __future__ import annotations

import pytest

from keytide.definition.errors import InvalidStatementError
from keytide.definition.statement import parse_statement
from keytide.model.hints import did_you_mean, nearest
from keytide.query.parse.statement import parse_query
from keytide.query.plan.choose import NoIndexError, choose
from keytide.query.plan.plan import Candidate


@pytest.mark.parametrize(
    ("name", "meant"),
    [("flihgts", "flights"), ("Flights", "flights"), ("flight", "flights"), ("orders", None), ("", None)],
)
def test_the_nearest_name(name: str, meant: str | None) -> None:
    assert nearest(name, ["carriers", "flights"]) == meant


def test_what_else_to_do_stays_said() -> None:
    assert did_you_mean("flihgts", ["flights"], "see the list") == "Did you mean flights? see the list"
    assert did_you_mean("x", ["flights"], "see the list") == "see the list"


SINGLE, DOUBLE = "In single quotes stands a string", "In double quotes stands a name"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE INDEX i ON k ('city')", SINGLE),
        ("CREATE INDEX 'i' ON k (city)", SINGLE),
        ("CREATE INDEX i ON 'k' (city)", SINGLE),
        ("CREATE INDEX i ON k (city) INCLUDE ('name')", SINGLE),
        ("CREATE INDEX i ON k (city) PARTITION BY HASH('city')", SINGLE),
        ("DROP INDEX 'i'", SINGLE),
        ('CREATE INDEX i ON k (city) PARTITION BY RANGE(city) SPLIT AT ("F")', DOUBLE),
        ("CREATE INDEX i ON k (city) WITH (slice=8)", "Did you mean slices?"),
        ("CREATE INDEX i ON k (LOWR(city))", "Did you mean LOWER?"),
        ("FOO", "SELECT"),
        ("CREATE INDEX i ON __consumer_offsets (a)", "cannot begin with __"),
    ],
)
def test_a_statement_that_is_nearly_right(statement: str, said: str) -> None:
    with pytest.raises(InvalidStatementError) as refused:
        parse_statement(statement)
    assert said in refused.value.next_step


def test_included_paths_are_bounded() -> None:
    paths = [f"p{number}" for number in range(129)]
    parse_statement(f"CREATE INDEX i ON k (a) INCLUDE ({', '.join(paths[:128])})")
    with pytest.raises(InvalidStatementError, match="at most 128 paths"):
        parse_statement(f"CREATE INDEX i ON k (a) INCLUDE ({', '.join(paths)})")


def candidate(statement: str) -> Candidate:
    definition = parse_statement(statement).definition  # type: ignore[union-attr]
    return Candidate(definition.name, definition)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id FROM flihgts WHERE dest = 'BOS'", "Did you mean keyspace flights?"),
        ("SELECT id FROM flights WHERE dset = 'BOS'", "Did you mean the field dest, not dset?"),
        ('SELECT id FROM flights WHERE origin = "BOS"', "write 'BOS' if it is a string"),
        ("SELECT id FROM flights WHERE tailnum = 'N1'", "create one, and build it"),
    ],
)
def test_a_query_that_no_index_serves(query: str, said: str) -> None:
    select = parse_query(query)
    made = [candidate("CREATE INDEX by_dest ON flights (dest) INCLUDE (origin)")]
    with pytest.raises(NoIndexError) as refused:
        choose(select, [one for one in made if one.definition.keyspace == select.keyspace], (), {"flights"})
    assert said in refused.value.next_step
    assert "create one" in refused.value.next_step
