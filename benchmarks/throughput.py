"""How fast documents become entries: live, churn, several indexes. Growth: `growing`; builds: `building`."""

from __future__ import annotations

import time
from collections.abc import Iterable

from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state
from keytide.errors import invariant

TOPIC = "people"
BY_CITY = "CREATE INDEX by_city ON people (city, age) WITH (slices=8)"
FIVE = (
    BY_CITY,
    "CREATE INDEX by_email ON people (email) WITH (slices=8)",
    "CREATE INDEX by_status ON people (status, balance DESC) PARTITION BY HASH(id) WITH (slices=8)",
    "CREATE INDEX by_tag ON people (UNNEST(tags), age) WITH (slices=8)",
    "CREATE INDEX by_postcode ON people (address.postcode) WITH (slices=8)",
)
_MORE = ("name", "email", "city", "age", "status")
TWENTY = FIVE + tuple(
    f"CREATE INDEX by_{first}_{second.split()[0]} ON people ({first}, {second}) WITH (slices=8)"
    for at, first in enumerate(_MORE)
    for second in ("balance DESC", *_MORE[:at])
)
"""What most documents have, in pairs: all of one key part more."""
MILLION = 1_000_000


def live(documents: int = MILLION) -> Result:
    """Insert-only: documents already in Kafka, from the moment that the projector may read until all are in a
    stable scan."""
    return _replay("live", [BY_CITY], documents, churn=False)


def churn(documents: int = MILLION) -> Result:
    """The second million of events gives every document a new key."""
    return _replay("churn", [BY_CITY], documents, churn=True)


def indexes(documents: int = MILLION) -> Result:
    """One, five and twenty indexes on one keyspace: the rate with five, and what each costs. (Of the five one
    has two entries for a document, and one hears by id; the others are pairs of keys.)"""
    result = _replay("indexes", list(FIVE), documents, churn=False)
    found = {1: _replay("indexes", [BY_CITY], documents, churn=False), len(FIVE): result}
    found[len(TWENTY)] = _replay("indexes", list(TWENTY), documents, churn=False)
    for many, one in sorted(found.items()):
        each = one.figures["cpu_seconds"] / many / documents * MILLION
        result.figures[f"indexes_{many}_documents_per_s"] = one.figures["documents_per_s"]
        result.figures[f"indexes_{many}_cpu_s_per_million_and_index"] = round(each, 2)
    return result


def _replay(name: str, statements: list[str], documents: int, churn: bool) -> Result:
    result = Result(name, machine=machine_state())
    result.sizes = {
        "documents": documents,
        "partitions": PARTITIONS,
        "indexes": len(statements),
        "slices": 8,
        "nodes": 2,
    }
    with Bench() as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        for statement in statements:
            bench.create_index(statement)
        names = [statement.split()[2] for statement in statements]
        if churn:
            load(bench.bootstrap, TOPIC, range(documents))
            for index in names:
                bench.wait_indexed(index, bench.ends(TOPIC))
        fill(bench, range(documents), version=1 if churn else 0)
        seconds = replayed(bench, result, names)
        result.figures["documents_per_s"] = round(documents / seconds)
        result.figures["seconds"] = round(seconds, 2)
        check_count(bench, names[0], documents)
        result.sizes["memory_mb"] = bench.memory()
    return result


def fill(bench: Bench, numbers: Iterable[int], version: int = 0) -> None:
    """Write documents while the projector stands still."""
    bench.pause()
    load(bench.bootstrap, TOPIC, numbers, version)


def replayed(bench: Bench, result: Result, indexes: Iterable[str]) -> float:
    """Let the projector go on, measured until stable scans of all indexes have everything; the seconds."""
    ends = bench.ends(TOPIC)
    with bench.measured(result):
        began = time.monotonic()
        bench.resume()
        for index in indexes:
            bench.wait_indexed(index, ends)
        return time.monotonic() - began


def check_count(bench: Bench, index: str, documents: int) -> None:
    """A figure for a wrong index is worth nothing."""
    counted = bench.client.count(index, timeout_ms=60_000).count
    invariant(
        counted == documents, "BenchmarkIndex", f"{index} has {counted} entries for {documents} documents"
    )
