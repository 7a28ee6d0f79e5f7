"""A node with scan processes on a real cluster: pages are right while documents move; processes die, stand
still, and end with their node."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.chaos.processes import stopped
from tests.integration.conftest import Worlds
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(600)]

SETTINGS = {"KEYTIDE_INDEXER__SCAN_PROCESSES": "2", "KEYTIDE_INDEXER__DELTA_AGE_S": "2"}
TOPIC, INDEX = "strolls", "strolls_city"
STATEMENT = f"CREATE INDEX {INDEX} ON {TOPIC} (city, n) WITH (slices=4, defer_build=true)"
IDS = 400


def _move(chance: random.Random, _: int) -> tuple[str, Any]:
    """Every document always has one city: the count never changes."""
    return f"m{chance.randrange(IDS)}", {"city": f"city{chance.randrange(40)}", "n": chance.randrange(100)}


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["n"]]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=1) as made:
        made.begin_empty(TOPIC, INDEX, STATEMENT)
        with Writer(made.bootstrap, TOPIC, 1, _move) as writer:
            for number in range(IDS):
                writer.put(f"m{number}", {"city": "city0", "n": 0})
            writer.write(1_000)
        made.wait_shown(TOPIC, INDEX)
        yield made


def _scanning(world: World) -> list[psutil.Process]:
    """The scan processes that run."""
    return [one for one in world.processes("indexer.serve.scan_process") if one.is_running()]


def _figure(world: World, name: str) -> float:
    page = httpx.get(f"{world.cluster.node_urls[0]}/metrics").text
    (value,) = (line.split()[-1] for line in page.splitlines() if line.startswith(f"{name} "))
    return float(value)


def _serving(world: World) -> bool:
    try:
        return _figure(world, "keytide_scan_processes_serving") == 2
    except httpx.TransportError:
        return False


def test_pages_are_right_while_documents_move_and_levels_are_folded(world: World) -> None:
    with Writer(world.bootstrap, TOPIC, 2, _move, per_second=500):
        for _ in range(12):
            assert world.check(INDEX, TOPIC, _by_city, page_size=70) == IDS
    assert world.check_at_end(INDEX, TOPIC, _by_city) == IDS
    assert _figure(world, 'keytide_scan_process_snapshots_total{outcome="pinned"}') >= 8


def test_one_that_stands_still_is_ended_and_one_that_dies_takes_nothing_with_it(world: World) -> None:
    wait_for(lambda: _serving(world), "both answer", 60)
    first, second = _scanning(world)
    with Writer(world.bootstrap, TOPIC, 3, _move, per_second=500):
        with stopped([first]):
            wait_for(lambda: not psutil.pid_exists(first.pid), "it is ended", 30)
        second.kill()
        wait_for(lambda: _serving(world), "others answer", 60)
        assert not {first.pid, second.pid} & {one.pid for one in _scanning(world)}
        for _ in range(4):
            assert world.check(INDEX, TOPIC, _by_city, page_size=70) == IDS
    assert world.check_at_end(INDEX, TOPIC, _by_city) == IDS


def test_they_end_with_their_node(world: World) -> None:
    wait_for(lambda: _serving(world), "both answer", 60)
    before = _scanning(world)
    (parent,) = {one.ppid() for one in before}
    psutil.Process(parent).kill()
    psutil.wait_procs(before, timeout=10)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in before)
    wait_for(lambda: _serving(world), "the node is started again", 120)
    assert world.check_at_end(INDEX, TOPIC, _by_city) == IDS
