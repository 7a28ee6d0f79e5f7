"""Nodes that are drained, and rebalances: what moves, when, and what it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.catalog.registry import ConflictError
from coordinator.copies.balancing import Sketch
from coordinator.copies.moving import KEPT, Moves, NoSuchNodeError
from coordinator.jobs.registry import NoSuchJobError
from keytide.catalog.copies import CopyRecord, Move, RebalanceRecord
from keytide.errors import RetryableError
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld

PLAIN = replace(LIMITS, copies_per_node=100)


def serving(
    placement: list[list[str]], count: int = 3, limits: object = PLAIN, node_disk: bool = False
) -> CopiesWorld:
    world = CopiesWorld(placement, replicas=len(placement[0]) - 1, count=count, limits=PLAIN)
    world.go(2_000)
    assert world.published > 0
    return world


def moves(world: CopiesWorld) -> Moves:
    return world.leader.copies.moves


def drain(world: CopiesWorld, node: str) -> None:
    world.take(world.leader._settle(moves(world).drain(node, world.now)[1], world.now))


def undrain(world: CopiesWorld, node: str) -> None:
    world.take(world.leader._settle(moves(world).undrain(node)[1], world.now))


def fill_all(world: CopiesWorld) -> list[CopyRecord]:
    """Nodes fill what they are told to; what that is."""
    records = world.records()
    for record in records:
        world.fill(record)
    return records


def rebalance(world: CopiesWorld) -> str:
    record, out = moves(world).carry_out(moves(world).sketch().plan(), world.now)
    world.take(world.leader._settle(out, world.now))
    return record.id


# --- draining -----------------------------------------------------------------------------------------------


def test_what_is_on_a_drained_node_moves_and_leaves_it_when_it_counts_elsewhere() -> None:
    world = serving([["n1"], ["n2"]])
    drain(world, "n1")
    world.go(500)
    record = world.record()
    assert (record.slice, record.node, record.source) == (0, "n3", "n1")
    assert (record.why, record.replaces) == ("moved", "n1")
    assert "filled from node n1, to take the place of the one on node n1" in world.told("copy-begun")[0]
    assert moves(world).copies_on("n1") == 1
    world.fill(record)
    world.nodes["n1"].copies[0].leases = 1
    world.go(3_000)
    index = world.index("by_city")
    assert (index.placement, list(index.leaving[0])) == ([["n3"], ["n2"]], ["n1"])
    assert moves(world).copies_on("n1") == 1
    assert world.told("node-drained") == []
    world.nodes["n1"].copies[0].leases = 0
    world.go(1_000)
    assert moves(world).copies_on("n1") == 0
    assert world.told("node-drained") == ["node n1 has no slices any more"]
    world.go(5_000)
    assert len(world.told("node-drained")) == 1


def test_the_new_copy_takes_the_place_of_the_old_one_in_the_order() -> None:
    world = serving([["n1", "n2"]], count=3)
    drain(world, "n1")
    world.go(500)
    fill_all(world)
    world.go(2_000)
    assert world.placement() == ["n3", "n2"]


def test_nothing_new_is_placed_on_a_drained_node() -> None:
    world = serving([["n1"]], count=3)
    drain(world, "n2")
    index = world.index("by_city")
    definition = structs.replace(index.definition, replicas=2)
    world.leader.dictionary.put(structs.replace(index, definition=definition))
    world.go(1_000)
    assert world.record().node == "n3"


def test_what_is_being_filled_on_a_node_that_is_drained_is_filled_elsewhere() -> None:
    world = serving([["n1"]], count=3)
    index = world.index("by_city")
    definition = structs.replace(index.definition, replicas=1)
    world.leader.dictionary.put(structs.replace(index, definition=definition))
    world.go(1_000)
    first = world.record()
    drain(world, first.node)
    world.go(1_000)
    assert world.record().node not in ("n1", first.node)
    assert "its node is drained" in world.told("copy-given-up")[0]


def test_undrain_gives_up_what_moves_and_leaves_what_has_moved() -> None:
    world = serving([["n1"], ["n1"]])
    drain(world, "n1")
    world.go(500)
    first, second = world.records()
    world.fill(first)
    world.go(1_000)
    undrain(world, "n1")
    world.go(1_000)
    assert world.records() == []
    assert world.placement(second.slice) == ["n1"]
    assert world.placement(first.slice) == [first.node]
    assert "it is not to be moved any more" in world.told("copy-given-up")[0]
    assert moves(world).waiting == {}


def test_a_drain_says_what_it_waits_for() -> None:
    world = serving([["n1"]])
    world.nodes["n1"].copies[0].bytes = 1 << 30
    for name in ("n2", "n3"):
        world.nodes[name].disk_free = 0
    world.go(1_000)
    drain(world, "n1")
    world.go(1_000)
    assert (
        "of free disk on one of n2, n3: make room, or start another indexer node"
        in moves(world).waiting["n1"]
    )
    world.nodes["n2"].disk_free = 1 << 40
    world.go(1_000)
    assert "n1" not in moves(world).waiting
    assert world.record().node == "n2"


def test_a_drain_waits_for_builds_and_histories_that_are_examined() -> None:
    world = serving([["n1"]])
    drain(world, "n1")
    world.leader.builds.registry.halted.add("people")
    world.go(1_000)
    assert moves(world).waiting["n1"] == "the history of people to be examined"


def test_a_leader_that_takes_over_goes_on_with_a_drain() -> None:
    world = serving([["n1"]])
    drain(world, "n1")
    world.go(500)
    record = world.record()
    world.succeed()
    world.go(1_000)
    assert world.record() == record
    world.fill(record)
    world.go(3_000)
    assert world.placement() == [record.node]


def test_a_node_with_more_copies_than_are_wanted_has_them_leave_first() -> None:
    world = serving([["n1", "n2", "n3"]])
    drain(world, "n1")
    index = world.index("by_city")
    definition = structs.replace(index.definition, replicas=1)
    world.leader.dictionary.put(structs.replace(index, definition=definition))
    world.go(1_000)
    assert world.records() == []
    assert world.placement() == ["n2", "n3"]


def test_who_cannot_be_drained() -> None:
    world = serving([["n1"]], count=2)
    with pytest.raises(NoSuchNodeError, match="n9"):
        moves(world).drain("n9", world.now)
    with pytest.raises(NoSuchNodeError):
        moves(world).undrain("n9")
    drain(world, "n2")
    assert moves(world).drain("n2", world.now)[1] == [], "it is already"
    with pytest.raises(ConflictError, match="no other indexer node is live"):
        moves(world).drain("n1", world.now)


# --- rebalancing --------------------------------------------------------------------------------------------


def planned(monkeypatch: pytest.MonkeyPatch, *found: Move) -> None:
    monkeypatch.setattr(Sketch, "plan", lambda self: list(found))


def test_a_rebalance_carries_out_its_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n3", 5_000_000), Move(INDEX, 1, "n1", "n2"))
    world = serving([["n1"], ["n1"]])
    id_ = rebalance(world)
    world.go(500)
    assert [(one.slice, one.node, one.replaces, one.rebalance) for one in world.records()] == [
        (0, "n3", "n1", id_),
        (1, "n2", "n1", id_),
    ]
    with pytest.raises(ConflictError, match="is running"):
        moves(world).carry_out([], world.now)
    fill_all(world)
    world.go(3_000)
    record = moves(world).find(id_)
    assert (record.state, record.left, record.dropped) == ("DONE", [], 0)
    assert record.detail == "2 of 2 copies have moved"
    assert world.index("by_city").placement == [["n3"], ["n2"]]


def test_as_many_at_once_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, *(Move(INDEX, number, "n1", "n2") for number in range(4)))
    world = CopiesWorld([["n1"]] * 4, replicas=0, limits=LIMITS)
    world.go(2_000)
    rebalance(world)
    world.go(1_000)
    assert [one.slice for one in world.records()] == [0, 1]


def test_a_long_rebalance_is_not_written_anew_for_each_of_its_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, *(Move(INDEX, number, "n1", "n2") for number in range(210)))
    world = serving([["n1"]] * 210)
    id_ = rebalance(world)
    world.go(500)
    for done, left in ((1, 210), (2, 210), (3, 207)):
        world.fill(world.records()[0])
        world.go(2_000)
        assert world.index("by_city").placement.count(["n2"]) == done
        assert len(moves(world).find(id_).left) == left


def test_moves_that_make_no_sense_any_more_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Move("by_city-0", 0, "n1", "n2")
    there, away = Move(INDEX, 0, "n1", "n2"), Move(INDEX, 1, "n3", "n1")
    planned(monkeypatch, gone, there, away, Move(INDEX, 1, "n2", "n9"), Move(INDEX, 7, "n1", "n3"))
    world = serving([["n1", "n2"], ["n2", "n1"]])
    id_ = rebalance(world)
    world.go(500)
    record = moves(world).find(id_)
    assert (record.state, record.dropped) == ("DONE", 4)
    assert record.detail == (
        "1 of 5 copies have moved; 4 have not, for what they were planned for has changed"
    )


def test_a_move_that_comes_to_nothing_again_and_again_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n2"))
    world = serving([["n1"]])
    id_ = rebalance(world)
    for _ in range(3):
        world.until(lambda: bool(world.records()), 60_000)
        record = world.record()
        world.fill(record, "LOST")
        world.until(lambda one=record: one not in world.records())  # type: ignore[misc]
    world.go(1_000)
    assert moves(world).find(id_).state == "DONE"
    assert moves(world).find(id_).dropped == 1


def test_a_rebalance_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n3"), Move(INDEX, 1, "n1", "n2"))
    world = serving([["n1"], ["n1"]])
    id_ = rebalance(world)
    world.go(500)
    world.fill(world.records()[0])
    world.go(1_000)
    record, out = moves(world).cancel(id_, world.now)
    world.take(world.leader._settle(out, world.now))
    assert record.state == "CANCELLED"
    world.go(1_000)
    assert world.records() == []
    assert world.index("by_city").placement == [["n3"], ["n1"]]
    with pytest.raises(ConflictError, match="it is CANCELLED"):
        moves(world).cancel(id_, world.now)
    with pytest.raises(NoSuchJobError):
        moves(world).cancel("rebalance-0", world.now)


def test_nothing_to_move_is_done_at_once_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch)
    world = serving([["n1"]])
    for _ in range(KEPT + 3):
        id_ = rebalance(world)
        assert moves(world).find(id_).state == "DONE"
        world.now += 1
    known = [
        one for one in world.leader.dictionary.catalog.records.values() if isinstance(one, RebalanceRecord)
    ]
    assert len(known) == KEPT


def test_a_leader_that_takes_over_goes_on_with_a_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n3"), Move(INDEX, 1, "n1", "n2"))
    world = serving([["n1"], ["n1"]])
    id_ = rebalance(world)
    world.go(500)
    world.fill(world.records()[0])
    world.go(1_000)
    world.succeed()
    world.go(1_000)
    fill_all(world)
    world.go(3_000)
    assert moves(world).find(id_).state == "DONE"
    assert world.index("by_city").placement == [["n3"], ["n2"]]


def test_moves_that_have_not_begun_outlive_their_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n3"), Move(INDEX, 1, "n1", "n3"))
    world = CopiesWorld([["n1"], ["n1"]], replicas=0, limits=replace(LIMITS, copies_per_node=1))
    world.go(2_000)
    id_ = rebalance(world)
    world.go(500)
    assert [one.slice for one in world.records()] == [0]
    world.succeed()
    world.go(2_000)
    assert moves(world).find(id_).left == [0, 1], "nobody was heard at first"
    world.nodes["n3"].up = False
    world.go(10_000)
    assert moves(world).find(id_).left == [0, 1], "a node that is silent is waited for"
    world.go(2 * LIMITS.copy_after_ms)
    assert (moves(world).find(id_).state, moves(world).find(id_).dropped) == ("DONE", 2)


def test_a_leader_that_has_heard_nobody_yet_leaves_no_move_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, *(Move(INDEX, number, "n1", "n2") for number in range(4)))
    world = CopiesWorld([["n1"]] * 4, replicas=0, limits=LIMITS)
    world.go(2_000)
    id_ = rebalance(world)
    world.go(1_000)
    world.succeed()
    world.go(1_000)
    assert (moves(world).find(id_).left, moves(world).find(id_).dropped) == ([0, 1, 2, 3], 0)


def test_a_target_that_is_silent_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n2"))
    world = serving([["n1"]])
    world.nodes["n2"].up = False
    world.go(5_000)
    id_ = rebalance(world)
    world.go(5_000)
    assert moves(world).find(id_).state == "RUNNING"
    world.nodes["n2"].up = True
    world.go(2_000)
    assert world.record().node == "n2"


def test_a_target_that_is_not_expected_back_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Move(INDEX, 0, "n1", "n2"))
    world = serving([["n1"]])
    world.nodes["n2"].up = False
    id_ = rebalance(world)
    world.go(LIMITS.copy_after_ms + 5_000)
    assert (moves(world).find(id_).state, moves(world).find(id_).dropped) == ("DONE", 1)


@pytest.mark.parametrize("how", ["undrained", "drained"])
def test_a_whole_copy_is_kept_when_nothing_else_is_left(how: str) -> None:
    world = serving([["n1"]])
    drain(world, "n1")
    world.go(500)
    record = world.record()
    world.fill(record, "CATCHUP")
    world.go(1_000)
    world.lose("n1")
    if how == "undrained":
        undrain(world, "n1")
    else:
        drain(world, record.node)
    world.go(10_000)
    assert world.leader.builds.registry.all() == [], "nothing is rebuilt"
    world.nodes[record.node].copies[0].state = "LIVE"
    world.go(3_000)
    assert world.placement()[0] == record.node


def test_nothing_moves_off_a_node_that_is_silent_for_a_while() -> None:
    world = serving([["n1", "n2"], ["n2", "n1"]])
    world.nodes["n1"].up = False
    world.go(5_000)
    assert moves(world).sketch().plan() == []


def test_nothing_is_planned_before_all_nodes_are_heard() -> None:
    world = serving([["n1"], ["n1"]])
    world.succeed()
    for ask in (moves(world).sketch, lambda: moves(world).drain("n1", world.now)):
        with pytest.raises(RetryableError, match="before word of n1, n2, n3, which this coordinator"):
            ask()
    world.go(1_000)
    assert len(moves(world).sketch().plan()) == 1
    for node in world.nodes.values():
        node.up = False
    world.succeed()
    world.go(LIMITS.node_timeout_ms + 1_000)
    with pytest.raises(ConflictError, match="no indexer node is live"):
        moves(world).sketch()
