"""Whose word counts for what is published and waited for: copies that the dictionary names, by their ids."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from coordinator.core.events import Reported
from keytide.catalog.copies import CopyRecord
from keytide.wire.messages import NodeHeartbeat
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld, Copy


def serving(placement: list[list[str]], replicas: int = 1, count: int = 3) -> CopiesWorld:
    world = CopiesWorld(placement, replicas=replicas, count=count)
    world.busy = True
    world.go(2_000)
    return world


def test_a_copy_that_is_being_filled_does_not_hide_that_all_that_count_are_lost() -> None:
    for state in ("FILLING", "CATCHUP", "LIVE"):
        world = serving([["n1"]])
        world.fill(world.record(), state).follows = False
        world.lose("n1")
        world.beat()
        assert world.leader.stability.nodes.lost == {(INDEX, 0)}


def test_a_copy_that_was_taken_out_does_not_hide_it_either() -> None:
    world = serving([["n1"]], replicas=0)
    world.nodes["n2"].copies[0] = Copy(follows=True)
    world.lose("n1")
    world.go(1_000)
    nodes = world.leader.stability.nodes
    assert nodes.lost == {(INDEX, 0)}
    assert not nodes.copy_serves("n2", INDEX, 0, 0)
    assert [one.state for one in nodes.said(INDEX, 0)] == ["LOST"]


def test_a_slice_is_not_lost_while_another_node_may_come_back() -> None:
    world = serving([["n1", "n2"]], count=2)
    world.nodes["n2"].up = False
    world.go(5_000)
    world.lose("n1")
    world.go(LIMITS.copy_after_ms - 7_000)
    nodes = world.leader.stability.nodes
    assert nodes.lost == frozenset()
    world.go(5_000)
    assert nodes.lost == {(INDEX, 0)}
    world.nodes["n2"].up = True
    world.beat("n2")
    assert nodes.lost == frozenset(), "at once"


def test_a_node_that_is_heard_again_is_not_gone() -> None:
    """It says that its copy is lost, and the other one may come back: the slice has not lost both."""
    world = serving([["n1", "n2"]], count=2)
    world.nodes["n2"].copies[0].state = "CATCHUP"
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms + 3_000)
    world.nodes["n2"].up = False
    world.go(5_000)
    world.nodes["n1"].up = True
    world.lose("n1")
    world.beat("n1")
    assert world.placement() == ["n1", "n2"]
    assert world.leader.stability.nodes.lost == frozenset()


def test_with_one_copy_it_is_lost_by_its_word() -> None:
    world = serving([["n1"]], replicas=0)
    world.lose("n1")
    world.beat()
    assert world.leader.stability.nodes.lost == {(INDEX, 0)}
    world.nodes["n1"].up = False
    world.go(5_000)
    assert world.leader.stability.nodes.lost == frozenset()


def test_a_live_node_that_says_nothing_of_its_copy_may_have_it() -> None:
    world = serving([["n1", "n2"]], count=2)
    world.lose("n1")
    del world.nodes["n2"].copies[0]
    world.beat()
    assert world.leader.stability.nodes.lost == frozenset()


def test_what_a_filling_copy_acknowledges_is_remembered_and_asked_of_nobody() -> None:
    world = serving([["n1"]])
    record = world.record()
    world.fill(record)
    world.beat()
    held, number = world.leader.stability.acknowledgements, world.number
    before = world.published
    world.holds(record.node, number + 1, 0)
    assert held.newest(record.node, INDEX, 0) == number + 1
    assert held.holds_number(record.node, INDEX, 0, number + 1)
    assert world.published == before, "nobody publishes on its account"


@pytest.mark.parametrize("named", [True, False])
def test_a_copy_does_not_inherit_what_the_one_before_it_had_acknowledged(named: bool) -> None:
    """n1 held the published number, and is lost; its next copy on the same node has nothing yet. Its node may
    say so in a heartbeat of its own, or read the record between two."""
    world = serving([["n1", "n2"]], count=2)
    held = world.leader.stability.acknowledgements
    assert held.newest("n1", INDEX, 0) >= world.published > 0
    index = world.leader.dictionary.index_named("by_city")
    if named:
        world.lose("n1")
        world.go(1_000)
        assert world.record().node == "n1"
    else:
        world.leader.dictionary.put(replace(index, placement=[["n2"]]))
        world.leader.dictionary.put(CopyRecord("c900", INDEX, 0, "n1", "n2", 1, 0, world.now))
        world.tick(20)
    assert held.newest("n1", INDEX, 0) == -1
    world.holds("n1", world.number, 0)  # late, of the old one
    world.beat("n1")
    assert held.newest("n1", INDEX, 0) == -1
    (record,) = [one for one in world.leader.dictionary.catalog.copies() if one.index == INDEX]
    world.nodes["n1"].copies[0] = Copy(record.id)
    world.beat("n1")
    world.go(200)
    assert held.newest("n1", INDEX, 0) == world.number


def test_it_keeps_what_it_has_acknowledged_when_it_counts() -> None:
    world = serving([["n1"]])
    record = world.record()
    world.fill(record)
    world.until(lambda: not world.records())
    assert world.leader.stability.acknowledgements.newest(record.node, INDEX, 0) == world.number
    before = world.published
    world.go(1_000)
    assert world.published > before


def test_what_is_published_waits_for_it_from_then_on() -> None:
    world = serving([["n1"]])
    record = world.record()
    copy = world.fill(record)
    world.until(lambda: not world.records())
    copy.follows = False
    at = world.number
    world.go(1_500)
    assert world.published <= at
    world.go(8_000)
    assert world.published > at, "it lags"


def test_a_heartbeat_of_a_start_that_is_over_changes_nothing() -> None:
    """It comes late, and tells of a number that the node held before it was started again."""
    world = serving([["n1", "n2"]], count=2)
    node = world.nodes["n1"]
    old = NodeHeartbeat(
        "n1", "http://127.0.0.1:1", 1, world.now, [world.status(0, node.copies[0])], 0, 0, world.offset
    )
    node.started_at, node.copies[0].state = 2, "CATCHUP"
    world.beat("n1")
    held = world.leader.stability.acknowledgements
    assert held.newest("n1", INDEX, 0) == -1
    world.handle(Reported(old, world.now))
    assert held.newest("n1", INDEX, 0) == -1


def test_who_is_asked_for_a_number_does_not_change_with_others_that_lie_around() -> None:
    """A node that holds a copy of another id says that it serves: nobody waits for it."""
    world = serving([["n1", "n2"]], count=2)
    world.nodes["n2"].copies[0] = Copy("c77", number=world.number, follows=False)
    world.beat("n2")
    before = world.published
    world.go(2_000)
    assert world.published > before
    assert world.leader.stability.streams["people"].lagging == set()


def test_the_dictionary_knows_what_it_has_written() -> None:
    dictionary = Dictionary(CopiesWorld([["n1"]]).leader.dictionary.catalog, "kt")
    began = dictionary.written
    assert (dictionary.ordered, dictionary.committed) == (0, 0)
    dictionary.put(CopyRecord("c1", INDEX, 0, "n1", "n2", 0, 0, 0))
    assert dictionary.drain() is not None
    assert dictionary.drain() is None
    assert (dictionary.ordered, dictionary.committed, dictionary.written) == (1, 0, began)
    dictionary.wrote(-1)
    assert (dictionary.committed, dictionary.written) == (1, began)
    dictionary.wrote(500)
    assert dictionary.written == 501
    dictionary.wrote(400)
    assert dictionary.written == 501
