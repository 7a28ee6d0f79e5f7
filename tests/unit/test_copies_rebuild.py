"""Copies and rebuilds from the source: which of both brings a slice back, and what becomes of the other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import BuildPrepared, SourceSampled
from coordinator.core.instructions import Instruction, Note, PrepareBuild
from keytide.catalog.records import BuildRecord
from keytide.model.timestamp import Timestamp
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld
from tests.unit.leader_world import facts

BUILD_LIMITS = BuildLimits(rebuild_wait_ms=1_000)
QUEUE = f"kt.mutations.{INDEX}"


def serving(placement: list[list[str]] | None = None, replicas: int = 1, count: int = 3) -> CopiesWorld:
    world = CopiesWorld(
        placement or [["n1", "n2"]], build_limits=BUILD_LIMITS, replicas=replicas, count=count
    )
    world.go(2_000)
    return world


def rebuilds(world: CopiesWorld) -> list[BuildRecord]:
    return [build for build in world.leader.builds.registry.all() if build.rebuild]


def prepared(world: CopiesWorld) -> BuildRecord:
    """The rebuild of slice 0 begins."""
    (build,) = [one for one in rebuilds(world) if one.state == "QUEUED"]
    world.handle(BuildPrepared(build.id, facts((200, 90)), world.now, {QUEUE: {0: 70}}))
    return world.build(build.id)


def test_while_a_copy_is_left_nothing_is_rebuilt() -> None:
    world = serving()
    world.lose("n1")
    world.go(10_000)
    assert rebuilds(world) == []
    assert world.placement() == ["n2"]


def test_a_slice_is_rebuilt_when_no_copy_is_left_on_all_nodes_that_count() -> None:
    world = serving()
    world.lose("n1")
    world.lose("n2")
    world.go(3_000)
    build = prepared(world)
    assert build.slices == {INDEX: [0]}
    assert world.placement() == ["n1", "n2"]
    assert world.index("by_city").slice_builds == {0: build.id}


def test_not_while_another_node_may_come_back() -> None:
    world = serving(count=2)
    world.nodes["n2"].up = False
    world.go(5_000)
    world.lose("n1")
    world.go(LIMITS.copy_after_ms - 10_000)
    assert rebuilds(world) == []
    world.nodes["n2"].up = True
    world.go(3_000)
    assert rebuilds(world) == []
    assert world.placement() == ["n2"]


def test_then_on_account_of_the_one_that_is_lost() -> None:
    world = serving(count=2)
    world.nodes["n2"].up = False
    world.go(5_000)
    world.lose("n1")
    world.go(LIMITS.copy_after_ms + 3_000)
    (build,) = rebuilds(world)
    assert build.slices == {INDEX: [0]}


def test_it_is_over_when_one_serves_and_the_other_is_filled_from_that() -> None:
    world = serving(count=2)
    world.lose("n1")
    world.lose("n2")
    world.go(3_000)
    build = prepared(world)
    world.nodes["n1"].copies[0].state = "BUILDING"
    world.driver(build.id, "PASSED", 1, (200, 90))
    world.handle(SourceSampled(facts((210, 90)), build.id, world.now))
    copy = world.nodes["n1"].copies[0]
    copy.state, copy.number = "LIVE", world.number
    copy.timestamp = Timestamp.of({0: 210, 1: 90})
    world.go(3_000)
    assert world.build(build.id).state == "READY"
    assert world.placement() == ["n1"], "what is still lost is taken out"
    assert (world.record().node, world.record().source) == ("n2", "n1")


def test_a_copy_that_was_being_filled_is_given_up_when_a_rebuild_begins() -> None:
    world = serving([["n1"]])
    record = world.record()
    world.fill(record, "FILLING")
    world.lose("n1")
    world.go(3_000)
    assert world.record() == record, "not before"
    prepared(world)
    assert world.records() == []
    assert world.told("copy-given-up")[-1].endswith("is given up: the slice is rebuilt from its source")
    world.go(3_000)
    assert world.records() == []


def test_ids_of_copies_go_in_the_write_that_begins_a_rebuild() -> None:
    """What it fills has none."""
    world = serving([["n1"]], count=2)
    record = world.record()
    world.fill(record)
    world.until(lambda: not world.records())
    assert world.index("by_city").copies == {0: {"n2": record.id}}
    world.lose("n1")
    world.lose("n2")
    world.go(3_000)
    (build,) = rebuilds(world)
    out = world.leader.handle(BuildPrepared(build.id, facts((200, 90)), world.now, {QUEUE: {0: 70}}))
    (write,) = [one for one in out if not isinstance(one, Note) and hasattr(one, "records")]
    index = dict(write.records)[f"index/{INDEX}"]
    assert index.slice_builds == {0: build.id}
    assert index.copies == {}


def test_a_copy_that_is_about_to_count_needs_no_rebuild() -> None:
    """The one that it was filled from is lost; it has got all rows, and reads its queue."""
    world = serving([["n1"]])
    record = world.record()
    copy = world.fill(record, "CATCHUP")
    world.go(1_000)
    world.lose("n1")
    world.go(10_000)
    assert rebuilds(world) == []
    assert world.leader.stability.nodes.lost == {(INDEX, 0)}
    copy.state = "LIVE"
    world.go(2_000)
    assert rebuilds(world) == []
    assert world.placement() == [record.node], "the lost one is taken out"


def test_a_copy_whose_node_comes_back_before_it_begins_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild waits for its turn, its topics, a pause (R46)."""
    world = serving(count=2)
    world.nodes["n2"].up = False
    world.go(5_000)
    monkeypatch.setattr(world.leader.builds.registry, "turn", lambda *_: "its turn")
    world.lose("n1")
    world.go(LIMITS.copy_after_ms + 3_000)
    (build,) = rebuilds(world)
    assert build.state == "QUEUED"
    world.nodes["n2"].up = True
    world.go(2_000)
    assert world.build(build.id).state == "CANCELLED"
    assert "its slices serve again" in world.build(build.id).error
    assert world.placement() == ["n2"]


def test_slices_that_do_not_serve_stay_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = serving([["n1", "n2"], ["n1", "n2"]], count=2)
    monkeypatch.setattr(world.leader.builds.registry, "turn", lambda *_: "its turn")
    for number in (0, 1):
        world.lose("n1", number)
        world.lose("n2", number)
    world.go(3_000)
    (build,) = rebuilds(world)
    assert build.slices == {INDEX: [0, 1]}
    world.nodes["n2"].copies[1].state = "LIVE"
    world.go(1_000)
    (build,) = rebuilds(world)
    assert (build.state, build.slices) == ("QUEUED", {INDEX: [0]})
    assert world.placement(1) == ["n2"]


def test_one_that_is_being_prepared_goes_on() -> None:
    world = serving()
    world.lose("n1")
    world.lose("n2")
    out: list[Instruction] = world.go(3_000)
    assert [one for one in out if isinstance(one, PrepareBuild)] != []
    world.nodes["n2"].copies[0].state = "LIVE"
    world.go(500)
    (build,) = rebuilds(world)
    assert (build.state, build.slices) == ("QUEUED", {INDEX: [0]})


def begun_again(world: CopiesWorld) -> BuildRecord:
    """The source loses what the rebuild of slice 0 has read: it begins again, and meanwhile the slice serves
    what it has got."""
    prepared(world)
    for name in ("n1", "n2"):
        world.nodes[name].copies[0].state = "LIVE"
    world.take(world.leader.builds.rolled_back("people", "the source lost records", world.now))
    world.go(2_000)
    (again,) = [one for one in rebuilds(world) if one.state == "QUEUED"]
    return again


def test_one_that_begins_again_is_not_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    world = serving()
    world.lose("n1")
    world.lose("n2")
    world.go(3_000)
    monkeypatch.setattr(world.leader.builds.registry, "turn", lambda *_: "its turn")
    assert begun_again(world).slices == {INDEX: [0]}


def test_nothing_is_filled_from_what_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = serving()
    world.lose("n1")
    world.lose("n2")
    world.go(3_000)
    monkeypatch.setattr(world.leader.builds.registry, "turn", lambda *_: "its turn")
    begun_again(world)
    world.lose("n1")
    world.go(3_000)
    assert world.records() == []
    assert world.placement() == ["n1", "n2"]


def leaving_one(world: CopiesWorld) -> None:
    """The copy on n2 leaves, and is still read; its node is silent, and the one that counts is lost."""
    index = world.index("by_city")
    world.leader.dictionary.put(replace(index, definition=replace(index.definition, replicas=0)))
    world.nodes["n2"].copies[0].leases = 1
    world.go(2_000)
    assert (world.placement(), list(world.index("by_city").leaving[0])) == (["n1"], ["n2"])
    world.nodes["n2"].up = False
    world.go(5_000)
    world.lose("n1")


def test_not_while_a_copy_that_leaves_may_come_back() -> None:
    world = serving()
    leaving_one(world)
    world.go(10_000)
    assert rebuilds(world) == []
    world.nodes["n2"].up = True
    world.go(3_000)
    assert (world.placement(), rebuilds(world)) == (["n2"], [])


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_when_the_copy_that_leaves_does_not_come_back_either(how: str) -> None:
    world = serving()
    leaving_one(world)
    if how == "lost":
        world.lose("n2")
        world.nodes["n2"].up = True
        world.go(5_000)
    else:
        world.go(LIMITS.copy_after_ms + 5_000)
    assert len(rebuilds(world)) == 1
