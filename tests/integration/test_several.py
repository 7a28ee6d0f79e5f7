"""Three brokers, three coordinators, three nodes: a broker and the coordinator that leads are killed under
writes and scans, and no scan is refused; what was stopped is the same cluster when it is started again."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka.admin import AdminClient

from deploy.cluster import LocalCluster
from deploy.up import UpOptions, remembered
from keytide.cli.admin import Admin, NotReachedError
from keytide.cli.data_folder import read_state
from keytide.errors import RetryableError
from tests.chaos.processes import stopped
from tests.integration.orders import INDEX, TOPIC, Readers, by_customer, order
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(600)]

BEGAN = time.monotonic()
SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "512m",
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "1000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
}


@contextmanager
def running(options: UpOptions) -> Iterator[World]:
    """What `keytide up` runs."""
    asked = remembered(options)
    with (
        LocalCluster(
            asked.data_dir,
            nodes=asked.nodes or 0,
            brokers=asked.brokers or 0,
            coordinators=asked.coordinators or 0,
            replicas=asked.replicas,
            settings=SETTINGS,
            say=lambda line: print(f"{time.monotonic() - BEGAN:.1f} {line}", flush=True),
        ) as cluster,
        World(cluster) as world,
    ):
        yield world


def test_brokers_and_leaders_die_and_nobody_is_refused(tmp_path: Path) -> None:
    with running(UpOptions(tmp_path, nodes=3, brokers=3, coordinators=3, replicas=1)) as world:
        world.make_topic(TOPIC)
        with Writer(world.bootstrap, TOPIC, 1, order) as writer:
            writer.write(6_000)
        definition = "(customer, total DESC) WITH (slices=3, defer_build=true)"
        world.sql(f"CREATE INDEX {INDEX} ON {TOPIC} {definition}")
        _the_leader_of_a_build_stands_still(world)
        assert _copies(world) == {0: 2, 1: 2, 2: 2}
        _replicated(world, in_sync=3)
        with Writer(world.bootstrap, TOPIC, 2, order, per_second=100), Readers(world, range(3)) as readers:
            readers.go_on()
            _a_broker_dies(world, readers)
            _the_leader_dies(world, readers)
            _replicated(world, in_sync=3)
        _check_at_end(world)
        before, number = read_state(tmp_path), _published(world)

    with running(UpOptions(tmp_path)) as world:
        after = read_state(tmp_path)
        assert {**after, "pid": 0, "started_at": 0} == {**before, "pid": 0, "started_at": 0}
        _check_at_end(world)
        wait_for(lambda: _published(world) > number, "numbers go on", 60)
        with Writer(world.bootstrap, TOPIC, 3, order) as writer:
            writer.write(100)
        _check_at_end(world)


def _the_leader_of_a_build_stands_still(world: World) -> None:
    """With its driver, which keeps the lock of their folder; the next one goes on where that was, beside it.
    Then the old driver goes on, too, and the broker dies that has the journal: the build gets on with the new
    one."""
    build = world.build(INDEX, rate_limit=300)
    wait_for(lambda: world.build_state(build)["batches"] > 0, "a micro-batch is done", 90)
    (first,) = _leading(_urls(world))
    left = _urls(world, without=first)
    coordinator = psutil.Process(world.cluster.services[first].pid)
    driver = world.spark()
    assert driver
    with stopped([coordinator]), Admin(list(left.values())) as admin:  # (others wait for who stands still)

        def batches() -> int:
            try:
                return int(admin.call("GET", f"/v1/builds/{build}")["batches"])
            except RetryableError:
                return 0

        with stopped(driver):
            wait_for(lambda: len(_leading(left)) == 1, "another one leads", 60)
            done = wait_for(batches, "it tells of the build")
            wait_for(lambda: batches() > done, "its driver gets on", 90)
        wait_for(lambda: not any(map(_lives, driver)), "who is displaced ends", 60)
        _the_leader_is_killed(world, "builds")
        done = wait_for(batches, "it tells of the build")
        wait_for(lambda: batches() > done, "it gets on without that broker", 90)
    world.throttle(build, None)
    world.wait_ready(build)
    told = "".join(log.read_text() for log in world.cluster.data_dir.glob("logs/coordinator*.log"))
    assert f"driver of {build} started" in told
    assert "begins again" not in told


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)  # (its coordinator, stopped, hears of no end)
    return False


def _a_broker_dies(world: World, readers: Readers) -> None:
    """The one that leads the dictionary, whose work others take over; the supervisor starts it again."""
    number = _published(world)
    back = _the_leader_is_killed(world, "metadata")
    wait_for(lambda: _published(world) > number + 5, "numbers go on without a broker", 90)
    readers.go_on()
    world.sql(f"ALTER INDEX {INDEX} SET (replicas=1)")  # (what changes nothing is written all the same)
    wait_for(back, "it is started again", 60)
    # Without Kafka nobody can follow a leader, and one that is started again would be as soon as those left.
    _replicated(world, in_sync=3)


def _the_leader_is_killed(world: World, topic: str) -> Callable[[], bool]:
    """The broker that leads a topic of the cluster; whether it is back."""
    leader = _topics(world)[f"{world.cluster.name}.{topic}"].partitions[0].leader
    victim = world.cluster.brokers[leader - 1]
    pid = victim.pid
    os.kill(pid, signal.SIGKILL)
    return lambda: victim.running and victim.pid != pid


def _the_leader_dies(world: World, readers: Readers) -> None:
    """Another one leads; any of those that are left takes requests, and so does the one that the supervisor
    brings back."""
    cluster, urls = world.cluster, _urls(world)
    first = _leader(urls)
    number, term = _published(world), _term(urls[first])
    os.kill(cluster.services[first].pid, signal.SIGKILL)
    left = _urls(world, without=first)
    second = _leader(left)
    assert _term(urls[second]) > term
    for name, url in left.items():
        _takes_requests(url, f"by_{name.replace('-', '_')}")
    readers.go_on()
    wait_for(lambda: _published(world) > number, "numbers go on", 60)
    cluster.wait_ready(first)
    assert _leader(urls) != first, "who comes back stands by"
    _takes_requests(urls[first], "by_who_came_back")
    readers.go_on()


def _takes_requests(url: str, index: str) -> None:
    """A change, and a look, by one coordinator."""
    statement = f"CREATE INDEX {index} ON {TOPIC} (total) WITH (slices=1, defer_build=true)"
    with Admin(url) as admin:

        def done() -> bool:
            try:
                admin.call("POST", "/v1/statements", {"statement": statement})
            except RetryableError as error:
                if error.problem_type != "coordinator-stands-by" and not isinstance(error, NotReachedError):
                    raise
                return False  # it has not heard yet who leads, or waited for Kafka in vain and begins anew
            return True

        wait_for(done, f"{url} takes requests", 30)
        assert admin.call("GET", f"/v1/indexes/{index}")["state"] == "DEFERRED"
        wait_for(lambda: admin.health().status != "failing", f"{url} tells that it serves", 60)
        admin.call("DELETE", f"/v1/indexes/{index}")


def _urls(world: World, without: str = "") -> dict[str, str]:
    """Where coordinators answer, by name."""
    cluster = world.cluster
    urls = zip(cluster.coordinators, cluster.coordinator_urls, strict=True)
    return {name: url for name, url in urls if name != without}


def _leading(urls: dict[str, str]) -> list[str]:
    with suppress(httpx.TransportError):
        return [name for name, url in urls.items() if httpx.get(f"{url}/readyz", timeout=10).is_success]
    return []


def _leader(urls: dict[str, str]) -> str:
    """The one that leads, as soon as one does: on a busy machine another one may be on its way."""
    found: list[str] = []

    def leads() -> bool:
        found[:] = _leading(urls)
        return len(found) == 1

    wait_for(leads, "one leads", 90)
    return found[0]


def _term(url: str) -> int:
    return int(httpx.get(f"{url}/readyz", timeout=10).json()["term"])


def _published(world: World) -> int:
    """The newest published number; -1 while nobody leads."""
    try:
        return int(world.admin.call("GET", f"/v1/indexes/{INDEX}")["snapshot"])
    except RetryableError:
        return -1


def _copies(world: World) -> Counter[int]:
    """How many there are of each slice."""
    return Counter(one["slice"] for one in world.admin.call("GET", f"/v1/indexes/{INDEX}")["slice_states"])


def _topics(world: World) -> Any:
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
    return admin.list_topics(timeout=20).topics


def _replicated(world: World, in_sync: int) -> None:
    """Every topic of the cluster, and Kafka's own, lies on all brokers."""

    def whole() -> bool:
        found = {name: one.partitions.values() for name, one in _topics(world).items()}
        assert all(len(part.replicas) == 3 for parts in found.values() for part in parts), found
        return all(len(part.isrs) >= in_sync for parts in found.values() for part in parts)

    wait_for(whole, "all replicas are in sync", 90)


def _check_at_end(world: World) -> None:
    assert world.check_at_end(INDEX, TOPIC, by_customer, (False, True)) > 0
