"""The coordinator as a process on the real broker, with stand-ins for everything else."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coordinator.catalog.dictionary import Dictionary
from coordinator.core.events import TopicSeen
from coordinator.core.instructions import ConfirmTopic, ExamineHistory
from coordinator.election.claim import MetadataWriter, claim_term
from coordinator.kafka.admin import KafkaAdminWork
from coordinator.kafka.log_examination import examine
from coordinator.process.topic_ids import TopicIds
from deploy.kafka import EmbeddedKafka
from deploy.process import ChildProcess, free_ports, is_free
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import NodeRecord
from keytide.kafka.admin import list_offsets
from keytide.kafka.topics import CatalogReader, TopicReader
from keytide.model.topics import Topics
from keytide.settings.settings import Settings, load_settings
from keytide.wire.messages import BuildEnd, HistoryLost, decode
from tests.integration.conftest import TopicFactory
from tests.integration.dictionary_reader import DictionaryReader
from tests.integration.fakes import DRIVER, FakeCluster, started_drivers
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
LIMIT_S = 120.0
_numbers = itertools.count(1)

LAUNCH = """
import logging, sys
from coordinator.__main__ import run
from keytide.errors import KeytideError
from keytide.settings.settings import load_settings
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
try:
    sys.exit(run(load_settings(), sys.argv[1:]))
except KeytideError as error:
    print(error.message, file=sys.stderr)
    sys.exit(2)
"""


class Coordinator:
    """A coordinator process that can be killed and started again, and a source topic with documents."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path, keyspace: str, cluster: str = "") -> None:
        self.keyspace = keyspace
        self.folder = folder
        self.cluster = cluster or f"kt{next(_numbers)}-{os.getpid()}"
        self.drivers = folder / "drivers.txt"
        (folder / "driver.py").write_text(DRIVER)
        self.settings: Settings = load_settings(
            cluster=self.cluster, data_dir=folder, kafka={"bootstrap": kafka.bootstrap}
        )
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self.child = self.make()
        self.fakes: list[FakeCluster] = []
        self._dictionary: DictionaryReader | None = None

    def make(self, name: str = "coordinator", **extra: str) -> ChildProcess:
        command = [sys.executable, str(self.folder / "driver.py"), str(self.drivers)]
        environment = {
            **os.environ,
            "KEYTIDE_CLUSTER": self.cluster,
            "KEYTIDE_DATA_DIR": str(self.folder),
            "KEYTIDE_KAFKA__BOOTSTRAP": self.settings.kafka.bootstrap,
            "KEYTIDE_COORDINATOR__PORT": "0",
            **extra,
        }
        log = self.folder / f"{name}.log"
        return ChildProcess(name, [sys.executable, "-c", LAUNCH, *command], log=log, env=environment)

    def start(self) -> None:
        self.child.start()
        self.child.wait_until(lambda: "ready http" in self.child.tail(200), LIMIT_S, "was ready")
        (line,) = [line for line in self.child.tail(200).splitlines() if line.startswith("ready ")]
        self.url = line.split()[1]

    def fake(self, *nodes: str, acked: tuple[int, ...] = (3, 2)) -> FakeCluster:
        fake = FakeCluster(self.settings, self.keyspace, dict(enumerate(acked)), nodes)
        self.fakes.append(fake)
        return fake

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, self.url + path, json=body, timeout=30)

    def get(self, path: str) -> Any:
        return self.call("GET", path).raise_for_status().json()

    def sql(self, statement: str) -> dict[str, Any]:
        answer = self.call("POST", "/v1/statements", {"statement": statement})
        assert answer.is_success, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def catalog(self) -> Catalog:
        if self._dictionary is None:
            self._dictionary = DictionaryReader(self.settings)
        return self._dictionary.now()

    def topics(self) -> set[str]:
        names = self.admin.list_topics(timeout=10).topics
        return {name for name in names if name.startswith(self.cluster)}

    def driver_starts(self, build: str) -> list[int]:
        """Process ids of the drivers of a build, in order of their starts."""
        return [pid for pid, its in started_drivers(self.drivers) if its == build]

    def ready_index(self, fake: FakeCluster, name: str = "by_city") -> str:
        """Create an index, have it built and wait until it is READY; the build's id."""
        build: str = self.sql(f"CREATE INDEX {name} ON {self.keyspace} (city) WITH (slices=3)")["build"]
        self.backfill(fake, build)
        wait_for(lambda: self.get(f"/v1/indexes/{name}")["state"] == "READY", f"{name} READY")
        return build

    def backfill(self, fake: FakeCluster, build: str) -> None:
        """Have the driver pass as soon as the low-watermark is known."""
        wait_for(lambda: self.driver_starts(build), "a driver")
        wait_for(lambda: len(self.get(f"/v1/builds/{build}")["low_watermark"]) == 2, "activations")
        fake.driver(build, "PASSED", 1, fake.acked)

    def close(self) -> None:
        if self._dictionary is not None:
            self._dictionary.close()
        for fake in self.fakes:
            fake.close()
        self.child.terminate()
        failures = [failure for fake in self.fakes for failure in fake.failures]
        assert not failures, failures


@pytest.fixture
def coordinator(kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Iterator[Coordinator]:
    """A running coordinator; its keyspace has 3 and 2 documents in two partitions."""
    keyspace = topic(partitions=2, name="people")
    source = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(5):
        source.produce(keyspace, key=f"u{number}", value=b"{}", partition=number % 2)
    assert source.flush(30) == 0
    made = Coordinator(kafka, tmp_path, keyspace)
    made.start()
    yield made
    made.close()


def test_timestamps_are_numbered_by_their_place_and_an_index_gets_ready(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1", "n2")
    build = coordinator.ready_index(fake)
    document = coordinator.get(f"/v1/builds/{build}")
    assert (document["state"], document["percent"], document["error"]) == ("READY", 100.0, None)
    assert document["load_timestamp"] == {"0": {"offset": 3, "epoch": -1}, "1": {"offset": 2, "epoch": -1}}
    index = wait_for(
        lambda: (one := coordinator.get("/v1/indexes/by_city"))["snapshot"] is not None and one, "a snapshot"
    )
    assert (index["entries"], index["skipped"], index["lag_documents"]) == (30, 3, 0)
    record = coordinator.catalog().index_by_name("by_city")
    assert record is not None
    assert record.placement == [["n1"], ["n2"], ["n1"]]

    wait_for(lambda: fake.published, "a common number")
    number = fake.published[0].numbers[record.id]
    assert number in [offset for offset, _ in fake.stamps]
    fake.acked = {0: 4, 1: 2}
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == {0: 4, 1: 2}, "news in a timestamp")
    wait_for(lambda: fake.published[-1].numbers[record.id] > number, "a newer common number")


def test_the_end_of_a_build_reaches_every_slice_and_its_queue_goes_when_it_is_over(
    coordinator: Coordinator,
) -> None:
    fake = coordinator.fake("n1")
    fake.silent = {"n1"}
    build = coordinator.sql(f"CREATE INDEX by_city ON {coordinator.keyspace} (city) WITH (slices=3)")["build"]
    waiting = wait_for(lambda: coordinator.get(f"/v1/builds/{build}")["waiting_for"], "a reason")
    assert waiting == "indexer nodes: no indexer node is live"
    fake.silent = set()
    wait_for(lambda: coordinator.driver_starts(build), "a driver")
    fake.silent = {"n1"}  # nobody acknowledges: CATCHUP stays
    coordinator.backfill(fake, build)
    wait_for(lambda: coordinator.get(f"/v1/builds/{build}")["state"] == "CATCHUP", "CATCHUP")
    index_id = coordinator.get("/v1/indexes/by_city")["id"]
    queue = f"{coordinator.cluster}.backfill.{index_id}.{build}"
    reader = TopicReader(coordinator.settings, queue, dict.fromkeys(range(3), 0))
    ends: list[Any] = []

    def read() -> bool:
        ends.extend(decode(record.value() or b"") for record in reader.poll(0.1))
        return len(ends) >= 3

    wait_for(read, "an end for each slice")
    reader.close()
    assert sorted(end.slice for end in ends) == [0, 1, 2]
    assert all(isinstance(end, BuildEnd) and (end.build, end.batches) == (build, 1) for end in ends)
    fake.silent = set()
    wait_for(lambda: coordinator.get(f"/v1/builds/{build}")["state"] == "READY", "READY")
    wait_for(lambda: queue not in coordinator.topics(), "the queue's removal")
    assert f"{coordinator.cluster}.mutations.{index_id}" in coordinator.topics()


def test_after_kill_9_the_next_term_goes_on_without_loss(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1", "n2")
    coordinator.ready_index(fake)
    wait_for(lambda: fake.published, "a common number")
    before, term = coordinator.catalog(), coordinator.get("/v1/stability")["term"]
    coordinator.child.kill()
    last_number, last = fake.stamps[-1]
    # The projector starts again too, and sends again from its last commit.
    fake.acked = {0: 1, 1: 1}
    coordinator.start()
    after = coordinator.catalog()
    assert after.term == term + 1
    assert {key: one for key, one in after.records.items() if key != "term"} == {
        key: one for key, one in before.records.items() if key != "term"
    }
    wait_for(lambda: fake.stamps[-1][1].term == term + 1, "timestamps of the new term")
    news = [(number, stamp) for number, stamp in fake.stamps if stamp.term == term + 1]
    assert all(number > last_number for number, _ in news)
    assert all(stamp.timestamp.covers(last.timestamp) for _, stamp in news)
    (index_id,) = fake.published[0].numbers
    number = max(number for number, stamp in fake.stamps if stamp.term == term)
    wait_for(lambda: fake.published[-1].numbers[index_id] > number, "a common number of the new term")
    assert [p.numbers[index_id] for p in fake.published] == sorted(
        p.numbers[index_id] for p in fake.published
    )


def test_timestamps_do_not_go_back_when_the_control_topic_has_expired(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1", "n2")
    coordinator.ready_index(fake)
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == {0: 3, 1: 2}, "a timestamp of everything")
    coordinator.child.kill()
    control = Topics(coordinator.cluster).control
    end = list_offsets(coordinator.admin, control, [0])[0]
    places = [TopicPartition(control, 0, end)]
    coordinator.admin.delete_records(places)[places[0]].result(30)
    fake.acked = {0: 1, 1: 1}  # from its last commit
    coordinator.start()
    wait_for(
        lambda: [one for one in coordinator.get("/v1/events") if one["kind"] == "timestamps-held"], "its word"
    )
    reasons = coordinator.call("GET", "/v1/health").json()["reasons"]
    assert any("its last snapshot is not known" in one["reason"] for one in reasons), reasons
    seen = len(fake.stamps)
    fake.acked = {0: 3, 1: 2}
    wait_for(lambda: fake.stamps[seen:], "timestamps of the new term")
    assert all(stamp.timestamp.offsets() == {0: 3, 1: 2} for _, stamp in fake.stamps[seen:])


def test_kill_9_during_a_backfill_starts_its_driver_again(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1")
    build = coordinator.sql(f"CREATE INDEX by_city ON {coordinator.keyspace} (city) WITH (slices=2)")["build"]
    wait_for(lambda: coordinator.driver_starts(build), "a driver")
    wait_for(lambda: len(coordinator.get(f"/v1/builds/{build}")["low_watermark"]) == 2, "activations")
    wait_for(
        lambda: len(written_build(coordinator, build).low_watermark) == 2, "the low-watermark in metadata"
    )
    fake.driver(build, "RUNNING", 1, {0: 2, 1: 2})
    wait_for(lambda: written_build(coordinator, build).batches == 1, "progress in metadata")
    (first,) = coordinator.driver_starts(build)
    coordinator.child.kill()
    wait_for(lambda: not psutil.pid_exists(first), "the driver's end with its parent")
    fake.acked = {0: 3, 1: 2}
    coordinator.start()
    wait_for(lambda: len(coordinator.driver_starts(build)) == 2, "a second driver")
    document = coordinator.get(f"/v1/builds/{build}")
    assert (document["state"], document["batches"], document["low_watermark"]) == (
        "BACKFILL",
        1,
        {"0": 3, "1": 2},
    )
    fake.driver(build, "PASSED", 2, {0: 3, 1: 2})
    wait_for(lambda: coordinator.get(f"/v1/builds/{build}")["state"] == "READY", "READY")
    second = coordinator.driver_starts(build)[1]
    wait_for(lambda: coordinator.get("/v1/indexes/by_city")["snapshot"] is not None, "a common number")
    assert second != first


def written_build(coordinator: Coordinator, build: str) -> Any:
    return coordinator.catalog().build(build)


def test_a_dead_driver_is_started_again_and_cancel_ends_it(coordinator: Coordinator) -> None:
    coordinator.fake("n1")
    build = coordinator.sql(f"CREATE INDEX by_city ON {coordinator.keyspace} (city) WITH (slices=2)")["build"]
    (first,) = wait_for(lambda: coordinator.driver_starts(build), "a driver")
    psutil.Process(first).kill()
    wait_for(lambda: len(coordinator.driver_starts(build)) == 2, "a second driver")
    kinds = [event["kind"] for event in coordinator.get("/v1/events")]
    assert "driver-restarted" in kinds
    second = coordinator.driver_starts(build)[1]
    assert coordinator.call("POST", f"/v1/builds/{build}/cancel").json()["state"] == "CANCELLED"
    wait_for(lambda: not psutil.pid_exists(second), "the driver's end")
    index = coordinator.get("/v1/indexes/by_city")
    assert index["state"] == "DEFERRED"
    queues = (
        f"{coordinator.cluster}.mutations.{index['id']}",
        f"{coordinator.cluster}.backfill.{index['id']}.{build}",
    )
    wait_for(lambda: not coordinator.topics() & set(queues), "the removal of its topics")
    folder = coordinator.folder / "builds" / build
    wait_for(lambda: [one.name for one in folder.iterdir()] == ["driver.log"], "an empty folder")
    assert coordinator.sql(f"BUILD INDEX ON {coordinator.keyspace} (by_city)")["build"] != build


def test_drop_removes_everything(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    assert coordinator.sql("DROP INDEX by_city")["message"] == "index by_city is being dropped"
    assert coordinator.call("GET", "/v1/indexes/by_city").status_code == 404
    wait_for(lambda: coordinator.get("/v1/indexes") == [], "the end of the index")
    own = {f"{coordinator.cluster}.{name}" for name in ("metadata", "builds", "control", "reports")}
    # (Brokers hear of a deletion a moment after the controller has answered.)
    wait_for(lambda: coordinator.topics() == own, "the removal of its topics")
    assert coordinator.catalog().indexes() == []
    again = coordinator.sql(f"CREATE INDEX by_city ON {coordinator.keyspace} (city) WITH (defer_build=true)")
    assert (again["index"], again["build"]) == ("by_city", None)


def test_a_cluster_whose_name_begins_alike_keeps_its_topics(
    coordinator: Coordinator, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Coordinator(
        kafka, tmp_path / "other", coordinator.keyspace, cluster=f"{coordinator.cluster}.mutations"
    )
    try:
        other.start()
        other.ready_index(other.fake("n1"))
        wait_for(lambda: len(other.topics()) == 5, "the end of its backfill queue")
        theirs = other.topics()
        coordinator.child.kill()
        coordinator.start()
        (told,) = [one for one in coordinator.get("/v1/events") if one["kind"] == "foreign-topics"]
        assert all(topic in str(told) for topic in theirs), told
        # What a new term has deleted, brokers tell a moment later: an index made now is behind that.
        coordinator.ready_index(coordinator.fake("n2"))
        assert other.topics() >= theirs
    finally:
        other.close()


def test_kafka_may_go_away_and_come_back(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("people", 2, 1)])["people"].result(30)
        made = Coordinator(broker, tmp_path, "people")
        made.start()
        try:
            fake = made.fake("n1", acked=(0, 0))
            made.ready_index(fake)
            broker.kill()
            heard = len(fake.stamps)
            assert made.get("/readyz")["ready"] is True  # the page and the API go on
            broker.start()
            wait_for(lambda: len(fake.stamps) > heard, "timestamps again")
            made.sql("CREATE INDEX other ON people (x) WITH (defer_build=true)")
            assert {index.name for index in made.catalog().indexes()} == {"by_city", "other"}
            assert made.child.running
        finally:
            made.close()


def produce(coordinator: Coordinator, partition: int, count: int) -> None:
    source = Producer({"bootstrap.servers": coordinator.settings.kafka.bootstrap, "enable.idempotence": True})
    for number in range(count):
        source.produce(coordinator.keyspace, key=f"x{number}", value=b"{}", partition=partition)
    assert source.flush(30) == 0


def without_kafka(folder: Path, **extra: str) -> ChildProcess:
    """A coordinator that was told of a Kafka where nobody listens; its admin API answers."""
    broker, port = free_ports(2)
    environment = {
        **os.environ,
        "KEYTIDE_DATA_DIR": str(folder),
        "KEYTIDE_KAFKA__BOOTSTRAP": f"127.0.0.1:{broker}",
        "KEYTIDE_COORDINATOR__PORT": str(port),
        **extra,
    }
    command = [sys.executable, "-m", "coordinator"]
    child = ChildProcess("coordinator", command, log=folder / "coordinator.log", env=environment).start()

    def answers() -> bool:
        return not is_free(port) and httpx.get(f"http://127.0.0.1:{port}/healthz").status_code > 0

    child.wait_until(answers, LIMIT_S, "answered")
    return child


def test_one_without_kafka_ends_when_it_is_told_to(tmp_path: Path) -> None:
    child = without_kafka(tmp_path)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(20) == 0, child.tail(20)


def test_one_without_kafka_says_so_and_ends(tmp_path: Path) -> None:
    child = without_kafka(tmp_path, KEYTIDE_COORDINATOR__REQUEST_TIMEOUT_S="1")
    assert child.wait(LIMIT_S) == 2, child.tail(20)
    assert "stayed away" in child.tail(20)
    assert "start Kafka" in child.tail(20)


def test_a_projectors_word_rolls_back_to_the_newest_timestamp_on_the_log(coordinator: Coordinator) -> None:
    """Timestamps up to 7 were issued, and the log has 5: a place past its end stands for records that were
    lost (a real loss needs three brokers)."""
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    produce(coordinator, 0, 2)
    fake.acked = {0: 5, 1: 2}
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == fake.acked, "a timestamp at the log's end")
    fake.acked = {0: 7, 1: 2}
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == fake.acked, "a timestamp past the log's end")
    keyspace = coordinator.catalog().keyspace(coordinator.keyspace)
    assert keyspace is not None
    fake.acked = {0: 5, 1: 2}
    fake.report(
        HistoryLost(coordinator.keyspace, "p1", 0, 0, keyspace.topic_id, 8, 0, "its place is past the end")
    )
    wait_for(lambda: fake.stamps[-1][1].incarnation == 1, "timestamps of the new incarnation")
    (record,) = coordinator.catalog().rollbacks(coordinator.keyspace)
    assert (record.timestamp.offsets(), record.cause) == ({0: 5, 1: 2}, "truncated")
    assert record.lost[0].offset == 5
    at_cut = [n for n, one in fake.stamps if one.incarnation == 0 and one.timestamp.offsets()[0] <= 5]
    assert record.number == max(at_cut)
    first = next(one for _, one in fake.stamps if one.incarnation == 1)
    assert first.timestamp.offsets() == {0: 5, 1: 2}
    produce(coordinator, 0, 1)
    fake.acked = {0: 6, 1: 2}
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == fake.acked, "news in the new history")
    wait_for(lambda: fake.published[-1].incarnation == 1, "a common number in the new history")
    shown = coordinator.get("/v1/stability")["keyspaces"][coordinator.keyspace]
    assert (shown["incarnation"], shown["last_rollback"]["snapshot"]) == (1, record.number)
    assert coordinator.get("/v1/indexes/by_city")["state"] == "READY"

    # The next leader goes on from it.
    coordinator.child.kill()
    coordinator.start()
    wait_for(lambda: fake.stamps[-1][1].term == 2, "timestamps of the next term")
    assert all(one.incarnation == 1 for _, one in fake.stamps if one.term == 2)
    assert all(one.timestamp.offsets()[0] == 6 for _, one in fake.stamps if one.term == 2)


def test_a_history_that_only_the_control_topic_remembers(coordinator: Coordinator) -> None:
    """A leader that has forgotten older timestamps finds them in the control topic."""
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == {0: 3, 1: 2}, "a timestamp on the log")
    fake.acked = {0: 9, 1: 2}
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == fake.acked, "one past the log's end")
    stamps = [(n, one.timestamp) for n, one in fake.stamps]
    oldest = min(n for n, one in stamps if one.offsets()[0] == 9)
    found = examine(
        coordinator.settings,
        ExamineHistory(
            coordinator.keyspace, stamps[-1][1].topic_id, History(), (dict_item(stamps, oldest),), {}
        ),
    )
    best = max(n for n, one in stamps if n < oldest)
    assert (found.number, found.timestamp.offsets()) == (best, {0: 3, 1: 2})


def dict_item(stamps: list[tuple[int, Any]], number: int) -> tuple[int, Any]:
    return number, dict(stamps)[number]


def test_a_topic_that_is_deleted_and_made_anew_begins_from_nothing(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    wait_for(lambda: fake.published, "a common number")
    coordinator.admin.delete_topics([coordinator.keyspace])[coordinator.keyspace].result(30)

    def kinds() -> list[str]:
        return [event["kind"] for event in coordinator.get("/v1/events?limit=1000")]

    wait_for(lambda: "topic-gone" in kinds(), "that the topic is gone")
    assert coordinator.catalog().rollbacks(coordinator.keyspace) == []
    fake.acked = {0: 0, 1: 0, 2: 0}
    wait_for(lambda: _made(coordinator, 3), "the new topic")
    wait_for(lambda: fake.stamps[-1][1].incarnation == 1, "timestamps of the new incarnation")
    (record,) = coordinator.catalog().rollbacks(coordinator.keyspace)
    assert (record.number, record.cause, record.timestamp.offsets()) == (-1, "recreated", {})
    keyspace = coordinator.catalog().keyspace(coordinator.keyspace)
    assert keyspace is not None
    assert (keyspace.partitions, keyspace.topic_id, keyspace.incarnation) == (3, record.topic_id, 1)
    first = next(one for _, one in fake.stamps if one.incarnation == 1)
    assert first.timestamp.offsets() == {}
    produce(coordinator, 2, 4)
    fake.acked = {0: 0, 1: 0, 2: 4}
    wait_for(lambda: fake.stamps[-1][1].timestamp.offsets() == fake.acked, "news of the new topic")
    assert coordinator.get("/v1/indexes/by_city")["state"] == "READY"


def test_which_topic_has_a_name_is_told_at_once_and_always(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    settings = load_settings(kafka={"bootstrap": kafka.bootstrap})
    answers: list[TopicSeen] = []
    ids, asked = TopicIds(settings, answers.append, print), itertools.count(1)
    ids.open()

    def ask(name: str) -> TopicSeen:
        number = next(asked)
        ids.put(ConfirmTopic(name, number))
        wait_for(lambda: answers and answers[-1].ask == number, "the answer")
        return answers[-1]

    name = topic(partitions=2)
    # (A busy broker may not have heard yet of a topic that its controller has made.)
    wait_for(lambda: ask(name).topic_id, "the topic is known")
    first = answers[-1]
    assert first.error == ""
    assert ask(name).topic_id == first.topic_id
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    client.delete_topics([name])[name].result(30)
    wait_for(lambda: ask(name).topic_id == "", "the topic to be gone")
    assert answers[-1].error == ""
    client.create_topics([NewTopic(name, num_partitions=2)])[name].result(30)
    wait_for(lambda: ask(name).topic_id not in ("", first.topic_id), "the new topic")
    ids.close()
    away = TopicIds(load_settings(kafka={"bootstrap": "127.0.0.1:1"}), answers.append, print)
    away.open()
    away.put(ConfirmTopic(name, next(asked)))
    wait_for(lambda: answers[-1].error, "an answer without Kafka")


def _made(coordinator: Coordinator, partitions: int) -> bool:
    try:
        topic = NewTopic(coordinator.keyspace, partitions, 1)
        coordinator.admin.create_topics([topic])[coordinator.keyspace].result(30)
    except KafkaException:  # its deletion is not over
        return False
    return True


def test_queues_are_trimmed_below_what_slices_need(coordinator: Coordinator) -> None:
    coordinator.child.terminate()
    coordinator.child = coordinator.make("trimming", KEYTIDE_COORDINATOR__TRIM_INTERVAL_S="1")
    coordinator.start()
    fake = coordinator.fake("n1", "n2")
    coordinator.ready_index(fake)
    index = coordinator.get("/v1/indexes/by_city")["id"]
    queue = f"{coordinator.cluster}.mutations.{index}"
    source = Producer({"bootstrap.servers": coordinator.settings.kafka.bootstrap, "enable.idempotence": True})
    for number in range(30):
        source.produce(queue, value=b"x", partition=number % 3)
    assert source.flush(30) == 0

    def begins() -> dict[int, int]:
        return list_offsets(coordinator.admin, queue, range(3), earliest=True)

    assert begins() == {0: 0, 1: 0, 2: 0}
    fake.horizon = 4
    wait_for(lambda: begins() == {0: 4, 1: 4, 2: 4}, "the trimming")
    page = coordinator.call("GET", "/metrics").text
    wait_for(
        lambda: "keytide_trimmed_queue_records_total 12.0" in coordinator.call("GET", "/metrics").text, page
    )
    sizes = [
        line
        for line in coordinator.call("GET", "/metrics").text.splitlines()
        if line.startswith('keytide_queue_bytes{index="by_city"')
    ]
    assert len(sizes) == 3, "Kafka says how large each queue is"
    assert all(float(line.split()[-1]) > 10 for line in sizes), sizes
    fake.horizon = 10  # the end: everything goes
    wait_for(lambda: begins() == {0: 10, 1: 10, 2: 10}, "the trimming to the end")


def test_a_lost_slice_is_rebuilt_by_a_driver_of_its_own(coordinator: Coordinator) -> None:
    coordinator.child.terminate()
    coordinator.child = coordinator.make("rebuilding", KEYTIDE_COORDINATOR__REBUILD_WAIT_S="0")
    coordinator.start()
    fake = coordinator.fake("n1", "n2")
    coordinator.ready_index(fake)
    index_id = coordinator.get("/v1/indexes/by_city")["id"]
    queue = f"{coordinator.cluster}.mutations.{index_id}"
    source = Producer({"bootstrap.servers": coordinator.settings.kafka.bootstrap, "enable.idempotence": True})
    for _ in range(7):
        source.produce(queue, value=b"x", partition=1)
    assert source.flush(30) == 0
    fake.states = {1: "LOST"}
    build = wait_for(
        lambda: next((one["id"] for one in coordinator.get("/v1/builds") if one["slices"]), None), "a rebuild"
    )
    wait_for(lambda: coordinator.driver_starts(build), "its driver")
    record = written_build(coordinator, build)
    assert record.slices == {index_id: [1]}
    assert record.queue_positions == {index_id: {1: 7}}
    assert record.low_watermark == {0: 3, 1: 2}
    index = coordinator.get("/v1/indexes/by_city")
    assert (index["state"], index["lost"], index["rebuilds"]) == ("READY", [1], [build])
    number = fake.published[-1].numbers[index_id]
    wait_for(lambda: fake.published[-1].numbers[index_id] > number, "common numbers of the others")

    fake.driver(build, "PASSED", 1, fake.acked)
    wait_for(lambda: coordinator.get(f"/v1/builds/{build}")["state"] == "CATCHUP", "CATCHUP")
    backfill = f"{coordinator.cluster}.backfill.{index_id}.{build}"
    reader = TopicReader(coordinator.settings, backfill, dict.fromkeys(range(3), 0))
    ends: list[Any] = []

    def read() -> bool:
        ends.extend(decode(record.value() or b"") for record in reader.poll(0.1))
        return len(ends) >= 1

    wait_for(read, "the end of the build")
    reader.close()
    assert [(end.slice, end.queue_position) for end in ends] == [(1, 7)]
    fake.states = {}
    wait_for(lambda: coordinator.get(f"/v1/builds/{build}")["state"] == "READY", "READY")
    wait_for(lambda: backfill not in coordinator.topics(), "the queue's removal")
    assert coordinator.get("/v1/indexes/by_city")["lost"] == []


def status_of(child: ChildProcess) -> tuple[int, int, str]:
    """Status of /healthz and /readyz of a coordinator by its port, and what it says."""
    url = f"http://127.0.0.1:{child_port(child)}"
    ready = httpx.get(url + "/readyz", timeout=10)
    return httpx.get(url + "/healthz", timeout=10).status_code, ready.status_code, ready.text


def child_port(child: ChildProcess) -> int:
    (port,) = {
        one.laddr.port for one in psutil.Process(child.pid).net_connections("tcp") if one.status == "LISTEN"
    }
    return int(port)


def led(child: ChildProcess) -> int:
    """How often a coordinator has begun to lead."""
    return sum(line.startswith("ready http") for line in child.tail(2_000).splitlines())


def test_a_second_coordinator_stands_by_until_the_first_one_is_no_more(coordinator: Coordinator) -> None:
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    first, term = coordinator.child, coordinator.get("/v1/stability")["term"]
    with coordinator.make("second") as second:
        wait_for(lambda: "standing by" in second.tail(200), "standing by")
        healthy, ready, text = status_of(second)
        assert (healthy, ready) == (200, 503)
        assert "stands by" in text
        metrics = httpx.get(f"http://127.0.0.1:{child_port(second)}/metrics", timeout=10).text
        assert "keytide_coordinator_is_leader 0.0" in metrics
        heard = len(fake.stamps)
        wait_for(lambda: len(fake.stamps) > heard + 20, "timestamps of the first one")
        assert fake.stamps[-1][1].term == term
        assert first.running

        first.kill()
        wait_for(lambda: led(second) == 1, "the second one to lead")
        wait_for(lambda: fake.stamps[-1][1].term == term + 1, "timestamps of the next term")

        # The supervisor of the first one starts it again.
        with coordinator.make("third", KEYTIDE_COORDINATOR__LEADER_TIMEOUT_MS="60000") as third:
            wait_for(lambda: "standing by" in third.tail(200), "standing by")
            heard = len(fake.stamps)
            wait_for(lambda: len(fake.stamps) > heard + 20, "timestamps of the second one")
            assert fake.stamps[-1][1].term == term + 1
            began = time.monotonic()
            second.terminate()  # it says that it is leaving: nobody waits for a silence
            wait_for(lambda: led(third) == 1, "the third one to lead")
            assert time.monotonic() - began < 30
            wait_for(lambda: fake.stamps[-1][1].term == term + 2, "timestamps of the third term")


def test_two_coordinators_that_are_always_started_again_do_not_take_the_term_from_each_other(
    coordinator: Coordinator,
) -> None:
    """The leader is stopped for longer than its silence is borne, then goes on: it ends, is started again,
    and stands by."""
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    first, term = coordinator.child, coordinator.get("/v1/stability")["term"]
    borne_s = 6
    limit = {"KEYTIDE_COORDINATOR__LEADER_TIMEOUT_MS": str(1000 * borne_s)}
    with coordinator.make("second", **limit) as second:
        wait_for(lambda: "standing by" in second.tail(200), "standing by")
        process = psutil.Process(first.pid)
        process.suspend()
        try:
            wait_for(lambda: led(second) == 1, "the second one to lead")
        finally:
            process.resume()
        wait_for(lambda: not first.running, "the first one's end")
        assert first.returncode == 75
        assert "has taken over" in first.tail()
        with coordinator.make("again", **limit) as again:
            wait_for(lambda: "standing by" in again.tail(200), "standing by")
            heard = len(fake.stamps)
            time.sleep(2 * borne_s)
            wait_for(lambda: len(fake.stamps) > heard + 30, "timestamps of the second one")
            assert (led(again), led(second)) == (0, 1)
            assert second.running
            assert {stamp.term for _, stamp in fake.stamps[heard:]} == {term + 1}


def test_one_that_kafka_fences_without_another_leader_goes_on(coordinator: Coordinator) -> None:
    """As when Kafka has ended a transaction that stayed open while it was away."""
    fake = coordinator.fake("n1")
    coordinator.ready_index(fake)
    term = coordinator.get("/v1/stability")["term"]
    thief = Producer(
        {
            "bootstrap.servers": coordinator.settings.kafka.bootstrap,
            "transactional.id": f"{coordinator.cluster}-coordinator",
        }
    )
    thief.init_transactions(60)
    coordinator.sql(f"CREATE INDEX after_all ON {coordinator.keyspace} (n) WITH (defer_build=true)")
    assert "goes on with term" in coordinator.child.tail()
    assert coordinator.child.running
    assert coordinator.get("/v1/stability")["term"] == coordinator.catalog().term == term
    assert coordinator.get("/v1/indexes/after_all")["state"] == "DEFERRED"


def test_one_that_comes_first_does_not_wait_for_a_leader_that_was_killed(coordinator: Coordinator) -> None:
    """On the same machine it is seen that the process is gone."""
    coordinator.child.kill()
    began = time.monotonic()
    coordinator.start()
    assert "standing by" not in coordinator.child.tail(200)
    assert time.monotonic() - began < LIMIT_S


def test_errors_are_problem_documents_that_say_what_to_do(coordinator: Coordinator) -> None:
    def problem(method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        answer = coordinator.call(method, path, body)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        document = answer.json()
        assert {"type", "title", "status", "detail"} <= set(document)
        return answer.status_code, document["type"], document["detail"] + document.get("next_step", "")

    def sql(text: str) -> tuple[int, str, str]:
        return problem("POST", "/v1/statements", {"statement": text})

    status, kind, text = sql("CREATE INDEX a ON nowhere (x)")
    assert (status, kind) == (404, "keyspace-not-found")
    assert "kafka-topics.sh" in text
    status, kind, text = sql("CREATE INDEX a ON people (x")
    assert (status, kind) == (422, "invalid-statement")
    assert "^" in text
    status, kind, text = sql("SELECT * FROM people")
    assert (status, kind) == (421, "ask-a-node")
    assert "/v1/query" in text
    assert problem("GET", "/v1/indexes/nothing")[:2] == (404, "index-not-found")
    assert problem("GET", "/v1/builds/nothing")[:2] == (404, "build-not-found")
    assert problem("POST", "/v1/builds", {"indexes": []})[0] == 422
    assert problem("POST", "/v1/builds", {"names": []})[:2] == (422, "invalid-request")
    assert problem("POST", "/v1/builds/b1/pause")[:2] == (404, "build-not-found")
    assert problem("PATCH", "/v1/builds/b1", {"rate_limit": 0})[:2] == (422, "invalid-request")
    assert problem("GET", "/v1/nonsense")[:2] == (404, "not-found")


def test_what_it_shows_to_people_and_to_monitoring(coordinator: Coordinator) -> None:
    coordinator.ready_index(coordinator.fake("n1", "n2"))
    assert coordinator.get("/readyz")["ready"] is True
    assert coordinator.get("/healthz") == {"status": "ok"}
    cluster = coordinator.get("/v1/cluster")
    assert cluster["coordinator"] == coordinator.url
    assert [node["id"] for node in cluster["nodes"] if node["live"]] == ["n1", "n2"]
    assert [one["slices"] for one in coordinator.get("/v1/nodes")] == [2, 1]
    stability = coordinator.get("/v1/stability")["keyspaces"][coordinator.keyspace]
    assert stability["timestamp"]["0"]["offset"] == 3
    wait_for(
        lambda: coordinator.get("/v1/stability")["keyspaces"][coordinator.keyspace]["published"].get(
            "by_city"
        ),
        "a common number",
    )
    topology = coordinator.get("/v1/topology")
    assert [slice_["node"] for slice_ in topology["indexes"][0]["slices"]] == ["n1", "n2", "n1"]
    events = coordinator.get("/v1/events")
    kinds = [event["kind"] for event in events]
    for kind in ("term-claimed", "index-created", "build-started", "build-catchup", "index-ready"):
        assert kind in kinds
    assert coordinator.get(f"/v1/events?after={events[-1]['number']}") == []
    metrics = coordinator.call("GET", "/metrics").text
    for line in (
        "keytide_coordinator_term 1.0",
        "keytide_coordinator_is_leader 1.0",
        "keytide_build_documents_total",
    ):
        assert line in metrics
    assert "keytide_build_percent{" in metrics


def test_an_open_api_is_refused_without_tokens(coordinator: Coordinator) -> None:
    with coordinator.make("open", KEYTIDE_COORDINATOR__HOST="0.0.0.0") as child:
        assert child.wait(LIMIT_S) == 2
        assert "without any API token" in child.tail()


def test_tokens_have_scopes(coordinator: Coordinator) -> None:
    tokens = '{"tokens": {"r": ["read"], "a": ["admin"]}}'
    coordinator.child.terminate()
    coordinator.child = coordinator.make("guarded", KEYTIDE_SECURITY=tokens)
    coordinator.start()

    def status(method: str, path: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {"statement": "DROP INDEX IF EXISTS x"} if method == "POST" else None
        return httpx.request(
            method, coordinator.url + path, json=body, headers=headers, timeout=30
        ).status_code

    assert [status("GET", "/v1/indexes", token) for token in ("", "x", "r", "a")] == [401, 401, 200, 200]
    assert [status("POST", "/v1/statements", token) for token in ("", "r", "a")] == [401, 403, 200]
    assert status("GET", "/healthz", "") == 200


def test_queues_get_the_partitions_that_they_lack(kafka: EmbeddedKafka) -> None:
    """An index was altered between two preparations of its build."""
    settings = load_settings(
        cluster=f"kt{next(_numbers)}-{os.getpid()}", kafka={"bootstrap": kafka.bootstrap}
    )
    queue = f"{settings.cluster}.mutations.by_city-7"
    with KafkaAdminWork(settings) as work:
        for partitions in (2, 4, 3):
            work.make_queues([(queue, partitions)])
            assert work.ends(queue, partitions) == dict.fromkeys(range(partitions), 0)
        assert work.ends(queue, 4) == dict.fromkeys(range(4), 0)
        work.delete([queue])


def test_a_leader_knows_up_to_where_it_has_written(kafka: EmbeddedKafka) -> None:
    """As those count it who read the dictionary, transaction markers included (R49)."""
    settings = load_settings(
        cluster=f"kt{next(_numbers)}-{os.getpid()}", kafka={"bootstrap": kafka.bootstrap}
    )

    def read() -> int:
        with contextlib.closing(CatalogReader(settings)) as reader:
            return reader.start().offset

    with KafkaAdminWork(settings) as work:
        work.make_own_topics()
    writer = MetadataWriter(settings)
    _, catalog = claim_term(settings, writer, "one")
    dictionary = Dictionary(catalog, settings.cluster)
    for count in (1, 3):
        for number in range(count):
            dictionary.put(NodeRecord(f"n{number}", "", count))
        write = dictionary.drain()
        assert write is not None
        end = writer.write(write.records)
        dictionary.wrote(end)
        wait_for(lambda: read() == dictionary.written, "it is read to its marker")
        assert end == dictionary.written - 1
    claim_term(settings, MetadataWriter(settings), "other")
    wait_for(lambda: read() > dictionary.written, "the other one's term is read")
