"""Work with shapes grows as they do, and has a limit: what is beyond it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import shapely

from indexer.scan.plan.spatial import MAX_PLACE_BYTES, place_literal, takes_long
from indexer.scan.query.index_choice import _is_soon_planned
from indexer.scan.request.request import Near, ScanRequest
from keytide.collation import encode_part
from keytide.definition.errors import InvalidStatementError
from keytide.errors import CallerError
from keytide.geometry import (
    MOST_WORK,
    Frame,
    NotAGeometryError,
    QueryShape,
    TooComplexError,
    cells_of,
    geometry_of,
    is_small,
    sound_rings,
)
from keytide.geometry.drawn import wide, work
from keytide.geometry.drawn.charts import AXES, BORDER, SQUARE
from keytide.geometry.drawn.meeting import hold
from keytide.geometry.drawn.sphere import TOLERANCE
from keytide.query.parse.statement import parse_query
from keytide.structure.ring_keys import rings_of
from tests import geometry_costs as costs

SHAPES: dict[str, tuple[Callable[[int], costs.Json], int]] = {
    "comb": (costs.comb, 60),
    "girdle": (costs.girdle, 60),
    "aslant": (costs.aslant, 200),
    "triangles": (costs.triangles, 10),
    "tiles": (costs.tiles, 100),
    "islands": (costs.islands, 40),
}
"""What is told of each: makes one of so much, and how much is little."""


def cost_of(raw: costs.Json, frame: Frame = "geographic") -> int:
    with costs.counted() as cost:
        shape = geometry_of(raw, frame)
        cells_of(shape)
        QueryShape("within", shape).spans()
        return cost()


@pytest.mark.parametrize("name", SHAPES)
def test_work_grows_as_shapes_do(name: str) -> None:
    make, few = SHAPES[name]
    once, more = cost_of(make(few)), cost_of(make(4 * few))
    assert more < 5 * once


@pytest.mark.parametrize("frame", ["geographic", "planar"])
@pytest.mark.parametrize(
    "raw", [costs.bars(200), costs.aslant(3_000), costs.together(*[costs.aslant(200)] * 40)]
)
def test_what_is_too_much_work_is_refused_before_geos_is_asked(raw: costs.Json, frame: Frame) -> None:
    with costs.counted() as cost, pytest.raises(TooComplexError, match="simplify it, or split it"):
        geometry_of(raw, frame)
    assert cost() < 100_000


@pytest.mark.parametrize(
    "raw",
    [
        costs.triangles(780),
        costs.together(*[costs.belt(3)] * 60),
        costs.comb(6_000),
        costs.islands(3_000),
    ],
)
def test_wide_shapes_that_are_too_much_work_are_refused(raw: costs.Json) -> None:
    with pytest.raises(TooComplexError):
        geometry_of(raw, "geographic")


def test_a_hole_of_a_wide_polygon_is_cut_to_pieces_with_the_others() -> None:
    """Each by itself on each face took milliseconds: seconds of some hundred kilobytes."""
    with mock.patch.object(wide, "clip", wraps=wide.clip) as clips:
        geometry_of(costs.islands(50), "geographic")
    assert clips.call_count < 30


def test_pairs_are_counted_up_to_the_limit_and_not_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []
    spend = work.Work.spend

    def noted(self: work.Work, pairs: int) -> None:
        spent.append(pairs)
        spend(self, pairs)

    monkeypatch.setattr(work.Work, "spend", noted)
    with pytest.raises(TooComplexError):
        geometry_of(costs.aslant(20_000), "planar")
    assert sum(spent) < 8 * MOST_WORK


@pytest.mark.parametrize("frame", ["geographic", "planar"])
def test_what_documents_have_is_not_too_much(frame: Frame) -> None:
    turns = np.arange(20_000) * 2 * np.pi / 20_000
    far = 20 + 5 * np.sin(7 * turns) + np.random.default_rng(7).random(20_000) * 0.005
    coast = costs.polygon(*np.stack((far * np.cos(turns), far * np.sin(turns)), axis=1).tolist())
    for raw in (coast, costs.tiles(2_500), costs.bars(40), costs.triangles(10)):
        assert cells_of(geometry_of(raw, frame))


def test_rings_are_not_judged_together_that_may_be_too_much() -> None:
    for frame in ("geographic", "planar"):
        _, rings = rings_of([encode_part(costs.aslant(3_000)), encode_part(costs.aslant(20))], frame)
        assert sound_rings(rings).tolist() == [False, True]


def test_a_query_is_told_what_to_do_about_its_shape() -> None:
    shape = costs.bars(100)
    for ring in shape["coordinates"]:
        ring[0] = [[round(x, 2), round(y, 2)] for x, y in ring[0]]
    assert len(str(shape)) < MAX_PLACE_BYTES
    with pytest.raises(CallerError, match="within: the geometry is too much work") as told:
        place_literal("within", shape, 4326)
    assert (told.value.status, told.value.problem_type) == (422, "geometry-too-complex")
    assert "split it" in told.value.next_step
    text = str(shape).replace("'", '"')
    with pytest.raises(InvalidStatementError, match="too much work"):
        parse_query(f"SELECT id FROM k WHERE ST_Within(at, ST_GeomFromGeoJSON('{text}'))")


def test_the_shapes_of_a_statement_are_bounded_together() -> None:
    """Each was as much as one may be: thirty of them took as many times as long."""

    def ask(*shapes: costs.Json) -> None:
        texts = [json.dumps(shape, separators=(",", ":")) for shape in shapes]
        conditions = [f"ST_Within(at, ST_GeomFromGeoJSON('{text}'))" for text in texts]
        parse_query("SELECT id FROM k WHERE " + " OR ".join(conditions))

    heavy, other = (costs.together(*[costs.belt(3)] * times) for times in (20, 21))
    ask(*[heavy] * 3)
    ask(*(costs.polygon([at, 0], [at + 1, 0], [at + 1, 1]) for at in range(170)))
    with pytest.raises(InvalidStatementError, match="too much work together"):
        ask(heavy, other)


@pytest.mark.parametrize(
    ("asked", "long"),
    [
        ({"within": [1, 2, 3, 4]}, False),
        ({"within": costs.polygon([0, 0], [1, 0], [1, 1])}, False),
        ({"intersects": costs.aslant(100)}, True),
        ({"intersects": costs.comb(20)}, True),  # few positions, which take 25 ms
        ({"within": costs.polygon([0, 0], [0, 1], [46, 1])}, True),
        ({"contains": costs.together(costs.polygon([0, 0], [1, 0], [1, 1]))}, True),
        ({"within": {"type": "GeometryCollection", "geometries": []}}, True),
        ({"near": Near(point=[1, 2], metres=5)}, False),
        ({"near": Near(point={"type": "Point", "coordinates": [1, 2]}, limit=5)}, False),
        ({"near": Near(point=costs.polygon([0, 0], [1, 0], [1, 1]), limit=5)}, True),
    ],
)
def test_what_may_take_long_is_told_from_what_is_asked(asked: dict[str, Any], long: bool) -> None:
    assert takes_long(ScanRequest(**asked)) == long


@pytest.mark.parametrize(
    ("shape", "soon"),
    [
        (costs.polygon([0, 0], [1, 0], [1, 1]), True),
        ({"type": "Point", "coordinates": [1, 2]}, True),
        (costs.comb(20), False),
        (costs.together(costs.polygon([0, 0], [1, 0], [1, 1])), False),
        ({"type": "Polygon", "coordinates": costs.islands(20)["coordinates"][1:]}, False),
    ],
)
def test_a_query_with_a_shape_that_is_not_small_is_planned_in_a_thread(shape: costs.Json, soon: bool) -> None:
    written = json.dumps(shape, separators=(",", ":"))
    for text in (written, written.replace("Multi", "\\u004dulti")):  # (JSON has many ways to say it)
        query = f"SELECT id FROM k WHERE ST_Within(at, ST_GeomFromGeoJSON('{text}'))"
        assert len(query) < 2_000
        assert _is_soon_planned(query) == soon


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        {},
        {"type": []},
        {"type": "Polygon", "coordinates": [1, [2]]},
        {"type": "LineString", "coordinates": [[10**400, 1], [0.5, 2]]},
        {"type": "MultiPoint", "coordinates": [{}]},
    ],
)
def test_anything_may_be_asked_whether_it_is_small(value: Any) -> None:
    assert is_small(value) in (True, False)
    with pytest.raises(NotAGeometryError):
        geometry_of(value, "planar")


def test_of_wide_polygons_together_nothing_is_held_that_none_of_them_holds() -> None:
    """A point of each area that their edges cut a face into was asked, and sometimes the answer was wrong."""
    rings: list[list[list[float]]] = [
        [[-45, 0], [-90, -30], [-105, 0], [-75, 30]],
        [
            [75, 15],
            [60, 15],
            [60, 0],
            [30, 0],
            [30, 15],
            [15, 15],
            [15, 30],
            [30, 45],
            [45, 60],
            [75, 60],
            [75, 30],
        ],
        [[-30, 15], [-45, -15], [-75, -30], [-120, 0], [-150, 15], [-150, 45], [-60, 60], [-15, 30]],
    ]
    shape = geometry_of(costs.together(*(costs.polygon(*ring) for ring in rings)), "geographic")
    lons, lats = np.array([51.5, 16.7, 124.4, -4.1, -51.2]), np.array([53.4, 58.4, 73.3, -20.8, 89.8])
    assert QueryShape("within", shape).test_points(lons, lats).tolist() == [True, False, False, False, False]


LINES: dict[str, Callable[[int], costs.Json]] = {
    "scribble": costs.scribble,
    "lines": costs.scribbles,
    "collection": costs.scattered,
    "around the globe": costs.around_the_globe,
}


@pytest.mark.parametrize("name", LINES)
def test_whether_lines_cover_lines_is_no_work_for_all_pairs_of_edges(name: str) -> None:
    """A line that crosses itself everywhere took 41 s and 2.4 GB to be within itself: GEOS finds all places
    where its edges cross."""
    spent = []
    for count in (500, 2_000):
        shape = geometry_of(LINES[name](count), "geographic")
        with costs.pairs_counted() as pairs:
            assert QueryShape("within", shape).test(geometry_of(shape.geojson, "geographic"))
            assert not QueryShape("within", shape).test(geometry_of(costs.scribble(count, 2), "geographic"))
            spent.append(pairs())
    assert spent[1] < 7 * spent[0]
    assert spent[1] < 2_000 * 2_000 / 4


def test_whether_points_are_near_lines_is_no_work_for_all_pairs_of_edges() -> None:
    """A line of 1,000 positions that crosses itself everywhere took minutes: what surrounds it was drawn."""
    shape = geometry_of(costs.scribble(1_000), "geographic")
    drawn = shape.drawing.on(0)
    edges = shapely.get_coordinates(drawn)
    on = (edges[1:] + edges[:-1]) / 2
    beside = on + np.array([0.3, -0.4]) * TOLERANCE * np.arange(len(on))[:, None]
    seen = np.concatenate((on, beside, np.random.default_rng(3).uniform(0, 0.17, (500, 2))))
    vector = np.column_stack((np.ones(len(seen)), seen)) / np.hypot(1, np.hypot(*seen.T))[:, None]
    with costs.pairs_counted() as pairs:
        held = hold(shape.drawing, vector)
    assert pairs() < 1_000_000 / 4
    assert held.tolist() == shapely.dwithin(drawn, shapely.points(seen), TOLERANCE).tolist()
    assert 999 <= held.sum() < 1_100


def test_lines_in_a_plane_that_cross_in_millions_of_places_are_too_much_work() -> None:
    """GEOS took minutes and gigabytes of a line of 5,000 positions: there it decides, exactly."""
    many, few = (geometry_of(costs.scribble(count), "planar") for count in (5_000, 300))
    with costs.pairs_counted() as pairs, pytest.raises(TooComplexError):
        QueryShape("within", many).test(geometry_of(many.geojson, "planar"))
    assert pairs() < 8 * MOST_WORK
    assert QueryShape("within", few).test(few)
    walk = np.random.default_rng(1).normal(0, 0.01, (10_000, 2)).cumsum(axis=0).round(6).tolist()
    track = geometry_of({"type": "LineString", "coordinates": walk}, "planar")
    assert QueryShape("contains", track).test(track)


def test_edges_that_lie_along_one_another_in_millions_are_too_much_work() -> None:
    lons = np.random.default_rng(1).uniform(0, 10, 4_000).tolist()
    back_and_forth = geometry_of(
        {"type": "LineString", "coordinates": [[lon, 0] for lon in lons]}, "geographic"
    )
    with costs.pairs_counted() as pairs, pytest.raises(TooComplexError):
        QueryShape("within", back_and_forth).test(geometry_of(back_and_forth.geojson, "geographic"))
    assert pairs() < 2 * MOST_WORK
    often = geometry_of({"type": "LineString", "coordinates": [[0, 0], [1, 1]] * 4_000}, "geographic")
    assert QueryShape("within", often).test(geometry_of(often.geojson, "geographic"))


@pytest.mark.parametrize("face", range(6))
def test_numbers_of_few_digits_cross_the_sides_of_faces_too(face: int) -> None:
    """A ring next to a meridian that is 1e-320 degrees away lay on a face of which GEOS found no area: it did
    not see where that edge crosses the side."""
    seen = np.array(
        [[-8.00286548e-11, 1.01, 1.0], [-1.77863633e-322, 1.80831692e-1, 1.0], [-1.03753786e-322, 1.01, 1.0]]
    )
    vectors = seen @ AXES[face]
    pairs, _ = wide.clip(vectors[:-1], vectors[1:], face)
    lines = shapely.union_all([*shapely.linestrings(pairs), shapely.boundary(SQUARE)])
    areas = shapely.get_parts(shapely.polygonize([lines]))
    assert [float(shapely.bounds(one).max()) for one in areas] == [BORDER, BORDER]
