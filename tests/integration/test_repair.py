"""Repair on the real parts, acceptance 14: with writers racing there are zero differences after, newer data
is never removed, and a second run finds nothing; a dry run writes nothing; and a node that dies in the middle
of a round does no harm."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.store.interface import StoredDocument
from keytide.collation import encode_key
from keytide.model.entry import pack_value
from tests.arming import arm
from tests.integration.conftest import Worlds
from tests.integration.planting import Base, durable_timestamp, planting
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__VERIFY": "false",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
    "KEYTIDE_REPAIR__GRACE_S": "1",
}
TOPIC, INDEX = "people", "people_city"
SLICES = 4
HOT, QUIET = 800, 800
"""Documents that writers change meanwhile, and those that they leave alone."""
EACH = 3
"""Planted faults of one kind in each slice."""


def _person(chance: random.Random, number: int) -> tuple[str, Any]:
    """First every document once, then hot ones again and again, or their deletion."""
    if number >= HOT + QUIET:
        if chance.random() < 0.2:
            return f"h{chance.randrange(HOT)}", None
        id_ = f"h{chance.randrange(HOT)}"
    else:
        id_ = f"h{number}" if number < HOT else f"q{number - HOT}"
    return id_, {"city": f"c{chance.randrange(200)}", "name": f"n{chance.randrange(1_000)}"}


def _keys(document: Any, _: str) -> list[list[Any]]:
    return [[document["city"]]]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as world:
        options = f"(slices={SLICES}, defer_build=true)"
        statement = f"CREATE INDEX {INDEX} ON {TOPIC} (city) INCLUDE (name) WITH {options}"
        world.begin_live(TOPIC, _person, HOT + QUIET, INDEX, statement)
        yield world


def _command(world: World, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`keytide index repair`; exit status and what it says."""
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "keytide", "index", "repair", INDEX, "--wait", "--json"),
            *("--url", world.cluster.coordinator_url, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def _report(world: World, job: str) -> dict[str, Any]:
    found: dict[str, Any] = world.admin.call("GET", f"/v1/jobs/{job}/report")
    return found


def test_acceptance_14_differences_go_while_writers_race(world: World) -> None:
    planted = _plant(world)
    status, dry = _command(world, "--dry-run")
    assert (status, dry["state"], dry["clean"]) == (4, "DONE", False), dry
    report = _report(world, dry["id"])
    assert {one["id"] for one in report["differences"]} == planted
    assert all(one["actions"] for one in report["differences"])
    assert (report["repair"]["dry_run"], report["repair"]["corrected"]) == (True, 0)
    assert sum(dry["counts"].values()) == len(planted)
    with Writer(world.bootstrap, TOPIC, 2, _person, per_second=100) as writer:
        writer.written = HOT + QUIET
        status, job = _command(world)
        assert (status, job["state"], job["clean"], job["counts"]) == (0, "DONE", True, {}), job
        repair = _report(world, job["id"])["repair"]
        assert repair["after"]["clean"] is True
        assert repair["corrected"] > 0
        assert repair["void"] == 0
    world.check_at_end(INDEX, TOPIC, _keys)
    status, again = _command(world)
    assert (status, again["detail"]) == (0, "nothing was wrong"), again
    assert world.admin.call("GET", f"/v1/indexes/{INDEX}")["lost"] == []


@pytest.mark.parametrize("point", ["repair-watched", "repair-corrected"])
def test_a_driver_that_dies_within_a_round_is_followed_by_another(
    world: World, point: str, tmp_path: Path
) -> None:
    """The slices still watch for the one that died, and may have half of its corrections."""
    _plant(world)
    struck = tmp_path / "struck"
    arm(world.cluster, "coordinator", f"{point}:once={struck}")
    world.cluster.restart("coordinator")
    try:
        with Writer(world.bootstrap, TOPIC, 4, _person, per_second=100) as writer:
            writer.written = HOT + QUIET
            status, job = _command(world)
        assert struck.exists(), "no driver was at the place"
        assert (status, job["state"], job["clean"], job["counts"]) == (0, "DONE", True, {}), job
        world.check_at_end(INDEX, TOPIC, _keys)
    finally:
        arm(world.cluster, "coordinator", "")
        world.cluster.restart("coordinator")


def test_a_node_that_dies_within_a_round_does_no_harm(world: World, tmp_path: Path) -> None:
    _plant(world)
    hold = tmp_path / "go"
    arm(world.cluster, "coordinator", f"repair-corrected:hold={hold}")
    world.cluster.restart("coordinator")
    with Writer(world.bootstrap, TOPIC, 3, _person, per_second=100) as writer:
        writer.written = HOT + QUIET
        job = world.admin.call("POST", f"/v1/indexes/{INDEX}/repair", {})["id"]
        wait_for(hold.with_name("go.held").exists, "the corrections are in the queues")
        node = next(name for name in world.cluster.services if name.startswith("node-"))
        world.cluster.restart(node)
        hold.touch()
        wait_for(
            lambda: world.admin.call("GET", f"/v1/jobs/{job}")["state"] != "RUNNING", "the repair is over"
        )
        found = world.admin.call("GET", f"/v1/jobs/{job}")
        assert (found["state"], found["clean"]) == ("DONE", True), found
    world.check_at_end(INDEX, TOPIC, _keys)


# --- planting ---------------------------------------------------------------------------------------------


def _plant(world: World) -> set[str]:
    """Faults of each class in the slices; ids of the documents."""
    index = world.admin.call("GET", f"/v1/indexes/{INDEX}")
    ends = world.ends(TOPIC)
    folders = {}
    for one in index["slice_states"]:
        nodes = Path(world.cluster.data_dir) / one["node"] / "nodes"
        folders[one["slice"]] = nodes / one["node"] / "slices" / index["id"] / str(one["slice"])

    def folded() -> bool:
        return all(
            durable_timestamp(folder).offset(partition) >= end
            for folder in folders.values()
            for partition, end in ends.items()
        )

    wait_for(folded, "everything is in the bases")
    nodes = [name for name in world.cluster.services if name.startswith("node-")]
    for node in nodes:
        world.cluster.services[node].terminate()
    planted: set[str] = set()
    for number, folder in sorted(folders.items()):
        with planting(folder) as base:
            planted |= _plant_slice(base, number)
    for node in nodes:
        world.cluster.restart(node)
    wait_for(lambda: not world.admin.call("GET", f"/v1/indexes/{INDEX}")["lost"], "no slice is lost")
    return planted


def _plant_slice(base: Base, number: int) -> set[str]:
    """Where writers go on, forward entries and back index stay each other's mirror: what a slice does with
    an update of another document is no matter of repair."""
    planted: set[str] = set()
    documents = base.documents()
    hot = iter([one for one in documents if one[0].startswith(b"h")])
    quiet = iter([one for one in documents if one[0].startswith(b"q")])
    for at in range(EACH):
        for kind in ("missing", "key", "included", "record"):
            docid, held = next(hot)
            _spoil(base, kind, docid, held)
            planted.add(docid.decode())
        for kind in ("missing", "key", "included", "record", "entry"):
            docid, held = next(quiet)
            _spoil(base, kind, docid, held)
            planted.add(docid.decode())
        ghost, (_, held) = f"nobody{number}-{at}", next(quiet)
        base.put_entry(held.keys[0], ghost.encode(), pack_value(b"", b"{}"))
        planted.add(ghost)
        stale, (_, held) = f"gone{number}-{at}", next(quiet)
        base.put_entry(held.keys[0], stale.encode(), pack_value(b"", b"{}"))
        base.put_record(stale.encode(), held)
        planted.add(stale)
    return planted


def _spoil(base: Base, kind: str, docid: bytes, held: StoredDocument) -> None:
    (key,) = held.keys
    if kind == "missing":
        base.remove_entry(key, docid)
        base.remove_record(docid)
    elif kind == "entry":
        base.remove_entry(key, docid)
    elif kind == "key":
        wrong = encode_key(["planted"], (False,))
        value = base.value(key, docid)
        base.remove_entry(key, docid)
        base.put_entry(wrong, docid, value)
        base.put_record(docid, held._replace(keys=(wrong,)))
    elif kind == "included":
        base.put_entry(key, docid, pack_value(b"", b'{"name":"planted"}'))
    else:
        base.put_record(docid, held._replace(offset=held.offset + 1_000_000))
