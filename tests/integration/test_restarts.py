"""kill -9 of each process, during live load and during a build: all finishes, with zero differences."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from deploy.cluster import LocalCluster
from tests.chaos.processes import send
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "4000",
    "KEYTIDE_BUILD__LOCAL_DOCUMENTS": "0",  # by Spark
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "4000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "6000",
}
PARTS = ("node-1", "projector-1", "coordinator", "node-2", "kafka")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        LocalCluster(
            tmp_path_factory.mktemp("cluster"), nodes=2, settings=SETTINGS, supervise=False
        ) as cluster,
        World(cluster) as world,
    ):
        yield world


def _order(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"order{chance.randrange(3_000)}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {
        "customer": f"c{chance.randrange(200)}",
        "total": chance.randrange(10_000),
        "lines": [chance.randrange(50) for _ in range(3)],
    }


def _by_customer(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["customer"], document["total"]]


def _by_line(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    for line in sorted(set(document["lines"])):
        yield [line]


def _create(world: World, name: str) -> list[str]:
    world.make_topic(name)
    options = "(slices=4, defer_build=true)"
    world.sql(f"CREATE INDEX {name}_customer ON {name} (customer, total DESC) WITH {options}")
    world.sql(f"CREATE INDEX {name}_line ON {name} (UNNEST(lines)) WITH {options}")
    return [f"{name}_customer", f"{name}_line"]


def _check(world: World, name: str) -> None:
    assert world.check_at_end(f"{name}_customer", name, _by_customer, (False, True)) > 0
    assert world.check_at_end(f"{name}_line", name, _by_line) > 0


def _kill_and_restart(world: World, part: str) -> None:
    if part == "kafka":
        world.cluster.broker.kill()
        world.cluster.broker.start()
    else:
        world.cluster.kill(part)
        world.cluster.restart(part)


def _wrote(writer: Writer, count: int) -> bool:
    return writer.written > count


def _goes_on(world: World, build: str, documents: int) -> bool:
    state = world.build_state(build)
    return bool(state["documents_done"] > documents or state["state"] == "READY")


def test_each_process_killed_once_during_live_load(world: World) -> None:
    name = "live"
    names = _create(world, name)
    world.wait_ready(world.build(*names))  # of nothing: builds are what the next test is about
    with Writer(world.bootstrap, name, 1, _order) as writer:
        writer.write(3_000)
        for part in PARTS:
            before = writer.written
            _kill_and_restart(world, part)
            wait_for(partial(_wrote, writer, before + 1_000), f"the writer goes on after {part}")
            at_least = {str(p): offset for p, offset in world.ends(name).items()}
            world.scan_all(names[0], at_least=at_least, timeout_ms=60_000)
    _check(world, name)


def test_each_process_killed_once_during_a_build(world: World) -> None:
    name = "build"
    names = _create(world, name)
    with Writer(world.bootstrap, name, 2, _order, per_second=500) as writer:
        writer.write(60_000)
        build = world.build(*names)
        wait_for(lambda: world.build_state(build)["documents_done"] > 0, "the build reads")
        for part in ("spark", *PARTS):
            done = world.build_state(build)["documents_done"]
            if part == "spark":
                send(world.spark(), signal.SIGKILL)
            else:
                _kill_and_restart(world, part)
            wait_for(partial(_goes_on, world, build, done), f"the build goes on after {part} was killed")
        world.wait_ready(build)
    _check(world, name)
