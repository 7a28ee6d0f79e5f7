"""Processes that stand still for longer than every time-out and then go on as if nothing had been; processes
that are there twice; messages that come twice. No scan differs from the source, and nothing stays stuck."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil
import pytest
from confluent_kafka import KafkaException

from deploy.cluster import LocalCluster
from deploy.process import ChildProcess, free_ports
from keytide.cli.admin import Admin
from keytide.errors import CallerError
from tests.chaos.copies import copy_tails
from tests.chaos.faults import fresh_again
from tests.chaos.processes import Processes, family, send, slow, stopped
from tests.chaos.scene import Scene
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
}
STALL_S = 13.0
"""Longer than the time-outs of nodes (3 s), of projectors' sessions (6 s) and of transactions (10 s)."""
HELD = 500
"""Documents per second of a build that must not be over before something was done to it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(folder, nodes=2, settings=SETTINGS, supervise=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scene(cluster: LocalCluster) -> Iterator[Scene]:
    with Scene(cluster, "stalls", per_second=100) as scene:
        targets = scene.index("city_n", "tag")
        scene.ready(scene.build(targets), targets)
        yield scene


@pytest.fixture(scope="module")
def processes(cluster: LocalCluster) -> Processes:
    return Processes(psutil.Process().pid, cluster.data_dir)


def test_node_and_broker_stand_still(scene: Scene, processes: Processes) -> None:
    for name in ("node-1", "kafka"):
        scene.run.note(f"{name} stands still")
        with stopped(family(processes.services()[name])):
            scene.run.pause(STALL_S)
        scene.look(f"after {name} stood still")


@pytest.mark.parametrize(
    ("name", "kind"), [("node-1", "node"), ("projector-1", "projector"), ("kafka", "kafka")]
)
def test_the_verdict_of_health_tells_of_a_process_that_stands_still(
    scene: Scene, cluster: LocalCluster, processes: Processes, name: str, kind: str
) -> None:
    """What the API, `/readyz` and the metrics say of it; and that all is well soon after it goes on."""
    admin = Admin(cluster.coordinator_url)

    def told(*statuses: str) -> set[str]:
        return {one.kind for one in admin.health().reasons if one.status in statuses}

    wait_for(lambda: not told("degraded", "failing"), "all is well", 60)
    with stopped(family(processes.services()[name])):
        # (That it takes three seconds is shown where time is counted: tests/unit/test_health.py.)
        # Before all of Kafka is suspected, one look at a topic may have failed, which is degraded.
        wait_for(lambda: kind in told("failing"), f"{name} fails in the verdict", 90)
        verdict = admin.health()
        assert verdict.status == "failing"
        assert all(one.next_step for one in verdict.reasons)
        metrics = httpx.get(f"{cluster.coordinator_url}/metrics", timeout=10).text
        assert f'keytide_health_status{{subject_kind="{kind}"}} 2.0' in metrics
        ready = httpx.get(f"{cluster.coordinator_url}/readyz", timeout=10).status_code
        assert ready == (503 if kind == "kafka" else 200)
    wait_for(lambda: not told("degraded", "failing"), f"all is well again after {name}", 60)
    admin.close()
    scene.look(f"after {name} stood still and was told of")


def test_a_projector_that_was_replaced_while_it_stood_still(scene: Scene, processes: Processes) -> None:
    """Another one takes its partitions over and goes on; then the first wakes up with a poll in its hands."""
    first = processes.services()["projector-1"]
    with processes.second_projector() as second:
        with stopped([first]):
            scene.run.pause(STALL_S)
            fresh_again(scene.run, "while the first projector stands still")
            scene.right()
        scene.look("after the first projector woke up")
        with stopped([psutil.Process(second.pid)]):
            scene.run.pause(STALL_S)
        scene.look("after the second projector woke up")
    scene.look("after the second projector was killed")


def test_a_coordinator_that_was_replaced_while_it_stood_still(scene: Scene, cluster: LocalCluster) -> None:
    """The other one leads; the first wakes up, and may still send timestamps of its old term."""
    child = cluster.services["coordinator"]
    (port,) = free_ports(1)
    environment = {
        **(child.env or {}),
        "KEYTIDE_COORDINATOR__PORT": str(port),
        "KEYTIDE_DATA_DIR": str(cluster.data_dir / "coordinator-2"),
    }
    log = cluster.data_dir / "logs" / "coordinator-2.log"
    command = [sys.executable, "-m", "coordinator"]
    with ChildProcess("coordinator-2", command, log=log, env=environment) as second:
        held = psutil.Process(child.pid)
        with stopped([held]):
            second.wait_until(lambda: second.said("ready http"), 60, "leads")
            scene.run.pause(STALL_S)
            fresh_again(scene.run, "while the first coordinator stands still")
            scene.right()
        wait_for(lambda: not child.running, "the first coordinator sees that it was replaced", 30)
        scene.look("after the first coordinator woke up")
        child.start()
        second.kill()
        cluster.wait_ready("coordinator")
    scene.look("after the first coordinator leads again")


def test_a_second_projector_comes_and_dies(scene: Scene, processes: Processes) -> None:
    with processes.second_projector():
        scene.run.pause(3)
        scene.look("with two projectors")
    scene.look("after the second projector was killed")


def test_all_messages_of_the_queues_come_again(scene: Scene, cluster: LocalCluster) -> None:
    for count in (3, 1_000_000):
        copied = copy_tails(cluster.bootstrap, cluster.name, "mutations", count)
        assert copied > 0
        scene.look(f"after {copied} messages came again")


def test_a_backfill_that_comes_again_while_it_goes_on(cluster: LocalCluster) -> None:
    with Scene(cluster, "again", fill=8_000, per_second=100) as scene:
        (target,) = scene.index("by_id")
        build = scene.build([target])
        scene.run.admin("PATCH", f"/v1/builds/{build}", {"rate_limit": HELD})
        copied = times = 0
        while scene.run.build_state(build)["state"] in ("QUEUED", "BACKFILL"):
            if scene.run.build_state(build)["batches"] > 0:
                with suppress(KafkaException, TimeoutError):  # READY meanwhile, and its queue is gone
                    copied += copy_tails(cluster.bootstrap, cluster.name, "backfill", 1_000, target.name)
                times += 1
                if times == 3:
                    with suppress(CallerError):  # it has just read everything
                        scene.run.admin("PATCH", f"/v1/builds/{build}", {"rate_limit": None})
            scene.run.pause(0.5)
        assert copied > 0
        scene.ready(build, [target])
        scene.look("after a build whose chunks came again")
        scene.run.withdraw(target)
        scene.builder.drop(target.name)


def test_folds_that_take_ten_times_as_long(scene: Scene, processes: Processes) -> None:
    """A slow disk, as far as it can be had without a device of one's own: the fold workers, which do all the
    writing that waits for the disk, run for a tenth of the time."""
    over = threading.Event()
    thread = threading.Thread(target=slow, args=(processes.fold_workers, 0.1, over))
    thread.start()
    try:
        deadline = time.monotonic() + 12
        while time.monotonic() < deadline:
            took = scene.look("with slow folds")
            assert took < 30, f"scans waited {took:.1f} s for what was written: folds hold them up"
    finally:
        over.set()
        thread.join()
    scene.look("after slow folds")


def test_everything_is_killed_at_once(scene: Scene, cluster: LocalCluster, processes: Processes) -> None:
    """And comes back in another order than it is started in."""
    send(processes.services().values(), signal.SIGKILL)
    cluster.broker.kill()
    for child in cluster.services.values():
        child.kill()
    for name in ("projector-1", "node-2", "coordinator"):
        cluster.services[name].start()
    cluster.broker.start()
    cluster.services["node-1"].start()
    for name in cluster.services:
        if not cluster.services[name].running:  # without Kafka some give up: a supervisor starts them again
            cluster.services[name].start()
        cluster.wait_ready(name)
    scene.look("after everything was killed")
