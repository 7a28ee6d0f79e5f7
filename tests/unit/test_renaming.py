"""ALTER INDEX name RENAME TO other: through the pure leader, and by what is read of the index meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.catalog.dictionary import NoSuchIndexError
from coordinator.catalog.registry import ConflictError
from indexer.scan.plan.errors import UnknownIndexError
from indexer.scan.tail.moments import TailRequest
from indexer.scan.tail.tails import Tails
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError
from tests.unit.copy_world import CopyWorld
from tests.unit.leader_world import World
from tests.unit.scan_world import World as ScanWorld
from tests.unit.test_scan_service import BY_CITY, ask, ids, people
from tests.unit.test_tail import event_of, nobody_leaves


def rename(world: World, name: str, new_name: str) -> str:
    """Its words."""
    statement = parse_statement(f"ALTER INDEX {name} RENAME TO {new_name}")
    done = world.leader.commands.execute(statement, None, world.now)
    world.take(done.instructions)
    return done.message


def test_only_the_name_changes_and_the_statement_says_so() -> None:
    world = CopyWorld().ready()
    before = world.index("by_city")
    assert rename(world, "by_city", "by_town") == "index by_city is by_town from now on"
    index = world.index("by_town")
    statement = index.definition.statement
    assert statement.startswith("CREATE INDEX by_town ON people (city)")
    again = parse_statement(statement)
    assert isinstance(again, CreateIndex)
    assert replace(again.definition, statement=statement) == index.definition
    definition = replace(index.definition, name="by_city", statement=before.definition.statement)
    assert replace(index, definition=definition) == before
    assert world.notes[-1].kind == "index-renamed"
    with pytest.raises(NoSuchIndexError, match="by_city"):
        world.leader.dictionary.index_named("by_city")


@pytest.mark.parametrize("state", ["deferred", "queued", "built", "READY", "FAILED"])
def test_whatever_it_does_goes_on(state: str) -> None:
    world = CopyWorld(options=", defer_build=true") if state == "deferred" else CopyWorld()
    if state in ("built", "READY"):
        world.catch_up() if state == "built" else world.ready()
    elif state == "FAILED":
        world.leader.commands.cancel("b8", world.now)
        index = world.leader.dictionary.index_named("by_city")
        world.leader.dictionary.put(replace(index, state="FAILED", reason="its topic is gone"))
        world.tick()
    before = world.index("by_city")
    rename(world, "by_city", "by_town")
    after = world.index("by_town")
    assert (after.id, after.state, after.build) == (before.id, before.state, before.build)
    if state == "built":
        world.beat()
        world.common(130, 60, nodes=("n1", "n2", "n3"))
        assert world.index("by_town").state == "READY"
        assert world.leader.builds.registry.names(world.build("b8")) == ["by_town"]


def test_the_old_name_is_free() -> None:
    world = CopyWorld().ready()
    rename(world, "by_city", "by_town")
    world.sql("CREATE INDEX by_city ON people (city)")
    assert world.index("by_city").id != world.index("by_town").id
    rename(world, "by_town", "by_place")
    assert rename(world, "by_city", "by_town") == "index by_city is by_town from now on"


def test_what_is_in_the_way_is_told_and_nothing_changes() -> None:
    world = CopyWorld().ready()
    world.sql("CREATE INDEX by_age ON people (age)")
    before = dict(world.written)

    def refused(kind: type[CallerError], name: str, new_name: str) -> CallerError:
        with pytest.raises(kind) as caught:
            rename(world, name, new_name)
        assert caught.value.next_step
        return caught.value

    error = refused(ConflictError, "by_city", "by_age")
    assert error.problem_type == "index-exists"
    error = refused(CallerError, "by_city", "mutations.x")
    assert error.problem_type == "invalid-name"
    refused(NoSuchIndexError, "by_ctiy", "by_town")
    assert rename(world, "by_city", "by_city") == "index by_city has that name already, nothing is done"
    assert world.written == before
    world.sql("DROP INDEX by_city")
    error = refused(ConflictError, "by_city", "by_town")
    assert error.problem_type == "index-not-alterable"
    assert error.message == "index by_city is being dropped"


# --- what is read meanwhile ---------------------------------------------------------------------------------


def renamed(world: ScanWorld, new_name: str) -> None:
    definition = world.index("by_city").definition
    world.change("by_city", definition=replace(definition, name=new_name))


def test_pages_sessions_and_holds_go_on_under_the_new_name() -> None:
    world = ScanWorld(BY_CITY, node_count=2)
    world.commit(1, {"by_city": people(30)})

    async def check() -> None:
        services = world.services()
        first = await ask(services["n0"], limit=10)
        renamed(world, "by_town")
        second = await ask(services["n1"], "by_town", page=first["page"])
        third = await ask(services["n0"], "by_town", page=second["page"])
        found = [*ids(first), *ids(second), *ids(third)]
        assert sorted(found) == sorted(f"u{at}" for at in range(30))
        assert len((await ask(services["n0"], "by_town", session=first["session"]))["rows"]) == 30
        with pytest.raises(UnknownIndexError):
            await ask(services["n0"], page=first["page"])

    asyncio.run(check())


def test_a_scan_that_waits_goes_on_under_the_new_name() -> None:
    world = ScanWorld(BY_CITY)
    world.commit(1, {"by_city": people(3)}, offsets={0: 10})

    async def check() -> None:
        service = world.services()["n0"]
        waiting: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(
            ask(service, at_least={0: 20}, timeout_ms=20_000)
        )
        await asyncio.sleep(0)  # (it waits)
        renamed(world, "by_town")
        world.commit(2, {"by_town": people(4)}, offsets={0: 20})
        assert len((await waiting)["rows"]) == 4

    asyncio.run(check())


def test_a_tail_goes_on_under_the_new_name() -> None:
    world = ScanWorld(BY_CITY)
    world.commit(1, {"by_city": people(3)})

    async def check() -> None:
        tails = Tails(world.services()["n0"].shared)
        tail = await tails.open("by_city", TailRequest(), None, nobody_leaves)
        token, _, _ = await event_of(tail.first())
        renamed(world, "by_town")
        world.commit(2, {"by_town": people(4)})
        pieces = await tail.next(nobody_leaves, 20)
        _, _, event = await event_of(pieces)
        assert len(event["added"]) == 1
        await tails.open("by_town", TailRequest(), token, nobody_leaves)

    asyncio.run(check())
