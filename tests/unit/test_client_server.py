"""Both clients against real scan endpoints over HTTP: two nodes whose slices are in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from keytide.client import AsyncClient, Client, MisuseError, SnapshotGoneError, TypeChangedError, Writes
from keytide.errors import CallerError, HistoryChangedError, RetryableError
from keytide.settings.settings import load_settings
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import serving

CITIES = ["Aachen", "Bonn", "Boston", "Zürich"]


@dataclass
class Served:
    """The world, and its nodes' addresses."""

    world: World
    urls: list[str]

    def commit(self, number: int, *people: Doc) -> None:
        self.world.commit(number, {"by_city": people})


def person(at: int, city: Any = None, **include: Any) -> Doc:
    document = json.dumps({"name": f"name{at}", **include}).encode()
    return Doc([CITIES[at % 4] if city is None else city, at], f"u{at:04}", document)


PEOPLE = [person(at) for at in range(400)]


@pytest.fixture
def served() -> Iterator[Served]:
    world = World("CREATE INDEX by_city ON users (city, n) INCLUDE (name) WITH (slices=3)", node_count=2)
    first, second = world.views.values()
    settings = load_settings()
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(view, settings)) for view in (first, second)]
        first.urls = second.urls = dict(zip(world.views, urls, strict=True))
        made = Served(world, urls)
        made.commit(5, *PEOPLE)
        yield made


class Both:
    """The same work with both clients: it gets a client and a function that waits for what calls bring."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    def __call__(self, work: Callable[[Any, Callable[[Any], Any]], None]) -> None:
        with Client(self._urls) as client:
            work(client, lambda made: made)
        loop = asyncio.new_event_loop()
        try:
            other = AsyncClient(self._urls)
            work(other, lambda made: loop.run_until_complete(made))
            loop.run_until_complete(other.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


@pytest.fixture
def both(served: Served) -> Both:
    return Both(served.urls)


def test_every_form_has_the_same_rows(served: Served, both: Both) -> None:
    selection: dict[str, Any] = {"low": ["Bonn", 100], "high": ["Boston"], "offset": 3, "reverse": True}
    expected = sorted(
        (
            (doc.key[0], doc.key[1], doc.id)
            for doc in PEOPLE
            if ["Bonn", 100] <= list(doc.key) <= ["Boston", 999]
        ),
        reverse=True,
    )[3:]

    def work(client: Any, wait: Callable[[Any], Any]) -> None:
        scan = client.scan("by_city", page_size=50, **selection)
        rows = wait(scan.to_list())
        assert [(*row.key, row.id) for row in rows] == expected
        assert {row.include["name"] for row in rows} == {f"name{n}" for _, n, _ in expected}
        assert scan.snapshot == 5
        table = wait(client.scan("by_city", **selection).to_arrow())
        assert table.column_names == ["city", "n", "id", "name"]
        columns = (table.column(name).to_pylist() for name in ("city", "n", "id"))
        assert list(zip(*columns, strict=True)) == expected
        frame = wait(client.scan("by_city", limit=10, **selection).to_pandas())
        assert list(frame.itertuples(index=False, name=None)) == [
            (*key, f"name{key[1]}") for key in expected[:10]
        ]
        first = wait(client.scan("by_city", equals=["Bonn"]).schema())
        assert first.names == table.column_names
        cities = wait(client.scan("by_city", distinct=True, columns=["key"]).to_list())
        assert len(cities) == 400
        spans = [{"equals": ["Bonn"]}, {"prefix": "Bo"}, {"low": ["Zürich", 399]}]
        assert wait(client.count("by_city", spans=spans)).count == 201
        assert sorted(one.name for one in wait(client.indexes())) == ["by_city"]

    both(work)


def test_batches_and_lines(served: Served) -> None:
    with Client(served.urls[0]) as client:
        batches = list(client.scan("by_city", columns=["id"]).batches(any_order=True))
        ids = [id_ for batch in batches for id_ in batch.column("id").to_pylist()]
        assert sorted(ids) == [doc.id for doc in PEOPLE]
        lines = b"".join(client.scan("by_city", limit=7, columns=["id"]).ndjson()).splitlines()
        assert [json.loads(line) for line in lines] == [{"id": f"u{at:04}"} for at in range(0, 28, 4)]

    async def main() -> None:
        async with AsyncClient(served.urls[1]) as client:
            found = [
                id_
                async for batch in client.scan("by_city").batches()
                for id_ in batch.column("id").to_pylist()
            ]
            assert len(found) == 400

    asyncio.run(main())


def test_a_column_of_several_types_comes_as_its_values(served: Served, both: Both) -> None:
    """The odd value comes after all the rows that types are inferred from."""
    odd = [person(at, city="Aachen", name=f"x{at}") for at in range(2_000)]
    odd += [person(3_000, city="Aachen", name=[1, 2])]
    served.commit(6, *odd)

    def work(client: Any, wait: Callable[[Any], Any]) -> None:
        frame = wait(client.scan("by_city").to_pandas())
        assert frame["name"].tolist() == [f"x{at}" for at in range(2_000)] + [[1, 2]]
        assert frame["n"].dtype == "int64"

    both(work)
    with Client(served.urls) as client, pytest.raises(TypeChangedError) as caught:
        list(client.scan("by_city").batches())
    assert caught.value.extra["column"] == "name"


def test_a_held_snapshot_stays_while_others_come_and_go(served: Served, both: Both) -> None:
    number = 5

    def work(client: Any, wait: Callable[[Any], Any]) -> None:
        nonlocal number
        served.commit(number, *PEOPLE)
        held = client.snapshot("by_city", lease_s=30)
        at = held.__enter__() if isinstance(client, Client) else wait(held.__aenter__())
        for _ in range(5):
            number += 1
            served.commit(number, person(number))
        assert wait(at.count()).count == 400
        assert wait(client.count("by_city")).count == 1
        assert len(wait(at.scan(page_size=150).to_list())) == 400
        assert wait(at.scan().to_arrow()).num_rows == 400
        each = [wait(at.count(slices=[one])).count for one in range(at.slices)]
        assert sum(each) == 400
        token = at.at
        if isinstance(client, Client):
            held.__exit__(None, None, None)
        else:
            wait(held.__aexit__(None, None, None))
        number += 1
        served.commit(number, person(number))
        with pytest.raises(SnapshotGoneError):
            wait(client.count("by_city", at=token))

    both(work)


def test_which_bounds_belong_to_a_range_is_not_said_without_one(both: Both) -> None:
    def work(client: Any, wait: Callable[[Any], Any]) -> None:
        for ask in (client.page, client.count):
            with pytest.raises(CallerError, match="`inclusion` is of `low` and `high`") as caught:
                wait(ask("by_city", equals=["Bonn"], inclusion="low"))
            assert caught.value.problem_type == "invalid-request"
        assert wait(client.count("by_city", low=["Bonn"], inclusion="high")).count == 200

    both(work)


def test_writes_are_waited_for(served: Served) -> None:
    with Client(served.urls) as client:
        writes = Writes("users")
        writes.delivered(type("Report", (), {"topic": "users", "partition": 0, "offset": 6})())
        with pytest.raises(CallerError) as caught:
            client.count("by_city", at_least=Writes("orders").delivered(
                type("Report", (), {"topic": "orders", "partition": 0, "offset": 6})()
            ))  # fmt: skip
        assert caught.value.problem_type == "wrong-topic"
        served.commit(7, person(1))
        assert client.count("by_city", at_least=writes).count == 1


def test_requests_at_the_same_time_leave_a_session_that_has_seen_all(served: Served) -> None:
    """Two nodes at different snapshots answer at once; afterwards nobody goes back to the older one."""
    first, second = served.world.views
    served.world.commit(6, {"by_city": [person(1)]}, publish=False)
    served.world.publish("by_city", 6, nodes=[second])

    async def main() -> None:
        old, new = AsyncClient(served.urls[0]), AsyncClient(served.urls[1])
        old._session = new._session  # one client that asks both nodes
        old._core.sessions = new._session
        counts = await asyncio.gather(old.count("by_city"), new.count("by_city"))
        assert sorted(one.snapshot for one in counts if one.snapshot) == [5, 6]
        session = old.session
        assert session
        assert "," in session
        with pytest.raises(RetryableError) as caught:
            await old.count("by_city", timeout_ms=100)
        assert caught.value.problem_type == "timestamp-not-reached"
        served.world.publish("by_city", 6, nodes=[first])
        counted = await old.count("by_city")
        assert (counted.snapshot, counted.count) == (6, 1)
        assert "," not in (old.session or ",")
        await old.close()
        await new.close()

    asyncio.run(main())


def test_a_tail_tells_what_was_added_and_removed(served: Served, both: Both) -> None:
    number = 5

    def work(client: Any, wait: Callable[[Any], Any]) -> None:
        nonlocal number
        served.commit(number, *PEOPLE)
        tail = client.tail("by_city", equals=["Bonn"], initial=True)

        def take(of: Any) -> Any:
            return next(of) if isinstance(client, Client) else wait(anext(of))

        first = take(tail)
        assert first.first
        assert len(first.added) == 100
        number += 1
        served.commit(number, *PEOPLE[2:], person(9_000, city="Bonn"))
        event = take(tail)
        assert (event.snapshot, event.first) == (number, False)
        assert [row.id for row in event.added] == ["u9000"]
        assert [row.id for row in event.removed] == ["u0001"]
        token = tail.token
        wait(tail.close())
        number += 1
        served.commit(number, *PEOPLE[2:])
        again = client.tail("by_city", equals=["Bonn"], resume=token)
        event = take(again)
        assert ([row.id for row in event.removed], event.added) == (["u9000"], [])
        wait(again.close())
        other = client.tail("by_city", equals=["Aachen"], resume=token)
        with pytest.raises(CallerError, match="token"):
            take(other)

    both(work)


def test_a_rollback_ends_a_tail(served: Served) -> None:
    with Client(served.urls) as client, client.tail("by_city") as tail:
        assert next(tail).snapshot == 5
        served.world.roll_back()
        with pytest.raises(HistoryChangedError):
            next(tail)
        with pytest.raises(HistoryChangedError):
            next(tail)


def test_a_scan_is_of_its_client_until_that_is_closed(served: Served) -> None:
    with Client(served.urls) as client:
        scan = client.scan("by_city", page_size=10)
        next(scan)
    with pytest.raises(MisuseError, match="closed"):
        list(scan)
