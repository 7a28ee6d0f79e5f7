"""Clients of Kafka: one thread each, and none dropped while an answer is owed to it. Without a broker."""

from __future__ import annotations

import ast
import gc
import logging
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection

from coordinator.election.claim import MetadataWriter
from keytide.errors import InvariantViolationError
from keytide.kafka import clients as kafka_clients
from keytide.kafka.admin import admin, client_config
from keytide.kafka.clients import AdminClient
from keytide.kafka.fenced_writer import TRANSACTION_TIMEOUT_MS
from keytide.kafka.topics import consumer, producer
from keytide.settings.settings import load_settings
from tests.unit.test_style import PRODUCT, named, nodes, sources

NOWHERE = load_settings(kafka={"bootstrap": "127.0.0.1:1"})


def in_thread(work: object) -> BaseException | None:
    """What `work` raises in a thread of its own."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run, name="another")
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_a_client_is_used_by_one_thread(kind: str) -> None:
    with admin(NOWHERE) as asking:
        client: Any = {"consumer": consumer(NOWHERE), "producer": producer(NOWHERE), "admin": asking}[kind]
        client.poll(0)
        raised = in_thread(lambda: client.poll(0))
        assert isinstance(raised, InvariantViolationError)
        assert "OneThread" in str(raised)
        assert "another" in str(raised)
        client.poll(0)
        client.hand_over()
        assert in_thread(lambda: client.poll(0)) is None
        client.poll(0)  # that thread has ended


def test_a_client_that_is_closed_waits_for_its_answers() -> None:
    client = admin(NOWHERE)
    (answer,) = client.describe_topics(TopicCollection(["t"]), request_timeout=0.5).values()
    assert not answer.done()
    client.close()
    assert answer.done()
    with pytest.raises(KafkaException):
        answer.result()


def test_answers_that_never_come_keep_their_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_clients, "CLOSE_S", 0.01)
    monkeypatch.setattr(kafka_clients, "_kept", [])
    client = admin(NOWHERE)
    client._asked(Future())
    client.close()
    assert kafka_clients._kept == [client]
    assert "not answered" in caplog.text


def test_a_client_that_is_dropped_is_kept_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_clients, "_kept", [])
    client: AdminClient | None = admin(NOWHERE)
    assert client is not None
    client.describe_topics(TopicCollection(["t"]), request_timeout=0.5)
    with caplog.at_level(logging.ERROR):
        client = None
        gc.collect()
    assert "dropped" in caplog.text
    kafka_clients._kept[0].close()


def test_one_that_is_closed_goes() -> None:
    client = admin(NOWHERE)
    client.describe_topics(TopicCollection(["t"]), request_timeout=0.1)
    gone = weakref.ref(client)
    client.close()
    del client
    gc.collect()
    assert gone() is None


def test_clients_are_made_in_one_module() -> None:
    """No other file of the product imports librdkafka's clients but to name their type."""
    found = [
        f"{named(path)}:{node.lineno}"
        for path in sources(PRODUCT)
        for node in nodes(path, ast.ImportFrom)
        if (node.module or "").split(".")[0] == "confluent_kafka"
        and {"Consumer", "Producer", "AdminClient"} & {alias.name for alias in node.names}
    ]
    assert found == []


def test_a_broker_that_hears_no_more_is_given_up_before_a_queue_is() -> None:
    """What waits for it twice in a row, where its connection is new and open, too."""
    settings = load_settings()
    answer_ms = int(client_config(settings)["socket.timeout.ms"])
    assert 2 * answer_ms < 1_000 * settings.projector.queue_unavailable_s
    assert answer_ms > settings.projector.session_timeout_ms, "slow is not dead"


def test_a_coordinators_producer_can_be_made() -> None:
    """(librdkafka refuses one that waits for answers for longer than its transactions last.)"""
    assert MetadataWriter(load_settings()).term == 0
    with pytest.raises(KafkaException):
        producer(load_settings(), transactional_id="x", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
