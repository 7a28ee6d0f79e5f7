"""Answers of PostGIS 3.3.2 (geography) to nasty questions, and where ours differ from them on purpose.

They were asked of ST_Intersects, ST_CoveredBy, ST_Covers, ST_DWithin (1 km) and ST_Distance. Some thousand
pairs of shapes of `tests/geometry_shapes.py` were asked as well, once: where answers differed, brute force
sided with ours.
"""

from __future__ import annotations

import pytest

from keytide.geometry import QueryShape, Relation, distance, geometry_of
from tests.geometry_shapes import Json

At = tuple[float, float]
RELATIONS: tuple[Relation, ...] = ("intersects", "within", "contains", "dwithin")


def at(x: float, y: float) -> Json:
    return {"type": "Point", "coordinates": [x, y]}


def line(*places: At) -> Json:
    return {"type": "LineString", "coordinates": [list(one) for one in places]}


def polygon(*rings: list[At]) -> Json:
    return {"type": "Polygon", "coordinates": [[list(one) for one in ring] for ring in rings]}


def polygons(*several: list[list[At]]) -> Json:
    return {"type": "MultiPolygon", "coordinates": [polygon(*rings)["coordinates"] for rings in several]}


def corners(west: float, south: float, east: float, north: float) -> Json:
    return polygon([(west, south), (east, south), (east, north), (west, north), (west, south)])


def parallel(lat: float) -> list[At]:
    return [(-180.0 + 30 * n, lat) for n in range(12)] + [(-180.0, lat)]


TEN: list[At] = [(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]
RIM: list[At] = [(4, 4), (6, 4), (6, 6), (4, 6), (4, 4)]

# What is asked, document, shape; PostGIS' four answers, ours, and metres.
ASKED: list[tuple[str, Json, Json, str, str, float]] = [
    ("point on meridian edge", at(10, 5), corners(0, 0, 10, 10), "ttft", "ttft", 0.0),
    ("point on great-circle top edge mid", at(5, 10.0380), corners(0, 0, 10, 10), "ffft", "ffft", 63.81575),
    ("point between parallel and arc", at(5, 10.02), corners(0, 0, 10, 10), "ttft", "ttft", 0.0),
    ("point corner", at(10, 10), corners(0, 0, 10, 10), "ttft", "ttft", 0.0),
    ("box shares sub edge inside", corners(5, 2, 10, 5), corners(0, 0, 10, 10), "tfft", "ttft", 0.0),
    ("box shares sub edge outside", corners(10, 2, 15, 5), corners(0, 0, 10, 10), "tfft", "tfft", 0.0),
    ("same box", corners(0, 0, 10, 10), corners(0, 0, 10, 10), "tfft", "tttt", 0.0),
    (
        "box other start",
        polygon([(10, 10), (0, 10), (0, 0), (10, 0), (10, 10)]),
        corners(0, 0, 10, 10),
        "tfft",
        "tttt",
        0.0,
    ),
    ("box with same south", corners(2, 0, 8, 5), corners(0, 0, 10, 10), "tfft", "ttft", 0.0),
    ("box with same top (arc inside)", corners(2, 5, 8, 10), corners(0, 0, 10, 10), "ttft", "ttft", 0.0),
    ("line along meridian edge", line((10, 2), (10, 8)), corners(0, 0, 10, 10), "ttft", "ttft", 0.0),
    ("line diagonal of box", line((0, 0), (10, 10)), corners(0, 0, 10, 10), "tfft", "ttft", 0.0),
    ("line touches corner", line((10, 10), (20, 20)), corners(0, 0, 10, 10), "tfft", "tfft", 0.0),
    ("line vertices in, edge through hole", line((1, 5), (9, 5)), polygon(TEN, RIM), "tfft", "tfft", 0.0),
    ("box around hole", corners(3, 3, 7, 7), polygon(TEN, RIM), "ttft", "tfft", 0.0),
    ("box in hole", corners(4.5, 4.5, 5.5, 5.5), polygon(TEN, RIM), "ffff", "ffff", 55405.19617),
    ("box is the hole", corners(4, 4, 6, 6), polygon(TEN, RIM), "tfft", "tfft", 0.0),
    ("point on hole edge", at(4, 5), polygon(TEN, RIM), "tfft", "ttft", 0.0),
    ("antimeridian in", at(180, 0), corners(170, -10, -170, 10), "ttft", "ttft", 0.0),
    ("antimeridian in -180", at(-180, 0), corners(170, -10, -170, 10), "ttft", "ttft", 0.0),
    ("edge at 180 vs -180", at(-180, 0), corners(170, -10, 180, 10), "ttft", "ttft", 0.0),
    ("boxes at 180 and -180", corners(-180, -5, -170, 5), corners(170, -10, 180, 10), "tfft", "tfft", 0.0),
    ("pole in ring", at(0, 90), polygon(parallel(60)), "ttft", "ttft", 0.0),
    ("pole of another longitude", at(77, 90), polygon(parallel(60)), "ttft", "ttft", 0.0),
    ("pole vertex", at(10, 90), polygon([(0, 80), (40, 80), (40, 90), (0, 80)]), "ttft", "ttft", 0.0),
    (
        "polar triangle with two pole vertices",
        at(20, 85),
        polygon([(0, 80), (40, 80), (40, 90), (0, 90), (0, 80)]),
        "ttft",
        "ttft",
        0.0,
    ),
    ("ring around south", at(0, -89), polygon(parallel(-60)), "ttft", "ttft", 0.0),
    (
        "ring orientation cw",
        at(5, 5),
        polygon([(0, 0), (0, 10), (10, 10), (10, 0), (0, 0)]),
        "ttft",
        "ttft",
        0.0,
    ),
    (
        "two polygons cover line between",
        line((2, 5), (18, 5)),
        polygons(
            [[(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]], [[(10, 0), (20, 0), (20, 10), (10, 10), (10, 0)]]
        ),
        "tfft",
        "ttft",
        0.0,
    ),
    (
        "multipoint in two polygons",
        {"type": "MultiPoint", "coordinates": [[5, 5], [25, 5]]},
        polygons(
            [[(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]], [[(20, 0), (30, 0), (30, 10), (20, 10), (20, 0)]]
        ),
        "tfft",
        "ttft",
        0.0,
    ),
    (
        "overlapping polygons of multipolygon",
        corners(3, 3, 12, 8),
        polygons(
            [[(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]], [[(5, 0), (20, 0), (20, 10), (5, 10), (5, 0)]]
        ),
        "tfft",
        "ttft",
        0.0,
    ),
    ("line equals line part", line((0, 0), (5, 0)), line((0, 0), (10, 0)), "ttft", "ttft", 0.0),
    ("line reversed", line((0, 0), (10, 5)), line((10, 5), (0, 0)), "tttt", "tttt", 0.0),
    ("point mid line", at(5, 0), line((0, 0), (10, 0)), "ttft", "ttft", 0.0),
    ("point vertex of line", at(10, 5), line((0, 0), (10, 5), (20, 0)), "ttft", "ttft", 0.0),
    ("point 5um off line", at(5, 4.5e-11), line((0, 0), (10, 0)), "ffft", "ttft", 0.0),
    ("point 1mm off line", at(5, 1e-8), line((0, 0), (10, 0)), "ffft", "ffft", 0.00111),
    ("degenerate line vs pt", at(5, 5), line((5, 5), (5, 5)), "ttft", "tttt", 0.0),
    ("point and pt", at(5, 5), at(5, 5), "tttt", "tttt", 0.0),
    ("point 180/-180", at(180, 5), at(-180, 5), "tfft", "tttt", 0.0),
    ("poles", at(0, 90), at(90, 90), "tfft", "tttt", 0.0),
    (
        "gc",
        at(5, 5),
        {"type": "GeometryCollection", "geometries": [at(1, 1), corners(0, 0, 10, 10)]},
        "ttft",
        "ttft",
        0.0,
    ),
    (
        "point crossing lines",
        at(5, 0),
        {"type": "MultiLineString", "coordinates": [[[0, 0], [10, 0]], [[5, -5], [5, 5]]]},
        "ttft",
        "ttft",
        0.0,
    ),
    ("antipodal pts", at(0, 0), at(180, 0), "ffff", "ffff", 20003931.45863),
    ("nearly antipodal", at(0, 0.3), at(179.7, 0), "ffff", "ffff", 19965251.40856),
]


@pytest.mark.parametrize(
    ("document", "shape", "ours", "metres"),
    [(asked[1], asked[2], asked[4], asked[5]) for asked in ASKED],
    ids=[asked[0] for asked in ASKED],
)
def test_answers(document: Json, shape: Json, ours: str, metres: float) -> None:
    one, other = geometry_of(document, "geographic"), geometry_of(shape, "geographic")
    got = [QueryShape(relation, other, 1000).test(one) for relation in RELATIONS]
    assert "".join("ft"[answer] for answer in got) == ours
    assert distance(one, other) == pytest.approx(metres, abs=1e-4)


def test_ours_are_those_of_postgis_but_for_some() -> None:
    """The package's docstring says why."""
    assert [asked[0] for asked in ASKED if asked[3] != asked[4]] == [
        "box shares sub edge inside",
        "same box",
        "box other start",
        "box with same south",
        "line diagonal of box",
        "box around hole",
        "point on hole edge",
        "two polygons cover line between",
        "multipoint in two polygons",
        "overlapping polygons of multipolygon",
        "point 5um off line",
        "degenerate line vs pt",
        "point 180/-180",
        "poles",
    ]
