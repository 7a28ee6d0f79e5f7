"""Builds that pause and go on: every way into a pause and out of it, and a restart in each."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.builds.registry import BuildLimits, NoSuchBuildError
from coordinator.catalog.registry import ConflictError
from coordinator.core.events import DriverExited, Reported, RoomSeen, SourceAway, SourceSampled
from coordinator.core.failure_detector import SILENT_MS, START_MS
from coordinator.core.instructions import (
    Instruction,
    Note,
    PrepareBuild,
    SampleSource,
    StartDriver,
    StopDriver,
)
from coordinator.http import metrics
from coordinator.views import views
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import NodeHeartbeat, SliceStatus
from tests.unit.leader_world import CREATE, World, backfilled, facts, started

SECOND = 1_000
MINUTE = 60 * SECOND
MIB = 1 << 20


def steer(world: World, what: str, *more: Any) -> list[Instruction]:
    """Pause, resume or throttle build b8; what follows, notes left out."""
    answer = getattr(world.leader.commands, what)("b8", *more, world.now)
    return [one for one in world.take(answer.instructions) if not isinstance(one, Note)]


def state(world: World) -> tuple[str, str, str, str]:
    """Of build b8 as written: its state, who has it pause, why; and the state of its index."""
    build = world.build("b8")
    return build.state, build.paused_by, build.paused, world.index("by_city").state


def shown(world: World) -> dict[str, Any]:
    return views.build(world.leader, world.leader.builds.registry.get("b8"), world.now)


RUNS = ("BACKFILL", "", "", "BUILDING")
BY_HAND = ("PAUSED", "operator", "on request", "PAUSED")


# --- on request ---------------------------------------------------------------------------------------------


def test_a_pause_stops_the_driver_and_lasts_until_it_is_ended() -> None:
    world = started(World())
    world.activate(1, 120, 40)
    world.driver("b8", "RUNNING", 1, (30, 20))
    assert steer(world, "pause") == [StopDriver("b8")]
    assert state(world) == BY_HAND
    assert steer(world, "pause") == [], "once is enough"
    assert world.handle(DriverExited("b8", 143, "", world.now)) == []
    assert world.driver("b8", "PASSED", 2, (125, 60)) == [], "the last word of a driver that was stopped"
    for _ in range(20):
        assert world.tick(MINUTE) == []
    assert steer(world, "resume") == [StartDriver("b8")]
    assert state(world) == RUNS
    assert steer(world, "resume") == []
    assert world.driver("b8", "PASSED", 2, (125, 60)) == [SampleSource("people", "b8", Timestamp())]
    assert [note.kind for note in world.notes if note.kind.startswith("build-")] == [
        "build-started",
        "build-paused",
        "build-resumed",
    ]


def test_what_a_pause_throws_away_is_not_shown_as_done() -> None:
    world = started(World())
    world.activate(1, 120, 40)
    world.driver("b8", "RUNNING", 1, (30, 20), documents=100, bytes=1_000)
    assert (shown(world)["documents_done"], shown(world)["bytes_done"]) == (100, 1_000)
    steer(world, "pause")
    assert (shown(world)["documents_done"], shown(world)["bytes_done"]) == (50, 500)


def test_a_pause_while_the_end_is_looked_up_is_no_end() -> None:
    world = started(World())
    world.activate(1, 120, 40)
    assert world.driver("b8", "PASSED", 2, (125, 60)) != []
    steer(world, "pause")
    assert world.handle(SourceSampled(facts((130, 60)), "b8", world.now)) == []
    assert state(world) == BY_HAND
    assert steer(world, "resume") == [StartDriver("b8")]
    assert world.driver("b8", "PASSED", 2, (125, 60)) != [], "the end is looked up again"


def test_a_restart_leaves_a_pause_on_request_alone() -> None:
    world = started(World())
    steer(world, "pause")
    other, out = world.restart()
    assert out == []
    other.node("n1", "n2")
    for _ in range(20):
        assert other.tick(MINUTE) == []
    assert state(other) == BY_HAND
    assert steer(other, "resume") == [StartDriver("b8")]


def test_a_build_that_waits_for_its_turn_does_not_start_while_it_pauses() -> None:
    world = World()
    world.sql(CREATE)
    steer(world, "pause")
    world.node("n1", "n2")
    assert world.tick() == []
    assert "keytide build resume b8" in shown(world)["waiting_for"]
    assert state(world) == ("QUEUED", "operator", "on request", "DEFERRED")
    other, _ = world.restart()
    other.node("n1", "n2")
    assert later(other, 10 * SECOND) == []
    steer(other, "resume")
    assert isinstance(other.tick()[0], PrepareBuild)


def test_a_pause_while_topics_are_made_holds() -> None:
    world = World()
    world.sql(CREATE)
    world.node("n1", "n2")
    assert isinstance(world.tick()[0], PrepareBuild)
    steer(world, "pause")
    assert world.prepared("b8") == []
    assert world.tick() == []
    steer(world, "resume")
    assert isinstance(world.tick()[0], PrepareBuild)
    assert world.prepared("b8") == [StartDriver("b8")]


def test_what_cannot_be_steered_any_more_is_refused() -> None:
    world = backfilled(World())
    for what, more in (("pause", ()), ("resume", ()), ("throttle", (5,))):
        with pytest.raises(ConflictError) as caught:
            steer(world, what, *more)
        assert (caught.value.problem_type, caught.value.status) == ("build-has-read", 409)
        assert caught.value.next_step
    world.take(world.leader.commands.cancel("b8", world.now).instructions)
    for what, more in (("pause", ()), ("resume", ()), ("throttle", (5,))):
        with pytest.raises(ConflictError) as caught:
            steer(world, what, *more)
        assert caught.value.problem_type == "build-over"
        with pytest.raises(NoSuchBuildError):
            getattr(world.leader.commands, what)("b99", *more, world.now)


def test_a_paused_build_can_be_cancelled_dropped_and_fail() -> None:
    world = started(World())
    steer(world, "pause")
    out = world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert StopDriver("b8") in out
    assert (world.build("b8").state, world.build("b8").paused) == ("CANCELLED", "")
    assert world.index("by_city").state == "DEFERRED"

    world = started(World())
    steer(world, "pause")
    world.sql("DROP INDEX by_city")
    assert world.build("b8").state == "CANCELLED"
    assert world.index("by_city").state == "DROPPING"

    world = started(World())
    steer(world, "pause")
    world.handle(SourceSampled(facts((100, 50), earliest=(60, 0)), "", world.now))
    assert (world.build("b8").state, world.index("by_city").state) == ("FAILED", "FAILED")


def test_a_pause_counts_for_tombstones() -> None:
    world = started(World())
    world.driver("b8", "RUNNING", 1, (30, 20), first_read_at=world.now)
    steer(world, "pause")
    world.now += 3 * MINUTE
    keeps = facts((100, 50), compacted=True, delete_retention_ms=2 * MINUTE, at=world.now)
    world.handle(SourceSampled(keeps, "", world.now))
    assert world.build("b8").state == "FAILED"
    assert "tombstones" in world.build("b8").error


def test_a_build_that_begins_again_while_it_pauses_still_pauses() -> None:
    world = started(World())
    steer(world, "pause")
    world.take(world.leader.builds.begin_again(world.build("b8"), "a slice lost it", world.now))
    world.tick()
    (again,) = [one for one in world.leader.builds.registry.all() if one.state == "QUEUED"]
    assert (again.paused, again.paused_by) == ("on request", "operator")


def test_a_new_rate_is_written_and_kept() -> None:
    world = started(World())
    assert steer(world, "throttle", 500) == []
    assert (world.build("b8").rate_limit, shown(world)["rate_limit"]) == (500, 500)
    world.driver("b8", "RUNNING", 1, (30, 20))
    world.tick(2 * SECOND)
    assert world.build("b8").rate_limit == 500, "reports do not bring the old one back"
    steer(world, "throttle", 0)
    assert (world.build("b8").rate_limit, shown(world)["rate_limit"]) == (0, None)


# --- by itself ----------------------------------------------------------------------------------------------


def heartbeat(world: World, node: str, free: int, slices: list[SliceStatus] | None = None) -> None:
    message = NodeHeartbeat(node, f"http://{node}", 1, world.now, slices or [], 0, free, 0)
    world.handle(Reported(message, world.now))


def later(world: World, ms: int, free: int = 1 << 40) -> list[Instruction]:
    """Time passes while both nodes live."""
    out: list[Instruction] = []
    for _ in range(ms // SECOND):
        for node in ("n1", "n2"):
            heartbeat(world, node, free)
        out += world.tick(SECOND)
    return out


def test_a_full_disk_of_the_drivers_has_builds_pause_and_room_resumes_them() -> None:
    world = started(World(BuildLimits(driver_disk_bytes=100 * MIB)))
    assert world.handle(RoomSeen("/d/builds", 100 * MIB, world.now)) == []
    assert world.tick() == []
    world.handle(RoomSeen("/d/builds", 99 * MIB, world.now))
    assert world.tick() == [StopDriver("b8")]
    assert state(world)[:2] == ("PAUSED", "system")
    assert "the disk of /d/builds is full: 99 MiB left, 100 are needed" in world.build("b8").paused
    assert world.index("by_city").state == "PAUSED"
    world.handle(RoomSeen("/d/builds", 110 * MIB, world.now))
    assert world.tick(MINUTE) == [], "a quarter more, or it would flutter"
    world.handle(RoomSeen("/d/builds", 125 * MIB, world.now))
    assert world.tick() == [StartDriver("b8")]
    assert state(world) == RUNS


def test_a_disk_that_one_micro_batch_fills_is_tried_later_and_later() -> None:
    world = started(World(BuildLimits(driver_disk_bytes=100 * MIB)))

    def fills() -> int:
        """The driver's shuffle files fill the disk, and go with it; seconds until it runs again."""
        world.handle(RoomSeen("/d/builds", MIB, world.now))
        assert world.tick() == [StopDriver("b8")]
        world.handle(RoomSeen("/d/builds", 1 << 40, world.now))
        since = world.now
        while not (out := later(world, SECOND)):
            assert world.now - since < 10 * MINUTE
        assert out == [StartDriver("b8")]
        return round((world.now - since) / SECOND)

    assert fills() == 5
    assert [fills() for _ in range(7)] == [10, 20, 40, 80, 160, 300, 300]
    world.driver("b8", "RUNNING", 1, (30, 20))
    assert fills() == 5, "it got on"
    assert fills() == 10
    world.handle(RoomSeen("/d/builds", MIB, world.now))
    world.tick()
    assert "no micro-batch was finished since the last time" in world.build("b8").paused
    world.handle(RoomSeen("/d/builds", 1 << 40, world.now))
    assert steer(world, "resume") == [StartDriver("b8")], "somebody who has mended it need not wait"
    assert fills() == 5


def test_a_node_without_room_has_the_builds_pause_that_fill_it() -> None:
    world = started(World(BuildLimits(node_disk_bytes=100 * MIB)))
    later(world, 6 * SECOND)
    heartbeat(world, "n3", 0)
    assert world.tick() == [], "it has none of its slices"
    heartbeat(world, "n2", 99 * MIB)
    assert world.tick() == [StopDriver("b8")]
    assert "the disk of node n2 is full" in shown(world)["paused"]
    assert later(world, 10 * SECOND, 110 * MIB) == []
    assert later(world, 2 * SECOND, 125 * MIB) == [StartDriver("b8")]


def test_a_build_does_not_begin_where_there_is_no_room() -> None:
    world = World(BuildLimits(driver_disk_bytes=100 * MIB))
    world.sql(CREATE)
    world.node("n1", "n2")
    world.handle(RoomSeen("/d/builds", MIB, world.now))
    assert world.tick() == []
    assert "the disk of /d/builds is full" in shown(world)["waiting_for"]
    world.handle(RoomSeen("/d/builds", 100 * MIB, world.now))
    assert isinstance(world.tick()[0], PrepareBuild)


def test_kafka_away_has_builds_pause_and_its_answer_resumes_them() -> None:
    world = started(World(BuildLimits(away_ms=10 * SECOND)))
    away_since = world.now
    for _ in range(9):
        world.handle(SourceAway("people", "no broker answers", world.now, world.now))
        assert later(world, SECOND) == [], "drivers sit a moment out"
    world.handle(SourceAway("people", "no broker answers", world.now, world.now))
    assert later(world, 2 * SECOND) == [StopDriver("b8")]
    assert world.now - away_since < 15 * SECOND
    assert "Kafka does not answer: no broker answers" in world.build("b8").paused
    assert later(world, MINUTE) == []
    world.handle(SourceSampled(facts((100, 50)), "", world.now))
    assert later(world, SECOND) == [StartDriver("b8")]
    assert state(world) == RUNS


def test_spark_that_is_lost_is_tried_again_later_and_later() -> None:
    world = started(World(BuildLimits(restarts=1, spark_pause_ms=10 * SECOND)))
    assert world.handle(DriverExited("b8", 1, "boom", world.now)) == [StartDriver("b8", 1_000)]
    waited = []
    for _ in range(7):
        assert world.handle(DriverExited("b8", 1, "no master", world.now)) == [StopDriver("b8")]
        assert state(world)[:2] == ("PAUSED", "system")
        assert "no master" in world.build("b8").paused
        since = world.now
        while not (out := later(world, SECOND)):
            assert world.now - since < 10 * MINUTE
        assert out == [StartDriver("b8")]
        waited.append(round((world.now - since) / SECOND))
    assert waited == [10, 20, 40, 80, 160, 300, 300]
    world.handle(DriverExited("b8", 1, "no master", world.now))
    assert steer(world, "resume") == [StartDriver("b8")], "somebody who has mended it need not wait"
    assert world.handle(DriverExited("b8", 1, "boom", world.now)) == [StartDriver("b8", 1_000)]
    world.driver("b8", "RUNNING", 1, (30, 20))  # it got on: the count begins anew
    assert world.handle(DriverExited("b8", 1, "boom", world.now)) == [StartDriver("b8", 1_000)]


def silence(world: World, at_most: int = 10 * MINUTE) -> tuple[int, list[Instruction]]:
    """Nodes are heard, the driver is not: after how many ms something follows, and what."""
    since = world.now
    while not (out := later(world, SECOND)) and world.now - since < at_most:
        pass
    return world.now - since, out


def test_a_driver_that_stands_still_is_given_up_as_one_that_died() -> None:
    world = started(World(BuildLimits(restarts=1)))
    for _ in range(5):
        later(world, SECOND)
        world.driver("b8", "RUNNING", 0, (0, 0))
    later(world, START_MS)
    for _ in range(5 * 60):
        world.driver("b8", "RUNNING", 0, (0, 0))
        assert later(world, SECOND) == [], "it does nothing, but it lives"
    world.driver("b8", "RUNNING", 0, (0, 0))
    waited, out = silence(world)
    assert out == [StopDriver("b8"), StartDriver("b8", 1_000)]
    assert waited == SILENT_MS
    assert "said nothing for 60 s" in world.notes[-1].text
    waited, out = silence(world)
    assert out[0] == StopDriver("b8")
    assert waited == START_MS + 1_000 + SILENT_MS, "it is just being started"
    assert state(world)[:2] == ("PAUSED", "system")
    assert "Spark is lost" in world.build("b8").paused


def test_the_last_word_of_a_driver_does_not_hurry_the_next_one() -> None:
    world = started(World())
    later(world, SECOND)
    world.handle(DriverExited("b8", -9, "boom", world.now))
    world.driver("b8", "RUNNING", 0, (0, 0))
    assert silence(world)[0] == START_MS + 1_000 + SILENT_MS


def test_silence_of_all_is_no_drivers_silence() -> None:
    world = started(World())
    later(world, START_MS)
    world.driver("b8", "RUNNING", 0, (0, 0))
    for _ in range(600):
        assert world.tick(SECOND) == [], "Kafka is away"
    for _ in range(SILENT_MS // SECOND - 5):
        world.now += MINUTE
        assert later(world, SECOND) == [], "the coordinator itself stands still again and again"
    assert silence(world)[1] == [StopDriver("b8"), StartDriver("b8", 1_000)]


def test_a_driver_that_has_ended_or_pauses_is_not_missed() -> None:
    world = started(World())
    world.activate(1, 120, 40)
    assert world.driver("b8", "PASSED", 2, (125, 60)) != []
    assert silence(world)[1] == [], "the end is being looked up"
    steer(world, "pause")
    assert silence(world)[1] == []
    steer(world, "resume")
    later(world, SECOND)
    assert silence(world)[0] == START_MS + SILENT_MS


def test_slices_that_do_not_keep_up_are_waited_for() -> None:
    world = started(World(BuildLimits(batches_ahead=4)))
    later(world, 6 * SECOND)

    def slice_at(batch: int) -> None:
        status = SliceStatus(
            "by_city-7", 1, "BUILDING", "", Timestamp(), -1, batch, 0, 0, 0, 0, 0, 0, 0, "b8"
        )
        heartbeat(world, "n2", 1 << 40, [status])

    world.driver("b8", "RUNNING", 10, (30, 20))
    slice_at(5)
    assert world.tick() == []
    slice_at(4)
    assert world.tick() == [StopDriver("b8")]
    assert "slice 1 of by_city-7 on node n2 is 5 micro-batches behind" in world.build("b8").paused
    for _ in range(6):
        slice_at(6)
        assert world.tick(SECOND) == []
    slice_at(7)
    assert world.tick() == [StartDriver("b8")]


def test_the_operators_pause_outlasts_the_systems() -> None:
    world = started(World(BuildLimits(driver_disk_bytes=100 * MIB)))
    world.handle(RoomSeen("/d/builds", MIB, world.now))
    world.tick()
    steer(world, "pause")
    assert state(world) == BY_HAND
    world.handle(RoomSeen("/d/builds", 1 << 40, world.now))
    assert world.tick(MINUTE) == []
    world.handle(RoomSeen("/d/builds", MIB, world.now))
    assert steer(world, "resume") == [], "it pauses by itself now"
    assert state(world)[:2] == ("PAUSED", "system")
    world.handle(RoomSeen("/d/builds", 1 << 40, world.now))
    assert world.tick(MINUTE) == [StartDriver("b8")]


def test_after_a_restart_the_systems_pause_ends_when_everything_was_looked_at() -> None:
    world = started(World(BuildLimits(node_disk_bytes=100 * MIB)))
    heartbeat(world, "n2", MIB)
    world.tick()
    other, out = world.restart()
    assert out == []
    assert other.tick() == []
    heartbeat(other, "n2", MIB)
    assert other.tick(2 * SECOND) == []
    assert later(other, 8 * SECOND, MIB) == []
    assert later(other, SECOND) == [StartDriver("b8")]
    assert state(other) == RUNS


def test_a_build_that_is_resumed_waits_for_its_turn() -> None:
    world = started(World(BuildLimits(concurrent=1)))
    steer(world, "pause")
    world.sql("CREATE INDEX other ON people (other)")
    assert isinstance(later(world, SECOND)[0], PrepareBuild), "its place is free"
    other = world.index("other").build or ""
    world.prepared(other)
    assert steer(world, "resume") == []
    assert state(world)[:2] == ("PAUSED", "system")
    assert "waits for its turn" in world.build("b8").paused
    assert later(world, 10 * SECOND) == []
    world.take(world.leader.commands.cancel(other, world.now).instructions)
    assert StartDriver("b8") in later(world, 2 * SECOND)


def test_what_is_shown_of_a_pause() -> None:
    world = started(World())
    assert b"keytide_build_paused{" not in metrics.render(world.leader, world.now)
    steer(world, "pause")
    document = shown(world)
    assert (document["state"], document["paused"], document["paused_by"]) == (
        "PAUSED",
        "on request",
        "operator",
    )
    assert document["eta_s"] is None
    page = metrics.render(world.leader, world.now)
    assert b'keytide_build_paused{build="b8",by="operator"} 1.0' in page


def test_the_counter_of_documents_does_not_fall_with_a_pause() -> None:
    world = started(World())
    world.activate(1, 120, 40)

    def counted() -> bytes:
        page = metrics.render(world.leader, world.now).splitlines()
        return next(line for line in page if line.startswith(b"keytide_build_documents_total{"))

    world.driver("b8", "RUNNING", 1, (30, 20), documents=100)
    assert counted().endswith(b" 100.0")
    steer(world, "pause")
    assert shown(world)["documents_done"] == 50
    assert counted().endswith(b" 100.0")
    steer(world, "resume")
    world.driver("b8", "RUNNING", 1, (30, 20), documents=90)
    assert counted().endswith(b" 100.0")
    world.driver("b8", "RUNNING", 2, (90, 20), documents=130)
    assert counted().endswith(b" 130.0")
    steer(world, "pause")
    world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert world.build("b8").documents_done == 110
    assert counted().endswith(b" 130.0")


# --- phases and the estimate --------------------------------------------------------------------------------


def test_phases_from_reading_to_catching_up() -> None:
    world = started(World())
    later(world, SECOND)
    assert shown(world)["phase"] == "reading"
    world.activate(1, 120, 40)
    world.driver("b8", "RUNNING", 0, (0, 0), documents=150, phase="sorting", bytes=1_500)
    later(world, SECOND)
    document = shown(world)
    assert (document["phase"], document["bytes_done"], document["bytes_total"]) == ("sorting", 1_500, 1_700)
    world.driver("b8", "PASSED", 2, (125, 60), phase="loading")
    world.handle(SourceSampled(facts((130, 60)), "b8", world.now))
    status = SliceStatus("by_city-7", 1, "BUILDING", "", Timestamp(), -1, 0, 0, 0, 0, 0, 0, 0, 0, "b8")
    heartbeat(world, "n2", 1 << 40, [status])
    world.tick()
    assert shown(world)["phase"] == "loading"
    heartbeat(world, "n2", 1 << 40)
    world.tick()
    assert shown(world)["phase"] == "catching-up"
    world.common(131, 60)
    assert (world.build("b8").state, shown(world)["phase"]) == ("READY", None)


def test_bytes_of_a_source_with_gaps_come_to_an_end() -> None:
    world = started(World())
    world.activate(1, 100, 50)
    world.driver("b8", "RUNNING", 1, (40, 20), documents=6, bytes=600)
    assert (shown(world)["bytes_done"], shown(world)["bytes_total"]) == (600, 1_500)
    world.driver("b8", "RUNNING", 2, (100, 50), documents=9, bytes=900)
    assert (shown(world)["bytes_done"], shown(world)["bytes_total"]) == (900, 900)


def test_a_build_says_that_it_waits_for_a_transaction_when_it_has_read_all_else() -> None:
    world = started(World())
    world.activate(1, 100, 50)
    held = facts((100, 50), stable=(80, 50))
    world.handle(SourceSampled(held, "", world.now))
    world.driver("b8", "RUNNING", 1, (40, 50), phase="reading")
    world.tick()
    assert shown(world)["phase"] == "reading"
    world.driver("b8", "RUNNING", 2, (80, 50), phase="reading")
    world.tick()
    document = shown(world)
    assert document["phase"] == "waiting-for-transactions"
    assert "partition 0 from offset 80" in document["waiting_for"]
    assert document["eta_s"] is None
    world.handle(SourceSampled(facts((100, 50)), "", world.now))
    world.tick()
    assert shown(world)["phase"] == "reading"
