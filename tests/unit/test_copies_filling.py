"""A copy that is being filled: from which one, when it counts (R41), and when it is given up (R39, R48)."""

from __future__ import annotations

import pytest

from coordinator.core.events import HistoryExamined, Reported, TopicsDeleted
from keytide.catalog.copies import CopyRecord
from keytide.model.timestamp import Place
from keytide.wire.messages import HistoryLost
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld, Copy

GONE_MS = LIMITS.copy_after_ms + 2_000


def begun(placement: list[list[str]] | None = None, replicas: int = 1, count: int = 3) -> CopiesWorld:
    """Slice 0 has one copy too few, and one is being filled."""
    world = CopiesWorld(placement or [["n1"]], replicas=replicas, count=count)
    world.busy = True
    world.go(1_000)
    assert world.published > 0
    world.fill(world.record(), "FILLING")
    world.go(1_000)
    return world


def counts(world: CopiesWorld, record: CopyRecord) -> bool:
    return not world.records() and record.node in world.placement()


def test_what_it_may_need_is_written_before_it_is_filled() -> None:
    world = CopiesWorld([["n1"]])
    world.nodes["n1"].copies[0].horizon = 7
    world.go(1_000)
    record = world.record()
    assert (record.source, record.need, record.why) == ("n1", 7, "wanted")
    assert record.node in ("n2", "n3")
    assert world.placement() == ["n1"]


def test_one_is_begun_at_a_time_for_each_that_is_missing() -> None:
    world = CopiesWorld([["n1"]], replicas=2, count=5)
    world.go(5_000)
    assert len(world.records()) == 2
    assert len({record.node for record in world.records()} | {"n1"}) == 3
    assert len({record.id for record in world.records()}) == 2


def test_an_index_without_replicas_has_one_copy() -> None:
    world = CopiesWorld([["n1"]], replicas=0)
    world.go(3_000)
    world.lose("n1")
    world.go(3_000)
    assert world.records() == []
    assert world.placement() == ["n1"]


@pytest.mark.parametrize("state", ["FILLING", "CATCHUP", "STOPPED"])
def test_it_does_not_count_before_it_serves(state: str) -> None:
    world = begun()
    record = world.record()
    copy = world.fill(record, state)
    world.go(2_000)
    assert world.placement() == ["n1"]
    assert world.record() == record
    copy.state = "LIVE"
    world.go(2_000)
    assert counts(world, record)
    assert world.index("by_city").copies == {0: {record.node: record.id}}
    (told,) = world.told("copy-counts")
    assert told == (
        f"copy {record.id} of slice 0 of by_city on node {record.node} has caught up and counts: 2 of 2 "
        "copies do"
    )


def test_it_does_not_count_before_it_holds_just_what_is_published() -> None:
    """One number more or less is of no use to who has seen this one (R41)."""
    world = begun()
    record, published = world.record(), world.published
    world.nodes["n1"].copies[0].follows = False
    copy = world.fill(record)
    copy.follows = False
    world.go(1_500)
    assert world.published == published
    copy.number = published + 1
    world.holds(record.node, published - 1, 0)
    world.holds(record.node, published + 1, 0)
    world.beat()
    world.tick(LIMITS.copy_check_ms)
    assert world.record() == record
    world.holds(record.node, published, 0)
    world.tick(LIMITS.copy_check_ms)
    assert counts(world, record)


def test_where_no_copy_that_counts_lives_any_number_past_it_will_do() -> None:
    """The only one has died at the published number, and nobody else can publish."""
    world = begun()
    record, published = world.record(), world.published
    world.nodes["n1"].up = False
    copy = world.fill(record)
    copy.follows = False
    world.go(5_000)
    copy.number = published - 1
    world.holds(record.node, published - 1, 0)
    world.go(1_000)
    assert world.record() == record
    copy.number = world.number
    world.holds(record.node, world.number, 0)
    assert world.number > published == world.published
    world.beat()
    world.tick(LIMITS.copy_check_ms)
    assert counts(world, record)
    copy.follows = True
    world.go(1_000)
    assert world.published > published


def test_a_copy_that_stands_still_does_not_keep_another_one_from_counting() -> None:
    """It serves, lags and holds nothing that is published: the slice has one that goes on."""
    world = begun()
    record = world.record()
    world.nodes["n1"].copies[0].follows = False
    world.fill(record)
    world.go(15_000)
    assert counts(world, record)


def test_a_new_leader_waits_for_what_counts_and_was_not_heard_yet() -> None:
    world = begun()
    record = world.record()
    world.nodes["n1"].copies[0].follows = False
    world.succeed()
    world.nodes["n1"].up = False
    copy = world.fill(record)
    world.go(2_000)
    assert world.record() == record, "n1 may live, and hold what is published"
    assert copy.number > world.published
    world.go(2_000)
    assert counts(world, record)


def test_a_copy_of_another_id_does_not_count() -> None:
    """The node came back with what it had before, and has not read the dictionary."""
    world = begun()
    record = world.record()
    world.nodes[record.node].copies[0] = Copy(id="")
    world.go(3_000)
    assert world.record() == record
    world.nodes[record.node].copies[0] = Copy(id="c1")
    world.go(3_000)
    assert world.record() == record
    assert world.leader.stability.acknowledgements.newest(record.node, INDEX, 0) == -1


def test_a_copy_of_another_history_does_not_count() -> None:
    world = begun()
    record = world.record()
    world.fill(record).incarnation = 1
    world.go(2_000)
    assert world.record() == record


def test_nobody_waits_for_it() -> None:
    """It serves, and stands still: numbers are published without it, and timestamps go on."""
    world = begun()
    world.fill(world.record()).follows = False
    before = world.published
    world.go(4_000)
    assert world.published > before + 10
    assert world.leader.stability.streams["people"].lagging == set()
    assert world.placement() == ["n1"]


def test_it_is_given_up_when_its_node_says_that_it_is_lost() -> None:
    world = begun()
    record = world.record()
    world.lose(record.node)
    world.go(1_000)
    assert world.records() == []
    (told,) = world.told("copy-given-up")
    assert told == (
        f"copy {record.id} of slice 0 of by_city on node {record.node} is given up: its node says that it is "
        "lost (its folder is gone)"
    )
    world.go(2_000)
    assert world.records() == []
    assert "1 attempts came to nothing" in world.leader.copies.waiting[INDEX, 0]
    world.go(4_000)
    again = world.record()
    assert again.id != record.id
    assert again.node not in ("n1", record.node), "another one is tried first"


def test_pauses_between_attempts_grow() -> None:
    world = begun(count=2)
    pauses = []
    for _ in range(3):
        world.fill(world.record(), "LOST")
        world.until(lambda: not world.records(), 2_000)
        at = world.now
        world.until(lambda: bool(world.records()), 60_000)
        pauses.append(world.now - at)
    assert 5_000 <= pauses[0] < 6_000
    assert 10_000 <= pauses[1] < 11_000
    assert 20_000 <= pauses[2] < 21_000


def test_the_word_that_an_older_copy_is_lost_is_none() -> None:
    world = begun()
    record = world.record()
    world.nodes[record.node].copies[0] = Copy(id="c1", state="LOST")
    world.go(2_000)
    assert world.record() == record


def test_it_is_given_up_when_its_node_is_gone() -> None:
    world = begun()
    record = world.record()
    world.nodes[record.node].up = False
    world.go(LIMITS.copy_after_ms - 1_000)
    assert world.record() == record
    world.go(3_000)
    again = world.record()
    assert again.id != record.id
    assert again.node not in ("n1", record.node)


def test_a_node_that_is_away_for_a_while_goes_on() -> None:
    world = begun()
    record = world.record()
    world.nodes[record.node].up = False
    world.go(20_000)
    world.nodes[record.node].up = True
    world.fill(record)
    world.go(2_000)
    assert counts(world, record)


def three(need: int = 10) -> tuple[CopiesWorld, CopyRecord]:
    """A slice on n1 and n2 that is to be on three nodes."""
    world = begun([["n1", "n2"]], replicas=2, count=4)
    record = world.record()
    assert record.source == "n1"
    world.nodes["n2"].copies[0].horizon = need
    world.go(1_000)
    return world, record


@pytest.mark.parametrize(("horizon", "need"), [(4, 4), (30, 10)])
def test_another_source_is_named_when_one_is_gone_and_the_need_never_rises(horizon: int, need: int) -> None:
    world, record = three(horizon)
    world.nodes["n1"].up = False
    world.go(5_000)
    changed = world.record()
    assert (changed.id, changed.node, changed.source) == (record.id, record.node, "n2")
    assert changed.need == need
    (told,) = world.told("copy-source-replaced")
    assert "is filled from node n2 now" in told


@pytest.mark.parametrize("state", ["LOST", "STOPPED", "CATCHUP"])
def test_a_source_that_ceases_to_serve_is_replaced(state: str) -> None:
    world, record = three()
    world.nodes["n1"].copies[0].state = state
    world.go(1_000)
    (same,) = [one for one in world.records() if one.id == record.id]
    assert same.source == "n2"


def test_a_source_that_cannot_say_what_its_queue_keeps_is_none() -> None:
    world, record = three()
    world.nodes["n2"].copies[0].horizon = -1
    world.nodes["n1"].up = False
    world.go(10_000)
    assert world.record() == record
    (told,) = world.told("copy-waits")
    assert "wait for a copy to fill it from: none serves, of those on n1, n2" in told


def test_what_is_filled_already_needs_no_source() -> None:
    world, record = three()
    world.fill(record, "CATCHUP")
    world.go(1_000)
    world.nodes["n1"].up = False
    world.go(5_000)
    assert world.record() == record


def test_its_only_source_is_away_for_a_while() -> None:
    world = begun()
    record = world.record()
    world.nodes["n1"].up = False
    world.go(20_000)
    assert world.record() == record
    assert len(world.told("copy-waits")) == 1
    world.nodes["n1"].up = True
    world.fill(record)
    world.go(2_000)
    assert counts(world, record)


def test_it_goes_with_its_index() -> None:
    world = begun()
    world.sql("DROP INDEX by_city")
    assert world.index("by_city").copies == {}
    world.go(1_000)
    assert world.records() == []
    world.handle(TopicsDeleted(INDEX, world.now))
    assert f"index/{INDEX}" not in world.written
    world.go(1_000)
    assert world.records() == []


def test_an_index_that_is_built_again_has_no_copies_of_before() -> None:
    world = begun()
    record = world.record()
    world.fill(record)
    world.go(2_000)
    assert world.index("by_city").copies != {}
    index = world.leader.dictionary.index_named("by_city")
    world.take(world.leader._settle(world.leader._fail(index, "a reason", world.now), world.now))
    assert (world.index("by_city").state, world.index("by_city").copies) == ("FAILED", {})


def rolled_back(world: CopiesWorld, steps: int) -> int:
    """The source loses what came with the last timestamps; nodes have not read of it yet. The number that is
    gone back to."""
    lost = HistoryLost("people", "p1", 0, 0, "t1", world.read, 3, "its place is not on the log")
    world.handle(Reported(lost, world.now))
    number = world.number - steps
    timestamp = world.places[number].timestamp
    places = {0: Place(timestamp.offset(0), 3)}
    world.handle(HistoryExamined("people", "t1", 2, number, timestamp, places, "", world.now))
    assert world.known().incarnation == 1
    world.read = timestamp.offset(0)
    return number


def test_a_rollback_in_between_changes_nothing_of_it() -> None:
    """Its source and it step back by themselves, and it counts by what is published since."""
    world = begun()
    record = world.record()
    copy = world.fill(record)
    copy.follows = False
    world.go(1_000)
    world.holds(record.node, world.number - 3, 0)
    back = rolled_back(world, 5)
    world.go(2_000)
    assert world.record() == record
    copy.incarnation = world.nodes["n1"].copies[0].incarnation = 1
    copy.number = back
    world.go(2_000)
    assert world.published > back
    assert world.record() == record, "what it had acknowledged is void"
    copy.follows = True
    world.go(2_000)
    assert counts(world, record)


def test_while_a_source_steps_back_it_is_none() -> None:
    world, record = three()
    rolled_back(world, 5)
    world.nodes["n2"].copies[0].incarnation = 1
    world.go(1_000)
    assert (world.record().id, world.record().source) == (record.id, "n2")
