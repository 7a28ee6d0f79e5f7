"""Kafka answers for what is new before every broker knows of it: that is asked again, for a while."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keytide.kafka import admin as admin_module
from keytide.kafka.admin import AnyAdminClient, KafkaUnavailableError, list_offsets


class Brokers:
    """An admin client whose brokers answer with an error so many times; or with -1 for an offset."""

    def __init__(self, code: int | None, times: int) -> None:
        self.code, self.times = code, times

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        self.times -= 1
        answers = {}
        for place in wanted:
            answers[place] = future = Future[Any]()
            if self.times >= 0 and self.code is None:
                future.set_result(TopicPartition(place.topic, place.partition, -1))
            elif self.times >= 0 and self.code is not None:
                future.set_exception(KafkaException(KafkaError(self.code)))
            else:
                future.set_result(TopicPartition(place.topic, place.partition, 7))
        return answers

    def list_topics(self, *_: Any, **__: Any) -> None:
        """They are asked where partitions are."""


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._UNKNOWN_PARTITION,
        None,
    ],
)
def test_a_topic_that_was_just_made_is_asked_for_again(
    code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list_offsets(cast("AnyAdminClient", Brokers(code, 3)), "t", [0, 1]) == {0: 7, 1: 7}
    monkeypatch.setattr(admin_module, "SETTLING_S", 0.0)
    with pytest.raises(KafkaUnavailableError, match="offsets of t are not to be had"):
        list_offsets(cast("AnyAdminClient", Brokers(code, 1_000)), "t", [0])


def test_what_is_refused_is_not_asked_again() -> None:
    brokers = Brokers(KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with pytest.raises(KafkaUnavailableError):
        list_offsets(cast("AnyAdminClient", brokers), "t", [0])
    assert brokers.times == 0
