"""Reads of spatial indexes over several slices and nodes: each document once, whatever the number of its
cells, on whichever page and slice; the nearest; what other indexes and other questions refuse. Whether a
place meets another is `tests/geometry_oracle`'s; here places are small boxes and points around the origin,
where a comparison of numbers tells."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from indexer.scan.gather.service import ScanService
from indexer.scan.nearest.rows import scan_nearest
from indexer.scan.plan.spatial import NotSpatialError
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import CountRequest, Near, ScanRequest
from keytide.errors import CallerError
from keytide.structure import NotOrderedError
from tests.unit.scan_world import Doc, World

BY_ID = "CREATE INDEX by_place ON users USING spatial (place) INCLUDE (n) WITH (slices=3, {srid})"
BY_CELL = (
    "CREATE INDEX by_place ON users USING spatial (place) INCLUDE (n) PARTITION BY RANGE(cell) "
    "SPLIT AT ({splits}) WITH ({srid})"
)
SPLITS = {4326: (1152921504606846976, 1224979098644774912), 0: (4 << 58, 5 << 58)}
BOX = [10.0, 10.0, 12.0, 12.0]


async def never() -> None:
    await asyncio.Event().wait()


def square(x: float, y: float, size: float) -> dict[str, Any]:
    a, b, c, d = x - size, y - size, x + size, y + size
    return {"type": "Polygon", "coordinates": [[[a, b], [c, b], [c, d], [a, d], [a, b]]]}


def dot(x: float, y: float) -> dict[str, Any]:
    return {"type": "Point", "coordinates": [x, y]}


class Places:
    """A cluster of two nodes with places, and who is asked."""

    def __init__(self, statement: str, srid: int, places: dict[str, dict[str, Any]]) -> None:
        said = f"srid={srid}"
        splits = ", ".join(map(str, SPLITS[srid]))
        self.world = World(statement.format(srid=said, splits=splits), node_count=2)
        docs = [Doc([place], id_, b'{"n":%d}' % at) for at, (id_, place) in enumerate(places.items())]
        self.world.commit(1, {"by_place": docs})

    def run(self, work: Callable[[ScanService], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            return json.loads((await work(self.world.services()["n0"])).body)

        return asyncio.run(main())

    def scan(self, **asked: Any) -> list[dict[str, Any]]:
        """All rows, page by page."""

        async def pages(service: ScanService) -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            request = ScanRequest(**asked)
            while True:
                answer = json.loads((await service.scan("by_place", request, never)).body)
                rows += answer["rows"]
                if answer["page"] is None:
                    return rows
                request = ScanRequest(page=answer["page"])

        async def main() -> list[dict[str, Any]]:
            return await pages(self.world.services()["n0"])

        return asyncio.run(main())

    def count(self, **asked: Any) -> int:
        return int(self.run(lambda service: service.count("by_place", CountRequest(**asked), never))["count"])

    def nearest(self, near: Near) -> list[dict[str, Any]]:
        request = ScanRequest(near=near)
        answer = self.run(lambda s: scan_nearest(s.shared, "by_place", request, near, never))
        return list(answer["rows"])

    def query(self, sql: str) -> dict[str, Any]:
        found: dict[str, Any] = self.run(
            lambda service: QueryService(service.shared).answer(QueryRequest(sql=sql), never)
        )
        return found


def places_of(seed: int, count: int = 120) -> dict[str, dict[str, Any]]:
    """Points and squares of all sizes, many of them around `BOX`; none with an edge near what is asked for: a
    great circle between two corners bulges by up to a hundredth of a degree here."""
    chance = random.Random(seed)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        x, y = round(chance.uniform(5, 17), 3), round(chance.uniform(5, 17), 3)
        place = dot(x, y) if len(found) % 3 else square(x, y, chance.choice([0.01, 0.3, 2.2]))
        if all(abs(edge - asked) > 0.02 for edge in extent(place) for asked in (10, 11, 12)):
            found[f"d{len(found):03}"] = place
    return found


def extent(place: dict[str, Any]) -> tuple[float, float, float, float]:
    coordinates = place["coordinates"]
    corners = coordinates[0] if place["type"] == "Polygon" else [coordinates]
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    return min(xs), min(ys), max(xs), max(ys)


def within(place: dict[str, Any]) -> bool:
    a, b, c, d = extent(place)
    return BOX[0] <= a and BOX[1] <= b and c <= BOX[2] and d <= BOX[3]


def meets(place: dict[str, Any]) -> bool:
    a, b, c, d = extent(place)
    return a <= BOX[2] and c >= BOX[0] and b <= BOX[3] and d >= BOX[1]


@pytest.fixture(
    params=[(statement, srid) for statement in (BY_ID, BY_CELL) for srid in (4326, 0)],
    ids=lambda param: f"{'by-cell' if 'cell' in param[0] else 'by-id'}-{param[1]}",
)
def places(request: pytest.FixtureRequest) -> Places:
    statement, srid = request.param
    return Places(statement, srid, places_of(1))


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def test_each_document_comes_once_whatever_its_cells(places: Places) -> None:
    everything = places_of(1)
    inside = sorted(id_ for id_, place in everything.items() if within(place))
    meeting = sorted(id_ for id_, place in everything.items() if meets(place))
    assert len(inside) > 2
    assert len(meeting) > len(inside)
    for limit in (1, 7, 1_000):
        assert sorted(ids(places.scan(limit=limit))) == sorted(everything)
        assert sorted(ids(places.scan(within=BOX, limit=limit))) == inside
        assert sorted(ids(places.scan(intersects=square(11, 11, 1), limit=limit))) == meeting
    assert places.count() == len(everything)
    assert places.count(within=BOX) == len(inside)
    assert places.count(intersects=BOX) == len(meeting)
    assert ids(places.scan(within=BOX, offset=2, limit=2)) == ids(places.scan(within=BOX))[2:]


def test_pages_and_slices_agree_on_who_gives_a_document(places: Places) -> None:
    whole = places.scan(intersects=BOX)
    keys = [row["key"][0] for row in whole]
    everything = places_of(1)
    assert keys == [everything[row["id"]] for row in whole]
    assert all(row["include"] == {"n": int(row["id"][1:])} for row in whole)
    parts = [places.scan(intersects=BOX, slices=[number]) for number in range(3)]
    assert sorted(id_ for part in parts for id_ in ids(part)) == sorted(ids(whole))


def test_what_contains_a_place_is_found_by_cells_around_it(places: Places) -> None:
    everything = places_of(1)
    spot = [11.0, 11.0]
    holding = sorted(
        id_
        for id_, place in everything.items()
        if place["type"] == "Polygon"
        and (one := extent(place))[0] <= spot[0] <= one[2]
        and one[1] <= spot[1] <= one[3]
    )
    assert holding
    assert sorted(ids(places.scan(contains=spot))) == holding
    assert sorted(ids(places.scan(contains={"type": "Point", "coordinates": spot}))) == holding


def test_the_nearest_come_first_each_with_its_distance(places: Places) -> None:
    points = {id_: place for id_, place in places_of(1).items() if place["type"] == "Point"}
    here = (11.0, 11.0)

    def away(id_: str) -> float:
        x, y = points[id_]["coordinates"]
        return math.hypot((x - here[0]) * math.cos(math.radians(11)), y - here[1])

    for wanted in (1, 5, 200):
        rows = places.nearest(Near(point=list(here), limit=wanted))
        assert len(rows) == min(wanted, 120)
        distances = [row["distance"] for row in rows]
        assert distances == sorted(distances)
        if places.world.index("by_place").definition.system:
            found = [id_ for id_ in ids(rows) if id_ in points]
            for one, other in itertools.pairwise(found):
                assert away(one) <= away(other) * 1.01
    near = places.nearest(Near(point=list(here), metres=1e-9, limit=3))
    assert [row["distance"] for row in near] == [0.0] * len(near)
    assert ids(near) == ids(places.scan(contains=list(here)))[:3]


def test_a_search_for_the_nearest_ends_where_there_are_few_and_where_there_are_many() -> None:
    alone = Places(BY_ID, 4326, {"a": dot(-170, -80), "b": dot(179, 89)})
    assert sorted(ids(alone.nearest(Near(point=[0, 0], limit=5)))) == ["a", "b"]
    assert Places(BY_ID, 0, {}).nearest(Near(point=[0, 0], limit=5)) == []
    crowd = Places(BY_ID, 4326, {f"c{at:04}": dot(1.5, 1.5) for at in range(1_500)})
    rows = crowd.nearest(Near(point=[1.5, 1.5], limit=3))
    assert [row["distance"] for row in rows] == [0.0] * 3
    far = Places(BY_ID, 0, {"far": dot(1e140, -1e140)})
    assert ids(far.nearest(Near(point=[0, 0], limit=1))) == ["far"]


def test_queries_say_the_same(places: Places) -> None:
    everything = places_of(1)
    system = "" if places.world.index("by_place").definition.system else ", 0"
    box = f"ST_MakeEnvelope(10, 10, 12, 12{system})"
    found = places.query(f"SELECT id, n FROM users WHERE ST_Within(place, {box})")
    assert sorted(row[0] for row in found["rows"]) == sorted(
        id_ for id_, place in everything.items() if within(place)
    )
    some = places.query(f"SELECT COUNT(*) FROM users WHERE ST_Intersects({box}, place) AND n < 60")
    assert some["rows"] == [[sum(meets(place) and int(id_[1:]) < 60 for id_, place in everything.items())]]
    here = f"ST_Point(11, 11{system})"
    ordered = places.query(
        f"SELECT id, ST_Distance(place, {here}) FROM users ORDER BY ST_Distance(place, {here}), id LIMIT 5"
    )
    assert [row[1] for row in ordered["rows"]] == [
        row["distance"] for row in places.nearest(Near(point=[11, 11], limit=5))
    ]
    # What is at the point is 0 away; the order among those is that of ids.
    assert ordered["rows"] == sorted(ordered["rows"], key=lambda row: (row[1], row[0]))
    most = ordered["rows"][-1][1]
    around = places.query(f"SELECT COUNT(*) FROM users WHERE ST_Distance(place, {here}) <= {most!r}")
    by_relation = places.query(f"SELECT COUNT(*) FROM users WHERE ST_DWithin(place, {here}, {most!r})")
    assert around["rows"] == by_relation["rows"]
    assert around["rows"][0][0] >= 5


def test_other_indexes_find_no_places_and_places_have_no_values() -> None:
    world = World("CREATE INDEX by_place ON users (place) WITH (slices=2)", node_count=1)
    world.commit(1, {"by_place": []})

    async def asked(**members: Any) -> None:
        await world.services()["n0"].scan("by_place", ScanRequest(**members), never)

    with pytest.raises(NotSpatialError, match="only a spatial index answers `within`"):
        asyncio.run(asked(within=BOX))
    spatial = Places(BY_ID, 4326, {})
    for members, what in (
        ({"equals": [1]}, "values"),
        ({"prefix": "a"}, "a prefix"),
        ({"low": [1]}, "range"),
    ):
        with pytest.raises(NotOrderedError, match=what):
            spatial.scan(**members)
    wrong: tuple[dict[str, Any], ...]
    wrong = ({"within": [1, 2, 3]}, {"within": [200, 0]}, {"intersects": {"type": "Circle"}})
    for members in wrong:
        with pytest.raises(CallerError, match="this is no geometry"):
            spatial.scan(**members)
    with pytest.raises(CallerError, match="one JSON answer"):
        spatial.count(near=Near(point=[1, 1], limit=5))
