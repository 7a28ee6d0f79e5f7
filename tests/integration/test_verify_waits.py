"""A build that verifies, on the real parts: it is steered, and waits for a node that is away."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keytide.errors import KeytideError
from tests.arming import arm
from tests.integration.conftest import Worlds
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__VERIFY": "full",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_VERIFY__RESTARTS": "0",
}
TOPIC, INDEX, DOCUMENTS = "people", "people_city", 2_000
DRIVER = "streaming.verify"


def _person(chance: random.Random, number: int) -> tuple[str, Any]:
    return f"p{number}", {"city": f"c{chance.randrange(100)}"}


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as world:
        world.make_topic(TOPIC)
        with Writer(world.bootstrap, TOPIC, 1, _person, per_second=1) as writer:
            writer.write(DOCUMENTS)
        yield world


def test_a_build_that_verifies_is_throttled_paused_and_waits_for_a_node(world: World, tmp_path: Path) -> None:
    hold = tmp_path / "go"
    arm(world.cluster, "coordinator", f"verify-pinned:hold={hold}")
    world.cluster.restart("coordinator")
    world.sql(f"CREATE INDEX {INDEX} ON {TOPIC} (city) WITH (slices=4, defer_build=true)")
    build = world.build(INDEX)
    wait_for(hold.with_name("go.held").exists, "the build verifies")
    state = world.build_state(build)
    assert (state["state"], state["phase"]) == ("CATCHUP", "verifying")
    assert 50 <= state["percent"] < 100
    job = state["verification"]
    assert world.throttle(build, 500)["rate_limit"] == 500

    state = world.admin.call("POST", f"/v1/builds/{build}/pause")
    assert (state["state"], state["paused_by"]) == ("CATCHUP", "operator")
    wait_for(lambda: not world.processes(DRIVER), "the driver has ended", 60)
    arm(world.cluster, "coordinator", "")
    world.cluster.restart("coordinator")
    wait_for(lambda: "to be resumed" in world.build_state(build)["waiting_for"], "it says what it waits for")
    assert not world.processes(DRIVER), "nor does a restart end the pause"
    node = next(name for name in world.cluster.services if name.startswith("node-"))
    world.cluster.services[node].terminate()
    world.admin.call("POST", f"/v1/builds/{build}/resume")

    def waits() -> bool:
        found: dict[str, Any] = world.admin.call("GET", f"/v1/jobs/{job}")
        assert found["state"] == "RUNNING", found
        return f"log jobs/{job}/driver.log" in found["waiting_for"]

    wait_for(waits, "the job waits for the node")
    assert "verification" in world.build_state(build)["waiting_for"]
    world.cluster.restart(node)
    world.wait_ready(build)
    found = world.admin.call("GET", f"/v1/jobs/{job}")
    assert (found["state"], found["attempts"], found["counts"]) == ("DONE", 1, {})
    with pytest.raises(KeytideError, match="is over"):
        world.admin.call("POST", f"/v1/builds/{build}/pause")
