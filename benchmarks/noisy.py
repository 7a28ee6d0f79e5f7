"""Short reads of one client beside heavy queries of others: what one request costs those who did not send it.

Rounds alone and beside eight queries that never end alternate, so that what else the machine does falls on
both. Short reads come one after the other, and at a pace with pauses: a node that rests for dense ones only
would show it. The heavy ones must get on, too: each ends with its answer or with `query-timeout`.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Result, machine_state, percentiles, progress_line
from benchmarks.latency import connect, filled, scan_body, send_scan
from keytide.errors import invariant

HEAVY: Final = 8
ROUNDS: Final = 4
DENSE: Final = 600
SPARSE: Final = 150
SPARSE_PAUSE_S: Final = 0.06
"""Longer than a node rests after a short read."""
TIMEOUT_MS: Final = 5_000
_JSON: Final = {"Content-Type": "application/json"}


def noisy_neighbour(documents: int = 500_000) -> Result:
    """p50 and p99 of reads of 100 rows, alone and beside eight heavy queries, by one node."""
    result = Result("noisy-neighbour", machine=machine_state())
    samples: dict[str, list[float]] = {"alone": [], "beside": [], "sparse_alone": [], "sparse_beside": []}
    ended: Counter[str] = Counter()
    ratios: list[float] = []
    with filled(1, documents) as bench:
        _short(bench, 200, 0.0)  # warm-up
        with bench.measured(result):
            for number in range(ROUNDS):
                progress_line(f"round {number + 1} of {ROUNDS}")
                before = {name: len(found) for name, found in samples.items()}
                samples["alone"] += _short(bench, DENSE, 0.0)
                samples["sparse_alone"] += _short(bench, SPARSE, SPARSE_PAUSE_S)
                with _heavy(bench, ended):
                    samples["beside"] += _short(bench, DENSE, 0.0)
                    samples["sparse_beside"] += _short(bench, SPARSE, SPARSE_PAUSE_S)
                p99 = {name: percentiles(found[before[name] :])["p99_ms"] for name, found in samples.items()}
                ratios.append(p99["beside"] / p99["alone"])
    for name, found in samples.items():
        of = percentiles(found)
        result.figures.update({f"{name}_p50_ms": of["p50_ms"], f"{name}_p99_ms": of["p99_ms"]})
    for name in ("", "sparse_"):
        alone, beside = (result.figures[f"{name}{how}_p99_ms"] for how in ("alone", "beside"))
        result.figures[f"{name}p99_ratio"] = round(beside / alone, 2)
    result.figures["p99_ratio_of_the_median_round"] = round(median(ratios), 2)
    result.figures["heavy_answered"], result.figures["heavy_timed_out"] = ended["ok"], ended["query-timeout"]
    invariant(ended.total() == ended["ok"] + ended["query-timeout"], "BenchmarkHeavy", str(ended))
    invariant(ended.total() >= HEAVY, "BenchmarkHeavy", f"only {ended} ended")
    result.sizes = {"documents": documents, "rows": 100, "slices": 8, "nodes": 1, "heavy": HEAVY}
    return result


def _short(bench: Bench, count: int, pause_s: float) -> list[float]:
    """Milliseconds of each short read."""
    connection, chance = connect(bench.cluster.node_urls[0]), random.Random(count)
    samples: list[float] = []
    for _ in range(count):
        body = scan_body(chance)
        began = time.perf_counter()
        status, answer = send_scan(connection, body)
        samples.append((time.perf_counter() - began) * 1000)
        invariant(status == 200, "BenchmarkScan", answer[:300].decode(errors="replace"))
        if pause_s:
            time.sleep(pause_s)
    connection.close()
    return samples


@contextmanager
def _heavy(bench: Bench, ended: Counter[str]) -> Iterator[None]:
    """Heavy queries, one after the other in each of some threads, while the block runs. They take next to no
    processor time here: their answers are short."""
    stop, begun = threading.Event(), threading.Barrier(HEAVY + 1, timeout=30)
    broken: list[BaseException] = []

    def send(which: int) -> None:
        try:
            ask(which)
        except (OSError, http.client.HTTPException, ValueError) as error:
            broken.append(error)

    def ask(which: int) -> None:
        connection, chance = connect(bench.cluster.node_urls[0]), random.Random(which)
        begun.wait()
        while not stop.is_set():
            body = json.dumps({"sql": _query(which, chance), "timeout_ms": TIMEOUT_MS}).encode()
            connection.request("POST", "/v1/query", body, _JSON)
            response = connection.getresponse()
            document = json.loads(response.read())
            ended["ok" if response.status == 200 else str(document["type"])] += 1
        connection.close()

    threads = [threading.Thread(target=send, args=(which,), daemon=True) for which in range(HEAVY)]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    invariant(not broken, "BenchmarkHeavy", lambda: f"a heavy client ended: {broken}")


def _query(which: int, chance: random.Random) -> str:
    """One that looks at most entries of the index, in one of four ways."""
    match which % 4:
        case 0:
            ages = ", ".join(str(age + 0.5) for age in chance.sample(range(100_000), 3_000))
            return f"SELECT COUNT(*) FROM people WHERE city >= 'city-0' AND age IN ({ages})"
        case 1:
            return "SELECT age, COUNT(*) FROM people WHERE city >= 'city-0' GROUP BY age"
        case 2:
            return (
                "SELECT city, age FROM people WHERE city >= 'city-0' AND age >= 18 ORDER BY age DESC LIMIT 5"
            )
        case _:
            return "SELECT COUNT(*), SUM(age) FROM people WHERE city >= 'city-0' AND age <> 40"
