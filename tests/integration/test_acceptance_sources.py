"""What the source may do to builds and live indexes, on the real parts: it is cleaned, records are deleted,
partitions are added, producers disagree about partitions. Named by the numbers of the acceptance list."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as Place

from deploy import doctor
from tests.integration.world import World, Writer
from tests.oracle import Source
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

SELDOM = 0.01
"""Changes per second of a writer that is to write only when it is told."""
HELD = 10
"""Documents per second: a build of thousands is held in the middle for as long as a test looks."""


@pytest.fixture(scope="module")
def world(shared_world: World) -> Iterator[World]:
    """The broker's cleaner is at work all the time meanwhile."""
    _set_backoff(shared_world, "100", AlterConfigOpType.SET)
    yield shared_world
    _set_backoff(shared_world, None, AlterConfigOpType.DELETE)


def _set_backoff(world: World, value: str | None, operation: AlterConfigOpType) -> None:
    (broker,) = AdminClient({"bootstrap.servers": world.bootstrap}).list_topics(timeout=30).brokers
    entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
    changes = [ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])]
    _ask(world, lambda admin: admin.incremental_alter_configs(changes))


def _ask(world: World, request: Callable[[AdminClient], Any]) -> None:
    """Have Kafka do something, and wait until it is done (the futures live no longer than their client)."""
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in request(admin).values():
        future.result(30)


def _person(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"p{chance.randrange(400)}"
    if chance.random() < 0.15:
        return id_, None
    return id_, {"city": f"city{chance.randrange(20)}", "n": chance.randrange(1_000)}


def _newcomer(chance: random.Random, number: int) -> tuple[str, Any]:
    """Ids of their own: more partitions send ids that were there to others, which is another matter (18)."""
    id_, document = _person(chance, number)
    return f"new-{id_}", document


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["n"]]


def _create(world: World, name: str, topic: str, partitions: int = 2, **config: Any) -> None:
    if topic not in world.sources:
        world.make_topic(topic, partitions, **config)
        world.sources[topic] = Source(world.bootstrap, topic)
    world.sql(f"CREATE INDEX {name} ON {topic} (city, n) WITH (slices=2, defer_build=true)")


def _write(
    world: World, topic: str, seed: int, count: int, change: Callable[..., tuple[str, Any]] = _person
) -> None:
    with Writer(world.bootstrap, topic, seed, change, per_second=SELDOM) as writer:
        writer.write(count)


def _held_build(world: World, index: str) -> str:
    """A build that has read something and is nowhere near its load timestamp."""
    build = world.build(index, rate_limit=HELD)
    wait_for(lambda: world.build_state(build)["batches"] > 0, "a micro-batch is done")
    assert world.build_state(build)["state"] == "BACKFILL"
    return build


def _failed(world: World, build: str) -> str:
    """The reason why a build failed; it must not become READY."""

    def over() -> bool:
        state = world.build_state(build)["state"]
        assert state != "READY", "a build that may have lost something is READY"
        return bool(state == "FAILED")

    wait_for(over, "the build fails")
    return str(world.build_state(build)["error"])


def _records(world: World, topic: str, ends: dict[int, int]) -> int:
    """How many records the topic still has below `ends`."""
    consumer = KafkaConsumer(
        bootstrap_servers=world.bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    places = {Place(topic, partition): end for partition, end in ends.items()}
    consumer.assign(list(places))
    consumer.seek_to_beginning(*places)
    found = 0
    while any(consumer.position(place) < end for place, end in places.items()):
        for place, records in consumer.poll(timeout_ms=500).items():
            found += sum(record.offset < places[place] for record in records)
    consumer.close()
    return found


COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_ms": "200",
    "min_cleanable_dirty_ratio": "0.01",
    "min_compaction_lag_ms": "0",
    "max_compaction_lag_ms": "1000",
}


def test_4_the_cleaner_runs_under_a_build_that_is_right_nevertheless(world: World) -> None:
    """Tombstones are kept for long: what the cleaner took before it was read has a newer version."""
    topic = "cleaned"
    _create(world, "cleaned_city", topic, delete_retention_ms="3600000", **COMPACTED)
    _write(world, topic, 1, 4_000)
    ends = world.ends(topic)
    world.sources[topic].newest(ends)
    build = _held_build(world, "cleaned_city")
    before = world.build_state(build)["backfill_timestamp"]
    _write(world, topic, 2, 4_000)  # what was read is written over, and so is what was not
    world.sources[topic].newest(world.ends(topic))
    wait_for(lambda: _records(world, topic, ends) < 1_000, "the cleaner has taken most of it")
    state = world.build_state(build)
    assert state["state"] == "BACKFILL"
    target = {p: place["offset"] for p, place in state["target_timestamp"].items()}
    assert any(before[p]["offset"] < offset for p, offset in target.items()), "it ran in the middle"
    world.throttle(build, None)
    world.wait_ready(build)
    assert world.check_at_end("cleaned_city", topic, _by_city) > 0


def test_4_a_build_that_may_have_lost_tombstones_or_offsets_fails(world: World) -> None:
    """Tombstones are kept for a second, and reading takes longer; then offsets are deleted before they are
    read. Built again with what there is, the index is right."""
    topic = "forgetful"
    _create(world, "forgetful_city", topic, delete_retention_ms="1000", **COMPACTED)
    _write(world, topic, 3, 4_000)
    build = world.build("forgetful_city", rate_limit=HELD)
    error = _failed(world, build)
    assert "longer than the 1 s for which topic forgetful keeps tombstones" in error
    assert "raise its delete.retention.ms" in error
    assert world.admin.call("GET", "/v1/indexes/forgetful_city")["state"] == "FAILED"

    topic = "deleted"
    _create(world, "deleted_city", topic)
    _write(world, topic, 4, 4_000)
    world.sources[topic].newest(world.ends(topic))
    build = _held_build(world, "deleted_city")
    cut = [TopicPartition(topic, p, offset - 10) for p, offset in world.ends(topic).items()]
    _ask(world, lambda admin: admin.delete_records(cut))
    error = _failed(world, build)
    assert "deleted" in error
    assert "retention" in error
    world.sources.pop(topic).close()  # the oracle, too, begins with what there is
    world.wait_ready(world.build("deleted_city"))
    assert world.check_at_end("deleted_city", topic, _by_city) > 0


def test_17_added_partitions_are_taken_up_and_a_build_that_runs_fails_clearly(world: World) -> None:
    topic = "growing"
    _create(world, "growing_live", topic)
    world.wait_ready(world.build("growing_live"))
    _create(world, "growing_later", topic)
    _write(world, topic, 5, 4_000)
    build = _held_build(world, "growing_later")
    _ask(world, lambda admin: admin.create_partitions([NewPartitions(topic, 5)]))
    error = _failed(world, build)
    assert "2 partitions" in error
    assert "5" in error
    assert "build" in error
    assert "again" in error
    assert set(world.ends(topic)) == set(range(5))
    _write(world, topic, 6, 3_000, _newcomer)
    assert min(world.ends(topic).values()) > 0, "all partitions are written to"
    assert world.check_at_end("growing_live", topic, _by_city) > 0
    world.wait_ready(world.build("growing_later"))
    assert world.check_at_end("growing_later", topic, _by_city) > 0


def test_18_an_id_that_two_partitioners_send_to_two_partitions_is_shown(world: World) -> None:
    """The default of kafka-python is Java's, that of confluent-kafka is not. The newest record counts."""
    topic = "mixed"
    _create(world, "mixed_city", topic, 4)
    chance = random.Random(18)
    places: dict[str, set[int]] = {}
    other = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})

    def delivered(_error: Any, message: Any) -> None:
        places.setdefault(message.key().decode(), set()).add(message.partition())

    def write_otherwise(count: int) -> None:
        for _ in range(count):
            id_, document = _update(chance)
            other.produce(topic, json.dumps(document).encode(), id_.encode(), on_delivery=delivered)
        assert other.flush(30) == 0

    with Writer(world.bootstrap, topic, 7, lambda *_: _update(chance), per_second=SELDOM) as writer:
        writer.write(600)
        write_otherwise(600)
        writer.write(600)
        world.wait_ready(world.build("mixed_city"))
        # One after the other: which of two records is met first is then which one is newer.
        write_otherwise(300)
        assert world.check_at_end("mixed_city", topic, _by_city) > 0
        writer.write(300)
        assert world.check_at_end("mixed_city", topic, _by_city) > 0
    wait_for(
        lambda: world.admin.call("GET", "/v1/indexes/mixed_city")["foreign_partition_ids"] > 0,
        "heartbeats count them",
    )
    assert len({p for found in places.values() for p in found}) > 1
    findings = doctor.examine(world.bootstrap, world.cluster.data_dir)  # what `keytide doctor` says
    told = [one for one in findings if "two source partitions" in one.found]
    assert [(one.check, one.ok) for one in told] == [("index mixed_city", False)]


def _update(chance: random.Random) -> tuple[str, Any]:
    return f"p{chance.randrange(300)}", {
        "city": f"city{chance.randrange(20)}",
        "n": chance.randrange(1_000),
        "at": time.time(),
    }
