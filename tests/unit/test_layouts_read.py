"""What is read of an index while a new layout takes its name over (R45): tokens decide, never the number."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from indexer.scan.plan.errors import IndexNotReadyError, PageSnapshotGoneError
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import HoldRequest
from indexer.scan.tail.moments import TailRequest
from indexer.scan.tail.tails import OpenTail, Tails
from keytide.catalog.records import BuildRecord
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from tests.unit.scan_world import Doc, World
from tests.unit.test_scan_service import BY_CITY, ByNode, ask, ask_count, ids, never, people, run
from tests.unit.test_tail import event_of, nobody_leaves

NEW = "CREATE INDEX by_city ON users (city) WITH (slices=3)"


def made() -> World:
    """An index of four slices, and 30 rows of it."""
    world = World(BY_CITY, node_count=2)
    world.commit(1, {"by_city": people(30)})
    return world


def take_over(world: World) -> None:
    """A new layout of it, of three slices, with ten rows more at the next number."""
    old = world.index("by_city")
    new = world.create(NEW, replaces=old.id)
    assert world.index("by_city").id == old.id, "it waits until it is READY, and shown"
    world.record(replace(old, replaced_by=new.id))
    assert world.index("by_city").id == new.id
    world.commit(2, {"by_city": people(40)})


def two_layouts(world: World, seed: bool = True, skip: Any = (), **changes: Any) -> str:
    """A new layout, made of the old one's slices; both have one more row at the next number, which is
    published in both. The id of the old one."""
    world.commit(2, {"by_city": people(31)}, publish=False)
    old = world.index("by_city")
    new = replace(world.create(NEW, replaces=old.id), build="b2", **changes)
    world.record(new)
    made_of = old.id if seed else ""
    world.record(BuildRecord("b2", "users", [new.id], "READY", Timestamp(), 0, seed=made_of))
    world.record(replace(old, replaced_by=new.id))
    world.commit(2, {"by_city": people(31)}, skip=skip)
    for view in world.views.values():
        view.publications[old.id] = 2
    world.tell()
    return old.id


def leases(world: World, layout: str) -> int:
    """How many leases the slices of a layout have."""
    return sum(
        until > now_ms()
        for view in world.views.values()
        for (index, _), held in view.slices.items()
        if index == layout
        for snapshot in held.snapshots.values()
        for until in snapshot.leases.values()
    )


async def beat(tail: OpenTail) -> str:
    """The id that a heartbeat brings; "" for none."""
    text = b"".join([piece async for piece in tail.heartbeat()]).decode()
    return text.split("id: ")[1].strip() if "id: " in text else ""


def drop_old(world: World) -> None:
    old = world.catalog.index("by_city-1")
    assert old is not None
    world.record(replace(old, state="DROPPING", placement=[]))
    world.tell()


def test_pages_go_on_in_the_layout_that_they_began_with() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=10)
        take_over(world)
        found = ids(page)
        while page["page"] is not None:
            page = await ask(services["n1"], page=page["page"])
            assert page["snapshot"] == 1
            found += ids(page)
        assert sorted(found) == sorted(f"u{at}" for at in range(30))
        first = await ask(services["n0"], limit=100, explain=True)
        assert len(first["rows"]) == 40
        assert first["explain"]["slices_of_index"] == 3

    run(test, world)


def test_a_session_that_saw_the_old_one_sees_nothing_older() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=10)
        take_over(world)
        later = await ask(services["n1"], session=page["session"])
        assert later["snapshot"] == 2

    run(test, world)


def test_what_is_held_is_read_until_it_is_given_back() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        held = json.loads((await services["n0"].hold("by_city", HoldRequest(), never)).body)
        take_over(world)
        assert len((await ask(services["n1"], at=held["at"], limit=100))["rows"]) == 30
        assert (await ask_count(services["n0"], at=held["at"]))["count"] == 30
        assert (await ask_count(services["n0"]))["count"] == 40
        await services["n1"].give_back("by_city", held["at"], never)

    run(test, world)


def test_a_token_of_a_layout_that_is_gone_is_told_so() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=10)
        held = json.loads((await services["n0"].hold("by_city", HoldRequest(), never)).body)
        await services["n0"].give_back("by_city", held["at"], never)
        take_over(world)
        while page["page"] is not None:
            last = page["page"]
            page = await ask(services["n1"], page=last)
        drop_old(world)
        for token in ({"page": last}, {"at": held["at"]}):
            with pytest.raises(PageSnapshotGoneError, match="was replaced") as caught:
                await ask(services["n0"], **token)
            assert caught.value.next_step

    run(test, world)


def test_a_node_that_has_not_read_of_the_new_layout_yet_says_so_and_not_that_the_token_is_wrong() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        world.lag("n1")
        take_over(world)
        page = await ask(services["n0"], limit=10)
        waiting = asyncio.ensure_future(ask(services["n1"], page=page["page"], timeout_ms=20_000))
        await asyncio.sleep(0)
        world.catch_up("n1")
        assert len((await waiting)["rows"]) == 10

    run(test, world)


def test_a_query_goes_on_and_a_new_one_takes_the_new_layout() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        queries = QueryService(services["n0"].shared)

        async def asked(**members: Any) -> dict[str, Any]:
            answer = await queries.answer(QueryRequest(**members), never)
            document: dict[str, Any] = msgspec.json.decode(answer.body)
            return document

        sql = "SELECT id FROM users WHERE city >= 'city' ORDER BY city"
        first = await asked(sql=sql, limit=10)
        take_over(world)
        rows = len(first["rows"])
        page = first["page"]
        while page is not None:
            answer = await asked(page=page)
            rows, page = rows + len(answer["rows"]), answer["page"]
        assert rows == 30
        (one,) = (await asked(sql="SELECT count(*) FROM users WHERE city >= 'city'"))["rows"]
        assert one == [40]

    run(test, world)


def test_a_scan_that_waits_is_answered_from_the_layout_that_it_began_with() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        waiting = asyncio.ensure_future(ask(services["n0"], at_least={0: 3}, timeout_ms=20_000, limit=100))
        await asyncio.sleep(0)  # (it waits)
        old = world.index("by_city")
        world.commit(3, {"by_city": people(35)}, publish=False)
        for view in world.views.values():
            view.publications[old.id] = 3
        take_over(world)
        world.tell()
        assert len((await waiting)["rows"]) == 35

    run(test, world)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_scan_that_waits_for_a_layout_that_goes_is_to_ask_again(replaced: bool) -> None:
    """It has named no layout, and has seen nothing of the one that it waits for."""
    world = made()

    async def test(services: ByNode) -> None:
        waiting = asyncio.ensure_future(ask(services["n0"], at_least={0: 2}, timeout_ms=20_000))
        await asyncio.sleep(0)  # (it waits)
        if replaced:
            take_over(world)
            drop_old(world)
        else:
            drop_old(world)
            world.record(replace(world.create(NEW, replaces="by_city-1"), replaces=""))
            world.commit(2, {"by_city": people(40)})
        with pytest.raises(IndexNotReadyError, match="replaced, or dropped and made again") as caught:
            await waiting
        assert caught.value.next_step == "try again"
        assert len((await ask(services["n0"], at_least={0: 2}, limit=100))["rows"]) == 40

    run(test, world)


def test_a_tail_changes_over_to_the_layout_that_was_made_of_its_slices() -> None:
    """From a moment that it has told, and is resumed there by what its heartbeats name, when the old one is
    gone. Until it tells more it keeps what it told in the old one."""
    world = made()

    async def test(services: ByNode) -> None:
        tails = [Tails(services[node].shared) for node in ("n0", "n1")]
        tail = await tails[0].open("by_city", TailRequest(), None, nobody_leaves)
        first, _, _ = await event_of(tail.first())
        old = two_layouts(world)
        second, _, event = await event_of(await tail.next(nobody_leaves, 20))
        assert (len(event["added"]), event["snapshot"]) == (1, 2)
        assert await tail.next(nobody_leaves, 20) is None, "it changes over"
        token = await beat(tail)
        assert token not in ("", second)
        assert not await beat(tail)
        for known in (first, second):
            again = await tails[1].open("by_city", TailRequest(), known, nobody_leaves)
            await again.close()
        drop_old(world)
        world.commit(3, {"by_city": people(33)})
        _, _, event = await event_of(await tail.next(nobody_leaves, 20))
        assert (len(event["added"]), event["removed"], event["snapshot"]) == (2, [], 3)
        again = await tails[1].open("by_city", TailRequest(), token, nobody_leaves)
        _, _, event = await event_of(await again.next(nobody_leaves, 20))
        assert (len(event["added"]), event["removed"], event["snapshot"]) == (2, [], 3)
        await again.close()
        with pytest.raises(PageSnapshotGoneError):
            await tails[0].open("by_city", TailRequest(), first, nobody_leaves)
        await asyncio.sleep(0.05)
        assert leases(world, old) == 2 * 4, "only those of the two readers who may come again"
        await tail.close()

    run(test, world)


def test_a_tail_that_follows_nothing_that_changes_changes_over_too() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        tail = await Tails(services["n0"].shared).open(
            "by_city", TailRequest(equals=["nowhere"]), None, nobody_leaves
        )
        await event_of(tail.first())
        two_layouts(world)
        assert await tail.next(nobody_leaves, 0.3) is None
        assert await beat(tail)
        assert await tail.next(nobody_leaves, 20) is None, "it changes over"
        assert await beat(tail)
        drop_old(world)
        world.commit(3, {"by_city": [*people(31), Doc(["nowhere"], "new")]})
        _, _, event = await event_of(await tail.next(nobody_leaves, 20))
        assert [row["id"] for row in event["added"]] == ["new"]
        await tail.close()

    run(test, world)


@pytest.mark.parametrize("why", ["made of the source", "some slices", "rebuilt", "not there"])
def test_a_tail_stays_where_its_entries_are(why: str) -> None:
    """And keeps nothing elsewhere."""
    world = made()

    async def test(services: ByNode) -> None:
        request = TailRequest(slices=[0, 1, 2, 3] if why == "some slices" else None)
        tail = await Tails(services["n0"].shared).open("by_city", request, None, nobody_leaves)
        await event_of(tail.first())
        old = two_layouts(
            world,
            seed=why != "made of the source",
            skip=[(node, 1) for node in world.views] if why == "not there" else (),
            **({"slice_builds": {0: "b3"}} if why == "rebuilt" else {}),
        )
        _, _, event = await event_of(await tail.next(nobody_leaves, 20))
        assert len(event["added"]) == 1
        assert await tail.next(nobody_leaves, 0.05) is None
        assert not await beat(tail)
        await asyncio.sleep(0.05)
        assert leases(world, world.index("by_city").id) == 0
        assert leases(world, old) > 0
        drop_old(world)
        world.commit(3, {"by_city": people(33)})
        with pytest.raises(PageSnapshotGoneError):
            await tail.next(nobody_leaves, 20)
        await tail.close()

    run(test, world)


def test_a_tail_goes_on_while_the_old_one_is_fed_and_is_told_when_it_is_gone() -> None:
    world = made()

    async def test(services: ByNode) -> None:
        tails = Tails(services["n0"].shared)
        tail = await tails.open("by_city", TailRequest(), None, nobody_leaves)
        token, _, _ = await event_of(tail.first())
        world.commit(2, {"by_city": people(31)}, publish=False)
        old = world.index("by_city").id
        new = world.create(NEW, replaces=old)
        world.record(replace(world.index("by_city"), replaced_by=new.id))
        for view in world.views.values():
            view.publications[old] = 2
        world.tell()
        token, _, event = await event_of(await tail.next(nobody_leaves, 20))
        assert len(event["added"]) == 1
        again = await tails.open("by_city", TailRequest(), token, nobody_leaves)
        await again.close()
        await tail.close()
        drop_old(world)
        with pytest.raises(PageSnapshotGoneError):
            await tails.open("by_city", TailRequest(), token, nobody_leaves)

    run(test, world)
