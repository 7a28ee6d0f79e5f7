"""What a coordinator does when Kafka does not take a transaction of its."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.election import claim as election
from coordinator.election.claim import FencedError, MetadataWriter
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import TermRecord
from keytide.kafka import fenced_writer
from keytide.kafka.admin import KafkaUnavailableError
from keytide.model.protocol import SPOKEN
from keytide.settings.settings import Settings, load_settings

LOST = KafkaError(KafkaError.INVALID_TXN_STATE, "no", fatal=True)
"""A broker that is killed in the middle of a commit answers so (seen with Kafka 4.1)."""
FENCED = KafkaError(KafkaError._FENCED, "no", fatal=True)


AWAY = KafkaError(KafkaError._TIMED_OUT, "no", retriable=True)


SILENT = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
"""Of a commit; its id was claimed in time."""


class Refusing:
    """A producer whose transactions end with an error, or well; or whose id cannot be claimed in time.

    Attributes:
        offset: of the next record; None when it tells nothing of what it has delivered.
    """

    def __init__(self, error: KafkaError | None) -> None:
        self.error = error
        self.offset: int | None = None
        self.written: list[str] = []
        self.ready = False

    def begin_transaction(self) -> None:
        if not self.ready:
            raise KafkaException(KafkaError(KafkaError._STATE, "init_transactions comes first"))

    def init_transactions(self, _: float) -> None:
        if self.error is AWAY:
            raise KafkaException(self.error)
        self.ready = True

    def abort_transaction(self, _: float) -> None:
        pass

    def produce(self, _: str, key: str, on_delivery: Any, **__: Any) -> None:
        self.written.append(key)
        if self.offset is not None:
            on_delivery(None, Delivered(self.offset))
            self.offset += 1

    def commit_transaction(self, _: float) -> None:
        if self.error is not None:
            raise KafkaException(self.error)


class Delivered:
    """A record that is in the topic."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class World:
    """A writer, what its producers answer (one after the other), and terms that the dictionary has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, terms: list[int | None], *errors: KafkaError) -> None:
        self.producers: list[Refusing] = []
        self.offsets: list[int] = []
        self._errors, self._terms = [*errors], terms
        monkeypatch.setattr(fenced_writer, "producer", self._producer)
        monkeypatch.setattr(election, "read_catalog", self._read)
        self.writer = MetadataWriter(load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0}))

    def _producer(self, *_: Any, **__: Any) -> Any:
        self.producers.append(Refusing(self._errors.pop(0) if self._errors else None))
        self.producers[-1].offset = self.offsets.pop(0) if self.offsets else None
        self.producers[0].ready = True
        return self.producers[-1]

    def _read(self, _: Settings) -> Catalog:
        term = self._terms.pop(0)
        if term is None:
            raise KafkaUnavailableError("no answer")
        catalog = Catalog()
        catalog.put("term", TermRecord(term, "c", 1))
        return catalog

    def write(self) -> int:
        return self.writer.write([("term", TermRecord(1, "c1", 1))])


@pytest.mark.parametrize("error", [LOST, FENCED])
def test_a_lost_transaction_without_a_higher_term_is_written_again(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError
) -> None:
    world = World(monkeypatch, [5, 5], error)
    world.writer.term = 5
    world.write()
    assert [one.written for one in world.producers] == [["term"], ["term"]]


def test_a_producer_that_is_never_answered_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost its brokers for good; another one writes under the same term."""
    world = World(monkeypatch, [5, 5], SILENT)
    world.writer.term = 5
    world.write()
    assert [one.written for one in world.producers] == [["term"], ["term"]]


def test_it_asks_the_dictionary_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [None, 5, None, 5, 5], LOST)
    world.writer.term = 5
    world.write()
    assert world.producers[-1].written == ["term"]


def test_an_id_that_cannot_be_claimed_in_time_is_claimed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [5] * 4, LOST, AWAY)
    world.writer.term = 5
    world.write()
    assert [one.ready for one in world.producers] == [True, False, True]
    assert world.producers[-1].written == ["term"]


@pytest.mark.parametrize(("terms", "fenced"), [([6], 0), ([5, 6], 1)])
def test_one_that_sees_a_higher_term_stops(
    monkeypatch: pytest.MonkeyPatch, terms: list[int | None], fenced: int
) -> None:
    """And fences nobody whose term it sees: the second list is of a claim between two looks."""
    world = World(monkeypatch, terms, LOST)
    world.writer.term = 5
    with pytest.raises(FencedError, match="another coordinator"):
        world.write()
    assert len(world.producers) == 1 + fenced


def test_a_claim_that_is_fenced_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [], FENCED)
    with pytest.raises(FencedError, match="another coordinator"):
        world.write()
    assert len(world.producers) == 1


def test_it_tells_behind_which_offset_it_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [])
    (one,) = world.producers
    one.offset = 40
    assert world.write() == 41
    record = ("term", TermRecord(1, "c1", 1))
    assert world.writer.write([record, record, record]) == 44
    one.offset = None
    assert world.write() == -1, "not what an earlier one has reached"


def test_of_a_transaction_that_is_written_again_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [5, 5], LOST)
    world.writer.term = 5
    world.producers[0].offset, world.offsets = 40, [43]
    assert world.write() == 44


def test_a_claim_says_what_the_leader_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By it nodes know whether they may say what has changed (R53)."""
    written: list[Any] = []
    writer: Any = SimpleNamespace(term=0, fence=lambda: None, write=written.extend)
    monkeypatch.setattr(election, "read_catalog", lambda settings: Catalog())
    term, catalog = election.claim_term(load_settings(), writer, "c1")
    assert (term, catalog.leader_protocol) == (1, SPOKEN)
    assert dict(written)["term"].protocol == SPOKEN
