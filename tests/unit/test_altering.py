"""ALTER INDEX name SET (replicas=N), through the whole pure leader."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.catalog.dictionary import NoSuchIndexError
from coordinator.catalog.registry import ConflictError
from coordinator.core.events import TopicsDeleted
from keytide.definition.statement import CreateIndex, parse_statement
from tests.unit.copy_world import INDEX, CopyWorld
from tests.unit.leader_world import World


def alter(world: World, replicas: int) -> str:
    """Its words."""
    statement = parse_statement(f"ALTER INDEX by_city SET (replicas={replicas})")
    done = world.leader.commands.execute(statement, None, world.now)
    world.take(done.instructions)
    return done.message


def refused(world: World, replicas: int) -> ConflictError:
    before = dict(world.written)
    with pytest.raises(ConflictError) as caught:
        alter(world, replicas)
    world.tick()
    assert world.index("by_city").definition.replicas == 1
    assert {key: world.written[key] for key in before if key.startswith("index/")} == {
        key: value for key, value in before.items() if key.startswith("index/")
    }
    assert caught.value.problem_type == "index-not-alterable"
    assert caught.value.next_step
    return caught.value


def test_more_copies_are_wanted_and_the_statement_says_so() -> None:
    world = CopyWorld(replicas=0).ready()
    before = world.index("by_city")
    assert alter(world, 1) == (
        "index by_city is to have 2 copies of each slice: 2 copies are filled from those that there are"
    )
    index = world.index("by_city")
    assert index.placement == before.placement  # (the leader fills them)
    assert index.definition.replicas == 1
    again = parse_statement(index.definition.statement)
    assert isinstance(again, CreateIndex)
    assert replace(again.definition, statement=index.definition.statement) == index.definition
    assert world.notes[-1].kind == "index-altered"


def test_more_copies_than_nodes_wait_for_one() -> None:
    world = CopyWorld().ready()
    assert "only 3 indexer nodes are live, and 4 are needed: the rest waits" in alter(world, 3)
    assert world.index("by_city").definition.replicas == 3


def test_the_same_number_changes_nothing() -> None:
    world = CopyWorld().ready()
    statement = world.index("by_city").definition.statement
    assert alter(world, 1) == "index by_city has replicas=1 already, nothing is done"
    assert world.index("by_city").definition.statement == statement


def test_the_last_copies_go() -> None:
    world = CopyWorld().ready()
    assert world.index("by_city").placement == [["n1", "n2"], ["n3", "n1"]]
    assert "2 copies were taken out" in alter(world, 0)
    index = world.index("by_city")
    assert (index.placement, index.definition.replicas) == ([["n1"], ["n3"]], 0)


def test_a_copy_that_does_not_serve_goes_before_one_that_does() -> None:
    world = CopyWorld().ready()
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    world.leader.dictionary.put(replace(index, copies={0: {"n1": "c1", "n2": "c2"}}))
    world.says["n1", 0] = {"state": "LOST", "reason": "gone", "number": -1, "copy": "c1"}
    world.says["n2", 0] = {"copy": "c2"}
    world.beat()
    alter(world, 0)
    index = world.index("by_city")
    assert (index.placement, index.copies) == ([["n2"], ["n3"]], {0: {"n2": "c2"}})


@pytest.mark.parametrize("trouble", ["silent", "LOST", "CATCHUP", "old", "no snapshot"])
def test_no_copy_goes_unless_one_that_stays_serves(trouble: str) -> None:
    world = CopyWorld().ready()
    if trouble == "silent":
        world.silent = {"n1", "n2"}
    troubles: dict[str, dict[str, Any]] = {
        "LOST": {"state": "LOST"},
        "CATCHUP": {"state": "CATCHUP"},
        "old": {"incarnation": -1},
        "no snapshot": {"number": -1},
    }
    for node in ("n1", "n2"):
        world.says[node, 0] = troubles.get(trouble, {})
    world.live(5_000)
    error = refused(world, 0)
    assert "no copy of slice 0 of by_city serves now" in error.message
    assert "n1, n2" in error.message
    world.says.clear()
    world.silent.clear()
    world.live(1_000)
    alter(world, 0)
    assert world.index("by_city").placement == [["n1"], ["n3"]]


def test_copies_that_are_being_filled_and_are_not_wanted_any_more_are_given_up() -> None:
    world = CopyWorld().ready()
    alter(world, 3)
    for id_, node in (("c9", "n3"), ("c10", "n4")):
        world.fill(id_, 0, node)
    alter(world, 2)
    assert [one.id for one in world.leader.dictionary.catalog.copies()] == ["c9"]
    assert "copy/c10" not in world.written
    alter(world, 1)
    assert world.leader.dictionary.catalog.copies() == []
    assert world.index("by_city").placement == [["n1", "n2"], ["n3", "n1"]]


def test_what_waits_is_altered_for_its_build() -> None:
    world = World()
    world.sql("CREATE INDEX by_city ON people (city) WITH (slices=2, replicas=2)")
    world.node("n1", "n2")
    world.tick()
    waits = world.leader.builds.registry.run("b8").waiting_for
    assert waits == "indexer nodes: only 2 indexer nodes are live, and 3 are needed"
    assert alter(world, 1) == "index by_city is to have 2 copies of each slice: its next build makes them"
    world.tick()
    world.prepared("b8")
    assert world.index("by_city").placement == [["n1", "n2"], ["n1", "n2"]]


def test_an_index_that_is_built_is_not_altered() -> None:
    world = CopyWorld()
    assert "is in build b8, QUEUED: its copies are placed" in refused(world, 0).message
    world.prepared("b8")
    assert "is in build b8, BACKFILL" in refused(world, 2).message
    world.leader.commands.pause("b8", world.now)
    assert "is in build b8, PAUSED" in refused(world, 2).message


def test_a_failed_index_is_built_first_and_one_that_goes_is_not_altered() -> None:
    world = CopyWorld()
    world.prepared("b8")
    world.take(world.leader.builds.registry.fail(world.build("b8"), "it cannot be", world.now))
    world.tick()
    assert "index by_city is FAILED: it cannot be" in refused(world, 0).message
    world.sql("BUILD INDEX ON people (by_city)")
    world.progress(2, 0, 0)
    alter(world, 0)
    world.sql("DROP INDEX by_city")
    with pytest.raises(ConflictError, match="is being dropped"):
        alter(world, 1)
    world.progress(9, 0, 0)
    world.tick()
    world.handle(TopicsDeleted(INDEX, world.now))
    with pytest.raises(NoSuchIndexError):
        alter(world, 1)


def test_nothing_goes_while_the_history_is_examined() -> None:
    world = CopyWorld().ready()
    world.leader.builds.registry.halted.add("people")
    assert "history of people is being examined" in refused(world, 0).message


def test_copies_are_forgotten_with_the_placement() -> None:
    world = CopyWorld().ready()
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    world.leader.dictionary.put(replace(index, copies={0: {"n1": "c1"}}))
    world.sql("DROP INDEX by_city")
    assert (world.index("by_city").placement, world.index("by_city").copies) == ([], {})
