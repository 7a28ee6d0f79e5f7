"""A copy of a slice is struck while it is filled, by the death of whom it needs or by a full disk: it goes on
or begins again, is in the end what its source is, and leaves nothing behind. And a node that comes back with
its disk gets no copy, what a lost disk had is copied after the grace, and where nothing is left Spark fills.

One index of one slice has its copies on node-1 and node-2; node-3 is where a third one is filled.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from deploy.cluster import LocalCluster
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord
from keytide.errors import KeytideError, RetryableError
from keytide.kafka.admin import list_offsets
from keytide.model.topics import Topics
from tests.chaos.processes import stopped
from tests.integration.disks import MIB, NODE_RESERVE, SmallDisk
from tests.integration.left import Left, left
from tests.integration.orders import INDEX, TOPIC, by_customer
from tests.integration.world import World, Writer
from tests.share import WHOLE_MATRIX
from tests.waiting import slowness, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(600)]

HOLDERS, TARGET = ["node-1", "node-2"], "node-3"
GRACE_S, AWAY_S = round(60 * slowness()), 30
"""Who is killed and started again is back within the grace, also on a slow machine."""
RATE, ANY_RATE = round(512 * 1024 / slowness()), 10**9
"""Bytes per second: a copy takes half a minute or more, and its last tenth is long enough to be struck in."""
DOCUMENTS, DISK_FREE = 20_000, 300 * MIB
KINDS = {"copy", "base", "checksums", "filter", "undo", "delta"}  # (and more while a fold is at work)
SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__NODE_DISK_FREE_BYTES": str(DISK_FREE),
    "KEYTIDE_COORDINATOR__COPY_AFTER_S": str(GRACE_S),
    "KEYTIDE_COORDINATOR__TRIM_INTERVAL_S": "1",
    "KEYTIDE_INDEXER__COPY_RATE": str(RATE),
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_INDEXER__UNDO_S": "1",  # (steps back keep their part of the queue, too)
    "KEYTIDE_SCAN__FIRST_LEASE_S": "5",
    "KEYTIDE_SCAN__LEASE_S": "5",
}
VICTIMS, PERCENTS = ["its source", "whoever has it", "its target", "the leader"], [10, 50, 90]
SAMPLE = [("its source", 10), ("whoever has it", 90), ("its target", 50), ("the leader", 10)]


def _order(chance: random.Random, number: int) -> tuple[str, Any]:
    """With a key so long that the copy takes some megabytes."""
    id_ = f"order{number % DOCUMENTS}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {"customer": f"c{chance.randrange(200)}" + "x" * 380, "total": chance.randrange(10_000)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        LocalCluster(folder, nodes=3, settings=SETTINGS, supervise=False) as cluster,
        World(cluster) as world,
    ):
        world.admin.call("POST", f"/v1/nodes/{TARGET}/drain")
        options = "(slices=1, replicas=1, defer_build=true)"
        statement = f"CREATE INDEX {INDEX} ON {TOPIC} (customer, total DESC) WITH {options}"
        world.begin(TOPIC, _order, DOCUMENTS, INDEX, statement)
        world.admin.call("POST", f"/v1/nodes/{TARGET}/undrain")
        _wait_settled(world, HOLDERS)
        builds = cluster.data_dir / "coordinator" / "builds"
        wait_for(lambda: {one.name for one in builds.glob("*/*")} == {"driver.log"}, "its build has let go")
        wait_for(lambda: not any(".backfill." in one for one in _left(world).topics), "its queue is gone")
        yield world


@pytest.fixture
def small_disk(world: World) -> Iterator[SmallDisk]:
    """The target's, which has no slice before and after."""
    cluster, disk = world.cluster, SmallDisk(world.cluster.data_dir / TARGET, NODE_RESERVE + DISK_FREE)
    with ExitStack() as stack:
        cluster.kill(TARGET)
        shutil.rmtree(disk.folder)
        stack.callback(cluster.restart, TARGET)
        disk.mount()
        stack.callback(disk.unmount)
        stack.callback(cluster.kill, TARGET)
        cluster.restart(TARGET)
        yield disk


# --- what there is ------------------------------------------------------------------------------------------


def _record(world: World) -> IndexRecord:
    found = world.catalog().index_by_name(INDEX)
    assert found is not None
    return found


def _slice_folder(world: World, node: str) -> Path:
    return world.cluster.data_dir / node / "nodes" / node / "slices" / _record(world).id / "0"


def _ask(world: World, path: str) -> Any:
    """What the leader says, waiting out one that is away."""
    found: list[Any] = []

    def asked() -> bool:
        try:
            found.append(world.admin.call("GET", path))
        except RetryableError:
            return False
        return True

    wait_for(asked, "the coordinator answers", 60)
    return found[0]


def _copies(world: World) -> list[dict[str, Any]]:
    """Those that count or are being filled, as their nodes tell of them."""
    states: list[dict[str, Any]] = _ask(world, f"/v1/indexes/{INDEX}")["slice_states"]
    return states


def _filled(world: World) -> dict[str, Any]:
    """The job that fills a copy, {} for none."""
    return next((one for one in _ask(world, "/v1/jobs") if one["kind"] == "copy"), {})


def _told(world: World) -> list[str]:
    """The kinds of the events about copies in this term."""
    kinds = [str(one["kind"]) for one in _ask(world, "/v1/events?limit=1000")]
    return [one for one in kinds if one.startswith("copy-")]


def _number(node: str) -> int:
    return int(node[-1]) - 1


def _builds(world: World) -> set[str]:
    return {one["id"] for one in _ask(world, "/v1/builds")}


@cache
def _kafka(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def _queue(world: World, *, earliest: bool) -> int:
    """Where the slice's queue begins, or ends."""
    topic = Topics(world.cluster.name).mutations(_record(world).id)
    return list_offsets(_kafka(world.bootstrap), topic, [0], earliest=earliest)[0]


# --- what is done and compared ------------------------------------------------------------------------------


def _wait_settled(world: World, nodes: list[str]) -> None:
    """These nodes, and no other, have the slice, and serve it."""

    def settled() -> bool:
        copies = _copies(world)
        serve = [one["node"] for one in copies if one["counted"] and one["live"] and one["state"] == "LIVE"]
        return len(copies) == len(serve) and set(serve) == set(nodes)

    wait_for(settled, lambda: f"copies on {nodes} alone: {_copies(world)}", 120)


def _throttled_copy(world: World, percent: int) -> CopyRecord:
    """A third copy, as soon as so much of it is there."""
    world.sql(f"ALTER INDEX {INDEX} SET (replicas=2)")
    wait_for(
        lambda: (_filled(world).get("percent") or 0) >= percent,
        lambda: f"it is filled: {_copies(world)}",
        180,
    )
    job = _filled(world)
    assert job["copy"]["rows_total"], f"it is too late: {job}"  # (none when all rows are there)
    (record,) = world.catalog().copies()
    assert (record.id, record.node) == (job["id"], TARGET)
    return record


def _let_it_end(world: World) -> None:
    """As fast as may be, under whatever id, until it counts."""
    lifted: set[str] = set()

    def counts() -> bool:
        job = _filled(world)
        if job and job["id"] not in lifted:
            try:
                world.admin.call("PATCH", f"/v1/jobs/{job['id']}", {"copy_rate": ANY_RATE})
                lifted.add(job["id"])
            except KeytideError as error:
                if error.status not in (404, 503):  # it counts since, or the leader is away
                    raise
        return TARGET in _record(world).placement[0]

    wait_for(counts, lambda: f"it counts: {_copies(world)}", 180)


def _check_alone(world: World, node: str) -> None:
    """What a node has is what the source says, up to now: no other one can be asked."""
    others = [world.cluster.services[one] for one in {*HOLDERS, TARGET} - {node}]
    with stopped([psutil.Process(child.pid) for child in others if child.running]):
        at_least = {str(p): offset for p, offset in world.ends(TOPIC).items()}
        demands = {"node": _number(node), "at_least": at_least, "timeout_ms": 60_000}
        rows = world.check(INDEX, TOPIC, by_customer, (False, True), **demands)
    assert rows > DOCUMENTS / 2


def _left(world: World) -> Left:
    """Beside copies that count."""
    counted = [_slice_folder(world, node) for node in _record(world).placement[0]]
    return left(world, _kafka(world.bootstrap), counted)


def _wait_left(world: World, before: Left) -> None:
    wait_for(lambda: _left(world) == before, lambda: f"left: {_left(world).beside(before)}", 90)


def _kinds(world: World, node: str) -> set[str]:
    """What lies in the folder of a slice; deltas have names of their own."""
    return {re.sub(r"-.*", "", one.name) for one in _slice_folder(world, node).iterdir()}


def _check_nothing_left(world: World, before: Left, held: int) -> None:
    """Of the copy that was struck nothing but the copy is there, and when that is taken away nothing at all.

    Args:
        held: a place in the slice's queue that was kept for it.
    """
    _wait_settled(world, [*HOLDERS, TARGET])
    _wait_left(world, before)
    wait_for(lambda: _kinds(world, TARGET) <= KINDS, lambda: f"left: {_kinds(world, TARGET)}", 60)
    wait_for(
        lambda: _queue(world, earliest=True) > held, lambda: f"kept from {_queue(world, earliest=True)}", 60
    )
    world.sql(f"ALTER INDEX {INDEX} SET (replicas=1)")
    _wait_settled(world, HOLDERS)
    _wait_left(world, before)
    ended = [child.name for child in world.cluster.services.values() if not child.running]
    assert ended == []


# --- acceptance 28 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("whose", "percent"), [*product(VICTIMS, PERCENTS)] if WHOLE_MATRIX else SAMPLE)
def test_28_a_copy_is_struck_by_a_death(world: World, whose: str, percent: int) -> None:
    """Its source is away until it counts, so another one is named; the others come back at once."""
    before, builds, said = _left(world), _builds(world), len(_told(world))
    with Writer(world.bootstrap, TOPIC, percent, _order, per_second=100):
        record = _throttled_copy(world, percent)
        held = _queue(world, earliest=False)
        victims = {
            "its source": [record.source],
            "whoever has it": HOLDERS,
            "its target": [TARGET],
            "the leader": ["coordinator"],
        }
        for part in victims[whose]:
            world.cluster.kill(part)
        assert TARGET not in _record(world).placement[0], "it was too late"
        for part in victims[whose] if whose != "its source" else ():
            world.cluster.restart(part)
        begin = _queue(world, earliest=True)
        assert begin <= record.need or TARGET in _record(world).placement[0], "it may need it still"
        _let_it_end(world)
        if whose == "its source":
            assert "copy-source-replaced" in _told(world)[said:]
            world.cluster.restart(record.source)
        elif whose == "the leader":
            assert "copy-source-replaced" not in _told(world), "it goes on (and those are of a new term)"
        _check_alone(world, TARGET)
        _check_nothing_left(world, before, held)
    assert _builds(world) == builds, "without Spark"


@pytest.mark.parametrize(
    ("percent", "room"),
    [(10, 20 * MIB), (50, 150 * MIB), (90, 0)] if WHOLE_MATRIX else [(50, 20 * MIB)],
)
def test_28_a_copy_is_struck_by_a_full_disk(
    world: World, small_disk: SmallDisk, percent: int, room: int
) -> None:
    """It says why it waits, the slice is scanned, and it goes on by itself."""
    before, builds = _left(world), _builds(world)
    with Writer(world.bootstrap, TOPIC, percent, _order, per_second=100):
        record = _throttled_copy(world, percent)
        with small_disk.full(room):
            wait_for(
                lambda: any("room" in one["reason"] for one in _copies(world)), "it says why it waits", 60
            )
            held = _queue(world, earliest=False)
            world.check(INDEX, TOPIC, by_customer, (False, True), node=_number(TARGET))
            assert _filled(world)["id"] == record.id
            assert _queue(world, earliest=True) <= record.need, "it may need it still"
        _let_it_end(world)
        _check_alone(world, TARGET)
        _check_nothing_left(world, before, held)
    assert _builds(world) == builds, "without Spark"


def test_28_a_copy_whose_target_stays_away_is_given_up(world: World) -> None:
    """Nothing is kept for it then, and when its node is back another one begins with nothing."""
    before = _left(world)
    with Writer(world.bootstrap, TOPIC, 4, _order, per_second=100):
        record = _throttled_copy(world, 50)
        held = _queue(world, earliest=False)
        world.cluster.kill(TARGET)
        wait_for(lambda: not world.catalog().copies(), "it is given up", 2 * GRACE_S)
        wait_for(lambda: _queue(world, earliest=True) > held, "its queue is deleted", 60)
        world.cluster.restart(TARGET)
        wait_for(lambda: world.catalog().copies(), "another one is begun", 60)
        (again,) = world.catalog().copies()
        assert again.id != record.id
        assert again.need > held
        _let_it_end(world)
        _check_alone(world, TARGET)
        _check_nothing_left(world, before, held)


# --- acceptance 29 ------------------------------------------------------------------------------------------


def test_29_a_node_that_is_back_with_its_disk_gets_no_copy(world: World) -> None:
    before, said, node = _record(world), len(_told(world)), HOLDERS[1]
    with Writer(world.bootstrap, TOPIC, 5, _order, per_second=100):
        world.cluster.kill(node)
        wait_for(lambda: _silent_s(world, node) >= AWAY_S, "it has been silent for long", 2 * AWAY_S)
        world.cluster.restart(node)
        _wait_settled(world, HOLDERS)
        _check_alone(world, node)
    assert _told(world)[said:] == [], "nothing was copied"
    now = _record(world)
    assert (now.placement, now.copies) == (before.placement, before.copies)


def test_29_what_a_lost_disk_had_is_copied_after_the_grace(world: World) -> None:
    """To another node; and when the lost one is back, with nothing, it has nothing to do."""
    said, builds, node = len(_told(world)), _builds(world), HOLDERS[1]
    with Writer(world.bootstrap, TOPIC, 6, _order, per_second=100):
        world.cluster.kill(node)
        shutil.rmtree(world.cluster.data_dir / node)
        silent = [0.0]

        def begins() -> bool:
            if _told(world)[said:]:
                return True
            silent.append(_silent_s(world, node))
            return False

        wait_for(begins, "something is done about it", 2 * GRACE_S)
        assert silent[-1] > GRACE_S - 5 * slowness(), "not before"
        _let_it_end(world)
        kinds = ["copy-taken-out", "copy-begun", "copy-counts"]
        assert _told(world)[said:] == kinds
        _check_alone(world, TARGET)
        world.cluster.restart(node)
        _wait_settled(world, [HOLDERS[0], TARGET])
        assert not _slice_folder(world, node).exists()
        assert _told(world)[said:] == kinds
    assert _builds(world) == builds, "without Spark"


def test_29_without_any_copy_the_slice_is_rebuilt_by_spark(world: World) -> None:
    """At the end, for all copies are a build's then."""
    builds, (nodes,) = _builds(world), _record(world).placement
    with Writer(world.bootstrap, TOPIC, 7, _order, per_second=100):
        for node in nodes:
            world.cluster.kill(node)
            shutil.rmtree(_slice_folder(world, node))
        for node in nodes:
            world.cluster.restart(node)
        (build,) = wait_for(lambda: _builds(world) - builds, "a rebuild is begun", 60)
        world.wait_ready(build)
        _wait_settled(world, nodes)
        assert _builds(world) == {*builds, build}
        for node in nodes:
            _check_alone(world, node)


def _silent_s(world: World, node: str) -> float:
    shown = next(one for one in _ask(world, "/v1/nodes") if one["id"] == node)
    return float(shown["heard_ms_ago"]) / 1000
