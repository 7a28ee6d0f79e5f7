"""What a coordinator says when Kafka does not take a transaction of its."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.election import FencedError, MetadataWriter, TermLostError
from keytide.catalog import TermRecord
from keytide.settings import load_settings


class Refusing:
    """A producer whose transactions all end with one error."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def begin_transaction(self) -> None:
        pass

    def produce(self, *_: Any, **__: Any) -> None:
        pass

    def commit_transaction(self, _: float) -> None:
        raise KafkaException(self._error)


def write(code: int, *, fatal: bool) -> None:
    writer = MetadataWriter(load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0}))
    writer._producer = Refusing(KafkaError(code, "no", fatal=fatal))  # type: ignore[assignment]
    writer.write([("term", TermRecord(1, "c1", 1))])


def test_one_that_was_fenced_names_the_other() -> None:
    with pytest.raises(FencedError, match="another coordinator") as caught:
        write(KafkaError._FENCED, fatal=True)
    assert not isinstance(caught.value, TermLostError)


def test_a_transaction_that_kafka_lost_is_no_other_coordinator() -> None:
    """A broker that is killed in the middle of a commit answers so (seen with Kafka 4.1)."""
    with pytest.raises(TermLostError) as caught:
        write(KafkaError.INVALID_TXN_STATE, fatal=True)
    assert "another coordinator" not in caught.value.message
    assert "claims the next term" in caught.value.next_step
