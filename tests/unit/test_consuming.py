"""The node's consumer against a librdkafka with all its bad manners: what a slice is given is contiguous, and
only what is gone is told to be."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from indexer.ingest import consumer as consuming
from indexer.ingest.consumer import (
    PAST_END_MS,
    REASSIGN_MS,
    SILENT_MS,
    ConsumerRecord,
    Lost,
    NodeConsumer,
    TopicKind,
)
from keytide.kafka.admin import KafkaUnavailableError
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.settings.settings import load_settings
from tests import share

KEY = ("i-1", 0)
QUEUE = ("keytide.mutations.i-1", 0)
RESET = KafkaError._AUTO_OFFSET_RESET


class Message:
    def __init__(self, place: tuple[str, int], offset: int, error: int | None = None) -> None:
        self._place, self._offset, self._error = place, offset, error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def value(self) -> bytes:
        return b"%d" % self._offset


class Kafka:
    """One partition, its broker and its client.

    Attributes:
        low, high: the log's ends.
        drops: how likely it is that prefetched messages are lost, or given although they are of an assignment
            before.
        away: the broker does not answer questions.
    """

    def __init__(self, seed: int = 0, drops: float = 0.0) -> None:
        self.low, self.high, self.at = 0, 0, -1
        self.drops, self.chance = drops, random.Random(seed)
        self.stale: list[Message] = []
        self.errors: list[Message] = []
        self.assigned: list[int] = []
        self.away = False
        self.told = -1
        self.hole = range(0)
        self.confirmed_at = 10**9
        """Until when it is known to be the right Kafka."""

    def assign(self, _: list[TopicPartition]) -> None: ...
    def pause(self, _: list[TopicPartition]) -> None: ...
    def resume(self, _: list[TopicPartition]) -> None: ...
    def close(self) -> None: ...

    def history(self, *_: object, partitions: list[int]) -> LogHistory:
        if self.away:
            raise KafkaUnavailableError("away")
        (partition,) = partitions
        return LogHistory("t-1", {partition: PartitionHistory(self.low, self.high, 4, ((2, 80), (4, 90)))})

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        start = places[0].offset
        self.at = self.low if start == OFFSET_BEGINNING else start
        self.assigned.append(start)
        self.told = -1

    def incremental_unassign(self, _: list[TopicPartition]) -> None:
        if self.chance.random() < self.drops:
            self.stale += [Message(QUEUE, one) for one in range(max(self.low, self.at - 3), self.at)]
        self.at = -1

    def get_watermark_offsets(
        self, _: TopicPartition, timeout: float, cached: bool = True
    ) -> tuple[int, int]:
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        assert not cached
        return self.low, self.high

    def consume(self, limit: int, _: float = 0.0) -> list[Any]:
        given, self.stale = [*self.errors, *self.stale], []
        self.errors = []
        if 0 <= self.at < self.low:
            given.append(Message(QUEUE, -1001, RESET))
            self.at = -1
        while self.at >= 0 and len(given) < limit and self.at < self.high:
            if self.drops and self.chance.random() < self.drops:
                self.at = min(self.high, self.at + self.chance.randrange(1, 4))  # lost on their way
                continue
            if self.at in self.hole:
                self.at = self.hole.stop
            given.append(Message(QUEUE, self.at))
            self.at += 1
        if self.at == self.high != self.told and len(given) < limit:
            self.told = self.high
            given.append(Message(QUEUE, self.at, KafkaError._PARTITION_EOF))
        return given

    def fails(self, code: int = RESET) -> None:
        self.errors.append(Message(QUEUE, -1001, code))
        self.at = -1  # librdkafka stops reading the partition


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


def reader(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, position: int = 0) -> NodeConsumer:
    monkeypatch.setattr(consuming, "consumer", lambda *_, **__: kafka)
    monkeypatch.setattr(consuming, "log_history", kafka.history)
    made = NodeConsumer(load_settings(), lambda since: kafka.confirmed_at >= since)
    made.read_mutations(KEY, position)
    return made


def offsets(found: list[ConsumerRecord | Lost]) -> list[int]:
    return [one.position for one in found if isinstance(one, ConsumerRecord) and one.data is not None]


def test_what_is_lost_on_its_way_is_read_again(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.high = 5
    node = reader(kafka, monkeypatch, 2)
    kafka.at = 4  # 2 and 3 are lost
    assert node.poll(0, 0) == []
    assert offsets(node.poll(0, 1)) == [2, 3, 4]
    assert kafka.assigned == [2, 2]


@pytest.mark.parametrize("seed", share.seeds(160))
def test_slices_are_given_everything_once_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(seed, drops=0.1)
    kafka.low = kafka.high = random.Random(seed).randrange(1, 5)
    node = reader(kafka, monkeypatch, kafka.low)
    begin, given = kafka.low, []
    for now in range(0, 60_000, 500):
        if now < 30_000:
            kafka.high += kafka.chance.randrange(4)
            if kafka.chance.random() < 0.1:
                kafka.fails(kafka.chance.choice((RESET, KafkaError.OFFSET_OUT_OF_RANGE)))
        else:
            kafka.drops = 0.0
        found = node.poll(0, now)
        assert not any(isinstance(one, Lost) for one in found)
        given += offsets(found)
    assert given == list(range(begin, kafka.high))


def test_a_place_that_is_there_is_not_lost(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.high = 70
    node = reader(kafka, monkeypatch, 68)
    kafka.fails()
    assert node.poll(0, 0) == []
    assert offsets(node.poll(0, REASSIGN_MS)) == [68, 69]


def test_a_place_at_the_end_is_not_lost(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.high = 68
    node = reader(kafka, monkeypatch, 68)
    kafka.fails()
    node.poll(0, 0)
    (end,) = node.poll(0, REASSIGN_MS)
    assert end == ConsumerRecord(TopicKind.MUTATIONS, KEY, 68, None)


def test_a_place_that_was_deleted_is_lost_and_says_why(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.low, kafka.high = 69, 90
    node = reader(kafka, monkeypatch, 68)
    kafka.fails()
    (lost,) = [one for one in node.poll(0, 0) if isinstance(one, Lost)]
    assert "does not have offset 68, but 69 to 90" in lost.reason
    assert "_AUTO_OFFSET_RESET" in lost.reason
    assert "topic id t-1, leader epoch 4, epochs end: 2 to 80, 4 to 90" in lost.reason


def test_nothing_is_lost_until_this_is_known_to_be_the_right_kafka(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of another cluster at the same address has a queue of the same name, or none."""
    kafka.low, kafka.high, kafka.confirmed_at = 69, 90, 999
    node = reader(kafka, monkeypatch, 68)
    for now in range(1_000, 60_000, REASSIGN_MS):
        assert not any(isinstance(one, Lost) for one in node.poll(0, now))
    kafka.confirmed_at = 1_000
    (lost,) = [one for one in node.poll(0, 60_000) if isinstance(one, Lost)]
    assert "does not have offset 68" in lost.reason


def test_a_place_past_the_end_has_time(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose metadata is old says so, for a while."""
    kafka.high = 60
    node = reader(kafka, monkeypatch, 68)
    for now in range(0, PAST_END_MS, REASSIGN_MS):
        kafka.fails()
        assert not any(isinstance(one, Lost) for one in node.poll(0, now))
    kafka.fails()
    (lost,) = [one for one in node.poll(0, PAST_END_MS) if isinstance(one, Lost)]
    assert "the queue has lost what the slice has read" in lost.reason


def test_nothing_is_lost_while_kafka_does_not_answer(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.low, kafka.high, kafka.away = 69, 90, True
    node = reader(kafka, monkeypatch, 68)
    for now in range(0, 300_000, REASSIGN_MS):
        kafka.fails()
        assert not any(isinstance(one, Lost) for one in node.poll(0, now))


def test_what_never_comes_is_left_to_the_slice_to_see(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue whose offsets have a hole is not read again for ever."""
    kafka.high = 10
    node = reader(kafka, monkeypatch, 2)
    kafka.at, kafka.hole = 5, range(2, 5)
    for now in range(30):
        if given := offsets(node.poll(0, now)):
            break
    assert given == [5, 6, 7, 8, 9]


class LosingClient(Kafka):
    """A client that reads control too, until it has lost its brokers; it says nothing from then on."""

    def __init__(self, log: list[int]) -> None:
        super().__init__()
        self.high = 100
        self.log = log
        self.next = -1
        self.lost = self.closed = False
        self.paused: list[str] = []

    def assign(self, places: list[TopicPartition]) -> None:
        self.next = places[0].offset

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused += [one.topic for one in places]

    def close(self) -> None:
        self.closed = True

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, len(self.log)

    def consume(self, limit: int, wait_s: float = 0.0) -> list[Any]:
        if self.lost:
            return []
        said = [Message(CONTROL, one) for one in range(self.next, len(self.log))]
        self.next = len(self.log)
        return [*said, *super().consume(limit - len(said), wait_s)]


CONTROL = ("keytide.control", 0)


class Silence:
    """A node and the clients that it has used, the newest one last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[int] = []
        self.clients: list[LosingClient] = []
        self.answered_at = 0
        monkeypatch.setattr(consuming, "consumer", self._client)
        self.node = NodeConsumer(load_settings(), lambda since: self.answered_at >= since)
        self.node.start()
        self.node.read_mutations(KEY, 95)

    def _client(self, *_: Any, **__: Any) -> LosingClient:
        self.clients.append(LosingClient(self.said))
        return self.clients[-1]

    def go(
        self, since: int, until: int, *, leader: bool = True, kafka: bool = True
    ) -> list[ConsumerRecord | Lost]:
        """What comes in some time (ms), in which the leader speaks, and Kafka answers others, or not."""
        found: list[ConsumerRecord | Lost] = []
        for now in range(since, until, 500):
            self.said += [now] if leader else []
            self.answered_at = now if kafka else self.answered_at
            found += self.node.poll(0, now)
        return found


def test_a_client_that_says_nothing_any_more_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost its brokers for good: the new one reads on at the same places."""
    world = Silence(monkeypatch)
    first = world.go(0, 10_000)
    assert [one.position for one in first if isinstance(one, ConsumerRecord) and one.key] == [
        *range(95, 100),
        100,
    ]
    world.node.pause(KEY)
    world.clients[0].lost = True
    assert world.go(10_000, 10_000 + SILENT_MS - 1_000) == []
    assert len(world.clients) == 1
    found = world.go(10_000 + SILENT_MS - 1_000, 10_000 + SILENT_MS + 1_000)
    assert [one.closed for one in world.clients] == [True, False]
    control = [
        one.position for one in found if isinstance(one, ConsumerRecord) and one.kind is TopicKind.CONTROL
    ]
    assert control == [*range(20, len(world.said))], "nothing that the leader said is lost"
    assert (world.clients[1].assigned, world.clients[1].paused) == ([100], [QUEUE[0]])


def test_a_client_is_not_replaced_while_kafka_is_away_and_seldom_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Silence(monkeypatch)
    world.go(0, 1_000)
    world.go(1_000, 300_000, leader=False, kafka=False)
    assert len(world.clients) == 1
    world.go(300_000, 300_000 + 600_000, leader=False)
    assert len(world.clients) <= 7, "twice as long each time"
    world.go(900_000, 910_000)
    replaced = len(world.clients)
    world.clients[-1].lost = True
    world.go(910_000, 910_000 + SILENT_MS + 5_000)
    assert len(world.clients) == replaced + 1, "there was a leader again"
