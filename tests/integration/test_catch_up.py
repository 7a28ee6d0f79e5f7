"""A node that was away reads its queues from where it had come to, and nobody waits for it meanwhile: another
node's index stays fresh, and stability timestamps come as ever."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from deploy.cluster import LocalCluster
from keytide.cli.admin import Admin
from keytide.errors import HistoryChangedError
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "4000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_COORDINATOR__NODE_TIMEOUT_MS": "5000",
}
TOPIC = "people"
AWAY_DOCUMENTS = 15_000
"""Written while the node is away: more than a delta, and for longer than the node time-out."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`near` lies on node-1, `far` on node-2: no other was there when they were built."""
    with (
        LocalCluster(
            tmp_path_factory.mktemp("cluster"), nodes=2, settings=SETTINGS, supervise=False
        ) as cluster,
        World(cluster) as world,
    ):
        admin = world.admin
        world.make_topic(TOPIC)
        builds = [_build_without(world, "near", "node-2"), _build_without(world, "far", "node-1")]
        for build in builds:
            world.wait_ready(build)
        for index, node in (("near", "node-1"), ("far", "node-2")):
            assert admin.call("GET", f"/v1/indexes/{index}")["placement"] == [[node]] * 2
        yield world


def _build_without(world: World, index: str, away: str) -> str:
    """Build an index while a node is away; the build's id. Both nodes are live afterwards."""
    world.cluster.kill(away)
    wait_for(lambda: away not in _live(world.admin), f"{away} is missed")
    statement = f"CREATE INDEX {index} ON {TOPIC} (city, age DESC) WITH (slices=2)"
    build = str(world.sql(statement)["build"])
    world.wait_ready(build)
    world.cluster.restart(away)
    wait_for(lambda: _live(world.admin) == {"node-1", "node-2"}, f"{away} is there")
    return build


def _live(admin: Admin) -> set[str]:
    return {node["id"] for node in admin.call("GET", "/v1/nodes") if node["live"]}


def _person(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"p{chance.randrange(2_000)}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {"city": f"c{chance.randrange(50)}", "age": chance.randrange(100)}


def _keys(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["age"]]


def _kill(world: World) -> None:
    world.cluster.kill("node-2")


def _restart(world: World) -> None:
    world.cluster.restart("node-2")


def _stop(world: World) -> None:
    os.kill(world.cluster.services["node-2"].pid, signal.SIGSTOP)


def _go_on(world: World) -> None:
    os.kill(world.cluster.services["node-2"].pid, signal.SIGCONT)


@pytest.mark.parametrize(("leave", "come_back"), [(_kill, _restart), (_stop, _go_on)])
def test_a_node_that_was_away_reads_its_queue_and_nobody_waits(
    world: World, leave: Callable[[World], None], come_back: Callable[[World], None]
) -> None:
    admin = world.admin
    builds = admin.call("GET", "/v1/builds")
    with Writer(world.bootstrap, TOPIC, 5, _person) as writer:
        writer.write(2_000)
        world.check_at_end("far", TOPIC, _keys, (False, True))
        leave(world)
        try:
            # From the first moment on: before the node is missed it holds nobody back for long either.
            before, written = _snapshot(admin), writer.written
            for _ in range(5):
                ends = {str(p): offset for p, offset in world.ends(TOPIC).items()}
                world.scan_all("near", at_least=ends, timeout_ms=60_000)
            wait_for(lambda: writer.written > written + AWAY_DOCUMENTS, "the writer goes on")
            wait_for(lambda: "node-2" not in _live(admin), "node-2 is missed")
            world.check_at_end("near", TOPIC, _keys, (False, True))
            assert _snapshot(admin) > before
        finally:
            come_back(world)
        ends = {str(p): offset for p, offset in world.ends(TOPIC).items()}
        world.scan_all("far", node=1, at_least=ends, timeout_ms=60_000)
    for index in ("near", "far"):
        assert world.check_at_end(index, TOPIC, _keys, (False, True)) > 0
    wait_for(lambda: _states(admin) == {"LIVE"}, "all slices are LIVE")
    assert admin.call("GET", "/v1/builds") == builds, "nothing was built again"


def test_a_topic_that_was_made_anew_is_read_at_once(world: World) -> None:
    """After restarts of the broker the old topic's leader epochs were larger than the new one's are."""
    for number in range(2):
        world.cluster.broker.kill()
        world.cluster.broker.start()
        with Writer(world.bootstrap, TOPIC, number, _person) as writer:
            writer.write(100)
        world.check_at_end("near", TOPIC, _keys, (False, True))
    kafka = AdminClient({"bootstrap.servers": world.bootstrap})
    kafka.delete_topics([TOPIC])[TOPIC].result(timeout=30)
    wait_for(lambda: TOPIC not in kafka.list_topics(timeout=10).topics, "the topic is gone")
    world.make_topic(TOPIC)
    world.sources.pop(TOPIC).close()
    with Writer(world.bootstrap, TOPIC, 9, _person) as writer:
        writer.write(500)
    admin = world.admin
    wait_for(lambda: admin.call("GET", "/v1/stability")["keyspaces"][TOPIC]["incarnation"] == 1, "a rollback")
    ends = {str(p): offset for p, offset in world.ends(TOPIC).items()}
    for index in ("near", "far"):
        wait_for(partial(_follows, world, index, ends), f"{index} follows the new topic")
        assert world.check_at_end(index, TOPIC, _keys, (False, True)) > 0


def _follows(world: World, index: str, ends: dict[str, int]) -> bool:
    """Whether a scan of several pages ends. (A node that does not know of the rollback yet answers the first
    from the history before; the next one says so.)"""
    try:
        world.scan_all(index, at_least=ends, timeout_ms=60_000)
    except HistoryChangedError:
        return False
    return True


def _states(admin: Admin) -> set[str]:
    """The states of all slices."""
    indexes = admin.call("GET", "/v1/topology")["indexes"]
    return {one["state"] for index in indexes for one in index["slices"]}


def _snapshot(admin: Admin) -> int:
    return int(admin.call("GET", "/v1/stability")["keyspaces"][TOPIC]["snapshot"])
