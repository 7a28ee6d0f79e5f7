"""What the coordinator believes of a topic that a broker does not know (yet)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.kafka import admin as kafka_work
from coordinator.kafka.admin import KafkaAdminWork
from keytide.kafka import admin as kafka_admin
from keytide.kafka.admin import KafkaUnavailableError, TopicInfo
from keytide.settings.settings import load_settings


def _asked(monkeypatch: pytest.MonkeyPatch, unknown: int) -> tuple[KafkaAdminWork, list[str]]:
    """Of a broker that does not know a topic when it is asked for the first times."""
    asked: list[str] = []

    def described(_client: Any, names: list[str], _timeout: float) -> Mapping[str, TopicInfo]:
        asked.extend(names)
        if len(asked) <= unknown:
            return {}
        return {names[0]: TopicInfo(names[0], "its-id", 2)}

    def offsets(_client: Any, _topic: str, partitions: range, **_: Any) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    monkeypatch.setattr(kafka_work, "describe_topics", described)
    monkeypatch.setattr(kafka_work, "list_offsets", offsets)
    monkeypatch.setattr(kafka_work, "topic_config", lambda *_: {})
    return KafkaAdminWork(load_settings()), asked


def test_a_topic_made_a_moment_ago_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    work, asked = _asked(monkeypatch, 2)
    facts = work.sample_settled("people")
    assert facts.exists
    assert facts.topic_id == "its-id"
    assert len(asked) == 3


def test_a_topic_that_there_is_not_is_believed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_work, "SETTLING_S", 0.2)
    work, asked = _asked(monkeypatch, 1_000)
    monkeypatch.setattr(work, "all_topics", lambda: ["__people", "orders", "peopel"])
    facts = work.sample_settled("people")
    assert not facts.exists
    assert facts.similar_topic == "peopel"
    assert len(asked) > 1


def test_no_hint_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_work, "SETTLING_S", 0.0)
    work, _ = _asked(monkeypatch, 1_000)

    def away() -> list[str]:
        raise KafkaUnavailableError("Kafka is away")

    monkeypatch.setattr(work, "all_topics", away)
    assert work.sample_settled("people").similar_topic == ""


def test_who_samples_again_and_again_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work, asked = _asked(monkeypatch, 1_000)
    assert not work.sample("people").exists
    assert asked == ["people"]


class _Topics:
    """Brokers that have some topics, by their number of partitions, and are told to make others."""

    def __init__(self, **present: int) -> None:
        self.present = present
        self.refuses: int | None = None

    def close(self) -> None: ...

    def create_topics(self, topics: Sequence[Any], **_: Any) -> dict[str, Future[None]]:
        (topic,) = topics
        if topic.topic in self.present:
            return {topic.topic: _failed(KafkaError.TOPIC_ALREADY_EXISTS)}
        self.present[topic.topic] = topic.num_partitions
        return {topic.topic: _done(None)}

    def create_partitions(self, topics: Sequence[Any], **_: Any) -> dict[str, Future[None]]:
        (topic,) = topics
        if self.refuses is not None:
            return {topic.topic: _failed(self.refuses)}
        assert self.present[topic.topic] < topic.new_total_count
        self.present[topic.topic] = topic.new_total_count
        return {topic.topic: _done(None)}

    def describe_topics(self, topics: Sequence[str], **_: Any) -> dict[str, Future[Any]]:
        return {
            name: _done(SimpleNamespace(topic_id="t", partitions=[0] * self.present[name]))
            if name in self.present
            else _failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
            for name in topics
        }


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def _queues(monkeypatch: pytest.MonkeyPatch, **present: int) -> tuple[KafkaAdminWork, _Topics]:
    topics = _Topics(**present)
    monkeypatch.setattr(kafka_work, "admin", lambda _: topics)
    monkeypatch.setattr(kafka_admin, "TopicCollection", lambda names: names)
    return KafkaAdminWork(load_settings()), topics


def test_queues_that_are_there_get_the_partitions_that_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an index that was altered since they were made; a leader that knows the former definition still
    takes nothing away."""
    work, topics = _queues(monkeypatch, few=2, many=6)
    work.make_queues([("few", 4), ("many", 4), ("new", 4)])
    assert topics.present == {"few": 4, "many": 6, "new": 4}
    work.make_queues([("few", 2), ("many", 4), ("new", 2)])
    assert topics.present == {"few": 4, "many": 6, "new": 4}


def test_a_build_waits_for_the_partitions_of_its_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    work, topics = _queues(monkeypatch, few=2)
    topics.refuses = KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaUnavailableError, match="topic few gets no more partitions"):
        work.make_queues([("few", 4)])
    topics.refuses = KafkaError.INVALID_PARTITIONS  # another one was faster
    monkeypatch.setattr(kafka_admin, "SETTLING_S", 0.0)
    work.make_queues([("few", 4)])
