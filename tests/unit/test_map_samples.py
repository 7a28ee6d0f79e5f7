"""Samples of geometries for maps: what a node takes of its slices, and what the coordinator makes of it."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from coordinator.http.leader_access import LeaderAccess
from coordinator.http.list_routes import add_lists
from coordinator.http.problems import add_error_handlers
from coordinator.process.service import CoordinatorService
from indexer.scan.peer.messages import MalformedRequestError
from indexer.scan.peer.wellformed import check
from indexer.serve.index_lists import page
from keytide.errors import InvariantViolationError, RetryableError
from keytide.http.nodes import NodeClient
from keytide.wire.index_lists import LARGEST_PAGE, BoundingBox, ListAsk, ListPage, ask_decoder, encoder
from tests.browser.scene import NODES, day_of_maps
from tests.unit.scan_world import Doc, FakeView, World


def dot(x: float, y: float) -> dict[str, Any]:
    return {"type": "Point", "coordinates": [x, y]}


def box(west: float, south: float, east: float, north: float) -> dict[str, Any]:
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}


def world_of(*places: dict[str, Any], clauses: str = "WITH (slices=2)") -> World:
    world = World(f"CREATE INDEX by_place ON users USING spatial (place) {clauses}", node_count=1)
    world.commit(1, {"by_place": [Doc([place], f"d{at}") for at, place in enumerate(places)]})
    return world


def sample(world: World, limit: int = 100, slices: tuple[int, ...] = (0, 1)) -> list[BoundingBox]:
    ask = ListAsk("map", world.index("by_place").id, list(slices), limit)
    check(ask, world.catalog)
    found = page(world.views["n0"], ask).boxes
    assert not any(one.readers for one in world.held()), "what was read is given back"
    return found


def test_all_places_are_given_where_they_are_few_each_once() -> None:
    places = dot(7.1, 50.7), dot(7.1, 50.7), dot(-180, -90), box(10, 10, 40, 40), box(170, 10, -170, 20)
    found = sample(world_of(*places))
    assert len(found) == 4
    assert {(7.1, 50.7, 7.1, 50.7), (-180.0, -90.0, -180.0, -90.0)} < set(found)
    (wide,) = [one for one in found if one[0] == 10]
    assert (wide[1], wide[2]) == (10, 40)
    assert wide[3] >= 40, "its northern edge bulges"
    assert [one[2] for one in found if one[0] == 170] == [-170.0]
    assert sample(world_of()) == []


def test_a_plane_has_its_own_numbers() -> None:
    found = sample(world_of(dot(1e6, -3), box(0, 0, 5, 7), clauses="WITH (slices=2, srid=0)"))
    assert sorted(found) == [(0.0, 0.0, 5.0, 7.0), (1e6, -3.0, 1e6, -3.0)]


def test_a_crowd_does_not_hide_the_others() -> None:
    chance = random.Random(5)
    crowd = [dot(7 + chance.random() / 100, 50 + chance.random() / 100) for _ in range(3_000)]
    others = [dot(x, y) for x in range(-150, 151, 60) for y in (-50, 0, 60)]
    world = world_of(*crowd, *others)
    found = sample(world, limit=80)
    assert len(found) == 80
    assert {(one["coordinates"][0], one["coordinates"][1]) for one in others} < {one[:2] for one in found}
    assert len(sample(world, limit=10, slices=(1,))) == 10


def test_it_takes_few_looks() -> None:
    world = world_of(*[dot(at / 100, 0) for at in range(500)], clauses="WITH (slices=1)")
    taken = world.views["n0"].tip(world.index("by_place").id, 0)
    assert taken is not None
    looks = 0
    rows = type(taken).rows

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += 1
        return rows(self, *args, **kwargs)

    taken.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(taken), "rows", counted)
        assert len(sample(world, 50, (0,))) == 50
    assert looks <= 2 * 50 + 1


def test_what_cannot_be_asked_is_refused() -> None:
    world = world_of(dot(1, 2))
    with pytest.raises(RetryableError, match="not open"):
        page(world.views["n0"], ListAsk("map", "away", [0], 5))
    cities = World("CREATE INDEX by_city ON users (city)", node_count=1)
    with pytest.raises(MalformedRequestError, match="has no geometries"):
        check(ListAsk("map", cities.index("by_city").id, [0], 5), cities.catalog)
    index = world.index("by_place")
    view: FakeView = world.views["n0"]
    taken = next(found for at in (0, 1) if (found := view.tip(index.id, at)) is not None and found.entries)
    (key, _), *_ = taken.entries
    taken.entries[:] = [(key, b"nonsense")]
    with pytest.raises(InvariantViolationError):
        page(view, ListAsk("map", index.id, [0, 1], 5))


# --- the coordinator ----------------------------------------------------------------------------------------


class MapNodes:
    """Nodes with three points each."""

    def __init__(self) -> None:
        self.asked: list[ListAsk] = []

    async def post(self, url: str, body: bytes, *_: Any) -> tuple[int, bytes]:
        ask = ask_decoder.decode(body)
        self.asked.append(ask)
        number = float(len(self.asked))
        return 200, encoder.encode(ListPage(boxes=[(at, 0.0, at, 0.0) for at in (0.0, number, number + 50)]))


def test_the_coordinator_gathers_a_sample_of_all_nodes() -> None:
    scene, nodes, app = day_of_maps(), MapNodes(), FastAPI()
    add_error_handlers(app)
    add_lists(app, LeaderAccess(cast(CoordinatorService, scene)), NodeClient(post=nodes.post))
    with TestClient(app) as client:
        answer = client.get("/v1/indexes/by_place/map", params={"limit": 9}).json()
        assert (answer["index"], answer["srid"]) == ("by_place", 4326)
        assert sorted(answer["boxes"]) == [[at, 0, at, 0] for at in (0, 1, 2, 51, 52)]
        assert sorted(number for ask in nodes.asked for number in ask.slices) == [0, 1, 2, 3]
        assert [(ask.what, ask.limit) for ask in nodes.asked] == [("map", 5)] * len(NODES)
        assert len(client.get("/v1/indexes/by_place/map", params={"limit": 2}).json()["boxes"]) == 2
        assert client.get("/v1/indexes/by_place/map", params={"limit": LARGEST_PAGE + 1}).status_code == 422
        refused = client.get("/v1/indexes/by_tail/map").json()
        assert (refused["status"], refused["type"]) == (422, "index-not-spatial")
        assert client.get("/v1/indexes/nothing/map").status_code == 404
        scene.sql("CREATE INDEX waits ON flights USING spatial (place) WITH (defer_build=true)")
        assert client.get("/v1/indexes/waits/map").json()["boxes"] == []
