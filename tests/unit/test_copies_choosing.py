"""On which node a copy is filled, and what it waits for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from msgspec import structs

from coordinator.builds.registry import BuildLimits
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld

GB = 1_000_000_000


def test_the_node_with_the_fewest_slices_is_chosen() -> None:
    world = CopiesWorld([["n1", "n2"], ["n1", "n2"], ["n1", "n2"], ["n1"]], count=3)
    world.go(1_000)
    assert (world.record().slice, world.record().node) == (3, "n3")


def test_many_are_spread_over_nodes() -> None:
    world = CopiesWorld([["n1"]] * 6, count=4, limits=replace(LIMITS, copies_per_node=100))
    world.go(1_000)
    assert Counter(record.node for record in world.records()) == {"n2": 2, "n3": 2, "n4": 2}


def test_so_many_are_filled_at_once_from_and_on_a_node() -> None:
    world = CopiesWorld([["n1"]] * 6, count=4)
    world.go(7_000)
    first = world.records()
    assert len(first) == 2, "all from n1"
    assert sorted(world.leader.copies.waiting) == [(INDEX, number) for number in range(2, 6)]
    (told,) = world.told("copy-waits")
    assert told == (
        "slices 2, 3, 4, 5 of by_city have not the copies that they are to have, and wait for their turn: as "
        "many copies are filled from or on these nodes as may be at once (setting "
        "coordinator.copies_per_node)"
    )
    assert [note.level for note in world.notes if note.kind == "copy-waits"] == ["info"]
    world.fill(first[0])
    world.go(2_000)
    assert first[0] not in world.records()
    assert len(world.records()) == 2


def test_on_one_target_too() -> None:
    world = CopiesWorld([["n1"], ["n2"], ["n3"]], count=3, limits=replace(LIMITS, copies_per_node=1))
    world.go(2_000)
    busy = Counter(node for record in world.records() for node in (record.node, record.source))
    assert busy
    assert max(busy.values()) == 1


def test_a_new_leader_chooses_among_all_nodes_and_not_those_that_it_happened_to_hear() -> None:
    world = CopiesWorld([["n1", "n2"], ["n1", "n2"], ["n1"]], count=3)
    world.beat()
    assert world.records() == []
    world.succeed()
    world.nodes["n3"].up = False  # the emptiest one says nothing for a while
    world.go(1_500)
    assert world.records() == []
    world.nodes["n3"].up = True
    world.go(2_000)
    assert (world.record().slice, world.record().node) == (2, "n3")


def test_what_is_filled_and_only_catches_up_takes_no_turn() -> None:
    world = CopiesWorld([["n1"]] * 3, count=4)
    world.go(1_000)
    for record in world.records():
        world.fill(record, "CATCHUP")
    world.go(2_000)
    assert len(world.records()) == 3


def test_a_copy_waits_for_another_node() -> None:
    world = CopiesWorld([["n1", "n2"]], count=2)
    world.go(1_000)
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms + 10_000)
    assert world.placement() == ["n2"]
    assert world.records() == []
    (told,) = world.told("copy-waits")
    assert told == (
        "slices 0 of by_city have not the copies that they are to have, and wait for another indexer node: "
        "none is live beside n2; start one"
    )
    assert [note.level for note in world.notes if note.kind == "copy-waits"] == ["warning"]
    del world.nodes["n1"].copies[0]  # the dictionary does not name it any more
    world.nodes["n1"].up = True
    world.go(2_000)
    assert world.record().node == "n1"
    assert world.leader.copies.waiting == {}


def test_a_copy_waits_for_room() -> None:
    world = CopiesWorld([["n1"]], build_limits=BuildLimits(node_disk_bytes=2 * GB))
    world.nodes["n1"].copies[0].bytes = 5 * GB
    world.nodes["n2"].disk_free = 7 * GB - 1
    world.nodes["n3"].disk_free = 0
    world.go(7_000)
    assert world.records() == []
    (told,) = world.told("copy-waits")
    assert told.endswith(
        "wait for 7.0 GB of free disk on one of n2, n3: make room, or start another indexer node"
    )
    world.nodes["n2"].disk_free = 7 * GB
    world.go(1_000)
    assert world.record().node == "n2"


def test_room_is_promised_once() -> None:
    world = CopiesWorld([["n1"], ["n1"]], count=2)
    for number in range(2):
        world.nodes["n1"].copies[number].bytes = 5 * GB
    world.nodes["n2"].disk_free = 9 * GB
    world.go(1_000)
    assert world.record().slice == 0
    world.succeed()
    world.go(2_000)
    assert world.record().slice == 0, "a new leader knows it from the record"


def test_a_source_that_does_not_lag_is_preferred() -> None:
    world = CopiesWorld([["n1", "n2"]], replicas=1, count=3)
    world.go(1_000)
    world.busy, world.nodes["n1"].copies[0].follows = True, False
    world.go(8_000)
    assert world.leader.stability.streams["people"].lagging == {("n1", INDEX, 0)}
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(
        structs.replace(index, definition=structs.replace(index.definition, replicas=2))
    )
    world.go(500)
    assert world.record().source == "n2"


def test_a_short_wait_is_not_told() -> None:
    world = CopiesWorld([["n1"]])
    world.nodes["n1"].copies[0].horizon = -1
    world.go(4_000)
    assert world.leader.copies.waiting != {}
    world.nodes["n1"].copies[0].horizon = 3
    world.go(10_000)
    assert world.told("copy-waits") == []
    assert world.record().need == 3
