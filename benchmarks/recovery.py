"""How soon all is as before when a part has died, lost its data, or was away.

Every figure is seconds from the fault, or from the start of the process where the name says so, until a
reader has what counts: a stable scan that answers, one that holds a document written after the fault, the
next stability timestamp. Processes are killed (SIGKILL) and started again at once, so that a supervisor's
pause is not part of it.
"""

from __future__ import annotations

import shutil
import statistics
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from benchmarks import stress
from benchmarks.asking import SOON_S, is_ready, until
from benchmarks.documents import PARTITIONS, document, document_id, load
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.hearing import Stamps
from benchmarks.throughput import BY_CITY, MILLION, TOPIC
from keytide.client import Client
from keytide.errors import KeytideError, invariant

TIMES = 3
"""Kills of one part; the figure is the median."""
FOLD_AGE_S = 5
SETTINGS = {
    "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "10000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": str(FOLD_AGE_S),
    "KEYTIDE_COORDINATOR__REBUILD_WAIT_S": "1",
}
NODE = "node-1"


def recovery(documents: int = MILLION) -> Result:
    """Restarts of every part, a rebuild of one slice, and a rollback to nothing, under an index of one node
    with 8 slices."""
    result = Result("recovery", machine=machine_state())
    result.sizes = {"documents": documents, "partitions": PARTITIONS, "slices": 8, "nodes": 1}
    result.notes.append(
        f"node and coordinator: medians of {TIMES} kills; a node's base is folded before its kill "
        f"(delta_age_s {FOLD_AGE_S}); the projector's session time-out (10 s) is part of its figure"
    )
    with Bench(nodes=1, settings=SETTINGS, supervise=False) as bench, Stamps(bench.bootstrap) as stamps:
        bench.make_topic(TOPIC, PARTITIONS)
        bench.create_index(BY_CITY)
        load(bench.bootstrap, TOPIC, range(documents))
        bench.wait_indexed("by_city", bench.ends(TOPIC))
        faults = Faults(bench, stamps)
        _note(result, "node_restart", [faults.node() for _ in range(TIMES)])
        _note(result, "coordinator_restart", [faults.coordinator() for _ in range(TIMES)])
        _note(result, "projector_restart", [faults.projector()])
        _note(result, "broker_restart", [faults.broker()])
        _note(result, "rebuild", [faults.lost_slice(documents)])
        _note(result, "rollback", [faults.topic_made_anew(documents // 100)])
    return result


def _note(result: Result, name: str, runs: list[dict[str, float]]) -> None:
    for figure in runs[0]:
        result.figures[f"{name}_{figure}"] = round(statistics.median(run[figure] for run in runs), 2)
    say(f"{name}: {runs}")


class Faults:
    """What is done to the cluster, and how long it takes."""

    def __init__(self, bench: Bench, stamps: Stamps) -> None:
        self._bench = bench
        self._stamps = stamps
        self._fresh = Freshness(bench)

    def node(self) -> dict[str, float]:
        """Kill the node once its base is folded: start to ready, start to a stable scan of 100 rows."""
        self._fresh.wait()
        time.sleep(2 * FOLD_AGE_S)  # nothing says from outside that a base is folded
        self._bench.cluster.kill(NODE)
        began = time.monotonic()
        self._start(NODE)
        ready = until(lambda: is_ready(self._bench.cluster.node_urls[0]), began)
        scan = until(lambda: self._fresh.page(timeout_ms=10_000), began)
        return {"ready_s": ready, "scan_s": scan}

    def coordinator(self) -> dict[str, float]:
        """Kill the coordinator: to the next stability timestamp, and to a fresh scan."""
        self._bench.cluster.kill("coordinator")
        began = time.monotonic()
        self._start("coordinator")
        stamp = self._stamps.wait_after(began) - began
        self._fresh.wait()
        return {"stamp_s": stamp, "fresh_s": time.monotonic() - began}

    def projector(self) -> dict[str, float]:
        """Kill the projector: to a scan that holds a document written since."""
        self._bench.cluster.kill("projector-1")
        began = time.monotonic()
        self._start("projector-1")
        self._fresh.wait()
        return {"fresh_s": time.monotonic() - began}

    def broker(self) -> dict[str, float]:
        """Kill the broker: to its answer, and to a scan that holds a document written since."""
        self._bench.cluster.broker.kill()
        began = time.monotonic()
        self._bench.cluster.broker.start()
        answers = time.monotonic() - began
        self._fresh.wait()
        return {"answers_s": answers, "fresh_s": time.monotonic() - began}

    def lost_slice(self, documents: int) -> dict[str, float]:
        """Delete one slice's folder under a stopped node: from the node's start until the whole index answers
        again. Spark reads all documents for it."""
        before = self._fresh.count()
        self._bench.cluster.kill(NODE)
        folder = min((self._bench.cluster.data_dir / NODE).glob("nodes/*/slices/*/0"))
        stress.take_away(self._bench.cluster.data_dir, f"{folder.parent.name}/{folder.name}")
        shutil.rmtree(folder)
        began = time.monotonic()
        self._start(NODE)
        took = until(lambda: self._fresh.count() == before, began)
        build = [
            one
            for one in self._bench.admin.call("GET", "/v1/builds")
            if one["state"] == "READY" and one["slices"]
        ][-1]
        spent = (build["finished_at"] - build["started_at"]) / 1000
        return {"s": took, "build_s": spent, "documents_per_s": documents / spent}

    def topic_made_anew(self, documents: int) -> dict[str, float]:
        """Delete the source and make it anew: from then until stable scans answer, under the new history, and
        until they hold what was written since."""
        admin = AdminClient({"bootstrap.servers": self._bench.bootstrap})
        admin.delete_topics([TOPIC])[TOPIC].result(timeout=30)
        until(lambda: TOPIC not in admin.list_topics(timeout=10).topics, time.monotonic())
        self._bench.make_topic(TOPIC, PARTITIONS)
        began = time.monotonic()
        load(self._bench.bootstrap, TOPIC, range(documents))
        scan = until(lambda: self._fresh.count() in range(documents + 1), began)
        whole = until(lambda: self._fresh.count() == documents, began)
        return {"scan_s": scan, "whole_s": whole}

    def _start(self, name: str) -> None:
        self._bench.cluster.services[name].start()


class Freshness:
    """Scans, and documents to look for in them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._producer = Producer(
            {
                "bootstrap.servers": bench.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.max.ms": 100,
            }
        )
        self._probe = document_id(0)  # an update: the number of entries stays

    def page(self, **demands: Any) -> bool:
        """Whether a stable scan answers now."""
        try:
            with Client(self._bench.cluster.node_urls[0], retries=0) as client:
                client.page("by_city", limit=100, **demands)
        except KeytideError:
            return False
        return True

    def count(self) -> int:
        """Entries by a stable count; -1 while it does not answer."""
        try:
            with Client(self._bench.cluster.node_urls[0], retries=0) as client:
                return client.count("by_city", timeout_ms=5_000).count
        except KeytideError:
            return -1

    def wait(self) -> None:
        """Write a document and wait until a stable scan holds it."""
        placed: list[tuple[int, int]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            invariant(error is None, "BenchmarkProbe", str(error))
            placed.append((message.partition() or 0, message.offset() or 0))

        self._producer.produce(TOPIC, document(0), self._probe, on_delivery=delivered)
        self._producer.flush(SOON_S)
        (partition, offset), began = placed[0], time.monotonic()
        until(lambda: self.page(at_least={str(partition): offset + 1}, timeout_ms=30_000), began)
