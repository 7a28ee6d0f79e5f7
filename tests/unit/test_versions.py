"""Versions of the protocol: who says what, what is refused, and who is passed over (R52)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from coordinator.core.events import Reported
from coordinator.core.speakers import UpgradeNeededError
from coordinator.views import health, views
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import ClusterRecord, NodeRecord, decode_record, encode_record
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.health import Reason
from keytide.model.protocol import (
    CHANGES,
    FIRST_PROTOCOL,
    NARROWED,
    NEEDED,
    OTHER_STRUCTURES,
    PLACES,
    SPOKEN,
    SUBPARTITIONS,
    UnknownVersionError,
)
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import BuildProgress, JobProgress, Message, NodeHeartbeat, Progress, decode, encode
from tests.unit.copy_world import NODES
from tests.unit.test_layouts import LayoutWorld

LAYOUT = "ALTER INDEX by_city SET (slices=3)"


def world(**speaks: int) -> LayoutWorld:
    """An index that serves; then some are started again with an earlier release."""
    found = LayoutWorld()
    found.leader.dictionary.put(ClusterRecord("c1", "ab", 0))
    found.speaks = speaks
    found.live(1_000)
    found.progress(found.known().version, 130, 60)
    return found


def notes(found: LayoutWorld) -> list[Reason]:
    """What health says of versions."""
    return [one for one in health.of(found.leader, found.now).reasons if "of the protocol" in one.reason]


def used(found: LayoutWorld) -> int:
    return found.leader.dictionary.catalog.protocol


# --- who says what ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        NodeHeartbeat("n1", "http://n1.example", 1, 2, [], 0, 0, 0, protocol=SPOKEN),
        Progress("people", "p1", "t1", 0, [], 0, {}, SPOKEN),
        BuildProgress("b", "r", "RUNNING", 0, Timestamp(), Timestamp(), 0, {}, "", 1, protocol=SPOKEN),
        JobProgress("j", "r", "RUNNING", 0, 0.0, 0, 0, {}, "", "", 1, protocol=SPOKEN),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_release_that_does_not_say_speaks_the_first_one(message: Any) -> None:
    told = encode(message)
    assert decode(told) == message
    place = 1 + message.__struct_fields__.index("protocol")  # behind the tag
    older: Message = decode(told[:1] + msgspec.msgpack.encode(msgspec.msgpack.decode(told[1:])[:place]))
    assert older == msgspec.structs.replace(message, protocol=FIRST_PROTOCOL)


def test_records_of_an_earlier_release() -> None:
    cluster = decode_record("cluster", b'{"id":"c","secret":"ab","created_at":1}')
    node = decode_record("node/n1", b'{"id":"n1","url":"http://n1.example","first_seen":1}')
    assert isinstance(cluster, ClusterRecord)
    assert isinstance(node, NodeRecord)
    assert (cluster.protocol, node.protocol) == (FIRST_PROTOCOL, FIRST_PROTOCOL)


def test_nodes_are_shown_with_what_they_speak() -> None:
    found = world(n1=1)
    shown = {one["id"]: one["protocol"] for one in views.nodes(found.leader, found.now)}
    assert shown == {"n1": 1, "n2": SPOKEN, "n3": SPOKEN}
    assert views.cluster(found.leader, "", "", found.now)["protocol"] == {
        "used": 1,
        "spoken": SPOKEN,
    }
    note, _ = notes(found)
    assert (note.kind, note.status) == ("cluster", "ok")
    assert "node n1 speaks 1" in note.reason
    found.speaks = {}
    found.live(500)
    assert not notes(found)


def test_who_speaks_less_than_what_can_be_asked_for_is_named() -> None:
    (refused,) = notes(world(n1=NEEDED - 1, n2=NEEDED, p1=NEEDED - 1))
    named = f"node n1 speaks {NEEDED - 1}, projector p1 speaks {NEEDED - 1}"
    assert f"version {NEEDED} of the protocol: {named}; what needs it is refused" in refused.reason
    assert "n2" not in refused.reason
    assert "gateways" in refused.next_step
    assert refused.status == "ok"


def test_nodes_that_say_all_in_each_heartbeat_are_named() -> None:
    refused, whole = notes(world(n1=CHANGES - 1, n2=CHANGES, p1=1))
    assert "projector p1 speaks 1" in refused.reason
    assert f"say all in each heartbeat: node n1 speaks {CHANGES - 1}" in whole.reason
    assert not {"n2", "p1"} & set(whole.reason.replace(",", " ").split())
    assert whole.status == "ok"


@pytest.mark.parametrize("who", ["n2", "p1"])
@pytest.mark.parametrize(
    ("statement", "version"),
    [
        ("CREATE INDEX by_url ON people USING hash (url)", OTHER_STRUCTURES),
        ("CREATE INDEX by_url ON people USING spatial (home) PARTITION BY RANGE(cell)", PLACES),
        ("CREATE INDEX by_url ON people (url) WHERE ST_DWithin(home, ST_Point(1, 2), 5)", PLACES),
    ],
)
def test_a_structure_waits_until_all_know_of_it(statement: str, version: int, who: str) -> None:
    found = world(**{who: version - 1})
    with pytest.raises(UpgradeNeededError, match=f"needs version {version} of the protocol"):
        found.sql(statement)
    found.sql("CREATE INDEX by_zip ON people USING btree (zip)")
    assert used(found) == 1
    found.speaks = {}
    found.live(500)
    found.progress(found.known().version, 130, 60)
    found.sql(statement)
    assert used(found) == version


@pytest.mark.parametrize("state", ["READY", "DEFERRED", "FAILED"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_zip ON people (zip) PARTITION BY HASH(zip) SUBPARTITION BY HASH(id) SLICES 2",
        "CREATE OR REPLACE INDEX by_city ON people (city) PARTITION BY HASH(city) "
        "SUBPARTITION BY HASH(id) SLICES 2",
        "CREATE OR REPLACE INDEX by_city ON people USING hash (city)",
        "ALTER INDEX by_city PARTITION 0 SET (slices=2)",
    ],
)
def test_what_somebody_does_not_understand_changes_nothing_before_all_do(statement: str, state: Any) -> None:
    found = world(n2=SUBPARTITIONS - 1)
    dictionary = found.leader.dictionary
    dictionary.put(replace(dictionary.index_named("by_city"), state=state))
    dictionary.drain()
    before = {key: encode_record(record) for key, record in dictionary.catalog.records.items()}
    with pytest.raises(UpgradeNeededError, match=f"needs version {SUBPARTITIONS} of the protocol"):
        found.sql(statement)
    assert {key: encode_record(record) for key, record in dictionary.catalog.records.items()} == before
    assert dictionary.drain() is None, "nothing is pending"


BY_ID = (
    "CREATE INDEX by_url ON people (url) PARTITION BY HASH(id) WITH (slices=2)",
    "CREATE INDEX by_url ON people (url) PARTITION BY HASH(url) SUBPARTITION BY HASH(id) SLICES 2",
    "CREATE INDEX by_url ON people USING spatial (home)",
)


@pytest.mark.parametrize("statement", BY_ID)
def test_slices_hear_by_id_from_an_upgrade_on_and_no_statement_is_one(statement: str) -> None:
    found = world()
    found.sql(statement)
    before = found.index("by_url")
    assert not before.hears_by_id
    assert used(found) < NARROWED, "everybody may go back"
    assert found.leader.commands.upgrade(found.now).message.startswith(f"version {SPOKEN} of the protocol is")
    assert used(found) == SPOKEN
    assert "nothing is done" in found.leader.commands.upgrade(found.now).message
    assert not found.index("by_url").hears_by_id, "its slices hear all, as those who send know it"
    found.sql(statement.replace("by_url", "by_uri"))
    assert found.index("by_uri").hears_by_id


@pytest.mark.parametrize("spoken", [SPOKEN, SPOKEN - 1])
def test_a_cluster_uses_the_newest_from_its_first_index_on_if_all_know_of_it(spoken: int) -> None:
    found = world(n2=spoken)
    for index in list(found.leader.dictionary.catalog.indexes()):
        found.leader.dictionary.delete(f"index/{index.id}")
    found.sql(BY_ID[0])
    assert found.index("by_url").hears_by_id == (spoken == SPOKEN)
    assert used(found) == (SPOKEN if spoken == SPOKEN else 1)


@pytest.mark.parametrize("who", ["n2", "p1"])
def test_an_upgrade_waits_until_all_know_of_it(who: str) -> None:
    found = world(**{who: SPOKEN - 1})
    with pytest.raises(
        UpgradeNeededError, match=f"the newest version needs version {SPOKEN} of the protocol"
    ):
        found.leader.commands.upgrade(found.now)
    assert used(found) == 1


def test_an_index_of_before_hears_by_id_when_it_is_replaced_by_itself() -> None:
    found = world()
    statement = "CREATE OR REPLACE INDEX by_city ON people (city) PARTITION BY HASH(id) WITH (slices=2)"
    parsed, index = parse_statement(statement), found.index("by_city")
    assert isinstance(parsed, CreateIndex)
    found.leader.dictionary.put(replace(index, definition=parsed.definition))
    found.sql(statement)
    assert not list(found.leader.dictionary.catalog.pending_layouts("by_city")), "it is there already"
    found.leader.commands.upgrade(found.now)
    found.sql(statement)
    (layout,) = found.leader.dictionary.catalog.pending_layouts("by_city")
    assert layout.hears_by_id
    assert layout.replaces == index.id


def test_what_an_index_that_is_not_built_hears_is_decided_when_it_is_altered() -> None:
    found = world()
    found.leader.commands.upgrade(found.now)
    found.sql("CREATE INDEX by_url ON people (url) PARTITION BY HASH(id) WITH (slices=1, defer_build=true)")
    assert not found.index("by_url").hears_by_id
    for statement, by_id in (
        ("ALTER INDEX by_url SET (slices=64)", True),
        ("ALTER INDEX by_url PARTITION BY HASH(url)", False),
        ("ALTER INDEX by_url PARTITION 0 SET (slices=8)", True),
    ):
        found.sql(statement)
        record = found.index("by_url")
        assert record.hears_by_id is by_id
        assert views.index(found.leader, record, found.now)["hears"] == ("by-id" if by_id else "all")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_url ON people (url) WITH (slices=2)",
        "CREATE INDEX by_url ON people (url) PARTITION BY RANGE(url) SPLIT AT ('m')",
        "CREATE INDEX by_url ON people (url) PARTITION BY HASH(id) WITH (slices=1)",
        "CREATE INDEX by_url ON people (id) PARTITION BY HASH(id) WITH (slices=2)",
        "CREATE UNIQUE INDEX by_url ON people (id, url) PARTITION BY HASH(id) WITH (slices=2)",
    ],
)
def test_where_ids_say_nothing_slices_hear_all(statement: str) -> None:
    found = world()
    found.leader.commands.upgrade(found.now)
    found.sql(statement)
    assert not found.index("by_url").hears_by_id


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", [LAYOUT, "CREATE OR REPLACE INDEX by_city ON people (city, zip)"])
@pytest.mark.parametrize(("who", "named"), [("n2", "node n2"), ("p1", "projector p1")])
def test_a_new_layout_waits_until_all_know_of_layouts(statement: str, who: str, named: str) -> None:
    found = world(**{who: 1})
    before = dict(found.written)
    with pytest.raises(UpgradeNeededError) as refused:
        found.sql(statement)
    assert f"needs version 2 of the protocol, which not everybody speaks: {named} speaks 1" in (
        refused.value.message
    )
    assert "gateways" in refused.value.next_step
    assert used(found) == 1
    found.tick()
    assert found.written == before, "nothing was begun"
    found.speaks = {}
    found.live(500)
    found.progress(found.known().version, 130, 60)
    found.sql(statement)
    assert used(found) == 2
    assert decode_record("cluster", found.written["cluster"]) == ClusterRecord("c1", "ab", 0, 2)


def test_what_needs_no_later_version_is_done_and_enables_none() -> None:
    found = world(n2=1)
    found.sql("ALTER INDEX by_city SET (replicas=2)")
    found.sql("ALTER INDEX by_city RENAME TO by_town")
    found.sql("CREATE INDEX by_zip ON people (zip) WITH (slices=2)")
    assert used(found) == 1
    found.speaks = {}
    found.live(500)
    assert used(found) == 1, "and nothing by itself: until something needs it, everybody may go back"


def test_copies_move_among_nodes_that_know_of_it() -> None:
    found = world(n2=1)
    for node in NODES:
        with pytest.raises(UpgradeNeededError, match="a drain needs version 2 of the protocol"):
            found.leader.commands.drain(node, found.now)
    found.silent = {"n2"}
    found.live(5_000)
    with pytest.raises(UpgradeNeededError, match="node n2 speaks 1"):
        found.leader.commands.drain("n1", found.now)  # (it may come back)
    found.leader.commands.drain("n2", found.now)
    assert used(found) == 2
    found.sql(LAYOUT)  # n2 is drained and gone


def test_the_driver_of_a_build_that_goes_on_is_asked_too() -> None:
    found = world()
    found.sql("CREATE INDEX by_zip ON people (zip) WITH (slices=2)")
    build = found.index("by_zip").build or ""
    found.tick()
    found.prepared(build)
    found.driver(build, "RUNNING", protocol=1)
    with pytest.raises(UpgradeNeededError, match=f"the driver of build {build} speaks 1"):
        found.sql(LAYOUT)
    found.leader.commands.cancel(build, found.now)
    found.sql(LAYOUT)


def test_a_projector_whose_partitions_others_have_is_not_asked() -> None:
    found = world(p1=1)
    found.leader.stability.streams["people"].progress.partitions[0].projector = "p2"
    with pytest.raises(UpgradeNeededError, match="projector p1"):
        found.sql(LAYOUT)
    found.leader.stability.streams["people"].progress.partitions[1].projector = "p2"
    found.sql(LAYOUT)


# --- who is passed over -------------------------------------------------------------------------------------


def test_a_node_that_does_not_speak_what_is_in_use_is_passed_over_and_told_of() -> None:
    found = world()
    found.sql(LAYOUT)
    found.built()
    assert used(found) == 2
    found.speaks = {"n3": 1}
    found.live(10_000)
    assert found.leader.stability.nodes.live() == ["n1", "n2"], "as if it were silent"
    shown = {one["id"]: (one["live"], one["protocol"]) for one in views.nodes(found.leader, found.now)}
    assert shown["n3"] == (False, 1)
    told = [one for one in found.notes if one.kind == "node-too-old"]
    assert [one.text for one in told] == [
        "node n3 speaks version 1 of the protocol, and version 2 is in use: it is passed over until it is "
        "upgraded"
    ]
    (own,) = [one for one in notes(found) if one.kind == "node"]
    assert (own.subject, own.status) == ("node n3", "degraded")
    assert "it speaks version 1 of the protocol, and version 2 is in use" in own.reason
    assert "upgrade it" in own.next_step
    found.speaks = {}
    found.live(1_000)
    assert found.leader.stability.nodes.live() == list(NODES)
    assert not notes(found)


def test_what_is_in_use_stays_so_under_the_next_leader() -> None:
    found = world()
    found.sql(LAYOUT)
    other, _ = found.restart()
    assert other.leader.dictionary.catalog.protocol == 2
    beat = NodeHeartbeat("n1", "http://n1.example", 2, other.now, [], 0, 0, 0)
    other.handle(Reported(beat, other.now))
    assert "n1" not in other.leader.stability.nodes.by_id


def test_a_process_ends_that_reads_of_a_later_version() -> None:
    catalog = Catalog()
    catalog.apply("cluster", encode_record(ClusterRecord("c1", "ab", 0, SPOKEN)), 0)
    with pytest.raises(UnknownVersionError) as ended:
        catalog.apply("cluster", encode_record(ClusterRecord("c1", "ab", 0, SPOKEN + 1)), 1)
    assert f"the cluster uses version {SPOKEN + 1} of the protocol" in ended.value.message
    assert f"this process speaks version {SPOKEN}" in ended.value.message
    assert "upgrade it" in ended.value.next_step
    assert catalog.protocol == SPOKEN, "it goes by nothing of it"


def test_a_projector_that_does_not_speak_what_is_in_use_is_told_of() -> None:
    """It projects as ever: nothing of version 2 is a projector's."""
    found = world()
    found.sql(LAYOUT)
    found.speaks = {"p1": 1}
    found.progress(found.known().version, 130, 60)
    (own,) = [one for one in notes(found) if one.kind == "projector"]
    assert (own.subject, own.status) == ("projector p1", "degraded")
