"""Slices with two copies on three nodes: no scan is refused while one of them lives, whoever is killed or
stands still; a copy that has lost its disk is filled from the other one, without Spark, under live writes;
copies are added and taken away, and move, while the index serves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from deploy.cluster import LocalCluster
from keytide.catalog.records import IndexRecord
from keytide.cli import rolling
from keytide.client import Page
from keytide.errors import KeytideError, RetryableError
from tests.chaos.processes import stopped
from tests.integration.orders import INDEX, TOPIC, Follower, Readers, by_customer, order
from tests.integration.world import World, Writer
from tests.share import WHOLE_MATRIX
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(600)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_COORDINATOR__TRIM_INTERVAL_S": "1",
    "KEYTIDE_SCAN__FIRST_LEASE_S": "15",
    "KEYTIDE_SCAN__LEASE_S": "15",
}
SLICES = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One READY index with two copies of each slice, on three nodes."""
    with (
        LocalCluster(
            tmp_path_factory.mktemp("cluster"), nodes=3, settings=SETTINGS, supervise=False
        ) as cluster,
        World(cluster) as world,
    ):
        options = f"(slices={SLICES}, replicas=1, defer_build=true)"
        statement = f"CREATE INDEX {INDEX} ON {TOPIC} (customer, total DESC) WITH {options}"
        world.begin(TOPIC, order, 20_000, INDEX, statement)
        yield world


def _record(world: World) -> IndexRecord:
    """What the dictionary says of the index."""
    found = world.catalog().index_by_name(INDEX)
    assert found is not None
    return found


def _copies(world: World) -> list[set[str]]:
    """The nodes whose copies count, of each slice."""
    return [set(nodes) for nodes in _record(world).placement]


def _ids(world: World) -> set[str]:
    return {id_ for ids in _record(world).copies.values() for id_ in ids.values()}


def _check_at_end(world: World) -> None:
    assert world.check_at_end(INDEX, TOPIC, by_customer, (False, True)) > 0


def _builds(world: World) -> int:
    return len(world.admin.call("GET", "/v1/builds"))


def _name(node: int) -> str:
    return f"node-{node + 1}"


def test_every_slice_has_two_copies_on_different_nodes(world: World) -> None:
    assert [len(nodes) for nodes in _copies(world)] == [2] * SLICES
    _check_at_end(world)


@pytest.mark.parametrize("victim", [0, 1, 2] if WHOLE_MATRIX else [0])
def test_no_scan_is_refused_while_a_node_is_killed_or_stands_still(world: World, victim: int) -> None:
    others = [node for node in range(3) if node != victim]
    before = _copies(world)
    with (
        Writer(world.bootstrap, TOPIC, 2 + victim, order, per_second=100),
        Readers(world, others) as readers,
    ):
        readers.go_on()
        with stopped([psutil.Process(world.cluster.services[_name(victim)].pid)]):
            readers.go_on()
        readers.go_on()
        world.cluster.kill(_name(victim))
        readers.go_on()
        world.cluster.restart(_name(victim))
        readers.go_on()
    _check_at_end(world)
    assert _copies(world) == before, "who is away for a moment keeps its copies"


def test_a_copy_whose_disk_is_gone_is_filled_from_the_other_one(world: World) -> None:
    """At the end nobody else has the slice."""
    index = _record(world)
    nodes = index.placement[1]
    victim, source = nodes[0], nodes[1]
    builds = _builds(world)
    others = [node for node in range(3) if _name(node) not in (victim, source)]
    with Writer(world.bootstrap, TOPIC, 9, order, per_second=100), Readers(world, others) as readers:
        world.cluster.kill(victim)
        shutil.rmtree(_slice_folder(world, victim, index.id, 1))
        world.cluster.restart(victim)
        wait_for(lambda: bool(_ids(world)), "a copy is filled, and counts", 120)
        readers.go_on()
        assert [len(nodes) for nodes in _copies(world)] == [2] * SLICES
        assert _builds(world) == builds, "without Spark"
        filled = _record(world)
        ((node, _),) = filled.copies[1].items()
        other = next(one for one in filled.placement[1] if one != node)
    world.cluster.kill(other)
    try:
        asked = next(place for place in range(3) if _name(place) != other)
        _wait_scans(world, asked)
        at_least = {str(p): offset for p, offset in world.ends(TOPIC).items()}
        rows = world.check(
            INDEX, TOPIC, by_customer, (False, True), node=asked, at_least=at_least, timeout_ms=60_000
        )
        assert rows > 0, "what was filled is what the other one was"
    finally:
        world.cluster.restart(other)
    _check_at_end(world)


def test_copies_are_added_and_taken_away_while_it_serves(world: World) -> None:
    builds = _builds(world)
    with Writer(world.bootstrap, TOPIC, 11, order, per_second=100), Readers(world, range(3)) as readers:
        world.sql(f"ALTER INDEX {INDEX} SET (replicas=2)")
        wait_for(lambda: [len(nodes) for nodes in _copies(world)] == [3] * SLICES, "a third copy counts", 180)
        readers.go_on()
        world.sql(f"ALTER INDEX {INDEX} SET (replicas=0)")
        wait_for(lambda: [len(nodes) for nodes in _copies(world)] == [1] * SLICES, "one copy is left", 60)
        readers.go_on()
        world.sql(f"ALTER INDEX {INDEX} SET (replicas=1)")
        wait_for(lambda: [len(nodes) for nodes in _copies(world)] == [2] * SLICES, "two count again", 180)
        readers.go_on()
    assert _builds(world) == builds, "without Spark"
    _check_at_end(world)


def test_more_copies_than_nodes_are_waited_for(world: World) -> None:
    world.sql(f"ALTER INDEX {INDEX} SET (replicas=3)")
    try:
        wait_for(
            lambda: "start an indexer node" in str(world.admin.call("GET", "/v1/health")), "it says so", 60
        )
        _check_at_end(world)
    finally:
        world.sql(f"ALTER INDEX {INDEX} SET (replicas=1)")


def test_a_node_is_drained_and_gets_its_part_again(world: World) -> None:
    """Killed, or standing still, meanwhile: the leader, and who gets the copies. A page that was open before
    goes on to its end."""
    node, builds = "node-3", _builds(world)
    _spread(world)
    with Writer(world.bootstrap, TOPIC, 13, order, per_second=100), Readers(world, range(2)) as readers:
        with world.client(2) as client:  # which reads its own copies: they stay until the page has been read
            job = world.admin.call("POST", f"/v1/nodes/{node}/drain")
            opened: list[Page] = []

            def leaves() -> bool:
                opened[:] = [client.page(INDEX, limit=50, timeout_ms=60_000)]
                shown = _job(world, job["id"])
                assert shown["state"] == "RUNNING", shown
                return _leaves(world, node)

            wait_for(leaves, "a copy leaves", 120)
            (page,) = opened
            rows, snapshot = len(page.rows), page.snapshot
            world.cluster.kill("coordinator")
            world.cluster.restart("coordinator")
            while page.page is not None:
                page = client.page(INDEX, page=page.page)
                assert page.snapshot == snapshot
                rows += len(page.rows)
            assert rows > 0
        wait_for(lambda: _job(world, job["id"])["state"] == "DONE", "nothing is left on it", 240)
        readers.go_on()
        assert _shown(world, node)["drain"] == "drained"
        assert [nodes for nodes in _copies(world) if node in nodes] == []
        world.cluster.kill(node)
        readers.go_on()
        health = world.admin.call("GET", "/v1/health")
        assert [one for one in health["reasons"] if node in one["reason"]] == []
        world.cluster.restart(node)
        world.admin.call("POST", f"/v1/nodes/{node}/undrain")

        def moves() -> list[dict[str, Any]]:
            planned: list[dict[str, Any]] = world.admin.call("POST", "/v1/rebalance", {"dry_run": True})[
                "moves"
            ]
            return planned

        planned = wait_for(moves, "it is heard of", 60)
        assert {move["target"] for move in planned} == {node}
        job = world.admin.call("POST", "/v1/rebalance")
        with stopped([psutil.Process(world.cluster.services[node].pid)]):
            readers.go_on()
        wait_for(lambda: _job(world, job["id"])["state"] == "DONE", "it has its part", 240)
        readers.go_on()
    wait_for(lambda: _per_node(world) == [2, 2, 2], "each node has two slices", 10)
    assert [len(nodes) for nodes in _copies(world)] == [2] * SLICES
    assert _builds(world) == builds, "without Spark"
    _check_at_end(world)


def test_nodes_are_restarted_one_after_the_other(world: World) -> None:
    """No scan is refused, and all copies are the same after it."""

    def stop(node: dict[str, Any]) -> None:
        world.cluster.kill(node["id"])
        world.cluster.restart(node["id"])

    _spread(world)
    with Writer(world.bootstrap, TOPIC, 15, order, per_second=100), Readers(world, [0]) as readers:
        done = rolling.restart(world.admin, ["node-2", "node-3"], stop, force=False, limit_s=120, quiet=True)
        assert [one["node"] for one in done] == ["node-2", "node-3"]
        readers.go_on()
    with Readers(world, [1]) as readers:
        rolling.restart(world.admin, ["node-1"], stop, force=False, limit_s=120, quiet=True)
        readers.go_on()
    job = world.admin.call("POST", f"/v1/indexes/{INDEX}/verify")
    wait_for(lambda: _job(world, job["id"])["state"] in ("DONE", "FAILED"), "it is verified", 180)
    verified = _job(world, job["id"])
    assert (verified["state"], verified["counts"]) == ("DONE", {}), verified


def test_an_index_gets_other_slices_and_columns_while_it_serves(world: World) -> None:
    """The leader is killed meanwhile. A page that was open before goes on to its end in the old layout, and a
    tail goes on in the new one."""
    old = _record(world)
    with Writer(world.bootstrap, TOPIC, 17, order, per_second=100), Readers(world, range(3)) as readers:
        with world.client(0) as client, Follower(world, 2) as follower:
            follower.check()
            build = world.sql(f"ALTER INDEX {INDEX} SET (slices=5)")["build"]
            opened: list[Page] = []
            killed = False

            def answers() -> bool:
                nonlocal killed
                opened.append(client.page(INDEX, limit=50, timeout_ms=60_000))
                if not killed and world.build_state(build)["state"] == "CATCHUP":
                    world.cluster.kill("coordinator")
                    world.cluster.services["coordinator"].start()  # (not waited for: pages run out)
                    killed = True
                return _record(world).id != old.id

            wait_for(answers, "the new layout answers", 240)
            assert killed
            assert world.build_state(build)["seed"] == old.id, "it began with the old slices"
            page = opened[-2]  # (the old one did then, and a page is leased for longer than a look takes)
            rows, snapshot = len(page.rows), page.snapshot
            while page.page is not None:
                page = client.page(INDEX, page=page.page)
                assert page.snapshot == snapshot
                rows += len(page.rows)
            assert rows > 0
            readers.go_on()
            assert [len(nodes) for nodes in _copies(world)] == [2] * 5
            wait_for(lambda: _layouts(world) == [], "the old layout is gone", 120)
            follower.check()
        folders = [_slice_folder(world, _name(node), old.id, 0) for node in range(3)]
        wait_for(lambda: not any(folder.exists() for folder in folders), "nothing is left of it", 60)
        world.sql(f"CREATE OR REPLACE INDEX {INDEX} ON {TOPIC} (customer, total DESC) INCLUDE (total)")
        five = _record(world)
        wait_for(lambda: _record(world).id != five.id, "the new definition answers", 180)
        readers.go_on()
    with world.client(1) as client:
        page = client.page(INDEX, limit=5)
        assert all("total" in row.include for row in page.rows)
    assert _record(world).slices == 5, "what is not said stays"
    _check_at_end(world)


def test_new_slices_have_what_the_source_has_forgotten(world: World) -> None:
    """Entries, and lines of the skip ledger, while more is written."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})
    for number in range(3):
        producer.produce(TOPIC, b"{ no json", f"bad{number}".encode())
    assert producer.flush(30) == 0
    _check_at_end(world)  # (what the source had is known from here on)
    ends = [TopicPartition(TOPIC, p, offset) for p, offset in world.ends(TOPIC).items()]
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.delete_records(ends).values():
        future.result(30)
    old = _record(world)
    with Writer(world.bootstrap, TOPIC, 18, order, per_second=100), Readers(world, range(3)) as readers:
        build = world.sql(f"ALTER INDEX {INDEX} PARTITION BY HASH(id) SET (slices=2)")["build"]
        world.wait_ready(build)
        wait_for(lambda: _record(world).id != old.id, "the new layout answers", 120)
        readers.go_on()
    assert world.build_state(build)["seed"] == old.id
    _check_at_end(world)
    page = world.admin.call("GET", f"/v1/indexes/{INDEX}/skipped?limit=100")
    assert {"bad0", "bad1", "bad2"} <= {line["id"] for line in page["lines"]}, page


def _layouts(world: World) -> list[dict[str, Any]]:
    """Those with the name of the index that do not bear it, waiting out a coordinator that is away."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        try:
            found[:] = world.admin.call("GET", f"/v1/indexes/{INDEX}")["layouts"]
        except RetryableError:
            return False
        return True

    wait_for(asked, "the coordinator answers", 60)
    return found


def _spread(world: World) -> None:
    """Each node has two slices, and nothing is done about copies."""
    wait_for(lambda: _settled(world), "two copies of each, and no other", 120)
    job = world.admin.call("POST", "/v1/rebalance")
    wait_for(lambda: _job(world, job["id"])["state"] == "DONE", "slices are spread", 180)
    # (the leader says so some milliseconds before the dictionary does)
    wait_for(lambda: _per_node(world) == [2, 2, 2], "each node has two slices", 10)
    wait_for(lambda: not _record(world).leaving, "who leaves is gone", 120)


def _per_node(world: World) -> list[int]:
    """How many copies count on each node."""
    found = _copies(world)
    return [sum(_name(place) in nodes for nodes in found) for place in range(3)]


def _settled(world: World) -> bool:
    """Whether every slice has two copies, none is being filled and none leaves: what is done about a copy
    leaves its slice out of a rebalance."""
    catalog = world.catalog()
    index = catalog.index_by_name(INDEX)
    assert index is not None
    filled = [one for one in catalog.copies() if one.index == index.id]
    return [len(nodes) for nodes in index.placement] == [2] * SLICES and not filled and not index.leaving


def _leaves(world: World, node: str) -> bool:
    return any(node in leaving for leaving in _record(world).leaving.values())


def _job(world: World, id_: str) -> dict[str, Any]:
    """A job, waiting out a coordinator that is away."""
    found: dict[str, Any] = {}

    def asked() -> bool:
        try:
            found.update(world.admin.call("GET", f"/v1/jobs/{id_}"))
        except RetryableError:
            return False
        return True

    wait_for(asked, "the coordinator answers", 60)
    return found


def _shown(world: World, node: str) -> dict[str, Any]:
    return next(one for one in world.admin.call("GET", "/v1/nodes") if one["id"] == node)


def _slice_folder(world: World, node: str, index: str, number: int) -> Path:
    return world.cluster.data_dir / node / "nodes" / node / "slices" / index / str(number)


def _wait_scans(world: World, node: int) -> None:
    def scans() -> bool:
        try:
            world.scan_all(INDEX, node=node)
        except KeytideError:
            return False
        return True

    wait_for(scans, "it can be scanned", 60)
