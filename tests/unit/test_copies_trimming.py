"""What copies keep of a mutation queue (R39), and by whose word a leader deletes (R49)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.core.instructions import Instruction, QueueCopy, QueueLimit, TrimQueues
from coordinator.core.limits import CoreLimits
from coordinator.queues.holders import QueueHolder
from coordinator.queues.trim_guard import stays_from
from tests import share
from tests.unit.copies_world import LIMITS, CopiesWorld

HOUR = 3_600_000


def serving(
    placement: list[list[str]] | None = None, replicas: int = 1, limits: CoreLimits = LIMITS
) -> CopiesWorld:
    """Settled: queues are trimmed from now on."""
    world = CopiesWorld(placement or [["n1", "n2"]], replicas=replicas, limits=limits)
    world.go(limits.queue_settling_ms + 2_000)
    return world


def limits_of(out: list[Instruction]) -> list[QueueLimit]:
    return [limit for one in out if isinstance(one, TrimQueues) for limit in one.limits]


def trims(world: CopiesWorld) -> list[QueueLimit]:
    """What is ordered next."""
    world.leader.trimmer._under_way = False
    world.leader.trimmer._reached = {}
    world.beat()
    held = {number: offset for number, (_, offset) in enumerate(holders(world)) if offset is not None}
    limits = limits_of(world.tick(LIMITS.trim_interval_ms))
    assert held == {limit.partition: limit.before for limit in limits}, "what is shown holds a queue"
    return limits


def holders(world: CopiesWorld) -> list[QueueHolder]:
    """What holds each queue at the next order."""
    return world.leader.trimmer.holders(world.index("by_city"), world.now + LIMITS.trim_interval_ms)


def test_what_a_copy_may_need_stays_until_it_counts() -> None:
    world = serving([["n1"]])
    record = world.record()
    world.nodes["n1"].copies[0].horizon = 900
    world.nodes["n1"].copies[0].position = 950
    (limit,) = trims(world)
    assert limit.before == record.need == 10
    assert QueueCopy(f"copy {record.id}", 10, 10) in limit.copies
    assert holders(world) == [QueueHolder(f"copy {record.id}, which may need 10", 10)]
    copy = world.fill(record)
    copy.horizon, copy.position = 400, 500
    (limit,) = trims(world)
    assert limit.before == 10
    world.until(lambda: not world.records())
    (limit,) = trims(world)
    assert limit.before == 400
    assert sorted(one.who for one in limit.copies) == sorted(["node n1", f"node {record.node}"])


def test_what_it_needs_of_one_slice_is_nothing_to_others() -> None:
    world = serving([["n1"], ["n1", "n2"]])
    for name, number in (("n1", 0), ("n1", 1), ("n2", 1)):
        world.nodes[name].copies[number].horizon = 700
    assert {limit.partition: limit.before for limit in trims(world)} == {0: 10, 1: 700}


def test_when_it_is_given_up_it_needs_nothing() -> None:
    world = serving([["n1"]])
    world.fill(world.record(), "LOST")
    world.go(1_000)
    assert world.records() == []
    world.nodes["n1"].copies[0].horizon = 900
    (limit,) = trims(world)
    assert limit.before == 900


def test_another_source_lowers_what_stays() -> None:
    world = serving([["n1", "n2"]], replicas=2)
    world.nodes["n2"].copies[0].horizon = 4
    world.nodes["n1"].up = False
    world.go(5_000)
    assert (world.record().source, world.record().need) == ("n2", 4)
    world.nodes["n2"].copies[0].horizon = 800
    world.nodes["n1"].copies[0].horizon = 800
    world.nodes["n1"].up = True
    world.go(1_000)
    (limit,) = trims(world)
    assert limit.before == 4


def test_a_lost_copy_keeps_nothing_of_its_queue() -> None:
    world = serving([["n1", "n2"]])
    world.leader.builds.registry.halted.add("people")
    world.nodes["n1"].copies[0].horizon = -1
    world.lose("n1")
    world.nodes["n2"].copies[0].horizon = 600
    world.beat()
    world.leader.builds.registry.halted.clear()
    world.leader.copies._checked_at = world.now + 10_000  # not yet taken out
    (limit,) = trims(world)
    assert world.placement() == ["n1", "n2"]
    assert (limit.before, [one.who for one in limit.copies]) == (600, ["node n2"])
    assert holders(world) == [QueueHolder("node n2, which may need 600", 600)]


def test_a_copy_that_was_taken_out_is_not_asked() -> None:
    world = serving([["n1", "n2"]])
    world.nodes["n1"].copies[0].horizon = 5
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms + 3_000)
    record = world.record()
    assert (world.placement(), record.need) == (["n2"], 10)
    world.nodes["n2"].copies[0].horizon = 600
    (limit,) = trims(world)
    assert limit.before == record.need


def test_a_silent_copy_stops_trimming_until_it_is_taken_out() -> None:
    world = serving([["n1", "n2"]])
    world.nodes["n1"].copies[0].horizon = 50
    world.go(1_000)
    world.nodes["n1"].up = False
    world.nodes["n2"].copies[0].horizon = 600
    world.go(20_000)
    (limit,) = trims(world)
    assert limit.before == 50


def test_a_copy_of_another_id_has_not_said_what_it_needs() -> None:
    world = serving([["n1", "n2"]])
    world.nodes["n1"].copies[0].id = "c77"
    world.nodes["n1"].copies[0].horizon = 600
    world.nodes["n2"].copies[0].horizon = 600
    assert trims(world) == []
    (holder,) = holders(world)
    assert holder.by == ("node n1, which cannot say what it may need: it speaks of another copy of the slice")


def test_by_no_word_of_a_node_that_has_read_more_than_this_leader_has_written() -> None:
    """Another one leads, and fills a copy from n1, whose base has gone on since: this one has not heard."""
    world = serving([["n1", "n2"]])
    (limit,) = trims(world)
    assert limit.before == 10
    for name in ("n1", "n2"):
        world.nodes[name].copies[0].horizon = 700
    world.nodes["n1"].read = world.offset + 1
    assert trims(world) == []
    (holder,) = holders(world)
    assert holder.by.endswith(
        "it has read more of the dictionary than this leader has written: another one leads"
    )
    world.lose("n2")
    assert trims(world) == [], "nor by that a copy is lost"
    world.nodes["n2"].copies[0].state = "LIVE"
    world.nodes["n1"].read = world.offset
    (limit,) = trims(world)
    assert limit.before == 700


def test_what_it_writes_itself_it_knows() -> None:
    world = serving([["n1", "n2"]])
    before = world.leader.dictionary.written
    world.sql("CREATE INDEX other ON people (name) WITH (slices=1, defer_build=true)")
    assert world.leader.dictionary.written > before
    for name in ("n1", "n2"):
        world.nodes[name].copies[0].horizon = 700
    (limit,) = trims(world)
    assert limit.before == 700


@pytest.mark.parametrize("seed", share.seeds(12))
def test_at_random_nothing_goes_that_a_copy_needs(seed: int) -> None:
    """Horizons that grow, copies that are lost, filled and counted, sources that are replaced, new leaders:
    what is ordered never passes what a copy that counts, or is being filled, may need."""
    random_history(random.Random(seed))


def random_history(rng: random.Random) -> None:
    limits = replace(LIMITS, queue_retention_ms=10 * HOUR, copy_after_ms=10_000)
    world = serving([["n1", "n2"]], limits=limits)
    reached = 0
    for _ in range(60):
        node = rng.choice(list(world.nodes.values()))
        copy = node.copies.get(0)
        match rng.randrange(8):
            case 0 | 1 | 2 if copy is not None:
                copy.horizon += rng.randrange(30)
                copy.position = max(copy.position, copy.horizon)
            case 3 if copy is not None and node.name in world.placement():
                others = [name for name in world.placement() if name != node.name]
                if any(world.nodes[name].copies[0].state == "LIVE" for name in others):
                    copy.state = "LOST"
            case 4:
                node.up = rng.random() < 0.7
            case 5 | 6 if world.records():
                record = world.records()[0]
                if world.nodes[record.node].up:
                    world.fill(record, rng.choice(("FILLING", "CATCHUP", "LIVE", "LIVE", "LOST")))
            case 7:
                world.succeed()
        world.leader.trimmer._under_way = False
        for limit in limits_of(world.go(rng.choice((200, 1_000, 12_000)))):
            needs = [record.need for record in world.records()]
            needs += [
                world.nodes[name].copies[0].horizon
                for name in world.placement()
                if world.nodes[name].copies[0].state != "LOST"
            ]
            assert limit.before <= min(needs, default=limit.before)
            reached = max(reached, stays_from(limit, 1 << 30, None))
        for name in world.nodes:  # what the dictionary does not name goes
            named = [record.id for record in world.records() if record.node == name]
            if name not in world.placement() and not named and world.nodes[name].up:
                world.nodes[name].copies.pop(0, None)
    assert reached > 0


def test_what_leaves_keeps_what_it_may_need_until_it_is_gone() -> None:
    world = serving()
    index = world.index("by_city")
    world.nodes["n2"].copies[0].leases = 1
    definition = structs.replace(index.definition, replicas=0)
    world.leader.dictionary.put(structs.replace(index, definition=definition))
    world.go(2_000)
    assert list(world.index("by_city").leaving[0]) == ["n2"]
    world.nodes["n1"].copies[0].horizon = world.nodes["n1"].copies[0].position = 90
    world.nodes["n2"].copies[0].horizon = 40
    assert [limit.before for limit in trims(world)] == [40]
    world.nodes["n2"].copies[0].leases = 0
    world.go(2_000)
    assert world.index("by_city").leaving == {}
    assert [limit.before for limit in trims(world)] == [90]
