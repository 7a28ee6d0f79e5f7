"""Long reads: they end with their request, when nobody waits any more, and when their turn is over."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from indexer.scan.local.effort import PART_S, REST_S, TURN_S, GivenUpError, ReadBudget, ReadThreads
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import OutOfTimeError, ReadConsistency, ReadPaging, ReadRequest, ReadSpan
from indexer.scan.plan.waiting import ReaderGoneError
from keytide.settings.settings import load_settings
from tests.unit.scan_world import Doc, FakeSnapshot, World
from tests.unit.test_api import serving
from tests.waiting import wait_for

INDEX = "i-1"
COUNTED = f"SELECT COUNT(*) FROM users WHERE a >= 0 AND b IN ({', '.join(map(str, range(900)))})"
LIMIT_S = 20.0


class Endless(FakeSnapshot):
    """A snapshot that gives its entries slowly, over minutes."""

    given = 0

    def rows(self, *arguments: Any, **named: Any) -> Iterator[list[tuple[bytes, bytes]]]:
        for block in super().rows(*arguments, **named):
            time.sleep(0.002)
            self.given += 1
            yield block

    def count(self, low: bytes, high: bytes | None) -> int:
        return len(self.entries)  # a store knows that


def endless_world(node_count: int = 1) -> tuple[World, list[Endless]]:
    """An index with a slice per node."""
    world = World(
        f"CREATE INDEX i ON users (a, b) PARTITION BY HASH(id) WITH (slices={node_count})",
        node_count=node_count,
    )
    world.commit(5, {"i": [Doc([at, at], f"u{at}") for at in range(30_000)]})
    snapshots: list[Endless] = []
    for view in world.views.values():
        for of_slice in view.slices.values():
            was = of_slice.snapshots[5]
            snapshots.append(Endless(5, 0, was.timestamp, was.entries))
            of_slice.add(snapshots[-1], -1)
    return world, snapshots


def work(seconds: float) -> None:
    """Take so much of the processor."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


# --- turns ------------------------------------------------------------------------------------------------


def test_a_block_is_worked_on_in_parts_whatever_an_entry_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("indexer.scan.local.effort.thread_time", lambda: now)
    effort = ReadBudget()
    for cost, least, most in ((0.0005, 1, 1), (1e-7, 1_000, 8_192), (1e-5, 20, 30)):
        for _ in range(30):
            sizes = []
            for part in effort.parts(range(10_000)):
                sizes.append(len(part))
                now += cost * len(part)
            assert sum(sizes) == 10_000
        assert least <= max(sizes) <= most


def test_work_looks_whether_its_request_is_over() -> None:
    with pytest.raises(OutOfTimeError):
        ReadBudget(until=time.monotonic() - 1).look()
    effort = ReadBudget()
    effort.look()
    effort.give_up()
    with pytest.raises(GivenUpError):
        effort.look()


def test_a_turn_is_divided_among_slices_and_is_longer_while_nobody_waits() -> None:
    threads = ReadThreads()
    try:
        effort = ReadBudget(least_s=0.0, most_s=3_600, threads=threads)
        effort.begin(4)
        assert [effort.spent] == [False]
        hold, held = threading.Event(), threading.Event()

        def holds(_: ReadBudget) -> None:
            held.set()
            hold.wait(LIMIT_S)

        first = threads.turn(holds, None, first=False)
        assert held.wait(LIMIT_S)
        assert [effort.spent] == [False]  # it has its turn, and waits for none
        second = threads.turn(lambda _: None, None, first=False)
        assert effort.spent
        hold.set()
        first.done.result(LIMIT_S)
        second.done.result(LIMIT_S)
        assert not threads.crowded
        effort = ReadBudget(least_s=TURN_S, most_s=0.0)
        assert not effort.spent
        effort.begin(10_000)
        wait_for(lambda: effort.spent)
    finally:
        threads.close()


def test_what_is_given_up_before_its_turn_is_never_begun() -> None:
    async def whole() -> None:
        threads = ReadThreads()
        hold, held = threading.Event(), threading.Event()
        begun: list[int] = []

        def holds(_: ReadBudget) -> None:
            held.set()
            hold.wait(LIMIT_S)

        first = threads.turn(holds, None, first=False)
        await asyncio.to_thread(held.wait, LIMIT_S)
        second = threads.turn(lambda _: begun.append(1), 0.05, first=False)
        with pytest.raises(OutOfTimeError):
            await second.result()
        hold.set()
        await first.result()
        assert not threads.crowded
        assert begun == []
        threads.close()

    asyncio.run(whole())


def test_work_rests_while_short_requests_are_about() -> None:
    threads = ReadThreads()
    try:
        effort = ReadBudget(threads=threads)
        assert not threads.others(time.monotonic())
        threads.short_at = time.monotonic()
        assert threads.others(time.monotonic())
        began = time.monotonic()
        for _ in range(10):
            work(PART_S)
            effort.look()
        assert time.monotonic() - began >= 10 * REST_S
    finally:
        threads.close()


# --- reads of a node --------------------------------------------------------------------------------------


def counted(within_ms: int = 0, in_use: bool = True) -> ReadRequest:
    """A count of nearly all."""
    return ReadRequest(
        ReadSpan(INDEX, [0], [(b"\x02", None)], [b""], False),
        ReadPaging(0, in_use=in_use, within_ms=within_ms),
        ReadConsistency(5, 0),
    )


@pytest.mark.parametrize("how", ["gone", "cancelled"])
def test_a_read_that_nobody_waits_for_ends(how: str) -> None:
    world, (snapshot,) = endless_world()

    async def whole() -> None:
        reader = LocalReader(world.views["n0"], 10, examined=10**9)
        reader.threads.turn = _endless_turn(reader.threads)  # type: ignore[method-assign]
        left = asyncio.Event()

        async def gone() -> None:
            await left.wait()

        reading = asyncio.ensure_future(reader.read(counted(), gone))
        await asyncio.to_thread(wait_for, lambda: snapshot.given >= 3)
        if how == "gone":
            left.set()
            with pytest.raises(ReaderGoneError):
                await reading
        else:
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await asyncio.to_thread(wait_for, lambda: snapshot.readers == 0)
        assert snapshot.given < 10_000
        reader.close()

    asyncio.run(asyncio.wait_for(whole(), LIMIT_S))


def _endless_turn(threads: ReadThreads) -> Callable[..., Any]:
    """Turns that no time ends."""
    turn = threads.turn

    def endless(work: Callable[[ReadBudget], Any], within_s: float | None, *, first: bool) -> Any:
        def unlimited(effort: ReadBudget) -> Any:
            effort._turn = (float("inf"), float("inf"))
            return work(effort)

        return turn(unlimited, within_s, first=first)

    return endless


def test_a_read_says_where_it_got_to_when_its_turn_is_over() -> None:
    world, (snapshot,) = endless_world()

    async def whole() -> None:
        reader = LocalReader(world.views["n0"], 10)
        first = (await reader.read(counted(in_use=False))).slices[0]
        assert first.more
        assert 0 < first.count < 10_000
        reader.threads.turn = _endless_turn(reader.threads)  # type: ignore[method-assign]
        with pytest.raises(OutOfTimeError):
            await reader.read(counted(within_ms=30))
        await asyncio.to_thread(wait_for, lambda: snapshot.readers == 0)
        reader.close()

    asyncio.run(asyncio.wait_for(whole(), LIMIT_S))


# --- requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/v1/query", {"sql": COUNTED}, "query-timeout"),
        ("/v1/query", {"sql": "SELECT a, b FROM users WHERE a > 1 ORDER BY b"}, "query-timeout"),
        ("/v1/indexes/i/scan", {"low": [0], "limit": 100_000, "timeout_ms": 80}, "query-timeout"),
        ("/v1/indexes/i/count", {"low": [0]}, "count-timeout"),
        ("/v1/indexes/i/aggregate", {"functions": ["sum(b)"]}, "aggregate-timeout"),
    ],
)
def test_a_request_ends_with_its_time_and_blames_no_node(
    path: str, body: dict[str, Any], problem: str
) -> None:
    world, snapshots = endless_world(node_count=2)
    one, other = world.views.values()
    with serving(one, load_settings()) as first, serving(other, load_settings()) as second:
        one.urls, other.urls = {"n1": second}, {"n0": first}
        for timeout_ms in (400, 1_000, 4_000):
            began = time.monotonic()
            answer = httpx.post(first + path, json={"timeout_ms": timeout_ms, **body}, timeout=LIMIT_S).json()
            assert time.monotonic() - began < LIMIT_S / 2
            if "did not answer" not in answer["detail"]:
                break  # (else a tenth of the time was too little for an answer, where others run, too)
        assert answer["type"] == problem, answer
        assert "did not answer" not in answer["detail"]
        wait_for(lambda: not any(snapshot.readers for snapshot in snapshots))


def test_work_ends_everywhere_when_the_client_goes_away() -> None:
    world, snapshots = endless_world(node_count=2)
    one, other = world.views.values()
    with serving(one, load_settings()) as first, serving(other, load_settings()) as second:
        one.urls, other.urls = {"n1": second}, {"n0": first}
        body = json.dumps({"sql": COUNTED, "timeout_ms": 100_000}).encode()
        head = (
            "POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}"
        )
        with socket.create_connection(("127.0.0.1", int(first.rpartition(":")[2]))) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            wait_for(lambda: all(snapshot.given > 5 for snapshot in snapshots))
        wait_for(lambda: not any(snapshot.readers for snapshot in snapshots))
        assert all(snapshot.given < 10_000 for snapshot in snapshots)
