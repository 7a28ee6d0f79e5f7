"""A fourth structure is one class and a line in the registry: `tests.backwards`, registered for these tests
only, does what every structure must, and goes from the statement to the answer as the product is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from coordinator.views.map_samples import asks
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import CountRequest, Near, ScanRequest
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import ordered_statement
from keytide.definition.statement import parse_statement
from keytide.errors import CallerError
from keytide.structure import NotOrderedError
from tests import share
from tests.backwards import Backwards
from tests.simulation.running import histories
from tests.simulation.source import shaped
from tests.structure_kit import registered
from tests.structure_suite import StructureSuite, definition_of
from tests.unit.scan_world import Doc, World

STATEMENT = "CREATE INDEX by_age ON users USING backwards (age) INCLUDE (n) WITH (slices=3)"
DOCS = [Doc([at % 20], f"d{at:02}", b'{"n":%d}' % at) for at in range(40)]


@pytest.fixture(autouse=True)
def name() -> Iterator[str]:
    with registered(Backwards):
        yield Backwards.name


@pytest.fixture
def digests() -> None:
    """It has none."""


class TestAFourthStructure(StructureSuite):
    """The suite of those that there are."""


def test_nobody_knows_it_where_it_is_not_registered(name: str) -> None:
    definition = definition_of(STATEMENT)
    written = msgspec.json.encode(definition)
    assert b'"structure_name":"backwards"' in written
    assert msgspec.json.decode(written, type=IndexDefinition) == definition
    other = written.replace(b"backwards", b"sideways")
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'sideways'"):
        msgspec.json.decode(other, type=IndexDefinition)
    with pytest.raises(InvalidStatementError, match="there is no structure 'sideways'") as refused:
        parse_statement(STATEMENT.replace(name, "sideways"))
    assert "backwards" in refused.value.next_step


class Asked:
    """A cluster of two nodes, and what its first one answers."""

    def __init__(self, *statements: str) -> None:
        self.world = World(*statements)
        self.world.commit(1, {definition_of(one).name: DOCS for one in statements})

    def _run(self, work: Callable[[Any, QueryService], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
        async def main() -> Any:
            service = self.world.services()["n0"]
            return json.loads((await work(service, QueryService(service.shared))).body)

        found: dict[str, Any] = asyncio.run(main())
        assert all(snapshot.readers == 0 for snapshot in self.world.held())
        return found

    def scan(self, **asked: Any) -> dict[str, Any]:
        return self._run(lambda service, _: service.scan("by_age", ScanRequest(**asked), never))

    def count(self, **asked: Any) -> int:
        found = self._run(lambda service, _: service.count("by_age", CountRequest(**asked), never))
        return int(found["count"])

    def query(self, sql: str) -> dict[str, Any]:
        return self._run(lambda _, queries: queries.answer(QueryRequest(sql=sql), never))


async def never() -> None:
    await asyncio.Event().wait()


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["id"] for row in rows)


def test_scans_are_answered_in_pages() -> None:
    asked = Asked(STATEMENT)
    assert ids(asked.scan(equals=[7])["rows"]) == ["d07", "d27"]
    found: list[dict[str, Any]] = []
    page = asked.scan(low=[3], high=[6], inclusion="low", limit=2)
    while True:
        found += page["rows"]
        if page["page"] is None:
            break
        page = asked.scan(page=page["page"])
    assert ids(found) == ["d03", "d04", "d05", "d23", "d24", "d25"]
    assert [row["key"] for row in found] == [[5], [5], [4], [4], [3], [3]]
    assert {row["id"]: row["include"]["n"] for row in found}["d24"] == 24
    assert asked.count() == 40
    assert asked.count(low=[15]) == 10
    with pytest.raises(NotOrderedError, match="a backwards index has no order of keys"):
        asked.scan(reverse=True)


def test_queries_are_planned_and_answered() -> None:
    asked = Asked(STATEMENT)
    plan = asked.query("EXPLAIN SELECT id, n FROM users WHERE age >= 18 AND n < 39 ORDER BY n")
    assert (plan["index"], plan["structure"]) == ("by_age", "backwards")
    assert (plan["spans"], plan["residual"], plan["sorted_by"]) == (["age >= 18"], "n < 39", ["n"])
    rows = asked.query("SELECT id, n FROM users WHERE age >= 18 AND n < 39 ORDER BY n")["rows"]
    assert rows == [["d18", 18], ["d19", 19], ["d38", 38]]
    grouped = asked.query("SELECT age, COUNT(*) FROM users WHERE age IN (1, 2) GROUP BY age")["rows"]
    assert sorted(grouped) == [[1, 2], [2, 2]]


def test_an_index_with_an_order_goes_before_it_and_it_is_said_why() -> None:
    asked = Asked(STATEMENT, STATEMENT.replace("by_age", "tree").replace("backwards", "btree"))
    plan = asked.query("EXPLAIN SELECT id FROM users WHERE age IS NOT MISSING ORDER BY age LIMIT 3")
    assert (plan["index"], plan["structure"]) == ("tree", "btree")
    assert plan["other_indexes"].keys() == {"by_age"}
    assert ordered_statement(definition_of(STATEMENT), ()).startswith(
        "CREATE INDEX by_age_btree ON users USING btree (age)"
    )


def test_what_takes_places_is_refused() -> None:
    asked = Asked(STATEMENT)
    with pytest.raises(CallerError, match="only a spatial index answers `near`"):
        asked.scan(near=Near(point=[1.0, 2.0], metres=3.0))
    with pytest.raises(CallerError, match="is USING backwards, and has no map"):
        asks(asked.world.index("by_age"), 10, ["n0"] * 3)
    with pytest.raises(InvalidStatementError, match="srid goes with USING spatial"):
        parse_statement("CREATE INDEX i ON users USING backwards (age) WITH (srid=0)")


def test_histories_of_its_indexes_keep_the_invariants(name: str) -> None:
    """In the simulated cluster, where they are built, written, scanned and rolled back."""
    seeds = share.seeds(2000)
    seeds = seeds[: len(seeds) // 20]
    with shaped(name):
        tally = histories(seeds)
    assert tally.histories == len(seeds)
    assert tally.commits > 10 * len(seeds)
    assert tally.scans > len(seeds)
    assert min(tally.seen[what] for what in ("build-started", "index-ready", "published", "rolled-back")) > 0
