"""btree and hash beside one another, for keys of 10, 100 and 1,000 bytes: bytes of an entry, the rate of
writing, and the time of a look-up. Bytes are those of an index that was built, so its pages are full."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable

from benchmarks.asking import wait
from benchmarks.documents import PARTITIONS, document_id, load
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.latency import connect, timed_scan
from keytide.errors import invariant

TOPIC = "keys"
SIZES = (10, 100, 1_000)
LOOK_UPS = 2_000
BATCH = 20


def hash_indexes(documents: int = 200_000) -> Result:
    """Both structures with each size of key, one after the other, on one node: all keys are different."""
    result = Result("hash", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "slices": 8,
        "nodes": 1,
        "look_ups": LOOK_UPS,
        "keys_of_in": BATCH,
    }
    for size in SIZES:
        for name in ("btree", "hash"):
            with Bench(nodes=1) as bench:
                for figure, value in _measured(bench, name, size, documents).items():
                    result.figures[f"{name}_{size}_{figure}"] = value
                    say(f"{name}, keys of {size} bytes: {figure} {value:,}")
    return result


def _measured(bench: Bench, structure: str, size: int, documents: int) -> dict[str, float]:
    bench.make_topic(TOPIC, PARTITIONS)
    bench.create_index(f"CREATE INDEX by_key ON {TOPIC} USING {structure} (key) WITH (slices=8)")
    bench.pause()
    load(bench.bootstrap, TOPIC, range(documents), make=_document(size))
    ends = bench.ends(TOPIC)
    began = time.monotonic()
    bench.resume()
    bench.wait_indexed("by_key", ends)
    figures: dict[str, float] = {"documents_per_s": round(documents / (time.monotonic() - began))}
    counted = bench.client.count("by_key", timeout_ms=60_000).count
    invariant(counted == documents, "BenchmarkIndex", f"{counted} entries of {documents} documents")
    samples = _look_ups(bench, [[number] for number in _chosen(documents, LOOK_UPS)], size)
    figures["p50_ms"] = percentiles(samples)["p50_ms"]
    many = _chosen(documents, LOOK_UPS)
    some = [many[at : at + BATCH] for at in range(0, LOOK_UPS, BATCH)]
    figures[f"in_{BATCH}_p50_ms"] = percentiles(_look_ups(bench, some, size))["p50_ms"]
    bench.create_index(f"CREATE INDEX built ON {TOPIC} USING {structure} (key) WITH (slices=8)")
    figures["bytes_per_entry"] = round(_size(bench, "built", documents) / documents)
    return figures


def _document(size: int) -> Callable[[int, int], bytes]:
    return lambda number, version: b'{"key":"%s"}' % key_of(number, size).encode()


def key_of(number: int, size: int) -> str:
    """A key of so many characters, that of a number in every run; no two begin alike for long."""
    return hashlib.shake_128(b"%d" % number).hexdigest((size + 1) // 2)[:size]


def _chosen(documents: int, count: int) -> list[int]:
    return random.Random(3).choices(range(documents), k=count)


def _look_ups(bench: Bench, asked: list[list[int]], size: int) -> list[float]:
    """Milliseconds of each, at a bare HTTP client."""
    connection = connect(bench.cluster.node_urls[0])
    samples: list[float] = []
    for numbers in asked:
        spans = [{"equals": [key_of(number, size)]} for number in numbers]
        took, rows = timed_scan(connection, "by_key", spans[0] if len(spans) == 1 else {"spans": spans})
        samples.append(took)
        found = {row["id"] for row in rows}
        wanted = {document_id(number).decode() for number in numbers}
        invariant(found == wanted, "BenchmarkScan", f"{len(found)} of {len(wanted)} keys were found")
    connection.close()
    return samples


def _size(bench: Bench, index: str, documents: int) -> int:
    """Bytes of an index that a build has made, once its node has told of all of it for three seconds."""
    seen: list[int] = []

    def told() -> bool:
        shown = bench.admin.call("GET", f"/v1/indexes/{index}")
        if shown["entries"] != documents or (seen and seen[-1] != shown["bytes"]):
            seen.clear()
        seen.append(int(shown["bytes"]))
        return len(seen) > 30

    wait(told, f"the size of {index}")
    return seen[-1]
