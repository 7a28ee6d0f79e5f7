"""Full disks: under a node, under the coordinator's builds, under Kafka. What cannot be written waits and
says why, scans go on, and everything goes on by itself when there is room, with zero differences.

Each of the three has a small tmpfs of its own, filled with ballast. Mounting needs root: without it the tests
are skipped, and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from deploy.cluster import LocalCluster
from tests.chaos.scene import Scene
from tests.integration.disks import MIB, NODE_RESERVE, SmallDisk
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "1000",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__DRIVER_DISK_FREE_BYTES": str(64 * MIB),
    "KEYTIDE_BUILD__NODE_DISK_FREE_BYTES": str(300 * MIB),
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "1000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
    "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "6000",
}


Disks = dict[str, SmallDisk]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    folder = tmp_path_factory.mktemp("cluster")
    disks = {
        "node": SmallDisk(folder / "node-1", NODE_RESERVE + 300 * MIB),
        "builds": SmallDisk(folder / "coordinator" / "builds", 300 * MIB),
        "kafka": SmallDisk(folder / "kafka", 600 * MIB),
    }
    with ExitStack() as stack:
        for disk in disks.values():
            disk.mount()
            stack.callback(disk.unmount)
        yield disks


@pytest.fixture(scope="module")
def cluster(disks: Disks) -> Iterator[LocalCluster]:
    folder = disks["node"].folder.parent
    with LocalCluster(folder, nodes=2, settings=SETTINGS, supervise=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scene(cluster: LocalCluster) -> Iterator[Scene]:
    with Scene(cluster, "disks", per_second=100) as scene:
        targets = scene.index("city_n", "tag")
        scene.ready(scene.build(targets), targets)
        yield scene


def _reasons(scene: Scene) -> list[str]:
    """What the slices of the indexes say that they wait for."""
    names = [target.name for target in scene.run.targets()]
    states = [one for name in names for one in scene.run.admin("GET", f"/v1/indexes/{name}")["slice_states"]]
    return [reason for state in states if (reason := _reason(state))]


def _reason(state: dict[str, Any]) -> str:
    return " ".join(str(state.get(name) or "") for name in ("reason", "waiting_for")).strip()


def _answered(scene: Scene) -> None:
    """Scans of what is published go on."""
    for number, target in enumerate(scene.run.targets()):
        with scene.run.client(number) as client:
            assert client.count(target.name, timeout_ms=5_000).count > 0


@pytest.mark.parametrize("left", [150 * MIB, 20 * MIB], ids=["deltas", "deltas and bases"])
def test_a_node_with_a_full_disk(scene: Scene, disks: Disks, left: int) -> None:
    with disks["node"].full(left):
        wait_for(
            lambda: any("room" in reason for reason in _reasons(scene)), "the slices say why they wait", 240
        )
        _answered(scene)
    scene.look("after the node's disk was full")
    wait_for(lambda: not _reasons(scene), "the slices wait for nothing any more", 240)


def test_a_node_that_is_killed_while_its_disk_is_full(
    scene: Scene, disks: Disks, cluster: LocalCluster
) -> None:
    with disks["node"].full(20 * MIB):
        wait_for(
            lambda: any("room" in reason for reason in _reasons(scene)), "the slices say why they wait", 240
        )
        cluster.services["node-1"].kill()
        cluster.services["node-1"].start()
        cluster.wait_ready("node-1")
    scene.look("after a node was killed on a full disk")


@pytest.mark.parametrize(
    ("disk", "left", "words"),
    [
        ("builds", 0, "builds is full"),
        ("node", 150 * MIB, "the disk of node node-1 is full"),
        ("kafka", 150 * MIB, "of Kafka's broker 1 is full"),
    ],
)
def test_15_a_build_pauses_on_a_full_disk(
    scene: Scene, disks: Disks, disk: str, left: int, words: str
) -> None:
    """In mid-read: it says why, scans go on, and it goes on by itself when there is room."""
    (target,) = scene.index("by_id")
    build = scene.build([target])
    scene.run.admin("PATCH", f"/v1/builds/{build}", {"rate_limit": 100})
    wait_for(lambda: scene.run.build_state(build)["documents_done"] > 0, "it reads", 240)
    with disks[disk].full(left):
        wait_for(lambda: scene.run.build_state(build)["state"] == "PAUSED", "it pauses", 240)
        state = scene.run.build_state(build)
        assert state["paused_by"] == "system"
        assert words in state["paused"]
        _answered(scene)
        kinds = {(one["kind"], one["subject"]) for one in scene.run.admin("GET", "/v1/events")}
        assert ("build-paused", build) in kinds
    scene.run.admin("PATCH", f"/v1/builds/{build}", {"rate_limit": None})
    scene.ready(build, [target])
    scene.look("after a build on a full disk")
    scene.run.withdraw(target)
    scene.builder.drop(target.name)


def test_a_build_does_not_begin_on_a_full_disk(scene: Scene, disks: Disks) -> None:
    (target,) = scene.index("by_id")
    with disks["builds"].full(0):
        build = scene.build([target])
        wait_for(lambda: "is full" in _why(scene, build), "it says what it lacks", 240)
        assert scene.run.build_state(build)["state"] in ("QUEUED", "PAUSED")
    scene.ready(build, [target])
    scene.run.withdraw(target)
    scene.builder.drop(target.name)


def _why(scene: Scene, build: str) -> str:
    """What a build waits for, or pauses for."""
    state = scene.run.build_state(build)
    return f"{state['waiting_for']} {state['paused']}"


def test_kafka_on_a_full_disk(scene: Scene, disks: Disks, cluster: LocalCluster) -> None:
    """A broker whose only disk is full ends itself. Nothing moves, and scans of what is published go on."""
    with disks["kafka"].full(0):
        wait_for(lambda: not cluster.broker.running, "the broker gives up", 240)
        _answered(scene)
        for child in cluster.services.values():
            assert child.running, f"{child.name} ended: {child.tail()}"
    cluster.broker.start()
    scene.look("after Kafka's disk was full")
