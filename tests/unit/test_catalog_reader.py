"""The reader of the metadata topic while Kafka is away, or its client has lost Kafka."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keytide.catalog.records import ClusterRecord, TermRecord, encode_record, record_key
from keytide.kafka import end_watch
from keytide.kafka import topics as kafka
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.topics import CatalogReader
from keytide.settings.settings import load_settings


def test_all_tries_use_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client is four threads, freed only when Python looks for cycles."""
    made: list[object] = []

    def admin(_: object) -> object:
        made.append(object())
        return made[-1]

    def away(*_: object) -> dict[str, object]:
        raise KafkaUnavailableError("nobody answers")

    monkeypatch.setattr(kafka, "admin", admin)
    monkeypatch.setattr(kafka, "describe_topics", away)
    reader = CatalogReader(load_settings())
    for _ in range(3):
        with pytest.raises(KafkaUnavailableError):
            reader.start(0.1)
    assert len(made) == 1


class Metadata:
    """The topic, and the clients that read it.

    Attributes:
        away: Kafka answers nobody.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[Any] = [ClusterRecord("c", "00", 0)]
        self.readers: list[Reader] = []
        self.away = False
        self.asked = 0
        self.askers: list[Asker] = []
        monkeypatch.setattr(kafka, "admin", lambda _: Asker(self))
        monkeypatch.setattr(kafka, "describe_topics", lambda *_: {"t": None})
        monkeypatch.setattr(kafka, "list_offsets", lambda *_, **__: {0: len(self.records)})
        monkeypatch.setattr(kafka, "consumer", lambda *_, **__: Reader(self))
        monkeypatch.setattr(end_watch, "ASK_S", 0.0)


class Asker:
    """An admin client; it may have lost its brokers, too."""

    def __init__(self, topic: Metadata) -> None:
        self.topic, self.lost, self.closed = topic, False, False
        topic.askers.append(self)

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Any]:
        assert not self.closed
        self.topic.asked += 1
        future: Future[Any] = Future()
        if self.topic.away or self.lost:
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            future.set_result(SimpleNamespace(offset=len(self.topic.records)))
        return dict.fromkeys(wanted, future)

    def close(self) -> None:
        self.closed = True


class Reader:
    """A consumer that may have lost its brokers: it says nothing then."""

    def __init__(self, topic: Metadata) -> None:
        self.topic, self.at, self.lost, self.closed, self.told = topic, 0, False, False, -1
        topic.readers.append(self)

    def assign(self, places: list[TopicPartition]) -> None:
        self.at = places[0].offset

    def close(self) -> None:
        self.closed = True

    def consume(self, limit: int, _: float = 0.0) -> list[Any]:
        if self.lost or (self.at == len(self.topic.records) == self.told):
            return []
        if self.at == len(self.topic.records):
            self.told = self.at
            return [Said(self.at, None)]
        self.at += 1
        return [Said(self.at - 1, self.topic.records[self.at - 1])]


class Said:
    def __init__(self, offset: int, record: Any) -> None:
        self._offset, self._record = offset, record

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._record is None else None

    def key(self) -> bytes:
        return record_key(self._record).encode()

    def value(self) -> bytes:
        return encode_record(self._record)


def test_a_client_that_hears_nothing_though_the_dictionary_goes_on_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Metadata(monkeypatch)
    reader = CatalogReader(load_settings())
    reader.start()
    for _ in range(20):
        assert reader.poll() == []
    clients = len(topic.readers)
    assert topic.asked > 5
    assert not topic.readers[-1].closed, "a quiet topic is nothing strange"
    topic.readers[-1].lost = True
    topic.askers[-1].lost = True  # (what costs the one its brokers may cost the other one its own)
    topic.records.append(TermRecord(7, "x", 0))
    topic.away = True
    for _ in range(20):
        assert reader.poll() == []
    assert len(topic.readers) == clients, "Kafka answers nobody"
    assert len(topic.askers) < 10, "ever more seldom"
    topic.away = False
    changes = [change for _ in range(12) for change in reader.poll()]
    assert changes == [("term", topic.records[1])]
    assert [one.closed for one in topic.readers[-2:]] == [True, False]
    assert len(topic.readers) == clients + 1
    reader.close()
    assert all(one.closed for one in topic.readers)
    assert all(one.closed for one in topic.askers)
    reader.start()  # as a gateway does whose next step has failed
    assert [reader.poll() for _ in range(9)] == [[]] * 9
