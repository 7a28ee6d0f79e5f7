"""What drains and rebalances say that they wait for."""

from __future__ import annotations

import pytest

from keytide.catalog.copies import Move
from tests.unit.copies_world import INDEX, LIMITS
from tests.unit.test_moving import drain, fill_all, moves, planned, rebalance, serving


def test_a_drain_says_that_copies_are_still_read() -> None:
    world = serving([["n1"]])
    drain(world, "n1")
    world.go(500)
    fill_all(world)
    world.nodes["n1"].copies[0].leases = 1
    world.go(3_000)
    words = moves(world).waiting["n1"]
    assert words.startswith("who still reads slice 0 of by_city there, for ")
    assert words.endswith(" s more at most (setting coordinator.leave_after_s)")
    world.nodes["n1"].copies[0].leases = 0
    world.go(2_000)
    assert moves(world).waiting == {}


def test_a_drain_says_that_what_leaves_waits_for_another_copy() -> None:
    world = serving([["n1"]])
    drain(world, "n1")
    world.go(500)
    record = world.record()
    fill_all(world)
    world.nodes["n1"].copies[0].leases = 1
    world.go(3_000)
    world.nodes[record.node].copies[0].state = "STOPPED"
    world.go(1_000)
    assert moves(world).waiting["n1"] == (
        f"a copy of slice 0 of by_city that holds what is published, on {record.node}, before this one goes"
    )


def test_a_drain_of_a_node_that_is_silent_says_so() -> None:
    world = serving([["n1"]])
    drain(world, "n1")
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms + 5_000)
    assert moves(world).waiting["n1"] == (
        "node n1, which is silent, to come back: no other copy of slice 0 of by_city holds what is published"
    )


def test_a_rebalance_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n2"))
    world = serving([["n1"]])
    world.nodes["n2"].disk_free = -1
    world.go(1_000)
    id_ = rebalance(world)
    world.go(1_000)
    assert "of free disk on one of n2" in moves(world).held_up[id_]
    world.nodes["n2"].up = False
    world.go(5_000)
    assert moves(world).held_up[id_] == "node n2, which is not live"
    world.nodes["n2"].up, world.nodes["n2"].disk_free = True, 1 << 40
    world.go(1_000)
    assert moves(world).held_up == {}
    world.leader.builds.registry.halted.add("people")
    moves(world).cancel(id_, world.now)
    world.go(1_000)
    assert moves(world).held_up == {}
