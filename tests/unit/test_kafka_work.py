"""What the coordinator believes of a topic that a broker does not know (yet)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from coordinator.kafka import admin as kafka_work
from coordinator.kafka.admin import KafkaAdminWork
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
    assert facts.meant == "peopel"
    assert len(asked) > 1


def test_no_hint_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_work, "SETTLING_S", 0.0)
    work, _ = _asked(monkeypatch, 1_000)

    def away() -> list[str]:
        raise KafkaUnavailableError("Kafka is away")

    monkeypatch.setattr(work, "all_topics", away)
    assert work.sample_settled("people").meant == ""


def test_who_samples_again_and_again_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work, asked = _asked(monkeypatch, 1_000)
    assert not work.sample("people").exists
    assert asked == ["people"]
