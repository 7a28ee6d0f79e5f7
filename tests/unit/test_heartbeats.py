"""Heartbeats that say what has changed: when all is said, and who may follow (R53)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec.structs import replace

from coordinator.core.events import Reported
from coordinator.views import health
from indexer.ingest import reports
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import TermRecord, decode_record, encode_record
from keytide.model.protocol import CHANGES, FIRST_PROTOCOL, SPOKEN
from keytide.model.timestamp import Place, Timestamp
from keytide.settings.settings import load_settings
from keytide.wire.heartbeats import UNTOLD, WHOLE_EACH, WHOLE_MS, HeartbeatWriter, begun, follow
from keytide.wire.messages import (
    DuplicateDocument,
    HeartbeatChanges,
    NodeHeartbeat,
    RepairStatus,
    SliceStatus,
    UniqueViolation,
    decode,
    encode,
)
from tests.unit.copy_world import CopyWorld

Beat = NodeHeartbeat | HeartbeatChanges


def at(*offsets: int, epoch: int = -1, topic: str = "t1") -> Timestamp:
    return Timestamp({number: Place(offset, epoch) for number, offset in enumerate(offsets)}, topic)


def status(slice_number: int, timestamp: Timestamp = Timestamp(), **other: Any) -> SliceStatus:
    made = SliceStatus("i-1", slice_number, "LIVE", "", timestamp, 5, -1, 100, 1 << 20, 0, 0, 70, 0, 0)
    return replace(made, **other)


def beat(*slices: SliceStatus, **other: Any) -> NodeHeartbeat:
    made = NodeHeartbeat("n1", "http://n1.example", 1, 1_000, list(slices), 3, 4, 5, "z", ("index",), SPOKEN)
    return replace(made, **other)


def sent(message: Beat) -> Beat:
    """As it comes out of the topic."""
    found = decode(encode(message))
    assert isinstance(found, NodeHeartbeat | HeartbeatChanges)
    return found


class Node:
    """One process of a node, and who reads it."""

    def __init__(self) -> None:
        self.writer = HeartbeatWriter()
        self.known: NodeHeartbeat | None = None

    def say(self, said: NodeHeartbeat, term: int = 1, protocol: int = SPOKEN) -> Beat:
        return sent(self.writer.write(said, term, protocol))

    def hear(self, message: Beat) -> NodeHeartbeat | None:
        heard = follow(self.known, message)
        self.known = heard or self.known
        return heard


# --- what is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "news",
    [
        status(1, at(13, 27, 30)),
        status(1, at(13, 27)),
        status(1, at(10, 20, epoch=4)),
        status(1, Timestamp({0: Place(19, -1, 2), 1: Place(5)}, "t1")),
        status(1, at(10, 20), state="STOPPED", reason="the disk is full", number=-1),
        status(1, at(10, 20), repair=RepairStatus("j", 2, watching=True, corrected=7)),
        status(
            1,
            at(10, 20),
            violations=3,
            violated=[UniqueViolation(b"\x02k", 9, [DuplicateDocument(b"u1", 0, 5, 6)], more=True)],
        ),
        status(1, at(10, 20), undo_given_up=True, copy="c7", rows=4, leases=2, writes=1 << 40),
    ],
)
def test_what_has_changed_is_said_and_the_whole_is_known(news: SliceStatus) -> None:
    node = Node()
    first = beat(status(0, at(10, 20)), status(1, at(10, 20)))
    assert isinstance(node.hear(node.say(first)), NodeHeartbeat)
    second = beat(first.slices[0], news, sent_at=1_500, memory=30, disk_free=40, catalog_offset=50)
    message = node.say(second)
    assert isinstance(message, HeartbeatChanges)
    assert list(message.slices) == [1]
    assert node.hear(message) == replace(second, sequence=2)


def test_slices_that_commit_one_timestamp_say_it_once() -> None:
    node, before, now = Node(), at(*range(50)), at(*range(7, 57))
    node.hear(node.say(beat(*(status(number, before) for number in range(8)))))
    message = node.say(beat(*(status(number, now) for number in range(8))))
    assert isinstance(message, HeartbeatChanges)
    assert [change.steps for change in message.timestamps] == [[7] * 50]
    heard = node.hear(message)
    assert heard is not None
    assert [one.timestamp for one in heard.slices] == [now] * 8
    assert len({id(one.timestamp) for one in heard.slices}) == 1


@pytest.mark.parametrize(
    "other",
    [
        beat(status(0, at(10))),
        beat(status(0, at(10)), status(1, at(10)), status(2)),
        beat(status(1, at(10)), status(0, at(10))),
        beat(status(0, at(10)), status(1, at(10, topic="t2"))),
        beat(status(0, at(10)), status(1, Timestamp({}, "t1"))),
        beat(status(0, at(10)), status(1, at(10)), url="http://n1.example:2"),
    ],
)
def test_all_is_said_where_changes_have_no_word_for_it(other: NodeHeartbeat) -> None:
    node = Node()
    node.hear(node.say(beat(status(0, at(10)), status(1, at(10)))))
    message = node.say(other)
    assert message == replace(other, sequence=2)
    assert node.hear(message) == message


def test_a_leader_that_begins_hears_all_and_so_does_everybody_every_now_and_then() -> None:
    node, said = Node(), beat(status(0, at(10)))
    assert isinstance(node.say(said), NodeHeartbeat)
    assert isinstance(node.say(said), HeartbeatChanges)
    assert isinstance(node.say(said, term=2), NodeHeartbeat)
    kinds = [isinstance(node.say(said, term=2), NodeHeartbeat) for _ in range(3 * WHOLE_EACH)]
    assert kinds.count(True) == 3
    assert max(len(run) for run in "".join(".W"[one] for one in kinds).split("W")) == WHOLE_EACH - 1


@pytest.mark.parametrize(
    ("each", "told"), [(500, 10), (600, 9), (1_000, 5), (2_000, 3), (6_000, 1), (100, 10)]
)
def test_all_is_said_again_in_time_however_often_a_node_speaks(each: int, told: int) -> None:
    node = Node()
    kinds = [
        isinstance(node.say(beat(status(0, at(10)), sent_at=1_000 + number * each)), NodeHeartbeat)
        for number in range(60)
    ]
    whole = [number for number, kind in enumerate(kinds) if kind]
    assert {later - one for one, later in pairwise(whole[1:])} == {told}
    assert told == 1 or (told - 1) * each < WHOLE_MS


def test_all_is_said_when_the_clock_was_set_back() -> None:
    node = Node()
    first = beat(status(0, at(10)), sent_at=90_000)
    node.say(first)
    assert isinstance(node.say(replace(first, sent_at=90_500)), HeartbeatChanges)
    assert isinstance(node.say(replace(first, sent_at=1_000)), NodeHeartbeat)
    assert isinstance(node.say(replace(first, sent_at=1_500)), HeartbeatChanges)


def test_a_leader_of_the_release_before_hears_all_always() -> None:
    node, said = Node(), beat(status(0, at(10)))
    node.say(said)
    for _ in range(3):
        assert node.say(said, term=2, protocol=CHANGES - 1) == said, "as that release says it"
    assert isinstance(node.say(said, term=2), NodeHeartbeat), "nobody can follow from what has no number"
    assert isinstance(node.say(said, term=2), HeartbeatChanges)


def test_all_is_said_after_what_did_not_arrive() -> None:
    node, said = Node(), beat(status(0, at(10)))
    node.say(said)
    assert isinstance(node.say(said), HeartbeatChanges)
    node.writer.lost()
    assert isinstance(node.say(said), NodeHeartbeat)
    assert isinstance(node.say(said), HeartbeatChanges)


# --- who may follow -----------------------------------------------------------------------------------------


def test_nobody_follows_over_a_gap() -> None:
    node = Node()
    node.hear(node.say(beat(status(0, at(10)), status(1, at(10)))))
    node.say(beat(status(0, at(11)), status(1, at(10))))  # lost on its way
    known = node.known
    assert node.hear(node.say(beat(status(0, at(11)), status(1, at(12))))) is None
    assert node.known is known
    whole = node.say(beat(status(0, at(11)), status(1, at(13))), term=2)
    assert node.hear(whole) == whole
    assert node.hear(node.say(beat(status(0, at(14)), status(1, at(13))), term=2)) is not None


def test_who_begins_to_read_in_the_middle_waits_for_the_whole() -> None:
    node, said = Node(), beat(status(0, at(10)))
    node.say(said)
    assert node.hear(node.say(said)) is None
    heard = [node.hear(node.say(said)) for _ in range(WHOLE_EACH)]
    assert [one is not None for one in heard] == [False] * 7 + [True] * 3


def test_what_comes_twice_or_late_changes_nothing() -> None:
    node = Node()
    first = node.say(beat(status(0, at(10))))
    second = node.say(beat(status(0, at(12))))
    assert [node.hear(one) is not None for one in (first, first, second, second, first)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    third = node.hear(node.say(beat(status(0, at(13)))))
    assert third is not None
    assert third.slices[0].timestamp == at(13)


def test_nobody_follows_from_one_process_to_the_next() -> None:
    node = Node()
    node.hear(node.say(beat(status(0, at(10)))))
    node.writer = HeartbeatWriter()
    node.say(beat(status(0, at(4)), started_at=2))  # lost on its way
    assert node.hear(node.say(beat(status(0, at(4), number=-1), started_at=2))) is None


def test_of_a_process_that_has_not_said_all_nothing_is_known_but_that_it_has_begun() -> None:
    node = Node()
    node.hear(node.say(beat(status(0, at(10)))))
    node.writer = HeartbeatWriter()
    node.say(beat(status(0, at(4)), started_at=2))  # lost on its way
    message = node.say(beat(status(0, at(4)), started_at=2, disk_free=9))
    assert isinstance(message, HeartbeatChanges)
    assert node.known is not None
    node.known = begun(node.known, message)
    assert (node.known.started_at, node.known.slices, node.known.disk_free) == (2, [], 9)
    assert node.known.catalog_offset == -1, "it has read nothing, as far as is known"
    assert node.known.sequence == UNTOLD
    assert node.hear(replace(message, sequence=1)) is None, "nothing follows from that"
    whole = node.say(beat(status(0, at(5)), started_at=2), term=2)
    assert node.hear(whole) == whole


def test_heartbeats_of_the_release_before_are_taken_as_they_are() -> None:
    node, old = Node(), beat(status(0, at(10)))
    for _ in range(2):
        assert node.hear(sent(old)) == old


def test_a_later_release_may_say_more_of_a_slice() -> None:
    node = Node()
    node.hear(node.say(beat(status(0, at(10)))))
    message = node.say(beat(status(0, at(11))))
    assert isinstance(message, HeartbeatChanges)
    message.slices[0][len(SliceStatus.__struct_fields__)] = ["new"]
    heard = node.hear(sent(message))
    assert heard is not None
    assert heard.slices == [status(0, at(11))]


@pytest.mark.parametrize(
    "slices", [{7: {5: 6}}, {0: {5: "x"}}, {0: {4: 9}}, {0: {4: "x"}}, {0: {4: 0}}, {0: {4: [1]}}]
)
def test_what_cannot_be_meant_is_left_alone(slices: dict[int, dict[int, Any]]) -> None:
    node = Node()
    node.hear(node.say(beat(status(0, at(10)))))
    message = node.say(beat(status(0, at(11))))
    assert isinstance(message, HeartbeatChanges)
    message.timestamps[0].steps.append(3)
    assert node.hear(replace(message, slices=slices)) is None


# --- the leader, and the process of a node ------------------------------------------------------------------


def test_a_leader_that_misses_one_keeps_what_it_knows_and_the_node_lives() -> None:
    world = CopyWorld().ready()
    node, said = Node(), world.leader.stability.nodes.by_id["n1"].heartbeat
    at_work = [one for one in said.slices if one.state == "LIVE"]
    assert at_work, "the world is as this test takes it to be"
    world.handle(Reported(node.say(said), world.now))
    node.say(replace(said, slices=[replace(one, state="LOST") for one in said.slices]))
    for _ in range(WHOLE_EACH - 3):
        world.now += 500
        changed = node.say(replace(said, slices=[replace(one, entries=world.now) for one in said.slices]))
        world.handle(Reported(changed, world.now))
        for other in ("n2", "n3"):
            beat_of = world.leader.stability.nodes.by_id[other].heartbeat
            world.handle(Reported(beat_of, world.now))
        world.tick(0)
    assert "n1" in world.leader.stability.nodes.live()
    known = world.leader.stability.nodes.by_id["n1"].heartbeat
    assert known.slices == said.slices, "half of what it says is never taken"


def test_a_leader_knows_nothing_of_slices_before_it_was_told_all() -> None:
    world = CopyWorld().ready()
    node, said = Node(), world.leader.stability.nodes.by_id["n1"].heartbeat
    node.say(said)
    other, _ = world.restart()
    other.handle(Reported(node.say(said), other.now))
    assert "n1" not in other.leader.stability.nodes.by_id
    unheard = [one for one in health.of(other.leader, other.now).reasons if "was not heard yet" in one.reason]
    assert unheard, "it says so"
    other.handle(Reported(node.say(said, term=2), other.now))
    assert other.leader.stability.nodes.by_id["n1"].heartbeat.slices == said.slices


def test_the_dictionary_tells_what_the_leader_speaks() -> None:
    catalog = Catalog()
    assert catalog.leader_protocol == FIRST_PROTOCOL
    catalog.put("term", decode_record("term", b'{"term":3,"holder":"c","claimed_at":1}'))
    assert (catalog.term, catalog.leader_protocol) == (3, FIRST_PROTOCOL)
    catalog.apply("term", encode_record(TermRecord(4, "c", 1, SPOKEN)), 9)
    assert catalog.leader_protocol == SPOKEN


def test_a_node_says_all_again_when_kafka_did_not_take_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values: list[bytes] = []
    outcome: list[Any] = []

    class Sends:
        def begin(self) -> None: ...

        def produce(self, topic: str, value: bytes, on_delivery: Any, **_: Any) -> None:
            what = outcome.pop(0) if outcome else None
            if what is BufferError:
                raise BufferError
            if isinstance(what, KafkaException):
                raise what
            values.append(value)
            on_delivery(what, None)

    monkeypatch.setattr(reports, "lasting_producer", lambda *_, **__: Sends())
    reporter = reports.NodeReporter(load_settings(), "n1", "http://n1.example", 1, bool)

    def say(*what: Any) -> type[object]:
        outcome[:] = what
        reporter.heartbeat([status(0, at(10))], 2, 3, 4, 5, 1, SPOKEN)
        return type(decode(values[-1]))

    assert [say(), say()] == [NodeHeartbeat, HeartbeatChanges]
    assert say(KafkaError(KafkaError._MSG_TIMED_OUT)) is HeartbeatChanges
    assert [say(), say()] == [NodeHeartbeat, HeartbeatChanges]
    say(BufferError)
    assert [say(), say()] == [NodeHeartbeat, HeartbeatChanges]
    with caplog.at_level("ERROR"):
        say(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))
    assert "topics.message_max_bytes" in caplog.text
    assert [say(), say()] == [NodeHeartbeat, HeartbeatChanges]
    with pytest.raises(KafkaException):
        say(KafkaException(KafkaError(KafkaError._FATAL)))
    assert say() is HeartbeatChanges
    reporter.acknowledge("people", 0, 7, ("i-1", 0))
    outcome[:] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    reporter.flush_acks()
    assert say() is HeartbeatChanges, "what else is lost is none of theirs"
