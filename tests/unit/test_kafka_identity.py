"""Which Kafka this is: what is remembered, adopted and refused, when Kafka changes under a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keytide.kafka import identity as kafka_identity
from keytide.kafka.admin import KafkaUnavailableError, TopicInfo
from keytide.kafka.identity import OWN_FAULT, ClusterTopics, KafkaIdentity, Memory, WrongKafkaError
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings, load_settings
from tests.waiting import wait_for


class Kafka:
    """Says who it is; `away`: it does not."""

    def __init__(self) -> None:
        self.cluster = "K1"
        self.topics = {"keytide.metadata": "m1", "keytide.control": "c1", "users": "u1"}
        self.away = False
        self.asked = threading.Event()

    def __enter__(self) -> Kafka:
        return self

    def __exit__(self, *_: object) -> None: ...

    def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
        assert not topic or topic in self.topics, "Kafka may make it"
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return type("Metadata", (), {"cluster_id": self.cluster})

    def describe(self, _: object, names: Any, timeout: float) -> dict[str, TopicInfo]:
        self.asked.set()
        return {one: TopicInfo(one, self.topics[one], 1) for one in names if one in self.topics}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    one = Kafka()
    monkeypatch.setattr(kafka_identity, "admin", lambda _: one)
    monkeypatch.setattr(kafka_identity, "describe_topics", one.describe)
    monkeypatch.setattr(kafka_identity, "LOOK_S", 0.01)
    return one


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path)


def test_a_folder_that_remembers_nothing_adopts_what_it_sees_first(kafka: Kafka, settings: Settings) -> None:
    KafkaIdentity(settings).look()
    folder = settings.data_dir / "kafka-seen" / "keytide"
    assert {one.name: one.read_text() for one in folder.iterdir()} == {
        "cluster": "K1",
        "keytide.metadata": "m1",
        "keytide.control": "c1",
    }
    kafka.topics["keytide.reports"] = "r1"  # made later
    KafkaIdentity(settings).look()
    assert (folder / "keytide.reports").read_text() == "r1"


def test_another_cluster_at_the_address_is_refused_also_after_a_restart(
    kafka: Kafka, settings: Settings
) -> None:
    KafkaIdentity(settings).look()
    kafka.cluster = "K2"
    with pytest.raises(WrongKafkaError, match=r"cluster K2.* Kafka cluster K1") as raised:
        KafkaIdentity(settings).look()
    assert "kafka.bootstrap" in raised.value.next_step
    assert str(settings.data_dir) in raised.value.next_step
    KafkaIdentity(settings, remember=False).look()  # a gateway that begins has nothing to compare with


def test_a_topic_that_was_made_anew_is_refused_and_one_that_is_missing_is_not(
    kafka: Kafka, settings: Settings
) -> None:
    KafkaIdentity(settings).look()
    del kafka.topics["keytide.control"]
    KafkaIdentity(settings).look()
    kafka.topics["keytide.control"] = "c2"
    with pytest.raises(WrongKafkaError, match=r"keytide\.control was deleted and made anew.*c1.*c2"):
        KafkaIdentity(settings).look()


@pytest.fixture
def watching(kafka: Kafka, settings: Settings) -> Iterator[KafkaIdentity]:
    identity = KafkaIdentity(settings, remember=False)
    identity.look()
    identity.open()
    yield identity
    identity.close()


def refused(identity: KafkaIdentity) -> bool:
    try:
        identity.check()
    except WrongKafkaError:
        return True
    return False


def test_a_process_that_runs_sees_it_when_another_cluster_answers(
    kafka: Kafka, watching: KafkaIdentity
) -> None:
    wait_for(lambda: kafka.asked.is_set())
    watching.check()
    kafka.cluster = "K2"
    wait_for(lambda: refused(watching))


def test_a_look_that_fails_by_a_bug_ends_the_process_too(
    kafka: Kafka, watching: KafkaIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would look any more, and nothing be confirmed."""

    def broken(*_: object) -> None:
        raise ValueError("a bug")

    wait_for(lambda: kafka.asked.is_set())
    monkeypatch.setattr(Memory, "compare", broken)
    assert watching._worker.wait(20)
    with pytest.raises(ValueError, match="a bug"):
        watching.check()


def test_offsets_are_confirmed_by_a_look_that_begins_later(kafka: Kafka, watching: KafkaIdentity) -> None:
    now = now_ms() + 1
    wait_for(lambda: watching.confirmed(now))
    kafka.away = True
    kafka.asked.clear()
    wait_for(kafka.asked.is_set)
    later = now_ms() + 1
    kafka.asked.clear()
    wait_for(kafka.asked.is_set)
    assert not watching.confirmed(later)
    kafka.away, kafka.cluster = False, "K2"
    wait_for(lambda: refused(watching))
    assert not watching.confirmed(later)


def test_a_client_that_may_have_lost_kafka_is_replaced_ever_more_seldom(
    kafka: Kafka, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads stay until Python looks for cycles, so a long outage must not make many."""
    looks: list[int] = []

    class LosingClient(Kafka):
        def __init__(self) -> None:
            super().__init__()
            self.away = len(looks) < 4
            looks.append(0)

        def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
            looks[-1] += 1
            return super().list_topics(topic, timeout)

    monkeypatch.setattr(kafka_identity, "admin", lambda _: LosingClient())
    began = now_ms()
    identity = KafkaIdentity(settings).open()
    try:
        wait_for(lambda: identity.confirmed(began))
    finally:
        identity.close()
    assert looks[:4] == [OWN_FAULT, OWN_FAULT, 2 * OWN_FAULT, 4 * OWN_FAULT]
    assert len(looks) == 5


def test_kafka_that_is_away_is_no_other(kafka: Kafka, settings: Settings) -> None:
    kafka.away = True
    with pytest.raises(KafkaUnavailableError):
        KafkaIdentity(settings).look()


def test_processes_that_share_a_folder_agree_whoever_is_first(tmp_path: Path) -> None:
    memories = [Memory(tmp_path / "seen", "k:9092") for _ in range(8)]
    told: list[str] = []

    def compare(number: int) -> None:
        try:
            memories[number].compare(ClusterTopics(f"K{number % 2}", {}))
        except WrongKafkaError as error:
            told.append(str(error))

    threads = [threading.Thread(target=compare, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4
    assert [one.name for one in (tmp_path / "seen").iterdir()] == ["cluster"]


def test_a_folder_that_cannot_be_written_is_told_and_the_process_remembers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "seen").write_text("a file where the folder should be")
    memory = Memory(tmp_path / "seen", "k:9092")
    memory.compare(ClusterTopics("K1", {}))
    assert "cannot be remembered" in caplog.text
    with pytest.raises(WrongKafkaError):
        memory.compare(ClusterTopics("K2", {}))
