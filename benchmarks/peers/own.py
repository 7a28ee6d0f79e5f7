"""Keytide's turn: live indexing on two nodes and ranges from both, a build by Spark, ranges from one node."""

from __future__ import annotations

from typing import Final

from benchmarks.documents import PARTITIONS
from benchmarks.harness import Bench, Result, percentiles
from benchmarks.latency import filled, scans
from benchmarks.peers.spread import KEYTIDE, KEYTIDE_BUILD, KEYTIDE_ONE_NODE, RATE
from benchmarks.peers.turn import SCANS, range_figures
from benchmarks.throughput import BY_CITY, TOPIC, check_count, fill, replayed
from benchmarks.watching import calm

LIVE: Final = "by_city"
BUILT: Final = "by_city_built"
SETTINGS: Final = {"KEYTIDE_BUILD__NICE": "0"}
"""No peer stands back for others either: with all cores busy a build would be given a thirtieth of them."""


def why_not() -> str | None:
    """It always takes part."""
    return None


def run(documents: int) -> dict[str, dict[str, float]]:
    """Its three figures; what `live`, `backfill`, `gather` and `scan` measure, in one go."""
    found: dict[str, dict[str, float]] = {}
    with Bench(settings=SETTINGS) as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        bench.create_index(BY_CITY)
        fill(bench, range(documents))
        result = Result("live")
        seconds = replayed(bench, result, [LIVE])
        check_count(bench, LIVE, documents)
        calm()
        found[KEYTIDE] = _used(result, documents, seconds) | range_figures(percentiles(scans(bench, SCANS)))
        statement = BY_CITY.replace(LIVE, BUILT).replace("slices=8", "slices=8, defer_build=true")
        bench.sql(statement)
        result = Result("build")
        with bench.measured(result):
            asked = {"indexes": [BUILT], "verify": False}
            build = bench.wait_build(bench.admin.call("POST", "/v1/builds", asked))
        check_count(bench, BUILT, documents)
        seconds = (build["finished_at"] - (build.get("first_read_at") or build["started_at"])) / 1000
        found[KEYTIDE_BUILD] = _used(result, documents, seconds)
    with filled(1, documents) as bench:
        found[KEYTIDE_ONE_NODE] = range_figures(percentiles(scans(bench, SCANS)))
    return found


def _used(result: Result, documents: int, seconds: float) -> dict[str, float]:
    """As `benchmarks.peers.turn.rate` has it of a peer."""
    peak: dict[str, int] = result.sizes["peak_memory_mb"]
    return {
        RATE: round(documents / seconds),
        "cpu_us_per_document": round(1e6 * result.figures["cpu_seconds"] / documents, 1),
        "peak_memory_mb": sum(mb for name, mb in peak.items() if name not in ("kafka", "benchmark")),
    }
