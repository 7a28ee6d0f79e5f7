"""What every benchmark needs: a cluster in a temporary folder, the machine's state, who used the processor, a
result on disk.

Figures are only as good as the machine was quiet: each result says how loaded it was before the run, and how
the processor time of the measured stretch was shared between the processes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.patience import limit
from benchmarks.watching import Watch
from deploy.cluster import LocalCluster
from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.errors import CallerError, RetryableError
from keytide.kafka.admin import KafkaUnavailableError

RESULTS = Path(__file__).parent / "results"
READY_LIMIT_S = 600.0
REGRESSION: Final = 0.15
"""By so much a ratio may be worse than the kept one: runs on one machine differ by as much."""


def progress_line(text: str) -> None:
    """One line that is overwritten, for a person who waits."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def say(text: str) -> None:
    progress_line("")
    print(text, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Result:
    """One benchmark's outcome.

    Attributes:
        figures: name -> number (documents_per_s, p50_ms, ...).
        sizes: what it ran on.
        shares: process -> share of all processor time that the measured processes used.
    """

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.figures,
            **self.machine,
            "sizes": self.sizes,
            "shares": self.shares,
            "notes": self.notes,
        }

    def behind_kept(self) -> list[str]:
        """What to say of ratios to a peer in the same run that are more than `REGRESSION` below the best that
        was ever kept: beside the last one, a loss of a tenth in each of several runs would never be said."""
        best = self._best()
        return [
            f"{self.name}: {name} is {self.figures[name]:.3f}, {1 - value / best[name]:.0%} worse than the "
            "best that was kept: a regression"
            for name, value in self._ratios().items()
            if value < best.get(name, 0.0) * (1 - REGRESSION)
        ]

    def save(self) -> None:
        """Write the figures with the machine's state to `benchmarks/results/`."""
        best, ratios = self._best(), self._ratios()
        best |= {name: round(max(value, best.get(name, 0.0)), 4) for name, value in ratios.items()}
        RESULTS.mkdir(exist_ok=True)
        made = self.as_json() | ({"best": best} if best else {})
        (RESULTS / f"{self.name}.json").write_text(json.dumps(made, indent=2) + "\n")

    def _ratios(self) -> dict[str, float]:
        """Figures that compare with a peer in the same run, so that larger is better."""
        return {
            name: value if name.startswith("ratio_") else 1 / value
            for name, value in self.figures.items()
            if value and (name.startswith("ratio_") or "_times_" in name)
        }

    def _best(self) -> dict[str, float]:
        """The best of each ratio so far: what results say, or the kept ones of a result that says nothing."""
        path = RESULTS / f"{self.name}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        numbers = {name: value for name, value in kept.items() if isinstance(value, int | float)}
        found: dict[str, float] = Result(self.name, figures=numbers)._ratios() | kept.get("best", {})
        return found


def commit() -> str:
    """What is measured: the commit, with `+` where code differs from it; empty outside of a repository."""
    git = ["git", "-C", str(RESULTS.parent)]
    code = [":/", ":(exclude,top)benchmarks/results", ":(exclude,top)docs"]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
        )
        differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code], check=False).returncode == 1
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip() + ("+" if differs else "")


def machine_state() -> dict[str, Any]:
    """Of this machine, before a run; and of what is measured on it."""
    return {
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }


_look: Callable[[Path, bool], None] = lambda folder, failed: None  # noqa: E731 - nobody looks


@contextmanager
def watched(look: Callable[[Path, bool], None]) -> Iterator[None]:
    """Have `look` called with the folder of each cluster when it has stopped, before the folder goes, and
    whether the benchmark has failed; what it raises fails the benchmark."""
    global _look
    before, _look = _look, look
    try:
        yield
    finally:
        _look = before


class Bench:
    """A cluster to measure.

    Args:
        nodes: indexer processes.
        settings: as environment variables.
        supervise: start parts again that die.
        coordinators: processes, of which one leads.

    Attributes:
        folder: everything of the cluster, while it runs.
    """

    def __init__(
        self,
        nodes: int = 2,
        settings: Mapping[str, str] | None = None,
        supervise: bool = True,
        coordinators: int = 1,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="keytide-bench-"))
        patient = {
            "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "300000"
        }  # a projector is stopped while the topic is filled
        self.cluster = LocalCluster(
            self.folder,
            nodes=nodes,
            coordinators=coordinators,
            settings={**patient, **(settings or {})},
            supervise=supervise,
            say=say,
        )

    def __enter__(self) -> Self:
        try:
            self.cluster.start()
        except BaseException:
            _look(self.folder, True)
            raise
        self.admin = Admin(self.cluster.coordinator_urls)
        self.client = Client(self.cluster.node_urls[0])
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.client.close()
        self.cluster.stop()
        try:
            _look(self.folder, kind is not None)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def make_topic(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=30)

    def create_index(self, statement: str) -> dict[str, Any]:
        """Run CREATE INDEX and wait until it is READY; the build."""
        return self.wait_build(self.sql(statement)["build"])

    def sql(self, statement: str) -> dict[str, Any]:
        """The coordinator's answer to a statement. Waits while Kafka cannot say what that needs: on a busy
        machine a broker may take seconds to learn that it leads a new topic."""
        deadline = time.monotonic() + limit(READY_LIMIT_S)
        while True:
            try:
                answer: dict[str, Any] = self.admin.call("POST", "/v1/statements", {"statement": statement})
            except RetryableError as error:
                if error.problem_type != KafkaUnavailableError.problem_type or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return answer

    def wait_build(self, build: Any) -> dict[str, Any]:
        id_ = build["id"] if isinstance(build, dict) else build
        deadline = time.monotonic() + limit(READY_LIMIT_S)
        while time.monotonic() < deadline:
            state: dict[str, Any] = self.admin.call("GET", f"/v1/builds/{id_}")
            progress_line(f"build {state['state']} {state.get('documents_done')}")
            if state["state"] == "READY":
                return state
            if state["state"] in ("FAILED", "CANCELLED"):
                raise CallerError(f"build {id_} is {state['state']}: {state.get('error')}")
            time.sleep(0.02)
        raise CallerError(f"build {id_} is not READY after {limit(READY_LIMIT_S):.0f} s")

    def ends(self, topic: str) -> dict[int, int]:
        """Next offsets of a topic."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "bench", "enable.auto.commit": False}
        )
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        found = {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions
        }
        consumer.close()
        return found

    def forget(self, topic: str) -> None:
        """Delete all records that a topic has now."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        upto = [TopicPartition(topic, p, offset) for p, offset in self.ends(topic).items()]
        for done in admin.delete_records(upto, request_timeout=30).values():
            done.result(timeout=60)

    def wait_indexed(self, index: str, ends: Mapping[int, int], limit_s: float = READY_LIMIT_S) -> None:
        """Wait until a stable scan includes everything below `ends`."""
        deadline = time.monotonic() + limit(limit_s)
        wanted = {str(p): o for p, o in ends.items()}
        while True:
            try:
                self.client.page(index, limit=1, at_least=wanted, timeout_ms=10_000)
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise

    def pause(self, name: str = "projector-1") -> None:
        os.kill(self.cluster.services[name].pid, signal.SIGSTOP)

    def resume(self, name: str = "projector-1") -> None:
        os.kill(self.cluster.services[name].pid, signal.SIGCONT)

    def parts(self) -> dict[str, int]:
        """Process ids of the parts that run, Kafka and this process among them."""
        pids = {name: child.pid for name, child in self.cluster.services.items() if child.running}
        return {**pids, "kafka": self.cluster.broker.pid, "benchmark": os.getpid()}

    @contextmanager
    def measured(self, result: Result) -> Iterator[None]:
        """Fill in who used the processor during the block."""
        watch = Watch(self.parts)
        try:
            yield
        finally:
            watch.stop()
        used = watch.seconds
        whole = sum(used.values()) or 1.0
        result.shares = {name: round(seconds / whole, 3) for name, seconds in sorted(used.items())}
        result.figures["cpu_seconds"] = round(whole, 1)
        result.sizes["peak_memory_mb"] = dict(sorted(watch.peak_mb.items()))

    def memory(self) -> dict[str, int]:
        """Memory of each part beyond the page cache (resident less shared; LMDB maps the page cache), MB."""
        used: dict[str, int] = {}
        for name, child in self.cluster.services.items():
            if child.running:
                information = psutil.Process(child.pid).memory_info()
                used[name] = (information.rss - information.shared) // 1_000_000
        return used


def percentiles(samples_ms: list[float]) -> dict[str, float]:
    """p50, p95, p99 of samples in milliseconds."""
    ordered = sorted(samples_ms)
    return {
        f"p{p}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 3) for p in (50, 95, 99)
    }
