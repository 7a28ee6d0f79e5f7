"""What is said of lost history, on a real cluster of three brokers with unclean elections."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from coordinator.core.events import TopicSeen
from coordinator.core.instructions import ConfirmTopic
from coordinator.process.topic_ids import TopicIds
from keytide.kafka.admin import KafkaUnavailableError, admin, delete_topic, describe_topics
from keytide.kafka.history import log_history, partings
from keytide.model.timestamp import Place
from keytide.settings.settings import Settings, load_settings
from keytide.wire.messages import HistoryLost
from projector.progress.events import Key
from projector.service.source import GroupMember
from projector.service.transport import KafkaTransport
from tests.integration.projector_kit import Rig
from tests.integration.three_brokers import ThreeBrokers
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(900)]

_names = itertools.count(1)
TIMEOUT_S = 20.0
PATIENT = {"log_level": 0, "transaction.timeout.ms": 600_000}
"""Of a writer whose transaction is open while brokers come and go: Kafka would end it after a minute."""


def diverging(settings: Settings, topic: str, places: dict[int, Place], timeout_s: float) -> dict[int, Place]:
    """The partitions whose place is no longer on the log, with where the histories part."""
    epochs = {partition: place.epoch for partition, place in places.items()}
    history = log_history(settings, topic, timeout_s, down_to=epochs, partitions=places)
    return partings(settings, topic, history, places, timeout_s)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with ThreeBrokers(tmp_path_factory.mktemp("three")) as running:
        yield running


@pytest.fixture
def settings(brokers: ThreeBrokers) -> Settings:
    return load_settings(kafka={"bootstrap": brokers.bootstrap})


@pytest.fixture
def topic() -> str:
    return f"lost-{next(_names)}"


def fill(brokers: ThreeBrokers, topic: str, partition: int, count: int, word: str = "x") -> None:
    brokers.write(topic, partition, [(f"{word}-{n}", b"{}") for n in range(count)])


def epoch_below(settings: Settings, topic: str, start: int, end: int) -> int:
    """What a projector's consumer says of the leader epoch below `end`, having read from `start` to there."""
    key, given = Key(topic, 0), list[Key]()
    source = GroupMember(
        settings,
        KafkaTransport(settings),
        clock=time.monotonic,
        assigned=given.extend,
        revoked=lambda _: None,
        lost=lambda _: None,
        committed=lambda *_: None,
    )

    def came() -> bool:
        met = source.read(100, 0.1, 0.0).ends.get(key)
        if given:
            given.clear()
            source.read_from(key, start)
        return met == end

    try:
        source.subscribe([topic])
        wait_for(came, "the end is met")
        assert source.epoch_below(key, end + 1) == -1, "nothing is known past the position"
        return source.epoch_below(key, end)
    finally:
        source.close()


def _leads(brokers: ThreeBrokers, topic: str, broker: int) -> bool:
    return brokers.leader(topic, 0) == broker


def test_elections_that_lose_nothing_move_no_place(
    brokers: ThreeBrokers, settings: Settings, topic: str
) -> None:
    brokers.create(topic, [[1, 2]], unclean=False)
    fill(brokers, topic, 0, 10)
    before = log_history(settings, topic, TIMEOUT_S).partitions[0]
    assert before.branches == ((0, 10),)
    assert (before.low, before.high, before.stable, before.leader_epoch) == (0, 10, 10, 0)
    brokers.kill(1)
    wait_for(lambda: brokers.leader(topic, 0) == 2, "the follower leads")
    fill(brokers, topic, 0, 5)
    after = log_history(settings, topic, TIMEOUT_S).partitions[0]
    assert [end for _, end in after.branches] == [10, 15]
    assert after.leader_epoch == after.branches[-1][0] > 0
    newest = after.leader_epoch
    assert diverging(settings, topic, {0: Place(10, 0)}, TIMEOUT_S) == {}
    assert diverging(settings, topic, {0: Place(15, newest)}, TIMEOUT_S) == {}
    assert diverging(settings, topic, {0: Place(11, 0)}, TIMEOUT_S) == {0: Place(10, newest)}
    brokers.restart(1)


def test_unclean_elections_again_and_again(brokers: ThreeBrokers, settings: Settings, topic: str) -> None:
    """Two rounds; after each the right places are named, also when the log is longer than before."""
    brokers.create(topic, [[1, 2], [3, 1]])
    fill(brokers, topic, 0, 20)
    fill(brokers, topic, 1, 7)
    brokers.lose(topic, 0, lambda: fill(brokers, topic, 0, 5, "lost"))
    first = log_history(settings, topic, TIMEOUT_S).partitions[0].leader_epoch
    places = {0: Place(25, 0), 1: Place(7, 0)}
    assert diverging(settings, topic, places, TIMEOUT_S) == {0: Place(20, first)}
    fill(brokers, topic, 0, 15, "new")  # now 35: past what was lost
    assert diverging(settings, topic, places, TIMEOUT_S) == {0: Place(20, first)}
    assert diverging(settings, topic, {0: Place(20, 0)}, TIMEOUT_S) == {}
    assert diverging(settings, topic, {0: Place(25, -1)}, TIMEOUT_S) == {}, "only the offset is known"
    wait_for(lambda: len(brokers.in_sync(topic, 0)) == 2, "the old leader has followed")

    brokers.lose(topic, 0, lambda: fill(brokers, topic, 0, 9, "lost again"))
    second = log_history(settings, topic, TIMEOUT_S).partitions[0].leader_epoch
    assert second > first
    fill(brokers, topic, 0, 20, "newest")
    of = {
        place: diverging(settings, topic, {0: place}, TIMEOUT_S)
        for place in (
            Place(20, 0),
            Place(25, 0),
            Place(35, first),
            Place(36, first),
            Place(44, first),
            Place(55, second),
        )
    }
    assert of == {
        Place(20, 0): {},
        Place(25, 0): {0: Place(20, first)},
        Place(35, first): {},
        Place(36, first): {0: Place(35, second)},
        Place(44, first): {0: Place(35, second)},
        Place(55, second): {},
    }


def test_markers_of_a_later_epoch_are_no_loss(brokers: ThreeBrokers, settings: Settings, topic: str) -> None:
    """A reader's place lies behind a transaction marker that a new leader wrote."""
    brokers.create(topic, [[2, 1]], unclean=False)
    writer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": topic, **PATIENT})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"{}", b"a", 0)
    assert writer.flush(30) == 0
    brokers.kill(2)
    wait_for(lambda: brokers.leader(topic, 0) == 1, "the follower leads")
    writer.commit_transaction(30)

    def marked() -> bool:
        known = log_history(settings, topic, TIMEOUT_S).partitions[0]
        return known.stable == known.high == 2

    wait_for(marked, "the marker is written")
    newest = log_history(settings, topic, TIMEOUT_S).partitions[0].leader_epoch
    assert diverging(settings, topic, {0: Place(2, 0)}, TIMEOUT_S) == {0: Place(1, newest)}, (
        "it may be another record"
    )
    assert diverging(settings, topic, {0: Place(2, 0, 1)}, TIMEOUT_S) == {}
    assert [epoch_below(settings, topic, start, 2) for start in (0, 1)] == [newest, newest], (
        "a reader that meets nothing but the marker is shown its leader epoch"
    )
    fill(brokers, topic, 0, 1)
    assert diverging(settings, topic, {0: Place(3, 0, 2)}, TIMEOUT_S) == {0: Place(1, newest)}, (
        "a record lies there that was not read"
    )
    brokers.restart(2)


def test_a_topic_made_anew_has_another_id_and_no_past(
    brokers: ThreeBrokers, settings: Settings, topic: str
) -> None:
    brokers.create(topic, [[1, 2]])
    fill(brokers, topic, 0, 10)
    old = log_history(settings, topic, TIMEOUT_S)
    assert old.topic_id == describe_topics(brokers.admin, [topic])[topic].id
    delete_topic(brokers.admin, topic)
    wait_for(lambda: log_history(settings, topic, TIMEOUT_S).topic_id == "", "the topic is gone")
    brokers.create(topic, [[1, 2]])
    fill(brokers, topic, 0, 4)
    new = log_history(settings, topic, TIMEOUT_S)
    assert new.topic_id == describe_topics(brokers.admin, [topic])[topic].id != old.topic_id
    assert new.diverging({0: Place(10, 0)}) == {0: Place(4, 1)}


def test_a_partition_without_a_leader_is_asked_again(
    brokers: ThreeBrokers, settings: Settings, topic: str
) -> None:
    brokers.create(topic, [[1], [2]], unclean=False)
    fill(brokers, topic, 1, 3)
    brokers.kill(1)
    wait_for(lambda: brokers.leader(topic, 0) == -1, "nobody leads")
    with pytest.raises(KafkaUnavailableError, match="not to be had"):
        log_history(settings, topic, 2.0)
    assert diverging(settings, topic, {1: Place(3, 0)}, TIMEOUT_S) == {}, "the others can be asked"
    brokers.restart(1)
    wait_for(lambda: brokers.leader(topic, 0) == 1, "it leads again")
    assert diverging(settings, topic, {0: Place(0), 1: Place(3, 0)}, TIMEOUT_S) == {}


def test_clean_elections_under_a_projector_are_no_loss(
    brokers: ThreeBrokers, topic: str, tmp_path: Path
) -> None:
    """Also where the first that a new leader writes is the marker of a transaction."""
    rig = Rig(brokers, "clean", tmp_path)
    try:
        brokers.create(topic, [[1, 2]], unclean=False)
        index = rig.index("by-city-1", f"CREATE INDEX by_city ON {topic} (city) WITH (slices=2)")
        rig.build(index, everything=True)
        # It keeps its partition when the broker that dies leads its group, too: brokers have 6 s.
        rig.start(session_timeout_ms="30000")
        client = {"bootstrap.servers": brokers.bootstrap, "transactional.id": topic, **PATIENT}
        writer = Producer(client)
        writer.init_transactions(30)
        for leader in (1, 2, 1, 2):
            for city in ("a", "b"):
                writer.begin_transaction()
                writer.produce(topic, b'{"city": "%s"}' % city.encode(), city.encode(), 0)
                assert writer.flush(30) == 0
                if city == "b":
                    brokers.kill(leader)
                    wait_for(partial(_leads, brokers, topic, 3 - leader), "the other leads")
                writer.commit_transaction(30)
                if city == "b":
                    brokers.restart(leader)
                    wait_for(lambda: len(brokers.in_sync(topic, 0)) == 2, "it has followed")
            rig.wait_acked(topic, rig.ends(topic, 1))
        assert not any(isinstance(report, HistoryLost) for report in rig.reports)
        assert rig.log().count("is on the log of leader epoch") >= 2, "new leaders were asked"
        for one in rig.slices(index):
            assert one.positions == rig.ends(topic, 1)
            assert len(one.heard) == 8
    finally:
        rig.close()


def test_a_controller_that_is_gone_is_not_waited_for(
    brokers: ThreeBrokers, settings: Settings, topic: str
) -> None:
    """Clients know one broker as the controller, and do not look for another one by themselves."""
    brokers.create(topic, [[1, 2, 3]])
    client, answers = admin(settings), list[TopicSeen]()
    ids = TopicIds(settings, answers.append, print)
    ids.open()
    known = describe_topics(client, [topic])[topic].id

    def confirmed() -> bool:
        answers.clear()
        ids.put(ConfirmTopic(topic, 1))
        wait_for(lambda: bool(answers), "the question is answered, if only by an error")
        return answers[0].topic_id == known

    wait_for(confirmed, "the topic is confirmed")
    try:
        for works in (lambda: describe_topics(client, [topic])[topic].id == known, confirmed):
            with admin(settings) as other:
                gone = other.list_topics(timeout=TIMEOUT_S).controller_id
            brokers.kill(gone)
            try:
                wait_for(works, f"another than {gone} answers", 60)
            finally:
                brokers.restart(gone)
    finally:
        ids.close()
