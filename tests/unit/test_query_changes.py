"""Queries while what they are planned on changes: a plan is of one layout, and asks no other for slices."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import IndexNotReadyError
from indexer.scan.query import index_choice
from indexer.scan.query.index_choice import PLANNINGS
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.query.sizes import IndexSizes
from indexer.scan.request.request import HoldRequest
from keytide.query.plan.choose import NoIndexError
from keytide.settings.settings import ScanSettings
from tests.unit.scan_world import Doc, World

BY_CITY = "CREATE INDEX by_city ON users (city) WITH (slices=4)"
FEWER = "CREATE INDEX by_city ON users (city) WITH (slices=3)"
ALTERED = FEWER.replace(
    "WITH (slices=3)", "PARTITION BY HASH(city) SUBPARTITION BY HASH(id) SLICES (4, 1, 1, 1)"
)
BY_ID = "CREATE INDEX other ON users (city) PARTITION BY HASH(id) WITH (slices=5)"
CITIES = ["Austin", "Boston", "Chicago", "Denver", "Erie"]
PEOPLE = [Doc([CITIES[n % 5]], f"u{n:02}") for n in range(30)]
WHEN = ["while entries are counted", "in a thread"]
QUERIES = {
    "page": "SELECT id FROM users WHERE city = '{}'",
    "sorted": "SELECT id FROM users WHERE city = '{}' ORDER BY id DESC",
    "count": "SELECT count(*) FROM users WHERE city = '{}'",
}


def made() -> World:
    world = World(BY_CITY, node_count=2)
    world.commit(1, {"by_city": PEOPLE})
    return world


def take_over(world: World, statement: str, drop: bool) -> None:
    """A new layout has taken over the name, and holds the same; the old one serves on, or is dropped."""
    old = world.index("by_city")
    new = world.create(statement, replaces=old.id)
    world.record(replace(old, replaced_by=new.id))
    world.commit(max(world.stamps) + 1, {"by_city": PEOPLE})
    if drop:
        world.record(replace(old, replaced_by=new.id, state="DROPPING", placement=[]))
    world.tell()


def swap_names(world: World) -> None:
    """Another index bears the name now, and the one of the plan another one."""
    old = world.index("by_city")
    named = replace(old.definition, name="by_city_once")
    other = world.create(BY_ID)
    world.commit(max(world.stamps) + 1, {"other": PEOPLE})
    world.record(replace(old, definition=named))
    world.record(replace(other, definition=replace(other.definition, name="by_city")))
    world.tell()


CHANGES: dict[str, Callable[[World], None]] = {
    "altered": lambda world: take_over(world, ALTERED, drop=False),
    "fewer slices": lambda world: take_over(world, FEWER, drop=False),
    "altered, and the old one dropped": lambda world: take_over(world, ALTERED, drop=True),
    "fewer slices, and the old one dropped": lambda world: take_over(world, FEWER, drop=True),
    "names swapped": swap_names,
}


async def never() -> None:
    await asyncio.Event().wait()


def asked(
    world: World,
    sql: str,
    when: str,
    change: Callable[[World], None],
    times: int = 1,
) -> dict[str, Any]:
    """The answer to a query, during whose planning the world changes.

    Args:
        when: before entries are counted, or behind the thread in which a long query is planned.
        times: how many plannings it changes in.
    """
    if when == "in a thread":
        sql += " " * 3_000

    async def main(patches: pytest.MonkeyPatch) -> bytes:
        shared = world.services(ScanSettings.model_validate({}))["n0"].shared
        queries, left = QueryService(shared), times

        def now() -> None:
            nonlocal left
            if left:
                left -= 1
                change(world)

        if when == "in a thread":
            run = shared.local.threads.run

            async def ran(work: Callable[..., Any], *given: Any) -> Any:
                result = await run(work, *given)
                if work is index_choice._choose:
                    now()
                return result

            patches.setattr(shared.local.threads, "run", ran)
        else:
            of = IndexSizes.of

            async def counted(sizes: IndexSizes, index: Scannable) -> int | None:
                now()
                return await of(sizes, index)

            patches.setattr(IndexSizes, "of", counted)
        answer = await queries.answer(QueryRequest(sql=sql, explain=True), never)
        assert not left, "the world has changed as often"
        return answer.body

    with pytest.MonkeyPatch.context() as patches:
        answer: dict[str, Any] = msgspec.json.decode(asyncio.run(main(patches)))
    return answer


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", WHEN)
def test_no_row_is_missing_whatever_changes_during_planning(when: str, change: str, kind: str) -> None:
    """Of five cities, that slices of one layout do not have all in the same of another."""
    for city in CITIES:
        answer = asked(made(), QUERIES[kind].format(city), when, CHANGES[change])
        held = [one.id for one in PEOPLE if one.key == [city]]
        wanted: list[list[Any]] = [[len(held)]] if kind == "count" else [[one] for one in held]
        assert sorted(answer["rows"]) == wanted
        assert answer["explain"]["slices_of_index"] >= max(answer["plan"]["slices_asked"]) + 1


@pytest.mark.parametrize("when", WHEN)
def test_a_layout_that_was_replaced_and_serves_on_is_read_as_it_was_planned(when: str) -> None:
    answer = asked(made(), QUERIES["page"].format("Erie"), when, CHANGES["altered"])
    assert answer["explain"]["slices_of_index"] == 4


@pytest.mark.parametrize("when", WHEN)
def test_what_is_gone_is_planned_again_but_not_for_ever(when: str) -> None:
    statements = itertools.cycle([ALTERED, BY_CITY])

    def change(world: World) -> None:
        take_over(world, next(statements), drop=True)

    sql = QUERIES["page"].format("Erie")
    answer = asked(made(), sql, when, change, times=PLANNINGS - 1)
    assert len(answer["rows"]) == 6
    with pytest.raises(IndexNotReadyError, match="planned") as caught:
        asked(made(), sql, when, change, times=PLANNINGS)
    assert caught.value.next_step


@pytest.mark.parametrize("when", WHEN)
def test_an_index_that_is_dropped_is_not_there(when: str) -> None:
    def drop(world: World) -> None:
        world.change("by_city", state="DROPPING", placement=[])

    with pytest.raises(NoIndexError):
        asked(made(), QUERIES["page"].format("Erie"), when, drop)


def test_pages_are_of_the_layout_that_the_first_was_planned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later page looks at what its token says, also when the layout goes while it is read."""
    world = made()

    async def main() -> None:
        queries = QueryService(world.services(ScanSettings.model_validate({}))["n0"].shared)
        of = IndexSizes.of

        async def counted(sizes: IndexSizes, index: Scannable) -> int | None:
            if world.index("by_city").id == index.id:
                take_over(world, ALTERED, drop=False)
            return await of(sizes, index)

        monkeypatch.setattr(IndexSizes, "of", counted)
        rows: list[Any] = []
        page = None
        while page is not None or not rows:
            request = QueryRequest(sql=QUERIES["page"].format("Erie"), limit=2, page=page)
            answer = msgspec.json.decode((await queries.answer(request, never)).body)
            rows += answer["rows"]
            page = answer["page"]
        assert rows == [[one.id] for one in PEOPLE if one.key == ["Erie"]]

    asyncio.run(main())


def test_an_index_that_is_replaced_while_another_one_is_counted_is_found() -> None:
    """Its old layout is gone before it was looked at, and the new one was not there yet."""
    world = World("CREATE INDEX about_age ON users (age) WITH (slices=2)", BY_CITY, node_count=2)
    world.commit(1, {"about_age": [], "by_city": PEOPLE})
    change = CHANGES["altered, and the old one dropped"]
    answer = asked(world, QUERIES["page"].format("Erie"), WHEN[0], change)
    assert (len(answer["rows"]), answer["explain"]["slices_of_index"]) == (6, 7)


def test_at_a_held_snapshot_its_layout_is_planned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = made()

    async def main() -> None:
        services = world.services(ScanSettings.model_validate({}))
        held = msgspec.json.decode((await services["n0"].hold("by_city", HoldRequest(), never)).body)
        queries = QueryService(services["n0"].shared)
        of = IndexSizes.of

        async def counted(sizes: IndexSizes, index: Scannable) -> int | None:
            if world.index("by_city").id == index.id:
                take_over(world, ALTERED, drop=False)
            return await of(sizes, index)

        monkeypatch.setattr(IndexSizes, "of", counted)
        for city in CITIES:
            request = QueryRequest(sql=QUERIES["page"].format(city), at=held["at"], explain=True)
            answer = msgspec.json.decode((await queries.answer(request, never)).body)
            assert len(answer["rows"]) == 6
            assert (answer["snapshot"], answer["explain"]["slices_of_index"]) == (1, 4)

    asyncio.run(main())
