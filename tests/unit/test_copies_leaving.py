"""Copies that are too many, or whose place another one takes: how they leave (R42, R43)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.unit.copies_world import LIMITS, CopiesWorld

GONE_MS = LIMITS.copy_after_ms + 2_000
SHORT = replace(LIMITS, leave_after_ms=20_000)


def wanting(replicas: int, placement: list[list[str]] | None = None, count: int = 3) -> CopiesWorld:
    """An index whose copies all serve, and that is to have so many beside the first from now on."""
    placement = placement or [["n1", "n2"]]
    world = CopiesWorld(placement, replicas=len(placement[0]) - 1, count=count)
    world.go(2_000)
    assert world.published > 0
    want(world, replicas)
    return world


def want(world: CopiesWorld, replicas: int) -> None:
    index = world.index("by_city")
    definition = structs.replace(index.definition, replicas=replicas)
    world.leader.dictionary.put(structs.replace(index, definition=definition))


def leaving(world: CopiesWorld, number: int = 0) -> list[str]:
    return list(world.index("by_city").leaving.get(number, {}))


def test_the_last_of_too_many_leaves_and_is_gone_when_nobody_reads_from_it() -> None:
    world = wanting(0)
    copy = world.nodes["n2"].copies[0]
    copy.leases = 1
    world.go(5_000)
    assert (world.placement(), leaving(world)) == (["n1"], ["n2"])
    assert world.index("by_city").leaving[0]["n2"].acknowledged
    assert world.told("copy-leaves") == [
        "the copy of slice 0 of by_city on node n2 leaves: there are 2, and are to be 1"
    ]
    copy.leases = 0
    world.go(1_000)
    assert (world.placement(), leaving(world)) == (["n1"], [])
    assert world.told("copy-left") == [
        "the copy of slice 0 of by_city on node n2, which was leaving, is gone: nobody reads from it any "
        "more; node n1 has what it had"
    ]


def test_one_that_does_not_serve_leaves_before_the_last() -> None:
    world = wanting(1)
    world.nodes["n1"].copies[0].state = "CATCHUP"
    world.go(1_000)
    want(world, 0)
    world.go(500)
    assert (world.placement(), leaving(world)) == (["n2"], ["n1"])


def test_none_leaves_unless_another_one_holds_what_is_published() -> None:
    world = wanting(1)
    world.busy = True
    world.nodes["n1"].copies[0].follows = False
    world.go(8_000)
    assert world.published > world.nodes["n1"].copies[0].number
    want(world, 0)
    world.go(8_000)
    assert (world.placement(), leaving(world)) == (["n1", "n2"], [])
    assert "before the one on node n2 leaves" in world.told("copy-waits")[0]
    world.nodes["n1"].copies[0].follows = True
    world.go(2_000)
    assert world.placement() == ["n1"]


def test_all_nodes_have_read_that_it_leaves_and_its_own_word_is_younger() -> None:
    world = wanting(0)
    world.nodes["n3"].read = world.offset
    world.go(5_000)
    assert not world.index("by_city").leaving[0]["n2"].acknowledged, "n3 may still send readers there"
    world.nodes["n2"].read = world.offset
    world.nodes["n3"].read = None
    world.go(2_000)
    assert world.index("by_city").leaving[0]["n2"].acknowledged
    world.go(5_000)
    assert leaving(world) == ["n2"], "what n2 says is from before everybody knew"
    world.nodes["n2"].read = None
    world.go(1_000)
    assert leaving(world) == []


def test_who_is_silent_does_not_hold_it_up_longer_than_its_grace() -> None:
    world = wanting(0)
    world.nodes["n3"].up = False
    world.go(10_000)
    assert leaving(world) == ["n2"]
    world.go(LIMITS.copy_after_ms)
    assert leaving(world) == [], "n3 is not expected back"


def test_its_grace_ends_and_a_leader_that_takes_over_counts_it_anew() -> None:
    world = CopiesWorld([["n1", "n2"]], limits=SHORT)
    world.go(2_000)
    want(world, 0)
    world.nodes["n2"].copies[0].leases = 3
    world.go(15_000)
    assert leaving(world) == ["n2"]
    world.succeed()
    world.go(15_000)
    assert leaving(world) == ["n2"]
    world.go(6_000)
    assert leaving(world) == []
    assert "its 20 s are over (setting coordinator.leave_after_s)" in world.told("copy-left")[0]


def test_a_leader_whose_clock_was_set_does_not_end_it() -> None:
    world = CopiesWorld([["n1", "n2"]], limits=SHORT)
    world.go(2_000)
    want(world, 0)
    world.nodes["n2"].copies[0].leases = 3
    world.go(1_000)
    world.now += 3_600_000
    world.beat()
    world.go(2_000)
    assert leaving(world) == ["n2"]


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_one_that_has_nothing_any_more_is_gone(how: str) -> None:
    world = wanting(0)
    world.nodes["n2"].copies[0].leases = 1
    world.go(2_000)
    if how == "lost":
        world.lose("n2")
        world.go(1_000)
    else:
        world.nodes["n2"].up = False
        world.go(GONE_MS)
    assert leaving(world) == []


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_it_counts_again_when_no_other_one_is_left(how: str) -> None:
    world = wanting(0)
    world.nodes["n2"].copies[0].leases = 1
    world.go(2_000)
    assert (world.placement(), leaving(world)) == (["n1"], ["n2"])
    if how == "lost":
        world.lose("n1")
        world.go(1_000)
    else:
        world.nodes["n1"].up = False
        world.go(GONE_MS)
    assert "n2" in world.placement()
    assert leaving(world) in ([], ["n1"])
    assert "counts again: no other one that does is left" in world.told("copy-counts")[0]
    world.go(5_000)
    assert world.placement() == ["n2"]
    assert world.leader.builds.registry.all() == [], "nothing is rebuilt"


def test_it_stays_while_the_other_one_lacks_what_is_published() -> None:
    world = wanting(0)
    world.nodes["n2"].copies[0].leases = 1
    world.go(2_000)
    world.nodes["n1"].copies[0].state = "STOPPED"
    world.nodes["n2"].copies[0].leases = 0
    world.go(3_000)
    assert leaving(world) == ["n2"]
    world.nodes["n1"].copies[0].state = "LIVE"
    world.go(1_000)
    assert leaving(world) == []


def test_nothing_leaves_while_the_history_is_examined() -> None:
    world = wanting(0)
    world.leader.builds.registry.halted.add("people")
    world.go(3_000)
    assert (world.placement(), leaving(world)) == (["n1", "n2"], [])


def test_copies_that_are_being_filled_are_given_up_first_the_youngest_before_others() -> None:
    world = wanting(3, count=4)
    world.go(1_000)
    first, second = world.records()
    want(world, 2)
    world.go(500)
    assert [one.id for one in world.records()] == [min((first, second), key=lambda one: one.id).id]
    want(world, 1)
    world.go(500)
    assert world.records() == []
    assert (world.placement(), leaving(world)) == (["n1", "n2"], [])


def test_a_slice_is_not_lost_while_the_copy_that_leaves_is_whole() -> None:
    """Else numbers would be published without it that it lacks when it counts again."""
    world = wanting(0)
    world.nodes["n2"].copies[0].leases = 1
    world.go(2_000)
    assert leaving(world) == ["n2"]
    world.lose("n1")
    world.beat("n1")
    assert world.leader.stability.nodes.lost == frozenset()
    world.lose("n2")
    world.beat("n2")
    assert world.leader.stability.nodes.lost != frozenset()


def test_too_many_gives_up_nothing_whole_while_all_that_count_are_lost() -> None:
    world = CopiesWorld([["n1"]], replicas=1)
    world.go(2_000)
    record = world.record()
    world.fill(record, "CATCHUP")
    world.go(1_000)
    world.lose("n1")
    world.go(500)
    want(world, 0)
    world.go(10_000)
    assert world.records() == [record]
    assert world.leader.builds.registry.all() == [], "nothing is rebuilt"


def test_what_is_being_filled_is_given_up_where_one_copy_is_enough() -> None:
    world = CopiesWorld([["n1"]], replicas=1)
    world.go(2_000)
    assert world.record().node == "n2"
    want(world, 0)
    world.go(500)
    assert world.records() == []


def test_a_copy_that_leaves_is_waited_for_where_no_other_node_is_left() -> None:
    world = wanting(0, count=2)
    world.nodes["n2"].copies[0].leases = 1
    world.go(2_000)
    want(world, 1)
    world.go(500)
    (words,) = world.leader.copies.waiting.values()
    assert words.startswith("the copy that leaves node n2 to be gone, or another indexer node: none is live")
