"""Slices whose data is lost are rebuilt alone, by Spark, under live writes: the folder is gone, a file is
damaged, or the node was away for longer than its queues reach back. Everything else goes on meanwhile: other
slices get their snapshots, another index stays fresh, and none of their files is made anew."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaConsumer, TopicPartition

from deploy.cluster import LocalCluster
from keytide.cli.admin import Admin
from keytide.errors import KeytideError, RetryableError
from keytide.model.topics import Topics
from keytide.settings.settings import load_settings
from tests.chaos.processes import send
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

RETENTION_S = 20
"""A node that is killed and started again is back within it, also on a busy machine."""
SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "5000",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "4000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_COORDINATOR__REBUILD_WAIT_S": "5",  # all slices of a node are LOST within it
    "KEYTIDE_COORDINATOR__TRIM_INTERVAL_S": "1",
    "KEYTIDE_TOPICS__QUEUE_RETENTION_S": str(RETENTION_S),
}
TOPIC = "orders"
MARK = "mark-of-the-test"
BY_CUSTOMER, BY_LINE = "orders_customer", "orders_line"
SLICES = 4

Slice = tuple[str, int]
"""(index name, number)."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two READY indexes, each on both nodes."""
    with (
        LocalCluster(
            tmp_path_factory.mktemp("cluster"), nodes=2, settings=SETTINGS, supervise=False
        ) as cluster,
        World(cluster) as world,
    ):
        world.make_topic(TOPIC)
        options = f"(slices={SLICES}, defer_build=true)"
        world.sql(f"CREATE INDEX {BY_CUSTOMER} ON {TOPIC} (customer, total DESC) WITH {options}")
        world.sql(f"CREATE INDEX {BY_LINE} ON {TOPIC} (UNNEST(lines)) WITH {options}")
        world.wait_ready(world.build(BY_CUSTOMER, BY_LINE))
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


def _goes_on(world: World, build: str, documents: int) -> bool:
    state = world.build_state(build)
    return bool(state["documents_done"] > documents or state["state"] == "READY")


def _check_line(world: World) -> None:
    assert world.check_at_end(BY_LINE, TOPIC, _by_line) > 0


def _check_all(world: World) -> None:
    assert world.check_at_end(BY_CUSTOMER, TOPIC, _by_customer, (False, True)) > 0
    _check_line(world)


class Scene:
    """What the cluster says of its slices and rebuilds, and the folders of slices on disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.admin: Admin = world.admin
        self.ids: dict[str, str] = {
            name: self.admin.call("GET", f"/v1/indexes/{name}")["id"] for name in (BY_CUSTOMER, BY_LINE)
        }
        self._builds = {build["id"] for build in self._all_builds()}

    def slices(self) -> dict[Slice, dict[str, Any]]:
        """What the coordinator tells of each slice; empty while it is away."""
        try:
            told = self.admin.call("GET", "/v1/topology")["indexes"]
        except RetryableError:
            return {}
        return {(index["name"], one["slice"]): one for index in told for one in index["slices"]}

    def lost(self) -> dict[Slice, str]:
        """The slices that are LOST, with the reason that is told."""
        return {key: one["reason"] for key, one in self.slices().items() if one["state"] == "LOST"}

    def snapshots(self) -> dict[Slice, int]:
        return {key: one["snapshot"] or -1 for key, one in self.slices().items()}

    def node_of(self, key: Slice) -> str:
        return str(self.slices()[key]["node"])

    def folder(self, key: Slice) -> Path:
        node = self.node_of(key)
        nodes = self.world.cluster.data_dir / node / "nodes"
        return nodes / node / "slices" / self.ids[key[0]] / str(key[1])

    def mark(self) -> None:
        """Leave a file beside the base of every slice: it is gone where the folder is made anew."""
        for key in self.slices():
            (self.folder(key) / "base" / MARK).touch()

    def unmarked(self) -> set[Slice]:
        """The slices whose folders were made anew since `mark`."""
        return {key for key in self.slices() if not (self.folder(key) / "base" / MARK).exists()}

    def _all_builds(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self.admin.call("GET", "/v1/builds")
        except RetryableError:
            return []
        return found

    def rebuilds(self) -> list[dict[str, Any]]:
        """Builds that were begun since this was made."""
        return [build for build in self._all_builds() if build["id"] not in self._builds]

    def wait_rebuild(self) -> str:
        """The id of the one rebuild, once it reads."""
        wait_for(lambda: any(one["documents_done"] for one in self.rebuilds()), "a rebuild reads")
        (build,) = self.rebuilds()
        return str(build["id"])

    def others_go_on(self, lost: set[Slice]) -> None:
        """Every slice that is not lost gets new snapshots."""
        before = self.snapshots()

        def advanced() -> bool:
            now = self.snapshots()
            return all(now.get(key, -1) > number for key, number in before.items() if key not in lost)

        wait_for(advanced, "the other slices get snapshots")

    def check_over(self, build: str, lost: set[Slice]) -> None:
        """The rebuild is READY, filled these slices only, and nothing of the others was made anew."""
        state = self.world.wait_ready(build)
        assert {(name, number) for name, numbers in state["slices"].items() for number in numbers} == lost
        assert [one["id"] for one in self.rebuilds()] == [build]
        told = self.slices()
        assert {key for key, one in told.items() if one["build"] == build} == lost
        assert {one["state"] for one in told.values()} == {"LIVE"}
        assert self.unmarked() == lost


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


def test_a_lost_folder_is_rebuilt_alone_whoever_dies_meanwhile(world: World, scene: Scene) -> None:
    """kill -9 of the Spark driver and of the coordinator in the middle of it."""
    key = (BY_CUSTOMER, 1)
    with Writer(world.bootstrap, TOPIC, 3, _order, per_second=200) as writer:
        writer.write(25_000)
        _check_all(world)
        node, folder = scene.node_of(key), scene.folder(key)
        scene.mark()
        world.cluster.kill(node)
        shutil.rmtree(folder)
        world.cluster.restart(node)
        wait_for(lambda: key in scene.lost(), "the slice is LOST")
        assert "not on this node" in scene.lost()[key]
        with pytest.raises(KeytideError) as refused, world.client() as client:
            client.page(BY_CUSTOMER, limit=1, timeout_ms=1_000)
        assert refused.value.problem_type == "index-not-ready"

        build = scene.wait_rebuild()
        with world.spark_held():
            manners = {process.nice() - psutil.Process().nice() for process in world.spark()}
            assert manners == {load_settings().build.rebuild_nice}, "it stands back less than a build"
            scene.others_go_on({key})
            _check_line(world)
        send(world.spark(), signal.SIGKILL)
        done = world.build_state(build)["documents_done"]
        wait_for(lambda: _goes_on(world, build, done), "the rebuild goes on")
        world.cluster.kill("coordinator")
        world.cluster.restart("coordinator")
        scene.check_over(build, {key})
        _check_line(world)
    _check_all(world)


def test_a_damaged_file_is_noticed_and_its_slice_rebuilt_alone(world: World, scene: Scene) -> None:
    """One byte of every page is another, under a stopped node."""
    key = (BY_LINE, 2)
    with Writer(world.bootstrap, TOPIC, 4, _order, per_second=200) as writer:
        writer.write(5_000)
        _check_all(world)
        node = scene.node_of(key)
        scene.mark()
        world.cluster.kill(node)
        _damage(scene.folder(key) / "base" / "data.mdb")
        world.cluster.restart(node)
        wait_for(lambda: key in scene.lost(), "the slice is LOST")
        build = scene.wait_rebuild()
        scene.others_go_on({key})
        scene.check_over(build, {key})
    _check_all(world)


def test_a_node_that_was_away_longer_than_its_queues_reach_is_rebuilt(world: World, scene: Scene) -> None:
    """All slices of the node, of both indexes, by one read of the source; nobody else waits."""
    node = scene.node_of((BY_CUSTOMER, 0))
    lost = {key for key, one in scene.slices().items() if one["node"] == node}
    assert {name for name, _ in lost} == {BY_CUSTOMER, BY_LINE}
    with Writer(world.bootstrap, TOPIC, 5, _order, per_second=200) as writer:
        writer.write(5_000)
        _check_all(world)
        scene.mark()
        world.cluster.kill(node)
        _wait_trimmed(world, scene, lost)
        scene.others_go_on(lost)
        world.cluster.restart(node)
        wait_for(lambda: set(scene.lost()) == lost, "the slices are LOST")
        assert all("away for longer" in reason for reason in scene.lost().values()), scene.lost()
        build = scene.wait_rebuild()
        scene.others_go_on(lost)
        scene.check_over(build, lost)
    _check_all(world)


def _damage(file: Path) -> None:
    """Change one byte of every page that has data, but for the two meta pages."""
    with file.open("r+b") as data:
        for page in range(2, file.stat().st_blocks * 512 // 4096):
            data.seek(page * 4096 + 100)
            byte = data.read(1)
            data.seek(page * 4096 + 100)
            data.write(bytes([byte[0] ^ 0xFF]))


def _wait_trimmed(world: World, scene: Scene, slices: set[Slice]) -> None:
    """Wait until everything that is in the mutation queues of these slices now is deleted, and more."""
    topics = Topics(world.cluster.name)
    places = [TopicPartition(topics.mutations(scene.ids[name]), number) for name, number in slices]
    consumer = KafkaConsumer(bootstrap_servers=world.bootstrap)
    ends = consumer.end_offsets(places)

    def trimmed() -> bool:
        begins = consumer.beginning_offsets(places)
        return all(begins[place] > ends[place] for place in places)

    wait_for(trimmed, "what the node would read next is deleted", 10 * RETENTION_S)
    consumer.close()
