"""How long a reader waits: scans, idle and under load, gathered from two nodes, and freshness."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Message, Producer

from benchmarks.documents import CITIES, PARTITIONS, document, document_id, load
from benchmarks.harness import Bench, Result, machine_state, percentiles, progress_line, say
from benchmarks.hops import Probe, hops
from benchmarks.throughput import BY_CITY, MILLION, TOPIC
from benchmarks.watching import calm
from keytide.errors import invariant

SCANS = 3_000
PROBES = 300
WARMING = 3
"""Probes that do not count: the first one waits half a second for the producer's own start."""


def scan(documents: int = MILLION) -> Result:
    """Stable scans of 100 rows over HTTP, one connection: all slices on one node. Then of the Python client,
    to the last row that it has made."""
    result = Result("scan", machine=machine_state())
    with filled(1, documents) as bench:
        with bench.measured(result):
            result.figures.update(percentiles(scans(bench, SCANS)))
        by_client = percentiles(client_scans(bench, SCANS))
        result.figures.update({f"client_{one}": value for one, value in by_client.items()})
        result.sizes = {"documents": documents, "rows": 100, "slices": 8, "nodes": 1, "scans": SCANS}
    return result


def gather(documents: int = MILLION) -> Result:
    """The same, gathered from two nodes."""
    result = Result("gather", machine=machine_state())
    with filled(2, documents) as bench:
        with bench.measured(result):
            result.figures.update(percentiles(scans(bench, SCANS)))
        result.sizes = {"documents": documents, "rows": 100, "slices": 8, "nodes": 2, "scans": SCANS}
    return result


def scan_under_load(documents: int = MILLION, per_second: int = 50_000) -> Result:
    """Stable scans while documents are indexed at a given rate."""
    result = Result("scan-under-load", machine=machine_state())
    with filled(1, documents) as bench, writing(bench, per_second) as written:
        with bench.measured(result):
            result.figures.update(percentiles(scans(bench, SCANS)))
        result.figures["offered_documents_per_s"] = written()
        result.sizes = {
            "documents": documents,
            "rows": 100,
            "slices": 8,
            "nodes": 1,
            "documents_per_s": per_second,
        }
    return result


def freshness(documents: int = 100_000, per_second: int = 20_000) -> Result:
    """From a record's timestamp to the answer of a stable scan that includes it: idle, then under load."""
    result = Result("freshness", machine=machine_state())
    with filled(2, documents) as bench:
        idle = probes(bench, PROBES)
        idle_hops = hops(bench, idle)
        with writing(bench, per_second) as written, bench.measured(result):
            loaded = probes(bench, PROBES)
            result.figures["offered_documents_per_s"] = written()
        loaded_hops = hops(bench, loaded)
    for name, found, by_hop in (("", idle, idle_hops), ("loaded_", loaded, loaded_hops)):
        shown = percentiles([probe.took for probe in found])
        result.figures.update({f"{name}{one}": value for one, value in shown.items()})
        result.sizes[f"{name}hops"] = {hop: percentiles(took) for hop, took in by_hop.items()}
        say(_table(result.sizes[f"{name}hops"]))
    result.sizes |= {"documents": documents, "probes": PROBES, "documents_per_s": per_second, "nodes": 2}
    return result


def _table(by_hop: dict[str, dict[str, float]]) -> str:
    return "\n".join(
        f"{hop:>10} {took['p50_ms']:8.1f} {took['p95_ms']:8.1f} {took['p99_ms']:8.1f} ms (p50, p95, p99)"
        for hop, took in by_hop.items()
    )


@contextmanager
def filled(nodes: int, documents: int, settings: Mapping[str, str] | None = None) -> Iterator[Bench]:
    with Bench(nodes=nodes, settings=settings) as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        bench.create_index(BY_CITY)
        load(bench.bootstrap, TOPIC, range(documents))
        bench.wait_indexed("by_city", bench.ends(TOPIC))
        calm()
        yield bench


def connect(url: str) -> http.client.HTTPConnection:
    """A bare HTTP client of a node."""
    address = urlsplit(url)
    return http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)


def timed_scan(
    connection: http.client.HTTPConnection, index: str, question: dict[str, Any]
) -> tuple[float, list[dict[str, Any]]]:
    """How long a page takes (ms), and its rows."""
    body = json.dumps(question).encode()
    began = time.perf_counter()
    connection.request("POST", f"/v1/indexes/{index}/scan", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = (time.perf_counter() - began) * 1000
    invariant(response.status == 200, "BenchmarkScan", answer[:300].decode(errors="replace"))
    rows: list[dict[str, Any]] = json.loads(answer)["rows"]
    return took, rows


def scan_body(chance: random.Random, rows: int = 100) -> bytes:
    """Asks for rows from a city on."""
    low = f"city-{chance.randrange(CITIES - 100):05}"
    return json.dumps({"low": [low], "limit": rows}).encode()


def send_scan(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
    """The status of the answer, and the answer."""
    connection.request("POST", "/v1/indexes/by_city/scan", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def scans(bench: Bench, count: int) -> list[float]:
    """Milliseconds of each scan, measured at a bare HTTP client."""
    connection = connect(bench.cluster.node_urls[0])
    chance = random.Random(7)
    samples: list[float] = []
    for number in range(count + 200):
        body = scan_body(chance)
        began = time.perf_counter()
        status, answer = send_scan(connection, body)
        took = (time.perf_counter() - began) * 1000
        invariant(status == 200, "BenchmarkScan", answer[:300].decode(errors="replace"))
        if number >= 200:  # warm-up
            samples.append(took)
        elif number == 0:
            invariant(len(json.loads(answer)["rows"]) == 100, "BenchmarkScan", "fewer than 100 rows")
    connection.close()
    return samples


def client_scans(bench: Bench, count: int) -> list[float]:
    """The same of the Python client."""
    chance = random.Random(7)
    samples: list[float] = []
    for _ in range(count):
        question = json.loads(scan_body(chance))
        began = time.perf_counter()
        rows = bench.client.page("by_city", **question).rows
        samples.append((time.perf_counter() - began) * 1000)
        invariant(len(rows) == 100, "BenchmarkScan", f"{len(rows)} rows, not 100")
    return samples[count // 10 :]  # (without the warm-up)


def probes(bench: Bench, count: int, first: int = 10 * MILLION) -> list[Probe]:
    """Documents that were written one after the other, each looked for by a scan that must include it.

    Args:
        first: number of the first one.
    """
    producer = Producer(
        {"bootstrap.servers": bench.bootstrap, "enable.idempotence": True, "linger.ms": 0, "acks": "all"}
    )
    placed: list[tuple[int, int]] = []

    def delivered(error: object, message: Message) -> None:
        invariant(error is None, "BenchmarkProbe", str(error))
        placed.append((message.partition() or 0, message.offset() or 0))

    found: list[Probe] = []
    for number in range(WARMING + count):
        began = time.time_ns()
        probe = first + number
        producer.produce(
            TOPIC, document(probe), document_id(probe), timestamp=began // 1_000_000, on_delivery=delivered
        )
        producer.flush()
        written = time.time_ns()
        partition, offset = placed.pop()
        bench.client.page("by_city", limit=1, at_least={str(partition): offset + 1}, timeout_ms=30_000)
        answered = time.time_ns()
        found.append(Probe(partition, offset, began / 1e6, written / 1e6, answered / 1e6))
        progress_line(f"probe {number}: {found[-1].took:.1f} ms")
        time.sleep(random.uniform(0.0, 0.02))  # not in step with the stability interval
    progress_line("")
    return found[WARMING:]


@contextmanager
def writing(
    bench: Bench, per_second: int, make: Callable[[int, int], bytes] = document, of: int = 50_000
) -> Iterator[_Rate]:
    """Updates of existing documents at a rate, in a process of their own, while the block runs.

    Args:
        make: as for `load`.
        of: so many documents are updated, one after the other.
    """
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    stop = context.Event()
    writer = context.Process(
        target=_write, args=(bench.bootstrap, per_second, counter, stop, make, of), daemon=True
    )
    writer.start()
    while counter.value < per_second:  # one second's worth: the stream flows
        time.sleep(0.05)
        invariant(writer.is_alive(), "BenchmarkWriter", "the writer died")
    try:
        yield _Rate(counter)
    finally:
        stop.set()
        writer.join(30)


class _Rate:
    """Documents per second that a writer has kept up since this was made."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter
        self._began, self._first = time.monotonic(), int(counter.value)

    def __call__(self) -> float:
        written = int(self._counter.value) - self._first
        return round(written / (time.monotonic() - self._began))


def _write(
    bootstrap: str,
    per_second: int,
    counter: Any,
    stop: threading.Event,
    make: Callable[[int, int], bytes],
    of: int,
) -> None:
    def numbers() -> Iterator[int]:
        number = 0
        while not stop.is_set():
            yield number % of
            number += 1
            if number % 500 == 0:
                counter.value = number

    load(bootstrap, TOPIC, numbers(), version=2, per_second=per_second, make=make)
