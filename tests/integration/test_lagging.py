"""A slice that falls behind on a node that lives: after `coordinator.lag_limit_ms` nothing waits for it any
more, and when it has caught up it takes part again. (Pacing never gives up here: only that limit does.)"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keytide.errors import KeytideError
from tests.arming import arm
from tests.integration.conftest import Worlds
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(600)]

NEVER_MS = "600000"
SETTINGS = {
    "KEYTIDE_COORDINATOR__LAG_LIMIT_MS": "1000",
    "KEYTIDE_COORDINATOR__PACING_LIMIT_MS": NEVER_MS,
    "KEYTIDE_COORDINATOR__NODE_TIMEOUT_MS": NEVER_MS,
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
}
TOPIC = "people"
NEAR, SPREAD = "near", "spread"


def _person(chance: random.Random, _: int) -> tuple[str, Any]:
    return f"p{chance.randrange(500)}", {"city": f"city{chance.randrange(30)}"}


def _city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"]]


@pytest.fixture
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as world:
        world.make_topic(TOPIC)
        for name, slices in ((NEAR, 1), (SPREAD, 2)):
            world.sql(f"CREATE INDEX {name} ON {TOPIC} (city) WITH (slices={slices}, defer_build=true)")
        world.wait_ready(world.build(NEAR, SPREAD))  # there is nothing to read
        yield world


def _told(world: World, index: str) -> set[str]:
    """Kinds of the events of an index."""
    id_ = world.admin.call("GET", f"/v1/indexes/{index}")["id"]
    return {event["kind"] for event in world.admin.call("GET", "/v1/events") if event["subject"] == id_}


def test_a_slice_that_lags_is_not_waited_for_until_it_has_caught_up(world: World, tmp_path: Path) -> None:
    cluster, release = world.cluster, tmp_path / "go"
    ((fast,),) = world.admin.call("GET", f"/v1/indexes/{NEAR}")["placement"]
    (slow,) = {"node-1", "node-2"} - {fast}
    arm(cluster, slow, f"delta-before-commit:hold={release}:20")
    cluster.restart(slow)
    wait_for(cluster.nodes_live, "nodes live")
    with Writer(world.bootstrap, TOPIC, 5, _person, per_second=200) as writer:
        try:
            wait_for(release.with_name("go.held").exists, "the slow node stands in a commit", 60)
            writer.write(2_000)
            assert world.check_at_end(NEAR, TOPIC, _city) > 0, "nothing waits"
            wait_for(lambda: "slice-lags" in _told(world, SPREAD), "it is told", 60)
            assert "slice-lags" not in _told(world, NEAR)
            assert "slice-caught-up" not in _told(world, SPREAD)
            ends = {str(partition): end for partition, end in world.ends(TOPIC).items()}
            with world.client(int(fast[-1]) - 1) as client, pytest.raises(KeytideError) as late:
                client.count(SPREAD, at_least=ends, timeout_ms=500)
            assert late.value.status == 504, "what lags is not shown as if it did not"
        finally:
            release.touch()
        wait_for(lambda: "slice-caught-up" in _told(world, SPREAD), "it takes part again", 60)
        for name in (NEAR, SPREAD):
            assert world.check_at_end(name, TOPIC, _city) > 0
