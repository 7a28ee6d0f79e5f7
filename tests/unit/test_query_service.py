"""Queries on fake nodes: choosing an index, pages, sorting, groups, EXPLAIN, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from indexer.scan.plan.errors import IndexNotReadyError, PageSnapshotGoneError
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.query.rows import TooManyRowsError
from indexer.scan.request.request import HoldRequest
from keytide.collation import MISSING
from keytide.errors import CallerError, HistoryChangedError, KeytideError
from keytide.query.plan.choose import NoIndexError
from keytide.settings.settings import ScanSettings
from tests.unit.scan_world import Doc, World
from tests.unit.test_scan_service import until

BY_CITY = "CREATE INDEX by_city ON users (city, age) INCLUDE (name) WITH (slices=4)"
BY_TAG = "CREATE INDEX by_tag ON users (UNNEST(tags), city) WITH (slices=3)"
CITIES = ["Austin", "Boston", "Chicago"]
PEOPLE = [
    Doc([CITIES[n % 3], n], f"u{n:02}", msgspec.json.encode({"name": f"n{9 - n % 10}"})) for n in range(30)
]
TAGS = [Doc([tag, CITIES[n % 3]], f"u{n:02}") for n in range(30) for tag in ("t", f"t{n % 2}")]


def world(nodes: int = 2) -> World:
    made = World(BY_CITY, BY_TAG, node_count=nodes)
    made.commit(1, {"by_city": PEOPLE, "by_tag": TAGS})
    return made


async def stays() -> None:
    await asyncio.Event().wait()


Ask = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


def run(
    work: Callable[[Ask, World], Coroutine[Any, Any, None]], made: World | None = None, **settings: Any
) -> None:
    """Do `work` with a way to ask the first node."""
    one = made or world()

    async def main() -> None:
        services = one.services(ScanSettings.model_validate(settings))
        queries = {name: QueryService(service.shared) for name, service in services.items()}

        async def ask(sql: str, node: str = "n0", **members: Any) -> dict[str, Any]:
            answer = await queries[node].answer(QueryRequest(sql=sql, **members), stays)
            document: dict[str, Any] = msgspec.json.decode(answer.body)
            return document

        ask.services = services  # type: ignore[attr-defined]
        await work(ask, one)

    asyncio.run(main())
    assert all(snapshot.readers == 0 for snapshot in one.held())


def test_rows_come_from_the_best_index_at_one_snapshot() -> None:
    async def work(ask: Ask, _: World) -> None:
        answer = await ask("SELECT id, age, name FROM users WHERE city = 'Boston' AND age < 10 ORDER BY age")
        assert answer["rows"] == [["u01", 1, "n8"], ["u04", 4, "n5"], ["u07", 7, "n2"]]
        assert answer["columns"] == ["id", "age", "name"]
        assert (answer["index"], answer["snapshot"], answer["page"]) == ("by_city", 1, None)
        assert answer["timestamp"] == {"0": {"offset": 1, "epoch": -1}, "1": {"offset": 1, "epoch": -1}}
        assert answer["session"]
        assert answer["staleness_ms"] >= 0

    run(work)


def test_equality_asks_one_slice() -> None:
    async def work(ask: Ask, made: World) -> None:
        answer = await ask("SELECT id FROM users WHERE city = 'Boston'", explain=True)
        assert len(answer["explain"]["slices"]) == 1
        assert len(answer["rows"]) == 10
        assert answer["plan"]["slices_asked"] == [answer["explain"]["slices"][0]["slice"]]

    run(work)


@pytest.mark.parametrize("size", [1, 4, 7, 100])
@pytest.mark.parametrize("limit", [None, 0, 1, 9, 25, 100])
@pytest.mark.parametrize("way", ["", " DESC"])
def test_pages_together_are_the_rows_of_one_snapshot(size: int, limit: int | None, way: str) -> None:
    async def work(ask: Ask, made: World) -> None:
        text = f"SELECT id FROM users WHERE city > 'A' AND name <> 'n5' ORDER BY city{way}, age{way}"
        text += "" if limit is None else f" LIMIT {limit} OFFSET 2"
        people = [one for one in PEOPLE if int(one.id[1:]) % 10 != 4]
        expected = [one.id for one in sorted(people, key=lambda one: tuple(one.key), reverse=bool(way))]
        if limit is not None:
            expected = expected[2 : 2 + limit]
        answer = await ask(text, limit=size)
        rows = answer["rows"]
        made.commit(2, {"by_city": [], "by_tag": []})
        while answer["page"] is not None:
            node = "n1" if len(rows) % 2 else "n0"
            answer = await ask("", node, page=answer["page"])
            assert answer["snapshot"] == 1
            assert len(answer["rows"]) <= size
            rows += answer["rows"]
        assert [one for (one,) in rows] == expected

    run(work)


def test_a_limit_that_fits_a_page_keeps_no_snapshot() -> None:
    async def work(ask: Ask, made: World) -> None:
        await ask("SELECT id FROM users WHERE city > 'A' LIMIT 5")
        assert not any(snapshot.leases for snapshot in made.held())
        await ask("SELECT id FROM users WHERE city > 'A'", limit=5)
        assert any(snapshot.leases for snapshot in made.held())

    run(work)


def test_pages_are_bound_to_query_and_history() -> None:
    async def work(ask: Ask, made: World) -> None:
        text = "SELECT id FROM users WHERE city > 'A'"
        page = (await ask(text, limit=5))["page"]
        assert len((await ask(text, page=page))["rows"]) == 5
        with pytest.raises(CallerError, match="another query"):
            await ask(text + " LIMIT 7", page=page)
        with pytest.raises(CallerError, match="damaged"):
            await ask(text, page=page[:-4] + "AAAA")
        made.roll_back()
        with pytest.raises(HistoryChangedError):
            await ask(text, page=page)

    run(work)


def test_a_page_of_a_lost_snapshot_is_gone() -> None:
    async def work(ask: Ask, made: World) -> None:
        page = (await ask("SELECT id FROM users WHERE city > 'A'", limit=5))["page"]
        for view in made.views.values():
            for one in view.slices.values():
                one.restart()
        with pytest.raises(PageSnapshotGoneError, match="no longer holds"):
            await ask("", page=page)

    run(work)


@pytest.mark.parametrize("limit", ["", " LIMIT 4", " LIMIT 4 OFFSET 3", " OFFSET 28", " LIMIT 50"])
@pytest.mark.parametrize("way", ["", " DESC"])
def test_another_order_is_sorted_by_the_node(limit: str, way: str) -> None:
    async def work(ask: Ask, _: World) -> None:
        answer = await ask(
            f"SELECT name, id FROM users WHERE city > 'A' ORDER BY name{way}, age DESC{limit}", limit=2
        )
        rows = [(f"n{9 - n % 10}", -n, f"u{n:02}") for n in range(30)]
        rows.sort(key=lambda row: row[1])
        rows.sort(key=lambda row: row[0], reverse=bool(way))
        words = limit.split()
        offset = int(words[-1]) if "OFFSET" in limit else 0
        count = int(words[1]) if "LIMIT" in limit else 99
        assert answer["rows"] == [[name, docid] for name, _, docid in rows[offset : offset + count]]
        assert answer["page"] is None
        plan = await ask(f"EXPLAIN SELECT name FROM users WHERE city > 'A' ORDER BY name{way}")
        assert plan["sorted_by"] == [f"name{way}"]

    run(work)


def test_what_a_node_sorts_is_bounded() -> None:
    async def work(ask: Ask, _: World) -> None:
        text = "SELECT name FROM users WHERE city > 'A' ORDER BY name"
        with pytest.raises(TooManyRowsError, match="more than 20 rows") as caught:
            await ask(text)
        assert "LIMIT" in caught.value.next_step
        assert len((await ask(f"{text} LIMIT 20"))["rows"]) == 20
        with pytest.raises(TooManyRowsError):
            await ask(f"{text} LIMIT 21")

    run(work, max_sort_rows=20)


def test_groups_and_aggregates() -> None:
    async def work(ask: Ask, _: World) -> None:
        answer = await ask(
            "SELECT city, COUNT(*) AS n, SUM(age), MIN(age), AVG(age) AS mean, COUNT(DISTINCT name), "
            "SUM(name), 7 FROM users WHERE city > 'A' GROUP BY city"
        )
        ages = {city: [n for n in range(30) if CITIES[n % 3] == city] for city in CITIES}
        assert answer["rows"] == [
            [city, 10, sum(of), min(of), sum(of) / 10, 10, None, 7] for city, of in ages.items()
        ]
        assert answer["columns"][:4] == ["city", "n", "SUM(age)", "MIN(age)"]
        assert answer["ignored"] == {"SUM(name)": 30}

    run(work)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("ORDER BY n DESC, city LIMIT 2", [["Chicago", 10], ["Austin", 9]]),
        ("ORDER BY city DESC LIMIT 2", [["Chicago", 10], ["Boston", 9]]),
        ("ORDER BY city LIMIT 1 OFFSET 1", [["Boston", 9]]),
        ("ORDER BY 2, 1 DESC", [["Boston", 9], ["Austin", 9], ["Chicago", 10]]),
        ("ORDER BY SUM(age) DESC LIMIT 1", [["Chicago", 10]]),
        ("LIMIT 0", []),
        ("OFFSET 2", [["Chicago", 10]]),
        ("LIMIT 1000000000", [["Austin", 9], ["Boston", 9], ["Chicago", 10]]),
    ],
)
def test_groups_in_any_order(rest: str, expected: list[list[Any]]) -> None:
    async def work(ask: Ask, _: World) -> None:
        text = f"SELECT city, COUNT(*) AS n FROM users WHERE city > 'A' AND age > 1 GROUP BY city {rest}"
        assert (await ask(text))["rows"] == expected

    run(work)


def test_distinct_and_empty_aggregates() -> None:
    async def work(ask: Ask, _: World) -> None:
        rows = (await ask("SELECT DISTINCT city FROM users WHERE city > 'A' ORDER BY city DESC"))["rows"]
        assert rows == [["Chicago"], ["Boston"], ["Austin"]]
        nothing = "SELECT COUNT(*), SUM(age), MAX(city) FROM users WHERE city = 'Nowhere'"
        assert (await ask(nothing))["rows"] == [[0, None, None]]
        assert (await ask(f"{nothing} AND 1 = 2"))["rows"] == [[0, None, None]]
        assert (await ask("SELECT city FROM users WHERE city = NULL"))["rows"] == []

    run(work)


def test_membership_gives_each_document_once() -> None:
    async def work(ask: Ask, _: World) -> None:
        rows = (await ask("SELECT id FROM users WHERE 't' = ANY(tags)"))["rows"]
        assert sorted(one for (one,) in rows) == [f"u{n:02}" for n in range(30)]
        count = await ask("SELECT COUNT(*) FROM users WHERE 't1' = ANY(tags) AND city = 'Boston'")
        assert count["rows"] == [[5]]
        elements = await ask("SELECT UNNEST(tags) AS tag, COUNT(*) FROM users GROUP BY UNNEST(tags)")
        assert elements["rows"] == [["t", 30], ["t0", 15], ["t1", 15]]

    run(work)


def test_missing_is_null_in_rows() -> None:
    async def work(ask: Ask, made: World) -> None:
        made.commit(2, {"by_city": [Doc(["Boston", MISSING], "u"), Doc(["Boston", None], "v")], "by_tag": []})
        rows = (await ask("SELECT id, age, name FROM users WHERE city = 'Boston'"))["rows"]
        assert rows == [["u", None, None], ["v", None, None]]
        rows = (await ask("SELECT id FROM users WHERE city = 'Boston' AND age IS MISSING"))["rows"]
        assert rows == [["u"]]

    run(work)


@pytest.mark.parametrize("rest", ["", " ORDER BY n % 2", " GROUP BY n * n"])
def test_values_of_too_many_digits_are_refused(rest: str) -> None:
    async def work(ask: Ask, _: World) -> None:
        with pytest.raises(CallerError) as caught:
            await ask(f"SELECT n * n FROM users WHERE n > 0{rest}")
        assert (caught.value.status, caught.value.problem_type) == (422, "too-many-digits")
        assert (await ask("SELECT id FROM users WHERE n * n > 25"))["rows"] == [["big"]]

    made = World("CREATE INDEX by_n ON users (n) WITH (slices=2)")
    made.commit(1, {"by_n": [Doc([10**4000], "big"), Doc([5], "small")]})
    run(work, made)


def test_the_index_to_create_has_a_name_that_is_free_in_all_keyspaces() -> None:
    async def work(ask: Ask, _: World) -> None:
        with pytest.raises(NoIndexError) as caught:
            await ask("SELECT id FROM users WHERE name = 'x'")
        assert caught.value.extra["create_index"] == "CREATE INDEX by_name_2 ON users (name)"

    made = world()
    made.create("CREATE INDEX by_name ON shops (name)")
    run(work, made)


def test_moments_are_those_of_scans() -> None:
    async def work(ask: Ask, made: World) -> None:
        service = ask.services["n0"]  # type: ignore[attr-defined]
        held = msgspec.json.decode((await service.hold("by_city", HoldRequest(), stays)).body)
        made.commit(2, {"by_city": PEOPLE[:6], "by_tag": []})
        made.commit(3, {"by_city": PEOPLE[:3], "by_tag": []})
        made.commit(4, {"by_city": [], "by_tag": []})
        text = "SELECT COUNT(*) FROM users WHERE city > 'A'"
        assert (await ask(text))["rows"] == [[0]]
        at = await ask(text, at=held["at"])
        assert (at["rows"], at["snapshot"]) == ([[30]], 1)
        sorted_ = await ask("SELECT id FROM users WHERE city > 'A' ORDER BY name LIMIT 1", at=held["at"])
        assert (sorted_["snapshot"], len(sorted_["rows"])) == (1, 1)
        first = await ask("SELECT id FROM users WHERE city > 'A'", at=held["at"], limit=20)
        second = await ask("SELECT id FROM users WHERE city > 'A'", at=held["at"], page=first["page"])
        assert (second["snapshot"], len(second["rows"])) == (1, 10)
        assert (await ask(text, at_least={0: 4}))["snapshot"] == 4
        assert (await ask(text, consistency="tip"))["snapshot"] is None
        with pytest.raises(KeytideError, match="waited"):
            await ask(text, at_least={0: 99}, timeout_ms=50)
        with pytest.raises(NoIndexError) as caught:
            await ask("SELECT id FROM users WHERE 't' = ANY(tags)", at=held["at"])
        assert "leave `at` out" in caught.value.next_step

    run(work)


@pytest.mark.parametrize(
    ("order", "pushed", "sorted_by"),
    [
        ("", ["limit", "aggregates"], []),
        ("ORDER BY city DESC, age DESC", ["order", "limit", "aggregates"], []),
        ("ORDER BY age DESC, city DESC", ["aggregates"], ["age DESC", "city DESC"]),
        ("ORDER BY age, city DESC", ["aggregates"], ["age", "city DESC"]),
        ("ORDER BY COUNT(*)", ["aggregates"], ["COUNT(*)"]),
    ],
)
def test_explain_says_which_groups_slices_cut(order: str, pushed: list[str], sorted_by: list[str]) -> None:
    async def work(ask: Ask, _: World) -> None:
        text = f"SELECT city, age, COUNT(*) FROM users WHERE city IS NOT MISSING GROUP BY city, age {order}"
        plan = await ask(f"EXPLAIN {text} LIMIT 3")
        assert plan["pushed_down"] == ["condition", *pushed]
        assert plan["sorted_by"] == sorted_by

    run(work)


BESIDE = "CREATE INDEX a_beside ON users USING hash (city) INCLUDE (age)"


@pytest.mark.parametrize("beside", [BESIDE, "CREATE INDEX a_beside ON users (age) INCLUDE (city)"])
def test_an_index_beside_takes_nothing_from_groups_that_another_answers(beside: str) -> None:
    """Nor when it seems to have an entry less, for it was counted earlier."""
    made = World("CREATE INDEX b_tree ON users (city) INCLUDE (age)", beside)
    cities = [f"c{n:03}" for n in range(60)]
    by_city = [Doc([city], f"u{city}", b'{"age": 1}') for city in cities]
    by_age = [Doc([1], f"u{city}", msgspec.json.encode({"city": city})) for city in cities]
    made.commit(1, {"b_tree": by_city, "a_beside": (by_city if beside == BESIDE else by_age)[1:]})
    known = "city IS NOT MISSING" if beside == BESIDE else "city IS NOT MISSING AND age IS NOT MISSING"

    async def work(ask: Ask, _: World) -> None:
        text = f"SELECT city, COUNT(*) FROM users WHERE {known} GROUP BY city LIMIT 10"
        plan = await ask(f"EXPLAIN {text}")
        assert (plan["index"], "limit" in plan["pushed_down"]) == ("b_tree", True)
        assert plan["other_indexes"].keys() == {"a_beside"}
        assert (await ask(text))["rows"] == [[city, 1] for city in cities[:10]]
        plan = await ask("EXPLAIN SELECT MAX(city) FROM users WHERE city IS NOT MISSING")
        assert (plan["index"], plan["residual"]) == ("b_tree", None)

    run(work, made, max_groups=20)


def test_a_hash_index_that_has_too_many_groups_says_what_it_can_do() -> None:
    made = World(BESIDE)
    made.commit(1, {"a_beside": [Doc([f"c{n:03}"], f"u{n}", b'{"age": 1}') for n in range(60)]})

    async def work(ask: Ask, _: World) -> None:
        text = "SELECT city, COUNT(*) FROM users WHERE city IS NOT MISSING GROUP BY city LIMIT 10"
        plan = await ask(f"EXPLAIN {text}")
        assert (plan["pushed_down"], plan["residual"]) == (["aggregates"], None)
        with pytest.raises(KeytideError, match="more than 20 groups") as refused:
            await ask(text)
        assert "`low`" not in refused.value.next_step
        assert "USING btree" in refused.value.next_step
        # The whole index is counted without reading it, for all of its entries have the leading key.
        plan = await ask("EXPLAIN SELECT COUNT(*) FROM users WHERE city IS NOT MISSING")
        assert plan["residual"] is None
        assert (await ask("SELECT COUNT(*) FROM users WHERE city IS NOT MISSING"))["rows"] == [[60]]

    run(work, made, max_groups=20)


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_explain_knows_the_size_of_an_index_whose_slices_differ(node: str) -> None:
    """All documents have one key, so they lie in one slice: on a node that is asked, or on the other."""
    made = World(BY_CITY, BY_TAG, node_count=2)
    made.commit(1, {"by_city": [Doc(["Boston", n], f"u{n}") for n in range(30)], "by_tag": []})

    async def work(ask: Ask, _: World) -> None:
        plan = await ask("EXPLAIN SELECT id FROM users WHERE city = 'Boston'", node)
        assert plan["estimate"]["entries_of_index"] == 30
        made.views[node].urls.clear()  # it knows nobody else: the last count is still good
        plan = await ask("EXPLAIN SELECT id FROM users WHERE city = 'Boston'", node)
        assert plan["estimate"]["entries_of_index"] == 30

    run(work, made)


@pytest.mark.parametrize("away", ["n1", "n2"] * 5)  # which copy is asked first is left to chance
def test_an_estimate_asks_the_other_copies_of_a_node_that_is_away(away: str) -> None:
    made = World(BY_CITY, node_count=3, replicas=1)
    made.commit(1, {"by_city": [Doc(["Boston", n], f"u{n}") for n in range(30)]})

    async def work(ask: Ask, world: World) -> None:
        for asking in world.nodes.values():
            asking.down = {away}
        plan = await ask("EXPLAIN SELECT id FROM users WHERE city = 'Boston'")
        assert plan["estimate"]["entries_of_index"] == 30

    run(work, made)


def test_explain_says_what_is_done_where() -> None:
    async def work(ask: Ask, _: World) -> None:
        plan = await ask(
            "EXPLAIN SELECT id FROM users WHERE city = 'Boston' AND age >= 3 AND name = 'n1' LIMIT 5"
        )
        assert plan["index"] == "by_city"
        assert plan["spans"] == ["city = 'Boston', age >= 3"]
        assert plan["residual"] == "name = 'n1'"
        assert len(plan["slices_asked"]) == 1
        assert plan["slices_of_index"] == 4
        assert plan["pushed_down"] == ["condition", "filter", "limit"]
        assert plan["estimate"]["entries_of_index"] == 30
        assert set(plan["other_indexes"]) == {"by_tag"}

    run(work, world(1))


def test_a_query_without_an_index_says_which_would_serve() -> None:
    async def work(ask: Ask, made: World) -> None:
        with pytest.raises(NoIndexError) as caught:
            await ask("SELECT id, zip FROM users WHERE name = 'n1' ORDER BY age DESC")
        problem = caught.value.problem()
        assert (problem["type"], problem["status"]) == ("no-index", 422)
        statement = "CREATE INDEX by_name_age_desc ON users (name, age DESC) INCLUDE (zip)"
        assert problem["create_index"] == statement
        assert set(problem["indexes"]) == {"by_city", "by_tag"}
        made.create(statement)
        made.commit(2, {"by_name_age_desc": [Doc(["n1", 5], "u", b'{"zip":9}'), Doc(["n2", 5], "v", b"{}")]})
        answer = await ask("SELECT id, zip FROM users WHERE name = 'n1' ORDER BY age DESC")
        assert (answer["index"], answer["rows"]) == ("by_name_age_desc", [["u", 9]])

    run(work)


def test_an_index_that_is_being_built_is_told_from_one_that_is_not_there() -> None:
    async def work(ask: Ask, made: World) -> None:
        made.create("CREATE INDEX by_zip ON users (zip)", state="BUILDING")
        with pytest.raises(IndexNotReadyError, match="by_zip is BUILDING"):
            await ask("SELECT id FROM users WHERE zip = 1", timeout_ms=50)
        with pytest.raises(NoIndexError):
            await ask("SELECT id FROM users WHERE street = 1")

    run(work)


@pytest.mark.parametrize("failed", ["by_zip", "by_zip_first"])
def test_a_query_waits_for_the_index_that_can_become_ready(failed: str) -> None:
    """Not for one that has failed, whichever the catalog has first; of that it hears only when no other is
    there."""

    async def work(ask: Ask, made: World) -> None:
        states = {one: "FAILED" if one == failed else "BUILDING" for one in ("by_zip", "by_zip_first")}
        for name, state in states.items():
            made.create(f"CREATE INDEX {name} ON users (zip)", state=state)
        built = next(name for name in states if name != failed)
        with pytest.raises(IndexNotReadyError, match=f"{built} is BUILDING"):
            await ask("SELECT id FROM users WHERE zip = 1", timeout_ms=50)
        waiting = asyncio.ensure_future(ask("SELECT id FROM users WHERE zip = 1"))
        await until(lambda: ask.services["n0"].shared.notifier.listeners)  # type: ignore[attr-defined]
        made.change(built, state="READY")
        made.commit(2, {built: [Doc([1], "u")]})
        answer = await waiting
        assert (answer["index"], answer["rows"]) == (built, [["u"]])
        made.change(built, state="DROPPING", placement=[])
        with pytest.raises(IndexNotReadyError, match=f"{failed} is FAILED"):
            await ask("SELECT id FROM users WHERE zip = 1", timeout_ms=50)

    run(work)


@pytest.mark.parametrize("first", ["by_zip", "by_zip_too"])
def test_a_query_is_answered_by_the_first_of_several_that_becomes_ready(first: str) -> None:
    async def work(ask: Ask, made: World) -> None:
        for name in ("by_zip", "by_zip_too"):
            made.create(f"CREATE INDEX {name} ON users (zip)", state="BUILDING")
        waiting = asyncio.ensure_future(ask("SELECT id FROM users WHERE zip = 1"))
        await until(lambda: ask.services["n0"].shared.notifier.listeners)  # type: ignore[attr-defined]
        made.change(first, state="READY")
        made.commit(2, {first: [Doc([1], "u")]})
        assert (await waiting)["index"] == first

    run(work)


@pytest.mark.parametrize("another", [True, False])
def test_an_index_that_is_dropped_while_a_query_waits_for_it_was_never_named_by_it(another: bool) -> None:
    """The query names the keyspace: another index may have come meanwhile, or none serves."""

    async def work(ask: Ask, made: World) -> None:
        zips = "CREATE INDEX {} ON users (zip)"
        made.create(zips.format("by_zip"), state="BUILDING")
        reads, waits = ask.services["n0"].shared, asyncio.Event()  # type: ignore[attr-defined]
        ready_index = reads.ready_index

        async def ready(*asked: Any, **more: Any) -> Any:
            waits.set()
            return await ready_index(*asked, **more)

        reads.ready_index = ready
        waiting = asyncio.ensure_future(ask("SELECT id FROM users WHERE zip = 1"))
        await waits.wait()
        if another:
            made.create(zips.format("zip_too"))
            made.commit(2, {"zip_too": [Doc([1], "u"), Doc([2], "v")]})
        made.change("by_zip", state="DROPPING", placement=[])
        if another:
            assert (await waiting)["rows"] == [["u"]]
            return
        with pytest.raises(NoIndexError) as caught:
            await waiting
        assert caught.value.problem()["create_index"] == zips.format("by_zip_2")  # (that goes)

    run(work)


def test_wrong_statements_are_refused_with_their_place() -> None:
    async def work(ask: Ask, _: World) -> None:
        for text in ("SELECT", "DROP INDEX by_city", "SELECT a FROM users WHERE", "EXPLAIN"):
            with pytest.raises(CallerError) as caught:
                await ask(text)
            assert caught.value.problem()["type"] == "invalid-statement"
            assert "^" in caught.value.problem()["caret"]
        with pytest.raises(CallerError, match="limit"):
            await ask("SELECT id FROM users WHERE city > 'A'", limit=10**9)
        with pytest.raises(CallerError, match="offset"):
            await ask("SELECT id FROM users WHERE city > 'A' OFFSET 100000000")

    run(work)
