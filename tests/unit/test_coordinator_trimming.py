"""Trimming of mutation queues: what may go, and what must stay."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import QueuesTrimmed, Reported
from coordinator.core.instructions import Instruction, QueueCopy, QueueLimit, TrimQueues
from coordinator.core.limits import CoreLimits
from coordinator.leader import Leader
from coordinator.queues.trim_guard import because, stays_from
from coordinator.views import views
from keytide.errors import InvariantViolationError
from keytide.wire.messages import NodeHeartbeat
from tests import share
from tests.unit.leader_world import MUTATIONS, World, backfilled
from tests.unit.test_coordinator_rebuild import NODES, in_catchup, live, queued, status

HOUR = 3_600_000
LIMITS = CoreLimits(trim_interval_ms=1_000, queue_retention_ms=HOUR)


def serving(settle: bool = True) -> World:
    """Index by_city-7 is READY and settled: slices 0 and 2 on n1, 1 on n2."""
    world = World(BuildLimits(rebuild_wait_ms=1_000))
    world.leader = Leader(world.leader.dictionary.catalog, "kt", 1, LIMITS, world.limits)
    backfilled(world)
    world.common(130, 60)
    if settle:
        world.tick(1_000)
        world.now += 11_000
    return world


def beat(world: World, horizons: dict[int, int], nodes: tuple[str, ...] = ("n1", "n2")) -> None:
    for node in nodes:
        statuses = [
            replace(status(world, n, "LIVE", (130, 60)), queue_horizon=horizons[n])
            for n in NODES[node]
            if n in horizons
        ]
        world.handle(Reported(NodeHeartbeat(node, "", 1, world.now, statuses, 0, 0, 0), world.now))


def trims(out: list[Instruction]) -> dict[int, tuple[int, int]]:
    """Slice -> (before, older_than) of what is ordered."""
    found = [limit for one in out if isinstance(one, TrimQueues) for limit in one.limits]
    assert all(limit.topic == MUTATIONS for limit in found)
    return {limit.partition: (limit.before, limit.older_than) for limit in found}


def done(world: World, reached: dict[int, int], removed: int = 0) -> None:
    lows = {(MUTATIONS, number): low for number, low in reached.items()}
    world.handle(QueuesTrimmed(lows, removed, (), world.now))


def awake(world: World, ms: int) -> None:
    """Time passes in which the leader ticks; an order is under way meanwhile, so that there is no other."""
    trimmer, end = world.leader.trimmer, world.now + ms
    before, trimmer._under_way = trimmer._under_way, True
    while world.now < end:
        world.tick(min(10_000, end - world.now))
    trimmer._under_way = before


def test_each_copy_shows_what_it_needs_of_its_queue() -> None:
    world = serving()
    beat(world, {0: 40, 1: -1, 2: 90})
    shown = views.slices(world.leader, world.index("by_city"), world.now)
    assert [one["queue_horizon"] for one in shown] == [40, None, 90]
    read = [status(world, number, "LIVE").queue_position for number in range(3)]
    assert [one["queue_position"] for one in shown] == read


def held_by(world: World, number: int) -> tuple[str, int | None]:
    """What is shown to hold a slice's queue, and from which offset on."""
    shown = views.slices(world.leader, world.index("by_city"), world.now)
    ((by, offset),) = {
        (one["queue_held_by"], one["queue_held_from"]) for one in shown if one["slice"] == number
    }
    return by, offset


def cannot_say(node: str, why: str) -> tuple[str, None]:
    return f"node {node}, which cannot say what it may need: {why}", None


def test_what_holds_each_queue_is_shown() -> None:
    world = serving()
    unheard = "it has not been heard in this term, or not since the index became READY"
    assert held_by(world, 0) == cannot_say("n1", unheard)
    beat(world, {0: 70, 2: -1}, ("n1",))
    assert held_by(world, 0) == ("node n1, which may need 70", 70)
    assert held_by(world, 2) == cannot_say("n1", "its base can step back into its build")
    assert held_by(world, 1) == cannot_say("n2", unheard)
    beat(world, {}, ("n2",))
    assert held_by(world, 1) == cannot_say("n2", "it says nothing of the slice")
    stale = [replace(status(world, 1, "LIVE"), queue_horizon=40, incarnation=-1)]
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, stale, 0, 0, 0), world.now))
    assert held_by(world, 1) == cannot_say("n2", "it has not rolled back yet")
    built = [status(world, 1, "BUILDING")]
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, built, 0, 0, 0), world.now))
    assert held_by(world, 1) == cannot_say("n2", "it is BUILDING")
    lost = [status(world, 1, "LOST")]
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, lost, 0, 0, 0), world.now))
    assert held_by(world, 1) == ("no copy that counts has data", None)


def test_what_holds_all_queues_of_an_index_is_shown() -> None:
    world = serving(settle=False)
    world.tick(1_000)
    beat(world, {0: 70, 1: 80, 2: 90})
    young = "the index has been READY for less than 10 s of this leader's term"
    assert [held_by(world, number) for number in range(3)] == [(young, None)] * 3
    world.now += 11_000
    beat(world, {0: 70, 1: 80, 2: 90})
    assert held_by(world, 1) == ("node n2, which may need 80", 80)
    world.leader.builds.registry.halted.add("people")
    assert held_by(world, 1) == ("the history of its keyspace is being examined", None)
    world.leader.builds.registry.halted.clear()
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, state="FAILED"))
    world.tick(1_000)
    assert held_by(world, 1) == ("the index is FAILED", None)


def test_a_rebuild_is_shown_to_hold_the_queue() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    not_begun = f"rebuild {build}, which cannot say what it may need: it has not begun"
    assert held_by(world, 1) == (not_begun, None)
    in_catchup(world, build)  # it goes on from 71
    beat(world, {1: 500}, ("n2",))
    assert held_by(world, 1) == (f"rebuild {build}, which may need 71", 71)


def test_who_is_silent_for_too_long_is_shown_to_hold_nothing_but_what_is_young() -> None:
    world = serving()
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, placement=[["n1", "n2"], ["n2"], ["n1"]]))
    world.tick(100)
    beat(world, {0: 70, 1: 10, 2: 90})
    awake(world, HOUR + 20_000)
    beat(world, {0: 70, 2: 90}, ("n1",))
    young = "topics.queue_retention_s, as n2 said nothing for longer"
    assert held_by(world, 1) == (young, None)
    assert held_by(world, 0) == (f"node n1, which may need 70; and {young}", 70)


def test_what_lies_below_the_horizon_goes() -> None:
    world = serving()
    beat(world, {0: 70, 1: 0, 2: 90})
    assert trims(world.tick(1_000)) == {0: (70, 0), 2: (90, 0)}
    assert trims(world.tick(1_000)) == {}  # one order at a time
    done(world, {0: 70, 2: 90}, 160)
    assert world.notes[-1].kind == "queues-trimmed"
    assert "160 records" in world.notes[-1].text
    assert world.leader.trimmer.removed == 160
    assert trims(world.tick(1_000)) == {}  # nothing new
    beat(world, {0: 75, 1: 5, 2: 90})
    assert trims(world.tick(1_000)) == {0: (75, 0), 1: (5, 0)}
    told = len(world.notes)
    done(world, {0: 75, 1: 5}, 10)
    assert len(world.notes) == told  # now and then only


def test_nothing_goes_while_a_replica_has_not_said_what_it_needs() -> None:
    world = serving()
    assert trims(world.tick(1_000)) == {}
    beat(world, {0: 70, 2: -1}, ("n1",))
    assert trims(world.tick(1_000)) == {0: (70, 0)}


def test_the_smallest_of_all_replicas_counts() -> None:
    world = serving()
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, placement=[["n1", "n2"], ["n2"], ["n1"]]))
    world.tick(100)
    beat(world, {0: 70, 2: 90}, ("n1",))
    assert 0 not in trims(world.tick(1_000))
    done(world, {2: 90})
    both = [replace(status(world, 0, "LIVE"), queue_horizon=40)]
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, both, 0, 0, 0), world.now))
    assert trims(world.tick(1_000)) == {0: (40, 0)}


def test_words_from_before_a_rollback_do_not_count() -> None:
    world = serving()
    stale = [replace(status(world, 1, "LIVE"), queue_horizon=40, incarnation=-1)]
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, stale, 0, 0, 0), world.now))
    assert trims(world.tick(1_000)) == {}
    beat(world, {1: 40}, ("n2",))
    world.leader.builds.registry.halted.add("people")
    assert trims(world.tick(1_000)) == {}
    world.leader.builds.registry.halted.clear()
    assert trims(world.tick(1_000)) == {1: (40, 0)}


def test_words_about_a_queue_that_was_made_anew_do_not_count() -> None:
    world = serving(settle=False)
    beat(world, {0: 500, 1: 500, 2: 500})  # of an earlier build of the same index
    world.tick(1_000)
    for _ in range(30):
        assert trims(world.tick(1_000)) == {}
    beat(world, {0: 7, 1: 8, 2: 9})
    assert trims(world.tick(1_000)) == {0: (7, 0), 1: (8, 0), 2: (9, 0)}


def test_a_node_that_is_silent_for_too_long_counts_no_more() -> None:
    world = serving()
    beat(world, {0: 70, 1: 10, 2: 90})
    assert trims(world.tick(1_000)) == {0: (70, 0), 1: (10, 0), 2: (90, 0)}
    done(world, {0: 70, 1: 10, 2: 90})
    for _ in range(6):
        awake(world, HOUR // 6 - 100_000)
        beat(world, {0: 70, 2: 90}, ("n1",))
        assert trims(world.tick(1_000)) == {}  # its last word counts
    awake(world, HOUR // 4)
    beat(world, {0: 70, 2: 90}, ("n1",))
    assert trims(world.tick(1_000)) == {1: (-1, world.now - HOUR)}
    expired = QueuesTrimmed({(MUTATIONS, 1): 60}, 50, ((MUTATIONS, 1),), world.now)
    world.handle(expired)
    assert [note.kind for note in world.notes[-2:]] == ["queue-expired", "queues-trimmed"]


def test_by_age_too_nothing_goes_while_another_replica_cannot_say() -> None:
    world = serving()
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, placement=[["n1"], ["n2", "n1"], ["n1"]]))
    world.tick(1_000)
    awake(world, HOUR + 20_000)
    beat(world, {0: 70, 2: 90}, ("n1",))
    assert 1 not in trims(world.tick(1_000))
    done(world, {0: 70, 2: 90})
    mine = [replace(status(world, 1, "LIVE"), queue_horizon=40)]
    world.handle(Reported(NodeHeartbeat("n1", "", 1, world.now, mine, 0, 0, 0), world.now))
    assert trims(world.tick(1_000)) == {1: (40, world.now - HOUR)}


def test_a_node_that_this_leader_never_heard_is_given_as_long() -> None:
    world = serving()
    beat(world, {0: 1, 2: 1}, ("n1",))
    assert 1 not in trims(world.tick(1_000))
    done(world, {})
    awake(world, HOUR)
    beat(world, {0: 1, 2: 1}, ("n1",))
    assert trims(world.tick(1_000))[1] == (-1, world.now - HOUR)


def test_a_leader_that_was_asleep_has_heard_nobody() -> None:
    # A machine that was suspended for a day, a clock that was set: the nodes are all there.
    world = serving()
    beat(world, {0: 70, 1: 10, 2: 90})
    assert trims(world.tick(1_000)) == {0: (70, 0), 1: (10, 0), 2: (90, 0)}
    done(world, {0: 70, 1: 10, 2: 90})
    world.now += 30 * HOUR
    assert trims(world.tick(1_000)) == {}
    awake(world, HOUR - 20_000)
    assert trims(world.tick(1_000)) == {}
    awake(world, 40_000)
    assert trims(world.tick(1_000))[1] == (-1, world.now - HOUR)


def test_a_queue_that_was_made_anew_is_trimmed_from_its_beginning() -> None:
    world = serving()
    beat(world, {0: 70, 1: 80, 2: 90})
    assert trims(world.tick(1_000)) == {0: (70, 0), 1: (80, 0), 2: (90, 0)}
    done(world, {0: 70, 1: 80, 2: 90})
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, version=index.version + 1))  # it was built again
    world.tick(1_000)
    awake(world, 11_000)
    beat(world, {0: 7, 1: 8, 2: 9})
    assert trims(world.tick(1_000)) == {0: (7, 0), 1: (8, 0), 2: (9, 0)}


def test_what_a_rebuild_goes_on_from_stays() -> None:
    world = serving()
    build = queued(world, {1: "LOST"})
    done(world, {})
    in_catchup(world, build)  # it goes on from 71
    beat(world, {1: 500}, ("n2",))
    world.tick(1_000)
    done(world, {})
    beat(world, {1: 500}, ("n2",))
    out = trims(world.tick(1_000))
    assert out.get(1, (71, 0)) == (71, 0)


def test_while_a_slice_is_lost_its_queue_stays() -> None:
    world = serving()
    out = live(world, {1: "LOST"}, 20_000)
    assert 1 not in trims(out)


@pytest.mark.parametrize("seed", share.seeds(800))
def test_whatever_is_ordered_nothing_goes_that_a_copy_has_not_read(seed: int) -> None:
    """Orders of a trimmer that has lost its mind: what is deleted is right, or it is refused."""
    rng = random.Random(seed)
    copies = tuple(
        QueueCopy(f"n{n}", (horizon := rng.randrange(100)), horizon + rng.randrange(50))
        for n in range(rng.randrange(4))
    )
    end = rng.randrange(200)
    young = rng.choice((None, rng.randrange(200)))
    limit = QueueLimit("q", 0, rng.randrange(-1, 200), 1 if young is not None else 0, copies)
    asked = min(end, limit.before if limit.before >= 0 else end, end if young is None else young)
    if any(asked > copy.position for copy in copies) or (not copies and young is None):
        with pytest.raises(InvariantViolationError, match="QueueKept"):
            stays_from(limit, end, young)
    else:
        assert stays_from(limit, end, young) == asked


def test_an_order_says_who_bounds_it() -> None:
    world = serving()
    index = world.leader.dictionary.index_named("by_city")
    world.leader.dictionary.put(replace(index, placement=[["n1", "n2"], ["n2"], ["n1"]]))
    world.tick(100)
    beat(world, {0: 70, 2: 90}, ("n1",))
    both = [replace(status(world, 0, "LIVE"), queue_horizon=40, queue_position=55)]
    world.handle(Reported(NodeHeartbeat("n2", "", 1, world.now, both, 0, 0, 0), world.now))
    (order,) = [one for one in world.tick(1_000) if isinstance(one, TrimQueues)]
    limit = next(one for one in order.limits if one.partition == 0)
    assert because(limit) == "bounded by node n2, which may need 40 and has durably read up to 55 (2 count)"


@pytest.mark.parametrize("seed", share.seeds(80))
def test_at_random_nothing_that_is_needed_goes(seed: int) -> None:
    """Random horizons that only grow, silent nodes, new leaders; what is shown to hold a queue does."""
    rng = random.Random(seed)
    world = serving()
    needed = {0: 0, 1: 0, 2: 0}
    reached = {0: 0, 1: 0, 2: 0}
    for _ in range(200):
        world.now += rng.choice((100, 1_000, 5_000))
        number = rng.choice((0, 1, 2))
        needed[number] += rng.randrange(20)
        if rng.random() < 0.7:
            beat(world, dict(needed), (rng.choice(("n1", "n2")),))
        out = world.tick(100)
        for slice_number, (before, older_than) in trims(out).items():
            assert older_than == 0
            assert 0 < before <= needed[slice_number]
        if any(isinstance(one, TrimQueues) for one in out):
            reached |= {n: before for n, (before, _) in trims(out).items()}
            assert all(held_by(world, n)[1] in (None, reached[n]) for n in reached)
            done(world, {n: before for n, (before, _) in trims(out).items()})
