"""One key with 97 percent of what is written: in a partition of one slice, in one of four, and partitioned by
the document id. What it costs to write it, how evenly nodes have it, and what look-ups of it and of other
keys take."""

from __future__ import annotations

import random
import time

from benchmarks.asking import entries_by_node
from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.latency import connect, timed_scan
from benchmarks.throughput import check_count
from keytide.errors import invariant

TOPIC, HOT = "visits", "rome"
OTHERS = 40
NODES = 3
LOOK_UPS = 500
LIMIT = 100
"""Rows of a page."""
WAYS = {
    "one_slice": "PARTITION BY HASH(city) WITH (slices=4)",
    "four_slices": "PARTITION BY HASH(city) SUBPARTITION BY HASH(id) SLICES ({spread})",
    "by_id": "PARTITION BY HASH(id) WITH (slices=7)",
}
"""As the index is made; as the advice has it altered (the partition of the hot key alone); with as many
slices, by the document id."""


def hot_partition(documents: int = 500_000) -> Result:
    """Each way, one after the other, on three nodes."""
    result = Result("hot-partition", machine=machine_state())
    result.sizes = {"documents": documents, "nodes": NODES, "look_ups": LOOK_UPS, "rows_of_page": LIMIT}
    for way, clause in WAYS.items():
        with Bench(nodes=NODES) as bench:
            for figure, value in _measured(bench, clause, documents).items():
                result.figures[f"{way}_{figure}"] = value
                say(f"{way}: {figure} {value:,}")
    return result


def _measured(bench: Bench, clause: str, documents: int) -> dict[str, float]:
    bench.make_topic(TOPIC, PARTITIONS)
    if "{spread}" in clause:
        bench.create_index(f"CREATE INDEX probe ON {TOPIC} (city) PARTITION BY HASH(city) WITH (slices=4)")
        plan = bench.client.explain(f"SELECT city FROM {TOPIC} WHERE city = '{HOT}'")
        hot = plan["partitions_asked"][0]
        bench.admin.call("DELETE", "/v1/indexes/probe")
        clause = clause.format(spread=", ".join("4" if number == hot else "1" for number in range(4)))
    bench.create_index(f"CREATE INDEX by_city ON {TOPIC} (city) {clause}")
    bench.pause()
    load(bench.bootstrap, TOPIC, range(documents), make=_visit)
    ends = bench.ends(TOPIC)
    began = time.monotonic()
    bench.resume()
    bench.wait_indexed("by_city", ends)
    figures: dict[str, float] = {"documents_per_s": round(documents / (time.monotonic() - began))}
    check_count(bench, "by_city", documents)
    figures["largest_node_percent"] = round(100 * max(entries_by_node(bench, documents).values()) / documents)
    figures["hot_p50_ms"] = _look_ups(bench, [HOT] * LOOK_UPS)
    chance = random.Random(3)
    figures["other_p50_ms"] = _look_ups(bench, [f"town{chance.randrange(OTHERS)}" for _ in range(LOOK_UPS)])
    return figures


def _visit(number: int, version: int) -> bytes:
    city = f"town{number // 100 % OTHERS}" if number % 100 < 3 else HOT
    return b'{"city":"%s","n":%d}' % (city.encode(), number)


def _look_ups(bench: Bench, cities: list[str]) -> float:
    """Milliseconds of a page (median), at a bare HTTP client."""
    connection = connect(bench.cluster.node_urls[0])
    samples: list[float] = []
    for city in cities:
        took, rows = timed_scan(connection, "by_city", {"equals": [city], "limit": LIMIT})
        samples.append(took)
        invariant(bool(rows), "BenchmarkScan", f"nothing in {city}")
    connection.close()
    return percentiles(samples)["p50_ms"]
