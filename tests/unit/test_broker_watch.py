"""Clients of Kafka that lose all their brokers for good, and what goes on in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from keytide.kafka.broker_watch import ANSWERED_MS, LOST_S, BrokerWatch
from keytide.kafka.clients import Consumer, Producer
from keytide.kafka.lasting_producer import LastingProducer
from tests.waiting import wait_for


class LosingProducer:
    """A producer in memory."""

    def __init__(self) -> None:
        self.has_broker = True
        self.waiting: list[Callable[[KafkaError | None, Message], None]] = []
        self.failed = False

    def produce(self, topic: str, value: bytes, **options: Any) -> None:
        self.waiting.append(options["on_delivery"])

    def poll(self, timeout: float) -> int:
        error = KafkaError(KafkaError._PURGE_QUEUE) if self.failed else None
        told, self.waiting = (self.waiting, []) if self.failed or self.has_broker else ([], self.waiting)
        for one in told:
            one(error, Message())
        return len(told)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return len(self.waiting)

    def purge(self) -> None:
        self.failed = True

    def hand_over(self) -> None: ...


class Clocks:
    """Time, and until when Kafka has answered another client."""

    def __init__(self) -> None:
        self.seconds, self.answers = 100.0, True
        self._answered = 0
        self.watch = BrokerWatch(self.confirmed, lambda: self.seconds, self.now)

    def now(self) -> int:
        return int(self.seconds * 1000)

    def confirmed(self, since: int) -> bool:
        if self.answers:
            self._answered = self.now()
        return self._answered >= since

    def go(self, seconds: float, look: Callable[[], bool]) -> int:
        """How often it is lost in this time."""
        found = 0
        for _ in range(int(seconds * 2)):
            self.seconds += 0.5
            found += look()
        return found


def test_a_client_is_lost_that_is_without_brokers_while_kafka_answers() -> None:
    clocks, client = Clocks(), LosingProducer()

    def look() -> bool:
        return clocks.watch.is_lost(client)

    assert clocks.go(100, look) == 0
    client.has_broker = False
    assert clocks.go(LOST_S - 1, look) == 0
    assert clocks.go(2, look) == 1
    client.has_broker = True  # (another one)
    assert clocks.go(100, look) == 0


def test_a_client_is_not_lost_while_kafka_is_away_nor_just_after_it() -> None:
    clocks, client = Clocks(), LosingProducer()
    client.has_broker = clocks.answers = False

    def look() -> bool:
        return clocks.watch.is_lost(client)

    assert clocks.go(600, look) == 0
    clocks.answers = True
    assert clocks.go(LOST_S - 2, look) == 0
    clocks.answers = False
    assert clocks.go(600, look) == 1, "Kafka has answered lately, for some seconds more"
    clocks.seconds += 1_000  # (the process stood still)
    clocks.answers = True
    assert look() is False


def test_a_look_that_takes_long_now_and_then_only_delays_it() -> None:
    clocks, client = Clocks(), LosingProducer()
    client.has_broker = False
    found = 0
    for _ in range(12):
        clocks.answers = True
        found += clocks.go(3, lambda: clocks.watch.is_lost(client))
        clocks.answers = False
        found += clocks.go(ANSWERED_MS / 1000 + 3, lambda: clocks.watch.is_lost(client))
    assert found >= 4


def test_what_waits_in_a_lost_producer_has_failed_and_another_one_goes_on() -> None:
    clocks = Clocks()
    clients: list[LosingProducer] = []

    def make() -> LosingProducer:
        clients.append(LosingProducer())
        return clients[-1]

    lasting = LastingProducer(make, "somewhere", clocks.watch)
    told: list[int] = []

    def produce() -> None:
        lasting.produce("t", b"x", on_delivery=lambda error, _: told.append(error.code() if error else 0))

    def look() -> bool:
        before = len(told)
        lasting.poll()
        return len(told) > before

    lasting.poll()
    assert lasting.flush(1)
    assert clients == [], "none is made before it is needed"
    lasting.begin()
    assert len(clients) == 1
    produce()
    assert clocks.go(1, look) == 1
    clients[0].has_broker = False
    produce()
    assert not lasting.flush(0)
    assert clocks.go(LOST_S + 1, look) == 1
    assert told == [0, KafkaError._PURGE_QUEUE]
    produce()
    assert clocks.go(1, look) == 1
    assert (told[-1], len(clients)) == (0, 2)


@pytest.mark.parametrize("kind", [Consumer, Producer])
@pytest.mark.parametrize("there", [True, False])
def test_statistics_tell_whether_there_is_a_broker(
    kind: type[Consumer] | type[Producer], there: bool
) -> None:
    """Of librdkafka's own mock of a cluster, or nobody."""
    config: dict[str, Any] = {
        "bootstrap.servers": "127.0.0.1:1",
        "log_level": 0,
        "statistics.interval.ms": 50,
    }
    if there:
        config["test.mock.num.brokers"] = 1
    if kind is Consumer:
        config["group.id"] = "g"
    client = kind(config)
    seen: list[bool] = []

    def told() -> bool:
        client.poll(0.05)
        seen.append(client.has_broker)
        return client.has_broker is there and len(seen) > 3

    if there:
        client.list_topics(timeout=30)
    wait_for(told, "the statistics to say so", 30)
    if kind is Consumer:
        client.close()


def test_a_client_without_statistics_is_not_called_lost() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "enable.idempotence": True}
    assert Producer(config).has_broker
