"""Errors say what may have been meant."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from coordinator.http.problems import add_error_handlers
from indexer.scan.request.request import InvalidRequestError, ScanRequest, from_query, parse
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
        ("SELECT id FROM flihgts WHERE dest = 'BOS'", "Did you mean keyspace flights? If not: create one"),
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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("MEDIAN(age)", "UNNEST, COUNT, SUM, MIN, MAX, AVG and those of places"),
        ("COUTN(age)", "Did you mean COUNT?"),
    ],
)
def test_a_query_is_told_of_aggregates_and_an_index_is_not(call: str, said: str) -> None:
    with pytest.raises(InvalidStatementError) as refused:
        parse_query(f"SELECT {call} FROM people")
    assert said in refused.value.next_step
    with pytest.raises(InvalidStatementError, match="for indexes") as refused:
        parse_statement(f"CREATE INDEX i ON people ({call})")
    assert "COUNT" not in refused.value.next_step


def test_a_place_in_a_statement_is_shown_in_a_line_that_fits() -> None:
    text = "CREATE INDEX by_city ON people (city, age DESC) INCLUDES (name) WITH (slices=4, replicas=1)"
    with pytest.raises(InvalidStatementError) as refused:
        parse_statement(text)
    line, marks = refused.value.caret.splitlines()
    assert len(line) <= 80
    assert line[marks.index("^") : len(marks)] == "INCLUDES"


def test_a_mistyped_member_of_a_request_is_told() -> None:
    with pytest.raises(InvalidRequestError) as in_a_body:
        parse(ScanRequest, b'{"equal": ["Boston"]}')
    with pytest.raises(InvalidRequestError) as in_an_address:
        from_query(ScanRequest, [("equal", "1")])
    for refused in (in_a_body, in_an_address):
        assert refused.value.next_step == "Did you mean equals? see /docs for what may be asked"
    with pytest.raises(InvalidRequestError) as within:
        parse(ScanRequest, b'{"near": {"pont": [1, 2]}}')
    assert within.value.next_step == "see /docs for what may be asked"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/indexes/by_city/scan", "ask an indexer node"),
        ("/v1/query", "ask an indexer node"),
        ("/v1/indexes/by_city/scans", "see /docs"),
    ],
)
def test_a_coordinator_says_who_answers_scans(path: str, said: str) -> None:
    app = FastAPI()
    add_error_handlers(app)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            return await client.post(path, json={})

    answer = asyncio.run(ask())
    assert answer.status_code == 404
    assert said in answer.json()["next_step"]
