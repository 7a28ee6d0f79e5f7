"""Zones: nodes say theirs, copies of a slice lie in different ones, scans stay in their own. And nodes that
are drained get no slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from coordinator.catalog.placement import TooFewNodesError, place
from coordinator.core.instructions import PrepareBuild
from coordinator.views import health, views
from indexer.ingest import reports
from indexer.scan.plan.directory import IndexDirectory
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import NodeRecord
from keytide.settings.settings import load_settings
from keytide.wire.messages import NodeHeartbeat, decode
from tests.unit.copies_world import INDEX as FILLED
from tests.unit.copies_world import LIMITS, CopiesWorld
from tests.unit.copy_world import CopyWorld
from tests.unit.leader_world import CREATE, World
from tests.unit.scan_world import World as ScanWorld
from tests.unit.test_scan_service import BY_CITY

ZONES = {"n1": "a", "n2": "a", "n3": "b"}


def record(world: World, node: str) -> NodeRecord:
    found = world.leader.dictionary.catalog.records[f"node/{node}"]
    assert isinstance(found, NodeRecord)
    return found


def drain(world: World, node: str) -> None:
    world.leader.dictionary.put(structs.replace(record(world, node), drained_at=world.now))
    world.tick()


# --- what nodes say -----------------------------------------------------------------------------------------


def test_a_node_tells_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Sends:
        def begin(self) -> None: ...

        def produce(self, topic: str, value: bytes, **_: Any) -> None:
            sent.append(value)

    monkeypatch.setattr(reports, "lasting_producer", lambda *_, **__: Sends())
    monkeypatch.setenv("KEYTIDE_INDEXER__ZONE", "eu-1.b_2")
    reports.NodeReporter(load_settings(), "n1", "http://n1.example", 1, bool).heartbeat([], 2, 3, 4, 5)
    (message,) = [decode(one) for one in sent]
    assert isinstance(message, NodeHeartbeat)
    assert message.zone == "eu-1.b_2"


def test_the_leader_remembers_it() -> None:
    world = World()
    world.zones = {"n1": "a"}
    world.node("n1", "n2")
    world.tick()
    assert (record(world, "n1").zone, record(world, "n2").zone) == ("a", "")
    drain(world, "n1")
    world.zones = {"n1": "b"}
    world.node("n1")
    assert record(world, "n1").zone == "b"
    assert record(world, "n1").drained_at > 0, "its other facts stay"
    assert world.leader.dictionary.catalog.zones() == {"n1": "zone b", "n2": "node n2"}
    shown = views.nodes(world.leader, world.now)
    assert [(one["id"], one["zone"]) for one in shown] == [("n1", "b"), ("n2", None)]


# --- where builds place -------------------------------------------------------------------------------------


def test_a_build_that_is_prepared_places_nothing_on_a_node_drained_meanwhile() -> None:
    world = World()
    world.node("n1", "n2")
    world.sql(CREATE)
    world.tick()
    drain(world, "n1")
    assert world.prepared("b8") == []
    assert world.index("by_city").placement == []
    assert [type(one) for one in world.tick()] == [PrepareBuild]
    world.prepared("b8")
    assert world.index("by_city").placement == [["n2"]] * 3


def placed(nodes: str, replicas: int, zones: str, slices: int = 1, drained: str = "") -> list[str]:
    """`nodes` and `zones` by letter."""
    load = dict.fromkeys(nodes, 0)
    found = place(slices, replicas, load, dict(zip(nodes, zones, strict=True)), set(drained))
    return ["".join(one) for one in found]


def test_copies_of_a_slice_are_placed_in_different_zones() -> None:
    assert placed("abcd", 1, "1122", slices=4) == ["ac", "bd", "ac", "bd"]
    assert placed("abc", 1, "112", slices=2) == ["ac", "bc"]


def test_as_long_as_there_are_zones() -> None:
    assert placed("abcd", 2, "1122") == ["acb"]
    assert placed("abc", 1, "111") == ["ab"]


def test_nodes_that_are_drained_get_no_slice() -> None:
    assert placed("abc", 1, "123", slices=2, drained="b") == ["ac", "ac"]
    with pytest.raises(TooFewNodesError) as refused:
        placed("abc", 1, "123", drained="ab")
    assert refused.value.message == "only 1 indexer node that may have slices is live, and 2 are needed"
    assert "undrain" in refused.value.next_step
    with pytest.raises(TooFewNodesError, match="no indexer node that may have slices is live"):
        placed("a", 0, "1", drained="a")


def test_a_build_keeps_to_both() -> None:
    world = World()
    world.zones = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    world.node(*world.zones)
    world.tick()
    drain(world, "n3")
    world.sql("CREATE INDEX by_city ON people (city) WITH (slices=4, replicas=1)")
    world.tick()
    world.prepared(world.index("by_city").build or "")
    placement = world.index("by_city").placement
    assert len(placement) == 4
    assert all(len({world.zones[node] for node in nodes}) == 2 for nodes in placement)
    assert not any("n3" in nodes for nodes in placement)


# --- where copies are filled --------------------------------------------------------------------------------


def filled(placement: list[list[str]], at_once: int) -> list[CopyRecord]:
    """The copies that are begun."""
    limits = replace(LIMITS, copies_per_node=at_once)
    world = CopiesWorld(placement, replicas=1, count=len(ZONES), limits=limits)
    world.zones = dict(ZONES)
    world.go(1_000)
    return world.records()


def test_a_copy_is_filled_in_a_zone_without_one() -> None:
    slices = [["n1"], ["n3"], ["n3"], ["n3"]]
    began = {one.slice: one.node for one in filled(slices, at_once=100)}
    assert began[0] == "n3", "though it has the most slices"


def test_it_waits_for_its_turn_there() -> None:
    began = filled([["n1"], ["n1"], ["n2"], ["n2"]], at_once=1)
    assert [one.node for one in began] == ["n3"], "n1 and n2 are of one zone"


def test_where_filling_it_has_failed_there_it_goes_elsewhere() -> None:
    world = CopiesWorld([["n1"]], replicas=1, count=3)
    world.zones = dict(ZONES)
    world.leader.copies._beginnings._failures[FILLED, 0] = {"n3": 1}
    world.go(1_000)
    assert world.record().node == "n2"


def test_no_copy_is_filled_on_a_node_that_is_drained() -> None:
    world = CopiesWorld([["n1"]], replicas=1, count=3)
    world.node("n2", "n3")
    drain(world, "n2")
    world.go(1_000)
    assert world.record().node == "n3"
    world = CopiesWorld([["n1"]], replicas=1, count=2)
    world.node("n2")
    drain(world, "n2")
    world.go(7_000)
    assert world.records() == []
    (told,) = world.told("copy-waits")
    assert told.endswith("another indexer node: none is live beside n1, n2 (n2 is drained); start one")


# --- health -------------------------------------------------------------------------------------------------


def crowded(world: CopyWorld) -> list[tuple[str, str, str]]:
    found = health.of(world.leader, world.now).reasons
    return [(one.subject, one.reason, one.next_step) for one in found if one.kind == "slice"]


def in_zones(zones: Mapping[str, str]) -> CopyWorld:
    """Slice 0 on n1 and n2, slice 1 on n3 and n1, and only then nodes say their zones."""
    world = CopyWorld().ready()
    assert world.index("by_city").placement == [["n1", "n2"], ["n3", "n1"]]
    world.zones = dict(zones)
    world.beat()
    return world


def test_two_copies_in_one_zone_are_told() -> None:
    world = in_zones(ZONES)
    said = "2 of its copies are in zone a and fail together, zone b has none"
    assert crowded(world) == [("slice 0 of by_city", said, "`keytide rebalance` moves one")]
    world.fill("c20", 0, "n3", why="moved", replaces="n1")
    world.beat()
    assert crowded(world) == [
        ("slice 0 of by_city", said, "wait: `keytide job list` shows how far the next copy is")
    ]


def test_not_where_there_is_no_other_zone_for_one() -> None:
    assert crowded(in_zones(dict.fromkeys(ZONES, "a"))) == []
    assert crowded(in_zones({})) == []
    world = in_zones(ZONES)
    drain(world, "n3")
    world.beat()
    assert crowded(world) == []


# --- scans --------------------------------------------------------------------------------------------------


def directory(here: str, zones: Mapping[str, str]) -> IndexDirectory:
    world = ScanWorld(BY_CITY, node_count=4)
    for node, zone in zones.items():
        world.record(NodeRecord(node, f"http://{node}", 0, zone=zone))
    found = IndexDirectory(world.views[here], choose=lambda nodes: nodes[-1])
    found.index("by_city")
    return found


def test_a_slice_is_read_here_then_in_the_same_zone_then_anywhere() -> None:
    found = directory("n0", {"n0": "a", "n1": "a", "n2": "b", "n3": "b"})
    assert found.replica(["n1", "n0", "n2"]) == "n0"
    assert found.replica(["n1", "n2", "n3"]) == "n1"
    assert found.replica(["n1", "n2", "n3"], {"n1"}) == "n3"
    assert found.replica(["n2", "n3"]) == "n3"


def test_without_a_zone_it_is_read_anywhere() -> None:
    found = directory("n0", {"n0": "", "n1": "", "n2": "b"})
    assert found.replica(["n1", "n2"]) == "n2"
    assert found.replica(["n2", "n1"]) == "n1"


def test_zones_that_change_are_seen() -> None:
    world = ScanWorld(BY_CITY, node_count=3)
    found = IndexDirectory(world.views["n0"], choose=lambda nodes: nodes[-1])
    for node, zone in {"n0": "a", "n1": "b", "n2": "a", "n3": "b"}.items():
        world.record(NodeRecord(node, f"http://{node}", 0, zone=zone))
    found.index("by_city")
    assert found.replica(["n2", "n1"]) == "n2"
    world.record(NodeRecord("n1", "http://n1.example", 0, zone="a"))
    world.record(NodeRecord("n2", "http://n2.example", 0, zone="b"))
    found.index("by_city")
    assert found.replica(["n1", "n2"]) == "n1"
