"""Tails: the events applied to the first rows are the rows of a scan, whatever happens between; resuming,
moments that are gone, rollbacks, events larger than memory, readers that leave."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import Response

from indexer.scan.gather.service import ScanService
from indexer.scan.plan.errors import PageSnapshotGoneError, TooManyTailsError
from indexer.scan.plan.tokens import InvalidTokenError
from indexer.scan.request.request import ScanRequest, SpanRequest
from indexer.scan.tail import changes as tail_changes
from indexer.scan.tail import events
from indexer.scan.tail.moments import TailRequest
from indexer.scan.tail.tails import OpenTail, Tails
from indexer.store.fold.worker import FoldWorker
from keytide.errors import HistoryChangedError, KeytideError
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings, load_settings
from tests import share
from tests.structure_kit import digests_of
from tests.unit.scan_world import Doc, World, stores
from tests.unit.test_api import serving
from tests.waiting import wait_for

STATEMENT = "CREATE INDEX by_city ON users (city, n DESC) INCLUDE (x) PARTITION BY HASH(id) WITH (slices=4)"
CITIES = ["Aachen", "Bonn", "Boston", "Zürich", None, 7]
TAIL = "/v1/indexes/by_city/tail"

Rows = Counter[str]


async def nobody_leaves() -> None:
    await asyncio.Event().wait()


async def event_of(pieces: AsyncIterator[bytes] | None) -> tuple[str, str, dict[str, Any]]:
    """(id, name, data) of an event that is given in pieces."""
    assert pieces is not None, "there is no news"
    text = b"".join([piece async for piece in pieces]).decode()
    assert text.endswith("\n\n")
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return fields["id"], fields["event"], json.loads(fields["data"])


def applied(rows: Rows, event: dict[str, Any]) -> Rows:
    """The rows after an event; nothing may be removed that is not there, or added that is."""
    after = Counter(rows)
    after.subtract(json.dumps(row) for row in event["removed"])
    assert min(after.values(), default=0) >= 0, "removed what was not there"
    after.update(json.dumps(row) for row in event["added"])
    assert max(after.values(), default=0) <= 1, "added what was there"
    return +after


async def scanned(service: ScanService, request: dict[str, Any], at: int) -> Rows:
    answer = json.loads((await service.scan("by_city", ScanRequest(**request), nobody_leaves)).body)
    assert answer["snapshot"] == at
    assert answer["page"] is None
    return Counter(json.dumps(row) for row in answer["rows"])


def doc(number: int, city: Any, n: int, x: int) -> Doc:
    return Doc([city, n], f"u{number}", b'{"x":%d}' % x)


DOCS = st.dictionaries(
    st.integers(0, 30),
    st.tuples(st.sampled_from(CITIES), st.integers(0, 3), st.integers(0, 1)),
    max_size=25,
).map(lambda found: [doc(number, *rest) for number, rest in found.items()])
SELECTIONS = st.sampled_from(
    [{}, {"equals": ["Bonn"]}, {"prefix": "B"}, {"low": ["Bonn"]}, {"slices": [0, 2]}, {"equals": [[]]}]
)


@settings(max_examples=share.examples(120), deadline=None)
@given(
    st.lists(DOCS, min_size=2, max_size=7),
    SELECTIONS,
    st.sampled_from([None, ["key", "id"]]),
    st.sampled_from([1, 60, 1 << 20]),
    st.sampled_from([3, 100_000]),
    st.randoms(use_true_random=False),
)
def test_events_applied_to_the_first_rows_are_the_rows_of_a_scan(
    states: list[list[Doc]],
    selection: dict[str, Any],
    columns: list[str] | None,
    size: int,
    examined: int,
    chance: random.Random,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_changes, "EXAMINED", examined)
        asyncio.run(follow(states, selection, columns, size, chance))


@settings(max_examples=share.examples(60), deadline=None)
@given(
    st.lists(DOCS, min_size=2, max_size=7),
    st.sampled_from([{}, {"equals": ["Bonn", 1]}, {"spans": [{"equals": ["Bonn", 0]}, {"equals": [7, 1]}]}]),
    st.sampled_from([None, ["key", "id"]]),
    st.sampled_from([3, 100_000]),
    st.randoms(use_true_random=False),
)
@digests_of(1)
def test_events_of_a_hash_index_are_of_the_keys_that_are_asked_for(
    states: list[list[Doc]],
    selection: dict[str, Any],
    columns: list[str] | None,
    examined: int,
    chance: random.Random,
) -> None:
    if spans := selection.get("spans"):
        selection = {"spans": [SpanRequest(**one) for one in spans]}
    hashed = "CREATE INDEX by_city ON users USING hash (city, n) INCLUDE (x) WITH (slices=4)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_changes, "EXAMINED", examined)
        asyncio.run(follow(states, selection, columns, 60, chance, hashed))


async def follow(
    states: list[list[Doc]],
    selection: dict[str, Any],
    columns: list[str] | None,
    size: int,
    chance: random.Random,
    statement: str = STATEMENT,
) -> None:
    """Tail while snapshots come, some of them unseen, resuming now and then at the other node."""
    world = World(statement, node_count=2)
    world.commit(1, {"by_city": states[0]})
    configured = ScanSettings.model_validate({"default_limit": 1000}).model_copy(
        update={"stream_block_bytes": size}
    )
    services = world.services(configured)
    asked = {**selection, **({"columns": columns} if columns else {})}
    tails = [Tails(service.shared) for service in services.values()]
    request = TailRequest(**asked, initial=True)
    tail = await tails[0].open("by_city", request, None, nobody_leaves)
    token, name, event = await event_of(tail.first())
    assert name == "snapshot"
    rows = applied(Counter(), {**event, "removed": []})
    service = services["n0"]
    assert rows == await scanned(service, asked, 1)
    for number, state in enumerate(states[1:], 2):
        world.commit(number, {"by_city": state})
        if chance.random() < 0.3:
            continue  # the next event covers several
        if chance.random() < 0.3:
            tail = await chance.choice(tails).open("by_city", request, token, nobody_leaves)
            assert tail.resumed
        pieces = await news(tail, number)
        if pieces is None:  # nothing has changed: there is a place to go on from, and no event
            token = (await beat(tail)).split("id: ")[1].strip()
            assert rows == await scanned(service, asked, number)
            continue
        token, name, event = await event_of(pieces)
        assert (name, event["snapshot"]) == ("changes", number)
        assert event["added"] or event["removed"]
        rows = applied(rows, event)
        assert rows == await scanned(service, asked, number)
        assert not set(map(json.dumps, event["added"])) & set(map(json.dumps, event["removed"]))


async def beat(tail: OpenTail) -> str:
    return b"".join([piece async for piece in tail.heartbeat()]).decode()


async def news(tail: OpenTail, number: int = 1 << 60) -> AsyncIterator[bytes] | None:
    """The next event, past the rest that the tail takes; None when nothing has changed up to a snapshot."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        event = await tail.next(nobody_leaves, 0.05)
        if event is not None or tail._newest.held.stamp.number >= number:
            return event
    return None


def test_tails_of_a_real_store_with_long_keys(tmp_path: Path) -> None:
    chance = random.Random(7)
    states = [
        [
            Doc([("x" * 600 if at % 7 == 0 else "") + f"k{chance.randrange(50)}", at], f"d{at}", b"{}")
            for at in range(1500)
            if chance.random() < 0.9
        ]
        for _ in range(3)
    ]
    with closing(FoldWorker()) as folds, stores("lmdb", tmp_path, folds) as keep:
        world = World(STATEMENT, node_count=2)
        world.keep = keep

        async def check() -> None:
            services = world.services(ScanSettings.model_validate({"default_limit": 5000}))
            tails = Tails(services["n1"].shared)
            world.commit(1, {"by_city": states[0]})
            tail = await tails.open("by_city", TailRequest(initial=True), None, nobody_leaves)
            _, _, event = await event_of(tail.first())
            rows = applied(Counter(), {**event, "removed": []})
            for number, state in enumerate(states[1:], 2):
                world.commit(number, {"by_city": state})
                _, _, event = await event_of(await news(tail))
                rows = applied(rows, event)
                assert rows == await scanned(services["n0"], {}, number)

        asyncio.run(check())


def world_of(count: int = 20) -> World:
    world = World(STATEMENT, node_count=2)
    world.commit(1, {"by_city": [doc(at, "Bonn", at, 0) for at in range(count)]})
    return world


def leases(world: World) -> dict[int, int]:
    """Snapshot number -> how many slices keep it for somebody."""
    return Counter(
        one.number for one in world.held() if any(until > now_ms() for until in one.leases.values())
    )


def test_the_last_two_moments_are_held_and_no_more() -> None:
    world = world_of()

    async def check() -> None:
        tail = await Tails(world.services()["n0"].shared).open("by_city", TailRequest(), None, nobody_leaves)
        first, _, event = await event_of(tail.first())
        assert "added" not in event
        assert leases(world) == {1: 4}
        for number in range(2, 9):
            world.commit(number, {"by_city": [doc(number, "Bonn", 0, 0)]})
            await event_of(await news(tail))
            assert leases(world) == {number - 1: 4, number: 4}
        with pytest.raises(PageSnapshotGoneError) as caught:
            await Tails(world.services()["n1"].shared).open("by_city", TailRequest(), first, nobody_leaves)
        assert caught.value.status == 410
        assert "initial" in caught.value.next_step

    asyncio.run(check())


@pytest.mark.parametrize("seed", share.seeds(48))
def test_a_tail_lives_through_the_death_of_one_copy_after_the_other(seed: int) -> None:
    """Slices have two copies each on three nodes; now one is away, now one was restarted."""
    chance = random.Random(seed)
    world = World(STATEMENT, node_count=3, replicas=1)

    def state() -> list[Doc]:
        return [doc(at, chance.choice(CITIES), at, chance.randint(0, 2)) for at in range(12)]

    async def check() -> None:
        services = world.services()
        tails = Tails(services["n0"].shared)
        world.commit(1, {"by_city": state()})
        tail = await tails.open("by_city", TailRequest(initial=True), None, nobody_leaves)
        token, _, event = await event_of(tail.first())
        rows = applied(Counter(), {**event, "removed": []})
        for number in range(2, 14):
            hit = chance.choice(sorted(world.views)) if number % 2 else ""  # then all hold the next moment
            away = {hit} - {"", "n0"} if chance.random() < 0.6 else set()
            for asking in world.nodes.values():
                asking.down = away
            if hit and (not away or chance.random() < 0.5):
                for held in world.views[hit].slices.values():
                    held.restart()
            world.commit(number, {"by_city": state()})
            if chance.random() < 0.3:
                tail = await tails.open("by_city", TailRequest(), token, nobody_leaves)
            token, _, event = await event_of(await news(tail))
            rows = applied(rows, event)
            assert rows == await scanned(services["n0"], {}, number)

    asyncio.run(asyncio.wait_for(check(), 20))


def test_tails_that_ended_take_nobodys_place_and_can_be_resumed_meanwhile() -> None:
    """They kept their holds for a minute, and every paged scan of the index was refused."""
    world = world_of()

    async def check() -> None:
        services = world.services(ScanSettings.model_validate({"max_leases": 8, "max_client_leases": 4}))
        tails = Tails(services["n0"].shared)
        token = ""
        for number in range(2, 30):
            world.commit(number, {"by_city": [doc(at, "Bonn", at, 0) for at in range(20)]})
            tail = await tails.open("by_city", TailRequest(), None, nobody_leaves)
            token, _, _ = await event_of(tail.first())
            await tail.close()
            tails.limit.closed()
        answer = await services["n0"].scan("by_city", ScanRequest(limit=3), nobody_leaves)
        page = json.loads(answer.body)["page"]
        await services["n0"].scan("by_city", ScanRequest(page=page), nobody_leaves)
        again = await tails.open("by_city", TailRequest(), token, nobody_leaves)
        world.commit(30, {"by_city": []})
        _, _, event = await event_of(await news(again))
        assert len(event["removed"]) == 20

    asyncio.run(check())


def test_an_event_that_did_not_arrive_is_had_again() -> None:
    world = world_of()

    async def check() -> None:
        tails = Tails(world.services()["n0"].shared)
        tail = await tails.open("by_city", TailRequest(), None, nobody_leaves)
        token, _, _ = await event_of(tail.first())
        world.commit(2, {"by_city": []})
        lost = await news(tail)
        assert lost is not None
        async for _ in lost:
            break  # the connection breaks within the event
        again = await tails.open("by_city", TailRequest(), token, nobody_leaves)
        world.commit(3, {"by_city": [doc(0, "Bonn", 0, 0)]})
        _, _, event = await event_of(await news(again))
        assert event["snapshot"] == 3
        assert len(event["removed"]) == 19

    asyncio.run(check())


def test_tokens_resume_what_they_are_of_and_nothing_else() -> None:
    world = world_of()

    async def check() -> None:
        tails = Tails(world.services()["n0"].shared)
        tail = await tails.open("by_city", TailRequest(equals=["Bonn"]), None, nobody_leaves)
        token, _, _ = await event_of(tail.first())
        for request in (TailRequest(), TailRequest(equals=["Bonn"], columns=["id"])):
            with pytest.raises(InvalidTokenError):
                await tails.open("by_city", request, token, nobody_leaves)
        with pytest.raises(InvalidTokenError):
            await tails.open("by_city", TailRequest(equals=["Bonn"]), token[:-2] + "xx", nobody_leaves)
        resumed = await tails.open("by_city", TailRequest(equals=["Bonn"]), token, nobody_leaves)
        assert resumed.resumed

    asyncio.run(check())


def test_a_rollback_ends_a_tail_that_told_what_is_void() -> None:
    world = world_of()

    async def check() -> None:
        tails = Tails(world.services()["n0"].shared)
        tail = await tails.open("by_city", TailRequest(), None, nobody_leaves)
        early, _, _ = await event_of(tail.first())
        world.commit(2, {"by_city": []})
        token, _, _ = await event_of(await news(tail))
        world.roll_back(to=1)
        with pytest.raises(HistoryChangedError):
            await news(tail)
        with pytest.raises(HistoryChangedError):
            await tails.open("by_city", TailRequest(), token, nobody_leaves)
        # What was told before the rollback's place goes on.
        resumed = await tails.open("by_city", TailRequest(), early, nobody_leaves)
        world.commit(3, {"by_city": [doc(99, "Bonn", 0, 0)]})
        _, _, event = await event_of(await news(resumed))
        assert (event["snapshot"], len(event["removed"])) == (3, 20)
        assert [row["id"] for row in event["added"]] == ["u99"]

    asyncio.run(check())


def test_a_slice_that_lost_what_was_told_last() -> None:
    world = world_of()

    async def check() -> None:
        tail = await Tails(world.services()["n0"].shared).open("by_city", TailRequest(), None, nobody_leaves)
        await event_of(tail.first())
        world.views["n1"].slices["by_city-1", 1].restart()
        world.commit(2, {"by_city": []})
        with pytest.raises(PageSnapshotGoneError, match="slice 1"):
            await news(tail)

    asyncio.run(check())


def test_tails_are_limited() -> None:
    world = world_of()

    async def check() -> None:
        configured = ScanSettings.model_validate({"max_tails": 1})
        tails = Tails(world.services(configured)["n0"].shared)
        await tails.open("by_city", TailRequest(), None, nobody_leaves)
        with pytest.raises(TooManyTailsError):
            await tails.open("by_city", TailRequest(), None, nobody_leaves)
        tails.limit.closed()
        with pytest.raises(KeytideError, match="no index"):
            await tails.open("no", TailRequest(), None, nobody_leaves)
        await tails.open("by_city", TailRequest(), None, nobody_leaves)

    asyncio.run(check())


def test_a_tail_that_is_resumed_twice_is_two_tails() -> None:
    """A connection that broke is noticed late: the tail on it goes on, and lets go of what it has told."""
    world = world_of()

    async def check() -> None:
        tails = Tails(world.services()["n0"].shared)
        old = await tails.open("by_city", TailRequest(), None, nobody_leaves)
        token, _, _ = await event_of(old.first())
        new = await tails.open("by_city", TailRequest(), token, nobody_leaves)
        for number in (2, 3):
            world.commit(number, {"by_city": [doc(number, "Bonn", 0, 0)]})
            await event_of(await news(old))
        _, _, event = await event_of(await news(new))
        assert (event["snapshot"], len(event["removed"])) == (3, 20)

    asyncio.run(check())


def test_what_a_reader_does_not_wait_for_is_not_kept() -> None:
    world = world_of()

    async def check() -> None:
        tail = await Tails(world.services()["n0"].shared).open("by_city", TailRequest(), None, nobody_leaves)
        await event_of(tail.first())
        world.commit(2, {"by_city": []})
        comparing = asyncio.Event()

        async def long_comparison(_told: Any) -> None:
            comparing.set()
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tail, "_changes", long_comparison)
            task = asyncio.ensure_future(tail.next(nobody_leaves, 5))
            await asyncio.wait_for(comparing.wait(), 20)
            assert leases(world) == {1: 4, 2: 4}
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert leases(world) == {1: 4}
        # Nor is what some slices hold and others do not.
        world.unleasable = {("by_city-1", number, 3) for number in (1, 3)}
        world.commit(3, {"by_city": []})
        with pytest.raises(KeytideError):
            await later(tail, 0.05)
        assert leases(world) == {1: 4}

    asyncio.run(check())


async def later(tail: OpenTail, timeout_s: float) -> None:
    tail._timeout_s = timeout_s
    tail._rest_until = 0
    await tail.next(nobody_leaves, 5)


def test_what_is_being_told_is_kept_however_slowly_it_is_taken() -> None:
    world = world_of()

    async def check() -> None:
        tail = await Tails(world.services()["n0"].shared).open("by_city", TailRequest(), None, nobody_leaves)
        await event_of(tail.first())
        world.commit(2, {"by_city": []})
        event = await news(tail)
        assert event is not None
        await anext(event)
        renewed: list[int] = []

        def renew(held: Any, *_: Any) -> None:
            renewed.append(held.stamp.number)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tail._shared.holds, "renew", renew)
            tail.renew()
        assert sorted(renewed) == [1, 2]

    asyncio.run(check())


def test_many_rows_are_written_in_threads() -> None:
    world = world_of(3_000)
    threads: set[str] = set()

    async def check() -> None:
        tails = Tails(world.services()["n0"].shared)
        tail = await tails.open("by_city", TailRequest(initial=True), None, nobody_leaves)
        rows = tail._maker.rows

        def noting(entries: Any) -> Any:
            threads.add(threading.current_thread().name.rpartition("_")[0])
            return rows(entries)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tail._maker, "rows", noting)
            _, _, event = await event_of(tail.first())
            assert len(event["added"]) == 3_000
            world.commit(2, {"by_city": []})
            _, _, event = await event_of(await news(tail))
            assert len(event["removed"]) == 3_000
        assert tail.rows == 6_000

    asyncio.run(check())
    assert "scan" in threads


# --- over HTTP ----------------------------------------------------------------


class Listener:
    """Reads server-sent events in a thread."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, **query: Any) -> None:
        self.events: list[dict[str, str]] = []
        self.comments = 0
        self.status = 0
        self.body = b""
        self.over = False
        self._client = httpx.Client(timeout=30)
        self._request = self._client.build_request("GET", url + TAIL, params=query, headers=headers)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        response = self._client.send(self._request, stream=True)
        self.status = response.status_code
        event: dict[str, str] = {}
        try:
            for line in response.iter_lines():
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                elif event:
                    self.events.append(event)
                    event = {}
        except httpx.HTTPError:
            pass
        self.over = True

    def close(self) -> None:
        self._client.close()
        self._thread.join(10)


@contextmanager
def listening(url: str, headers: dict[str, str] | None = None, **query: Any) -> Iterator[Listener]:
    listener = Listener(url, headers, **query)
    try:
        yield listener
    finally:
        listener.close()


def test_tails_over_http() -> None:
    world = world_of(3)
    configured = load_settings(scan={"tail_heartbeat_s": 0.1, "max_tails": 1})
    with serving(world.views["n0"], configured) as one, serving(world.views["n1"], configured) as two:
        for view in world.views.values():
            view.urls = {"n0": one, "n1": two}
        with listening(one, equals="Bonn", initial="true") as listener:
            wait_for(lambda: len(listener.events) == 1)
            first = json.loads(listener.events[0]["data"])
            assert [row["id"] for row in first["added"]] == ["u2", "u1", "u0"]
            wait_for(lambda: listener.comments >= 2)
            busy = httpx.get(one + TAIL)
            assert (busy.status_code, busy.json()["type"]) == (503, "too-many-tails")
            world.commit(2, {"by_city": [doc(0, "Bonn", 0, 1), doc(9, "Ulm", 0, 0)]})
            wait_for(lambda: len(listener.events) == 2)
            change = json.loads(listener.events[1]["data"])
            assert change["snapshot"] == 2
            assert change["timestamp"]["0"]["offset"] == 2
            assert [row["include"]["x"] for row in change["added"]] == [1]
            assert sorted(row["id"] for row in change["removed"]) == ["u0", "u1", "u2"]
        some = httpx.get(one + TAIL, params={"events": 1, "initial": "true"})
        assert some.text.count("event: ") == 1
        world.commit(3, {"by_city": []})
        with listening(two, {"Last-Event-ID": listener.events[1]["id"]}, equals="Bonn") as resumed:
            wait_for(lambda: len(resumed.events) == 1)
            assert json.loads(resumed.events[0]["data"])["snapshot"] == 3
            world.roll_back(to=1)
            wait_for(lambda: resumed.over)
            assert resumed.events[-1]["event"] == "history-changed"
            assert json.loads(resumed.events[-1]["data"])["status"] == 409
        wait_for(lambda: httpx.get(one + TAIL, params={"from": "no", "equals": "Bonn"}).status_code == 422)
        for query in ({"consistency": "tip"}, {"limit": 3}, {"explain": "true"}):
            assert httpx.get(one + TAIL, params=query).status_code == 422
        gone = httpx.get(
            two + TAIL, params={"equals": "Bonn"}, headers={"Last-Event-ID": listener.events[1]["id"]}
        )
        assert (gone.status_code, gone.json()["type"]) == (409, "history-changed")


def test_a_reader_that_goes_away_while_snapshots_are_compared() -> None:
    world = world_of(3)
    comparing = threading.Event()

    async def long_comparison(_tail: OpenTail, _told: Any) -> None:
        comparing.set()
        await asyncio.Event().wait()

    configured = load_settings(scan={"max_tails": 1})
    with pytest.MonkeyPatch.context() as patch, serving(world.views["n0"], configured) as one:
        world.views["n0"].urls = {"n0": one, "n1": one}
        patch.setattr(OpenTail, "_changes", long_comparison)
        address = httpx.URL(one)
        with socket.create_connection((address.host, address.port or 80), 20) as reader:
            reader.sendall(f"GET {TAIL}?slices=0 HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode())
            head = b""
            while b"event: snapshot" not in head:
                head += reader.recv(10_000)
            world.commit(2, {"by_city": []})
            assert comparing.wait(20)
        wait_for(lambda: leases(world) == {1: 1})
        patch.undo()
        assert httpx.get(one + TAIL, params={"events": 1, "slices": "0"}).status_code == 200


class SlowHead:
    """A tail whose reader does not even take the head."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}
        self.media_type = "text/event-stream"
        self.rows = 0
        self.renewed = asyncio.Event()

    def renew(self) -> None:
        self.renewed.set()

    async def close(self) -> None:
        self.renewed.clear()


def test_a_tail_is_kept_while_its_reader_does_not_take_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RENEWALS", 3_000)
    tail = SlowHead()

    async def receive() -> dict[str, Any]:
        await tail.renewed.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.Event().wait()

    over: list[int] = []
    limits = load_settings().scan.model_copy(update={"tail_lease_s": 3, "stream_stall_s": 5.0})
    response = events.TailResponse(
        cast(OpenTail, tail), limits, lambda _: Response(), lambda rows, _: over.append(rows)
    )

    async def answered() -> bool:
        task = asyncio.ensure_future(response({"type": "http"}, receive, send))
        kept = asyncio.ensure_future(tail.renewed.wait())
        await asyncio.wait([task, kept], return_when=asyncio.FIRST_COMPLETED)
        was_kept = kept.done()
        await task
        return was_kept

    assert asyncio.run(answered())
    assert over == [0]
