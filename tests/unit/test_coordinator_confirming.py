"""New content is issued only when Kafka has said, after it was reported, which topic it is of (R15)."""

from __future__ import annotations

from dataclasses import replace as replaced
from itertools import pairwise

from coordinator.core.events import CommonSnapshot, HistoryExamined, Issued, Tick, TopicSeen
from coordinator.core.instructions import ConfirmTopic, ExamineHistory, Instruction
from coordinator.stability.issuer import TimestampIssuer
from coordinator.stability.topic_confirmation import LOST_MS, RETRY_MS
from keytide.catalog.records import RollbackRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import StabilityTimestamp
from tests.unit.leader_world import World, backfilled
from tests.unit.test_coordinator_core import LIMITS, TERM, catalog, index_record, progress, stamps

Out = list[Instruction | CommonSnapshot]


def core() -> TimestampIssuer:
    made = TimestampIssuer(LIMITS, TERM)
    made.catalog_changed(catalog(index_record()), 0)
    return made


def questions(out: Out | list[Instruction]) -> list[ConfirmTopic]:
    return [one for one in out if isinstance(one, ConfirmTopic)]


def seen(question: ConfirmTopic, now: int, topic_id: str = "topic-1", error: str = "") -> TopicSeen:
    return TopicSeen(question.keyspace, question.ask, topic_id, error, now)


def begun(made: TimestampIssuer, *acked: int, now: int = 1_000) -> StabilityTimestamp:
    """A first timestamp, number 1."""
    (question,) = questions(made.handle(progress(now, *acked)))
    (stamp,) = stamps(made.handle(seen(question, now)))
    made.handle(Issued(stamp, 1, now))
    return stamp


def test_content_is_what_was_reported_before_the_question() -> None:
    made = core()
    (question,) = questions(made.handle(progress(1_000, 5, 7)))
    assert stamps(made.handle(progress(1_001, 6, 7))) == []
    (stamp,) = stamps(made.handle(seen(question, 1_002)))
    assert stamp.timestamp.offsets() == {0: 5, 1: 7}
    assert stamp.fresh_at == 1_000
    # What came meanwhile is asked about anew.
    out = made.handle(Issued(stamp, 1, 1_003)) + made.handle(Tick(3_100))
    (question,) = questions(out)
    (stamp,) = stamps(made.handle(seen(question, 3_101)))
    assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_one_question_at_a_time_and_none_without_news() -> None:
    made = core()
    begun(made, 5, 7)
    for now in range(1_020, 3_000, 20):
        out = made.handle(Tick(now))
        assert questions(out) == []
        for stamp in stamps(out):  # heartbeats (R7)
            assert stamp.timestamp.offsets() == {0: 5, 1: 7}
            made.handle(Issued(stamp, now, now))
    assert len(questions(made.handle(progress(3_000, 6, 7)))) == 1
    assert questions(made.handle(progress(3_001, 7, 7))) == []
    assert questions(made.handle(Tick(3_020))) == []


def test_another_topic_confirms_nothing_and_neither_does_no_answer() -> None:
    for topic_id, error in (("topic-2", ""), ("", ""), ("", "timed out")):
        made = core()
        begun(made, 5, 7)
        (question,) = questions(made.handle(progress(1_020, 6, 7)))
        out = made.handle(seen(question, 1_021, topic_id, error))
        assert (questions(out), stamps(out)) == ([], [])
        assert made.next_due(1_021) == RETRY_MS
        assert questions(made.handle(Tick(1_020 + RETRY_MS))) == []
        (again,) = questions(made.handle(Tick(1_021 + RETRY_MS)))
        (stamp,) = stamps(made.handle(seen(again, 1_125)))
        assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_heartbeats_go_on_while_nothing_is_confirmed() -> None:
    made = core()
    begun(made, 5, 7)
    made.handle(progress(1_020, 6, 7))
    beats = []
    for number, now in enumerate(range(1_040, 3_000, 20)):
        for stamp in stamps(made.handle(Tick(now))):
            beats.append(now)
            assert stamp.timestamp.offsets() == {0: 5, 1: 7}
            made.handle(Issued(stamp, 2 + number, now))
    # (The first waits for the answer as long as for another heartbeat.)
    assert beats[0] == 1_020 + LIMITS.heartbeat_ms
    assert all(b - a == LIMITS.heartbeat_ms for a, b in pairwise(beats))


def test_an_answer_that_never_comes_is_given_up() -> None:
    made = core()
    begun(made, 5, 7)
    (first,) = questions(made.handle(progress(1_020, 6, 7)))
    (second,) = questions(made.handle(Tick(1_020 + LOST_MS)))
    assert stamps(made.handle(seen(first, 1_021 + LOST_MS))) == []
    in_flight = made.streams["people"].in_flight
    if in_flight is not None:  # a heartbeat
        made.handle(Issued(in_flight, 9, 1_022 + LOST_MS))
    (stamp,) = stamps(made.handle(seen(second, 1_040 + LOST_MS)))
    assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_the_loop_does_not_spin_while_the_answer_is_out() -> None:
    made = core()
    begun(made, 5, 7)
    made.streams["people"].ready = made.streams["people"].emitting
    (question,) = questions(made.handle(progress(1_020, 6, 7)))
    assert made.next_due(1_020) == 1
    assert made.next_due(1_030) == 1
    made.handle(seen(question, 1_031))
    assert made.streams["people"].in_flight is not None


def test_nothing_below_a_hold_is_issued_although_it_is_confirmed() -> None:
    made = core()
    begun(made, 5, 7)
    (question,) = questions(made.handle(progress(1_020, 6, 7)))
    made.streams["people"].hold = Timestamp.of({0: 9, 1: 7})
    assert stamps(made.handle(seen(question, 1_021))) == []
    (question,) = questions(made.handle(progress(1_022, 9, 7)))
    (stamp,) = stamps(made.handle(seen(question, 1_023)))
    assert stamp.timestamp.offsets() == {0: 9, 1: 7}


# --- the leader as a whole ----------------------------------------------------------------------------------


def serving() -> World:
    world = backfilled(World())
    for end in range(3):
        world.common(130 + 10 * end, 60 + end)
    return world


def test_records_of_a_topic_made_anew_never_come_into_a_timestamp() -> None:
    world = serving()
    world.topic_id = "t2"  # the same name, offsets and epochs: nobody has noticed
    before = len(world.places)
    asked = world.progress(1, 170, 70) + world.tick(300)
    (examine,) = [one for one in asked if isinstance(one, ExamineHistory)]
    assert examine.topic_id == "t1"
    assert {stamp.timestamp.offset(0) for stamp in list(world.places.values())[before:]} <= {150}
    world.handle(HistoryExamined("people", "t2", 2, -1, Timestamp(), {}, "", world.now))
    world.now += 100
    record = world.leader.dictionary.catalog.records["rollback/people/1"]
    assert isinstance(record, RollbackRecord)
    assert (record.cause, record.topic_id) == ("recreated", "t2")
    world.progress(1, 3, 4)
    world.tick(300)  # writes how far timestamps may go
    world.tick()
    content = world.leader.stability.streams["people"].content
    assert content is not None
    assert (content.offsets(), content.topic_id) == ({0: 3, 1: 4}, "t2")


def test_an_answer_to_a_question_of_before_a_rollback_counts_for_nothing() -> None:
    world = serving()
    world.progress(1, 170, 70)
    (question,) = questions(world.leader.handle(Tick(world.now + 2_500)))
    world.now += 2_600
    world.topic_id = "t2"
    world.handle(HistoryExamined("people", "t2", 2, -1, Timestamp(), {}, "", world.now))
    assert world.keyspace().incarnation == 0  # nobody doubts it yet
    late = seen(question, world.now, "t2")
    assert [type(one) for one in world.handle(late)] == [ExamineHistory]
    world.handle(HistoryExamined("people", "t2", 2, -1, Timestamp(), {}, "", world.now))
    assert world.keyspace().incarnation == 1
    # The broker that answers this one did not know yet.
    assert [
        one for one in world.handle(replaced(late, topic_id="t1")) if isinstance(one, ExamineHistory)
    ] == []
    world.tick(2_000)
    assert world.keyspace().incarnation == 1
    stream = world.leader.stability.streams["people"]
    assert stream.confirmed is None
    assert not stream.halted
