"""Verification on the real parts: a build is READY only verified; acceptance 5, the checker sees: 100 planted
faults of each class are all found and rightly named, and none is reported on a clean index under live writes,
compaction included; and what becomes of a verification whose driver dies or that is cancelled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from indexer.store.interface import StoredDocument
from keytide.collation import encode_key
from keytide.errors import KeytideError
from keytide.model.entry import pack_value
from tests.arming import arm
from tests.integration.conftest import Worlds
from tests.integration.planting import Base, durable_timestamp, planting
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

LOCAL_DOCUMENTS = 6_000
"""Sources with more records are read by Spark."""
SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__VERIFY": "full",
    "KEYTIDE_VERIFY__LOCAL_DOCUMENTS": str(LOCAL_DOCUMENTS),
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
}
PEOPLE, MEMBERS = "people", "members"
GUESTS, BY_AGE = "guests", "guests_age"
BY_CITY, BY_TAG, BY_MAIL = "people_city", "people_tag", "members_mail"
SLICES = 4
PLANTED = 100
CLASSES = ("MISSING", "EXTRA", "WRONG_KEY", "WRONG_INCLUDED", "WRONG_RECORD")


def _person(chance: random.Random, number: int) -> tuple[str, Any]:
    id_ = f"p{number}" if number < 5_000 else f"p{chance.randrange(5_000)}"
    if number >= 5_000 and chance.random() < 0.1:
        return id_, None
    return id_, {
        "city": f"c{chance.randrange(300)}",
        "age": chance.randrange(90),
        "name": f"n{chance.randrange(1_000)}",
        "tags": [chance.randrange(40) for _ in range(3)],
    }


def _member(_: random.Random, number: int) -> tuple[str, Any]:
    return f"m{number}", {"mail": f"m{number}@example.org"}


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as world:
        world.make_topic(
            PEOPLE,
            cleanup_policy="compact",
            segment_ms="500",
            min_cleanable_dirty_ratio="0.01",
            min_compaction_lag_ms="0",
        )
        world.make_topic(MEMBERS, 2)
        with Writer(world.bootstrap, PEOPLE, 1, _person, per_second=1) as writer:
            writer.write(7_000)
        options = f"(slices={SLICES}, defer_build=true)"
        world.sql(f"CREATE INDEX {BY_CITY} ON {PEOPLE} (city, age DESC) INCLUDE (name) WITH {options}")
        world.sql(f"CREATE INDEX {BY_TAG} ON {PEOPLE} (UNNEST(tags)) WITH {options}")
        world.sql(f"CREATE UNIQUE INDEX {BY_MAIL} ON {MEMBERS} (mail) WITH (slices=2, defer_build=true)")
        world.wait_ready(world.build(BY_MAIL, verify=False))  # of nothing, and so without Spark
        with Writer(world.bootstrap, MEMBERS, 2, _member, per_second=1) as writer:
            writer.write(1_000)
        world.wait_ready(world.build(BY_CITY, BY_TAG))
        yield world


def _report(world: World, job: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = world.admin.call("GET", f"/v1/jobs/{job}/report", **query)
    return found


def test_a_build_is_ready_only_verified(world: World) -> None:
    unverified, build = world.admin.call("GET", "/v1/builds")[:2]
    assert (unverified["verify"], unverified["verification"]) == (False, None)
    job = world.job(build["verification"])
    assert (job["state"], job["clean"], job["counts"], job["build"]) == ("DONE", True, {}, build["id"])
    assert sorted(job["indexes"]) == [BY_CITY, BY_TAG]
    assert job["documents_done"] > LOCAL_DOCUMENTS - 1_500  # once for both; the cleaner had begun
    report = _report(world, job["id"])
    assert {one["name"]: one["counts"] for one in report["indexes"]} == {BY_CITY: {}, BY_TAG: {}}
    assert all(one["entries"] > 3_000 for one in report["indexes"])
    assert world.admin.call("GET", f"/v1/indexes/{BY_TAG}")["verification"]["clean"] is True
    kinds = [event["kind"] for event in world.admin.call("GET", "/v1/events", limit=1_000)]
    assert kinds.index("job-done") < kinds.index("index-ready", kinds.index("job-started"))
    page = httpx.get(f"{world.cluster.coordinator_url}/v1/jobs/{job['id']}/report", params={"format": "html"})
    assert (page.status_code, "nothing is wrong" in page.text) == (200, True)


def test_a_build_of_documents_that_come_once_is_verified_by_sums(world: World) -> None:
    """Beside writes that the slices hear from their queues; nothing is read a second time, and a verification
    by hand finds nothing."""
    world.make_topic(GUESTS, 3)
    with Writer(world.bootstrap, GUESTS, 6, _guest, per_second=50) as writer:
        writer.write(3_000)
        world.sql(f"CREATE INDEX {BY_AGE} ON {GUESTS} (age) INCLUDE (name) WITH (slices=3, defer_build=true)")
        build = world.wait_ready(world.build(BY_AGE, verify=True))
    assert (build["verify"], build["compared"], build["verification"]) == (True, "equal", None)
    assert world.admin.call("GET", f"/v1/indexes/{BY_AGE}")["verification"] is None
    events = world.admin.call("GET", "/v1/events", limit=1_000)
    (text,) = [one["text"] for one in events if one["kind"] == "build-ready" and build["id"] in one["text"]]
    assert text.endswith("verified by sums")
    job = world.verified(BY_AGE)
    assert (job["state"], job["counts"]) == ("DONE", {}), _report(world, job["id"])


def _guest(chance: random.Random, number: int) -> tuple[str, Any]:
    return f"g{number}", {"age": chance.randrange(90), "name": f"n{number}"}


def test_nothing_is_reported_under_live_writes_and_compaction(world: World) -> None:
    with Writer(world.bootstrap, PEOPLE, 3, _person, per_second=100) as writer:
        writer.written = 10_000
        job = world.verified(BY_CITY)
        assert (job["state"], job["clean"]) == ("DONE", True), _report(world, job["id"])
    with Writer(world.bootstrap, MEMBERS, 4, _moving_mail, per_second=100):
        for _ in range(2):
            job = world.verified(BY_MAIL)
            assert (job["state"], job["counts"]) == ("DONE", {}), _report(world, job["id"])


def _moving_mail(chance: random.Random, number: int) -> tuple[str, Any]:
    """Mails that change hands: the old owner gives one up before the new one takes it."""
    pair = number // 2 % 200
    giver, taker = f"m{1_000 + pair}", f"m{1_200 + pair}"
    if number // 400 % 2:
        giver, taker = taker, giver
    if number % 2 == 0:
        return giver, {"mail": f"{giver}@example.org"}
    return taker, {"mail": f"shared{pair}@example.org"}


def test_acceptance_5_planted_faults_are_all_found_and_rightly_named(world: World) -> None:
    planted = _plant(world)
    job = world.verified(BY_CITY)
    report = _report(world, job["id"], limit=10_000)
    assert job["counts"] == dict.fromkeys(CLASSES, PLANTED), report["differences"][:5]
    assert job["clean"] is False
    for kind in CLASSES:
        found = {one["id"]: one for one in report["differences"] if one["kind"] == kind}
        assert found.keys() == planted[kind], kind
        for one in found.values():
            assert bool(one["expected"]) == (kind != "EXTRA"), one
            assert bool(one["found"]) == (kind != "MISSING"), one
            assert (one["version"] is None) == (kind == "EXTRA"), one
    wrong = [one for one in report["differences"] if one["kind"] == "WRONG_INCLUDED"]
    assert all(one["found"][0]["include"] == {"name": "planted"} for one in wrong)
    assert all(one["expected"][0]["key"] == one["found"][0]["key"] for one in wrong)
    first, second = _report(world, job["id"], limit=300), _report(world, job["id"], offset=300, limit=300)
    assert (first["next"], second["next"]) == (300, None)
    assert first["differences"] + second["differences"] == report["differences"]


def test_acceptance_5_duplicates_of_a_unique_index_are_all_found(world: World) -> None:
    with Writer(world.bootstrap, MEMBERS, 5, _duplicate, per_second=1) as writer:
        writer.write(PLANTED)
    world.check_at_end(BY_MAIL, MEMBERS, lambda document, _: [[document["mail"]]])
    job = world.verified(BY_MAIL)
    assert job["counts"] == {"DUPLICATE_UNIQUE": PLANTED}
    differences = _report(world, job["id"])["differences"]
    found = {frozenset((one["id"], *one["others"])) for one in differences}
    assert found == {frozenset((f"m{number}", f"d{number}")) for number in range(PLANTED)}
    assert all(
        one["found"][0]["key"] == [f"{one['id'].replace('d', 'm')}@example.org"] for one in differences
    )


def _duplicate(_: random.Random, number: int) -> tuple[str, Any]:
    return f"d{number}", {"mail": f"m{number}@example.org"}


def test_a_verification_survives_its_driver_and_can_be_cancelled(world: World, tmp_path: Path) -> None:
    hold = tmp_path / "go"
    arm(world.cluster, "coordinator", f"verify-compared:once={tmp_path / 'once'}")
    environment = world.cluster.services["coordinator"].env
    assert environment is not None
    environment["KEYTIDE_VERIFY__LOCAL_DOCUMENTS"] = "1000000"
    world.cluster.restart("coordinator")
    job = world.verified(BY_MAIL)
    assert (job["state"], job["attempts"]) == ("DONE", 2)
    job = world.verified(BY_TAG)  # quiet again: what could not be proven can be now; read without Spark
    assert (job["state"], job["counts"]) == ("DONE", {}), _report(world, job["id"])
    arm(world.cluster, "coordinator", f"verify-pinned:hold={hold}")
    world.cluster.restart("coordinator")
    held = world.admin.call("POST", f"/v1/indexes/{BY_MAIL}/verify")["id"]
    wait_for(hold.with_name("go.held").exists, "the driver waits")
    with pytest.raises(KeytideError, match="is under way"):
        world.admin.call("POST", f"/v1/indexes/{BY_MAIL}/verify")
    assert world.admin.call("POST", f"/v1/jobs/{held}/cancel")["state"] == "CANCELLED"
    wait_for(lambda: not world.processes("streaming.verify"), "the driver has ended")
    with pytest.raises(KeytideError, match="it has no report"):
        _report(world, held)


# --- planting ---------------------------------------------------------------------------------------------


def _plant(world: World) -> dict[str, set[str]]:
    """Faults of each class in the slices of BY_CITY; class -> document ids."""
    index = world.admin.call("GET", f"/v1/indexes/{BY_CITY}")
    ends = world.ends(PEOPLE)
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
    planted: dict[str, set[str]] = {kind: set() for kind in CLASSES}
    for number, folder in sorted(folders.items()):
        with planting(folder) as base:
            _plant_slice(base, number, planted)
    for node in nodes:
        world.cluster.restart(node)
    wait_for(lambda: not world.admin.call("GET", f"/v1/indexes/{BY_CITY}")["lost"], "no slice is lost")
    return planted


def _plant_slice(base: Base, number: int, planted: dict[str, set[str]]) -> None:
    victims = iter(base.documents())
    share = PLANTED // SLICES
    for kind in CLASSES:
        for at in range(share):
            docid, held = next(victims)
            (key,) = held.keys
            if kind == "EXTRA":
                docid = f"nobody{number}-{at}".encode()
                base.put_entry(key, docid, pack_value(b"", b'{"name":"planted"}'))
                if at % 2:  # the others are ghosts: the back index does not know them
                    base.put_record(
                        docid, StoredDocument(held.partition, held.offset, held.time, (key,), False)
                    )
            elif kind == "MISSING":
                base.remove_entry(key, docid)
                if at % 2:
                    base.remove_record(docid)
            elif kind == "WRONG_KEY":
                wrong = encode_key([f"planted{at}", 7], (False, True))
                value = base.value(key, docid)
                base.remove_entry(key, docid)
                base.put_entry(wrong, docid, value)
                base.put_record(docid, held._replace(keys=(wrong,)))
            elif kind == "WRONG_INCLUDED":
                base.put_entry(key, docid, pack_value(b"", b'{"name":"planted"}'))
            else:
                base.put_record(docid, held._replace(offset=held.offset + 1_000_000))
            planted[kind].add(docid.decode())
