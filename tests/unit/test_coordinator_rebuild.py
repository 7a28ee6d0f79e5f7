"""Rebuilds of single slices, through the whole pure leader: from LOST to serving again."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import BuildPrepared, DriverExited, Reported, SourceSampled
from coordinator.core.instructions import (
    DeleteTopics,
    Instruction,
    PrepareBuild,
    RemoveBuildFolder,
    SampleSource,
    SendEnds,
    StartDriver,
    StopDriver,
)
from coordinator.http import metrics
from coordinator.queues.orphaned_topics import orphans
from coordinator.views import views
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import BuildEnd, NodeHeartbeat, Published, SliceStatus
from tests.unit.leader_world import MUTATIONS, World, backfilled, facts

LIMITS = BuildLimits(rebuild_wait_ms=1_000, restarts=2)
NODES = {"n1": (0, 2), "n2": (1,)}


def serving(limits: BuildLimits = LIMITS) -> World:
    """Index by_city-7 is READY: slices 0 and 2 on n1, 1 on n2."""
    world = backfilled(World(limits))
    world.common(130, 60)
    assert world.index("by_city").state == "READY"
    return world


def with_other(world: World) -> IndexRecord:
    """Another index is READY, with slice 0 on n2."""
    world.sql("CREATE INDEX other ON people (name) WITH (slices=1)")
    (prepare,) = world.tick()
    assert isinstance(prepare, PrepareBuild)
    world.prepared(prepare.build, facts((130, 60)))
    world.activate(2, 130, 60)
    world.driver(prepare.build, "PASSED", 1, (130, 60))
    world.handle(SourceSampled(facts((130, 60)), prepare.build, world.now))
    world.common(140, 60)
    index = world.index("other")
    assert index.state == "READY"
    return index


def status(world: World, number: int, state: str, at: tuple[int, ...] = (), **other: Any) -> SliceStatus:
    return SliceStatus(
        index=other.pop("index", "by_city-7"),
        slice=number,
        state=state,
        reason="its folder is gone" if state == "LOST" else "",
        timestamp=Timestamp.of(dict(enumerate(at))),
        number=world.number if state == "LIVE" else -1,
        batch=-1,
        entries=0,
        bytes=0,
        skipped=0,
        queue_documents=0,
        queue_position=1 << 20,
        gap_drops=0,
        foreign_partition_ids=0,
        incarnation=world.known().incarnation,
    )


def beat(world: World, states: dict[int, str], at: tuple[int, ...] = (130, 60)) -> list[Instruction]:
    """A heartbeat of every node; slices are LIVE but for those in `states`."""
    out = []
    for node, slices in NODES.items():
        statuses = [status(world, n, states.get(n, "LIVE"), at) for n in slices]
        message = NodeHeartbeat(node, f"http://{node}", 1, world.now, statuses, 0, 0, 0)
        out += world.handle(Reported(message, world.now))
    return out


def live(world: World, states: dict[int, str], ms: int, step: int = 500) -> list[Instruction]:
    """Time passes; nodes say the same all the while."""
    out = []
    for _ in range(0, ms, step):
        out += beat(world, states)
        out += world.tick(step)
    return out


def queued(world: World, states: dict[int, str]) -> str:
    """The id of the rebuild that is prepared for these."""
    out = live(world, states, 2_000)
    (prepare,) = [one for one in out if isinstance(one, PrepareBuild)]
    return prepare.build


def prepared(world: World, build: str, **source: Any) -> list[Instruction]:
    ends = {MUTATIONS: {0: 70, 1: 71, 2: 72}}
    return world.handle(BuildPrepared(build, facts((200, 90), **source), world.now, ends))


def in_catchup(world: World, build: str) -> list[Instruction]:
    prepared(world, build)
    world.driver(build, "PASSED", 1, (200, 90))
    return world.handle(SourceSampled(facts((210, 90)), build, world.now))


def backfill(build: str) -> str:
    return f"kt.backfill.by_city-7.{build}"


def test_a_lost_slice_is_rebuilt_alone() -> None:
    world = serving()
    assert beat(world, {1: "LOST"}) == []
    assert world.notes[-1].kind == "slice-lost"
    assert "its folder is gone" in world.notes[-1].text
    assert [one for one in live(world, {1: "LOST"}, 1_000) if isinstance(one, PrepareBuild)] == []
    (prepare,) = [one for one in live(world, {1: "LOST"}, 1_000) if isinstance(one, PrepareBuild)]
    build = prepare.build
    assert prepare == PrepareBuild(build, "people", ((backfill(build), 3),), ((MUTATIONS, 3),))
    assert world.build(build).slices == {"by_city-7": [1]}
    index = world.index("by_city")
    assert (index.state, index.slice_builds, world.keyspace().version) == ("READY", {}, 1)

    assert prepared(world, build) == [StartDriver(build)]
    shown = views.index(world.leader, world.index("by_city"), world.now)
    assert (shown["lost"], shown["rebuilds"]) == ([1], [build])
    assert views.build(world.leader, world.build(build), world.now)["slices"] == {"by_city": [1]}
    (one,) = [s for s in views.slices(world.leader, world.index("by_city"), world.now) if s["slice"] == 1]
    assert (one["state"], one["reason"], one["rebuild"]) == ("LOST", "its folder is gone", build)
    index, record = world.index("by_city"), world.build(build)
    assert (index.state, index.slice_builds, index.version) == ("READY", {1: build}, 1)
    assert (index.build_of(0), index.build_of(1)) == ("b8", build)
    assert world.keyspace().version == 1  # projectors notice nothing
    assert record.queue_positions == {"by_city-7": {1: 71}}
    assert record.load_timestamp.offsets() == record.low_watermark == {0: 200, 1: 90}

    assert world.driver(build, "PASSED", 1, (200, 90)) == [SampleSource("people", build)]
    end = BuildEnd(build, "by_city-7", 1, 1, 1, 71)
    assert world.handle(SourceSampled(facts((210, 90)), build, world.now)) == [
        SendEnds(((backfill(build), 1, end),))
    ]
    beat(world, {1: "CATCHUP"}, (210, 90))
    assert world.tick(500) == []
    beat(world, {}, (209, 90))
    assert world.tick(500) == []  # live, but not past the source's end after the final batch (R25)
    beat(world, {}, (210, 90))
    assert world.tick(500) == [DeleteTopics((backfill(build),)), RemoveBuildFolder(build)]
    assert world.build(build).state == "READY"
    assert world.notes[-1].kind == "slices-rebuilt"
    page = metrics.render(world.leader, world.now)
    assert b"keytide_rebuilds_total 1.0" in page
    assert b'keytide_slices_lost{index="by_city"} 0.0' in page
    assert "slices 1 of by_city" in world.notes[-1].text
    assert [one for one in live(world, {}, 5_000) if isinstance(one, PrepareBuild)] == []


def test_what_is_lost_within_the_wait_is_one_build_and_several_indexes_too() -> None:
    world = serving()
    other = with_other(world)
    beat(world, {2: "LOST"})
    lost = [status(world, 1, "LIVE", (140, 60)), status(world, 0, "LOST", index=other.id)]
    world.now += 500
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, lost, 0, 0, 0), world.now))
    world.tick(500)
    world.tick(500)
    (prepare,) = world.tick(500)
    assert isinstance(prepare, PrepareBuild)
    record = world.build(prepare.build)
    assert record.slices == {"by_city-7": [2], other.id: [0]}
    assert len(prepare.topics) == len(prepare.queues) == 2


def test_a_rebuild_does_not_wait_for_builds_of_new_indexes() -> None:
    world = serving(BuildLimits(rebuild_wait_ms=1_000, concurrent=1, concurrent_per_node=1))
    for name in ("first", "second"):
        world.sql(f"CREATE INDEX {name} ON people (name) WITH (slices=2)")
    (prepare,) = world.tick()
    assert isinstance(prepare, PrepareBuild)
    rebuild = queued(world, {1: "LOST"})
    assert world.build(rebuild).rebuild
    waiting = world.leader.builds.registry.run(world.index("second").build or "").waiting_for
    assert waiting == "its turn: 2 builds run (setting build.concurrent)"


def test_a_slice_with_a_replica_that_serves_is_not_rebuilt() -> None:
    world = serving()
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, placement=[["n1"], ["n2", "n3"], ["n1"]]))
    beat(world, {1: "LOST"})
    serves = [status(world, 1, "LIVE", (130, 60))]
    world.handle(Reported(NodeHeartbeat("n3", "", 1, world.now, serves, 0, 0, 0), world.now))
    assert [one for one in live(world, {1: "LOST"}, 2_500) if isinstance(one, PrepareBuild)] == []


def test_numbers_are_published_without_slices_that_are_lost_or_rebuilt() -> None:
    world = serving()
    stream = world.leader.stability.streams["people"]
    index = "by_city-7"

    def published() -> int:
        world.common(stream.progress.timestamp().offset(0) + 1, 60, nodes=("n1",))
        told = [one for one in world.broadcasts if isinstance(one, Published)][-1]
        return told.numbers[index]

    before = stream.published[index]
    assert published() == before  # slice 1 lacks it
    beat(world, {1: "LOST"})
    lost = published()
    assert lost > before
    build = queued(world, {1: "LOST"})
    prepared(world, build)
    beat(world, {1: "BUILDING"})
    rebuilding = published()
    assert rebuilding > lost
    world.driver(build, "PASSED", 1, (200, 90))
    world.handle(SourceSampled(facts((210, 90)), build, world.now))
    other, _ = world.restart(tuple(world.places.items()), (Published("people", 1, 0, {index: rebuilding}),))
    other.node("n1", "n2")
    assert other.leader.stability.streams["people"].published == {index: rebuilding}
    beat(world, {}, (210, 90))
    world.tick(500)
    assert world.build(build).state == "READY"
    after = published()
    assert after == rebuilding  # from now on it is waited for again


def test_an_index_under_build_is_not_ready_without_a_slice() -> None:
    world = backfilled(World(LIMITS))
    beat(world, {1: "LOST"})
    world.common(130, 60, nodes=("n1",))
    assert world.index("by_city").state == "BUILDING"


def test_a_rebuild_that_fails_is_tried_again_with_growing_pauses_and_then_the_index_fails() -> None:
    world = serving()
    pauses = []
    build = queued(world, {1: "LOST"})
    for attempt in range(3):
        assert world.build(build).attempt == attempt
        prepared(world, build)
        world.handle(DriverExited(build, 3, "no Java", world.now))
        out = world.tick(3_000)
        assert out == [StopDriver(build), DeleteTopics((backfill(build),)), RemoveBuildFolder(build)]
        assert (world.build(build).state, world.index("by_city").state) == ("FAILED", "READY")
        failed_at = world.now
        if attempt < 2:
            again: list[PrepareBuild] = []
            while not again:  # the node still has it as a slice of that build
                again = [one for one in live(world, {1: "BUILDING"}, 500) if isinstance(one, PrepareBuild)]
            build = again[0].build
            pauses.append(world.now - failed_at)
    assert 10_000 <= pauses[0] < 13_000
    assert 20_000 <= pauses[1] < 23_000
    live(world, {1: "BUILDING"}, 45_000)
    index = world.index("by_city")
    assert (index.state, index.slice_builds) == ("FAILED", {})
    assert "could not be rebuilt in 3 attempts; at last: no Java; build the index again" in index.reason


def test_an_index_that_fails_for_one_slice_has_no_say_in_the_rebuild_of_others() -> None:
    world = serving()
    other = with_other(world).id
    for id_, slices, attempt in (
        ("b2", {"by_city-7": [0]}, 2),
        ("b3", {"by_city-7": [2]}, 1),
        ("b4", {other: [0]}, 0),
    ):
        failed = BuildRecord(
            id_, "people", [*slices], "FAILED", Timestamp(), 1, slices=slices, attempt=attempt
        )
        world.leader.dictionary.put(failed)
    world.now += 60_000
    for _ in range(4):
        beat(world, {0: "LOST", 2: "LOST"})
        lost = [status(world, 1, "LIVE", (140, 60)), status(world, 0, "LOST", index=other)]
        world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, lost, 0, 0, 0), world.now))
        world.tick(500)
    assert "slice 0 lost its data and could not be rebuilt" in world.index("by_city").reason
    assert (world.index("by_city").state, world.index("other").state) == ("FAILED", "READY")
    (build,) = [one for one in world.leader.builds.registry.all() if one.rebuild and one.state != "FAILED"]
    assert (build.slices, build.attempt) == ({other: [0]}, 1)


def test_a_rebuild_that_is_cancelled_is_tried_again_later() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    world.take(world.leader.commands.cancel(build, world.now).instructions)
    assert [one for one in live(world, {1: "LOST"}, 9_000) if isinstance(one, PrepareBuild)] == []
    assert [one for one in live(world, {1: "LOST"}, 4_000) if isinstance(one, PrepareBuild)]


def test_it_waits_for_the_node_that_lost_it() -> None:
    world = serving()
    beat(world, {1: "LOST"})
    world.tick(500)
    world.tick(1_000)
    (build,) = [one for one in world.leader.builds.registry.all() if one.rebuild]
    for _ in range(8):
        world.tick(500)
    message = NodeHeartbeat("n1", "", 1, world.now, [], 0, 0, 0)
    world.handle(Reported(message, world.now))  # n2 is silent
    world.leader.builds.registry.run(build.id).preparing = False
    assert world.tick() == []
    assert world.leader.builds.registry.run(build.id).waiting_for == "indexer nodes: n2 are not live"


def test_a_slice_that_loses_its_data_again_begins_its_build_again() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    prepared(world, build)
    live(world, {1: "LOST"}, 9_000)  # the node has not heard yet
    assert world.build(build).state == "BACKFILL"
    out = live(world, {1: "LOST"}, 3_000)
    assert StopDriver(build) in out
    assert world.build(build).state == "CANCELLED"
    (again,) = [one for one in out if isinstance(one, PrepareBuild)]
    assert (world.build(again.build).slices, world.build(again.build).attempt) == ({"by_city-7": [1]}, 1)


def test_a_slice_that_loses_its_data_in_its_first_build_begins_that_again() -> None:
    world = backfilled(World(LIMITS))
    live(world, {0: "LOST"}, 12_000)
    assert world.build("b8").state == "CANCELLED"
    assert "slice 0 of by_city-7 lost what it had got" in world.build("b8").error
    again = world.index("by_city").build
    assert again not in (None, "b8")
    assert not world.build(str(again)).rebuild


def test_a_rollback_begins_a_rebuild_again() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    in_catchup(world, build)
    out = world.leader.builds.rolled_back("people", "the source lost records", world.now)
    assert StopDriver(build) in out
    (again,) = [one for one in world.leader.builds.registry.all() if one.state == "QUEUED"]
    assert (again.slices, again.attempt) == ({"by_city-7": [1]}, 1)


def test_dropping_an_index_ends_its_rebuild() -> None:
    for catchup in (False, True):
        world = serving()
        build = queued(world, {1: "LOST"})
        if catchup:
            in_catchup(world, build)
        else:
            prepared(world, build)
        out = world.sql("DROP INDEX by_city")
        assert {StopDriver(build), DeleteTopics((backfill(build),)), RemoveBuildFolder(build)} <= set(out)
        assert world.build(build).state == "CANCELLED"
        assert world.index("by_city").state == "DROPPING"
        assert [one for one in live(world, {1: "LOST"}, 5_000) if isinstance(one, PrepareBuild)] == []


def test_an_index_leaves_a_rebuild_of_several() -> None:
    world = serving()
    catalog = world.leader.dictionary.catalog
    other = with_other(world).id
    record = world.leader.builds.request_rebuild("people", {"by_city-7": [1], other: [0]}, world.now)
    assert record is not None
    world.tick()
    ends = {MUTATIONS: {1: 5}, f"kt.mutations.{other}": {0: 6}}
    world.handle(BuildPrepared(record.id, facts((200, 90)), world.now, ends))
    assert world.build(record.id).queue_positions == {"by_city-7": {1: 5}, other: {0: 6}}
    world.sql("DROP INDEX other")
    (again,) = [one for one in catalog.builds() if one.state == "QUEUED"]
    assert again.slices == {"by_city-7": [1]}
    assert world.build(record.id).state == "CANCELLED"


def test_a_restart_of_the_coordinator_in_any_phase() -> None:
    world = serving()
    live(world, {1: "LOST"}, 500)
    other, out = world.restart()
    build = queued(other, {1: "LOST"})
    other, out = other.restart()  # topics were being made
    assert out == []
    assert [one.build for one in live(other, {1: "LOST"}, 500) if isinstance(one, PrepareBuild)] == [build]
    prepared(other, build)
    other, out = other.restart()
    assert out == [StartDriver(build)]
    other.driver(build, "PASSED", 1, (200, 90))
    other.handle(SourceSampled(facts((210, 90)), build, other.now))
    other, out = other.restart()
    assert out == [SendEnds(((backfill(build), 1, BuildEnd(build, "by_city-7", 1, 1, 1, 71)),))]
    beat(other, {}, (210, 90))
    assert RemoveBuildFolder(build) in other.tick(500)
    assert other.build(build).state == "READY"


def test_its_backfill_queue_is_no_orphan_and_its_record_is_kept_while_it_is_used() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    prepared(world, build)
    assert orphans(world.leader.dictionary.catalog, "kt", [MUTATIONS, backfill(build)]) == ([], [])
    world.driver(build, "PASSED", 1, (200, 90))
    world.handle(SourceSampled(facts((210, 90)), build, world.now))
    beat(world, {}, (210, 90))
    world.tick(500)
    world.sql("CREATE INDEX a ON people (a) WITH (defer_build=true)")
    for _ in range(60):
        answer = world.leader.commands.build(["a"], 0, world.now)
        world.take(answer.instructions)
        assert answer.build is not None
        world.take(world.leader.commands.cancel(answer.build.id, world.now).instructions)
    assert world.build(build).state == "READY"


def test_an_index_that_was_built_again_knows_no_rebuilt_slices() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    prepared(world, build)
    index = world.leader.dictionary.index_named("by_city")
    world.take(world.leader._settle(world.leader._fail(index, "a reason", world.now), world.now))
    assert world.build(build).state == "CANCELLED"
    failed = world.index("by_city")
    assert (failed.state, failed.slice_builds, failed.build_of(1)) == ("FAILED", {}, "b8")


def test_a_slice_that_is_lost_before_it_served_changes_what_is_published_for() -> None:
    """It was not required as a copy that serves, and as one of those of which somebody must hold a number."""
    world = serving()
    beat(world, {1: "CATCHUP"})
    nodes = world.leader.stability.nodes
    version = nodes.version
    beat(world, {1: "CATCHUP"})
    assert nodes.version == version
    beat(world, {1: "LOST"})
    assert nodes.version > version
