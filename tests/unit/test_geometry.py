"""Geometries: what is one, what is said of what is none, cells, and who pays for which library."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from keytide.geometry import (
    CELL_BYTES,
    MOST_NESTED,
    Frame,
    NotAGeometryError,
    QueryShape,
    Rings,
    bounds,
    cells_of,
    distance,
    envelope,
    geometry_of,
    known_geometry,
    point,
    point_cell,
    point_cells,
)
from keytide.geometry.cells.curve import level_of
from keytide.geometry.cells.geographic import _exact_leaf
from tests import geometry_shapes as shapes

SQUARE = [[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]


def polygon(*rings: Any) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": list(rings)}


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (
            {"type": "Point", "coordinates": [10.0, -0.0, 500], "bbox": [1], "crs": {}},
            {"type": "Point", "coordinates": [10, 0]},
        ),
        ({"type": "Point", "coordinates": (1, 2.5)}, {"type": "Point", "coordinates": [1, 2.5]}),
        (
            {"type": "LineString", "coordinates": [[1, 2, 3], [1.0, 2]]},
            {"type": "LineString", "coordinates": [[1, 2], [1, 2]]},
        ),
        (
            {
                "type": "GeometryCollection",
                "name": "x",
                "geometries": [{"type": "Point", "coordinates": [1, 2]}],
            },
            {"type": "GeometryCollection", "geometries": [{"type": "Point", "coordinates": [1, 2]}]},
        ),
        (polygon(SQUARE), polygon(SQUARE)),
    ],
)
def test_normal_forms(value: Any, form: dict[str, Any]) -> None:
    made = geometry_of(value, "geographic")
    assert repr(made.geojson) == repr(form)
    assert made == known_geometry(form, "geographic") != geometry_of(value, "planar")
    assert hash(made) == hash(geometry_of(form, "geographic"))


def test_a_point_has_its_coordinates() -> None:
    made = point(11.5, 48, "geographic")
    assert (made.is_point, made.x, made.y) == (True, 11.5, 48)
    assert made.geojson == {"type": "Point", "coordinates": [11.5, 48]}
    assert not geometry_of(polygon(SQUARE), "planar").is_point
    assert "11.5" in repr(made)


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "Point", "coordinates": [0, 0]}
    for _ in range(depth):
        made = {"type": "GeometryCollection", "geometries": [made]}
    return made


BOW = [[0, 0], [10, 10], [10, 0], [0, 10], [0, 0]]
HOLE = [[2, 2], [4, 2], [4, 4], [2, 4], [2, 2]]
FAR = [[20, 20], [24, 20], [24, 24], [20, 24], [20, 20]]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "a geometry is an object with type and coordinates"),
        ([1, 2], "a geometry is an object with type and coordinates"),
        ({}, "type is missing"),
        ({"type": "Circle", "coordinates": [1, 2]}, "unknown type 'Circle'"),
        ({"type": ["Point"], "coordinates": [1, 2]}, "type is an array"),
        ({"type": "Feature", "geometry": {}}, "a Feature is not a geometry: give its geometry"),
        ({"type": "Point"}, "coordinates of a Point are an array"),
        ({"type": "Point", "coordinates": []}, "is empty"),
        ({"type": "Polygon", "coordinates": []}, "is empty"),
        ({"type": "Polygon", "coordinates": [[]]}, "ring 1 is empty"),
        ({"type": "GeometryCollection", "geometries": []}, "is empty"),
        ({"type": "GeometryCollection", "geometries": 1}, "geometries of a GeometryCollection are an array"),
        ({"type": "Point", "coordinates": [1]}, "coordinates of a Point are 2 or 3 numbers"),
        ({"type": "Point", "coordinates": [1, 2, 3, 4]}, "coordinates of a Point are 2 or 3 numbers"),
        ({"type": "Point", "coordinates": [1, 91.5]}, "latitude 91.5 is out of -90..90"),
        ({"type": "Point", "coordinates": [-180.5, 1]}, "longitude -180.5 is out of -180..180"),
        ({"type": "Point", "coordinates": [True, 1]}, "longitude true is not a number"),
        ({"type": "Point", "coordinates": [None, 1]}, "longitude null is not a number"),
        ({"type": "Point", "coordinates": [1, {}]}, "latitude an object is not a number"),
        ({"type": 5, "coordinates": [1, 2]}, "type is a number"),
        ({"type": "Point", "coordinates": [1, "2"]}, "latitude '2' is not a number"),
        ({"type": "Point", "coordinates": [math.nan, 2]}, "longitude nan is not a finite number"),
        ({"type": "Point", "coordinates": [1, math.inf]}, "latitude inf is not a finite number"),
        (
            {"type": "Point", "coordinates": [10**5000, 1]},
            "longitude a number of 5001 digits is out of -180..180",
        ),
        ({"type": "Point", "coordinates": [1, 2, "x"]}, "altitude 'x' is not a number"),
        ({"type": "LineString", "coordinates": [[1, 2]]}, "line has fewer than 2 positions"),
        (
            {"type": "LineString", "coordinates": [[1, 2], 3]},
            "position 2 of line is not an array of 2 or 3 numbers",
        ),
        (
            {"type": "MultiPoint", "coordinates": [[1, 2], [1]]},
            "position 2 of MultiPoint has 1 numbers, not 2 or 3",
        ),
        (
            {"type": "MultiLineString", "coordinates": [[[1, 2], [3, 4]], [[1, 2]]]},
            "line 2 has fewer than 2 positions",
        ),
        (polygon(SQUARE[:-1]), "ring 1 is not closed"),
        (polygon(SQUARE, [[1, 1], [2, 2], [1, 1]]), "ring 2 has fewer than 4 positions"),
        (
            {"type": "MultiPolygon", "coordinates": [[SQUARE, HOLE[:-1]]]},
            "ring 2 of polygon 1 is not closed",
        ),
        (polygon(BOW), "a ring crosses or touches itself or another ring near (5 5.05751)"),
        (polygon([[0, 0], [1, 1], [0, 0], [0, 0]]), "a ring has no area near (0 0)"),
        (polygon(SQUARE, FAR), "a hole lies outside of the outline near (20 20)"),
        (polygon(SQUARE, HOLE, HOLE), "a ring crosses or touches itself or another ring near (4 4)"),
        (
            {"type": "LineString", "coordinates": [[0, 0], [180, 0]]},
            "the edge at (0 0) goes half around the earth: which way?",
        ),
        (nested(MOST_NESTED + 1), "more than 8 GeometryCollections are in one another"),
        (nested(5000), "more than 8 GeometryCollections are in one another"),
    ],
)
def test_what_is_no_geometry_is_told(value: Any, why: str) -> None:
    with pytest.raises(NotAGeometryError) as caught:
        geometry_of(value, "geographic")
    assert str(caught.value) == why


def test_collections_are_in_one_another_up_to_a_limit() -> None:
    assert cells_of(geometry_of(nested(MOST_NESTED), "planar"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"type": "Point", "coordinates": [1e151, 0]}, "x a number of 152 digits is out of -1e+150..1e+150"),
        (polygon(BOW), "a ring crosses or touches itself or another ring near (5 5)"),
    ],
)
def test_what_is_no_geometry_of_a_plane_is_told(value: Any, why: str) -> None:
    with pytest.raises(NotAGeometryError) as caught:
        geometry_of(value, "planar")
    assert str(caught.value) == why


def test_a_ring_wider_than_a_hemisphere_that_crosses_itself_is_told() -> None:
    wide = [[-170, 5], [-60, 5], [60, -5], [170, 5], [60, 5], [-60, -5], [-170, 5]]
    with pytest.raises(NotAGeometryError, match="crosses or touches itself"):
        geometry_of(polygon(wide), "geographic")


@pytest.mark.parametrize(
    ("box", "frame", "why"),
    [
        ((0, 0, 180, 1), "geographic", "less than 180 degrees wide, this one is 180"),
        ((-180, -80, 180, 80), "geographic", "less than 180 degrees wide"),
        ((5, 0, 5, 1), "geographic", "this one is 0"),
        ((0, 1, 1, 1), "planar", "south 1 is not below its north 1"),
        ((3, 0, 1, 1), "planar", "west 3 is not below its east 1"),
        ((0, 0, 1, "1"), "planar", "y '1' is not a number"),
    ],
)
def test_what_is_no_envelope_is_told(box: tuple[Any, Any, Any, Any], frame: Frame, why: str) -> None:
    with pytest.raises(NotAGeometryError, match=why):
        envelope(*box, frame)


def test_an_envelope_crosses_the_antimeridian() -> None:
    made = envelope(170, -10, -170, 10, "geographic")
    region = QueryShape("within", made)
    assert (
        region.test_points(np.array([180.0, -180, 175, 0, 165]), np.zeros(5)).tolist()
        == [True] * 3 + [False] * 2
    )
    west, south, east, north = bounds(made)
    assert (west, east) == (170, -170)
    assert -south == north > 10


# --- cells ------------------------------------------------------------------------------------------------

# As the S2 library 0.14 has them (its SWIG module on PyPI).
OF_S2 = [
    (0, 0, 0x1000000000000001),
    (11.58, 48.14, 0x479E758C64E305A7),
    (-122.42, 37.77, 0x808F7E20E7AB38F1),
    (151.21, -33.87, 0x6B12AE3FE16CECF3),
    (179.99, -16.5, 0x6E20006FF0F21F03),
    (-179.99, 65, 0x5757D6074D34B34D),
    (0.1, 89.9, 0x455556277C48DBB1),
    (12, -89.9, 0xB0000714813DCB53),
    (45.0001, 35.2, 0x3FFFFE0277B3D327),
    (-135.1, 35.3, 0x7FFFFD9104949D19),
    (-63.420205, -62.847149, 0xBC7A4EC19FB7E7DD),
    (54.33641, -76.961468, 0xB1B2AC8510F6363D),
    (12.917522, -24.175995, 0x1C7A51E900EF6D03),
    (-159.120387, 1.338432, 0x7A0411ED365E81F9),
    (-166.501563, -11.943777, 0x7104B28A113EDF93),
    (-154.852048, -73.671658, 0xA5BA2D539137F8D9),
    (-27.173092, 58.833382, 0x493E406F6A14756D),
    (-135.431294, -49.816986, 0xA110E5B2A84F83F1),
    (45.87596, 80.58761, 0x451138294DA997F3),
    (27.757062, -18.597515, 0x194971F270898DA7),
    (171.451838, -81.615117, 0xAF85D9CC04A0ADE9),
    (129.048645, -37.870328, 0xAACB35A089875B8D),
    (-128.06817, -68.797397, 0xA467DE9FF6484721),
    (-68.946543, 56.902745, 0x4C4FEA7E97C60E0B),
]


@pytest.mark.parametrize(("lon", "lat", "cell"), OF_S2)
def test_leaves_are_those_of_s2(lon: float, lat: float, cell: int) -> None:
    assert point_cell(lon, lat, "geographic") == cell == _exact_leaf(lon, lat)
    assert point_cells(np.array([lon]), np.array([lat]), "geographic").tolist() == [cell]
    assert cell < 1 << 8 * CELL_BYTES


@pytest.mark.parametrize("lon", [-180, -135, -90, -45, 0, 45, 90, 135, 180])
@pytest.mark.parametrize("lat", [-90, -45, 0, 45, 90])
def test_what_doubles_leave_open_is_worked_out(lon: int, lat: int) -> None:
    assert point_cell(lon, lat, "geographic") == _exact_leaf(lon, lat)


def test_a_covering_follows_the_size_of_a_shape() -> None:
    small, large = (geometry_of(shapes.box(10, 50, size, size), "geographic") for size in (0.001, 1))
    assert min(map(level_of, cells_of(small))) > max(map(level_of, cells_of(large))) > 5


def test_few_spans_are_read_even_if_more_would_be_better() -> None:
    box = envelope(10, 50, 11, 51, "geographic")
    for most in (1, 2, 7, 30, 200):
        assert 1 <= len(QueryShape("intersects", box).spans(most)) <= most
    everything = QueryShape("dwithin", box, 3e7)
    assert everything.spans() == [(1, (6 << 61) - 1)]
    assert everything.test(point(-170, -50, "geographic"))


# --- relations --------------------------------------------------------------------------------------------


def test_geometries_of_two_frames_are_not_compared() -> None:
    one, other = point(1, 2, "geographic"), point(1, 2, "planar")
    for compare in (lambda: QueryShape("intersects", one).test(other), lambda: distance(one, other)):
        with pytest.raises(NotAGeometryError, match="nothing to do with one another"):
            compare()


@pytest.mark.parametrize("metres", [-1, math.nan, math.inf])
def test_a_distance_is_a_number(metres: float) -> None:
    with pytest.raises(NotAGeometryError, match="a distance is a number at least 0"):
        QueryShape("dwithin", point(1, 2, "planar"), metres)


def test_a_boundary_is_within_on_the_sphere_and_not_in_the_plane() -> None:
    corner = np.array([0.0, 5]), np.array([0.0, 5])
    for frame, want in (("geographic", [True, True]), ("planar", [False, True])):
        shape = geometry_of(polygon(SQUARE), "planar" if frame == "planar" else "geographic")
        assert QueryShape("within", shape).test_points(*corner).tolist() == want


def test_no_points_are_tested_at_once() -> None:
    none = np.zeros(0)
    assert QueryShape("within", geometry_of(polygon(SQUARE), "planar")).test_points(none, none).tolist() == []


def test_a_polygon_around_a_pole_and_half_the_earth() -> None:
    south = geometry_of(polygon([[-180 + 30 * n, -5] for n in range(12)] + [[-180, -5]]), "geographic")
    lats = np.array([-90.0, -30, -5.2, -4, 0, 90])
    assert QueryShape("within", south).test_points(lats * 0, lats).tolist() == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    west, _, east, north = bounds(south)
    assert (west, east) == (-180, 180)
    assert north == -5


def test_threads_share_geometries() -> None:
    made = [geometry_of(shapes.box(n, n, 2, 2), "geographic") for n in range(20)] * 5

    def hits(n: int) -> int:
        region = QueryShape("intersects", envelope(n, n, n + 5, n + 5, "geographic"))
        return sum(map(region.test, made)) + sum(len(cells_of(one)) for one in made)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(hits, range(12))) == list(map(hits, range(12)))


def test_whoever_needs_no_geometry_pays_for_no_library() -> None:
    program = (
        "import sys, keytide.geometry as g;"
        "g.cells_of(g.geometry_of({'type': 'Point', 'coordinates': [1, 2]}, 'geographic'));"
        "print(sorted({'numpy', 'shapely', 'pyproj'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- collections in the plane -----------------------------------------------------------------------------

TRIANGLE = [[2, 2], [4, 2], [4, 4], [2, 2]]
AWAY = {"type": "Point", "coordinates": [20, 20]}
DOT = {"type": "LineString", "coordinates": [[20, 20], [20, 20]]}


def collection(*members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "GeometryCollection", "geometries": list(members)}


@pytest.mark.parametrize(
    ("whole", "part", "contains"),
    [
        (collection(polygon(SQUARE), AWAY), polygon(TRIANGLE), True),
        (collection(polygon(SQUARE), DOT), polygon(TRIANGLE), True),
        (collection(polygon(TRIANGLE), AWAY), polygon(SQUARE), False),
        (collection(polygon(SQUARE), AWAY), {"type": "LineString", "coordinates": SQUARE[:2]}, False),
        (collection(polygon(SQUARE), AWAY), AWAY, True),
        (collection(polygon(SQUARE), AWAY), collection(polygon(TRIANGLE), AWAY), True),
        (collection(polygon(TRIANGLE), AWAY), collection(polygon(TRIANGLE), DOT), True),
        (
            collection(polygon(SQUARE), AWAY),
            collection(polygon(TRIANGLE), {"type": "Point", "coordinates": [21, 20]}),
            False,
        ),
        (collection(polygon(TRIANGLE), AWAY), collection(polygon(SQUARE), AWAY), False),
        (collection(AWAY, DOT), AWAY, True),
    ],
)
def test_a_collection_in_the_plane_contains_what_its_members_do(
    whole: dict[str, Any], part: dict[str, Any], contains: bool
) -> None:
    one, other = geometry_of(whole, "planar"), geometry_of(part, "planar")
    within = QueryShape("within", one)
    assert QueryShape("contains", other).test(one) == within.test(other) == contains
    if part["type"] == "Polygon":
        ring = np.array(part["coordinates"][0], np.float64)
        assert within.test_rings(Rings(ring, np.array([len(ring)]), "planar")).tolist() == [contains]
