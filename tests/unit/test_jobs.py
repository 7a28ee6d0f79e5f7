"""Jobs: how they begin, wait, end, begin again, and what a build makes of its verification."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.catalog.dictionary import NoSuchIndexError
from coordinator.catalog.registry import ConflictError
from coordinator.core.drivers import NO_ROOM, NOT_STARTED
from coordinator.core.events import CommonSnapshot, DriverExited, KafkaAnswered, Reported, SourceSampled
from coordinator.core.failure_detector import SILENT_MS, START_MS
from coordinator.core.instructions import (
    DeleteTopics,
    Instruction,
    Note,
    RemoveBuildFolder,
    RemoveJobFolder,
    SendEnds,
    StartDriver,
    StopDriver,
)
from coordinator.jobs.registry import (
    FINAL,
    GONE_MS,
    TRANSITIONS,
    JobLimits,
    NoSuchJobError,
    faults_of,
)
from coordinator.views import jobs as job_views
from coordinator.views import views
from keytide.catalog.records import JobRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.entry_sums import EQUAL
from keytide.wire.messages import JobProgress, NodeHeartbeat, RepairEnd, RepairStatus, SliceStatus
from tests.unit.leader_world import BACKFILL, MUTATIONS, World, backfilled, facts, started

VERIFIED = BuildLimits(verify=True)


def written(world: World, id_: str) -> JobRecord:
    """A job as it is written."""
    record = world.leader.dictionary.catalog.job(id_)
    assert record is not None
    assert f"job/{id_}" in world.written
    return record


def report(world: World, job: str, state: str = "RUNNING", **other: Any) -> list[Instruction]:
    """The driver's word."""
    message = JobProgress(
        job=job,
        run=other.get("run", "r"),
        state=state,
        snapshot=other.get("snapshot", 5),
        percent=other.get("percent", 50.0),
        documents=other.get("documents", 10),
        documents_total=20,
        counts=other.get("counts", {}),
        detail=other.get("detail", ""),
        error=other.get("error", ""),
        sent_at=other.get("sent_at", world.now),
        attempt=other.get("attempt", (0, 0)),
    )
    return world.handle(Reported(message, world.now))


def shown(world: World, build: str = "b8") -> dict[str, Any]:
    return views.build(world.leader, world.leader.builds.registry.get(build), world.now)


def waits_for(world: World, job: str) -> str:
    """What a job waits for."""
    return world.leader.jobs.waiting_for(world.leader.jobs.get(job))


def started_by(out: list[Instruction]) -> list[Instruction]:
    """The drivers that are started."""
    return [one for one in out if isinstance(one, StartDriver)]


def pass_heard(world: World, seconds: int) -> list[Instruction]:
    """Let time pass in which nodes are heard; what follows."""
    out: list[Instruction] = []
    for _ in range(seconds):
        world.node("n1", "n2")
        out += world.tick(1_000)
    return out


def exited(world: World, job: str, status: int, tail: str = "") -> list[Instruction]:
    return world.handle(DriverExited(job, status, tail, world.now, "verify"))


def ready(limits: BuildLimits | None = None) -> World:
    """Index by_city is READY, unverified."""
    world = backfilled(World(limits or BuildLimits()))
    world.common(131, 60)
    assert world.index("by_city").state == "READY"
    return world


def verify(world: World) -> str:
    answer = world.leader.commands.start_job("verify", "by_city", world.now)
    assert world.take(answer.instructions) == []
    assert answer.job
    return answer.job


def test_every_state_has_its_ways() -> None:
    assert {"DONE", "FAILED", "CANCELLED"} == FINAL
    assert {to for ways in TRANSITIONS.values() for to in ways.values()} | {"QUEUED"} == set(TRANSITIONS)
    assert faults_of({"UNPROVABLE": 7}) == 0
    assert faults_of({"UNPROVABLE": 7, "MISSING": 2, "EXTRA": 1}) == 3


def test_a_driver_whose_clock_is_behind_that_of_the_one_before_is_heard() -> None:
    world = ready()
    job = verify(world)
    world.tick(300)
    report(world, job, percent=50.0, attempt=(1, 1))
    report(world, job, percent=10.0, attempt=(1, 2), sent_at=world.now - 3_600_000)
    assert world.leader.jobs.get(job).percent == 10.0
    report(world, job, percent=60.0, attempt=(1, 1), sent_at=world.now + 1)
    assert world.leader.jobs.get(job).percent == 10.0, "it was stopped, or replaced"


def test_a_job_from_request_to_report() -> None:
    world = ready()
    job = verify(world)
    assert written(world, job).state == "QUEUED"
    with pytest.raises(ConflictError, match=f"verify {job} of by_city is under way"):
        world.leader.commands.start_job("verify", "by_city", world.now)
    assert world.tick(300) == [StartDriver(job, 0, "verify")]
    assert written(world, job).state == "RUNNING"
    assert report(world, job, counts={"EXTRA": 1}) == []
    assert world.leader.jobs.get(job).percent == 50.0
    assert written(world, job).percent == 0.0  # progress alone is not written
    assert report(world, job, sent_at=world.now - 1, percent=1.0) == []  # an older word
    assert world.leader.jobs.get(job).percent == 50.0
    assert report(world, job, "DONE", counts={"EXTRA": 2}) == []
    done = written(world, job)
    assert (done.state, done.percent, done.counts, done.snapshot) == ("DONE", 100.0, {"EXTRA": 2}, 5)
    index = world.index("by_city")
    assert (index.verification, index.verified_at) == (job, world.now)
    assert [note.kind for note in world.notes[-2:]] == ["job-done", "index-differs"]
    assert exited(world, job, 0) == []
    assert written(world, job).state == "DONE"
    assert world.tick(60_000) == []


def test_what_waits_for_a_node_that_is_silent_names_it() -> None:
    world = ready()
    job = verify(world)
    world.tick(300)
    report(world, job)
    assert job_views.job(world.leader, world.leader.jobs.get(job), world.now)["waiting_for"] == ""
    silent(world)
    told = job_views.job(world.leader, world.leader.jobs.get(job), world.now)["waiting_for"]
    assert re.fullmatch(r"node n1, which has said nothing for \d+ s \(keytide node list\)", told)
    report(world, job, "DONE")
    assert job_views.job(world.leader, world.leader.jobs.get(job), world.now)["waiting_for"] == ""


def test_a_build_that_waits_for_a_node_that_is_silent_names_it() -> None:
    world = backfilled(World())
    assert world.build("b8").state == "CATCHUP"
    assert shown(world)["waiting_for"] == (
        "a snapshot that every slice holds: slice 0 of by_city on node n1 (not begun), "
        "slice 1 of by_city on node n2 (not begun), slice 2 of by_city on node n1 (not begun)"
    )
    silent(world)
    assert re.fullmatch(
        r"a snapshot that every slice holds: slice 1 of by_city on node n2 \(not begun\); "
        r"node n1, which has said nothing for \d+ s \(keytide node list\)",
        shown(world)["waiting_for"],
    )


def silent(world: World) -> None:
    """Node n1 says nothing any more, while n2 does."""
    for _ in range(40):
        world.node("n2")
        world.handle(KafkaAnswered(world.now))
        world.tick(500)
    assert not world.leader.stability.nodes.by_id["n1"].live


def test_only_a_ready_index_and_only_what_there_is() -> None:
    world = backfilled(World())
    with pytest.raises(ConflictError, match="is BUILDING; only a READY index can be repaired"):
        world.leader.commands.start_job("repair", "by_city", world.now)
    with pytest.raises(NoSuchIndexError):
        world.leader.commands.start_job("verify", "nothing", world.now)
    with pytest.raises(NoSuchJobError):
        world.leader.commands.cancel_job("j1", world.now)


def test_jobs_wait_for_their_turn_and_too_many_are_refused() -> None:
    world = ready(BuildLimits(jobs=JobLimits(waiting=1)))
    verify(world)
    with pytest.raises(ConflictError, match="1 jobs are queued or under way"):
        world.leader.commands.start_job("repair", "by_city", world.now)
    world = ready()
    first = verify(world)
    answer = world.leader.commands.start_job("repair", "by_city", world.now, dry_run=True)
    world.take(answer.instructions)
    assert answer.job
    second = answer.job
    assert world.tick(300) == [StartDriver(first, 0, "verify")]
    assert world.leader.jobs.waiting_for(world.leader.jobs.get(second)).startswith("its turn")
    report(world, first, "DONE")
    assert world.tick(300) == [StartDriver(second, 0, "repair")]
    assert written(world, second).dry_run


def test_a_dead_driver_begins_again_up_to_a_limit() -> None:
    world = ready(BuildLimits(jobs=JobLimits(restarts=2, back_off_ms=1_000)))
    job = verify(world)
    world.tick(300)
    assert exited(world, job, NO_ROOM, "the disk is full") == [StartDriver(job, 5_000, "verify")]
    assert world.leader.jobs.waiting_for(world.leader.jobs.get(job)) == "the disk is full"
    assert exited(world, job, -9) == [StartDriver(job, 1_000, "verify")]
    assert exited(world, job, 1, "boom") == [StartDriver(job, 2_000, "verify")]
    assert written(world, job).attempts == 3
    assert exited(world, job, 1, "last words") == [StopDriver(job)]
    assert written(world, job).state == "FAILED"
    told = written(world, job).error
    assert "its driver died 3 times (setting verify.restarts)" in told
    assert f"its log is jobs/{job}/driver.log in the coordinator's data folder" in told
    assert "at last: it ended with status 1. last words" in told
    assert told.endswith("when that is put right: keytide index verify by_city")


def test_a_driver_that_hangs_is_killed_and_counts_as_one_that_died() -> None:
    world = ready(BuildLimits(jobs=JobLimits(restarts=1)))
    job = verify(world)
    world.tick(300)
    assert pass_heard(world, 50) == []
    report(world, job)
    assert pass_heard(world, 58) == [], "counted from its last word"
    assert pass_heard(world, 4) == [StopDriver(job), StartDriver(job, 1_000, "verify")]
    assert written(world, job).attempts == 2
    first_word = (START_MS + SILENT_MS) // 1000
    assert pass_heard(world, first_word - 2) == [], "it is just being started"
    assert pass_heard(world, 6) == [StopDriver(job), StopDriver(job)]
    assert "it has said nothing for 60 s" in written(world, job).error
    other = verify(world)
    assert world.tick(300) == [StartDriver(other, 0, "verify")], "what waited behind it has its turn"


def test_silence_of_everybody_is_not_the_drivers() -> None:
    world = ready()
    job = verify(world)
    world.tick(300)
    for _ in range(600):
        assert world.tick(1_000) == [], "Kafka is away"
    assert pass_heard(world, 30) == []
    assert world.tick(3_600_000) == [], "the coordinator stood still"
    assert pass_heard(world, 25) == []
    assert written(world, job).attempts == 1


def test_an_end_without_a_word_and_a_word_that_ends_it() -> None:
    world = ready()
    job = verify(world)
    world.tick(300)
    assert exited(world, job, 0) == []
    assert world.tick(9_000) == []
    assert world.tick(2_000) == [StartDriver(job, 1_000, "verify")]
    report(world, job, "FAILED", error="it can never work")
    assert exited(world, job, 3, "a trace") == [StopDriver(job)]
    assert written(world, job).error == "it can never work"


def test_cancelled_by_hand_and_when_its_index_goes() -> None:
    world = ready()
    job = verify(world)
    world.tick(300)
    assert world.take(world.leader.commands.cancel_job(job, world.now).instructions)[0] == StopDriver(job)
    assert written(world, job).state == "CANCELLED"
    with pytest.raises(ConflictError, match="it is CANCELLED"):
        world.leader.commands.cancel_job(job, world.now)
    assert exited(world, job, -15) == []
    other = verify(world)
    world.tick(300)
    world.take(world.leader.commands.drop("by_city", world.now).instructions)
    assert StopDriver(other) in world.tick(300)
    assert written(world, other).error.startswith("index by_city is DROPPING")


def test_a_new_leader_begins_jobs_again() -> None:
    world = ready()
    job = verify(world)
    world.tick(300)
    report(world, job, percent=80.0)
    again, out = world.restart()
    assert out == [StartDriver(job, 0, "verify")]
    assert again.leader.jobs.get(job).state == "RUNNING"
    report(again, job, "DONE")
    assert written(again, job).state == "DONE"


def test_by_schedule_the_oldest_comes_next() -> None:
    world = ready(BuildLimits(jobs=JobLimits(interval_ms=100_000)))
    assert world.tick(90_000) == []
    (start,) = world.tick(11_000)
    assert isinstance(start, StartDriver)
    assert world.tick(300_000) == []  # one at a time, however late
    report(world, start.build, "DONE")
    assert world.tick(99_000) == []
    (again,) = world.tick(2_000)
    assert isinstance(again, StartDriver)
    exited(world, again.build, 3, "never")
    assert written(world, again.build).state == "FAILED"
    assert world.tick(99_000) == []  # what failed is not tried at once


def test_a_job_that_took_long_is_not_forgotten_when_it_ends() -> None:
    world = ready(BuildLimits(jobs=JobLimits(kept=1, concurrent=2)))
    long = verify(world)
    world.tick(300)
    repair = world.leader.commands.start_job("repair", "by_city", world.now)
    world.take(repair.instructions)
    assert repair.job
    short = repair.job
    world.tick(300)
    report(world, short, "DONE")
    world.now += 1
    world.take(world.leader.commands.cancel_job(long, world.now).instructions)
    assert [one.id for one in world.leader.jobs.all()] == [long]


def test_the_schedule_waits_while_builds_have_as_many_jobs_as_there_may_be() -> None:
    world = ready(BuildLimits(jobs=JobLimits(waiting=1, interval_ms=10_000)))
    job = world.leader.jobs.request("verify", [world.index("by_city")], world.now, build="b8")
    waits = replace(world.build("b8"), state="CATCHUP", verification=job.id)
    world.leader.dictionary.put(waits)
    assert StartDriver(job.id, 0, "verify") in world.tick(20_000)
    assert [one.id for one in world.leader.jobs.all()] == [job.id]  # by_city is due, and waits
    report(world, job.id, "DONE")
    assert any(isinstance(one, StartDriver) for one in world.tick(20_000))


def test_the_oldest_jobs_are_forgotten_but_for_the_last_verification() -> None:
    world = ready(BuildLimits(jobs=JobLimits(kept=2)))
    jobs = []
    for _ in range(4):
        jobs.append(verify(world))
        world.tick(300)
        world.now += 1
        removed = report(world, jobs[-1], "DONE")
    assert removed == [RemoveJobFolder(jobs[1])]
    assert [one.id for one in world.leader.jobs.all()] == jobs[2:]


# --- builds -----------------------------------------------------------------------------------------------


def arrived() -> tuple[World, str]:
    """A build whose slices hold the snapshot; its verification is asked for."""
    world = backfilled(World(VERIFIED))
    (start,) = [*world.common(131, 60), *world.tick(300)]
    assert isinstance(start, StartDriver)
    build = world.build("b8")
    assert (build.state, build.phase, build.verification) == ("CATCHUP", "verifying", start.build)
    assert world.index("by_city").state == "BUILDING"
    return world, start.build


def test_a_build_is_ready_when_its_verification_found_nothing() -> None:
    world, job = arrived()
    assert world.common(132, 60) == []
    report(world, job, percent=40.0, detail="reading the source")
    assert world.common(133, 60) == []
    waits = world.leader.builds.registry.run("b8").waiting_for
    assert waits == f"verification {job} (40 %: reading the source)"
    report(world, job, "DONE", counts={"UNPROVABLE": 12})
    assert world.common(134, 60) == [DeleteTopics((BACKFILL,)), RemoveBuildFolder("b8")]
    assert world.index("by_city").state == "READY"
    assert (world.build("b8").state, world.build("b8").phase) == ("READY", "")


def test_a_build_with_differences_fails_with_the_reports_address() -> None:
    world, job = arrived()
    report(world, job, "DONE", counts={"MISSING": 3, "UNPROVABLE": 1})
    assert StopDriver("b8") in world.tick(300)
    assert world.index("by_city").state == "FAILED"
    assert f"/v1/jobs/{job}/report" in world.build("b8").error
    assert "3 MISSING" in world.build("b8").error
    assert "--no-verify" in world.index("by_city").reason


def test_a_build_whose_verification_fails_or_is_cancelled_fails() -> None:
    world, job = arrived()
    exited(world, job, 3, "no Java")
    world.tick(300)
    assert "is FAILED: no Java" in world.build("b8").error
    world, job = arrived()
    world.take(world.leader.commands.cancel_job(job, world.now).instructions)
    world.tick(300)
    assert "is CANCELLED: on request" in world.build("b8").error


def test_what_was_found_of_a_history_that_is_void_fails_no_build() -> None:
    world, job = arrived()
    keyspace = world.leader.dictionary.catalog.keyspace("people")
    assert keyspace is not None
    registry = world.leader.builds.registry
    registry.halted.add("people")  # the source has lost records: that is what the job sees
    report(world, job, "DONE", counts={"EXTRA": 3})
    world.tick(300)
    assert world.build("b8").state == "CATCHUP"
    world.leader.dictionary.put(replace(keyspace, incarnation=keyspace.incarnation + 1))
    registry.halted.discard("people")
    world.tick(300)
    build = world.build("b8")
    assert build.state == "CATCHUP"
    snapshot = CommonSnapshot(build.indexes[0], 140, build.final_timestamp or Timestamp(), world.now)
    world.take(world.leader.builds.handle(snapshot, []))
    (start,) = world.tick(300)
    other = world.build("b8").verification
    assert (other != job, start) == (True, StartDriver(other, 0, "verify"))
    report(world, other, "DONE")
    world.take(world.leader.builds.handle(snapshot, []))
    world.tick(300)
    assert world.build("b8").state == "READY"


def test_a_verification_ends_with_its_build_and_survives_a_leader() -> None:
    world, job = arrived()
    again, out = world.restart()
    assert StartDriver(job, 0, "verify") in out
    again.node("n1", "n2")
    again.handle(SourceSampled(facts((130, 60)), "", again.now))
    report(again, job, "DONE")
    again.common(140, 60)
    assert again.build("b8").state == "READY"
    assert again.build("b8").verification == job
    world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert world.tick(300)[0] == StopDriver(job)
    assert written(world, job).state == "CANCELLED"


def test_all_indexes_of_a_build_are_verified_by_one_job() -> None:
    world = World(VERIFIED)
    world.sql("CREATE INDEX a ON people (city) WITH (slices=1, defer_build=true)")
    world.sql("CREATE INDEX b ON people (age) WITH (slices=1, defer_build=true)")
    world.node("n1")
    answer = world.leader.commands.build(["a", "b"], 0, world.now)
    world.take(answer.instructions)
    assert answer.build is not None
    build = answer.build.id
    world.tick()
    world.prepared(build)
    world.activate(1, 100, 50)
    world.driver(build, "PASSED", 1, (100, 50))

    world.handle(SourceSampled(facts((100, 50)), build, world.now))
    out = [*world.common(100, 50, nodes=("n1",)), *world.tick(300)]
    (start,) = [one for one in out if isinstance(one, StartDriver)]
    assert sorted(written(world, start.build).indexes) == sorted(world.build(build).indexes)
    report(world, start.build, "DONE")
    world.common(101, 50, nodes=("n1",))
    assert {world.index(name).state for name in ("a", "b")} == {"READY"}


def test_the_build_says_whether_it_is_verified() -> None:
    world = World(VERIFIED)
    world.sql("CREATE INDEX a ON people (city) WITH (slices=1, defer_build=true)")
    answer = world.leader.commands.build(["a"], 0, world.now, verify=False)
    assert answer.build is not None
    assert not answer.build.verify
    assert not any(isinstance(one, Note) and one.kind == "job-started" for one in answer.instructions)


def compared(words: str, world: World | None = None, build: str = "b8") -> World:
    """A build whose driver has compared sums, up to the snapshot that all slices hold."""
    world = world or World(VERIFIED)
    started(world)
    world.activate(1, 120, 40)
    world.driver(build, "RUNNING", 2, (125, 60), phase="verifying")
    world.tick(300)
    assert world.build(build).phase == "verifying"
    world.driver(build, "PASSED", 2, (125, 60), compared=words)
    world.handle(SourceSampled(facts((130, 60)), build, world.now))
    return world


def test_a_build_whose_sums_are_equal_is_ready_without_a_second_read() -> None:
    world = compared(EQUAL)
    world.tick(300)
    assert shown(world)["phase"] == "catching-up", "nothing verifies any more"
    assert world.common(131, 60) == [DeleteTopics((BACKFILL,)), RemoveBuildFolder("b8")]
    build = world.build("b8")
    assert (build.state, build.verification, build.compared) == ("READY", "", EQUAL)
    assert world.leader.jobs.all() == []
    assert any(note.text.endswith("verified by sums") for note in world.notes if note.kind == "build-ready")
    index = world.index("by_city")
    assert (index.verified_at, index.verification) == (0, ""), "an index is verified by reading its source"


def test_where_sums_differ_or_say_nothing_the_source_is_read_again() -> None:
    for words in ("slice 1 of by_city-3 on node n2 stores other entries than were projected", ""):
        world = compared(words)
        start, *more = [*world.common(131, 60), *world.tick(300)]
        assert isinstance(start, StartDriver)
        assert more == []
        build = world.build("b8")
        assert (build.state, build.phase, build.verification) == ("CATCHUP", "verifying", start.build)
        told = [note.text for note in world.notes if note.kind == "build-read-again"]
        assert told == ([f"build b8 reads its source once more: {words}"] if words else [])
        report(world, start.build, "DONE", counts={"MISSING": 3})
        world.tick(300)
        assert world.build("b8").state == "FAILED"


def test_what_sums_said_outlives_a_leader_and_what_is_said_too_early_counts_for_nothing() -> None:
    world = compared(EQUAL)
    again, _ = world.restart()
    again.node("n1", "n2")
    again.handle(SourceSampled(facts((130, 60)), "", again.now))
    again.common(140, 60)
    assert (again.build("b8").state, again.build("b8").verification) == ("READY", "")
    world = World(VERIFIED)
    started(world)
    world.activate(1, 120, 40)
    world.driver("b8", "RUNNING", 2, (125, 60), compared=EQUAL)
    assert world.build("b8").compared == ""
    world.driver("b8", "PASSED", 2, (125, 60))
    world.handle(SourceSampled(facts((130, 60)), "b8", world.now))
    assert any(isinstance(one, StartDriver) for one in [*world.common(131, 60), *world.tick(300)])


def test_a_build_may_ask_for_a_second_read_whatever_sums_say() -> None:
    world = compared(EQUAL, World(BuildLimits(verify="full")))
    assert world.build("b8").verify_full
    (start,) = [*world.common(131, 60), *world.tick(300)]
    assert isinstance(start, StartDriver)
    assert views.build(world.leader, world.build("b8"), world.now)["verify"] == "full"
    out = world.leader.builds.begin_again(world.build("b8"), "a slice is lost", world.now)
    (anew,) = [one for one in world.leader.builds.registry.all() if one.state == "QUEUED"]
    assert (anew.verify, anew.verify_full, bool(out)) == (True, True, True)
    world = World(VERIFIED)
    world.sql("CREATE INDEX a ON people (city) WITH (slices=1, defer_build=true)")
    answer = world.leader.commands.build(["a"], 0, world.now, verify="full")
    assert answer.build is not None
    assert (answer.build.verify, answer.build.verify_full) == (True, True)


# --- what is in the way of a build's verification -----------------------------------------------------------


def test_a_build_waits_for_its_verification_however_long_something_is_in_the_way() -> None:
    world, job = arrived()
    waits = []
    for _ in range(30):
        report(world, job, percent=0.0, documents=0, error="node-unavailable: n1 does not answer")
        assert exited(world, job, 1, "a trace\nand its last line") == []
        held = world.now
        while not (out := world.tick(200)):
            assert world.now - held < 120_000
        assert out == [StartDriver(job, 0, "verify")]
        waits.append(round((world.now - held) / 1_000))
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(waits[8:]) == {60}
    assert (written(world, job).state, written(world, job).attempts) == ("RUNNING", 1)
    assert [note.kind for note in world.notes].count("job-waits") == 1
    report(world, job, "DONE")
    world.node("n1", "n2")
    world.common(140, 60)
    assert world.build("b8").state == "READY"


def test_what_it_waits_for_is_told_and_the_wait_is_short_again_after_some_progress() -> None:
    world, job = arrived()
    for _ in range(5):
        exited(world, job, 1, "first line\nOSError: [Errno 28] No space left on device\n")
        assert waits_for(world, job).startswith("OSError: [Errno 28] No space left on device; tried again")
        assert f"log jobs/{job}/driver.log" in waits_for(world, job)
        world.tick(300)
        assert "No space left" in shown(world)["waiting_for"]
        world.tick(60_000)
    assert waits_for(world, job) == ""
    report(world, job, percent=40.0, documents=10)
    report(world, job, percent=40.0, documents=10, error="node-unavailable: n1 does not answer")
    exited(world, job, 1)
    assert waits_for(world, job).startswith("node-unavailable: n1 does not answer; tried again after 1 s")
    assert shown(world)["percent"] < 70, "what was read counts no more"
    report(world, job, percent=40.0, error="node-unavailable: n2 does not answer")
    assert "n2 does not answer" in waits_for(world, job), "the last word may come late"
    assert world.leader.jobs.get(job).percent == 0.0


def test_a_job_that_waits_gives_its_place_away() -> None:
    world = ready()
    held = world.leader.jobs.request("verify", [world.index("by_city")], world.now, build="b8").id
    world.leader.dictionary.put(replace(world.build("b8"), state="CATCHUP", verification=held))
    world.tick(300)
    report(world, held, documents=0)
    for _ in range(4):
        exited(world, held, 1)
        world.tick(10_000)
    exited(world, held, 1)
    answer = world.leader.commands.start_job("repair", "by_city", world.now)
    world.take(answer.instructions)
    assert answer.job
    other = answer.job
    assert world.tick(300) == [StartDriver(other, 0, "repair")]
    assert world.tick(60_000) == [], "one at once"
    again, out = world.restart()
    assert started_by(out) == [StartDriver(held, 0, "verify")], "nor more of them after a restart"
    assert waits_for(again, other).startswith("its turn")
    exited(again, held, -9)
    report(again, held, "DONE")
    assert again.tick(300) == [StartDriver(other, 0, "repair")]


def test_deaths_that_nobody_understands_count_for_a_build_too() -> None:
    world, job = arrived()
    for _ in range(world.limits.jobs.restarts):
        report(world, job)
        assert isinstance(exited(world, job, -9)[0], StartDriver)
        world.tick(30_000)
    exited(world, job, -11)
    world.tick(300)
    error = world.build("b8").error
    assert f"is FAILED: its driver died 4 times (setting verify.restarts); its log is jobs/{job}/" in error
    assert "at last: it ended with signal 11; when that is put right, build again" in error


def test_silence_of_a_driver_that_was_never_started_counts_for_nothing() -> None:
    """The order to start it waits in the executor, for a queue that has no leader."""
    world, job = arrived()
    for _ in range(15):
        first_word = (START_MS + SILENT_MS) // 1000
        assert pass_heard(world, first_word - 2) == [], "builds have as long"
        (stop, *start) = pass_heard(world, 3)
        assert stop == StopDriver(job)
        while not start:
            assert "has said nothing in the 120 s since its start; tried again" in waits_for(world, job)
            start = pass_heard(world, 1)
        assert start == [StartDriver(job, 0, "verify")]
    assert (written(world, job).state, written(world, job).attempts) == ("RUNNING", 1)
    report(world, job)
    assert pass_heard(world, 58) == []
    assert started_by(pass_heard(world, 4)) == [StartDriver(job, 1_000, "verify")]
    assert written(world, job).attempts == 2, "it was started, and hangs"


def test_the_last_word_of_a_jobs_driver_is_not_the_first_one_of_the_next() -> None:
    world, job = arrived()
    report(world, job, run="1")
    exited(world, job, -9)
    report(world, job, run="1", percent=51.0)
    assert pass_heard(world, (START_MS + SILENT_MS) // 1000) == []
    assert pass_heard(world, 3)[0] == StopDriver(job)
    assert (written(world, job).attempts, world.notes[-1].kind) == (2, "job-waits")


def test_a_word_of_a_driver_whose_clock_went_back_is_a_sign_of_life() -> None:
    world, job = arrived()
    report(world, job)
    for _ in range(4):
        assert pass_heard(world, 50) == []
        report(world, job, sent_at=1)
    assert written(world, job).attempts == 1


def test_a_driver_that_could_not_be_started_did_not_die() -> None:
    world, job = arrived()
    for _ in range(15):
        assert exited(world, job, NOT_STARTED, "[Errno 122] Disk quota exceeded") == []
        assert waits_for(world, job).startswith("[Errno 122] Disk quota exceeded; tried again after")
        assert world.tick(61_000) == [StartDriver(job, 0, "verify")]
    assert (written(world, job).state, written(world, job).attempts) == ("RUNNING", 1)


# --- steering a build that verifies -------------------------------------------------------------------------


def test_a_build_that_verifies_can_be_throttled() -> None:
    world, _ = arrived()
    world.take(world.leader.commands.throttle("b8", 500, world.now).instructions)
    assert (world.build("b8").rate_limit, shown(world)["rate_limit"]) == (500, 500)


def test_a_pause_while_verifying_stops_the_driver_and_its_end_starts_another() -> None:
    world, job = arrived()
    report(world, job, percent=40.0)
    world.take(world.leader.commands.pause("b8", world.now).instructions)
    assert world.tick(300) == [StopDriver(job)]
    assert (world.build("b8").state, world.build("b8").paused_by) == ("CATCHUP", "operator")
    assert (written(world, job).state, shown(world)["paused"]) == ("RUNNING", "on request")
    assert waits_for(world, job) == "build b8 to be resumed (keytide build resume b8)"
    assert exited(world, job, -9, "it ended before it was stopped") == []
    report(world, job, percent=41.0)
    assert pass_heard(world, 90) == []
    again, out = world.restart()
    assert started_by(out) == []
    assert again.tick(300_000) == []
    again.handle(SourceSampled(facts((130, 60)), "", again.now))
    for one in (again, world):
        one.take(one.leader.commands.resume("b8", one.now).instructions)
        assert one.build("b8").paused == ""
        assert one.tick(300) == [StartDriver(job, 0, "verify")]
        report(one, job, "DONE")
        one.node("n1", "n2")
        one.common(150, 60)
        assert one.build("b8").state == "READY"


def test_a_pause_in_a_wait_and_a_resume_that_tries_at_once() -> None:
    world, job = arrived()
    report(world, job, documents=0)
    for _ in range(7):
        exited(world, job, 1)
        world.tick(60_000)
    exited(world, job, 1)
    world.take(world.leader.commands.pause("b8", world.now).instructions)
    assert world.tick(5_000) == []
    world.take(world.leader.commands.resume("b8", world.now).instructions)
    assert world.tick(300) == [StartDriver(job, 0, "verify")]


def test_a_build_whose_verification_waits_for_its_turn_pauses_too() -> None:
    world = ready()
    job = world.leader.jobs.request("verify", [world.index("by_city")], world.now, build="b8").id
    world.leader.dictionary.put(
        replace(world.build("b8"), state="CATCHUP", phase="verifying", verification=job, paused="on request")
    )
    assert pass_heard(world, 5) == []
    assert written(world, job).state == "QUEUED"


def test_what_is_verified_reads_nothing_any_more() -> None:
    world, job = arrived()
    report(world, job, "DONE")
    for steer in (world.leader.commands.pause, world.leader.commands.resume):
        with pytest.raises(ConflictError, match="reads nothing now"):
            steer("b8", world.now)


# --- how far a build is -------------------------------------------------------------------------------------


def test_a_build_is_not_at_a_hundred_percent_before_it_is_ready() -> None:
    verify: bool | Literal["full"]
    for verify, percent in (("full", 25.0), (True, 50.0), (False, 50.0)):
        world = started(World(BuildLimits(verify=verify)))
        world.activate(1, 100, 50)
        world.driver("b8", "RUNNING", 1, (50, 25), documents=75)
        assert shown(world)["percent"] == percent, "a second read is expected only where it is asked for"
    world, job = arrived()
    assert (shown(world)["percent"], shown(world)["eta_s"]) == (50.0, None)
    report(world, job, percent=1.0)
    world.tick(8_000)
    report(world, job, percent=2.0, documents=0)
    assert shown(world)["eta_s"] is None, "nothing is read yet"
    world.tick(2_000)
    report(world, job, percent=40.0)
    assert (shown(world)["percent"], shown(world)["eta_s"]) == (70.0, 15.0)
    assert job_views.job(world.leader, world.leader.jobs.get(job), world.now)["eta_s"] == 15.0
    report(world, job, "DONE")
    assert (shown(world)["percent"], shown(world)["eta_s"]) == (99.9, None)
    world.node("n1", "n2")
    world.common(140, 60)
    assert (shown(world)["state"], shown(world)["percent"]) == ("READY", 100.0)
    assert shown(backfilled(World()))["percent"] == 99.9, "unverified, and slices catch up"


# --- what a repair leaves -----------------------------------------------------------------------------------


def watching(world: World, name: str, *, watching: bool = True) -> list[Instruction]:
    """A node's word: slice 1 of by_city is in round 2 of this repair."""
    repair = RepairStatus(name, 2, watching)
    status = SliceStatus("by_city-7", 1, "LIVE", "", Timestamp(), 5, 0, 9, 9, 0, 0, 0, 0, 0, repair=repair)
    return world.handle(Reported(NodeHeartbeat("n1", "", 1, world.now, [status], 0, 0, 0), world.now))


def test_slices_that_watch_for_a_repair_that_is_gone_are_told() -> None:
    world = ready()
    answer = world.leader.commands.start_job("repair", "by_city", world.now)
    world.take(answer.instructions)
    assert answer.job
    job = answer.job
    first, second = f"{job}-4711-1", f"{job}-4712-2"

    def end(name: str) -> SendEnds:
        return SendEnds(((MUTATIONS, 1, RepairEnd("by_city-7", 1, name, 2, 0)),))

    assert watching(world, "j999-1-1") == [], "nothing is known of it"
    world.tick(300)
    assert watching(world, first) == [], "its driver was not heard yet"
    report(world, job, run="4711-1")
    assert watching(world, first) == []
    exited(world, job, -9)
    assert watching(world, first) == []
    report(world, job, run="4712-2", sent_at=world.now + 1)
    assert watching(world, second) == []
    assert watching(world, first) == [], "it may live: a coordinator's that leads no more"
    world.now += GONE_MS
    assert watching(world, first) == [], "nobody was heard meanwhile"
    report(world, job, run="4712-2")
    assert watching(world, second) == []
    assert watching(world, first) == [end(first)], "another driver works"
    world.take(world.leader.commands.cancel_job(job, world.now).instructions)
    assert watching(world, second) == [], "the driver may say so itself"
    world.now += 6_000
    assert watching(world, second, watching=False) == []
    assert watching(world, second) == [end(second)]
    assert watching(world, second) == [], "not with every heartbeat"
    world.now += 11_000
    assert watching(world, second) == [end(second)], "it did not hear"


def test_a_round_goes_on_while_its_driver_lives_beside_one_of_an_old_leader() -> None:
    world = ready()
    answer = world.leader.commands.start_job("repair", "by_city", world.now)
    world.take(answer.instructions)
    assert answer.job
    job = answer.job
    world.tick(300)
    for _ in range(30):
        for run in ("1-1", "2-2"):
            world.now += 250
            report(world, job, run=run)
            assert watching(world, f"{job}-1-1") == watching(world, f"{job}-2-2") == []
    unheard = f"{job}-3-3"
    assert watching(world, unheard) != [], "of one that nobody has heard"
    world.now += GONE_MS
    report(world, job, run="2-2")
    assert watching(world, f"{job}-2-2") == []
    assert watching(world, f"{job}-1-1") != []
