"""Whole indexes at once: a million rows as an Arrow stream, read by PyArrow, from one node and from two."""

from __future__ import annotations

import http.client
import io
import json
import time
from typing import IO, Final, cast
from urllib.parse import urlsplit

import pyarrow as pa

from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.throughput import BY_CITY, MILLION, TOPIC
from keytide.errors import invariant

RUNS: Final = 5
FORM: Final = "application/vnd.apache.arrow.stream"
FORMS: Final = {"key_order": {}, "any_order": {"order": "any"}}


def arrow(documents: int = MILLION) -> Result:
    """Rows per second at the client, best and median of several reads: from first byte asked for to the last
    batch decoded."""
    result = Result("arrow", machine=machine_state())
    for nodes in (1, 2):
        with Bench(nodes=nodes) as bench:
            bench.make_topic(TOPIC, PARTITIONS)
            bench.create_index(BY_CITY)
            load(bench.bootstrap, TOPIC, range(documents))
            bench.wait_indexed("by_city", bench.ends(TOPIC))
            with bench.measured(result):
                for name, asked in FORMS.items():
                    rates = sorted(_rate(bench.cluster.node_urls[0], asked, documents) for _ in range(RUNS))
                    result.figures[f"{name}_{nodes}_nodes_rows_per_s"] = round(rates[-1])
                    result.figures[f"{name}_{nodes}_nodes_median"] = round(rates[RUNS // 2])
                    say(f"{nodes} nodes, {name}: {rates[-1]:,.0f} rows/s")
    result.sizes = {"documents": documents, "slices": 8, "runs": RUNS}
    return result


def _rate(url: str, asked: dict[str, str], documents: int) -> float:
    """Rows per second of one read of the whole index."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=120)
    headers = {"Content-Type": "application/json", "Accept": FORM}
    began = time.perf_counter()
    connection.request("POST", "/v1/indexes/by_city/scan", json.dumps(asked), headers)
    response = connection.getresponse()
    invariant(response.status == 200, "BenchmarkScan", lambda: response.read(300).decode(errors="replace"))
    body = io.BufferedReader(cast(io.RawIOBase, response), 1 << 20)
    rows: int = sum(batch.num_rows for batch in pa.ipc.open_stream(cast(IO[bytes], body)))
    took = time.perf_counter() - began
    connection.close()
    invariant(rows == documents, "BenchmarkScan", f"{rows} rows of {documents}")
    return rows / took
