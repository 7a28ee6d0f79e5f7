"""Reads of spatial indexes over several slices and nodes: each document once, whatever the number of its
cells, on whichever page and slice; the nearest; what other indexes and other questions refuse. Whether a
place meets another is `tests/geometry_oracle`'s; here places are small boxes and points around the origin,
where a comparison of numbers tells."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import math
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

from indexer.scan.gather.service import ScanService
from indexer.scan.local.effort import ReadThreads
from indexer.scan.local.place_filter import PlaceTest
from indexer.scan.local.reader import INLINE_ROWS
from indexer.scan.nearest.rows import scan_nearest
from indexer.scan.plan.spatial import NotSpatialError
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import CountRequest, Near, ScanRequest
from keytide.catalog.catalog import Catalog
from keytide.errors import CallerError, KeytideError
from keytide.geometry import QueryShape
from keytide.structure import NotOrderedError
from keytide.structure.place_columns import MOST_AREA_BYTES
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


@pytest.mark.parametrize("other", [{}, {"equals": [1]}, {"prefix": "a"}])
def test_a_system_without_a_place_is_refused(other: dict[str, Any]) -> None:
    """Who misspelt the place would be given the whole index."""
    with pytest.raises(ValueError, match="`srid` is of a place: give one of `within`, `contains`"):
        ScanRequest(srid=0, **other)
    assert ScanRequest(srid=0, within=BOX).srid == 0


@pytest.mark.parametrize("place", ["within", "contains", "intersects", "near"])
def test_what_says_nothing_of_a_place_is_refused_beside_one(place: str) -> None:
    asked: Any = Near(point=[1, 1], metres=5) if place == "near" else BOX
    for kind in (ScanRequest, CountRequest):
        with pytest.raises(ValueError, match="`inclusion` is of `low` and `high`"):
            kind(inclusion="low", **{place: asked})
        assert kind(**{place: asked}).place_member == place


@pytest.mark.parametrize(
    "other",
    [
        *({"types": {"n": "text"}}, {"types": {}}, {"order": "any"}, {"limit": 5}, {"offset": 1}),
        *({"reverse": True}, {"distinct": True}, {"validate": True}, {"page": "x"}),
    ],
)
def test_what_does_not_go_with_the_nearest_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gives the nearest, nearest first, in one answer"):
        ScanRequest(near=Near(point=[1, 1], limit=5), **other)
    assert ScanRequest(near=Near(point=[1, 1], limit=5), order="key").nearest == 5


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
    wrong = (
        {"within": [1, 2, 3]},
        {"within": [200, 0]},
        {"intersects": {"type": "Circle"}},
        {"within": {}},
        {"contains": {}},
        {"intersects": []},
        {"near": Near(point=[], metres=1)},
    )
    for members in wrong:
        with pytest.raises(CallerError, match="this is no geometry"):
            spatial.scan(**members)
    with pytest.raises(CallerError, match="one JSON answer"):
        spatial.count(near=Near(point=[1, 1], limit=5))


ROAD = {"type": "LineString", "coordinates": [[10, 10], [30, 20]]}


@pytest.mark.parametrize("statement", [BY_ID, BY_CELL], ids=["by-id", "by-cell"])
def test_a_document_meets_two_conditions_by_two_of_its_cells(statement: str) -> None:
    places = Places(statement, 4326, {"road": ROAD, "a": dot(10, 10), "b": dot(30, 20)})
    one = "ST_Intersects(place, ST_MakeEnvelope(9.9, 9.9, 10.1, 10.1))"
    two = "ST_Intersects(place, ST_MakeEnvelope(29.9, 19.9, 30.1, 20.1))"
    near = "ST_DWithin(place, ST_Point(30, 20), 1000)"
    ends = "ST_Contains(place, ST_Point(10, 10)) AND ST_Contains(place, ST_Point(30, 20))"
    inside = "ST_Within(place, ST_MakeEnvelope(9, 9, 31, 21))"
    for where in (
        f"{one} AND {two}",
        f"{one} AND {near}",
        ends,
        f"{inside} AND {one} AND {two}",
        f"{inside} AND {near} AND {one}",
    ):
        assert places.query(f"SELECT id FROM users WHERE {where}")["rows"] == [["road"]], where
    either = places.query(f"SELECT id FROM users WHERE {one} OR {two}")["rows"]
    assert sorted(row[0] for row in either) == ["a", "b", "road"]


@pytest.mark.parametrize("statement", [BY_ID, BY_CELL], ids=["by-id", "by-cell"])
def test_the_nearest_of_those_for_which_something_else_is_true(statement: str) -> None:
    chain = {"type": "MultiPoint", "coordinates": [[0, 10], [13.5, 10]]}
    places = Places(statement, 4326, {"chain": chain, "near": dot(3.65, 10), "other": dot(5, 10)})
    box = "ST_MakeEnvelope(3.5, 5, 14, 15)"
    ordered = "ORDER BY ST_Distance(place, ST_Point(0, 10))"
    for limit in (1, 2, 3):
        rows = places.query(
            f"SELECT id FROM users WHERE ST_Intersects(place, {box}) {ordered} LIMIT {limit}"
        )["rows"]
        assert [row[0] for row in rows] == ["chain", "near", "other"][:limit]
    within = f"SELECT id FROM users WHERE ST_Within(place, {box}) {ordered} LIMIT 3"
    assert places.query(within)["rows"] == [["near"], ["other"]]
    reach = f"SELECT id FROM users WHERE ST_DWithin(place, ST_Point(0, 10), 450000) {ordered} LIMIT 3"
    assert places.query(reach)["rows"] == [["chain"], ["near"]]
    assert places.query(f"SELECT id FROM users {ordered} LIMIT 0")["rows"] == []


def test_a_crowd_beside_the_circle_is_read_when_there_is_nothing_else() -> None:
    places = Places(BY_ID, 4326, {f"c{at:04}": dot(1.5, 1.50909) for at in range(1_500)})
    rows = places.nearest(Near(point=[1.5, 1.5], limit=3))
    assert ids(rows) == ["c0000", "c0001", "c0002"], "of those at one distance the first by their ids"
    assert 1_000 < rows[0]["distance"] < 1_010


def test_a_search_that_was_asked_before_reads_a_few_times_what_it_gives() -> None:
    """Radii that follow from how many were given, not found, grow from search to search."""
    lattice = {f"d{at:04}": dot(10 + at % 55 / 10, 10 + at // 55 / 10) for at in range(3_000)}
    places = Places(BY_CELL, 4326, lattice)
    chance = random.Random(3)
    explained = []

    async def ask() -> None:
        service = places.world.services()["n0"]
        for _ in range(30):
            near = Near(point=[chance.uniform(11, 14), chance.uniform(11, 14)], limit=10)
            request = ScanRequest(near=near, explain=True)
            answer = await scan_nearest(service.shared, "by_place", request, near, never)
            explained.append(json.loads(answer.body)["explain"])

    asyncio.run(ask())
    settled = explained[10:]
    assert max(one["searches"] for one in settled) <= 2
    assert sum(one["searches"] for one in settled) < 1.5 * len(settled)
    read = [sum(each["rows_read"] for each in one["slices"]) for one in settled]
    assert sum(read) < 100 * len(settled)


def test_those_at_one_distance_come_in_one_order_whoever_asked_before() -> None:
    places = Places(BY_ID, 4326, {f"d{at:02}": square(11, 11, 0.1 + at / 20) for at in range(40)})
    found: list[str] = []
    here = "ORDER BY ST_Distance(place, ST_Point(11, 11))"
    for offset in range(0, 40, 4):
        sql = f"SELECT id FROM users {here} LIMIT 4 OFFSET {offset}"
        found += [row[0] for row in places.query(sql)["rows"]]
        places.nearest(Near(point=[12.0 + offset, 11], limit=1))
    assert found == sorted(f"d{at:02}" for at in range(40))
    more = places.query(f"SELECT id, n FROM users {here}, n DESC LIMIT 3")["rows"]
    assert [row[1] for row in more] == [39, 38, 37]


def test_a_node_that_does_not_know_of_the_index_gives_nothing_twice() -> None:
    places = Places(BY_ID, 4326, {f"d{at}": square(11, 11 + at / 10, 0.4) for at in range(10)})
    for view in places.world.views.values():
        view.older = Catalog()
    with pytest.raises(KeytideError) as refused:
        places.scan(limit=1_000, timeout_ms=300)
    assert refused.value.problem_type in ("index-not-ready", "unknown-index")


def around(corners: int) -> dict[str, Any]:
    """A circle around 11, 11."""
    angles = [2 * math.pi * at / corners for at in range(corners)]
    ring = [[11 + math.cos(one) / 20, 11 + math.sin(one) / 20] for one in angles]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}


@pytest.mark.parametrize("areas", [0, 100])
def test_what_is_looked_at_on_the_event_loop_is_bounded(areas: int) -> None:
    crowd = {f"p{at:04}": dot(11 + at % 90 / 2_000, 11 + at // 90 / 2_000) for at in range(4_500)}
    if areas:
        crowd = {f"a{at:04}": around(300) for at in range(areas)}
    places = Places(BY_ID, 4326, {**crowd, "area": square(11, 11, 0.2)})
    loops: set[threading.Thread] = set()
    picked: list[int] = []
    looked_at: list[int] = []
    real = PlaceTest.pick

    def noted(self: PlaceTest, entries: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            picked.append(len(entries))
            looked_at.append(sum(len(value) for _, value in entries))
        loops.add(threading.current_thread())
        return real(self, entries)

    with mock.patch.object(PlaceTest, "pick", noted):
        rows = places.scan(intersects=[10.9, 10.9, 11.2, 11.2], limit=5_000)
    assert len(rows) == len(crowd) + 1
    assert sum(picked) <= 2 * INLINE_ROWS
    assert not areas or sum(looked_at) <= 2 * MOST_AREA_BYTES
    assert any(one is not threading.main_thread() for one in loops), "the rest was read in a thread"


def test_a_place_says_its_system_and_is_not_too_large() -> None:
    places = Places(BY_ID, 0, {"a": dot(1, 1)})
    assert ids(places.scan(within=[0, 0, 2, 2], srid=0)) == ["a"]
    with pytest.raises(CallerError, match="the index has places in system 0"):
        places.scan(within=[0, 0, 2, 2], srid=4326)
    ring = [[math.cos(at / 300), math.sin(at / 300)] for at in range(1_880)]
    with pytest.raises(CallerError, match="a place has at most 32,768 bytes"):
        places.scan(within={"type": "Polygon", "coordinates": [[*ring, ring[0]]]})


# --- who waits for a shape ----------------------------------------------------------------------------------


SEVERAL = {
    "type": "MultiPolygon",
    "coordinates": [square(11, 11, 1)["coordinates"], square(30, 30, 1)["coordinates"]],
}
AS_SQL = f"ST_GeomFromGeoJSON('{json.dumps(SEVERAL)}')"
ASKED: dict[str, Callable[[Places], object]] = {
    "within": lambda places: places.scan(within=SEVERAL),
    "intersects": lambda places: places.scan(intersects=SEVERAL),
    "contains": lambda places: places.scan(contains=SEVERAL),
    "near": lambda places: places.scan(near=Near(point=SEVERAL, metres=100_000)),
    "count": lambda places: places.count(within=SEVERAL),
    "nearest": lambda places: places.nearest(Near(point=SEVERAL, limit=5)),
    "ST_Within": lambda places: places.query(f"SELECT id FROM users WHERE ST_Within(place, {AS_SQL})"),
    "ST_DWithin": lambda places: places.query(
        f"SELECT id FROM users WHERE ST_DWithin(place, {AS_SQL}, 100000)"
    ),
    "OR": lambda places: places.query(
        f"SELECT id FROM users WHERE ST_Within(place, {AS_SQL}) OR ST_Intersects(place, ST_Point(10.5, 10.5))"
    ),
    "ST_Distance": lambda places: places.query(
        "SELECT id, ST_Distance(place, ST_GeomFromGeoJSON('"
        + json.dumps(square(20, 20, 1))
        + "')) FROM users WHERE ST_Within(place, ST_MakeEnvelope(10, 10, 12, 12))"
    ),
    "ORDER BY": lambda places: places.query(
        f"SELECT id FROM users ORDER BY ST_Distance(place, {AS_SQL}) LIMIT 5"
    ),
    "a filter": lambda places: places.query(
        "SELECT id FROM users WHERE ST_Within(place, ST_MakeEnvelope(5, 5, 17, 17)) "
        f"AND ST_Within(place, {AS_SQL})"
    ),
}


@pytest.mark.parametrize("how", ASKED)
def test_nobody_else_waits_for_the_shape_of_a_request(how: str) -> None:
    """What is made ready of several polygons, tested with them or measured from them is so in threads."""
    places = Places(BY_ID, 4326, places_of(7))
    on_the_loop: list[str] = []
    elsewhere: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            shapes = [getattr(one, "shape", one) for one in args]
            of_several = any(getattr(one, "geojson", one) == SEVERAL for one in shapes)
            if of_several or name == "distance":
                (on_the_loop if threading.current_thread() is threading.main_thread() else elsewhere).append(
                    name
                )
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for room, name in (
            ("indexer.scan.plan.spatial", "geometry_of"),
            ("keytide.definition.spatial.reading", "geometry_of"),
            ("keytide.definition.spatial.meaning", "distance"),
            ("indexer.scan.nearest.measuring", "distances"),
            ("indexer.scan.nearest.measuring", "ring_distances"),
        ):
            work = noting(name, getattr(importlib.import_module(room), name))
            stack.enter_context(mock.patch(f"{room}.{name}", work))
        for name in ("spans", "test", "test_points", "test_rings"):
            stack.enter_context(mock.patch.object(QueryShape, name, noting(name, getattr(QueryShape, name))))
        assert ASKED[how](places) is not None
    assert not on_the_loop
    assert elsewhere


def test_small_shapes_are_made_ready_at_once() -> None:
    places = Places(BY_ID, 4326, places_of(7))
    in_thread = AssertionError("in a thread")
    with mock.patch.multiple(
        ReadThreads, run=mock.Mock(side_effect=in_thread), prepare=mock.Mock(side_effect=in_thread)
    ):
        assert places.scan(within=BOX)
        assert places.query("SELECT id FROM users WHERE ST_Within(place, ST_MakeEnvelope(10, 10, 12, 12))")[
            "rows"
        ]
        assert places.nearest(Near(point=[11, 11], limit=2))
