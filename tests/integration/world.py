"""A cluster under test, writers that never stop, and the comparison of every index with its source."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from deploy.cluster import LocalCluster
from keytide.catalog.catalog import Catalog
from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.errors import CallerError, RetryableError
from keytide.settings.settings import load_settings
from tests.chaos.processes import stopped
from tests.integration.dictionary_reader import DictionaryReader
from tests.oracle import Keys, Row, Source, difference, rows_of
from tests.waiting import LIMIT_S, wait_for

Change = Callable[[random.Random, int], tuple[str, Any]]
"""(random, number) -> (id, document or None for a delete)."""


def _told(row: Any) -> str:
    """A row, whatever the order of members in its key."""
    return json.dumps(row, sort_keys=True)


@dataclass(slots=True)
class World:
    """A running cluster, with what tests do to it.

    Attributes:
        verify: whether builds are verified before they are READY; None for what settings of the cluster say.
        topics: all that were made.
    """

    cluster: LocalCluster
    sources: dict[str, Source] = field(default_factory=dict)
    verify: bool | None = None
    topics: list[str] = field(default_factory=list)
    _admin: Admin | None = None
    _dictionary: DictionaryReader | None = None

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.cluster.coordinator_urls)
        return self._admin

    def catalog(self) -> Catalog:
        """The dictionary as it is now."""
        if self._dictionary is None:
            settings = load_settings(kafka={"bootstrap": self.bootstrap}, cluster=self.cluster.name)
            self._dictionary = DictionaryReader(settings)
        return self._dictionary.now()

    def client(self, node: int = 0) -> Client:
        return Client(self.cluster.node_urls[node])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self.sources.values():
            source.close()
        if self._admin is not None:
            self._admin.close()
        if self._dictionary is not None:
            self._dictionary.close()

    def make_topic(self, topic: str, partitions: int = 4, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, config=settings)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[topic].result(timeout=30)
        self.topics.append(topic)

    def sql(self, statement: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.admin.call("POST", "/v1/statements", {"statement": statement})
        return answer

    def begin(self, topic: str, change: Change, documents: int, index: str, statement: str) -> None:
        """A topic with documents, and an index on it that is READY.

        Args:
            change, documents: what writes them (`Writer`), and how many.
            statement: that creates the index, deferred.
        """
        self.make_topic(topic)
        with Writer(self.bootstrap, topic, 1, change) as writer:
            writer.write(documents)
        self.sql(statement)
        self.wait_ready(self.build(index))

    def begin_empty(self, topic: str, index: str, statement: str, partitions: int = 4) -> None:
        """A topic without documents, and an index on it that is READY: the build has nothing to read, and so
        it needs no Spark, whose start is most of what a small build costs. For tests of what becomes of an
        index afterwards; what is written now comes through the projector.

        Args:
            statement: that creates the index, deferred.
        """
        self.make_topic(topic, partitions)
        self.sql(statement)
        self.wait_ready(self.build(index))

    def begin_live(
        self, topic: str, change: Change, documents: int, index: str, statement: str, partitions: int = 4
    ) -> None:
        """As `begin`, but all documents are written when the index is READY (`begin_empty`)."""
        self.begin_empty(topic, index, statement, partitions)
        with Writer(self.bootstrap, topic, 1, change, per_second=0.01) as writer:
            writer.write(documents)
        self.wait_shown(topic, index)

    def build(self, *names: str, rate_limit: int | None = None, verify: bool | None = None) -> str:
        """Start a build, of so many documents per second at most; its id."""
        body: dict[str, Any] = {"indexes": list(names), "rate_limit": rate_limit}
        if (verified := self.verify if verify is None else verify) is not None:
            body["verify"] = verified
        return str(self.admin.call("POST", "/v1/builds", body)["id"])

    def wait_shown(self, topic: str, *indexes: str) -> None:
        """Wait until all nodes show everything that is in the topic now."""
        at_least = {str(partition): offset for partition, offset in self.ends(topic).items()}
        for node in self._running():
            with self.client(node) as client:
                for index in indexes:
                    client.count(index, at_least=at_least, timeout_ms=60_000)

    def clear(self) -> None:
        """Drop all indexes of the cluster, and delete the topics that were made: the next user of the cluster
        finds nothing."""
        for index in self.admin.call("GET", "/v1/indexes"):
            self.admin.call("DELETE", f"/v1/indexes/{index['name']}")
        wait_for(lambda: not self.admin.call("GET", "/v1/indexes"), "all indexes are gone")
        delete_topics(self.bootstrap, self.topics)
        self.topics.clear()

    def throttle(self, build: str, rate_limit: int | None) -> dict[str, Any]:
        """Set the rate limit of a build (documents per second, None for none), waiting out a coordinator that
        is away; the build."""
        return self._waiting("PATCH", f"/v1/builds/{build}", {"rate_limit": rate_limit})

    def build_state(self, build: str) -> dict[str, Any]:
        """The build, waiting out a coordinator that is away."""
        return self._waiting("GET", f"/v1/builds/{build}")

    def _waiting(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        state: dict[str, Any] = {}

        def asked() -> bool:
            try:
                state.update(self.admin.call(method, path, body))
            except RetryableError:
                return False
            return True

        wait_for(asked, "the coordinator answers")
        return state

    def wait_ready(self, build: str, limit: float = LIMIT_S) -> dict[str, Any]:
        """Wait until a build is READY, and every node that runs has read that its indexes are."""

        def over() -> bool:
            state = self.build_state(build)
            assert state["state"] not in ("FAILED", "CANCELLED"), state
            return bool(state["state"] == "READY")

        wait_for(over, f"build {build} is READY", limit)
        state = self.build_state(build)
        wait_for(
            lambda: all(self._answers(node, state["indexes"]) for node in self._running()),
            "all nodes know it",
        )
        return state

    def _running(self) -> list[int]:
        """The nodes whose processes run, by their places in `node_urls`."""
        services = self.cluster.services
        names = sorted(name for name in services if name.startswith("node-"))
        return [place for place, name in enumerate(names) if services[name].running]

    def _answers(self, node: int, indexes: Iterable[str]) -> bool:
        with self.client(node) as client:
            for index in indexes:
                try:
                    client.count(index, equals=["no such key"])
                except RetryableError:
                    return False
                except CallerError as error:  # an index of places knows no keys, and has said so
                    if error.problem_type != "index-not-ordered":
                        raise
        return True

    def ends(self, topic: str) -> dict[int, int]:
        """Next offsets of a topic."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        found = {place.partition: offset for place, offset in consumer.end_offsets(places).items()}
        consumer.close()
        return found

    def scan_all(
        self, index: str, node: int = 0, page_size: int = 500, **demands: Any
    ) -> tuple[list[Row], dict[int, int]]:
        """All rows of an index from one snapshot, page by page, and the offsets of its timestamp."""
        with self.client(node) as client:
            page = client.page(index, limit=page_size, **demands)
            offsets = {int(p): place["offset"] for p, place in page.timestamp.items()}
            snapshot, rows = page.snapshot, [(row.key, row.id) for row in page.rows]
            while page.page is not None:
                page = client.page(index, page=page.page)
                assert page.snapshot == snapshot, "Stable: a page came from another snapshot"
                rows += [(row.key, row.id) for row in page.rows]
        return rows, offsets

    def check(
        self, index: str, topic: str, keys: Keys, descending: Iterable[bool] = (), **demands: Any
    ) -> int:
        """Compare an index at a snapshot with its source at the snapshot's timestamp; how many rows it
        has."""
        rows, offsets = self.scan_all(index, **demands)
        expected = rows_of(self.source(topic).newest(offsets), keys, descending)
        wrong = difference(expected, rows)
        assert not wrong, f"{index} at {offsets}: {wrong}"
        return len(rows)

    def check_at_end(self, index: str, topic: str, keys: Keys, descending: Iterable[bool] = ()) -> int:
        """The same, at a snapshot that includes everything in the topic now."""
        at_least = {str(p): offset for p, offset in self.ends(topic).items()}
        return self.check(index, topic, keys, descending, at_least=at_least, timeout_ms=60_000)

    def check_unordered(self, index: str, topic: str, keys: Keys, **demands: Any) -> int:
        """The same as `check` of an index whose rows have no order: each of them once."""
        rows, offsets = self.scan_all(index, page_size=70, **demands)
        expected = rows_of(self.source(topic).newest(offsets), keys, ())
        assert Counter(map(_told, rows)) == Counter(map(_told, expected))
        return len(rows)

    def check_unordered_at_end(self, index: str, topic: str, keys: Keys) -> int:
        """The same as `check_at_end` of an index whose rows have no order."""
        at_least = {str(p): offset for p, offset in self.ends(topic).items()}
        return self.check_unordered(index, topic, keys, at_least=at_least, timeout_ms=60_000)

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.call("GET", f"/v1/jobs/{job}")
        return found

    def job_over(self, job: str) -> dict[str, Any]:
        """A job, when it is over."""
        wait_for(lambda: self.job(job)["state"] in ("DONE", "FAILED", "CANCELLED"), f"job {job} is over")
        return self.job(job)

    def verified(self, index: str) -> dict[str, Any]:
        """The verification of an index, when it is over."""
        return self.job_over(self.admin.call("POST", f"/v1/indexes/{index}/verify")["id"])

    def check_verified(self, index: str) -> None:
        """See that a verification finds nothing wrong."""
        found = self.verified(index)
        assert found["state"] == "DONE", found
        assert not any(found["counts"].values()), found

    def source(self, topic: str) -> Source:
        """What the topic holds, read by itself; kept."""
        return self.sources.get(topic) or self.sources.setdefault(topic, Source(self.bootstrap, topic))

    def processes(self, part: str) -> list[psutil.Process]:
        """Processes under the cluster whose command line has `part` in it, with all that they started."""
        found: list[psutil.Process] = []
        for child in self.cluster.services.values():
            if not child.running:
                continue
            for process in psutil.Process(child.pid).children(recursive=True):
                try:
                    if part in " ".join(process.cmdline()):
                        found += [process, *process.children(recursive=True)]
                except psutil.NoSuchProcess:
                    continue
        return list(dict.fromkeys(found))

    def spark(self) -> list[psutil.Process]:
        """The Spark driver of a build, its JVM and its Python workers."""
        return self.processes("streaming.backfill")

    @contextmanager
    def spark_held(self) -> Iterator[None]:
        """Everything of Spark stopped (SIGSTOP) while the block runs."""
        held = self.spark()
        assert held, "no Spark driver runs"
        with stopped(held):
            yield


@contextmanager
def running(
    folder: Path, kafka: str, name: str, settings: Mapping[str, str], **options: Any
) -> Iterator[World]:
    """A cluster of its own on a broker that others use, too; its topics go with it.

    Args:
        kafka: bootstrap servers.
        name: of the cluster, as no other has it.
        options: of the cluster (`LocalCluster`).
    """
    made: list[str] = []
    try:
        with (
            LocalCluster(folder, kafka=kafka, name=name, settings=settings, **options) as cluster,
            World(cluster, topics=made) as world,
        ):
            yield world
    finally:
        there = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=30).topics
        delete_topics(kafka, [topic for topic in there if topic in made or topic.startswith(f"{name}.")])


def delete_topics(kafka: str, topics: list[str]) -> None:
    """Delete topics, and wait until they are gone."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for deletion in admin.delete_topics(topics).values() if topics else ():
        deletion.result(30)


class Writer:
    """A producer (kafka-python) that writes random changes in a thread until it is stopped.

    Args:
        change: makes what is written.
        per_second: pace.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        seed: int,
        change: Change,
        per_second: float = 500,
    ) -> None:
        self._topic, self._change, self._per_second = topic, change, per_second
        self._chance = random.Random(seed)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None
        self.written = 0

    def write(self, count: int) -> None:
        """Write some changes at once, in this thread; all are acknowledged when it returns."""
        for _ in range(count):
            self._one()
        self._producer.flush()

    def _one(self) -> None:
        self.put(*self._change(self._chance, self.written))

    def put(self, id_: str, document: Any) -> None:
        """Send one document, or a delete (None); `write` waits for it."""
        value = None if document is None else json.dumps(document).encode()
        self._producer.send(self._topic, key=id_.encode(), value=value)
        self.written += 1

    def _run(self) -> None:
        try:
            while not self._stop.wait(20 / self._per_second):
                for _ in range(20):
                    self._one()
            self._producer.flush()
        except BaseException as error:
            self.error = error
            raise

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._producer.close()
        if self.error is not None:
            raise self.error
