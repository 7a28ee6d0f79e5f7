"""A gateway beside a real cluster: it answers as nodes do while documents move, is placed nowhere, and a node
that stands still costs only those scans that need its slices."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deploy.process import ChildProcess, free_ports
from indexer.scan.plan.selection import Shape, slices_of
from indexer.scan.request.request import ScanRequest
from keytide.client import Client
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import KeytideError
from tests.chaos.processes import stopped
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STATEMENT = "CREATE INDEX moves_city ON moves (city, n) WITH (slices=4, defer_build=true)"
IDS = 400
STUCK_MS = 1_500
MEMORY_SLACK = 40 << 20


@dataclass(slots=True)
class GatedWorld(World):
    """A world that is scanned through its gateway."""

    gateway: str = ""

    def client(self, node: int = 0) -> Client:
        return Client(self.gateway, retries=0)


def _move(chance: random.Random, _: int) -> tuple[str, Any]:
    """Every document always has one city: the count never changes."""
    return f"m{chance.randrange(IDS)}", {"city": f"city{chance.randrange(40)}", "n": chance.randrange(100)}


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["n"]]


@pytest.fixture(scope="module")
def world(
    shared_world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatedWorld, ChildProcess]]:
    (port,) = free_ports(1)
    shared_world.begin_empty("moves", "moves_city", STATEMENT)
    with Writer(shared_world.bootstrap, "moves", 1, _move) as writer:
        for number in range(IDS):
            writer.put(f"m{number}", {"city": "city0", "n": 0})
        writer.write(1_000)
    shared_world.wait_shown("moves", "moves_city")
    cluster = shared_world.cluster
    command = [sys.executable, "-c", "from keytide.cli import app; app()", "gateway"]
    options = ["--port", str(port), "--kafka", cluster.bootstrap, "--cluster", cluster.name]
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with (
        GatedWorld(cluster, gateway=f"http://127.0.0.1:{port}") as gated,
        ChildProcess("gateway", [*command, *options], log=log, env=dict(os.environ)) as gateway,
    ):
        gateway.wait_until(lambda: gateway.said(f"ready {gated.gateway}"), 60, "serves")
        yield gated, gateway


def test_it_answers_as_nodes_do_while_documents_move(world: tuple[GatedWorld, ChildProcess]) -> None:
    gated, _ = world
    direct = World(gated.cluster, gated.sources)
    with Writer(gated.bootstrap, "moves", 2, _move, per_second=500), gated.client() as mine:
        for turn in range(6):
            # Whoever has seen something at a node sees no less at the gateway, and the other way round.
            with direct.client(turn % 2) as theirs:
                seen = theirs.page("moves_city", limit=1)
                page = mine.page("moves_city", limit=1, session=seen.session, timeout_ms=20_000)
                assert page.snapshot is not None
                assert seen.snapshot is not None
                assert page.snapshot >= seen.snapshot
                again = theirs.page("moves_city", limit=1, session=page.session, timeout_ms=20_000)
                assert again.snapshot is not None
                assert again.snapshot >= page.snapshot
            assert gated.check("moves_city", "moves", _by_city, page_size=70) == IDS
            assert mine.count("moves_city").count == IDS
    assert gated.check_at_end("moves_city", "moves", _by_city) == IDS
    assert direct.check_at_end("moves_city", "moves", _by_city) == IDS


def test_nobody_knows_of_it(world: tuple[GatedWorld, ChildProcess]) -> None:
    gated, gateway = world
    nodes = {node["url"] for node in gated.admin.call("GET", "/v1/nodes")}
    assert nodes == set(gated.cluster.node_urls)
    assert "gateway" not in str(gated.admin.call("GET", "/v1/topology"))
    assert httpx.get(f"{gated.gateway}/readyz").json()["ready"] is True
    assert "keytide_scan_rows_total" in httpx.get(f"{gated.gateway}/metrics").text
    assert not any(
        "lmdb" in one.path or "slices" in one.path for one in psutil.Process(gateway.pid).open_files()
    )


def _on(gated: GatedWorld) -> dict[str, list[str]]:
    """For each node a city, of nobody, whose slice it holds."""
    statement = parse_statement(STATEMENT)
    assert isinstance(statement, CreateIndex)
    shape = Shape.of(statement.definition)
    placement = gated.admin.call("GET", "/v1/indexes/moves_city")["placement"]
    found: dict[str, list[str]] = {}
    for number in range(1_000):
        city = [f"nobody-{number}"]
        (slice_number,) = slices_of(ScanRequest(equals=city), shape)
        (node,) = placement[slice_number]
        found.setdefault(node, city)
    return found


def test_a_node_that_stands_still_costs_only_its_own_slices(world: tuple[GatedWorld, ChildProcess]) -> None:
    gated, gateway = world
    here, there = (city for _, city in sorted(_on(gated).items()))
    still = next(node for node in gated.admin.call("GET", "/v1/nodes") if _holds(gated, node["id"], there))
    name = f"node-{1 + gated.cluster.node_urls.index(still['url'])}"
    process = psutil.Process(gateway.pid)
    with gated.client() as client:
        for city in (here, there):
            assert client.page("moves_city", equals=city).rows == []
        with stopped([psutil.Process(gated.cluster.services[name].pid)]):
            _stuck(client, there)
            before = process.memory_info().rss
            for _ in range(4):
                _stuck(client, there)
                took = []
                for _ in range(20):
                    began = time.monotonic()
                    assert client.page("moves_city", equals=here, timeout_ms=20_000).rows == []
                    took.append(time.monotonic() - began)
                assert sorted(took)[10] < STUCK_MS / 2_000
            _all_stuck(gated.gateway, there, 400)
            assert process.memory_info().rss - before < MEMORY_SLACK
        wait_for(lambda: _answers(client, there), "the node that went on answers", 30)
    assert gated.check_at_end("moves_city", "moves", _by_city) == IDS


def _holds(gated: GatedWorld, node: str, city: list[str]) -> bool:
    return _on(gated).get(node) == city


def _stuck(client: Client, city: list[str]) -> None:
    """A scan that needs the node ends with its time, and says which node it was."""
    began = time.monotonic()
    with pytest.raises(KeytideError, match="did not answer within") as caught:
        client.page("moves_city", equals=city, timeout_ms=STUCK_MS)
    assert (caught.value.problem_type, caught.value.status) == ("node-unavailable", 504)
    assert STUCK_MS / 1000 - 0.1 <= time.monotonic() - began < STUCK_MS / 1000 + 10


def _all_stuck(url: str, city: list[str], count: int) -> None:
    """So many scans one after the other, that wait a short while each."""
    with httpx.Client(timeout=30) as http:
        for _ in range(count):
            body = {"equals": city, "timeout_ms": 20}
            answer = http.post(f"{url}/v1/indexes/moves_city/scan", json=body)
            assert answer.status_code == 504


def _answers(client: Client, city: list[str]) -> bool:
    try:
        return client.page("moves_city", equals=city, timeout_ms=STUCK_MS).rows == []
    except KeytideError:
        return False


def test_ctrl_c_ends_it_and_nothing_else(world: tuple[GatedWorld, ChildProcess]) -> None:
    """The last test here."""
    gated, gateway = world
    os.kill(gateway.pid, signal.SIGINT)
    wait_for(lambda: not gateway.running, "the gateway ends", 20)
    assert gateway.returncode == 0
    log = Path(gateway.log).read_text()
    assert "Traceback" not in log
    assert World(gated.cluster, gated.sources).check_at_end("moves_city", "moves", _by_city) == IDS
