"""A keyspace under writes and scans with READY indexes on it, for tests that strike at one place: `look` says
whether all is right after that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.cluster import LocalCluster
from keytide.errors import KeytideError
from keytide.wire.messages import BatchEnd, UnreadableMessageError, decode
from tests.chaos.building import Builder
from tests.chaos.faults import fresh_again
from tests.chaos.reading import WAITS, Reader
from tests.chaos.run import Run, Target
from tests.chaos.shapes import SHAPES
from tests.chaos.truth import Truth
from tests.chaos.writing import Writer

LIMIT_S = 240.0
PAUSE_S = 0.5
"""Between the scans of a reader, at most: what is struck needs the processor, too."""


class Scene:
    """One keyspace.

    Args:
        cluster: runs already.
        keyspace: name of the topic, made here.
        per_second: changes while the scene is open.
        fill: changes before that.
        readers: threads that scan and compare all the time.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        keyspace: str,
        *,
        seed: int = 1,
        per_second: float = 100,
        ids: int = 800,
        fill: int = 3_000,
        readers: int = 1,
    ) -> None:
        self.cluster = cluster
        self.keyspace = keyspace
        self.run = Run(cluster.coordinator_url, cluster.bootstrap, cluster.name, seed)
        self.builder = Builder(self.run, keyspace, seed)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(keyspace, 4, 1)])[keyspace].result(30)
        self.run.truths[keyspace] = Truth(cluster.bootstrap, keyspace)
        self._reader = Reader(self.run, seed)
        self.writer = Writer(self.run, keyspace, seed, per_second, ids)
        self.writer.fill(fill)
        scans = [Reader(self.run, seed + 1 + at, PAUSE_S).work for at in range(readers)]
        works = [self.writer.work, *scans]
        self._threads = [threading.Thread(target=self.run.guarded(work), daemon=True) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.stopping.set()
        for thread in self._threads:
            thread.join(30)
        for truth in self.run.truths.values():
            truth.close()
        if error is None:
            self.right()

    def index(self, *shapes: str) -> list[Target]:
        """Create indexes of these kinds, of four slices, not built."""
        return [self.builder.create(f"{self.keyspace}_{name}", SHAPES[name], 4) for name in shapes]

    def build(self, targets: Iterable[Target]) -> str:
        """Begin to build them; the build's id."""
        return self.run.build([target.name for target in targets])

    def ready(self, build: str, targets: Iterable[Target]) -> None:
        """Wait until a build is READY; from then on its indexes are scanned and looked at."""
        assert self.builder.wait(build), self.told()
        for target in targets:
            self.run.offer(target)

    def look(self, when: str, limit: float = LIMIT_S) -> float:
        """Everything that was written until now shows within a limit, and every index is whole and what its
        source says; seconds that it took to show."""
        deadline = time.monotonic() + limit
        took = fresh_again(self.run, when, limit)
        self.right()
        for number, target in enumerate(self.run.targets()):
            self._check(number, target, deadline)
        self.right()
        return took

    def _check(self, number: int, target: Target, deadline: float) -> None:
        """Compare an index with its source through one node, which need not be the one that showed
        everything: it may say for a while that it cannot answer."""
        while True:
            try:
                with self.run.client(number) as client:
                    self._reader.check(client, target)
                return
            except KeytideError as error:
                if error.status not in WAITS or time.monotonic() > deadline:
                    raise
            self.right()
            self.run.pause(0.2)

    def renew(self) -> None:
        """The source is another one than it was: read it anew. Only with no readers."""
        self.run.truths[self.keyspace].close()
        self.run.truths[self.keyspace] = Truth(self.cluster.bootstrap, self.keyspace)

    def right(self) -> None:
        """Nothing that was compared until now differed."""
        assert self.run.problem is None, self.told()

    def told(self) -> str:
        return "\n".join(self.run.report(self.cluster.data_dir / "logs"))


class Batches:
    """Reads the backfill queues of a build while it is under way: which driver run sent the ends of which
    micro-batches. Close it before its topics go, or live with what it has read until then."""

    def __init__(self, cluster: LocalCluster, build: str) -> None:
        self._cluster = cluster
        self._build = build
        self._stop = threading.Event()
        self.runs: dict[int, list[str]] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)

    def again(self) -> int:
        """How many micro-batches one driver run did again, at most."""
        done_again = [run for runs in self.runs.values() for run in runs[1:]]
        return max((done_again.count(run) for run in done_again), default=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def _read(self) -> None:
        config = {"bootstrap.servers": self._cluster.bootstrap, "group.id": "batches", "log_level": 0}
        consumer = Consumer(
            {**config, "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 1000}
        )
        assigned: list[str] = []
        try:
            while not self._stop.is_set():
                assigned = self._assign(consumer, assigned)
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                try:
                    found = decode(message.value() or b"")
                except UnreadableMessageError:
                    continue
                if isinstance(found, BatchEnd) and found.build == self._build:
                    runs = self.runs.setdefault(found.batch, [])
                    if found.run not in runs:
                        runs.append(found.run)
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer, assigned: list[str]) -> list[str]:
        if assigned:
            return assigned
        try:
            topics = consumer.list_topics(timeout=5).topics
        except KafkaException:
            return []
        wanted = [
            name
            for name in topics
            if name.startswith(f"{self._cluster.name}.backfill.") and name.endswith(f".{self._build}")
        ]
        consumer.assign([TopicPartition(name, p, 0) for name in wanted for p in topics[name].partitions])
        return wanted
