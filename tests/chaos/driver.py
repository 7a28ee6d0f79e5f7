"""A run from its beginning to its end: topics, indexes, threads, time, healing, the last look."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keytide.errors import KeytideError
from tests.chaos import moving
from tests.chaos.building import Builder
from tests.chaos.faults import Faults, fresh_again
from tests.chaos.processes import Processes
from tests.chaos.reading import Reader
from tests.chaos.run import Run, Say, StoppedError, Target
from tests.chaos.shapes import SHAPES
from tests.chaos.truth import Truth
from tests.chaos.writing import Writer
from tests.waiting import slowness

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__NICE": "5",
    "KEYTIDE_BUILD__RESTARTS": "50",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "5",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "2000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "3",
    "KEYTIDE_INDEXER__STALL_S": "10",
    "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "6000",
}
"""Of a cluster of its own: small deltas, so that folds come all the time; drivers that stand back less,
so that builds come to their end between faults."""
LEAST_BATCH, BATCHES = 4_000, 20
"""Documents of a micro-batch, and how many batches a build has at the end of a run, when that is more: the
topics only grow, and batches of one size would make rebuilds slower and slower."""
PROGRESS_S = 15.0
GONE_LIMIT_S = 180.0
"""Longer than a coordinator waits for projectors that do not let go of a dropped index."""
LEDGER_LIMIT_S = 60.0
PERMANENT = (
    ("city", "tag", "small", "mood", "placed", "hashed", "spread"),
    ("city_n", "by_id", "ranged", "hashed", "spread", "pointed"),
)
"""The indexes that stay, by keyspace in turn; the first one has each kind."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for.

    Attributes:
        rate: changes per second and keyspace.
        ids: documents per keyspace at most.
        kinds: of faults; none when empty.
    """

    seed: int
    seconds: float
    keyspaces: int = 2
    rate: float = 250.0
    ids: int = 1_500
    readers: int = 2
    kinds: list[str] | None = None

    def settings(self) -> dict[str, str]:
        """Of a cluster of its own."""
        documents = max(LEAST_BATCH, int(self.rate * self.seconds / BATCHES))
        return {**SETTINGS, "KEYTIDE_BUILD__BATCH_DOCUMENTS": str(documents)}


class Driver:
    """Carries out a plan.

    Args:
        shared: the run.
        supervisor: process id that holds the cluster's parts; None when there are to be no faults.
        data_dir: the cluster's.
        clean_up: drop indexes and topics in the end: the cluster is somebody's.
    """

    def __init__(
        self, shared: Run, plan: Plan, supervisor: int | None, data_dir: Path, clean_up: bool = False
    ) -> None:
        self.shared = shared
        self.plan = plan
        self._clean_up = clean_up
        self._processes = None if supervisor is None else Processes(supervisor, data_dir)
        self._threads: list[threading.Thread] = []
        self._faulty = threading.Event()
        self._topics: list[str] = []

    def run(self, say: Say) -> None:
        """All of it. What goes wrong is in `shared.problem`."""
        run, plan = self.shared, self.plan
        chance = random.Random(plan.seed)
        try:
            writers = list(self._prepare(chance, say))
            for writer in writers:
                self._start("writer", writer.work)
            for _ in range(plan.readers):
                self._start("reader", Reader(run, chance.randrange(1 << 30)).work)
            for topic in self._topics:
                self._start("builder", Builder(run, topic, chance.randrange(1 << 30)).work)
            faults = self._faults(chance.randrange(1 << 30))
            self._watch(say, faults)
            say("faults are over; everything must get ready and fresh")
            took = fresh_again(run, "at the end")
            run.recoveries.setdefault("end", []).append(took)
            self.end()
            if run.problem is None:
                self._last_look()
        except StoppedError:
            pass
        finally:
            self.end()
            if self._clean_up and run.problem is None:
                self._remove()

    def _faults(self, seed: int) -> Callable[[], None]:
        """Starts the faults; the answer ends them and waits until what they hold is let go."""
        if self._processes is None or not self.plan.kinds:
            return lambda: None
        faults = Faults(self.shared, self._processes, seed, self.plan.kinds)
        thread = self._start("faults", faults.work)

        def end() -> None:
            faults.over.set()
            thread.join()
            moving.end(self.shared)

        return end

    def _watch(self, say: Say, end_faults: Callable[[], None]) -> None:
        run = self.shared
        due = run.began = time.monotonic()
        while time.monotonic() < run.began + self.plan.seconds and not run.stopping.wait(0.2):
            if time.monotonic() >= due:
                due = time.monotonic() + PROGRESS_S
                say(self.progress())
        end_faults()
        if run.stopping.is_set():
            raise StoppedError

    def progress(self) -> str:
        """One line."""
        run = self.shared
        count = run.counts
        return (
            f"[{(time.monotonic() - run.began) / 60:5.1f} of {self.plan.seconds / 60:g} min] "
            f"{count['written']:,} written, {count['scans']:,} scans, {count['compared']:,} compared: "
            f"{'0' if run.problem is None else '1'} differences; {count['builds_ready']} builds, "
            f"{count['faults']} faults; {run.last[:90]}"
        )

    def closing_words(self, interrupted: bool) -> str:
        run = self.shared
        if run.problem is not None:
            return f"FAILED with seed {self.plan.seed}: {run.problem.what}"
        how = "interrupted, " if interrupted else ""
        return (
            f"{how}zero differences: {run.counts['compared']:,} scans compared, "
            f"{run.counts['counts']:,} counts, {run.counts['faults']} faults, "
            f"{run.counts['builds_ready']} builds, seed {self.plan.seed}"
        )

    def _prepare(self, chance: random.Random, say: Say) -> Iterator[Writer]:
        run, plan = self.shared, self.plan
        admin = AdminClient({"bootstrap.servers": run.bootstrap})
        known = set(admin.list_topics(timeout=30).topics)
        prefix = next(name for n in range(10_000) if f"{(name := f'chaos{plan.seed}_{n}_')}0" not in known)
        builds: list[tuple[str, list[Target]]] = []
        for number in range(plan.keyspaces):
            topic = f"{prefix}{number}"
            config = {"max.message.bytes": "2000000"}
            admin.create_topics([NewTopic(topic, 4, 1, config=config)])[topic].result(30)
            self._topics.append(topic)
            run.truths[topic] = Truth(run.bootstrap, topic)
            writer = Writer(run, topic, chance.randrange(1 << 30), plan.rate, plan.ids)
            writer.fill(3 * plan.ids)
            builder = Builder(run, topic, chance.randrange(1 << 30))
            shapes = [SHAPES[name] for name in PERMANENT[number % len(PERMANENT)]]
            targets = [builder.create(f"{topic}_{shape.name}", shape) for shape in shapes]
            builds.append((run.build([target.name for target in targets]), targets))
            yield writer
        say(f"building {sum(len(targets) for _, targets in builds)} indexes on {len(builds)} keyspaces")
        for (build, targets), topic in zip(builds, self._topics, strict=True):
            if not Builder(run, topic, 0).wait(build):
                run.fail(f"the first build, {build}, is not READY")
                raise StoppedError
            for target in targets:
                run.offer(target)

    def _last_look(self) -> None:
        """Every index that stays, whole, through every node, with nothing going on."""
        run = self.shared
        reader = Reader(run, self.plan.seed)
        for target in run.targets():
            try:
                for number in range(len(run.nodes())):
                    with run.client(number) as client:
                        reader.check(client, target)
                reader.check_ledger(target, LEDGER_LIMIT_S * slowness())
            except KeytideError as error:
                run.fail(f"{target.name} at the end: {error.status} {error.problem_type} {error}")

    def _start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self.shared.guarded(work), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def end(self) -> None:
        """Stop all threads; nothing that a fault holds stays held."""
        self.shared.stopping.set()
        for thread in self._threads:
            thread.join(60)
        self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _remove(self) -> None:
        run = self.shared
        run.stopping.clear()
        for target in run.targets():
            run.withdraw(target)
            Builder(run, target.keyspace, 0).drop(target.name)
        for topic in self._topics:
            for number in range(2):
                Builder(run, topic, 0).drop(f"{topic}_churn{number}")
        deadline = time.monotonic() + GONE_LIMIT_S * slowness()
        while any(one["keyspace"] in self._topics for one in run.admin("GET", "/v1/indexes")):
            if time.monotonic() > deadline:
                run.fail(f"dropped indexes are not gone after {GONE_LIMIT_S * slowness():.0f} s")
                return
            run.pause(0.3)  # (projectors let go of them while the topics are there)
        admin = AdminClient({"bootstrap.servers": run.bootstrap})
        for topic, deletion in admin.delete_topics(self._topics).items():
            try:
                deletion.result(30)
            except KafkaException as error:
                run.fail(f"topic {topic} cannot be deleted: {error}")
