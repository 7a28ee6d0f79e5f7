"""Projector processes on a real broker: what the queues say is exactly what the source says.

Every test ends in `check`: an independent reader of the queues against a plain reader of the source.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions
from msgspec.structs import replace

from deploy.kafka import EmbeddedKafka
from deploy.process import free_ports
from keytide.catalog.records import BuildRecord, IndexRecord, KeyspaceRecord, RollbackRecord
from keytide.kafka.admin import create_topic, delete_topic, describe_topics, topic_config
from keytide.kafka.topics import consumer
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import HistoryLost
from tests.integration.projector_kit import Rig, Slice
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

_names = itertools.count(1)


@pytest.fixture
def rig(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(kafka, f"projecting{next(_names)}", tmp_path)
    yield rig
    rig.close()


def city(document: Any) -> list[list[Any]]:
    """Keys of a document in an index on (city), in plain Python."""
    return [[document["city"]]] if isinstance(document, dict) and "city" in document else []


Keys = Callable[[Any], list[list[Any]]]


def check(rig: Rig, index: IndexRecord, starts: dict[int, int], keys: Keys = city) -> list[Slice]:
    """Every slice has heard every record at or past `starts`, contiguously; together they hold the newest
    versions' keys."""
    topic, ends = index.keyspace, rig.ends(index.keyspace, len(starts))
    source = {k: v for k, v in rig.source(topic, len(starts)).items() if k[1] >= starts[k[0]]}
    slices = rig.slices(index)
    newest = {key: (place, value) for place, (key, value) in sorted(source.items()) if key}
    expected: dict[bytes, list[list[Any]]] = {}
    for id_, (_, value) in newest.items():
        try:
            expected[id_] = [] if value is None else keys(json.loads(value))
        except ValueError:
            expected[id_] = []
    for number, one in enumerate(slices):
        assert one.positions == ends, f"slice {number}"
        assert one.starts == starts, f"slice {number}"
        assert one.heard == {place: key for place, (key, _) in source.items() if key}, f"slice {number}"
        assert {id_: place for id_, (place, _) in one.newest.items()} == {
            id_: place for id_, (place, _) in newest.items()
        }
    held: dict[bytes, list[list[Any]]] = {id_: [] for id_ in expected}
    for one in slices:
        for id_, (_, found) in one.newest.items():
            held[id_] += found
    assert held == expected
    return slices


class Writer:
    """Writes random versions of a few documents until stopped; a document stays in its partition."""

    def __init__(self, rig: Rig, topic: str, partitions: int, seed: int) -> None:
        self._rig, self._topic, self._partitions = rig, topic, partitions
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for _ in range(30):
                number = self._random.randrange(499)
                value = None if self._random.random() < 0.1 else {"city": self._random.choice("abcdefg")}
                self._rig.write(self._topic, number % self._partitions, f"doc-{number}", value)
                self.written += 1


def write_cities(rig: Rig, topic: str, partitions: int, count: int) -> None:
    for number in range(count):
        document = {"city": f"c{number % 17}", "n": number}
        rig.write(topic, number % 498 % partitions, f"doc-{number % 498}", document)


def test_every_slice_hears_all_of_the_source_in_order(rig: Rig) -> None:
    topic = rig.topic("plain", 3)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=4)")
    write_cities(rig, topic, 3, 5_000)
    rig.build(index, everything=True)
    rig.start()
    rig.wait_acked(topic, rig.ends(topic, 3))
    write_cities(rig, topic, 3, 2_000)
    rig.wait_acked(topic, rig.ends(topic, 3))
    slices = check(rig, index, {0: 0, 1: 0, 2: 0})
    assert all(one.beyond == 0 for one in slices)
    assert sum(bool(found) for one in slices for _, found in one.newest.values()) == 498


def test_projectors_share_rebalance_and_survive_kill_9(rig: Rig) -> None:
    topic = rig.topic("shared", 4)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=3)")
    rig.build(index, everything=True)

    def owners() -> dict[int, str]:
        rig.progress()
        newest = {}
        for report in rig.reports[-40:]:
            for line in getattr(report, "partitions", []):
                newest[line.partition] = report.projector
        return newest

    with Writer(rig, topic, 4, seed=1) as writer:
        first = rig.start()
        wait_for(lambda: len(owners()) == 4, "the first has all partitions")
        second = rig.start()
        wait_for(lambda: len(set(owners().values())) == 2, "two share the partitions")
        rig.kill(first)
        third = rig.start()
        killed_at = writer.written
        wait_for(lambda: writer.written > killed_at + 3_000, "writes go on")
        rig.wait_acked(topic, rig.ends(topic, 4))
        second.terminate(20)
        assert second.returncode == 0
    rig.wait_acked(topic, rig.ends(topic, 4))
    assert third.running
    slices = check(rig, index, dict.fromkeys(range(4), 0))
    assert all(len(one.senders) == 3 for one in slices)


def test_transactions_markers_and_aborted_records(rig: Rig) -> None:
    topic = rig.topic("transactions", 2)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
    rig.build(index, everything=True)
    rig.start()
    writer = Producer(
        {
            "bootstrap.servers": rig.kafka.bootstrap,
            "transactional.id": f"{rig.settings.cluster}-writer",
            "transaction.timeout.ms": 600_000,  # Kafka would end one that is open after a minute
        }
    )
    writer.init_transactions(30)
    for number in range(12):
        writer.begin_transaction()
        for partition in (0, 1):
            writer.produce(topic, b'{"city": "c%d"}' % number, b"doc-%d" % partition, partition)
        writer.flush()
        if number % 3 == 1:
            writer.abort_transaction(30)
        else:
            writer.commit_transaction(30)
    ends = {0: 24, 1: 24}
    wait_for(lambda: rig.ends(topic, 2) == ends, "the end lies past the last marker")
    rig.wait_acked(topic, ends)
    writer.begin_transaction()
    writer.produce(topic, b'{"city": "open"}', b"doc-0", 0)
    writer.flush()
    rig.write(topic, 0, "doc-2", {"city": "behind"})
    rig.write(topic, 1, "doc-1", {"city": "beside"})
    rig.producer.flush()
    rig.wait_acked(topic, {0: 24, 1: 25})
    slices = check(rig, index, {0: 0, 1: 0})
    assert all(b"doc-2" not in one.newest for one in slices), "not past the open transaction"
    writer.abort_transaction(30)
    aborted = {0: 27, 1: 25}  # the open record, the one behind it, the marker
    wait_for(lambda: rig.ends(topic, 2) == aborted, "the end lies past the marker of the abort")
    rig.wait_acked(topic, aborted)
    check(rig, index, {0: 0, 1: 0})


def test_records_that_cannot_be_indexed_are_skips_and_deletes(rig: Rig) -> None:
    topic = rig.topic("hostile", 1)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=3)")
    rig.build(index, everything=True)
    rig.start()
    for id_ in ("a", "b", "c", "d", "e"):
        rig.write(topic, 0, id_, {"city": "first"})
    bad: list[tuple[str | bytes | None, Any, str]] = [
        ("a", b"{", "not-json"),
        ("b", b"[1, 2]", "not-an-object"),
        ("c", {"city": "x" * 20_000}, "key-too-large"),
        ("d", b'{"city": NaN}', "not-json"),
        (None, {"city": "no id"}, "bad-id"),
        (b"", {"city": "empty id"}, "bad-id"),
        (b"\xff\xfe", {"city": "id not utf-8"}, "bad-id"),
        ("i" * 251, {"city": "long id"}, "bad-id"),
    ]
    for key, value, _ in bad:
        rig.write(topic, 0, key, value)
    rig.write(topic, 0, "e", {"town": "no city"})
    rig.write(topic, 0, "f", {"city": "last"})
    rig.wait_acked(topic, rig.ends(topic, 1))
    slices = rig.slices(index)
    skips = {offset: reason for one in slices for (_, offset), reason in one.skips.items()}
    assert skips == {5 + place: reason for place, (_, _, reason) in enumerate(bad)}
    held = {id_: keys for one in slices for id_, (_, keys) in one.newest.items() if keys}
    assert held == {b"f": [["last"]]}, "a version that cannot be indexed is a delete"
    for one in slices:
        assert set(one.newest) == {b"a", b"b", b"c", b"d", b"e", b"f"}
    outcomes = wait_for(lambda: rig.outcomes(index.id), "outcomes")
    assert outcomes["bad-id"] == 4
    assert outcomes["not-json"] == 2
    assert outcomes["leading-key-missing"] == 1


def test_a_build_begins_at_the_end_and_its_activation_is_reported(rig: Rig) -> None:
    topic = rig.topic("activation", 2)
    write_cities(rig, topic, 2, 1_000)
    first = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
    rig.build(first)
    rig.start()
    wait_for(lambda: len(rig.activations(1)) == 2, "activated")
    starts = rig.activations(1)
    assert starts == {0: 500, 1: 500}, "history is the backfill's"
    with Writer(rig, topic, 2, seed=2) as writer:
        wait_for(lambda: writer.written > 1_000, "writes")
        second = rig.index("by-n-2", f"CREATE INDEX by_n ON {topic} (n) WITH (slices=3)", version=2)
        rig.build(second, version=2)
        wait_for(lambda: len(rig.activations(2)) == 2, "the second index is activated")
        at = writer.written
        wait_for(lambda: writer.written > at + 1_000, "writes")
    rig.wait_acked(topic, rig.ends(topic, 2))
    check(rig, first, starts)
    later = rig.activations(2)
    assert all(later[p] >= starts[p] for p in later)
    check(rig, second, later, keys=lambda d: [[d["n"]]] if "n" in d else [])
    assert all(line.version == 2 for line in rig.progress().values())


def test_activation_is_repeated_until_the_build_has_recorded_it(rig: Rig) -> None:
    topic = rig.topic("repeated", 1)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=1)")
    rig.build(index)
    rig.start(heartbeat_ms="50")

    def told() -> int:
        rig.progress()
        return sum(hasattr(report, "partition") for report in rig.reports)

    wait_for(lambda: told() > 5, "told again and again")
    rig.put(
        BuildRecord(
            index.build or "", topic, [index.id], "BACKFILL", Timestamp.of({0: 0}), 0, low_watermark={0: 0}
        )
    )
    heartbeats = len(rig.reports)

    def quiet() -> bool:
        rig.progress()
        return len(rig.reports) > heartbeats + 20 and not any(
            hasattr(report, "partition") for report in rig.reports[-10:]
        )

    wait_for(quiet, "told no more")


def test_new_source_partitions_are_read_from_their_beginning(rig: Rig) -> None:
    topic = rig.topic("grown", 1)
    write_cities(rig, topic, 1, 100)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
    rig.build(index)
    rig.start()
    wait_for(lambda: rig.activations(1).get(0) == 100, "activated")
    rig.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_for(
        lambda: len(rig.producer.list_topics(topic).topics[topic].partitions) == 2, "the partition is there"
    )
    for number in range(50):
        rig.write(topic, 1, f"new-{number}", {"city": "x"})
    rig.wait_acked(topic, rig.ends(topic, 2))
    check(rig, index, {0: 100, 1: 0})


def test_an_idle_source_is_heard_of_on_every_heartbeat(rig: Rig) -> None:
    topic = rig.topic("idle", 2)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
    rig.build(index, everything=True)
    rig.start(heartbeat_ms="50")
    wait_for(lambda: rig.slices(index)[0].versions[1] > 10, "empty segments")
    for one in rig.slices(index):
        assert one.positions == {0: 0, 1: 0}
        assert not one.heard
    lines = wait_for(rig.progress, "progress")
    assert all(line.fresh_at > 0 and line.end == 0 for line in lines.values())


def test_sigterm_commits_and_a_restart_resends_nothing(rig: Rig) -> None:
    topic = rig.topic("restart", 2)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
    write_cities(rig, topic, 2, 3_000)
    rig.build(index, everything=True)
    child = rig.start(commit_interval_ms="60000")
    rig.wait_acked(topic, rig.ends(topic, 2))
    child.terminate(20)
    assert child.returncode == 0
    group = consumer(rig.settings, group=rig.topics.projector_group)
    commits = group.committed([TopicPartition(topic, p) for p in (0, 1)], timeout=10)
    group.close()
    assert [place.offset for place in commits] == [1_500, 1_500]
    assert [place.leader_epoch for place in commits] == [0, 0]
    assert all('"v":1' in (place.metadata or "") for place in commits)
    write_cities(rig, topic, 2, 10)
    rig.start()
    rig.wait_acked(topic, rig.ends(topic, 2))
    check(rig, index, {0: 0, 1: 0})
    assert "taken over at 1500, version 1" in rig.log(1)


def set_limit(rig: Rig, index: IndexRecord, size: int) -> None:
    """Make a queue refuse messages above `size` bytes."""
    name = rig.topics.mutations(index.id)
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    for future in rig.admin.incremental_alter_configs([resource]).values():
        future.result(30)
    wait_for(lambda: topic_config(rig.admin, name)["max.message.bytes"] == str(size), "the limit is set")


def test_failed_sends_are_sent_again_without_a_gap(rig: Rig) -> None:
    topic = rig.topic("failing", 2)
    good = rig.index("good-1", f"CREATE INDEX good ON {topic} (city) WITH (slices=2)")
    bad = rig.index("bad-2", f"CREATE INDEX bad ON {topic} (n) WITH (slices=2)")
    rig.build(good, bad, everything=True)
    write_cities(rig, topic, 2, 2_000)
    rig.start()
    rig.wait_acked(topic, rig.ends(topic, 2))
    set_limit(rig, bad, 2_000)
    write_cities(rig, topic, 2, 3_000)
    wait_for(lambda: "are given up and will be sent again" in rig.log(), "a reset")
    acked = {p: rig.progress()[topic, p].acked for p in (0, 1)}
    assert acked != rig.ends(topic, 2), "what a queue refuses is not acknowledged"
    set_limit(rig, bad, 32 * 1024 * 1024)
    rig.wait_acked(topic, rig.ends(topic, 2))
    check(rig, good, {0: 0, 1: 0})
    check(rig, bad, {0: 0, 1: 0}, keys=lambda d: [[d["n"]]])


def test_one_dead_queue_does_not_hold_back_the_keyspace_for_ever(rig: Rig) -> None:
    topic = rig.topic("stuck", 1)
    good = rig.index("good-1", f"CREATE INDEX good ON {topic} (city) WITH (slices=1)")
    bad = rig.index("bad-2", f"CREATE INDEX bad ON {topic} (n) WITH (slices=1)")
    rig.build(good, bad, everything=True)
    rig.start(queue_unavailable_s="3")
    wait_for(lambda: rig.activations(1), "activated")
    set_limit(rig, bad, 600)
    write_cities(rig, topic, 1, 2_000)
    rig.wait_acked(topic, rig.ends(topic, 1))
    check(rig, good, {0: 0})
    assert wait_for(lambda: rig.outcomes(bad.id), "outcomes")["queue-unavailable"] == 1
    assert "a queue of index bad-2 took nothing" in rig.log()


def test_a_dropped_index_counts_as_acknowledged(rig: Rig) -> None:
    topic = rig.topic("dropped", 1)
    kept = rig.index("kept-1", f"CREATE INDEX kept ON {topic} (city) WITH (slices=1)")
    gone = rig.index("gone-2", f"CREATE INDEX gone ON {topic} (n) WITH (slices=1)")
    rig.build(kept, gone, everything=True)
    rig.start()
    write_cities(rig, topic, 1, 100)
    rig.wait_acked(topic, rig.ends(topic, 1))
    delete_topic(rig.admin, rig.topics.mutations(gone.id))
    write_cities(rig, topic, 1, 100)
    rig.producer.flush()
    rig.put(replace(gone, state="DROPPING", version=2))
    rig.keyspace(topic, 2)
    rig.wait_acked(topic, rig.ends(topic, 1))
    wait_for(lambda: rig.progress()[topic, 0].version == 2, "deactivation is committed")
    check(rig, kept, {0: 0})


def test_without_indexes_nothing_is_read_until_the_next_build(rig: Rig) -> None:
    topic = rig.topic("empty", 1)
    first = rig.index("first-1", f"CREATE INDEX first ON {topic} (city) WITH (slices=1)")
    rig.build(first, everything=True)
    rig.start()
    write_cities(rig, topic, 1, 100)
    rig.wait_acked(topic, {0: 100})
    rig.put(replace(first, state="DROPPING", version=2))
    rig.keyspace(topic, 2)
    wait_for(lambda: rig.progress()[topic, 0].version == 2, "deactivated")
    write_cities(rig, topic, 1, 100)
    rig.ends(topic, 1)
    second = rig.index("second-2", f"CREATE INDEX second ON {topic} (n) WITH (slices=1)", version=3)
    rig.build(second, version=3)
    wait_for(lambda: rig.activations(3).get(0) == 200, "activated at the end")
    write_cities(rig, topic, 1, 50)
    rig.wait_acked(topic, {0: 250})
    check(rig, second, {0: 200}, keys=lambda d: [[d["n"]]])
    assert rig.slices(first)[0].positions == {0: 100}


@pytest.mark.parametrize("meanwhile", ["stopped", "running"])
def test_a_topic_made_anew_is_refused_until_the_rollback_and_read_from_its_beginning(
    rig: Rig, meanwhile: str
) -> None:
    topic = rig.topic(f"anew-{meanwhile}", 1)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=1)")
    rig.build(index, everything=True)
    child = rig.start()
    write_cities(rig, topic, 1, 100)
    rig.wait_acked(topic, {0: 100})
    if meanwhile == "stopped":
        child.terminate(20)
    delete_topic(rig.admin, topic)
    wait_for(lambda: create_topic(rig.admin, topic, 1), "made anew")
    write_cities(rig, topic, 1, 50)
    rig.producer.flush()
    if meanwhile == "stopped":
        rig.start()
    anew = describe_topics(rig.admin, [topic])[topic].id

    def told() -> list[HistoryLost]:
        rig.progress()
        return [report for report in rig.reports if isinstance(report, HistoryLost)]

    lost = wait_for(told, "the loss is told")[-1]
    assert (lost.partition, lost.incarnation, lost.topic_id) == (0, 0, anew)
    assert rig.slices(index)[0].positions == {0: 100}
    rollback = RollbackRecord(topic, 1, -1, Timestamp(), anew, "recreated", 0)
    rig.put(rollback, KeyspaceRecord(topic, anew, 1, 1, 1))
    wait_for(lambda: rig.slices(index)[0].incarnation == 1, "it goes on")
    write_cities(rig, topic, 1, 30)
    end = rig.ends(topic, 1)
    wait_for(lambda: rig.slices(index)[0].positions == end, "all is sent")
    check(rig, index, {0: 0})


def test_records_that_expired_unread_are_covered_and_told(rig: Rig) -> None:
    topic = rig.topic("expired", 1)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
    rig.build(index, everything=True)
    child = rig.start()
    write_cities(rig, topic, 1, 100)
    rig.wait_acked(topic, {0: 100})
    child.terminate(20)
    write_cities(rig, topic, 1, 100)
    rig.producer.flush()
    for future in rig.admin.delete_records([TopicPartition(topic, 0, 150)]).values():
        future.result(30)
    rig.start()
    rig.wait_acked(topic, {0: 200})
    assert "up to 50 records expired" in rig.log(1)
    for one in rig.slices(index):
        assert one.positions == {0: 200}
        assert {offset for _, offset in one.heard} == {*range(100), *range(150, 200)}


def test_large_documents_are_cut_into_messages_that_kafka_takes(rig: Rig) -> None:
    topic = rig.topic("large", 1)
    statement = f"CREATE INDEX large ON {topic} (city) INCLUDE (text) WITH (slices=1)"
    index = rig.index("large-1", statement)
    rig.build(index, everything=True)
    for number in range(40):
        rig.write(topic, 0, f"doc-{number}", {"city": "c", "text": "x" * 800_000})
    rig.start()
    rig.wait_acked(topic, rig.ends(topic, 1))
    (one,) = check(rig, index, {0: 0})
    assert one.largest < 6 * 1024 * 1024


def test_metrics_are_served(rig: Rig) -> None:
    topic = rig.topic("measured", 1)
    index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=1)")
    rig.build(index, everything=True)
    write_cities(rig, topic, 1, 100)
    (port,) = free_ports()
    rig.start(metrics_port=str(port))
    rig.wait_acked(topic, {0: 100})

    def documents() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return f'keytide_projector_documents_total{{keyspace="{topic}"}} 100.0' in answer.read().decode()

    wait_for(documents, "100 documents are counted")
