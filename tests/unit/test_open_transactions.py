"""Transactions that hold a source up: noticed, named, told, and forgotten when they end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import ClusterAuthorizationFailedError

from coordinator.core.events import SourceSampled
from coordinator.core.source_status import SourceStatus
from coordinator.kafka import pending_transactions as open_transactions
from coordinator.kafka.pending_transactions import PATIENCE_MS, TransactionWatch
from coordinator.views import views
from keytide.settings.settings import load_settings
from tests.unit.leader_world import facts
from tests.unit.test_coordinator_rollback import serving
from tests.unit.test_health import Day


class Admin:
    """Kafka's newer admin requests: partition 0 of `people` has transactions from 100 and from 120 on."""

    asked = 0
    refuses = False

    def __init__(self, **_: Any) -> None:
        Admin.asked += 1

    def describe_producers(self, places: list[TopicPartition]) -> dict[TopicPartition, Any]:
        if Admin.refuses:
            raise ClusterAuthorizationFailedError("no")
        producers = [(7, 2, 120), (4_001, 3, 100), (9, 0, -1)]
        states = [
            SimpleNamespace(producer_id=id_, producer_epoch=epoch, current_transaction_start_offset=start)
            for id_, epoch, start in producers
        ]
        return {place: SimpleNamespace(active_producers=states) for place in places}

    def list_transactions(self, producer_id_filters: list[int]) -> dict[int, list[Any]]:
        return {
            1: [SimpleNamespace(producer_id=id_, transactional_id="holder") for id_ in producer_id_filters]
        }

    def describe_transactions(self, names: list[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(transaction_start_time_ms=5_000) for name in names}

    def close(self) -> None: ...


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> TransactionWatch:
    monkeypatch.setattr(open_transactions, "KafkaAdminClient", Admin)
    Admin.asked, Admin.refuses = 0, False
    return TransactionWatch(load_settings(kafka={"bootstrap": "broker:9092"}))


def held(at: int, stable: int = 100) -> SourceStatus:
    return facts((150, 60), stable=(stable, 60), at=at)


def test_one_that_stands_for_a_while_is_named_once(watch: TransactionWatch) -> None:
    assert watch.look(held(10_000)).open_transactions == ()
    assert watch.look(held(10_000 + PATIENCE_MS - 1)).open_transactions == ()
    assert Admin.asked == 0, "most transactions take less"
    (one,) = watch.look(held(10_000 + PATIENCE_MS)).open_transactions
    assert (one.partition, one.offset, one.since) == (0, 100, 5_000)
    assert (one.producer_id, one.producer_epoch, one.transactional_id) == (4_001, 3, "holder")
    assert "producer 4001 (transactional.id holder), for 7 s" in one.in_words(12_000)
    assert (
        "--bootstrap-server broker:9092 abort --topic people --partition 0 --start-offset 100" in one.remedy
    )
    assert watch.look(held(13_000)).open_transactions == (one,)
    assert Admin.asked == 1
    assert watch.look(facts((150, 60), at=14_000)).open_transactions == (), "it is over"


def test_one_that_holds_several_partitions_is_named_at_each(watch: TransactionWatch) -> None:
    both = facts((150, 160), stable=(100, 100), at=10_000)
    watch.look(both)
    found = watch.look(replace(both, sampled_at=20_000)).open_transactions
    assert [(one.partition, one.producer_id, one.transactional_id) for one in found] == [
        (0, 4_001, "holder"),
        (1, 4_001, "holder"),
    ]


def test_a_name_that_was_not_to_be_had_is_asked_for_again(
    watch: TransactionWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transactions, "ASK_AGAIN_S", 0.0)
    watch.look(held(10_000))
    with monkeypatch.context() as patched:
        patched.setattr(Admin, "list_transactions", lambda self, **_: {1: []})
        (one,) = watch.look(held(20_000)).open_transactions
        assert (one.producer_id, one.transactional_id) == (4_001, "")
    (one,) = watch.look(held(21_000)).open_transactions
    assert one.transactional_id == "holder"


def test_transactions_that_follow_each_other_hold_nothing_up(watch: TransactionWatch) -> None:
    for step in range(20):
        assert watch.look(held(10_000 + 1_000 * step, stable=100 + step)).open_transactions == ()
    assert Admin.asked == 0


def test_place_and_time_are_told_where_kafka_does_not_tell_whose_it_is(watch: TransactionWatch) -> None:
    Admin.refuses = True
    watch.look(held(10_000))
    (one,) = watch.look(held(20_000)).open_transactions
    assert (one.offset, one.since, one.producer_id) == (100, 10_000, -1)
    assert "partition 0 from offset 100: an open transaction, for 10 s" in one.in_words(20_000)
    assert watch.look(held(21_000)).open_transactions == (one,)
    assert Admin.asked == 1, "not with every look"


def test_lag_counts_what_waits_and_says_for_whom(watch: TransactionWatch) -> None:
    world = serving()  # up to 150, 62
    source = facts((170, 62), stable=(150, 62), at=world.now)
    watch.look(source)
    source = watch.look(replace(source, sampled_at=world.now + PATIENCE_MS))
    world.handle(SourceSampled(source, "", world.now))
    said = views.stability(world.leader, world.now)["keyspaces"]["people"]
    assert said["lag_documents"] == 20
    (waits,) = said["waiting_for"]
    assert (waits["partition"], waits["offset"]) == (0, 150)
    assert "abort --topic people --partition 0 --start-offset 150" in waits["next_step"]


def test_it_is_in_the_verdict(watch: TransactionWatch) -> None:
    day = Day()
    source = facts((150, 60), stable=(130, 60), at=day.world.now)
    watch.look(source)
    day.source = watch.look(replace(source, sampled_at=day.world.now + PATIENCE_MS))
    day.live(500)
    reason = day.story("keyspace")
    assert "acknowledged records of topic people wait, and are in no snapshot: partition 0" in reason.reason
    assert "kafka-transactions.sh" in reason.next_step
