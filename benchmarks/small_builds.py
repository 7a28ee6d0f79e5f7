"""How long a small build takes for who asks: from the statement to READY; and what it takes to drop."""

from __future__ import annotations

import time
from itertools import count
from typing import Final

from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.patience import limit
from benchmarks.throughput import check_count
from keytide.errors import CallerError

FEW: Final = 3
TIMES: Final = 10
"""Builds of few documents, and of none."""
POLL_S: Final = 0.01
GONE_LIMIT_S: Final = 120.0

_numbers = count(1)


def small_build(documents: int = 100_000) -> Result:
    """A small build, verified by sums (the default), from its statement to READY, the client's own request
    and its asking among it: of 3 documents, of none, and of many; and DROP INDEX, until nothing is left.

    Builds follow one another at once, as those of a script do.
    """
    result = Result("small-build", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "few": FEW,
        "partitions": PARTITIONS,
        "slices": 8,
        "nodes": 2,
        "times": TIMES,
    }
    drops: list[float] = []
    with Bench() as bench:
        for number, topic in ((0, "none"), (FEW, "few"), (documents, "many")):
            bench.make_topic(topic, PARTITIONS)
            load(bench.bootstrap, topic, range(number))
        with bench.measured(result):
            for name, number, times in (("few", FEW, TIMES), ("none", 0, TIMES), ("many", documents, 5)):
                took = [_built_and_dropped(bench, name, number, drops) for _ in range(times)]
                _note(result, name, took)
        _note(result, "drop", drops)
    return result


def _note(result: Result, name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    result.figures[f"{name}_p50_s"] = round(ordered[len(ordered) // 2], 3)
    result.figures[f"{name}_max_s"] = round(ordered[-1], 3)
    say(f"{name}: {', '.join(f'{one:.2f}' for one in seconds)} s")


def _built_and_dropped(bench: Bench, topic: str, documents: int, drops: list[float]) -> float:
    """Seconds to READY; `drops` gets those until DROP INDEX has left nothing."""
    name = f"by_city_{next(_numbers)}"
    began = time.perf_counter()
    bench.create_index(f"CREATE INDEX {name} ON {topic} (city, age) WITH (slices=8)")
    took = time.perf_counter() - began
    check_count(bench, name, documents)
    began = time.perf_counter()
    bench.sql(f"DROP INDEX {name}")
    deadline = time.monotonic() + limit(GONE_LIMIT_S)
    while name in {index["name"] for index in bench.admin.call("GET", "/v1/indexes")}:
        if time.monotonic() > deadline:
            raise CallerError(f"index {name} is not gone after {limit(GONE_LIMIT_S):.0f} s")
        time.sleep(POLL_S)
    drops.append(time.perf_counter() - began)
    return took
