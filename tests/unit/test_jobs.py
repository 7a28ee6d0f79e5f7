"""Jobs: how they begin, wait, end, begin again, and what a build makes of its verification."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.buildbook import BuildLimits
from coordinator.dictionary import NoSuchIndexError
from coordinator.events import (
    NO_ROOM,
    CommonSnapshot,
    DeleteTopics,
    DriverExited,
    Instruction,
    Note,
    RemoveBuildFolder,
    RemoveJobFolder,
    Reported,
    SourceSampled,
    StartDriver,
    StopDriver,
)
from coordinator.jobbook import (
    FINAL,
    TRANSITIONS,
    JobConflictError,
    JobLimits,
    NoSuchJobError,
    faults_of,
)
from keytide.catalog import JobRecord
from keytide.messages import JobProgress
from keytide.timestamp import Timestamp
from tests.unit.leader_world import BACKFILL, World, backfilled, facts

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
        run="r",
        state=state,
        snapshot=other.get("snapshot", 5),
        percent=other.get("percent", 50.0),
        documents=10,
        documents_total=20,
        counts=other.get("counts", {}),
        detail=other.get("detail", ""),
        error=other.get("error", ""),
        sent_at=other.get("sent_at", world.now),
    )
    return world.handle(Reported(message, world.now))


def exited(world: World, job: str, status: int, tail: str = "") -> list[Instruction]:
    return world.handle(DriverExited(job, status, tail, world.now, "verify"))


def ready(limits: BuildLimits | None = None) -> World:
    """Index by_city is READY, unverified."""
    world = backfilled(World(limits or BuildLimits()))
    world.common(131, 60)
    assert world.index("by_city").state == "READY"
    return world


def verify(world: World) -> str:
    answer = world.leader.start_job("verify", "by_city", world.now)
    assert world.take(answer.instructions) == []
    assert answer.outcome.job is not None
    return answer.outcome.job.id


def test_every_state_has_its_ways() -> None:
    assert {"DONE", "FAILED", "CANCELLED"} == FINAL
    assert {to for ways in TRANSITIONS.values() for to in ways.values()} | {"QUEUED"} == set(TRANSITIONS)
    assert faults_of({"UNPROVABLE": 7}) == 0
    assert faults_of({"UNPROVABLE": 7, "MISSING": 2, "EXTRA": 1}) == 3


def test_a_job_from_request_to_report() -> None:
    world = ready()
    job = verify(world)
    assert written(world, job).state == "QUEUED"
    with pytest.raises(JobConflictError, match=f"verify {job} of by_city is under way"):
        world.leader.start_job("verify", "by_city", world.now)
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


def test_only_a_ready_index_and_only_what_there_is() -> None:
    world = backfilled(World())
    with pytest.raises(JobConflictError, match="is BUILDING; only a READY index can be repaired"):
        world.leader.start_job("repair", "by_city", world.now)
    with pytest.raises(NoSuchIndexError):
        world.leader.start_job("verify", "nothing", world.now)
    with pytest.raises(NoSuchJobError):
        world.leader.cancel_job("j1", world.now)


def test_jobs_wait_for_their_turn_and_too_many_are_refused() -> None:
    world = ready(BuildLimits(jobs=JobLimits(waiting=1)))
    verify(world)
    with pytest.raises(JobConflictError, match="1 jobs are queued or under way"):
        world.leader.start_job("repair", "by_city", world.now)
    world = ready()
    first = verify(world)
    answer = world.leader.start_job("repair", "by_city", world.now, dry_run=True)
    world.take(answer.instructions)
    assert answer.outcome.job is not None
    second = answer.outcome.job.id
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
    assert "died 3 times; at last: it ended with status 1. last words" in written(world, job).error


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
    assert world.take(world.leader.cancel_job(job, world.now).instructions)[0] == StopDriver(job)
    assert written(world, job).state == "CANCELLED"
    with pytest.raises(JobConflictError, match="it is CANCELLED"):
        world.leader.cancel_job(job, world.now)
    assert exited(world, job, -15) == []
    other = verify(world)
    world.tick(300)
    world.take(world.leader.drop("by_city", world.now).instructions)
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
    repair = world.leader.start_job("repair", "by_city", world.now)
    world.take(repair.instructions)
    assert repair.outcome.job is not None
    short = repair.outcome.job.id
    world.tick(300)
    report(world, short, "DONE")
    world.now += 1
    world.take(world.leader.cancel_job(long, world.now).instructions)
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
    waits = world.leader.builds.book.run("b8").waiting_for
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
    world.take(world.leader.cancel_job(job, world.now).instructions)
    world.tick(300)
    assert "is CANCELLED: on request" in world.build("b8").error


def test_what_was_found_of_a_history_that_is_void_fails_no_build() -> None:
    world, job = arrived()
    keyspace = world.leader.dictionary.catalog.keyspace("people")
    assert keyspace is not None
    book = world.leader.builds.book
    book.halted.add("people")  # the source has lost records: that is what the job sees
    report(world, job, "DONE", counts={"EXTRA": 3})
    world.tick(300)
    assert world.build("b8").state == "CATCHUP"
    world.leader.dictionary.put(replace(keyspace, incarnation=keyspace.incarnation + 1))
    book.halted.discard("people")
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
    report(again, job, "DONE")
    again.common(140, 60)
    assert again.build("b8").state == "READY"
    assert again.build("b8").verification == job
    world.take(world.leader.cancel("b8", world.now).instructions)
    assert world.tick(300)[0] == StopDriver(job)
    assert written(world, job).state == "CANCELLED"


def test_all_indexes_of_a_build_are_verified_by_one_job() -> None:
    world = World(VERIFIED)
    world.sql("CREATE INDEX a ON people (city) WITH (slices=1, defer_build=true)")
    world.sql("CREATE INDEX b ON people (age) WITH (slices=1, defer_build=true)")
    world.node("n1")
    answer = world.leader.build(["a", "b"], 0, world.now)
    world.take(answer.instructions)
    assert answer.outcome.build is not None
    build = answer.outcome.build.id
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
    answer = world.leader.build(["a"], 0, world.now, verify=False)
    assert answer.outcome.build is not None
    assert not answer.outcome.build.verify
    assert not any(isinstance(one, Note) and one.kind == "job-started" for one in answer.instructions)
