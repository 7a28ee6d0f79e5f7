"""A build on a real Spark standalone cluster, of a master and two workers: one worker is killed midway."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import pytest

from deploy.cluster import LocalCluster
from deploy.process import ChildProcess
from tests.integration.standalone import StandaloneCluster
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

TOPIC = "trips"
HELD = 200
"""Documents per second: the build takes minutes, and both workers get tasks, however late one of them is."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def world(spark: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {
        "KEYTIDE_BUILD__LOCAL_DOCUMENTS": "0",
        "KEYTIDE_VERIFY__LOCAL_DOCUMENTS": "0",
        "KEYTIDE_BUILD__SPARK_MASTER": spark.master,
        "KEYTIDE_BUILD__DRIVER_MEMORY": "512m",
        "KEYTIDE_BUILD__BATCH_DOCUMENTS": "4000",
        "KEYTIDE_BUILD__SPARK_OPTIONS": '{"spark.driver.host": "127.0.0.1", "spark.executor.memory": "600m"}',
        "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    }
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, settings=settings) as cluster,
        World(cluster) as world,
    ):
        yield world


def _trip(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"t{chance.randrange(5_000)}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {"station": f"s{chance.randrange(40)}", "minutes": chance.randrange(90)}


def _by_start(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["station"], document["minutes"]]


def test_a_worker_that_is_killed_costs_nothing_but_its_tasks(world: World, spark: StandaloneCluster) -> None:
    world.make_topic(TOPIC, 4)
    world.sql(f"CREATE INDEX trips_start ON {TOPIC} (station, minutes) WITH (slices=4, defer_build=true)")
    with Writer(world.bootstrap, TOPIC, 1, _trip, per_second=200) as writer:
        writer.write(40_000)
        build = world.build("trips_start", rate_limit=HELD)
        wait_for(lambda: world.build_state(build)["batches"] > 0, "a micro-batch is done")
        first, second = spark.workers

        def working(worker: ChildProcess) -> list[psutil.Process]:
            return [child for one in spark.executors(worker) for child in one.children(recursive=True)]

        wait_for(lambda: bool(working(first) and working(second)), "tasks run on both workers")
        spark.lose(first)
        state = world.build_state(build)
        assert state["state"] == "BACKFILL", "it was killed in the middle"
        batches = state["batches"]
        world.throttle(build, None)
        state = world.wait_ready(build)
        assert state["batches"] > batches
    world.check_at_end("trips_start", TOPIC, _by_start)
    events = [line["kind"] for line in world.admin.call("GET", "/v1/events")]
    assert "driver-restarted" not in events, "Spark goes on without the worker"
    assert not first.running
    assert second.running
