"""Roles of nodes: what a node says it is for, where slices are placed, who answers scans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.catalog.placement import TooFewNodesError, place
from coordinator.catalog.registry import ConflictError
from coordinator.copies.moving import Moves
from coordinator.views import health, views
from indexer.ingest import reports
from keytide.catalog.records import NodeRecord, decode_record, encode_record
from keytide.cli import app
from keytide.cli.admin import Admin
from keytide.cli.nodes import node_urls
from keytide.client import Client
from keytide.errors import CallerError, ConfigurationError, KeytideError
from keytide.model.health import Reason
from keytide.settings.settings import load_settings
from keytide.wire.messages import NodeHeartbeat, decode, encode
from tests.unit.copies_world import LIMITS, CopiesWorld
from tests.unit.leader_world import CREATE, World
from tests.unit.test_api import serving, world_of_cities

SCAN, INDEX, BOTH = ("scan",), ("index",), ("index", "scan")


# --- what a node says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "roles"),
    [("scan", SCAN), (" scan , index", BOTH), ('["index"]', INDEX), ("scan,scan", SCAN)],
)
def test_roles_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, roles: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KEYTIDE_INDEXER__ROLES", text)
    assert load_settings().indexer.roles == roles


def test_or_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keytide.toml").write_text('[indexer]\nroles = ["scan"]\n')
    monkeypatch.setenv("KEYTIDE_CONFIG", str(tmp_path / "keytide.toml"))
    assert load_settings().indexer.roles == SCAN
    monkeypatch.delenv("KEYTIDE_CONFIG")
    assert load_settings().indexer.roles == BOTH


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a node has one role at least: name some of index and scan"),
        ("[]", "a node has one role at least: name some of index and scan"),
        ("scan,query", "there is no role 'query': the roles are index and scan"),
        ("[1]", "there is no role 1: the roles are index and scan"),
        ("[", "it is no list in JSON"),
    ],
)
def test_what_is_no_role_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("KEYTIDE_INDEXER__ROLES", text)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert refused.value.message.startswith(f"setting indexer.roles: {said}")


def test_another_list_that_is_no_list_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYTIDE_BUILD__JARS", "one.jar")
    with pytest.raises(ConfigurationError, match=r'"build".*no JSON'):
        load_settings()


def test_a_node_tells_its_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Sends:
        def begin(self) -> None: ...

        def produce(self, topic: str, value: bytes, **_: Any) -> None:
            sent.append(value)

    monkeypatch.setattr(reports, "lasting_producer", lambda *_, **__: Sends())
    monkeypatch.setenv("KEYTIDE_INDEXER__ROLES", "scan")
    reports.NodeReporter(load_settings(), "n1", "http://n1.example", 1, bool).heartbeat([], 2, 3, 4, 5)
    (message,) = [decode(one) for one in sent]
    assert isinstance(message, NodeHeartbeat)
    assert message.roles == SCAN


def test_older_and_newer_nodes_are_understood() -> None:
    """Older ones say nothing, newer ones may know roles that are not known here."""
    told = encode(NodeHeartbeat("n1", "http://n1.example", 1, 2, [], 0, 0, 0, "", ("scan", "search")))
    assert decode(told[:1] + msgspec.msgpack.encode(msgspec.msgpack.decode(told[1:])[:10])) == NodeHeartbeat(
        "n1", "http://n1.example", 1, 2, [], 0, 0, 0
    )
    assert decode(told).roles == ("scan", "search")  # type: ignore[union-attr]
    old = decode_record("node/n1", b'{"id":"n1","url":"http://n1.example","first_seen":1}')
    assert isinstance(old, NodeRecord)
    assert (old.has("index"), old.has("scan")) == (True, True)
    newer = NodeRecord("n1", "http://n1.example", 1, roles=("scan", "search"))
    assert decode_record("node/n1", encode_record(newer)) == newer
    assert (newer.has("index"), newer.has("scan")) == (False, True)


def test_the_leader_remembers_and_shows_them() -> None:
    world = World()
    world.roles = {"n1": SCAN, "n2": BOTH}
    world.node("n1", "n2", "n3")
    world.tick()
    catalog = world.leader.dictionary.catalog
    assert catalog.closed() == {"n1"}
    shown = {one["id"]: one["roles"] for one in views.nodes(world.leader, world.now)}
    assert shown == {"n1": ["scan"], "n2": ["index", "scan"], "n3": ["index", "scan"]}
    world.roles = {}  # it was started again with an older release
    world.node("n1")
    assert catalog.closed() == frozenset()


# --- where slices are ---------------------------------------------------------------------------------------


def test_no_slice_is_placed_on_a_node_for_scans() -> None:
    world = World()
    world.roles = {"n1": SCAN}
    world.node("n1")
    world.sql(CREATE)
    world.tick()
    build = world.index("by_city").build or ""
    waits = world.leader.builds.registry.run(build).waiting_for
    assert waits == "indexer nodes: no indexer node that may have slices is live"
    world.node("n2")
    world.tick()
    world.prepared(build)
    assert world.index("by_city").placement == [["n2"]] * 3


def test_a_build_whose_node_loses_the_role_meanwhile_places_its_slices_anew() -> None:
    world = World()
    world.node("n1", "n2")
    world.sql(CREATE)
    world.tick()
    world.roles = {"n1": SCAN}
    world.node("n1")
    assert world.prepared("b8") == []
    world.tick()
    world.prepared("b8")
    assert world.index("by_city").placement == [["n2"]] * 3


def test_too_few_nodes_says_how_to_have_more() -> None:
    with pytest.raises(TooFewNodesError) as refused:
        place(1, 1, {"a": 0, "b": 0}, {"a": "a", "b": "b"}, {"b"})
    assert "indexer.roles" in refused.value.next_step


def copies(placement: list[list[str]], roles: dict[str, tuple[str, ...]], count: int = 3) -> CopiesWorld:
    """A cluster that serves; then nodes are started again with these roles."""
    limits = replace(LIMITS, copies_per_node=100)
    world = CopiesWorld(placement, replicas=len(placement[0]) - 1, count=count, limits=limits)
    world.go(2_000)
    assert world.published > 0
    world.roles = roles
    world.beat()
    return world


def moves(world: CopiesWorld) -> Moves:
    return world.leader.copies.moves


def rebalance(world: CopiesWorld) -> None:
    _, out = moves(world).carry_out(moves(world).sketch().plan(), world.now)
    world.take(world.leader._settle(out, world.now))


def reasons(world: World, kind: str) -> list[Reason]:
    return [one for one in health.of(world.leader, world.now).reasons if one.kind == kind]


def test_no_copy_is_filled_on_one() -> None:
    world = CopiesWorld([["n1"]], replicas=1, count=3)
    world.roles = {"n2": SCAN}
    world.go(1_000)
    assert world.record().node == "n3"
    world = CopiesWorld([["n1"]], replicas=1, count=2)
    world.roles = {"n2": SCAN}
    world.go(7_000)
    assert world.records() == []
    (told,) = world.told("copy-waits")
    assert told.endswith("none is live beside n1, n2 (n2 has not the role index); start one")


def test_what_is_filled_on_a_node_that_loses_the_role_is_given_up() -> None:
    world = CopiesWorld([["n1"]], replicas=1, count=3)
    world.go(1_000)
    first = world.record()
    world.roles = {first.node: SCAN}
    world.go(1_000)
    assert "has not the role index any more" in world.told("copy-given-up")[0]
    assert world.record().node not in ("n1", first.node)


def test_nothing_moves_by_itself_and_health_says_what_to_do() -> None:
    world = copies([["n1"], ["n2"]], {"n1": SCAN})
    world.go(3_000)
    assert world.records() == []
    (told,) = reasons(world, "node")
    assert told.subject == "node n1"
    assert told.status == "degraded"
    assert told.reason == "it has not the role index, and 1 copy of a slice is on it"
    assert "keytide rebalance" in told.next_step
    assert "keytide node drain n1" in told.next_step


def test_a_rebalance_moves_its_copies_off() -> None:
    world = copies([["n1"], ["n1"], ["n2"]], {"n1": SCAN})
    assert {(one.source, one.slice) for one in moves(world).sketch().plan()} == {("n1", 0), ("n1", 1)}
    rebalance(world)
    world.go(500)
    assert reasons(world, "node") == []
    for record in world.records():
        world.fill(record)
    world.go(4_000)
    assert not any("n1" in nodes for nodes in world.index("by_city").placement)
    assert reasons(world, "node") == []
    assert moves(world).sketch().plan() == []


def test_so_does_a_drain() -> None:
    world = copies([["n1"], ["n2"]], {"n1": SCAN})
    world.take(world.leader._settle(moves(world).drain("n1", world.now)[1], world.now))
    world.go(500)
    assert (world.record().node, world.record().replaces) == ("n3", "n1")


def test_nothing_moves_to_one() -> None:
    world = copies([["n1"], ["n1"]], {"n3": SCAN})
    assert {one.target for one in moves(world).sketch().plan()} == {"n2"}
    world = copies([["n1"], ["n2"]], {"n3": SCAN})
    world.take(world.leader._settle(moves(world).drain("n1", world.now)[1], world.now))
    world.go(500)
    assert world.record().node == "n2"


def test_the_last_node_for_slices_cannot_be_drained() -> None:
    world = copies([["n1"]], {"n2": SCAN}, count=2)
    with pytest.raises(ConflictError, match="no other indexer node is live that may have slices"):
        moves(world).drain("n1", world.now)


# --- health -------------------------------------------------------------------------------------------------


def test_a_role_that_nobody_has_is_told() -> None:
    world = copies([["n1"]], {"n1": INDEX, "n2": INDEX, "n3": INDEX})
    (told,) = reasons(world, "cluster")
    assert told.reason == "no indexer node with the role scan is live: only gateways answer scans"
    assert "indexer.roles" in told.next_step
    world.roles["n3"] = SCAN
    world.beat()
    assert reasons(world, "cluster") == []
    world.nodes["n3"].up = False
    world.go(5_000)
    assert [one.reason for one in reasons(world, "cluster")] == [told.reason]
    world = copies([["n1"]], dict.fromkeys(("n1", "n2", "n3"), SCAN))
    (told,) = reasons(world, "cluster")
    assert told.reason == "no indexer node with the role index is live: slices can be placed nowhere"


def test_who_was_not_heard_yet_is_not_missed() -> None:
    world = copies([["n1"]], {"n1": INDEX, "n2": INDEX, "n3": SCAN})
    world.succeed()
    world.beat("n1", "n2")
    assert reasons(world, "cluster") == []


# --- who answers scans --------------------------------------------------------------------------------------


@contextmanager
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Where a node that holds slices and does not scan serves, and one that scans and holds none."""
    world = world_of_cities(node_count=2)
    first, second = world.views["n0"], world.views["n1"]
    with ExitStack() as stack:
        monkeypatch.setenv("KEYTIDE_INDEXER__ROLES", "index")
        one = stack.enter_context(serving(first, load_settings()))
        monkeypatch.setenv("KEYTIDE_INDEXER__ROLES", "scan")
        two = stack.enter_context(serving(second, load_settings()))
        first.urls, second.urls = {"n1": two}, {"n0": one}
        world.record(NodeRecord("n0", one, 0, roles=INDEX))
        world.record(NodeRecord("n1", two, 0, roles=SCAN))
        yield one, two


def test_a_node_without_the_role_refuses_clients_and_answers_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_nodes(monkeypatch) as (one, two):
        for method, path in [
            ("POST", "/v1/indexes/by_city/scan"),
            ("GET", "/v1/indexes/by_city/tail"),
            ("POST", "/v1/query"),
            ("GET", "/v1/indexes"),
        ]:
            answer = httpx.request(method, f"{one}{path}", content=b"{}")
            said = answer.json()
            assert (answer.status_code, said["type"]) == (421, "scans-elsewhere"), path
            assert said["nodes"] == [two]
            assert said["next_step"] == f"ask a node that does: {two}"
            assert answer.headers["retry-after"], "who does not know this error goes on to the next node"
        assert httpx.get(f"{one}/readyz").json()["roles"] == ["index"]
        assert 'keytide_scan_errors_total{type="scans-elsewhere"} 4.0' in httpx.get(f"{one}/metrics").text
        with Client(two) as client:
            assert client.count("by_city").count == 20, "it reads the slices of the other one"
        with pytest.raises(CallerError) as refused, Client(one) as client:
            client.count("by_city")
        assert refused.value.problem_type == "scans-elsewhere"


def test_a_client_goes_on_to_a_node_that_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_nodes(monkeypatch) as (one, two), Client([one, two]) as client:
        assert client.count("by_city").count == 20
        assert len(list(client.scan("by_city"))) == 20


def test_what_a_node_that_scans_says_counts_more() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "index.example":
            return httpx.Response(421, json={"type": "scans-elsewhere", "detail": "not here"})
        return httpx.Response(503, json={"type": "starting", "detail": "soon"}, headers={"Retry-After": "0"})

    for urls in (
        ["http://index.example", "http://scan.example"],
        ["http://scan.example", "http://index.example"],
    ):
        asked.clear()
        with (
            Client(urls, transport=httpx.MockTransport(answer), retries=1) as client,
            pytest.raises(KeytideError) as last,
        ):
            client.count("by_city")
        assert last.value.problem_type == "starting"
        assert (asked.count("index.example"), asked.count("scan.example")) == (1, 2), (
            "not asked again for the same"
        )


def test_the_command_asks_nodes_that_scan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with two_nodes(monkeypatch) as (one, two):
        monkeypatch.setenv("KEYTIDE_NODES", f"{one},{two}")
        assert node_urls(None, None, tmp_path) == [two]
        found = CliRunner().invoke(app, ["scan", "by_city", "--count", "--json"])
        assert json.loads(found.stdout)["count"] == 20, found.output


def test_the_coordinator_names_nodes_that_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[dict[str, Any]] = [
        {"url": "http://a.example", "live": True, "roles": ["index"]},
        {"url": "http://b.example", "live": True, "roles": ["scan"]},
        {"url": "http://c.example", "live": True},
    ]
    monkeypatch.setattr(Admin, "call", lambda *_, **__: listed)
    admin = Admin.__new__(Admin)
    assert admin.node_urls() == ["http://b.example", "http://c.example"], (
        "an older coordinator says nothing of roles"
    )
    del listed[1:]
    with pytest.raises(KeytideError, match="no indexer node is alive that has the role scan"):
        admin.node_urls()
