"""Rollbacks, through the whole pure leader: what raises a suspicion, what is decided, what counts after."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.catalog.registry import ConflictError
from coordinator.core.events import (
    BuildPrepared,
    HistoryExamined,
    Issued,
    Reported,
    RollbackWritten,
    SourceSampled,
    Tick,
    TopicsDeleted,
    TopicSeen,
)
from coordinator.core.instructions import (
    Broadcast,
    ConfirmRollback,
    ConfirmTopic,
    DeleteTopics,
    ExamineHistory,
    Instruction,
    PrepareBuild,
    StartDriver,
    StopDriver,
    Write,
)
from coordinator.http import metrics
from coordinator.kafka.log_examination import holds, newest_on_log, standing
from coordinator.views import views
from keytide.catalog.history import History
from keytide.catalog.records import RollbackRecord, decode_record
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import (
    Acknowledged,
    HistoryLost,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    Published,
    SliceStatus,
    StabilityTimestamp,
)
from tests import share
from tests.unit.leader_world import BACKFILL, CREATE, MUTATIONS, World, backfilled, facts, started


def lost(world: World, partition: int = 0, offset: int = 500, **other: Any) -> list[Instruction]:
    known = world.known()
    message = HistoryLost(
        "people", "p1", partition, known.incarnation, known.topic_id, offset, 3, "its place is not on the log"
    )
    return world.handle(Reported(replace(message, **other), world.now))


def examined(world: World, number: int, timestamp: Timestamp, **other: Any) -> list[Instruction]:
    values: dict[str, Any] = {
        "keyspace": "people",
        "topic_id": "t1",
        "partitions": 2,
        "lost": {},
        "error": "",
        "now": world.now,
        **other,
    }
    return world.handle(HistoryExamined(number=number, timestamp=timestamp, **values))


def rollback(world: World, incarnation: int = 1) -> RollbackRecord:
    key = f"rollback/people/{incarnation}"
    record = decode_record(key, world.written[key])
    assert isinstance(record, RollbackRecord)
    return record


def serving(world: World | None = None) -> World:
    """Index by_city is READY; timestamps 130, 60 and 140, 61 and 150, 62 are held by all."""
    world = backfilled(world or World())
    for end in range(3):
        world.common(130 + 10 * end, 60 + end)
    assert world.index("by_city").state == "READY"
    return world


def stamp_of(world: World, end: int) -> tuple[int, Timestamp]:
    """The newest number of the content whose first offset is `end`."""
    stamps = world.leader.stability.streams["people"].stamps
    return max((number, stamp) for number, stamp in stamps.items() if stamp.offset(0) == end)


def stamps(world: World) -> list[StabilityTimestamp]:
    return [message for message in world.broadcasts if isinstance(message, StabilityTimestamp)]


# --- noticing -----------------------------------------------------------------------------------------------


def test_a_projectors_word_halts_timestamps_and_has_the_history_examined() -> None:
    world = serving()
    (ask,) = lost(world, 0, 155)
    assert isinstance(ask, ExamineHistory)
    assert (ask.keyspace, ask.topic_id, ask.stood) == ("people", "t1", {0: Place(155, 3)})
    numbers = [number for number, _ in ask.stamps]
    assert numbers == sorted(numbers, reverse=True)
    assert ask.stamps[0][1].offsets() == {0: 150, 1: 62}
    before = len(world.broadcasts)
    world.progress(1, 170, 70)
    assert world.tick(5_000) == []
    assert lost(world, 0, 155) == []  # said again with the next heartbeat
    assert len(world.broadcasts) == before


def test_an_end_below_an_older_timestamp_is_examined_and_a_false_alarm_changes_nothing() -> None:
    world = serving()
    written = dict(world.written)

    def sample(*ends: int) -> list[Instruction]:
        world.now += 1_000
        return world.handle(SourceSampled(facts(ends, at=world.now), "", world.now))

    assert sample(150, 62) == []
    world.common(180, 70)
    # The look at the ends may be older than the timestamp: that is none.
    assert sample(170, 70) == []
    (ask,) = sample(170, 70)
    assert isinstance(ask, ExamineHistory)
    number, stamp = stamp_of(world, 180)
    assert examined(world, number, stamp) == []
    assert world.notes[-1].kind == "history-whole"
    assert {key: value for key, value in world.written.items() if not key.startswith("build/")} == {
        key: value for key, value in written.items() if not key.startswith("build/")
    }
    world.common(190, 71)
    assert sample(190, 71) == []


def progress(world: World, acked: int, epoch: int) -> list[ExamineHistory]:
    known = world.known()
    line = PartitionProgress(0, acked, epoch, acked, 0, known.version)
    message = Progress("people", "p2", known.topic_id, known.incarnation, [line], 0, {})
    return [one for one in world.handle(Reported(message, world.now)) if isinstance(one, ExamineHistory)]


def test_a_later_leader_epoch_has_what_was_read_before_it_examined() -> None:
    """Who read the lost records may be gone, and who reads on may have begun below them."""
    world = serving()
    assert progress(world, 180, 0) == []
    (ask,) = progress(world, 190, 1)
    assert ask.stood == {0: Place(180, 0)}
    assert progress(world, 195, 1) == []  # it is being looked at
    number, stamp = stamp_of(world, 150)
    assert examined(world, number, stamp) == []
    assert world.notes[-1].kind == "history-whole"
    assert progress(world, 200, 1) == []  # once for each epoch
    (ask,) = progress(world, 210, 2)
    examined(world, number, stamp, lost={0: Place(185, 2)})
    assert rollback(world).number == number


def test_more_under_an_older_epoch_was_read_from_a_log_that_is_gone() -> None:
    world = serving()
    progress(world, 180, 0)
    progress(world, 190, 1)
    examined(world, *stamp_of(world, 150))
    progress(world, 200, 1)
    (ask,) = progress(world, 230, 0)
    assert ask.stood == {0: Place(230, 0)}


def test_a_look_that_was_late_to_arrive_accuses_nobody() -> None:
    world = serving()
    began = world.now
    world.now += 3_000
    assert world.handle(SourceSampled(facts((150, 62), at=began), "", world.now)) == []
    world.common(180, 70)
    assert world.handle(SourceSampled(facts((150, 62), at=began + 1), "", world.now)) == []
    # Sampled before the timestamp that was noted with the last one.
    assert world.handle(SourceSampled(facts((150, 62), at=began + 2), "", world.now)) == []
    (ask,) = world.handle(SourceSampled(facts((150, 62), at=world.now), "", world.now))
    assert isinstance(ask, ExamineHistory)


def test_a_topic_that_is_gone_is_waited_for() -> None:
    world = serving()
    gone = facts(topic_id="", high=(), earliest=())
    assert world.handle(SourceSampled(gone, "", world.now)) == []
    assert world.notes[-1].kind == "topic-gone"
    told = len(world.notes)
    assert world.handle(SourceSampled(gone, "", world.now)) == []
    assert len(world.notes) == told
    # A projector notices as well: then nothing is decided until there is a topic.
    assert len(lost(world)) == 1
    assert examined(world, -1, Timestamp(), topic_id="", partitions=0) == []
    assert world.notes[-1].kind == "history-unknown"
    assert world.tick(20) == []
    (again,) = world.tick(1_000)
    assert isinstance(again, ExamineHistory)
    assert world.keyspace().incarnation == 0


def test_while_kafka_does_not_answer_it_is_asked_again() -> None:
    world = serving()
    lost(world)
    assert examined(world, -1, Timestamp(), topic_id="", error="no leader") == []
    assert "no leader" in world.notes[-1].text
    assert [type(one) for one in world.tick(1_000)] == [ExamineHistory]
    assert world.keyspace().incarnation == 0


def test_the_last_index_may_be_dropped_meanwhile() -> None:
    world = serving()
    lost(world)
    world.sql("DROP INDEX by_city")
    world.tick()
    assert examined(world, -1, Timestamp()) == []
    assert world.leader.builds.registry.halted == set()


def test_nothing_is_doubted_where_no_index_is() -> None:
    world = World()
    world.sql("CREATE INDEX a ON people (a) WITH (defer_build=true)")
    assert lost(world) == []
    assert world.handle(SourceSampled(facts(topic_id="t2"), "", world.now)) == []


# --- deciding -----------------------------------------------------------------------------------------------


def test_one_write_has_the_rollback_and_the_new_incarnation() -> None:
    world = serving()
    number, stamp = stamp_of(world, 140)
    published = world.leader.stability.streams["people"].published["by_city-7"]
    assert published > number
    lost(world)
    out = world.leader.handle(
        HistoryExamined("people", "t1", 2, number, stamp, {0: Place(145, 4)}, "", world.now)
    )
    assert isinstance(out[0], Write)
    assert {"rollback/people/1", "keyspace/people"} == {key for key, _ in out[0].records}
    assert out.index(ConfirmRollback("people", 1)) > 0
    assert not any(isinstance(one, Broadcast) for one in out)  # nothing of it is said before it is written
    assert world.leader.handle(Tick(world.now + 5_000))[:0] == []
    world.take(out)
    record = rollback(world)
    assert (record.number, record.timestamp, record.cause, record.lost) == (
        number,
        stamp,
        "truncated",
        {0: Place(145, 4)},
    )
    assert "its place is not on the log" in record.detail
    assert world.keyspace().incarnation == 1
    stream = world.leader.stability.streams["people"]
    assert all(known <= number for known in stream.stamps)
    assert stream.content == stamp
    assert stream.published == {}
    assert world.leader.stability.acknowledgements.newest("n1", "by_city-7", 0) <= number


def test_timestamps_go_on_at_what_was_gone_back_to_once_it_is_written() -> None:
    world = serving()
    number, stamp = stamp_of(world, 140)
    lost(world)
    out = world.leader.handle(
        HistoryExamined("people", "t1", 2, number, stamp, {0: Place(145, 4)}, "", world.now)
    )
    assert [one for one in world.leader.handle(Tick(world.now + 1_000)) if isinstance(one, Broadcast)] == []
    before = len(world.broadcasts)
    world.take(out)
    world.tick()
    first = world.broadcasts[before]
    assert isinstance(first, StabilityTimestamp)
    assert (first.incarnation, first.timestamp.offsets()) == (1, {0: 140, 1: 61})
    world.progress(1, 143, 61)
    world.tick(2_500)
    assert stamps(world)[-1].timestamp.offsets() == {0: 143, 1: 61}


def reread(world: World, *acked: int) -> list[Instruction]:
    """Progress of a projector that has not met the ends since."""
    lines = [PartitionProgress(p, offset, 0, 500, 0, 1) for p, offset in enumerate(acked)]
    message = Progress("people", "p1", "t1", world.known().incarnation, lines, 0, {})
    return world.handle(Reported(message, world.now)) + world.tick(2_100)


def test_no_timestamp_falls_into_what_is_read_again_of_a_compacted_source() -> None:
    # (R27; partitions that lost nothing are read again too, from a timestamp that may be old.)
    world = serving()

    def sample(*ends: int) -> None:
        world.now += 1_000
        source = facts(ends, at=world.now, compacted=True, delete_retention_ms=10_000_000)
        world.handle(SourceSampled(source, "", world.now))

    def newest() -> dict[int, int]:
        return stamps(world)[-1].timestamp.offsets()

    sample(150, 62)
    lost(world, 0, 155)
    number, stamp = stamp_of(world, 130)
    examined(world, number, stamp, lost={0: Place(135, 4)})
    reread(world, 140, 61)
    assert newest() == {0: 130, 1: 60}  # the first look is not yet there
    sample(148, 66)
    reread(world, 148, 61)
    assert newest() == {0: 130, 1: 60}
    reread(world, 148, 64)
    sample(148, 67)
    assert newest() == {0: 130, 1: 60}
    reread(world, 148, 66)
    sample(148, 68)
    assert newest() == {0: 148, 1: 66}


def test_a_source_that_is_not_compacted_may_be_read_again_step_by_step() -> None:
    world = serving()
    world.handle(SourceSampled(facts((150, 62), at=world.now), "", world.now))
    lost(world, 0, 155)
    number, stamp = stamp_of(world, 130)
    examined(world, number, stamp, lost={0: Place(135, 4)})
    reread(world, 140, 61)
    assert stamps(world)[-1].timestamp.offsets() == {0: 140, 1: 61}


def test_it_is_shown() -> None:
    world = serving()
    lost(world)
    shown = views.stability(world.leader, world.now)["keyspaces"]["people"]
    assert (shown["issuing"], shown["last_rollback"], shown["rollbacks"]) == (False, None, 0)
    assert "its place is not on the log" in shown["examining"]
    number, stamp = stamp_of(world, 140)
    examined(world, number, stamp, lost={0: Place(145, 4)})
    shown = views.stability(world.leader, world.now)["keyspaces"]["people"]
    assert (shown["issuing"], shown["examining"], shown["rollbacks"], shown["incarnation"]) == (
        True,
        None,
        1,
        1,
    )
    last = shown["last_rollback"]
    assert (last["snapshot"], last["cause"], last["lost"]) == (
        number,
        "truncated",
        {"0": {"offset": 145, "epoch": 4}},
    )
    assert "rolled back (incarnation 1) to snapshot" in last["text"]
    assert world.notes[-1].kind == "rolled-back"
    assert b"keytide_rollbacks_total 1.0" in metrics.render(world.leader, world.now)


def test_reports_of_another_incarnation_do_not_count() -> None:
    world = serving()
    number, stamp = stamp_of(world, 140)
    lost(world)
    examined(world, number, stamp)
    world.tick()
    stream = world.leader.stability.streams["people"]
    void = stream.number - 1
    world.handle(Reported(Acknowledged("n1", "people", 0, stream.number, [("by_city-7", 0)]), world.now))
    assert world.leader.stability.acknowledgements.newest("n1", "by_city-7", 0) < void
    assert lost(world, incarnation=0) == []  # from before the rollback

    def beat(node: str, incarnation: int, *slices: int) -> None:
        statuses = [
            SliceStatus(
                "by_city-7",
                n,
                "LIVE",
                "",
                stamp,
                stream.number,
                -1,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                incarnation=incarnation,
            )
            for n in slices
        ]
        world.handle(Reported(NodeHeartbeat(node, "", 1, world.now, statuses, 0, 0, 0), world.now))

    beat("n1", 0, 0, 2)
    beat("n2", 0, 1)
    assert stream.published == {}
    # A slice that has not rolled back holds no timestamp of the new history, and none waits for it.
    assert not world.leader.stability.nodes.copy_serves("n1", "by_city-7", 0, 1)
    beat("n1", 1, 0, 2)
    beat("n2", 1, 1)
    assert stream.published == {"by_city-7": stream.number}
    last = world.broadcasts[-1]
    assert isinstance(last, Published)
    assert (last.incarnation, last.numbers) == (1, {"by_city-7": stream.number})


def test_a_timestamp_that_was_on_its_way_is_void() -> None:
    world = serving()
    world.progress(1, 170, 70)
    asked = world.leader.handle(Tick(world.now + 2_500))
    (question,) = [one for one in asked if isinstance(one, ConfirmTopic)]
    out = world.leader.handle(TopicSeen("people", question.ask, "t1", "", world.now + 2_501))
    told = [one.message for one in out if isinstance(one, Broadcast)]
    (stamp,) = [one for one in told if isinstance(one, StabilityTimestamp)]
    lost(world)
    number, before = stamp_of(world, 150)
    examined(world, number, before)
    world.handle(Issued(stamp, world.number + 1, world.now))
    stream = world.leader.stability.streams["people"]
    assert world.number + 1 not in stream.stamps
    assert stream.content == before


def test_the_newest_may_be_whole_and_what_lies_past_it_lost() -> None:
    world = serving()
    lost(world, 0, 155)
    number, stamp = stamp_of(world, 150)
    examined(world, number, stamp, lost={0: Place(152, 4)})
    assert (rollback(world).number, rollback(world).timestamp) == (number, stamp)


def test_a_topic_made_anew_begins_from_nothing() -> None:
    world = serving()
    world.now += 1_000
    (ask,) = world.handle(SourceSampled(facts((5, 5, 5), earliest=(0, 0, 0), topic_id="t2"), "", world.now))
    assert isinstance(ask, ExamineHistory)
    examined(world, -1, Timestamp(), topic_id="t2", partitions=3)
    record = rollback(world)
    assert (record.number, record.timestamp, record.cause) == (-1, Timestamp(), "recreated")
    keyspace = world.keyspace()
    assert (keyspace.topic_id, keyspace.partitions, keyspace.incarnation) == ("t2", 3, 1)
    assert world.index("by_city").state == "READY"
    world.tick()
    first = stamps(world)[-1]
    assert (first.incarnation, first.timestamp) == (1, Timestamp({}, "t2"))
    world.progress(1, 2, 3, 4)
    world.tick(2_500)  # writes how far timestamps may go; here that is heard of before a heartbeat goes out
    world.tick(1_000)
    assert stamps(world)[-1].timestamp.offsets() == {0: 2, 1: 3, 2: 4}
    world.now += 1_000
    source = facts((5, 5, 5), earliest=(0, 0, 0), topic_id="t2", at=world.now)
    assert world.handle(SourceSampled(source, "", world.now)) == []


def test_two_rollbacks_in_a_row() -> None:
    world = serving()
    number, stamp = stamp_of(world, 150)
    lost(world)
    examined(world, number, stamp)
    world.common(170, 80)
    first, stamp = stamp_of(world, 140)
    lost(world, 0, 170)
    world.tick(1_000)
    examined(world, first, stamp, lost={0: Place(141, 9)})
    assert (rollback(world, 2).number, world.keyspace().incarnation) == (first, 2)
    history = History.of(world.leader.dictionary.catalog, "people")
    assert history.limit(0) == history.limit(1) == stamp
    world.common(150, 62)
    world.common(160, 63)


# --- restarts -----------------------------------------------------------------------------------------------


def test_before_it_is_written_the_next_leader_begins_from_the_suspicion() -> None:
    world = serving()
    number, stamp = stamp_of(world, 140)
    lost(world)
    world.leader.handle(
        HistoryExamined("people", "t1", 2, number, stamp, {0: Place(145, 4)}, "", world.now)
    )  # it dies before the write
    other, _ = world.restart()
    assert other.known().incarnation == 0
    assert len(lost(other)) == 1


def test_after_it_is_written_the_next_leader_goes_on_from_it() -> None:
    world = serving()
    number, stamp = stamp_of(world, 140)
    lost(world)
    examined(world, number, stamp, lost={0: Place(145, 4)})
    other, _ = world.restart()
    stream = other.leader.stability.streams["people"]
    assert stream.stamps == {number: stamp}
    assert stream.content is None, "it cannot know what was issued since"
    # Void timestamps in the tail of the control topic do not count, those up to the cut and new ones do.
    void = StabilityTimestamp("people", 1, 0, Timestamp.of({0: 150, 1: 62}, "t1"), 0, 0)
    old = StabilityTimestamp("people", 1, 0, Timestamp.of({0: 130, 1: 60}, "t1"), 0, 0)
    new = StabilityTimestamp("people", 1, 1, Timestamp.of({0: 142, 1: 61}, "t1"), 0, 0)
    tail = ((number - 1, old), (number + 1, void), (number + 9, new))
    common = (
        Published("people", 1, 0, {"by_city-7": number + 1}),
        Published("people", 1, 0, {"by_city-7": number - 1}),
    )
    other, _ = world.restart(tail, common)
    stream = other.leader.stability.streams["people"]
    assert stream.content is not None
    assert stream.content.offsets() == {0: 142, 1: 61}
    assert number + 1 not in stream.stamps
    assert stream.published == {"by_city-7": number - 1}


# --- builds -------------------------------------------------------------------------------------------------


def test_a_build_under_way_begins_again() -> None:
    world = started(World())
    world.activate(1, 120, 40)
    lost(world)
    out = examined(world, -1, Timestamp(), lost={0: Place(90, 4)})
    assert StopDriver("b8") in out
    assert DeleteTopics((BACKFILL,)) in out
    assert world.build("b8").state == "CANCELLED"
    assert "lost records" in world.build("b8").error
    index = world.index("by_city")
    again = index.build
    assert again not in (None, "b8")
    assert (index.state, world.build(str(again)).attempt) == ("DEFERRED", 1)
    world.progress(2, 90, 40)
    assert DeleteTopics((MUTATIONS,), "by_city-7") in world.tick()
    world.handle(TopicsDeleted("by_city-7", world.now))
    assert [type(one) for one in world.tick()] == [PrepareBuild]
    assert world.prepared(str(again), facts((90, 50))) == [StartDriver(str(again))]
    assert world.build(str(again)).incarnation == 1


def test_an_index_that_was_ready_only_past_the_cut_is_built_again() -> None:
    # Between the end of the backfill, at 125, and 130 versions may have taken the place of ones that were
    # compacted before they were read: what the slices hold is no state of the source at 128 (R25).
    world = serving()
    lost(world)
    number, _ = stamp_of(world, 130)
    examined(world, number - 1, Timestamp.of({0: 128, 1: 60}, "t1"), lost={0: Place(128, 4)})
    index = world.index("by_city")
    assert index.state == "DEFERRED"
    assert index.build != "b8"
    assert world.build(str(index.build)).state == "QUEUED"
    assert world.build("b8").state == "READY"


def test_an_index_that_was_ready_before_the_cut_stays_as_it_is() -> None:
    world = serving()
    lost(world)
    number, stamp = stamp_of(world, 130)
    examined(world, number, stamp)
    assert (world.index("by_city").state, world.index("by_city").build) == ("READY", "b8")
    lost(world, topic_id="t2")
    examined(world, -1, Timestamp(), topic_id="t2")
    assert (world.index("by_city").state, world.index("by_city").build) == ("READY", "b8")
    world.now += 5_000
    lost(world)
    examined(world, 0, Timestamp.of({0: 1, 1: 1}, "t2"), topic_id="t2")  # (its build is of the topic before)
    assert (world.index("by_city").state, rollback(world, 3).timestamp.offset(0)) == ("READY", 1)


def test_what_was_prepared_before_a_rollback_is_prepared_again() -> None:
    world = serving()
    world.sql("CREATE INDEX other ON people (name) WITH (slices=1)")
    build = world.index("other").build
    assert build is not None
    assert [type(one) for one in world.tick()] == [PrepareBuild]
    lost(world)
    number, stamp = stamp_of(world, 150)
    examined(world, number, stamp)
    assert world.handle(BuildPrepared(build, facts((500, 500)), world.now)) == []
    assert world.build(build).state == "QUEUED"
    assert [type(one) for one in world.tick()] == [PrepareBuild]


def test_a_build_that_begins_again_too_often_fails() -> None:
    world = started(World(BuildLimits(restarts=0)))
    lost(world)
    examined(world, -1, Timestamp())
    assert (world.build("b8").state, world.index("by_city").state) == ("FAILED", "FAILED")
    assert "begun 1 times" in world.build("b8").error


def test_a_queued_build_is_prepared_again_when_its_sample_is_of_another_history() -> None:
    world = serving()
    world.sql("CREATE INDEX other ON people (name) WITH (slices=1)")
    build = world.index("other").build
    assert build is not None
    assert [type(one) for one in world.tick()] == [PrepareBuild]
    lost(world)
    number, stamp = stamp_of(world, 150)
    assert world.handle(BuildPrepared(build, facts((500, 500)), world.now)) == []  # while it is examined
    assert world.tick() == []
    assert "examination" in world.leader.builds.registry.run(build).waiting_for
    examined(world, number, stamp)
    assert [type(one) for one in world.tick()] == [PrepareBuild]
    world.prepared(build)
    assert world.build(build).incarnation == 1


def test_a_build_does_not_fail_by_what_the_examination_explains() -> None:
    world = started(World())
    assert world.driver("b8", "FAILED", error="offsets are gone") == []
    world.tick(1_000)
    (ask,) = world.handle(SourceSampled(facts(topic_id="t2"), "", world.now))
    assert isinstance(ask, ExamineHistory)
    assert world.tick(5_000) == []
    examined(world, -1, Timestamp(), topic_id="t2")
    assert world.index("by_city").state == "DEFERRED"
    assert world.index("by_city").build != "b8"


# --- looking ------------------------------------------------------------------------------------------------


def test_the_newest_timestamp_on_the_log_is_found_with_few_questions() -> None:
    log = {0: Place(100, 7), 1: Place(1_000, 7)}
    asked: list[Mapping[int, Place]] = []

    def ask(places: Mapping[int, Place]) -> dict[int, Place]:
        asked.append(places)
        return {p: log[p] for p, place in places.items() if place.offset > log[p].offset}

    candidates = [(number, Timestamp.of({0: number, 1: number + 500})) for number in range(400, 0, -1)]
    found = newest_on_log(candidates, {}, ask)
    assert (found.number, found.lost) == (100, {0: Place(100, 7)})
    assert len(asked) == 2
    whole = newest_on_log(candidates[320:], {1: Place(2_000, 1)}, ask)
    assert (whole.number, whole.lost) == (80, {1: Place(1_000, 7)})
    assert newest_on_log([(9, Timestamp.of({0: 101}))], {}, ask).number == -1


def test_what_a_deposed_leader_wrote_does_not_count() -> None:
    def stamp(term: int, end: int) -> StabilityTimestamp:
        return StabilityTimestamp("people", term, 0, Timestamp.of({0: end}, "t1"), 0, 0)

    told = [(1, stamp(1, 5)), (2, stamp(2, 6)), (3, stamp(1, 9)), (4, stamp(2, 7))]
    assert [number for number, _ in standing(told)] == [1, 2, 4]
    cut = RollbackRecord("people", 1, 2, Timestamp.of({0: 6}), "t1", "truncated", 0)
    history = History([cut], "t1", 1)
    assert [n for n, one in standing(told) if holds(one, n, "people", "t1", history)] == [1, 2]
    assert not holds(stamp(1, 5), 1, "people", "t2", history)
    assert not holds(stamp(1, 5), 1, "other", "t1", history)


# --- at random ----------------------------------------------------------------------------------------------


def test_at_random_contents_grow_within_an_incarnation_and_nothing_void_is_published() -> None:
    for seed in share.seeds(240):
        random_history(random.Random(seed))


def random_history(rng: random.Random) -> None:
    world = serving()
    log = [150, 62]
    asked = False
    acked = {("n1", 0, n) for n in world.places} | {("n2", 0, n) for n in world.places}
    ends = {0: log}
    for _ in range(100):
        world.now += rng.choice((1, 20, 250))
        pending: list[Instruction] = []
        match rng.randrange(7):
            case 0 | 1:
                log = [end + rng.randrange(4) for end in log]
                pending = world.progress(1, *log)
            case 2:
                node = rng.choice(("n1", "n2"))
                incarnation = rng.choice((world.known().incarnation, max(0, world.known().incarnation - 1)))
                known = sorted(world.leader.stability.streams["people"].stamps)
                number = rng.choice([*known[-3:], world.number])
                acked.add((node, incarnation, number))
                slices = [("by_city-7", n) for n in ((0, 2) if node == "n1" else (1,))]
                message = Acknowledged(node, "people", incarnation, number, slices)
                pending = world.handle(Reported(message, world.now))
            case 3 if rng.random() < 0.3:
                log = [max(0, end - rng.randrange(12)) for end in log]
                pending = lost(world, incarnation=rng.choice((world.known().incarnation, 0)))
            case 4 if rng.random() < 0.2:
                world, _ = recovered(world)
            case _:
                pending = world.handle(Tick(world.now))
        asked = asked or any(isinstance(one, ExamineHistory) for one in pending)
        if asked and rng.random() < 0.5:
            answer(world, log, rng)
            asked = False
        seen = ends.setdefault(world.known().incarnation, log)
        ends[world.known().incarnation] = [max(pair) for pair in zip(seen, log, strict=True)]
        check(world, acked, ends)


def recovered(world: World) -> tuple[World, list[Instruction]]:
    """The next leader, with what the control topic has."""
    common = tuple(one for one in world.broadcasts if isinstance(one, Published))
    other, out = world.restart(tuple(sorted(world.places.items())), common)
    other.node("n1", "n2")
    return other, out


def answer(world: World, log: list[int], rng: random.Random) -> None:
    known = sorted(world.leader.stability.streams["people"].stamps.items(), reverse=True)
    found = newest_on_log(
        known,
        {},
        lambda places: {p: Place(log[p], 9) for p, place in places.items() if place.offset > log[p]},
    )
    if rng.random() < 0.2:
        examined(world, -1, Timestamp(), topic_id="", error="away")
    else:
        examined(world, found.number, found.timestamp, lost=found.lost)


def check(world: World, acked: set[tuple[str, int, int]], ends: dict[int, list[int]]) -> None:
    history = History.of(world.leader.dictionary.catalog, "people")
    by_incarnation: dict[int, Timestamp] = {}
    where: dict[int, int] = {}
    for number, message in sorted(world.places.items()):
        last = by_incarnation.get(message.incarnation, Timestamp())
        assert message.timestamp.covers(last)
        by_incarnation[message.incarnation] = message.timestamp
        limit = Timestamp.of(dict(enumerate(ends[message.incarnation])))
        assert limit.covers(message.timestamp)  # nothing of an older history comes back
        where[number] = message.incarnation
    assert list(by_incarnation) == sorted(by_incarnation)
    for told in world.broadcasts:
        if isinstance(told, Published):
            assert all(where[number] <= told.incarnation for number in told.numbers.values())
    stream = world.leader.stability.streams["people"]
    for number in stream.published.values():
        assert history.number_holds(number, where[number])
        assert history.holds(world.places[number].timestamp, where[number])
        for node in ("n1", "n2"):
            assert any((node, i, number) in acked for i in range(where[number], history.incarnation + 1))


def test_a_rollback_is_confirmed_only_by_its_own_write() -> None:
    world = serving()
    number, stamp = stamp_of(world, 140)
    lost(world)
    world.leader.handle(HistoryExamined("people", "t1", 2, number, stamp, {0: Place(145, 4)}, "", world.now))
    world.leader.handle(RollbackWritten("people", 0, world.now))
    assert world.leader.stability.streams["people"].halted
    # A false alarm meanwhile does not set it free.
    world.handle(SourceSampled(facts((140, 61), at=world.now), "", world.now))
    world.now += 1_000
    world.handle(SourceSampled(facts((130, 61), at=world.now), "", world.now))
    examined(world, number, stamp)
    assert world.notes[-1].kind == "history-whole"
    assert world.leader.stability.streams["people"].halted
    assert world.leader.builds.registry.halted == {"people"}
    world.leader.handle(RollbackWritten("people", 1, world.now))
    assert not world.leader.stability.streams["people"].halted


def test_a_created_index_waits_for_the_new_topic() -> None:
    """Between the topic's making and its noticing a CREATE INDEX is refused with what happens next."""
    world = serving()
    with pytest.raises(ConflictError) as refused:
        world.sql(CREATE.replace("by_city", "other"), facts(topic_id="t2"))
    assert "in a moment" in refused.value.next_step
