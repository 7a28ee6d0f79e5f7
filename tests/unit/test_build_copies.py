"""Builds of indexes with several copies of each slice, through the whole pure leader."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.builds.copies import ABSENT_MS
from coordinator.builds.registry import BuildLimits
from coordinator.core.instructions import DeleteTopics, Instruction
from coordinator.core.nodes import HeardNodes
from coordinator.stability.publishing import usable_copies
from tests.unit.copy_world import INDEX, NODES, CopyWorld

BEHIND: dict[str, Any] = {"state": "CATCHUP", "number": -1}
LOST: dict[str, Any] = {"state": "LOST", "reason": "its folder is gone", "number": -1}


def state(world: CopyWorld) -> str:
    return world.index("by_city").state


def at_end(world: CopyWorld, ms: int) -> list[Instruction]:
    """Time passes; timestamps with all that the build is to bring are issued and acknowledged by heartbeats
    of nodes that are not silent."""
    world.progress(world.known().version, 130, 60)
    return world.live(ms)


def test_every_copy_has_its_place_on_another_node() -> None:
    world = CopyWorld(replicas=2).catch_up()
    assert [sorted(nodes) for nodes in world.index("by_city").placement] == [list(NODES)] * 2


def test_ready_waits_for_every_copy() -> None:
    world = CopyWorld().catch_up()
    world.says["n2", 0] = BEHIND
    at_end(world, 30_000)
    assert state(world) == "BUILDING"
    world.says.clear()
    out = at_end(world, 1_000)
    assert state(world) == "READY"
    assert DeleteTopics((f"kt.backfill.{INDEX}.b8",)) in out


def test_one_copy_of_each_slice_is_not_enough_when_no_heartbeat_has_told_of_the_others() -> None:
    """What nodes acknowledge comes before they say in a heartbeat that they serve."""
    world = CopyWorld().catch_up()
    world.common(130, 60, nodes=("n1", "n3"))
    assert state(world) == "BUILDING"
    world.common(131, 60, nodes=NODES)
    assert state(world) == "READY"


def test_a_silent_copy_is_waited_for_for_a_minute() -> None:
    world = CopyWorld().catch_up()
    world.says["n2", 0] = BEHIND
    at_end(world, 2_000)
    world.silent = {"n2"}
    at_end(world, ABSENT_MS - 1_000)
    assert state(world) == "BUILDING"
    at_end(world, 2_000)
    assert state(world) == "READY"
    assert world.index("by_city").placement[0] == ["n1", "n2"]  # (its copy is replaced by the leader)
    (note,) = [one for one in world.notes if one.kind == "index-ready"]
    assert note.text.endswith("; copies are missing, whose nodes say nothing: slice 0 on node n2")


def test_a_silent_copy_that_comes_back_in_time_is_waited_for() -> None:
    world = CopyWorld().catch_up()
    world.says["n2", 0] = BEHIND
    at_end(world, 2_000)
    world.silent = {"n2"}
    at_end(world, ABSENT_MS - 5_000)
    world.silent = set()
    at_end(world, 60_000)
    assert state(world) == "BUILDING"
    world.says.clear()
    at_end(world, 1_000)
    assert state(world) == "READY"


def test_no_index_is_ready_with_a_slice_that_no_copy_serves() -> None:
    world = CopyWorld().catch_up()
    world.says["n3", 1] = BEHIND
    at_end(world, 2_000)
    world.silent = {"n1", "n2"}
    world.says.clear()
    at_end(world, 3 * ABSENT_MS)  # slice 0 was acknowledged, and is nowhere now
    assert state(world) == "BUILDING"
    world.silent = {"n2"}
    at_end(world, 2_000)
    assert state(world) == "READY"


def test_an_index_without_replicas_waits_for_its_silent_slice() -> None:
    world = CopyWorld(replicas=0).catch_up()
    ((one,), (other,)) = world.index("by_city").placement
    world.says[other, 1] = BEHIND
    at_end(world, 2_000)
    world.says.clear()
    world.silent = {one}
    at_end(world, 3 * ABSENT_MS)
    assert state(world) == "BUILDING"


def test_a_leader_that_stood_still_holds_it_against_nobody() -> None:
    world = CopyWorld().catch_up()
    world.says["n2", 0] = BEHIND
    at_end(world, 2_000)
    world.now += 2 * ABSENT_MS
    world.silent = {"n2"}
    at_end(world, 2_000)
    assert state(world) == "BUILDING"


def test_a_new_leader_waits_for_who_was_not_heard_yet() -> None:
    before = CopyWorld().catch_up()
    before.says["n2", 0] = BEHIND
    at_end(before, 2_000)
    other, _ = before.restart(((before.number, before.places[before.number]),))
    world = CopyWorld.__new__(CopyWorld)
    world.__dict__.update(other.__dict__)
    world.silent, world.says = {"n2"}, {}
    at_end(world, 30_000)
    assert state(world) == "BUILDING"
    at_end(world, ABSENT_MS)
    assert state(world) == "READY"


def test_a_lost_copy_is_not_waited_for_while_another_has_its_data() -> None:
    world = CopyWorld(limits=BuildLimits(lost_grace_ms=2_000)).catch_up()
    world.says["n2", 0] = LOST
    world.says["n1", 0] = BEHIND
    at_end(world, 10_000)
    assert (state(world), world.build("b8").state) == ("BUILDING", "CATCHUP")
    del world.says["n1", 0]
    at_end(world, 2_000)
    assert state(world) == "READY"


def test_a_build_begins_again_when_no_copy_of_a_slice_has_its_data() -> None:
    world = CopyWorld(limits=BuildLimits(lost_grace_ms=2_000)).catch_up()
    world.says["n1", 0] = world.says["n2", 0] = LOST
    at_end(world, 4_000)
    assert world.build("b8").state == "CANCELLED"
    assert "slice 0 of by_city-7 lost what it had got" in world.build("b8").error


@pytest.mark.parametrize("lost", [False, True])
def test_usable_copies(lost: bool) -> None:
    world = CopyWorld().catch_up()
    if lost:
        world.says["n1", 0] = LOST
    world.beat()
    nodes: HeardNodes = world.leader.builds.nodes
    index = world.index("by_city")
    assert usable_copies(nodes, index) == [["n2"] if lost else ["n1", "n2"], ["n3", "n1"]]
    world.says["n2", 0] = LOST
    world.beat()
    assert usable_copies(nodes, index)[0] == (["n1", "n2"] if lost else ["n1"])
