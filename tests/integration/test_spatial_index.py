"""Spatial indexes on the real parts: places of one cell and of several, kept together by cell and spread by
id, built by Spark and followed live, while a node is killed and slices change; verified; what is no place
skipped; and asked by every way there is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from keytide.client.protocol.options import NearOptions
from keytide.errors import KeytideError
from tests.integration.conftest import Worlds
from tests.integration.shared_cluster import SETTINGS
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC = "stops"
IDS = 600
HERE = (11.0, 50.0)
BOX = (10.5, 49.7, 11.5, 50.3)
EARTH = 6_371_008.8
SLACK = 0.006
"""How far distances on a sphere and on the spheroid are apart, and great circles from parallels here."""
Vector = tuple[float, float, float]


def _stop(chance: random.Random, number: int) -> tuple[str, Any]:
    which = number if number < IDS else chance.randrange(IDS)
    if number >= IDS and chance.random() < 0.1:
        return f"s{which}", None
    x, y = round(chance.uniform(9, 13), 6), round(chance.uniform(49, 51), 6)
    place: Any = {"type": "Point", "coordinates": [x, y]}
    if which % 4 == 1:
        size = chance.choice([0.0005, 0.02, 0.4])
        corners = [[x - size, y - size], [x + size, y - size], [x + size, y + size], [x - size, y + size]]
        place = {"type": "Polygon", "coordinates": [[*corners, corners[0]]]}
    elif which % 50 == 2:
        place = chance.choice([{"type": "Point", "coordinates": [x, 91.5]}, "nowhere", None])
    return f"s{which}", {"at": place, "n": number}


def _is_place(document: dict[str, Any]) -> bool:
    return isinstance(document["at"], dict) and document["at"]["coordinates"][1:] != [91.5]


def _by_place(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    if _is_place(document):
        yield [document["at"]]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as world:
        world.make_topic(TOPIC, 3)
        with Writer(world.bootstrap, TOPIC, 3, _stop) as writer:
            writer.write(3_000)
            defer = "defer_build=true, replicas=1, slices=2"
            at = f"ON {TOPIC} USING spatial (at) INCLUDE (n)"
            world.sql(f"CREATE INDEX spread {at} WITH ({defer})")
            world.sql(f"CREATE INDEX near {at} PARTITION BY RANGE(cell) WITH ({defer})")
            world.wait_ready(world.build("spread", "near"))
        yield world


def checked_at_end(world: World) -> None:
    """Compare both indexes with their source: each document once."""
    for index in ("spread", "near"):
        assert world.check_unordered_at_end(index, TOPIC, _by_place) > 0


def extent(place: dict[str, Any]) -> tuple[float, float, float, float]:
    coordinates = place["coordinates"]
    corners = [coordinates] if place["type"] == "Point" else coordinates[0]
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    return min(xs), min(ys), max(xs), max(ys)


def _vector(lon: float, lat: float) -> Vector:
    x, y = math.radians(lon), math.radians(lat)
    return math.cos(y) * math.cos(x), math.cos(y) * math.sin(x), math.sin(y)


def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def away(place: dict[str, Any]) -> float:
    """Metres from `HERE` on a sphere. Sides are great circles: one of 0.8 degrees bulges by 76 m here."""
    coordinates, here = place["coordinates"], _vector(*HERE)
    corners = [_vector(*one) for one in ([coordinates] if place["type"] == "Point" else coordinates[0])]
    found = [2 * math.asin(math.dist(here, corner) / 2) for corner in corners]
    signs = []
    for a, b in itertools.pairwise(corners):
        normal = _cross(a, b)
        length = math.hypot(*normal)
        sine = _dot(normal, here) / length
        signs.append(sine >= 0)
        if _dot(_cross(normal, a), here) > 0 and _dot(_cross(b, normal), here) > 0:
            found.append(math.asin(abs(sine)))
    return 0.0 if signs and all(signs) else EARTH * min(found)


def inside(place: dict[str, Any], slack: float) -> bool:
    """Whether a place lies within the box, taken larger on all sides."""
    left, low, right, high = extent(place)
    return (
        BOX[0] - slack <= left
        and BOX[1] - slack <= low
        and right <= BOX[2] + slack
        and high <= BOX[3] + slack
    )


def test_it_is_what_its_source_says(world: World) -> None:
    checked_at_end(world)
    shown = world.admin.call("GET", "/v1/indexes/near")
    assert (shown["structure"], shown["srid"]) == ("spatial", 4326)
    assert len(shown["splits"]) == 1
    assert all(shown["entries_by_slice"])
    skipped = world.admin.call("GET", "/v1/indexes/near/skipped")["lines"]
    assert {line["reason"] for line in skipped} == {"not-a-geometry"}
    assert any("latitude 91.5" in line["detail"] for line in skipped)


def test_places_are_found_by_every_way(world: World) -> None:
    with world.client(1) as client:
        held = client.snapshot("near")
        with held:
            everything = {row.id: row.key[0] for row in client.scan("near", at=held)}
            for index in ("near", "spread"):
                at: dict[str, Any] = {"at": held} if index == "near" else {}
                found = {row.id for row in client.scan(index, within=list(BOX), **at)}
                if at:
                    sure = {id_ for id_, place in everything.items() if inside(place, -SLACK)}
                    assert sure <= found <= {id_ for id_, place in everything.items() if inside(place, SLACK)}
                    assert client.count(index, within=list(BOX), at=held).count == len(found)
                for metres in (500.0, 20_000.0, 150_000.0):
                    near: NearOptions = {"point": list(HERE), "metres": metres}
                    rows = {row.id for row in client.scan(index, near=near, **at)}
                    if at:
                        closer = {i for i, p in everything.items() if away(p) < metres * (1 - SLACK)}
                        assert closer <= rows
                        assert rows <= {i for i, p in everything.items() if away(p) < metres * (1 + SLACK)}
                page = client.page(index, near={"point": list(HERE), "limit": 10}, **at)
                distances = [row.distance for row in page.rows]
                assert len(distances) == 10
                assert distances == sorted(distances, key=lambda one: one or 0.0)
                if at:
                    closest = sorted(map(away, everything.values()))[:10]
                    for one, other in zip(distances, closest, strict=True):
                        assert one == pytest.approx(other, rel=SLACK, abs=1.0)
    with world.client() as client:
        envelope = f"ST_MakeEnvelope({', '.join(map(str, BOX))})"
        here = f"ST_Point({HERE[0]}, {HERE[1]})"
        counted: list[Any] = list(
            client.query(f"SELECT COUNT(*) FROM {TOPIC} WHERE ST_Intersects(at, {envelope})")
        )
        listed = list(client.query(f"SELECT id, n FROM {TOPIC} WHERE ST_Intersects(at, {envelope})"))
        assert counted == [[len(listed)]]
        ordered = list(
            client.query(
                f"SELECT id, ST_Distance(at, {here}) FROM {TOPIC} WHERE n >= 0 "
                f"ORDER BY ST_Distance(at, {here}), id LIMIT 7"
            )
        )
        assert [row[1] for row in ordered] == sorted(row[1] for row in ordered)
        plan = client.explain(f"SELECT id FROM {TOPIC} WHERE ST_DWithin(at, ST_Point(9.1, 49.1), 100)")
        assert plan["structure"] == "spatial"
        assert plan["pushed_down"] == ["condition", "filter"]
        for asked in ({"low": [1]}, {"prefix": "a"}, {"reverse": True}, {"distinct": True}):
            with pytest.raises(KeytideError) as refused:
                client.page("near", **asked)
            assert refused.value.problem_type == "index-not-ordered"


def test_a_killed_node_and_other_slices(world: World) -> None:
    with Writer(world.bootstrap, TOPIC, 7, _stop, per_second=200) as writer:
        world.cluster.kill("node-2")
        for _ in range(5):
            world.check_unordered("near", TOPIC, _by_place)
            world.check_unordered("spread", TOPIC, _by_place)
        world.cluster.restart("node-2")
        before = {name: world.admin.call("GET", f"/v1/indexes/{name}")["id"] for name in ("near", "spread")}
        world.sql("ALTER INDEX spread PARTITION BY RANGE(cell) SPLIT AT (5140000000000000000)")
        world.sql("ALTER INDEX near SET (slices=3)")

        def answered() -> bool:
            world.check_unordered("near", TOPIC, _by_place)
            world.check_unordered("spread", TOPIC, _by_place)
            return all(
                world.admin.call("GET", f"/v1/indexes/{name}")["id"] != old for name, old in before.items()
            )

        wait_for(answered, "the new layouts answer", 300)
        assert writer.written > 0
    checked_at_end(world)


def test_it_is_verified(world: World) -> None:
    for index in ("near", "spread"):
        world.check_verified(index)
