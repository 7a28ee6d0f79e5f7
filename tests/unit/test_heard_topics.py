"""What a leader hears goes on when its client has lost Kafka."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from coordinator.kafka import heard_topics
from coordinator.kafka.heard_topics import HeardTopics
from keytide.kafka import end_watch
from keytide.settings.settings import load_settings

REPORTS, METADATA = "keytide.reports", "keytide.metadata"


class Said:
    def __init__(self, topic: str, offset: int, error: int | None = None) -> None:
        self._topic, self._offset, self._error = topic, offset, error

    def topic(self) -> str:
        return self._topic

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Kafka:
    """Topics by their ends, the clients that read them, and one that answers where they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends = {REPORTS: 10, METADATA: 5}
        self.readers: list[Reader] = []
        monkeypatch.setattr(heard_topics, "admin", lambda _: self)
        monkeypatch.setattr(heard_topics, "consumer", lambda *_, **__: Reader(self))
        monkeypatch.setattr(end_watch, "ASK_S", 0.0)

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Any]:
        found = {}
        for place in wanted:
            found[place] = Future[Any]()
            found[place].set_result(SimpleNamespace(offset=self.ends[place.topic]))
        return found


class Reader:
    def __init__(self, kafka: Kafka) -> None:
        self.kafka, self.at, self.lost, self.closed = kafka, dict[str, int](), False, False
        kafka.readers.append(self)

    def assign(self, places: list[TopicPartition]) -> None:
        self.at = {one.topic: one.offset for one in places}

    def close(self) -> None:
        self.closed = True

    def consume(self, limit: int, _: float = 0.0) -> list[Said]:
        said = []
        for topic in self.at if not self.lost else ():
            said += [Said(topic, one) for one in range(self.at[topic], self.kafka.ends[topic])]
            self.at[topic] = self.kafka.ends[topic]
            said.append(Said(topic, self.at[topic], KafkaError._PARTITION_EOF))
        return said


def places(found: list[Any]) -> list[tuple[str, int]]:
    return [(one.topic(), one.offset()) for one in found]


def test_a_leader_that_has_become_deaf_hears_on_with_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    heard = HeardTopics(load_settings())
    heard.assign({REPORTS: 10, METADATA: 5})
    for _ in range(20):
        assert heard.poll(100, 0) == []
    assert len(kafka.readers) == 1, "nobody reports, and that is no fault of the client"
    kafka.ends[REPORTS] = 11
    assert places(heard.poll(100, 0)) == [(REPORTS, 10)]
    kafka.readers[0].lost = True
    kafka.ends = {REPORTS: 14, METADATA: 6}
    found = [place for _ in range(8) for place in places(heard.poll(100, 0))]
    assert found == [(REPORTS, 11), (REPORTS, 12), (REPORTS, 13), (METADATA, 5)], (
        "each once, from where it was"
    )
    assert [one.closed for one in kafka.readers] == [True, False]


def test_an_error_is_told_and_an_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    heard = HeardTopics(load_settings())
    heard.assign({REPORTS: 9})
    refused = Said(REPORTS, -1001, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setattr(kafka.readers[0], "consume", lambda limit, _: [refused] if limit == 1 else [])
    (told,) = heard.poll(100, 0)
    error = told.error()
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
