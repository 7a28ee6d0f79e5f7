"""ALTER INDEX name SET (replicas=N), through the whole pure leader."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.catalog.dictionary import NoSuchIndexError
from coordinator.catalog.registry import ConflictError
from coordinator.core.events import TopicsDeleted
from keytide.catalog.copies import LeavingCopy
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


@pytest.mark.parametrize(("options", "replicas"), [("slices=2", 2), ("replicas=0", 0), ("replicas=1", 1)])
def test_an_index_that_does_not_say_has_as_many_copies_as_the_setting_does(
    options: str, replicas: int
) -> None:
    world = World(BuildLimits(default_replicas=2))
    world.sql(f"CREATE INDEX by_city ON people (city) WITH ({options}, defer_build=true)")
    definition = world.index("by_city").definition
    assert definition.replicas == replicas
    again = parse_statement(definition.statement)
    assert isinstance(again, CreateIndex)
    assert again.definition.replicas == replicas


def test_more_copies_than_nodes_wait_for_one() -> None:
    world = CopyWorld().ready()
    assert "only 3 indexer nodes are live, and 4 are needed: the rest waits" in alter(world, 3)
    assert world.index("by_city").definition.replicas == 3


def test_the_same_number_changes_nothing() -> None:
    world = CopyWorld().ready()
    statement = world.index("by_city").definition.statement
    assert alter(world, 1) == "index by_city has replicas=1 already, nothing is done"
    assert world.index("by_city").definition.statement == statement


def test_copies_too_many_are_to_leave() -> None:
    world = CopyWorld().ready()
    before = world.index("by_city").placement
    assert alter(world, 0) == (
        "index by_city is to have 1 copy of each slice: 2 copies leave, which still serve pages for a while"
    )
    index = world.index("by_city")
    assert (index.placement, index.definition.replicas) == (before, 0)  # (the leader has them leave)


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


def test_copies_are_forgotten_with_the_placement() -> None:
    world = CopyWorld().ready()
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    leaving = {0: {"n3": LeavingCopy()}}
    world.leader.dictionary.put(replace(index, copies={0: {"n1": "c1"}}, leaving=leaving))
    world.sql("DROP INDEX by_city")
    index = world.index("by_city")
    assert (index.placement, index.copies, index.leaving) == ([], {}, {})
