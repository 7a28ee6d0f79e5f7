"""Copies over changes of the leader: all that must outlive one is in the dictionary."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from keytide.catalog.copies import CopyRecord
from tests import share
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld, Copy


def test_one_that_is_begun_goes_on() -> None:
    world = CopiesWorld([["n1"]])
    world.go(1_000)
    record = world.record()
    world.succeed()
    world.go(3_000)
    assert world.record() == record
    world.fill(record, "FILLING")
    world.succeed()
    world.go(3_000)
    assert world.record() == record
    world.fill(record)
    world.succeed()
    world.go(3_000)
    assert world.records() == []
    assert world.placement() == ["n1", record.node]
    world.succeed()
    world.go(3_000)
    assert world.placement() == ["n1", record.node]
    assert world.leader.stability.nodes.copy_serves(record.node, INDEX, 0, 0)


def test_its_source_is_not_another_one_because_that_was_heard_first() -> None:
    """What it has is of the old source's generation: with another one it would begin again. One that stays
    silent is replaced all the same."""
    world = CopiesWorld([["n1", "n2"]], replicas=2)
    world.go(1_000)
    record = world.record()
    assert record.source == "n1"
    world.fill(record, "FILLING")
    world.beat()
    world.nodes["n1"].up = False
    world.succeed()
    world.go(LIMITS.node_timeout_ms - 500)
    assert world.record() == record
    world.nodes["n1"].up = True
    world.go(5_000)
    assert world.record() == record
    world.nodes["n1"].up = False
    world.succeed()
    world.until(lambda: world.record().source == "n2", LIMITS.node_timeout_ms + 1_000)


def test_ids_are_never_used_again() -> None:
    world = CopiesWorld([["n1"]])
    ids = []
    for _ in range(4):
        world.go(1_000)
        ids.append(world.record().id)
        world.fill(world.record(), "LOST")
        world.until(lambda: not world.records())
        world.succeed()
    assert len(set(ids)) == 4


def test_a_lost_copy_is_taken_out_by_the_next_leader() -> None:
    world = CopiesWorld([["n1", "n2"]])
    world.go(1_000)
    world.lose("n1")
    world.succeed()
    world.go(2_000)
    assert world.placement() == ["n2"]
    assert world.record().source == "n2"


def test_what_was_given_up_is_given_up_by_the_next_leader() -> None:
    world = CopiesWorld([["n1"]])
    world.go(1_000)
    record = world.record()
    world.fill(record, "LOST")
    world.succeed()
    world.go(2_000)
    assert world.records() == []


def test_its_index_is_gone_when_the_next_leader_begins() -> None:
    world = CopiesWorld([["n1"]])
    world.go(1_000)
    record = world.record()
    del world.written[f"index/{INDEX}"]
    world.succeed()
    world.go(1_000)
    assert world.records() == []
    assert world.told("copy-given-up") == [
        f"copy {record.id} of slice 0 of {INDEX} on node {record.node} is given up: its index is not READY "
        "any more"
    ]


def test_nothing_is_decided_before_the_new_leader_has_issued_a_number() -> None:
    """The one before it may have published what this one has not read."""
    world = CopiesWorld([["n1"]])
    world.busy = True
    world.go(1_000)
    record = world.record()
    world.fill(record)
    world.nodes["n1"].copies[0].follows = False
    world.beat()
    world.succeed(heard=False)
    world.busy = False
    world.leader.stability.halt("people")
    world.go(1_000)
    published = world.published
    assert world.leader.stability.streams["people"].published == {INDEX: published}
    for name in ("n1", record.node):
        world.nodes[name].copies[0].number = published
        world.holds(name, published, 0)
    world.go(2_000)
    assert world.leader.stability.streams["people"].first == -1
    assert world.record() == record
    world.leader.stability.resume("people")
    world.nodes["n1"].copies[0].follows = True
    world.go(2_000)
    assert world.records() == []


def test_it_does_not_count_by_what_an_old_leader_has_published() -> None:
    """It holds the number that was published when the new leader read the control topic. The old one has
    published another one since, which it lacks."""
    world = CopiesWorld([["n1"]])
    world.busy = True
    world.go(1_000)
    record, published = world.record(), world.published
    copy = world.fill(record)
    copy.follows = world.nodes["n1"].copies[0].follows = False
    world.beat()
    world.holds(record.node, published, 0)
    world.succeed()
    assert world.leader.stability.streams["people"].published == {INDEX: published}
    world.beat()
    world.holds(record.node, published, 0)
    world.nodes["n1"].copies[0].number = published + 1
    world.holds("n1", published + 1, 0)
    copy.number = published
    world.go(2_000)
    assert world.leader.stability.streams["people"].first > published
    assert world.record() == record
    copy.follows = world.nodes["n1"].copies[0].follows = True
    world.go(2_000)
    assert world.records() == []


def test_silence_is_counted_anew() -> None:
    world = CopiesWorld([["n1", "n2"]])
    world.go(1_000)
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms - 10_000)
    world.succeed()
    world.go(LIMITS.copy_after_ms - 5_000)
    assert world.placement() == ["n1", "n2"]
    world.go(10_000)
    assert world.placement() == ["n2"]


@pytest.mark.parametrize("seed", share.seeds(24))
def test_at_random_a_slice_is_never_without_a_copy(seed: int) -> None:
    random_history(random.Random(seed))


def check(world: CopiesWorld, published: int) -> int:
    """Of the copies that count, all are there, and one at least is not lost; what is published stays
    published. Returns that."""
    counted = {name: world.nodes[name].copies[0] for name in world.placement()}
    assert any(copy.state != "LOST" for copy in counted.values())
    assert {name: copy.id for name, copy in counted.items()} == {
        name: world.index("by_city").copy_of(0, name) for name in counted
    }
    assert world.published >= published
    return world.published


def random_history(rng: random.Random) -> None:
    """Disks are lost (never that of the only copy that is whole), nodes stand still, leaders change, copies
    are filled or fail; in the end everything is healed, and there are as many copies as there are to be."""
    limits = replace(LIMITS, copy_after_ms=8_000, copy_pause_ms=200)
    world = CopiesWorld([["n1", "n2"]], replicas=rng.choice((1, 2)), count=4, limits=limits)
    published, world.busy = -1, True
    for _ in range(80):
        node = rng.choice(list(world.nodes.values()))
        copy = node.copies.get(0)
        match rng.randrange(8):
            case 0 | 1:
                node.up = rng.random() < 0.7
            case 2 if copy is not None and whole_beside(world, node.name):
                copy.state = "LOST"
            case 3 | 4 | 5 if world.records():
                fill(world, rng.choice(world.records()), rng.choice(("FILLING", "CATCHUP", "LIVE", "LOST")))
            case 6:
                world.succeed()
            case 7 if copy is not None:
                copy.follows = not copy.follows
        world.go(rng.choice((100, 500, 1_000, 3_000, 9_000)))
        clean(world)
        published = check(world, published)
    heal(world)
    assert check(world, published) > published
    assert len(world.placement()) == world.index("by_city").definition.replicas + 1


def whole_beside(world: CopiesWorld, name: str) -> bool:
    """Whether another copy counts, is up, and holds what is published as far as the leader knows."""
    return any(
        (copy := world.nodes[other].copies.get(0)) is not None
        and copy.state == "LIVE"
        and copy.follows
        and world.nodes[other].up
        for other in world.placement()
        if other != name
    )


def fill(world: CopiesWorld, record: CopyRecord, state: str) -> None:
    if world.nodes[record.node].up:
        there = world.nodes[record.node].copies.get(0)
        if there is None or there.id != record.id or there.state == "FILLING":
            world.fill(record, state)


def clean(world: CopiesWorld) -> None:
    """Nodes delete what the dictionary does not name."""
    for name, node in world.nodes.items():
        filling = {record.id for record in world.records() if record.node == name}
        copy = node.copies.get(0)
        if node.up and copy is not None and name not in world.placement() and copy.id not in filling:
            del node.copies[0]


def heal(world: CopiesWorld) -> None:
    for node in world.nodes.values():
        node.up = True
        for copy in node.copies.values():
            copy.follows = True
    for _ in range(80):
        world.go(500)
        clean(world)
        for record in world.records():
            there = world.nodes[record.node].copies.get(0)
            if there is None or there.id != record.id:
                world.nodes[record.node].copies[0] = Copy(record.id, horizon=record.need)
            elif there.state in ("FILLING", "CATCHUP"):
                there.state = "LIVE"
