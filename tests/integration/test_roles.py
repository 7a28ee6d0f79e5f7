"""Roles of real nodes: slices move off one that is to scan only, by a rebalance and under writes; those that
hold slices send clients to it, and it reads from them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import pytest

from keytide.client import Client
from tests.integration.conftest import Worlds
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_COORDINATOR__LEAVE_AFTER_S": "5",
    "KEYTIDE_SCAN__LEASE_S": "5",
}
TOPIC, INDEX = "visits", "visits_city"
STATEMENT = f"CREATE INDEX {INDEX} ON {TOPIC} (city, n) WITH (slices=3, defer_build=true)"


def _visit(chance: random.Random, _: int) -> tuple[str, Any]:
    return f"v{chance.randrange(500)}", {"city": f"city{chance.randrange(40)}", "n": chance.randrange(100)}


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["n"]]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    """An index with a slice on each of three nodes."""
    with worlds(SETTINGS, nodes=3, supervise=False) as made:
        made.begin_live(TOPIC, _visit, 2_000, INDEX, STATEMENT)
        yield made


def _start_as(world: World, node: str, roles: str) -> None:
    environment = world.cluster.services[node].env
    assert environment is not None
    environment["KEYTIDE_INDEXER__ROLES"] = roles
    world.cluster.restart(node)
    wait_for(lambda: _shown(world, node)["roles"] == roles.split(","), "it is known", 60)


def _shown(world: World, node: str) -> dict[str, Any]:
    return next(one for one in world.admin.call("GET", "/v1/nodes") if one["id"] == node)


def _said(world: World) -> str:
    return str(world.admin.call("GET", "/v1/health"))


def test_slices_leave_a_node_for_scans_and_clients_are_sent_to_it(world: World) -> None:
    with Writer(world.bootstrap, TOPIC, 2, _visit, per_second=200):
        _start_as(world, "node-1", "scan")
        assert _shown(world, "node-1")["counted"] == 1, "nothing moves by itself"
        wait_for(lambda: "it has not the role index, and 1 copy" in _said(world), "health says so", 60)
        world.check(INDEX, TOPIC, _by_city)
        job = world.admin.call("POST", "/v1/rebalance")
        wait_for(
            lambda: world.admin.call("GET", f"/v1/jobs/{job['id']}")["state"] == "DONE",
            "its slice moves",
            120,
        )
        wait_for(lambda: _shown(world, "node-1")["slices"] == 0, "it has none", 120)
        assert "role index" not in _said(world)
        for node in ("node-2", "node-3"):
            _start_as(world, node, "index")
        one, two, three = world.cluster.node_urls
        refused = httpx.post(f"{two}/v1/indexes/{INDEX}/scan", content=b"{}")
        assert (refused.status_code, refused.json()["type"]) == (421, "scans-elsewhere")
        wait_for(
            lambda: httpx.post(f"{two}/v1/query", content=b"{}").json()["nodes"] == [one],
            "all roles are read",
        )
        assert world.admin.node_urls() == [one]
        with Client([two, three, one]) as client:
            assert client.count(INDEX, timeout_ms=30_000).count > 0
        world.check(INDEX, TOPIC, _by_city)
    assert world.check_at_end(INDEX, TOPIC, _by_city) > 0
    world.cluster.kill("node-1")
    wait_for(lambda: "no indexer node with the role scan is live" in _said(world), "health says so", 60)
