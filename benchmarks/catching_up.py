"""What the others notice of a node that is away, and how fast it catches up when it is back.

Two indexes on one keyspace, `near` with all slices on one node and `far` with all on another. The other node
is up, killed, or stopped (SIGSTOP: it dies without closing anything and comes back as it was). Meanwhile
documents are written at a steady rate, then half a million at once; measured are the time between stability
timestamps, the rate at which `near` takes the half million in, and how long `far` needs afterwards.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.asking import until
from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.hearing import Stamps
from benchmarks.latency import writing
from benchmarks.throughput import TOPIC
from keytide.errors import invariant

NEAR, FAR = "node-1", "node-2"
PER_SECOND = 20_000
SECONDS = 15.0


class _Absence(NamedTuple):
    name: str
    leave: Callable[[], None]
    come_back: Callable[[], None]


def catch_up(documents: int = 500_000) -> Result:
    """The same load with the other node up, killed and stopped."""
    result = Result("catch-up", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "documents_per_s": PER_SECOND,
        "seconds": SECONDS,
        "partitions": PARTITIONS,
        "indexes": 2,
        "slices": 4,
        "nodes": 2,
    }
    with Bench(supervise=False) as bench, Stamps(bench.bootstrap) as stamps:
        bench.make_topic(TOPIC, PARTITIONS)
        _make_indexes(bench)
        load(bench.bootstrap, TOPIC, range(documents))
        for name in ("near", "far"):
            bench.wait_indexed(name, bench.ends(TOPIC))
        for number, absence in enumerate(_absences(bench)):
            figures = _measure(bench, stamps, absence, documents, number + 3)
            result.figures.update({f"{absence.name}_{name}": value for name, value in figures.items()})
            say(f"{absence.name}: {figures}")
        for name in ("near", "far"):
            counted = bench.client.count(name, timeout_ms=60_000).count
            invariant(counted == documents, "BenchmarkIndex", f"{name} has {counted} entries")
    return result


def _make_indexes(bench: Bench) -> None:
    """`near` while only one node is there; `far` then goes to the one that holds nothing."""

    def live() -> set[str]:
        return {node["id"] for node in bench.admin.call("GET", "/v1/nodes") if node["live"]}

    bench.cluster.kill(FAR)
    until(lambda: live() == {NEAR}, time.monotonic())
    bench.create_index(f"CREATE INDEX near ON {TOPIC} (city, age) WITH (slices=4)")
    bench.cluster.restart(FAR)
    until(lambda: live() == {NEAR, FAR}, time.monotonic())
    bench.create_index(f"CREATE INDEX far ON {TOPIC} (city, age) WITH (slices=4)")
    for name, node in (("near", NEAR), ("far", FAR)):
        placement = bench.admin.call("GET", f"/v1/indexes/{name}")["placement"]
        invariant(placement == [[node]] * 4, "BenchmarkPlacement", f"{name} lies on {placement}")


def _absences(bench: Bench) -> list[_Absence]:
    def send(number: int) -> Callable[[], None]:
        return lambda: os.kill(bench.cluster.services[FAR].pid, number)

    return [
        _Absence("up", lambda: None, lambda: None),
        _Absence("killed", lambda: bench.cluster.kill(FAR), lambda: bench.cluster.restart(FAR)),
        _Absence("stopped", send(signal.SIGSTOP), send(signal.SIGCONT)),
    ]


def _measure(
    bench: Bench, stamps: Stamps, absence: _Absence, documents: int, version: int
) -> dict[str, float]:
    before = bench.ends(TOPIC)
    with writing(bench, PER_SECOND) as written:
        began = time.monotonic()
        absence.leave()
        time.sleep(SECONDS)
        gaps = stamps.between(began, time.monotonic())
        offered = written()
    bench.pause()
    load(bench.bootstrap, TOPIC, range(documents), version=version)
    ends = bench.ends(TOPIC)
    began = time.monotonic()
    bench.resume()
    bench.wait_indexed("near", ends)
    rate = documents / (time.monotonic() - began)
    began = time.monotonic()
    absence.come_back()
    bench.wait_indexed("far", ends)
    seconds = time.monotonic() - began
    behind = sum(ends.values()) - sum(before.values())
    figures = {
        "offered_documents_per_s": offered,
        "stamp_p50_ms": statistics.median(gaps) * 1000,
        "stamp_p99_ms": sorted(gaps)[len(gaps) * 99 // 100] * 1000,
        "stamp_max_ms": max(gaps) * 1000,
        "documents_per_s": rate,
        "back_s": seconds,
    }
    if absence.name != "up":
        figures |= {"behind_documents": behind, "catch_up_documents_per_s": behind / seconds}
    return {name: round(value, 2 if name == "back_s" else 1) for name, value in figures.items()}
