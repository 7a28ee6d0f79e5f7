"""Zones: nodes say theirs, copies of a slice lie in different ones, scans stay in their own. And nodes that
are drained get no slices."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from coordinator.views import views
from indexer.ingest import reports
from keytide.catalog.records import NodeRecord
from keytide.settings.settings import load_settings
from keytide.wire.messages import NodeHeartbeat, decode
from tests.unit.leader_world import World

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
        def produce(self, topic: str, *, value: bytes, **_: Any) -> None:
            sent.append(value)

    monkeypatch.setattr(reports, "producer", lambda settings, **_: Sends())
    monkeypatch.setenv("KEYTIDE_INDEXER__ZONE", "eu-1.b_2")
    reports.NodeReporter(load_settings(), "n1", "http://n1.example", 1).heartbeat([], 2, 3, 4, 5)
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
