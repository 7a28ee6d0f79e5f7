"""The crash matrix (acceptance 2): a process dies at a named place in its code, as by kill -9, while
documents are written and scanned, and while an index is built. It is started again; everything finishes, no
scan differs from the source, and no build begins from its beginning. Under live load there is an index of
each kind; the builds, rollbacks and verifications that are struck are of btrees.

`KEYTIDE_MATRIX=all` strikes at every place, the first and the second time that it is reached; without it, the
places that have failed in other systems.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.cluster import LocalCluster
from keytide.kafka.admin import admin, list_offsets
from keytide.process.sync_points import POINTS
from keytide.settings.settings import load_settings
from tests.arming import arm
from tests.chaos.run import Target
from tests.chaos.scene import Batches, Scene
from tests.chaos.shapes import SHAPES
from tests.chaos.truncating import cut
from tests.share import WHOLE_MATRIX
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "1000",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "1000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
    "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "6000",
    "KEYTIDE_PROJECTOR__COMMIT_INTERVAL_MS": "300",
}
FOLD_WORKER = frozenset(
    {
        *("fold-undo-written", "fold-filter-moved", "fold-before-commit", "fold-committed"),
        "fold-checksums-written",
    }
)
"""Places in the fold worker: the node lives, and starts another."""
OF_JOBS = frozenset(name for name in POINTS if name.startswith("verify-"))
ELSEWHERE = frozenset(
    name for name in POINTS if name.startswith(("repair-", "sample-", "examine-", "fold-filter-read"))
)
"""Places that need more than a live scene: `test_repair.py` and `test_range.py` strike there, and
`unit/test_store_killed.py` within read transactions of other processes than the node."""
OF_ROLLBACKS = frozenset(name for name in POINTS if "roll" in name or "step-back" in name)
ONCE = frozenset(
    {
        *("coordinator-build-end", "driver-passed", "coordinator-rollback-decided", "projector-rolled-back"),
        *OF_JOBS,
    }
)
"""Places that one process reaches once in a build, in a rollback, or in a verification."""
AT_THE_END = ("switch-over", "snapshot-acknowledged", "coordinator-build-end")
"""Places near which a build may get READY before it is looked at."""
OF_BUILDS = frozenset(name for name in POINTS if name.startswith(("driver-", "load-"))) | {
    "switch-over",
    "coordinator-build-end",
}
DRIVERS = ("driver", "verify")
"""How places in processes that the coordinator starts, and starts again, are called."""
LIVE = POINTS - OF_ROLLBACKS - OF_BUILDS - OF_JOBS - ELSEWHERE
SAMPLE_LIVE = [
    ("projector-acknowledged", 1),
    ("fold-committed", 1),
]
SAMPLE_BUILDING = [
    ("driver-before-batch-end", 2),
    ("switch-over", 2),
]
SAMPLE_JOBS = [("verify-done", 1)]
CUT, LOST = 1, 300
"""The source partition that loses records, and how many: fewer than come after the build, or that begins
again."""
SAMPLE_ROLLBACK = [("step-back-half", 1)]
EACH_KIND = ("tag", "hashed", "placed", "spread")
"""Shapes: a btree, a hash, a spatial and a subpartitioned index."""


def _cells(points: Iterable[str]) -> list[tuple[str, int]]:
    return [(point, count) for point in sorted(points) for count in (1, 2) if count == 1 or point not in ONCE]


ALL_ROLLBACKS = [("", 0), *_cells(OF_ROLLBACKS)]


def part_of(point: str) -> str:
    """The part of the cluster that is armed for a place: the one that reaches it, or starts what does."""
    first = point.split("-")[0]
    parts = {"projector": "projector-1", **dict.fromkeys(("coordinator", *DRIVERS), "coordinator")}
    return parts.get(first, "node-1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(folder, nodes=2, settings=SETTINGS, supervise=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scene(cluster: LocalCluster) -> Iterator[Scene]:
    with Scene(cluster, "matrix") as scene:
        targets = scene.index(*EACH_KIND)
        scene.ready(scene.build(targets), targets)
        yield scene


class Strike:
    """Arms a part by starting it again, waits until something in it has died at the place, and lets the part
    live on."""

    def __init__(self, scene: Scene, point: str, count: int, folder: Path) -> None:
        self._cluster = scene.cluster
        self._scene = scene
        self._part = part_of(point)
        self._point = point
        self._struck = folder / f"{point}-{count}"
        self._armed = f"{point}:once={self._struck}:{count}"

    @property
    def struck(self) -> bool:
        return self._struck.exists()

    def arm(self) -> None:
        """Start the part again, armed, and wait until nodes are known to live: slices are to lie on them."""
        self._scene.run.note(f"arming {self._part} with {self._armed}")
        arm(self._cluster, self._part, self._armed)
        child = self._cluster.services[self._part]
        child.terminate()
        child.start()
        wait_for(lambda: self.struck or self._cluster.nodes_live(), "all nodes live", 90)

    def recover(self) -> None:
        """After the strike: the part is started again if it died; what is only below it comes by itself."""
        child = self._cluster.services[self._part]
        if self._point not in FOLD_WORKER and not self._point.startswith(DRIVERS):
            wait_for(lambda: not child.running, f"{self._part} is dead", 10)
        self._scene.run.note(f"{self._point} was struck")
        arm(self._cluster, self._part, "")
        if not child.running:
            child.start()
        self._cluster.wait_ready(self._part)


@contextmanager
def provoked(scene: Scene, strike: Strike, point: str) -> Iterator[None]:
    """While the block runs, the coordinator has to write its dictionary, if that is what the place needs."""
    over = threading.Event()

    def work() -> None:
        while not strike.struck and not over.is_set():
            scene.builder.create(f"{scene.keyspace}_provoked", SHAPES["city"], 1)
            scene.builder.drop(f"{scene.keyspace}_provoked")

    thread = threading.Thread(target=scene.run.guarded(work), daemon=True)
    if point.endswith("-write"):
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(60)


def _recovered(scene: Scene, strike: Strike, point: str, count: int) -> None:
    with provoked(scene, strike, point):
        wait_for(lambda: strike.struck, f"{point} is reached for the {count}. time", 240)
        strike.recover()


@pytest.mark.parametrize(("point", "count"), _cells(LIVE) if WHOLE_MATRIX else SAMPLE_LIVE)
def test_a_crash_during_live_load(scene: Scene, point: str, count: int, tmp_path: Path) -> None:
    strike = Strike(scene, point, count, tmp_path)
    strike.arm()
    _recovered(scene, strike, point, count)
    took = scene.look(f"after a crash at {point}")
    print(f"{point}:{count} fresh again after {took:.1f} s")


@pytest.mark.parametrize(("point", "count"), _cells(LIVE | OF_BUILDS) if WHOLE_MATRIX else SAMPLE_BUILDING)
def test_a_crash_during_a_build(cluster: LocalCluster, point: str, count: int, tmp_path: Path) -> None:
    with Scene(cluster, f"{point}-{count}".replace("-", "_"), fill=6_000, per_second=100) as scene:
        (target,) = scene.index("by_id")
        strike = Strike(scene, point, count, tmp_path)
        if point in OF_BUILDS:
            strike.arm()
        build = scene.build([target])
        with Batches(cluster, build) as batches:
            if point not in OF_BUILDS:
                wait_for(lambda: scene.run.build_state(build)["documents_done"] > 0, "the build reads", 300)
                strike.arm()
            _recovered(scene, strike, point, count)
            struck_in = scene.run.build_state(build)["state"]
            scene.ready(build, [target])
            assert batches.again() <= 1, f"done again after a crash: {batches.runs}"
        assert struck_in != "READY" or point in AT_THE_END, "struck too late"
        scene.look(f"after a crash at {point} in a build")
        scene.run.withdraw(target)
        scene.builder.drop(target.name)


@pytest.mark.parametrize(("point", "count"), _cells(OF_JOBS) if WHOLE_MATRIX else SAMPLE_JOBS)
def test_a_crash_during_a_verification(scene: Scene, point: str, count: int, tmp_path: Path) -> None:
    """Another driver does the work of the one that died; what it held is let go."""
    strike = Strike(scene, point, count, tmp_path)
    strike.arm()
    target = scene.run.targets()[0]
    job = scene.run.admin("POST", f"/v1/indexes/{target.name}/verify", {})["id"]
    _recovered(scene, strike, point, count)
    seen: dict[str, Any] = {}

    def over() -> bool:
        seen.update(scene.run.admin("GET", f"/v1/jobs/{job}"))
        return seen["state"] in ("DONE", "FAILED", "CANCELLED")

    wait_for(over, "the verification is over", 240)
    assert (seen["state"], seen["clean"]) == ("DONE", True), seen
    scene.look(f"after a crash at {point}")


@pytest.mark.parametrize(("point", "count"), ALL_ROLLBACKS if WHOLE_MATRIX else SAMPLE_ROLLBACK)
def test_a_crash_during_a_rollback(cluster: LocalCluster, point: str, count: int, tmp_path: Path) -> None:
    """The source loses acknowledged records that bases hold already."""
    name = f"rollback_{point}_{count}".replace("-", "_")
    with Scene(cluster, name, per_second=150, readers=0) as scene:
        targets = scene.index("city_n", "tag")
        scene.ready(scene.build(targets), targets)
        ready = _end(scene)
        strike = Strike(scene, point, count, tmp_path) if point else None
        if strike is not None:
            strike.arm()
        scene.run.pause(6)  # folds bring to the bases what will be lost
        wait_for(lambda: _end(scene) > ready + LOST, "no more is lost than was written since", 120)
        scene.look("before the loss")
        cluster.broker.kill()
        lost = cut(cluster.data_dir / "kafka" / "data", name, CUT, LOST)
        cluster.broker.start()
        scene.run.note(f"{name}[{CUT}] ends at {lost.end}, and ended at {lost.had}")
        wait_for(lambda: strike is None or strike.struck, f"{point} is reached for the {count}. time", 240)
        if strike is not None:
            strike.recover()
        wait_for(lambda: _incarnation(scene) == 1, "the keyspace is rolled back", 90)
        # (A node that has not read of it may answer from what was lost, and is in the source no more.)
        wait_for(lambda: _followed(scene, targets), "every node has read of the rollback", 90)
        scene.renew()
        scene.look("after a rollback")
        for target in targets:
            scene.run.withdraw(target)
            scene.builder.drop(target.name)


def _end(scene: Scene) -> int:
    """Where the source partition that will be cut ends."""
    with admin(load_settings(kafka={"bootstrap": scene.run.bootstrap})) as client:
        return list_offsets(client, scene.keyspace, [CUT])[CUT]


def _followed(scene: Scene, targets: list[Target]) -> bool:
    """Whether every slice says that it is of the new incarnation."""
    documents = [scene.run.admin("GET", f"/v1/indexes/{target.name}") for target in targets]
    parts = [part["incarnation"] for document in documents for part in document["slice_states"]]
    return len(parts) > 0 and all(incarnation == 1 for incarnation in parts)


def _incarnation(scene: Scene) -> int:
    keyspaces = scene.run.admin("GET", "/v1/stability")["keyspaces"]
    return int(keyspaces[scene.keyspace]["incarnation"])
