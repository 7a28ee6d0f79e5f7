"""A copy that is lost, or whose node is gone: when it is taken out, and when it is not (R43)."""

from __future__ import annotations

import pytest

from coordinator.core.events import KafkaAnswered
from tests.unit.copies_world import LIMITS, CopiesWorld, Copy

GONE_MS = LIMITS.copy_after_ms + 2_000


def serving(placement: list[list[str]] | None = None, replicas: int = 1, count: int = 3) -> CopiesWorld:
    """An index whose copies all serve."""
    world = CopiesWorld(placement or [["n1", "n2"]], replicas=replicas, count=count)
    world.go(2_000)
    assert world.published > 0
    return world


def test_a_lost_copy_is_taken_out_and_filled_again_on_its_node() -> None:
    world = serving()
    world.lose("n1")
    world.go(1_000)
    assert world.placement() == ["n2"]
    record = world.record()
    assert (record.index, record.slice, record.node, record.source) == ("by_city-1", 0, "n1", "n2")
    assert (record.need, record.incarnation, record.why) == (10, 0, "lost")
    (told,) = world.told("copy-taken-out")
    assert told == (
        "the copy of slice 0 of by_city on node n1 counts no longer: it is lost (its folder is gone); node "
        "n2 has what it had"
    )
    assert world.told("copy-begun") == [
        f"copy {record.id} of slice 0 of by_city on node n1 is filled from node n2"
    ]


def test_the_last_copy_is_never_taken_out() -> None:
    world = serving()
    world.lose("n1")
    world.lose("n2")
    world.go(10_000)
    assert world.placement() == ["n1", "n2"]
    assert world.records() == []


def test_both_are_lost_at_once_and_the_word_of_one_comes_later() -> None:
    """What the leader knows of the other one is half a second old: it takes the first one out, no more."""
    world = serving()
    world.lose("n1")
    world.beat("n1")
    world.lose("n2")
    world.go(20_000)
    assert world.placement() == ["n2"]
    assert world.told("copy-taken-out") != []
    assert [build.slices for build in world.leader.builds.registry.all()] == [{"by_city-1": [0]}]


@pytest.mark.parametrize("state", ["CATCHUP", "STOPPED", "BUILDING"])
def test_not_while_the_other_one_does_not_serve(state: str) -> None:
    world = serving()
    world.nodes["n2"].copies[0].state = state
    world.go(1_000)
    world.lose("n1")
    world.go(7_000)
    assert world.placement() == ["n1", "n2"]
    (told,) = world.told("copy-waits")
    assert told == (
        "slices 0 of by_city have not the copies that they are to have, and wait for a copy that holds what "
        "is published, on n2, before the one on node n1 is replaced"
    )
    world.nodes["n2"].copies[0].state = "LIVE"
    world.go(1_000)
    assert world.placement() == ["n2"]


def test_not_while_the_other_one_lacks_what_is_published() -> None:
    world = serving()
    other = world.nodes["n2"].copies[0]
    world.busy, other.follows = True, False
    world.go(8_000)
    assert world.published > other.number, "it lags, and nothing waits for it"
    world.lose("n1")
    world.go(2_000)
    assert world.placement() == ["n1", "n2"]
    other.follows = True
    world.go(2_000)
    assert world.placement() == ["n2"]


def test_not_by_the_word_of_a_copy_of_another_history() -> None:
    world = serving()
    world.nodes["n2"].copies[0].incarnation = -1
    world.go(1_000)
    world.lose("n1")
    world.go(2_000)
    assert world.placement() == ["n1", "n2"]


def test_not_by_a_word_that_is_older_than_the_record_before() -> None:
    """The copy on n3 counts by what n3 has said; its disk is lost right then. That n2 is lost, too, must not
    make the leader take it out on account of the same word."""
    world = serving([["n2"]])
    record = world.record()
    node = record.node
    world.fill(record)
    world.until(lambda: world.records() == [])
    assert world.placement() == ["n2", node]
    world.nodes[node].read = world.offset - 4  # what it says is from before the record
    world.lose("n2")
    world.go(3_000)
    assert world.placement() == ["n2", node]
    world.nodes[node].read = None
    world.go(1_000)
    assert world.placement() == [node]


def test_not_before_the_record_before_is_written() -> None:
    world = serving([["n1", "n2", "n3"]], replicas=2)
    reports = world.leader.copies._reports
    index = world.index("by_city")
    assert reports.holds(index, 0, "n1")
    reports.changed(index.id, 0)
    assert not reports.holds(index, 0, "n1")
    world.leader.dictionary.ordered += 1
    world.leader.dictionary.wrote(-1)
    reports.written(-1)
    assert not reports.holds(index, 0, "n1"), "Kafka has not told where it is"
    world.leader.dictionary.wrote(world.offset)
    reports.written(world.offset)
    assert reports.holds(index, 0, "n1")
    reports.changed(index.id, 0)
    world.leader.dictionary.wrote(world.offset + 1)
    reports.written(world.offset + 1)
    assert not reports.holds(index, 0, "n1"), "n1 has not read it"


def test_the_word_of_an_older_copy_is_none() -> None:
    """n1 lost its copy, and has a new one that counts. A heartbeat of before comes late."""
    world = serving()
    world.lose("n1")
    world.go(1_000)
    old = world.status(0, world.nodes["n1"].copies[0])
    record = world.record()
    world.fill(record)
    world.until(lambda: world.records() == [])
    assert (old.state, old.copy, record.id) == ("LOST", "", world.index("by_city").copy_of(0, "n1"))
    world.go(1_000)
    world.nodes["n1"].copies[0] = Copy(state="LOST")
    world.go(3_000)
    assert world.placement() == ["n2", "n1"]
    world.nodes["n1"].copies[0] = Copy(record.id, "LOST")
    world.go(1_000)
    assert world.placement() == ["n2"]


def test_a_node_that_is_silent_keeps_its_copies_for_a_while() -> None:
    world = serving()
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms - 1_000)
    assert world.placement() == ["n1", "n2"]
    world.go(3_000)
    assert world.placement() == ["n2"]
    assert (world.record().node, world.record().source, world.record().why) == ("n3", "n2", "wanted")
    (told,) = world.told("copy-taken-out")
    assert "node n1 has been silent for more than 300 s (setting coordinator.copy_after_s)" in told


def test_a_node_that_comes_back_in_time_keeps_its_copy() -> None:
    world = serving()
    world.nodes["n1"].up = False
    world.go(LIMITS.copy_after_ms - 1_000)
    world.nodes["n1"].up = True
    world.go(20_000)
    assert world.placement() == ["n1", "n2"]
    assert world.records() == []


def test_a_silent_node_is_not_taken_out_when_nobody_else_has_what_it_has() -> None:
    world = serving()
    world.nodes["n2"].copies[0].state = "CATCHUP"
    world.go(1_000)
    world.nodes["n1"].up = False
    world.go(GONE_MS)
    assert world.placement() == ["n1", "n2"]
    world.lose("n2")
    world.go(1_000)
    assert world.placement() == ["n1", "n2"]


def test_all_nodes_are_silent() -> None:
    world = serving()
    for node in world.nodes.values():
        node.up = False
    world.go(GONE_MS)
    assert world.placement() == ["n1", "n2"]
    world.nodes["n2"].up = True
    world.go(3_000)
    assert world.placement() == ["n2"]


def test_silence_does_not_count_while_kafka_is_away() -> None:
    world = serving()
    world.handle(KafkaAnswered(world.now))
    for node in world.nodes.values():
        node.up = False
    world.go(GONE_MS)
    for node in world.nodes.values():
        node.up = True
    world.handle(KafkaAnswered(world.now))
    world.go(2_000)
    assert world.placement() == ["n1", "n2"]


def test_silence_does_not_count_while_the_leader_is_stopped() -> None:
    world = serving()
    world.now += 10 * LIMITS.copy_after_ms
    world.tick(20)
    world.go(2_000)
    assert world.placement() == ["n1", "n2"]


def test_nothing_is_decided_while_a_history_is_examined() -> None:
    world = serving()
    world.leader.builds.registry.halted.add("people")
    world.lose("n1")
    world.go(3_000)
    assert world.placement() == ["n1", "n2"]
    world.leader.builds.registry.halted.clear()
    world.go(1_000)
    assert world.placement() == ["n2"]


def test_the_node_that_has_lost_it_is_preferred() -> None:
    """n3 has no slice at all."""
    world = serving([["n1", "n2"], ["n1", "n2"], ["n1", "n2"]])
    world.lose("n1", 1)
    world.go(1_000)
    assert (world.record().slice, world.record().node) == (1, "n1")


def test_one_of_each_slice_at_a_time() -> None:
    """Of three copies two are lost: the second goes by a word that is younger than the first one's record."""
    world = serving([["n1", "n2", "n3"]], replicas=2, count=4)
    world.lose("n1")
    world.lose("n2")
    world.beat("n1", "n2")
    world.tick(LIMITS.copy_check_ms)
    assert world.placement() == ["n2", "n3"]
    world.tick(LIMITS.copy_check_ms)
    assert world.placement() == ["n2", "n3"]
    world.beat("n3")
    world.tick(LIMITS.copy_check_ms)
    assert world.placement() == ["n3"]


def test_ids_of_copies_that_are_taken_out_go() -> None:
    world = serving([["n2"]])
    record = world.record()
    world.fill(record)
    world.until(lambda: world.records() == [])
    assert world.index("by_city").copies == {0: {record.node: record.id}}
    world.go(1_000)
    world.lose(record.node)
    world.go(1_000)
    assert world.index("by_city").copies == {}
    again = world.record()
    assert (again.node, again.why) == (record.node, "lost")
    assert again.id != record.id
