"""What it takes to move slices, and what readers and writers notice of it (acceptance 24 and 25).

Beside what moves, documents are updated at 1,000 a second, and one connection asks for rows through a node
that is not filled and, when one is emptied, not that one either (10 with 900 bytes included of one slice, 50
times a second; 100 without of eight, 10 times). That is less than half of what two cores do, else what is
measured is how long a queue grows. Percentiles are of whole scans, from when each was due: one that stands
still makes those behind it late, as it would for users.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks.asking import Copied, entries_by_node, indexed, live, placement, url_of, wait, wait_job
from benchmarks.documents import PARTITIONS, load, padded
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.latency import writing
from benchmarks.readers import Scans
from benchmarks.throughput import BY_CITY, MILLION, TOPIC
from keytide.errors import invariant

UPDATES_PER_S: Final = 1_000
SCANS_PER_S: Final = 50
GATHERS_PER_S: Final = 10
"""Scans that ask eight slices of three nodes."""
LIMIT_BYTES_PER_S: Final = 100_000_000
BASELINE_S: Final = 20.0
PADDED: Final = (
    "CREATE INDEX by_city ON people (city, age) INCLUDE (pad) PARTITION BY HASH(id) "
    "WITH (slices=1, replicas=0)"
)
SETTINGS: Final = {
    "KEYTIDE_INDEXER__COPY_RATE": str(LIMIT_BYTES_PER_S),
    "KEYTIDE_BUILD__VERIFY": "false",
    "KEYTIDE_BUILD__NICE": "0",
}
"""What is measured begins when the index is there: its build need not stand back."""


def move(documents: int = MILLION) -> Result:
    """One slice of about 1 GB moves at a limit of 100 MB/s: from `keytide node drain` to an empty node."""
    result = Result("move", machine=machine_state())
    with Bench(nodes=3, settings=SETTINGS) as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        load(bench.bootstrap, TOPIC, range(documents), make=padded)
        bench.create_index(PADDED)
        (placed,) = placement(bench)
        *_, asked = (url for node, url in url_of(bench).items() if node not in placed)  # the first is filled
        with (
            writing(bench, UPDATES_PER_S, padded, documents),
            Scans(asked, 10, SCANS_PER_S) as scans,
            Copied(bench) as copied,
        ):
            before = _baseline(bench, scans)
            with bench.measured(result), scans.part("moving"):
                began, had = time.monotonic(), indexed(bench)
                job = bench.admin.call("POST", f"/v1/nodes/{placed[0]}/drain")
                wait(lambda: placement(bench) not in ([placed], []), "the new copy counts")
                result.figures["seconds"] = round(time.monotonic() - began, 2)
                filled = {url_of(bench)[node] for nodes in placement(bench) for node in nodes}
                invariant(asked not in filled, "BenchmarkMove", "scans were asked of the node that is filled")
                wait_job(bench, job["id"])  # (the old one answers pages that name it until they are over)
                result.figures["seconds_until_drained"] = round(time.monotonic() - began, 2)
                during = (indexed(bench) - had) / (time.monotonic() - began)
            result.figures["copied_mb"] = round(copied.bytes / 1e6)
            result.figures["copied_mb_per_s"] = round(copied.bytes / 1e6 / copied.seconds, 1)
            _compare(result, scans, before, during)
    result.sizes = {
        "documents": documents,
        "slices": 1,
        "nodes": 3,
        "limit_mb_per_s": 100,
        **_loads(SCANS_PER_S),
    }
    return result


def join(documents: int = MILLION) -> Result:
    """A fourth node joins three that have two copies of each of 8 slices; an index is
    created while it is filled."""
    result = Result("join", machine=machine_state())
    with Bench(nodes=4, settings=SETTINGS, supervise=False) as bench:
        bench.cluster.kill("node-4")
        wait(lambda: len(live(bench)) == 3, "the fourth node is missed")
        bench.make_topic(TOPIC, PARTITIONS)
        load(bench.bootstrap, TOPIC, range(documents))
        bench.create_index(BY_CITY.replace("slices=8", "slices=8, replicas=1"))
        with (
            writing(bench, UPDATES_PER_S, of=min(documents, 50_000)),
            Scans(url_of(bench)["node-1"], 100, GATHERS_PER_S) as scans,
        ):
            before = _baseline(bench, scans)
            bench.cluster.restart("node-4")
            wait(lambda: len(live(bench)) == 4, "the fourth node is heard")
            plan = bench.admin.call("POST", "/v1/rebalance", {"dry_run": True})
            with bench.measured(result), scans.part("moving"):
                began, had = time.monotonic(), indexed(bench)
                job = bench.admin.call("POST", "/v1/rebalance")
                created = bench.sql("CREATE INDEX by_age ON people (age) WITH (slices=2)")
                done = wait_job(bench, job["id"])
                seconds = time.monotonic() - began
                during = (indexed(bench) - had) / (time.monotonic() - began)
            bench.wait_build(created["build"])
            result.figures["seconds"] = round(seconds, 2)
            result.figures["moves_planned"] = len(plan["moves"])
            result.figures["moves_done"] = done["rebalance"]["moves_done"]
            _compare(result, scans, before, during)
        entries = entries_by_node(bench, documents)  # (updates are over: no entry is on its way)
        average = sum(entries.values()) / 4
        result.figures["farthest_from_average"] = round(
            max(abs(entries.get(f"node-{n}", 0) - average) for n in range(1, 5)) / average, 3
        )
    result.sizes = {"documents": documents, "slices": 8, "replicas": 1, "nodes": 4, **_loads(GATHERS_PER_S)}
    return result


def _loads(scans_per_s: int) -> dict[str, int]:
    return {"updates_per_s": UPDATES_PER_S, "scans_per_s": scans_per_s}


def _baseline(bench: Bench, scans: Scans) -> float:
    """Some time in which nothing moves; documents indexed per second."""
    with scans.part("quiet"):
        began, had = time.monotonic(), indexed(bench)
        time.sleep(BASELINE_S)
        return (indexed(bench) - had) / (time.monotonic() - began)


def _compare(result: Result, scans: Scans, before: float, during: float) -> None:
    """What readers and writers notice."""
    for name in ("quiet", "moving"):
        result.figures.update({f"{name}_{key}": value for key, value in percentiles(scans.ms[name]).items()})
        result.figures[f"{name}_slowest_ms"] = round(max(scans.ms[name]), 1)
    result.figures["scans_refused"] = sum(scans.refused.values())
    result.figures["indexed_per_s"] = round(during)
    result.figures["indexed_per_s_quiet"] = round(before)
    for why, count in scans.refused.items():
        say(f"refused {count} times: {why}")
