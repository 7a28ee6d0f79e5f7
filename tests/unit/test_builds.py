"""Builds and statements, through the whole pure leader: each event, the instructions that it leads to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.builds.backfill import BEGIN_AGAIN
from coordinator.builds.registry import FINAL, TRANSITIONS, BuildLimits, BuildRun
from coordinator.catalog.dictionary import NoSuchIndexError
from coordinator.catalog.placement import TooFewNodesError, counts, place
from coordinator.catalog.registry import ConflictError
from coordinator.core.drivers import JOURNAL_LOST, NO_ROOM, NOT_STARTED, READ_LOST, SEED_UNFIT
from coordinator.core.events import DriverExited, PrepareFailed, Reported, SourceSampled, TopicsDeleted
from coordinator.core.instructions import (
    DeleteTopics,
    Instruction,
    Note,
    PrepareBuild,
    RemoveBuildFolder,
    SampleSource,
    SendEnds,
    StartDriver,
    StopDriver,
)
from coordinator.core.limits import CoreLimits
from coordinator.core.source_status import SourceStatus
from coordinator.leader import Leader
from coordinator.queues.orphaned_topics import orphans
from coordinator.statements.keyspaces import NoSuchKeyspaceError
from keytide.catalog.catalog import Catalog
from keytide.definition.statement import parse_statement
from keytide.errors import CallerError
from keytide.model.timestamp import Place, Timestamp
from keytide.model.topics import Topics
from keytide.wire.messages import QUEUE_UNAVAILABLE, BuildEnd, BuildProgress, PartitionProgress, Progress
from streaming.core.micro_batches import EXIT_JOURNAL_LOST, EXIT_READ_LOST, EXIT_SEED_UNFIT
from tests.unit.leader_world import BACKFILL, CREATE, MUTATIONS, World, backfilled, facts, started

MINUTE = 60_000


def test_the_transition_table_names_every_state_and_ends() -> None:
    states = set(TRANSITIONS)
    assert {to for ways in TRANSITIONS.values() for to in ways.values()} | {"QUEUED"} == states
    assert {"READY", "FAILED", "CANCELLED"} == FINAL
    for state in states - FINAL:
        assert {"fail", "cancel"} <= set(TRANSITIONS[state])


def test_a_new_leader_places_slices_when_it_has_heard_all_nodes() -> None:
    """Else all of them come to lie on the one that it happened to hear first."""
    world = World()
    world.node("n1", "n2")
    other, _ = world.restart()
    other.node("n2")
    other.sql(CREATE)
    assert other.tick() == []
    waits = other.leader.builds.registry.run(other.index("by_city").build or "").waiting_for
    assert waits == "word of n1, which this coordinator, that has begun to lead, has not heard yet"
    other.node("n1")
    assert [type(one) for one in other.tick()] == [PrepareBuild]
    assert other.tick() == []


def test_a_node_that_is_gone_is_not_waited_for_before_slices_are_placed() -> None:
    world = World()
    world.node("n1", "n2")
    other, _ = world.restart()
    for _ in range(40):
        other.tick(100)
        other.node("n2")
    other.sql(CREATE)
    assert [type(one) for one in other.tick()] == [PrepareBuild]


def test_a_build_from_create_to_ready() -> None:
    world = World()
    assert world.sql(CREATE) == []
    assert (world.index("by_city").state, world.index("by_city").build) == ("DEFERRED", "b8")
    assert world.tick() == []
    assert world.leader.builds.registry.run("b8").waiting_for == "indexer nodes: no indexer node is live"

    world.node("n1", "n2")
    assert world.tick() == [PrepareBuild("b8", "people", ((MUTATIONS, 3), (BACKFILL, 3)))]
    assert world.tick() == []
    assert world.keyspace().version == 0  # nothing says that it runs before its topics are there

    assert world.prepared("b8", facts((100, 50), earliest=(10, 0))) == [StartDriver("b8")]
    index, build = world.index("by_city"), world.build("b8")
    assert (index.state, index.version, index.placement) == ("BUILDING", 1, [["n1"], ["n2"], ["n1"]])
    assert world.keyspace().version == 1
    assert (build.state, build.load_timestamp.offsets(), build.documents_total) == (
        "BACKFILL",
        {0: 100, 1: 50},
        140,
    )

    world.activate(1, 120, 40)
    world.tick()
    assert world.build("b8").low_watermark == {0: 120, 1: 40}
    assert world.build("b8").documents_total == 160

    assert world.driver("b8", "RUNNING", 1, (100, 50), first_read_at=world.now) == []
    world.tick(1_100)
    assert (world.build("b8").batches, world.build("b8").documents_done) == (1, 140)
    assert world.driver("b8", "PASSED", 2, (125, 60)) == [SampleSource("people", "b8")]
    assert world.driver("b8", "PASSED", 2, (125, 60)) == []
    assert world.handle(DriverExited("b8", 0, "", world.now)) == []

    ends = SendEnds(tuple((BACKFILL, n, BuildEnd("b8", "by_city-7", n, 1, 2)) for n in range(3)))
    assert world.handle(SourceSampled(facts((150, 70), stable=(130, 60)), "b8", world.now)) == [ends]
    build = world.build("b8")
    assert (build.state, build.ended) == ("CATCHUP", True)
    assert build.final_timestamp is not None
    assert build.final_timestamp.offsets() == {0: 130, 1: 60}

    assert world.common(129, 60) == []  # past load and low-watermark, not past the end (R25)
    assert world.common(130, 60, nodes=("n1",)) == []  # not all slices
    assert world.common(131, 60) == [DeleteTopics((BACKFILL,)), RemoveBuildFolder("b8")]
    assert world.index("by_city").state == "READY"
    assert (world.build("b8").state, world.build("b8").finished_at) == ("READY", world.now)


def test_ready_needs_the_load_timestamp_even_when_the_final_one_is_below() -> None:
    """An aborted transaction at the end: the stable end can lie below the high watermark of the BUILD only
    while it is open."""
    world = started(World())
    world.activate(1, 0, 0)
    world.driver("b8", "PASSED", 1, (100, 50))
    world.handle(SourceSampled(facts((100, 50), stable=(90, 50)), "b8", world.now))
    assert world.common(95, 50) == []
    assert world.common(100, 50) != []


def test_the_driver_must_pass_the_low_watermark_of_every_partition() -> None:
    world = started(World())
    world.activate(1, 120)
    assert world.driver("b8", "PASSED", 2, (500, 399)) == []
    world.activate(1, 120, 400)
    assert world.driver("b8", "PASSED", 2, (500, 399)) == []
    assert world.driver("b8", "PASSED", 3, (500, 400)) == [SampleSource("people", "b8")]


def test_an_older_version_activates_nothing_and_the_first_word_counts() -> None:
    world = started(World())
    world.activate(0, 5, 5)
    world.activate(1, 120, 40)
    world.activate(1, 125, 45)
    world.tick()
    assert world.build("b8").low_watermark == {0: 120, 1: 40}


def test_topics_that_cannot_be_made_are_tried_again() -> None:
    world = World()
    world.sql(CREATE)
    world.node("n1")
    assert len(world.tick()) == 1
    assert world.handle(PrepareFailed("b8", "no broker", world.now)) == []
    assert isinstance(world.tick()[0], PrepareBuild)


# --- what the source can do to a build ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (facts((100, 50, 0), earliest=(0, 0, 0)), "had 2 partitions"),
        (facts(topic_id="", high=(), earliest=()), "does not exist any more; make it, and build again"),
        (facts(earliest=(31, 0)), "offsets 30 to 30 of partition 0 were deleted"),
        (facts(compacted=True, delete_retention_ms=1_000, at=9_000_000), "keeps tombstones"),
    ],
)
def test_a_build_that_can_never_be_right_fails_with_the_reason(later: SourceStatus, reason: str) -> None:
    world = started(World())
    world.driver("b8", "RUNNING", 1, (30, 20), first_read_at=world.now)
    assert world.handle(SourceSampled(facts(earliest=(30, 20)), "", world.now)) == []
    out = world.handle(SourceSampled(later, "", world.now))
    assert out == [StopDriver("b8"), DeleteTopics((BACKFILL,)), RemoveBuildFolder("b8")]
    assert world.build("b8").state == "FAILED"
    assert reason in world.build("b8").error
    assert (world.index("by_city").state, world.index("by_city").placement) == ("FAILED", [])
    assert reason in world.index("by_city").reason


def test_tombstones_are_safe_once_the_load_timestamp_is_reached() -> None:
    world = started(World())
    world.driver("b8", "RUNNING", 1, (100, 50), first_read_at=world.now)
    late = facts(compacted=True, delete_retention_ms=1_000, at=world.now + 5_000)
    assert world.handle(SourceSampled(late, "", world.now)) == []


def test_deleted_offsets_that_were_read_do_not_matter() -> None:
    world = started(World())
    world.driver("b8", "RUNNING", 1, (100, 20))
    assert world.handle(SourceSampled(facts(earliest=(100, 20)), "", world.now)) == []


def test_live_indexes_that_may_have_missed_tombstones_fail() -> None:
    world = backfilled(World())
    world.common(130, 60)

    def sample(end: int, **other: Any) -> list[Instruction]:
        source = facts((end, 60), at=world.now, compacted=True, delete_retention_ms=10_000, **other)
        return world.handle(SourceSampled(source, "", world.now))

    for step in range(1, 31):  # busy, never at the very end, but never far behind
        world.now += 1_000
        world.common(130 + 10 * (step - 1), 60)
        assert sample(130 + 10 * step) == []
    assert world.index("by_city").state == "READY"
    for _ in range(9):  # the projector is away
        world.now += 1_000
        assert sample(500) == []
    assert world.index("by_city").state == "READY"
    world.now += 5_000
    sample(500)
    assert world.index("by_city").state == "FAILED"
    assert "deletions may have been missed" in world.index("by_city").reason
    assert world.keyspace().version == 2


def suspended(world: World, version: int, index: str = "by_city") -> list[Instruction]:
    """A projector at a catalog version says that it sends nothing for an index any more."""
    partitions = [PartitionProgress(p, 0, 0, 0, world.now, version) for p in (0, 1)]
    skipped = {world.index(index).id: {QUEUE_UNAVAILABLE: 1}}
    return world.handle(Reported(Progress("people", "p1", "t1", 0, partitions, 0, skipped), world.now))


def test_an_index_that_a_projector_has_left_behind_fails() -> None:
    world = backfilled(World())
    world.common(130, 60)
    assert world.index("by_city").state == "READY"
    suspended(world, 1)
    assert world.index("by_city").state == "FAILED"
    assert "queue_unavailable_s" in world.index("by_city").reason
    assert world.keyspace().version == 2


def test_a_build_whose_index_a_projector_has_left_behind_fails() -> None:
    world = started(World())
    assert StopDriver("b8") in suspended(world, 1)
    assert (world.index("by_city").state, world.build("b8").state) == ("FAILED", "FAILED")
    suspended(world, 1)  # said again, as by every heartbeat
    assert world.keyspace().version == 2


def test_what_a_projector_says_of_an_earlier_build_does_not_count() -> None:
    world = started(World())
    suspended(world, 1)
    world.progress(2, 130, 60)
    world.tick()
    world.handle(TopicsDeleted("by_city-7", world.now))
    world.sql("BUILD INDEX ON people (by_city)")
    world.tick()
    again = world.index("by_city").build
    assert again is not None
    world.prepared(again)
    assert world.index("by_city").version == 3
    suspended(world, 2)
    assert world.index("by_city").state == "BUILDING"


def test_an_index_that_failed_after_it_was_ready_does_not_keep_its_build_from_its_end() -> None:
    world = World()
    world.sql(CREATE.replace("slices=3", "slices=1, defer_build=true"))
    world.sql("CREATE INDEX by_age ON people (age) WITH (slices=1, defer_build=true)")
    world.node("n1", "n2")
    world.sql("BUILD INDEX ON people (by_city, by_age)")
    build = world.index("by_city").build
    assert build is not None
    world.tick()
    world.prepared(build)
    world.activate(1, 100, 50)
    world.driver(build, "PASSED", 1, (100, 50))
    world.handle(SourceSampled(facts(), build, world.now))
    (node,) = world.index("by_city").placement[0]
    world.common(130, 60, nodes=(node,))
    assert (world.index("by_city").state, world.index("by_age").state) == ("READY", "BUILDING")
    suspended(world, 1)
    assert world.index("by_city").state == "FAILED"
    world.common(140, 60)
    assert (world.index("by_age").state, world.build(build).state) == ("READY", "READY")


def test_no_timestamp_falls_into_a_range_that_was_read_late() -> None:
    world = backfilled(World())
    world.common(130, 60)
    stream = world.leader.stability.streams["people"]

    def sample(end: int) -> None:
        source = facts((end, 60), at=world.now, compacted=True, delete_retention_ms=10_000_000)
        world.handle(SourceSampled(source, "", world.now))

    def acknowledged(end: int) -> dict[int, int]:
        """The newest timestamp when so much is acknowledged."""
        world.progress(1, end, 60)
        world.tick(2_500)
        assert stream.content is not None
        return stream.content.offsets()

    sample(130)
    assert acknowledged(140) == {0: 140, 1: 60}
    for end in (200, 300, 400):  # the projector is away
        sample(end)
        world.now += 6_000
    assert acknowledged(210) == {0: 140, 1: 60}  # it is back
    sample(500)
    assert acknowledged(399) == {0: 140, 1: 60}
    assert acknowledged(400) == {0: 400, 1: 60}
    sample(500)
    assert acknowledged(500) == {0: 500, 1: 60}


def looks_soon(world: World) -> bool:
    """A question of its own each time: type checkers take an attribute for unchanged."""
    return world.leader.looks_soon


@pytest.mark.parametrize("away_ms", [100, 60_000])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_new_leader_looks_at_the_source_before_it_issues_what_was_read_meanwhile(
    away_ms: int, compacted: bool
) -> None:
    """The whole cluster was away: projectors go on where they were, and the cleaner has worked meanwhile."""
    before = backfilled(World())
    before.common(130, 60)
    world, _ = before.restart(((before.number, before.places[before.number]),))
    stream = world.leader.stability.streams["people"]
    world.now += away_ms
    assert looks_soon(world)
    world.progress(1, 210, 60)
    world.tick(2_500)
    assert stream.content is not None
    assert stream.content.offsets() == {0: 130, 1: 60}
    source = facts((400, 60), at=world.now, compacted=compacted, delete_retention_ms=10_000_000)
    world.handle(SourceSampled(source, "", world.now))
    assert not looks_soon(world)
    world.tick(300)
    late = compacted and away_ms > 5_000
    assert stream.content.offsets() == {0: 130 if late else 210, 1: 60}
    world.progress(1, 400, 60)
    world.tick(300)
    assert stream.content.offsets() == {0: 400, 1: 60}


def test_a_quiet_compacted_topic_is_never_too_late() -> None:
    world = backfilled(World())
    world.common(130, 60)
    for _ in range(30):
        world.now += 1_000
        source = facts((130, 60), at=world.now, compacted=True, delete_retention_ms=2_000)
        assert world.handle(SourceSampled(source, "", world.now)) == []
    assert world.index("by_city").state == "READY"


def test_the_load_timestamp_is_the_end_behind_open_transactions() -> None:
    world = World()
    world.sql(CREATE)
    world.node("n1")
    world.tick()
    world.prepared("b8", facts((100, 50), stable=(80, 50)))
    assert world.build("b8").load_timestamp.offsets() == {0: 100, 1: 50}
    assert "partition 0 from offset 80" in world.leader.builds.registry.run("b8").waiting_for


def test_an_open_transaction_is_shown_and_waited_for_up_to_the_limit() -> None:
    world = started(World(BuildLimits(transaction_limit_ms=MINUTE)))
    held = facts((140, 50), stable=(80, 50))
    world.now += MINUTE // 2
    assert world.handle(SourceSampled(held, "", world.now)) == []
    assert world.leader.builds.registry.run("b8").waiting_for == (
        "open transactions of producers: partition 0 from offset 80"
    )
    above = facts((140, 50), stable=(100, 50))
    world.handle(SourceSampled(above, "", world.now))
    assert world.leader.builds.registry.run("b8").waiting_for == ""
    world.now += MINUTE
    assert StopDriver("b8") in world.handle(SourceSampled(held, "", world.now))
    assert "partition 0 from offset 80" in world.build("b8").error


# --- the driver ---------------------------------------------------------------------------------------------


def test_a_dead_driver_is_started_again_with_back_off_and_then_its_build_pauses() -> None:
    world = started(World(BuildLimits(restarts=3)))
    delays = [world.handle(DriverExited("b8", -9, "boom", world.now)) for _ in range(3)]
    assert delays == [[StartDriver("b8", 1_000)], [StartDriver("b8", 2_000)], [StartDriver("b8", 4_000)]]
    world.driver("b8", "RUNNING", 1, (30, 20))  # it got on: the count begins anew
    assert world.handle(DriverExited("b8", 1, "boom", world.now)) == [StartDriver("b8", 1_000)]
    for _ in range(2):
        world.handle(DriverExited("b8", 1, "boom", world.now))
    assert world.handle(DriverExited("b8", 1, "last words", world.now)) == [StopDriver("b8")]
    assert (world.build("b8").state, world.build("b8").error) == ("PAUSED", "")
    assert "last words" in world.build("b8").paused


def test_a_driver_that_never_began_did_not_end() -> None:
    world = started(World(BuildLimits(restarts=0)))
    full = DriverExited("b8", NOT_STARTED, "[Errno 122] Disk quota exceeded", world.now)
    assert world.handle(full) == [StopDriver("b8")]
    paused = world.build("b8").paused
    assert "it could not be started: [Errno 122] Disk quota exceeded" in paused
    assert "it ended" not in paused


def test_a_driver_that_knows_that_it_can_never_work_is_not_started_again() -> None:
    world = started(World())
    assert world.handle(DriverExited("b8", 3, "offsets are gone", world.now)) == []
    assert world.tick(2_000) == []  # it may be the first to see that the source has lost records
    assert StopDriver("b8") in world.tick(1_500)
    assert world.build("b8").error == "offsets are gone"
    other = started(World())
    assert other.driver("b8", "FAILED", error="data was lost") == []
    assert other.handle(DriverExited("b8", 1, "a trace", other.now)) == []
    assert StopDriver("b8") in other.tick(3_000)
    assert other.build("b8").error == "data was lost"


def test_a_driver_that_has_read_what_is_lost_has_its_build_begun_again() -> None:
    world = started(World())
    assert READ_LOST == EXIT_READ_LOST
    out = world.handle(DriverExited("b8", READ_LOST, "a trace", world.now))
    assert StopDriver("b8") in out
    assert world.build("b8").state == "CANCELLED"
    assert "records that the build has read" in world.build("b8").error
    (again,) = [one for one in world.leader.builds.registry.all() if one.state == "QUEUED"]
    assert (again.attempt, again.indexes) == (1, world.build("b8").indexes)
    assert world.build("b8").error.startswith(f"begun again as {again.id}: ")


def test_a_build_that_was_begun_too_often_fails_and_says_what_to_do() -> None:
    world = started(World(BuildLimits(restarts=0)))
    world.handle(DriverExited("b8", READ_LOST, "a trace", world.now))
    build = world.build("b8")
    assert build.state == "FAILED"
    assert build.error.startswith("it was begun 1 times; at last: the source lost records")
    assert build.error.endswith("build again")


def test_a_driver_without_its_journal_has_its_build_begun_again() -> None:
    world = started(World())
    exits = {EXIT_READ_LOST, EXIT_JOURNAL_LOST, EXIT_SEED_UNFIT}
    assert {READ_LOST, JOURNAL_LOST, SEED_UNFIT} == exits == set(BEGIN_AGAIN)
    world.handle(DriverExited("b8", JOURNAL_LOST, "a trace", world.now))
    assert (world.build("b8").state, world.index("by_city").state) == ("CANCELLED", "DEFERRED")
    assert "Kafka has lost its journal" in world.build("b8").error


def test_what_has_been_read_is_looked_for_when_the_driver_has_passed() -> None:
    """Its last report may come when the election that lost it was found harmless."""
    world = started(World())
    world.activate(1, 120, 40)
    read = Timestamp({0: Place(125, 3), 1: Place(60)}, "t1")
    asked = SampleSource("people", "b8", Timestamp({0: Place(125, 3)}, "t1"))
    assert world.driver("b8", "PASSED", 2, timestamp=read) == [asked]
    lost = SourceSampled(facts((150, 70)), "b8", world.now, {0: Place(110, 4)})
    assert StopDriver("b8") in world.handle(lost)
    assert world.build("b8").state == "CANCELLED"
    assert world.handle(lost) == [], "it is over"


def test_a_driver_without_room_has_its_build_pause_and_is_not_counted_as_dead() -> None:
    world = started(World(BuildLimits(restarts=1)))
    world.tick(6_000)
    for times in range(1, 5):
        assert world.handle(DriverExited("b8", NO_ROOM, "the disk is full", world.now)) == [StopDriver("b8")]
        build = world.build("b8")
        assert (build.state, build.paused, build.paused_by) == ("PAUSED", "the disk is full", "system")
        assert sum(note.kind == "build-paused" for note in world.notes) == times
        assert world.tick(4_000) == [], "not at once"
        assert world.tick(1_100) == [StartDriver("b8")]
        assert (world.build("b8").state, world.build("b8").paused) == ("BACKFILL", "")


def test_a_driver_that_ends_without_a_word_is_started_again() -> None:
    world = started(World())
    assert world.handle(DriverExited("b8", 0, "", world.now)) == []
    assert world.tick(5_000) == []
    assert world.tick(6_000) == [StartDriver("b8", 1_000)]


def test_reports_that_come_late_do_not_turn_progress_back() -> None:
    world = started(World())
    world.driver("b8", "RUNNING", 2, (60, 40))
    world.now -= 500
    world.driver("b8", "RUNNING", 1, (30, 20))
    world.now += 2_000
    world.tick()
    assert (world.build("b8").batches, world.build("b8").documents_done) == (2, 100)


def test_the_drivers_of_a_build_are_ordered_by_who_started_them_and_not_by_their_clocks() -> None:
    world = started(World())
    world.driver("b8", "RUNNING", 1, (30, 20), attempt=(1, 1))
    world.now -= 3_600_000  # of the machine on which another coordinator leads, or of this one, set back
    world.driver("b8", "RUNNING", 2, (60, 40), attempt=(1, 2))
    assert world.leader.builds.registry.get("b8").batches == 2
    world.driver("b8", "RUNNING", 3, (70, 40), attempt=(2, 1))
    assert world.leader.builds.registry.get("b8").batches == 3
    world.now += 7_200_000
    world.driver("b8", "FAILED", 3, (70, 40), attempt=(1, 9), error="what a deposed leader's driver says")
    assert not world.leader.builds.registry.run("b8").failing


def test_documents_within_a_micro_batch_are_the_drivers_count() -> None:
    world = started(World())
    message = BuildProgress("b8", "r1", "RUNNING", 0, Timestamp(), Timestamp(), 70, {}, "", world.now)
    world.handle(Reported(message, world.now))
    assert world.leader.builds.registry.get("b8").documents_done == 70
    message = msgspec.structs.replace(message, documents=999_999, sent_at=world.now + 1)
    world.handle(Reported(message, world.now))
    assert world.leader.builds.registry.get("b8").documents_done == 150


def test_rate_is_measured_over_a_window() -> None:
    run = BuildRun()
    run.count(0, 0)
    assert run.rate() == 0
    for second in range(1, 60):
        run.count(second * 1_000, second * 500)
    assert run.rate() == 500
    assert len(run.history) < 20


# --- limits and queueing ------------------------------------------------------------------------------------


def test_builds_wait_for_their_turn() -> None:
    world = World(BuildLimits(concurrent=2, concurrent_per_node=2))
    world.node("n1")
    for name in ("a", "b", "c"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1)")
    assert [type(one) for one in world.tick()] == [PrepareBuild, PrepareBuild]
    waiting = world.leader.builds.registry.run("b12").waiting_for
    assert waiting == "its turn: 2 builds run (setting build.concurrent)"
    world.prepared("b8")
    assert world.tick() == []
    world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert isinstance(world.tick()[0], PrepareBuild)


def test_one_build_per_node() -> None:
    world = World(BuildLimits(concurrent=5, concurrent_per_node=1))
    world.node("n1", "n2")
    for name in ("a", "b", "c"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1)")
    assert [one.build for one in world.tick() if isinstance(one, PrepareBuild)] == ["b8"]
    world.prepared("b8")
    # The second one's slice goes to the emptier node, where nothing is built; the third has to wait.
    assert [one.build for one in world.tick() if isinstance(one, PrepareBuild)] == ["b10"]
    assert "its turn on node n" in world.leader.builds.registry.run("b12").waiting_for


def test_catchup_does_not_hold_the_next_build_back() -> None:
    world = backfilled(World(BuildLimits(concurrent=1)))
    world.sql("CREATE INDEX other ON people (name) WITH (slices=1)")
    assert [type(one) for one in world.tick()] == [PrepareBuild]


# --- statements ---------------------------------------------------------------------------------------------


def test_create_refuses_what_cannot_be() -> None:
    world = World()
    with pytest.raises(NoSuchKeyspaceError, match="no topic 'people'") as missing:
        world.sql(CREATE, facts(topic_id="", high=(), earliest=()))
    assert "kafka-topics.sh" in missing.value.next_step
    assert world.written == {}
    with pytest.raises(NoSuchKeyspaceError, match="Keytide's own"):
        world.sql("CREATE INDEX x ON kt.control (a)")
    world.sql(CREATE)
    with pytest.raises(ConflictError, match="there is an index 'by_city'"):
        world.sql(CREATE)
    assert world.sql(CREATE.replace("INDEX by_city", "INDEX IF NOT EXISTS by_city")) == []
    assert [key for key in world.written if key.startswith("index/")] == ["index/by_city-7"]


def test_ids_are_never_reused_even_by_the_next_leader() -> None:
    world = World()
    world.sql("CREATE INDEX a ON people (a) WITH (defer_build=true)")
    world.sql("DROP INDEX a")
    world.sql("CREATE INDEX a ON people (a) WITH (defer_build=true)")
    assert world.index("a").id == "a-8"
    other, _ = world.restart()
    other.sql("CREATE INDEX b ON people (a) WITH (defer_build=true)")
    assert other.index("b").id == "b-1000"


def test_several_deferred_indexes_are_one_build() -> None:
    world = World()
    for name in ("a", "b"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1, defer_build=true)")
    assert world.tick() == []
    world.sql("BUILD INDEX ON people (a, b)")
    assert world.build("b9").indexes == ["a-7", "b-8"]
    world.node("n1")
    (prepare,) = world.tick()
    assert isinstance(prepare, PrepareBuild)
    assert len(prepare.topics) == 4
    world.prepared("b9")
    assert {world.index("a").version, world.index("b").version} == {1}


def test_build_refuses_what_cannot_be() -> None:
    world = backfilled(World())
    with pytest.raises(ConflictError, match="is in build b8, CATCHUP"):
        world.sql("BUILD INDEX ON people (by_city)")
    world.common(200, 200)
    with pytest.raises(ConflictError, match="is READY"):
        world.sql("BUILD INDEX ON people (by_city)")
    with pytest.raises(ConflictError, match="is on people, not on planes"):
        world.sql("BUILD INDEX ON planes (by_city)")
    with pytest.raises(NoSuchIndexError):
        world.sql("BUILD INDEX ON people (nothing)")


def test_drop_waits_until_projectors_have_let_go() -> None:
    world = backfilled(World())
    world.common(200, 200)
    assert world.sql("DROP INDEX by_city") == []
    assert (world.index("by_city").state, world.index("by_city").version) == ("DROPPING", 2)
    assert world.keyspace().version == 2
    with pytest.raises(NoSuchIndexError):
        world.sql("DROP INDEX by_city")
    assert world.sql("DROP INDEX IF EXISTS by_city") == []
    assert world.tick() == []
    world.handle(
        Reported(
            Progress("people", "p1", "t1", 0, [PartitionProgress(0, 200, 0, 200, world.now, 2)], 0, {}),
            world.now,
        )
    )
    assert world.tick() == []  # one partition is not all
    world.progress(2, 200, 200)
    assert world.tick() == [DeleteTopics((MUTATIONS,), "by_city-7")]
    assert world.tick() == []
    world.handle(TopicsDeleted("by_city-7", world.now))
    assert "index/by_city-7" not in world.written


def test_drop_does_not_wait_for_partitions_that_nobody_owns() -> None:
    world = backfilled(World())
    world.common(200, 200)
    world.sql("DROP INDEX by_city")
    assert world.tick() == []
    assert world.tick(10_000) == []
    assert world.tick(10_000) == [DeleteTopics((MUTATIONS,), "by_city-7")]


def test_dropping_an_index_that_was_never_built_is_immediate() -> None:
    world = World()
    world.sql("CREATE INDEX a ON people (a) WITH (defer_build=true)")
    assert world.sql("DROP INDEX a") == []
    assert "index/a-7" not in world.written


def test_dropping_an_index_under_build_cancels_and_the_others_begin_again() -> None:
    world = World()
    world.node("n1")
    for name in ("a", "b"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1, defer_build=true)")
    world.sql("BUILD INDEX ON people (a, b)")
    world.tick()
    world.prepared("b9")
    out = world.sql("DROP INDEX a")
    topics = ("kt.backfill.a-7.b9", "kt.backfill.b-8.b9")
    assert out == [StopDriver("b9"), DeleteTopics(topics), RemoveBuildFolder("b9")]
    assert (world.build("b9").state, world.build("b10").indexes) == ("CANCELLED", ["b-8"])
    assert world.build("b9").error == "index a was dropped"
    assert (world.index("a").state, world.index("b").state) == ("DROPPING", "DEFERRED")
    assert world.tick() == []
    assert world.leader.builds.registry.run("b10").waiting_for == "the removal of what an earlier build left"
    world.progress(2, 0, 0)
    assert world.tick() == [
        DeleteTopics(("kt.mutations.a-7",), "a-7"),
        DeleteTopics(("kt.mutations.b-8",), "b-8"),
    ]
    world.handle(TopicsDeleted("a-7", world.now))
    world.handle(TopicsDeleted("b-8", world.now))
    assert isinstance(world.tick()[0], PrepareBuild)


def test_the_others_begin_again_as_their_build_was_steered() -> None:
    world = World()
    world.node("n1")
    for name in ("a", "b"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1, defer_build=true)")
    world.take(world.leader.commands.build(["a", "b"], 0, world.now, verify=True).instructions)
    world.tick()
    world.prepared("b9")
    world.take(world.leader.commands.throttle("b9", 500, world.now).instructions)
    world.take(world.leader.commands.pause("b9", world.now).instructions)
    world.sql("DROP INDEX a")
    made = world.build("b10")
    assert (made.indexes, made.rate_limit, made.verify) == (["b-8"], 500, True)
    assert (made.paused, made.paused_by) == ("on request", "operator")


def test_an_index_that_leaves_a_build_leaves_no_queue_behind() -> None:
    world = World()
    world.node("n1")
    for name in ("a", "b"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1, defer_build=true)")
    world.sql("BUILD INDEX ON people (a, b)")
    world.tick()
    world.prepared("b9")
    world.activate(2, 100, 50)
    world.driver("b9", "PASSED", 1, (100, 50))
    world.handle(SourceSampled(facts(), "b9", world.now))
    assert world.build("b9").state == "CATCHUP"
    assert DeleteTopics(("kt.backfill.a-7.b9",)) in world.sql("DROP INDEX a")
    assert (world.build("b9").state, world.build("b9").indexes) == ("CATCHUP", ["b-8"])


def test_an_index_leaves_a_queued_build_alone() -> None:
    world = World()
    for name in ("a", "b"):
        world.sql(f"CREATE INDEX {name} ON people ({name}) WITH (slices=1, defer_build=true)")
    world.sql("BUILD INDEX ON people (a, b)")
    world.sql("DROP INDEX a")
    assert (world.build("b9").state, world.build("b9").indexes) == ("QUEUED", ["b-8"])


def test_cancel_makes_indexes_deferred_and_free_to_be_built_again() -> None:
    world = started(World())
    out = world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert [one for one in out if not isinstance(one, Note)] == [
        StopDriver("b8"),
        DeleteTopics((BACKFILL,)),
        RemoveBuildFolder("b8"),
    ]
    assert (world.index("by_city").state, world.index("by_city").placement) == ("DEFERRED", [])
    assert world.build("b8").error == "on request"
    with pytest.raises(ConflictError, match="is over"):
        world.leader.commands.cancel("b8", world.now)
    world.progress(2, 0, 0)
    assert world.tick() == [DeleteTopics((MUTATIONS,), "by_city-7")]
    world.handle(TopicsDeleted("by_city-7", world.now))
    assert world.index("by_city").version == 0
    world.sql("BUILD INDEX ON people (by_city)")
    assert isinstance(world.tick()[0], PrepareBuild)


def test_cancel_while_topics_are_being_made() -> None:
    world = World()
    world.sql(CREATE)
    world.node("n1")
    world.tick()
    out = world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert DeleteTopics((MUTATIONS,), "by_city-7") in out
    assert world.prepared("b8") == []
    assert world.build("b8").state == "CANCELLED"


# --- restarts -----------------------------------------------------------------------------------------------


def test_a_restart_in_backfill_starts_the_driver_again_and_keeps_what_was_known() -> None:
    world = started(World())
    world.activate(1, 120, 40)
    world.driver("b8", "RUNNING", 1, (30, 20))
    world.tick(1_100)
    other, out = world.restart()
    assert out == [StartDriver("b8")]
    build = other.leader.builds.registry.get("b8")
    assert (build.low_watermark, build.batches, build.documents_done) == ({0: 120, 1: 40}, 1, 50)
    assert other.driver("b8", "PASSED", 2, (125, 60)) == [SampleSource("people", "b8")]


def test_a_restart_in_catchup_sends_the_end_again_and_gets_ready() -> None:
    world = backfilled(World())
    other, out = world.restart()
    ends = SendEnds(tuple((BACKFILL, n, BuildEnd("b8", "by_city-7", n, 1, 2)) for n in range(3)))
    assert out == [ends]
    other.node("n1", "n2")
    other.handle(SourceSampled(facts((130, 60)), "", other.now))
    assert RemoveBuildFolder("b8") in other.common(130, 60)
    assert other.index("by_city").state == "READY"


def test_a_restart_while_queued_or_dropping_goes_on() -> None:
    world = World()
    world.sql(CREATE)
    other, out = world.restart()
    assert out == []
    other.node("n1")
    assert isinstance(other.tick()[0], PrepareBuild)
    dropping = backfilled(World())
    dropping.sql("DROP INDEX by_city")
    other, _ = dropping.restart()
    other.progress(2, 0, 0)
    assert other.tick() == [DeleteTopics((MUTATIONS,), "by_city-7")]


def test_topics_that_nobody_needs_are_found_at_the_start_of_a_term() -> None:
    world = started(World())
    catalog = world.leader.dictionary.catalog
    catalog.apply("index/old-3", None, catalog.offset)
    catalog.apply("build/b2", None, catalog.offset)
    others = ["kt.metadata", "kt.mutations.old-3", "kt.backfill.by_city-7.b2", "people", "ktx.mutations.a-1"]
    found = orphans(catalog, "kt", [MUTATIONS, BACKFILL, *others])
    assert found.own == ["kt.backfill.by_city-7.b2", "kt.mutations.old-3"]
    assert orphans(catalog.copy(), "kt", others).own == found.own
    assert found.foreign == []
    world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert orphans(catalog, "kt", [MUTATIONS, BACKFILL]).own == [BACKFILL]  # projectors still write there


@pytest.mark.parametrize("other", ["kt.mutations", "kt.backfill"])
def test_the_topics_of_a_cluster_whose_name_begins_alike_are_left_alone(other: str) -> None:
    catalog = started(World()).leader.dictionary.catalog
    names = Topics(other)
    topics = [names.metadata, names.control, names.reports]
    topics += [names.mutations("by_city-7"), names.backfill("by_city-7", "b8"), names.mutations("a-99")]
    topics += [f"{other}.orders", f"{other}.by_city-7.b99", f"{other}."]
    assert orphans(catalog, "kt", topics) == ([], sorted(topics))


def test_no_queue_has_a_name_that_another_clusters_queue_may_have() -> None:
    """Index `mutations.x` of cluster `kt` and index `x` of cluster `kt.mutations` would share a topic."""
    for name in ("mutations.x", "backfill.x"):
        with pytest.raises(CallerError, match="would have the name of one of a cluster kt") as caught:
            World().sql(f"CREATE INDEX {name} ON people (a)")
        assert caught.value.status == 422
    assert World().sql("CREATE INDEX mutations ON people (a) WITH (defer_build=true)") == []


def test_names_that_make_topics_too_long_are_refused() -> None:
    catalog = Catalog()
    leader = Leader(catalog, "c" * 120, 1, CoreLimits(), BuildLimits())
    for length, fits in ((96, True), (97, False)):
        statement = parse_statement(f"CREATE INDEX {'i' * length} ON people (a) WITH (defer_build=true)")
        if fits:
            leader.commands.execute(statement, facts(), 1)
            names = Topics("c" * 120).backfill("i" * length + "-9999999999", "b9999999999")
            assert len(names) == 249
        else:
            with pytest.raises(CallerError, match="too long by 1 characters"):
                leader.commands.execute(statement, facts(), 1)


def test_old_finished_builds_are_forgotten() -> None:
    world = World()
    world.sql("CREATE INDEX a ON people (a) WITH (defer_build=true)")
    made, forgotten = list[str](), list[str]()
    for _ in range(60):
        answer = world.leader.commands.build(["a"], 0, world.now)
        world.take(answer.instructions)
        assert answer.build is not None
        made.append(answer.build.id)
        out = world.take(world.leader.commands.cancel(made[-1], world.now).instructions)
        assert RemoveBuildFolder(made[-1]) in out
        forgotten += [one.build for one in out if isinstance(one, RemoveBuildFolder) and one.forgotten]
    kept = [key.removeprefix("build/") for key in world.written if key.startswith("build/")]
    assert len(kept) <= 51
    assert sorted(kept + forgotten) == sorted(made), "with their folders"


# --- placement ----------------------------------------------------------------------------------------------


def test_placement_is_balanced_over_what_is_there() -> None:
    load, zones = {"a": 0, "b": 0, "c": 0}, {"a": "a", "b": "b", "c": "c"}
    assert place(4, 0, load, zones) == [["a"], ["b"], ["c"], ["a"]]
    assert place(2, 0, load, zones) == [["b"], ["c"]]
    # What one node has too much of is shared by all, however few slices one has so far.
    load = {"a": 0, "b": 9, "c": 9}
    assert place(5, 0, load, zones, spread=(1, 3, 1)) == [["a"], ["a"], ["b"], ["c"], ["a"]]
    assert place(2, 1, {"a": 5, "b": 0, "c": 0}, zones) == [["b", "c"], ["b", "c"]]


def test_placement_needs_a_node_per_replica() -> None:
    with pytest.raises(TooFewNodesError, match="no indexer node is live"):
        place(1, 0, {}, {})
    with pytest.raises(TooFewNodesError, match="only 1 indexer node"):
        place(1, 1, {"a": 0}, {"a": "a"})


def test_only_slices_that_are_in_use_count() -> None:
    world = started(World())
    assert counts(["n1", "n2", "n3"], world.leader.dictionary.catalog.indexes()) == {
        "n1": 2,
        "n2": 1,
        "n3": 0,
    }
