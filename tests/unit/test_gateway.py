"""A gateway: what it hears, what it answers from the slices of nodes, how it comes and goes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import pytest

from deploy.process import free_ports
from indexer.hosting.node import ServingNode
from indexer.hosting.placed import placed_here
from indexer.ingest.consumer import ConsumerRecord, TopicKind
from indexer.ingest.metadata import MetadataFeed
from indexer.scan.plan.selection import Shape, slices_of
from indexer.scan.request.request import ScanRequest
from indexer.serve import gateway
from indexer.serve.gateway import Listener
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import KeyspaceRecord, NodeRecord, RollbackRecord
from keytide.client import Client
from keytide.errors import KeytideError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from keytide.wire.messages import Leading, Published, StabilityTimestamp, encode
from tests.unit.scan_world import KEYSPACE, World
from tests.unit.test_api import serving, world_of_cities
from tests.waiting import wait_for

LIMIT_S = 20.0
PROCESS_S = 300.0
"""For a process to begin and to end: imports take seconds where cores are busy."""


def stamp(world: World, number: int) -> bytes:
    incarnation, timestamp, fresh_at = world.stamps[number]
    return encode(StabilityTimestamp(KEYSPACE, 1, incarnation, timestamp, fresh_at, fresh_at))


def published(world: World, name: str, number: int) -> bytes:
    return encode(Published(KEYSPACE, 1, world.incarnation, {world.index(name).id: number}))


class Gate:
    """A gateway's view beside the nodes of a world, behind a real server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.view = ServingNode("gateway-1")
        self.hearing = MetadataFeed(self.view)

    def hears(self, number: int, *names: str) -> None:
        self.hearing.control(number, stamp(self.world, number))
        for name in names:
            self.hearing.control(number + 1, published(self.world, name, number))

    def reads(self) -> bool:
        return self.hearing.dictionary(self.world.catalog.copy())


@contextmanager
def gated(world: World) -> Iterator[tuple[Gate, str, dict[str, str]]]:
    """The gateway, where it serves, and where the nodes do."""
    gate = Gate(world)
    with ExitStack() as stack:
        urls = {}
        for name, view in world.views.items():
            urls[name] = stack.enter_context(serving(view, load_settings()))
            world.record(NodeRecord(name, urls[name], 0))
        for view in world.views.values():
            view.urls = urls
        url = stack.enter_context(serving(gate.view, load_settings()))  # type: ignore[arg-type]
        yield gate, url, urls


# --- what it answers ----------------------------------------------------------------------------------------


def test_it_answers_as_nodes_do_from_the_slices_of_nodes() -> None:
    world = world_of_cities(node_count=2)
    with gated(world) as (gate, url, urls):
        assert gate.reads()
        gate.hears(5, "by_city", "with_name")
        assert placed_here(gate.view.catalog(), gate.view.node_id) == {}
        with Client(url) as mine, Client(urls["n0"]) as theirs:
            demands: list[dict[str, Any]] = [{}, {"equals": ["Bonn"]}, {"low": ["B"], "high": ["C"]}]
            for demand in demands:
                rows = [(row.key, row.id) for row in mine.scan("by_city", page_size=3, **demand)]
                assert rows == [(row.key, row.id) for row in theirs.scan("by_city", page_size=7, **demand)]
                assert mine.count("by_city", **demand).count == len(rows) > 0
                back = [(row.key, row.id) for row in mine.scan("by_city", reverse=True, **demand)]
                assert back == [(row.key, row.id) for row in theirs.scan("by_city", reverse=True, **demand)]
            page, other = mine.page("by_city", limit=4, explain=True), theirs.page("by_city", limit=4)
            assert (page.snapshot, page.timestamp) == (other.snapshot, other.timestamp)
            assert page.explain is not None
            assert {one["node"] for one in page.explain["slices"]} == {"n0", "n1"}
            assert any(snapshot.leases for snapshot in world.held())
            # Pages and sessions of the one are good at the other.
            assert theirs.page("by_city", page=page.page).rows == mine.page("by_city", page=page.page).rows
            assert mine.page("by_city", session=other.session).snapshot == 5
            assert mine.page("by_city", consistency="tip").rows
            assert [row.id for row in mine.scan("with_name", columns=["id"])]


def test_scans_wait_for_what_it_hears() -> None:
    world = world_of_cities(node_count=2)
    with gated(world) as (gate, url, _), Client(url, retries=0) as client, ThreadPoolExecutor(1) as pool:
        gate.reads()
        gate.hears(5, "by_city")
        asked = pool.submit(client.page, "by_city", at_least={"0": 60}, timeout_ms=15_000)
        world.commit(9, {"by_city": world.documents["by_city"]}, offsets={0: 60, 1: 11})
        gate.hears(9, "by_city")
        assert asked.result(LIMIT_S).snapshot == 9


def test_a_rollback_that_is_half_read_is_not_shown() -> None:
    world = world_of_cities(node_count=1)
    gate = Gate(world)
    assert not MetadataFeed(ServingNode("x")).dictionary(Catalog())
    assert gate.reads()
    before = gate.view.catalog()
    world.record(KeyspaceRecord(KEYSPACE, "t", 2, 1, incarnation=1))
    assert not gate.reads()
    assert gate.view.catalog() is before
    world.record(RollbackRecord(KEYSPACE, 1, 4, Timestamp(), "t", "truncated", 0, {}))
    assert gate.reads()
    assert gate.view.history("by_city-1").incarnation == 1


def test_what_it_hears_of_control() -> None:
    world = world_of_cities(node_count=1)
    gate = Gate(world)
    gate.reads()
    told: list[int] = []
    gate.view.on_published(lambda: told.append(1))
    assert isinstance(gate.hearing.control(5, stamp(world, 5)), StabilityTimestamp)
    assert gate.hearing.control(6, published(world, "by_city", 5)) == {"by_city-1": 5}
    assert gate.hearing.control(7, published(world, "by_city", 5)) is None  # again
    assert gate.hearing.control(8, encode(Leading(1, "c", 0))) is None
    assert gate.hearing.control(9, b"nonsense") is None
    assert gate.hearing.control(10, None) is None
    assert told == [1]
    assert gate.view.published("by_city-1") == 5
    # A term that was replaced is not heard.
    gate.hearing.control(11, encode(Published(KEYSPACE, 2, 0, {"by_city-1": 6})))
    assert gate.hearing.control(12, encode(Published(KEYSPACE, 1, 0, {"by_city-1": 7}))) is None
    assert gate.view.published("by_city-1") == 6


def test_numbers_of_dropped_indexes_are_forgotten() -> None:
    world = world_of_cities(node_count=1)
    gate = Gate(world)
    gate.reads()
    gate.hears(5, "by_city", "with_name")
    world.catalog.remove("index/by_city-1")
    gate.reads()
    assert gate.view.published("by_city-1") is None
    assert gate.view.published("with_name-1") == 5


# --- nodes that do not answer -------------------------------------------------------------------------------


def lying_on(world: World, node: str) -> list[str]:
    """A city, of nobody, whose slice lies on a node."""
    record = world.index("by_city")
    shape = Shape.of(record.definition)
    names = ([f"nobody-{at}"] for at in range(1_000))
    return next(
        one for one in names if record.placement[slices_of(ScanRequest(equals=one), shape)[0]] == [node]
    )


@pytest.mark.slow
def test_a_node_that_stands_still_holds_up_nobody_else() -> None:
    """Its scans end with their time, also when there are more of them than connections to it may be open."""
    world = world_of_cities(node_count=2)
    silent = socket.create_server(("127.0.0.1", 0), backlog=2_000)
    with gated(world) as (gate, url, _), silent:
        world.record(NodeRecord("n1", f"http://127.0.0.1:{silent.getsockname()[1]}", 0))
        gate.reads()
        gate.hears(5, "by_city")
        there, here = lying_on(world, "n1"), lying_on(world, "n0")
        began = time.monotonic()
        with Client(url, retries=0) as client, pytest.raises(KeytideError) as caught:
            client.page("by_city", equals=there, timeout_ms=300)
        assert 0.25 < time.monotonic() - began < 5
        assert (caught.value.problem_type, caught.value.status) == ("node-unavailable", 504)

        stuck: list[int] = []
        asking = threading.Thread(target=lambda: asyncio.run(ask_all(url, there, 200, stuck)))
        asking.start()
        wait_for(lambda: waiting(silent) >= 128, "many scans to be stuck")
        answered = 0
        with Client(url, retries=0) as client:
            while not stuck and answered < 20:
                assert client.page("by_city", equals=here, timeout_ms=2_000).rows == []
                answered += not stuck
        early = [*stuck]
        asking.join()
        assert stuck == [504] * 200  # (fewer than http.max_waiting, or a slow machine refuses some)
        assert answered == 20, early  # all of them while the others were stuck


async def ask_all(url: str, equals: list[str], count: int, statuses: list[int]) -> None:
    """So many scans at once."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> None:
            body = {"equals": equals, "timeout_ms": 20_000}
            async with session.post(f"{url}/v1/indexes/by_city/scan", json=body) as answer:
                statuses.append(answer.status)

        await asyncio.gather(*(ask() for _ in range(count)))


def waiting(listener: socket.socket) -> int:
    """How many connections to a port of ours are open, on the side of who has made them."""
    port = listener.getsockname()[1]
    own = psutil.Process().net_connections("tcp")
    return sum(one.raddr != () and one.raddr[1] == port and one.status == "ESTABLISHED" for one in own)


# --- the process --------------------------------------------------------------------------------------------


class FakeCatalogReader:
    """Kafka is away twice, then the dictionary is there; `pending` comes one by one."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.failures = 2
        self.pending: list[Catalog] = []
        self.closed = 0

    def start(self, timeout: float) -> Catalog:
        if self.failures:
            self.failures -= 1
            raise KafkaUnavailableError("not there")
        return self.catalog

    def poll(self, timeout: float = 0.0) -> list[Any]:
        if not self.pending:
            return []
        self.catalog = self.pending.pop(0)
        return ["something"]

    def snapshot(self) -> Catalog:
        return self.catalog.copy()

    def close(self) -> None:
        self.closed += 1


class FakeIdentity:
    def look(self) -> None: ...
    def open(self) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...

    def confirmed(self, since: int) -> bool:
        return True


class FakeConsumer:
    def __init__(self) -> None:
        self.pending: list[ConsumerRecord] = []
        self.closed = False

    def start(self, timeout: float) -> None:
        pass

    def poll(self, timeout: float, now: int) -> list[ConsumerRecord]:
        time.sleep(0.001)
        return [self.pending.pop(0)] if self.pending else []

    def close(self) -> None:
        self.closed = True


def test_it_waits_for_the_cluster_follows_it_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of_cities(node_count=1)
    reader, consumer = FakeCatalogReader(world.catalog.copy()), FakeConsumer()
    monkeypatch.setattr(gateway, "CatalogReader", lambda settings: reader)
    monkeypatch.setattr(gateway, "NodeConsumer", lambda *_: consumer)
    monkeypatch.setattr(gateway, "KafkaIdentity", lambda *_, **__: FakeIdentity())
    monkeypatch.setattr(gateway, "RETRY_S", 0.01)
    view = ServingNode("gateway-1")
    stop, started = threading.Event(), threading.Event()
    thread = threading.Thread(target=Listener(load_settings(), view).run, args=(stop, started))
    thread.start()
    try:
        assert started.wait(LIMIT_S)
        assert view.catalog().index_by_name("by_city") is not None
        consumer.pending += [
            ConsumerRecord(TopicKind.CONTROL, None, 5, stamp(world, 5)),
            ConsumerRecord(TopicKind.CONTROL, None, 6, published(world, "by_city", 5)),
        ]
        wait_for(lambda: view.published("by_city-1") == 5, "the published number")
        assert view.stamp(KEYSPACE, 5) is not None
        world.create("CREATE INDEX later ON users (n)")
        reader.pending.append(world.catalog.copy())
        wait_for(lambda: view.catalog().index_by_name("later") is not None, "the new index")
    finally:
        stop.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert consumer.closed
    assert reader.closed == 3  # after each failed try, and at the end


@contextmanager
def process(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """`keytide gateway` without a Kafka."""
    command = [sys.executable, "-c", "from keytide.cli import app; app()", "gateway", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_kafka_it_says_so_and_ctrl_c_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    (port,) = free_ports()
    config = tmp_path / "settings.toml"
    config.write_text('cluster = "elsewhere"\n[security.tokens]\nreader = ["read"]\n')
    options = ("--port", str(port), "--kafka", "127.0.0.1:1", "--config", str(config))
    url = f"http://127.0.0.1:{port}"
    with process(*options, cwd=tmp_path) as child:
        wait_for(lambda: _status(f"{url}/healthz") == 200, "it lives")
        assert _status(f"{url}/readyz") == 503
        assert _status(f"{url}/metrics") == 200
        assert _status(f"{url}/v1/indexes") == 401  # its settings are those of the file
        headers = {"Authorization": "Bearer reader"}
        answer = httpx.post(f"{url}/v1/indexes/by_city/scan", json={}, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (503, "index-not-ready")
        child.send_signal(number)
        _, told = child.communicate(timeout=PROCESS_S)
        assert child.returncode == 0
        assert "waiting for the cluster" in told
        assert "Traceback" not in told


@pytest.mark.slow
def test_a_port_that_is_taken_and_one_that_is_open_to_everyone(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        process("--port", str(taken.getsockname()[1]), cwd=tmp_path) as child,
    ):
        _, told = child.communicate(timeout=PROCESS_S)
    assert child.returncode == 1
    assert "gateway.port" in told
    with process("--host", "0.0.0.0", "--port", "0", cwd=tmp_path) as child:
        _, told = child.communicate(timeout=PROCESS_S)
    assert child.returncode == 1
    assert "gateway.host" in told


def _status(url: str) -> int:
    try:
        return httpx.get(url, timeout=5).status_code
    except httpx.TransportError:
        return 0
