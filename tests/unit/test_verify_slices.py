"""Asking nodes for verification: which snapshot is held, on which node, what is read, and what is lost; and
the node's route, through the whole application."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from coordinator.builds.registry import FINISHED_KEPT
from indexer.digests import answering as node_side
from indexer.serve.api import create_app
from keytide.catalog.records import BuildRecord, KeyspaceRecord, NodeRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.collation import encode_key
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from keytide.wire import digests
from keytide.wire.digests import VERIFY_PATH, DigestAsk, PinAsk
from streaming.slices import pins
from streaming.slices.pins import PinLostError
from streaming.verify import slices as asking
from streaming.verify.slices import SliceClient
from tests.posts import post_to
from tests.unit.scan_world import Doc, FakeSnapshot, World, of_the_cluster
from tests.unit.test_origin import begun

SLICES = 3


def world(replicas: int = 0) -> World:
    made = World(f"CREATE INDEX i ON users (city) WITH (slices={SLICES})", replicas=replicas)
    for name in made.views:
        made.record(NodeRecord(name, f"http://{name}", 0))
    return made


def fill(made: World, number: int, *nodes: str) -> None:
    """A snapshot of every slice on the nodes (all by default): one document each."""
    index = made.index("i")
    for slice_number, placed in enumerate(index.placement):
        for node in placed:
            if nodes and node not in nodes:
                continue
            entries = [Doc([f"c{slice_number}"], f"d{slice_number}").entry((False,))]
            snapshot = FakeSnapshot(number, 0, Timestamp.of({0: number, 1: number}), entries)
            made.views[node].slices[index.id, slice_number].add(snapshot, -1)


@contextmanager
def asked(made: World, down: frozenset[str] = frozenset()) -> Iterator[tuple[SliceClient, list[str]]]:
    """Slices over the world's nodes, some of which do not answer; which nodes were asked."""
    told: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        node = request.url.host
        told.append(node)
        if node in down:
            raise httpx.ConnectError("down")
        ask = digests.ask_decoder.decode(request.content)
        try:
            found = node_side.answer(made.views[node], ask, 1_000)
        except RetryableError as error:
            return httpx.Response(error.status, json=error.problem())
        return httpx.Response(200, content=digests.encode(found))

    nodes = BlockingNodeClient("", post_to(handle))
    slices = SliceClient(lambda: made.catalog, [made.index("i").id], nodes)
    try:
        yield slices, told
    finally:
        slices.close()


def test_the_newest_snapshot_that_all_slices_hold_is_held_until_it_is_given_back() -> None:
    made = world()
    fill(made, 4)
    fill(made, 5, "n0")
    with asked(made) as (slices, _):
        pin = slices.pin()
        assert (pin.number, pin.timestamp.offsets()) == (4, {0: 4, 1: 4})
        assert pin.entries == {made.index("i").id: SLICES}
        held = [view.slices[key].snapshots[4] for view in made.views.values() for key in view.slices]
        assert all(set(one.leases) == {pin.hold} for one in held)
        slices.release(pin)
        assert all(one.leases[pin.hold] <= 1_000 for one in held)
        assert all(one.readers == 0 for one in held)


def test_without_a_common_snapshot_it_says_which_slices_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "PIN_LIMIT_S", 0.1)
    made = world()
    fill(made, 4, "n0")
    with asked(made) as (slices, _), pytest.raises(RetryableError, match=r"slices \[1\] of i do not hold"):
        slices.pin()
    fill(made, 4)
    with asked(made) as (slices, _), pytest.raises(RetryableError, match="1 documents behind what is wanted"):
        slices.pin(at_least=Timestamp.of({0: 5, 1: 0}))


def test_what_was_held_for_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "PIN_LIMIT_S", 0.2)
    made = world()
    fill(made, 4, "n1")
    fill(made, 5, "n0")  # number 4 is gone there
    with asked(made) as (slices, _), pytest.raises(RetryableError, match="do not hold snapshot 4"):
        slices.pin()
    fill(made, 5, "n1")
    with asked(made) as (slices, _), pytest.raises(RetryableError, match="1 documents behind what is wanted"):
        slices.pin(at_least=Timestamp.of({0: 6, 1: 0}))
    held = [
        one for view in made.views.values() for key in view.slices.values() for one in key.snapshots.values()
    ]
    assert any(one.leases for one in held)
    assert all(until <= 1_000 for one in held for until in one.leases.values())


def test_a_replica_answers_for_a_node_that_is_down() -> None:
    made = world(replicas=1)
    fill(made, 7)
    with asked(made, frozenset({"n0"})) as (slices, told):
        pin = slices.pin()
        assert set(pin.nodes.values()) == {"n1"}
        told.clear()
        assert len(list(slices.digests(pin, 2, {}))) == SLICES
        assert set(told) == {"n1"}


def test_every_copy_that_can_holds_the_snapshot_until_it_is_given_back() -> None:
    made = world(replicas=1)
    fill(made, 7)
    with asked(made) as (slices, _):
        pin = slices.pin()
        copies = {
            (view.node_id, key[1]): one for view in made.views.values() for key, one in view.slices.items()
        }
        assert {place for place, one in copies.items() if one.snapshots[7].leases} == copies.keys()
        assert len(copies) == 2 * SLICES
        assert sum(pin.entries.values()) == SLICES, "each slice is counted once"
        slices.release(pin)
        assert all(one.snapshots[7].leases[pin.hold] <= 1_000 for one in copies.values())


def test_copies_that_are_not_the_same_are_told_apart() -> None:
    """One has another entry, one lacks its own; what a copy that is gone has is not asked."""
    made = world(replicas=1)
    fill(made, 7)
    index = made.index("i").id
    with asked(made) as (slices, _):
        pin = slices.pin()
        sums = {place: mine for place, mine, _, _ in slices.digests(pin, 0, {})}
        assert list(slices.apart(pin, 0, {}, sums)) == []
        ((other, *_), (another, *_)) = (pin.others[index, 0], pin.others[index, 1])
        wrong = [Doc(["x"], "d9").entry((False,))]
        made.views[other].slices[index, 0].snapshots[7].entries = wrong
        made.views[another].slices[index, 1].snapshots[7].entries = []
        found = list(slices.apart(pin, 0, {}, sums))
        assert found == [((index, 0), other, [0]), ((index, 1), another, [0])]
        ((_, rows, _),) = slices.rows(pin.on((index, 0), other), [(index, 0)], 0, [0], [])
        assert [row[0] for row in rows] == [b"d9"]
        made.views[other].slices[index, 0].restart()
        assert [place for place, _, _ in slices.apart(pin, 0, {}, sums)] == [(index, 1)]


def test_a_copy_that_lags_holds_no_verification_back() -> None:
    made = world(replicas=1)
    fill(made, 4)
    for number in range(5, 30):
        fill(made, number, "n1")
    with asked(made) as (slices, _):
        pin = slices.pin()
        assert pin.number == 29
        assert set(pin.nodes.values()) == {"n1"}


def test_a_node_that_did_not_answer_is_asked_last_and_for_nothing_that_others_have() -> None:
    made = world(replicas=1)
    fill(made, 7)
    with asked(made, frozenset({"n0"})) as (slices, told):
        slices.pin()
        told.clear()
        slices.pin()
        assert told == ["n1", "n1"]


def test_rows_and_sums_come_whole_in_small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ROWS_PER_CALL", 1)
    made = world()
    fill(made, 7)
    index = made.index("i").id
    with asked(made) as (slices, _):
        pin = slices.pin()
        for place, sums, left_out, duplicates in slices.digests(pin, 0, {}):
            assert (int(sums[digests.ENTRIES].sum()), left_out, duplicates) == (1, 0, []), place
        found = {place: entries for place, entries, _ in slices.rows(pin, pin.nodes, 0, [0], [])}
        key = encode_key(["c2"])
        assert found[index, 2] == [(b"d2", key, b"")]
        only = {place: entries for place, entries, _ in slices.rows(pin, pin.nodes, 8, [], [b"d1"])}
        assert {place[1]: len(entries) for place, entries in only.items()} == {0: 0, 1: 1, 2: 0}


def test_a_snapshot_that_is_gone_and_a_slice_that_is_doubted_end_it() -> None:
    made = world()
    fill(made, 7)
    index = made.index("i").id
    with asked(made) as (slices, _):
        pin = slices.pin()
        made.views["n1"].slices[index, 1].restart()
        with pytest.raises(PinLostError, match="slice 1 of"):
            list(slices.digests(pin, 2, {}))
    fill(made, 8)
    with asked(made) as (slices, _):
        pin = slices.pin()
        made.views["n0"].slices[index, 0].snapshots[8].entries = [(b"\xff not a key", b"")]
        with pytest.raises(RetryableError, match="store-doubted"):
            list(slices.digests(pin, 2, {}))
    assert (index, 0) in made.views["n0"].doubted


def test_where_the_table_was_taken_that_an_index_began_with() -> None:
    made = World(*(f"CREATE INDEX {name} ON users (city) WITH (slices=1)" for name in "ij"))
    made.change("j", build="b2", slice_builds={0: "b3"})
    nodes = BlockingNodeClient("")
    slices = SliceClient(lambda: made.catalog, [made.index(name).id for name in "ij"], nodes)

    def began(build: str, origin: TableOrigin | None) -> None:
        made.record(BuildRecord(build, "users", [], "READY", Timestamp(), 0, origin=origin))

    assert slices.tables_taken_at() == {}
    began("b1", None)
    assert slices.tables_taken_at() == {}
    began("b2", TableOrigin("parquet", {0: 40, 1: 20}, topic_id="t"))
    assert slices.tables_taken_at() == {0: 40, 1: 20}
    began("b1", TableOrigin("parquet", {0: 30, 1: 21}, topic_id="t"))
    assert slices.tables_taken_at() == {0: 40, 1: 21}
    made.record(KeyspaceRecord("users", "t2", 2, 1))
    assert slices.tables_taken_at() == {}, "the topic was made anew: all of it is in the log"
    slices.close()


def test_the_record_that_says_so_is_kept_as_long_as_the_index() -> None:
    made = begun()
    registry, first = made.leader.builds.registry, replace(made.build("b8"), state="READY")
    registry.put(first)
    for number in range(FINISHED_KEPT + 1):
        registry.put(replace(first, id=f"b{100 + number}", state="CANCELLED"))
    registry.finish(first)
    kept = {one.id for one in registry.all()}
    assert "b8" in kept
    assert "b100" not in kept


def test_the_route_of_a_node() -> None:
    made = world()
    fill(made, 7)
    view = made.views["n0"]
    settings = load_settings(security={"tokens": {"reads": ["read"]}})
    index = made.index("i").id
    ask = DigestAsk(index, 0, 7, 0, "forward", 2, {}, b"", 10)
    with TestClient(create_app(view, settings, CollectorRegistry())) as client:
        client.headers.update(of_the_cluster() | {"Authorization": "Bearer reads"})
        assert client.post(VERIFY_PATH, content=digests.encode(ask)).status_code == 401
        client.headers.update(of_the_cluster())
        answer = digests.decode_answer(client.post(VERIFY_PATH, content=digests.encode(ask)).content)
        assert isinstance(answer, digests.DigestAnswer)
        sums = np.frombuffer(answer.sums, "<u8").reshape(digests.FIELDS, 4)
        assert int(sums[digests.ENTRIES].sum()) == 1
        gone = DigestAsk(index, 0, 6, 0, "forward", 2, {}, b"", 10)
        response = client.post(VERIFY_PATH, content=digests.encode(gone))
        assert (response.status_code, response.json()["type"]) == (503, "snapshot-not-held")
        other = client.post(VERIFY_PATH, content=digests.encode(PinAsk("no", [0], 1, 0, "h", 5)))
        pinned = digests.decode_answer(other.content)
        assert isinstance(pinned, digests.PinAnswer)
        assert not pinned.slices[0].held
        assert client.post(VERIFY_PATH, content=b"nonsense").status_code == 422
