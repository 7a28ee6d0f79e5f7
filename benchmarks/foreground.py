"""What a build leaves live indexing (acceptance 12), and how well a rate limit is held.

Live rate: documents are in Kafka before the projector may read; from that moment until all are in a stable
scan. Once alone, once while an index of another topic is built, once alone again; the first and the last are
the measure for the middle. Then how fresh stable scans are beside the build, with 10,000 documents/s written.
The build's documents are so many that it runs all the while.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.latency import PROBES, probes, writing
from keytide.errors import invariant

LIVE, BUILT = "people", "others"
LIVE_INDEX = "CREATE INDEX by_city ON people (city, age) WITH (slices=8)"
BUILT_INDEX = "CREATE INDEX others_by_city ON others (city, age) WITH (slices=8, defer_build=true)"
HALF_MILLION = 500_000
BUILD_FACTOR, LEAST_BUILT = 16, 4_000_000
"""Documents of the build for one of the live stream, and at least: how fresh scans are beside it takes its
time to be measured, however short the stream is."""
WRITTEN_PER_S = 10_000
CAPS = (5_000, 1_000)
CAP_S = 30.0


def foreground(documents: int = HALF_MILLION, nice: int | None = None) -> Result:
    """Live rate with and without a build at the default settings.

    Args:
        documents: of the live stream, in each of three measurements.
        nice: another `build.nice` than the default.
    """
    result = Result("foreground", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "build_documents": max(LEAST_BUILT, documents * BUILD_FACTOR),
        "partitions": PARTITIONS,
        "slices": 8,
        "nodes": 2,
    }
    settings = {} if nice is None else {"KEYTIDE_BUILD__NICE": str(nice)}
    with Bench(settings={"KEYTIDE_BUILD__VERIFY": "false", **settings}) as bench:
        for topic in (LIVE, BUILT):
            bench.make_topic(topic, PARTITIONS)
        load(bench.bootstrap, BUILT, range(result.sizes["build_documents"]))
        bench.create_index(LIVE_INDEX)
        bench.sql(BUILT_INDEX)
        before = _replay(bench, documents, 0)
        say(f"alone: {before:,.0f} documents/s")
        build = _begin(bench)
        with bench.measured(result):
            during = _replay(bench, documents, 1)
        state = _state(bench, build)
        say(f"beside build {build} ({state['state']}, {state['rate']:,.0f}/s): {during:,.0f} documents/s")
        with writing(bench, WRITTEN_PER_S) as written:
            fresh = percentiles([probe.took for probe in probes(bench, PROBES)])
            result.figures["offered_beside_documents_per_s"] = written()
        result.figures.update({f"freshness_beside_{name}": value for name, value in fresh.items()})
        still = _state(bench, build)
        invariant(still["state"] == "BACKFILL", "BenchmarkBuild", f"the build was over too early: {still}")
        for cap in CAPS:
            result.figures[f"cap_{cap}_held_at"] = _capped(bench, build, cap)
        bench.admin.call("POST", f"/v1/builds/{build}/cancel")
        _wait_idle(bench)
        after = _replay(bench, documents, 2)
        say(f"alone again: {after:,.0f} documents/s")
    alone = statistics.mean((before, after))
    result.figures["alone_documents_per_s"] = round(alone)
    result.figures["documents_per_s"] = round(during)
    result.figures["build_documents_per_s"] = round(state["rate"])
    result.figures["kept_share"] = round(during / alone, 3)
    return result


def _replay(bench: Bench, documents: int, turn: int) -> float:
    """Documents per second from the projector's first look until a stable scan has them all."""
    bench.pause()
    load(bench.bootstrap, LIVE, range(turn * documents, (turn + 1) * documents))
    ends = bench.ends(LIVE)
    began = time.monotonic()
    bench.resume()
    bench.wait_indexed("by_city", ends)
    return documents / (time.monotonic() - began)


def _state(bench: Bench, build: str) -> dict[str, Any]:
    state: dict[str, Any] = bench.admin.call("GET", f"/v1/builds/{build}")
    return state


def _begin(bench: Bench) -> str:
    """A build that reads."""
    build = str(bench.admin.call("POST", "/v1/builds", {"indexes": ["others_by_city"]})["id"])
    while not _state(bench, build)["documents_done"]:
        time.sleep(0.05)
    return build


def _capped(bench: Bench, build: str, cap: int) -> float:
    """Documents per second that a build reads under a limit, over half a minute, as a share of the limit."""
    bench.admin.call("PATCH", f"/v1/builds/{build}", {"rate_limit": cap})
    time.sleep(5)  # by then it is to have taken effect
    began, before = time.monotonic(), int(_state(bench, build)["documents_done"])
    time.sleep(CAP_S)
    read = int(_state(bench, build)["documents_done"]) - before
    share = read / (time.monotonic() - began) / cap
    say(f"limit {cap:,}: {share:.1%} of it")
    return round(share, 3)


def _wait_idle(bench: Bench) -> None:
    """Until nothing of the build is left."""
    while bench.admin.call("GET", "/v1/indexes/others_by_city")["placement"]:
        time.sleep(0.1)
