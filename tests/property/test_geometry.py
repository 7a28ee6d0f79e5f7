"""Geometries, their cells and their relations against brute force (`tests/geometry_oracle.py`)."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keytide.collation import encode_part
from keytide.geometry import (
    Frame,
    Geometry,
    NotAGeometryError,
    QueryShape,
    Relation,
    bounds,
    cells_of,
    distance,
    distances,
    envelope,
    geometry_of,
    known_geometry,
    point,
    point_cell,
    point_cells,
    quick_cells_of_rings,
    ring_distances,
    sound_rings,
)
from keytide.geometry.cells.curve import _QUARTERS, _TURNS, LEAF, cell_of, level_of, parent_of, span_of
from keytide.geometry.cells.plane import lowest_of, places_of
from keytide.geometry.drawn.meeting import covers_on
from keytide.geometry.drawn.sphere import TOLERANCE, Floats
from keytide.structure.ring_keys import rings_of
from tests import geometry_oracle as oracle
from tests import geometry_shapes as shapes
from tests import share

RELATIONS: tuple[Relation, ...] = ("intersects", "within", "contains", "dwithin")
seeds = st.integers(0, 2**32)


def square_of(cell: int) -> tuple[int, int, int, int]:
    """(face, i, j, level) of a cell: where its least corner is."""
    face, level = cell >> 61, level_of(cell)
    turn, i, j = face & 1, 0, 0
    for at in range(level):
        step = cell >> 59 - 2 * at & 3
        quarter = _QUARTERS[turn][step]
        i, j = i << 1 | quarter >> 1, j << 1 | quarter & 1
        turn ^= _TURNS[step]
    return face, i << LEAF - level, j << LEAF - level, level


def geometry(raw: shapes.Json, frame: Frame = "geographic") -> Geometry | None:
    """None for the few that thin rings make invalid."""
    try:
        return geometry_of(raw, frame)
    except NotAGeometryError:
        return None


def pair(seed: int) -> tuple[random.Random, Geometry, Geometry] | None:
    """A document, and a query's shape somewhere near it."""
    rng = random.Random(seed)
    middle, size = shapes.place(rng), shapes.size_of(rng)
    near = shapes.beside(middle, rng.uniform(0, 7), min(1.5, size * rng.uniform(0, 3)))
    document = geometry(shapes.shape(rng, middle, size))
    shape = geometry(shapes.shape(rng, near, min(1.4, size * 10 ** rng.uniform(-1.5, 0.5))))
    return None if document is None or shape is None else (rng, document, shape)


def found(cells: tuple[int, ...], spans: list[tuple[int, int]]) -> bool:
    """Whether a document with these cells is read."""
    lows = [low for low, _ in spans]
    at = [bisect_right(lows, cell) - 1 for cell in cells]
    return any(n >= 0 and cell <= spans[n][1] for n, cell in zip(at, cells, strict=True))


def check_spans(spans: list[tuple[int, int]], most: int) -> None:
    assert 1 <= len(spans) <= most
    assert all(low <= high for low, high in spans)
    assert all(one[1] < other[0] for one, other in pairwise(spans))


def rings_around(rng: random.Random, frame: Frame) -> tuple[list[float], list[Geometry]]:
    """A place, and polygons of one ring near it, of all sizes; and one that lies opposite."""
    middle, size = shapes.place(rng), shapes.size_of(rng)
    made = []
    for _ in range(rng.randint(1, 12)):
        there = shapes.beside(middle, rng.uniform(0, 7), size * rng.uniform(0, 3))
        ring = shapes.star(rng, there, min(1.4, size * 10 ** rng.uniform(-1, 0.5)), rng.randint(3, 10))
        made.append(geometry({"type": "Polygon", "coordinates": [ring]}, frame))
    far = shapes.star(rng, [(middle[0] + 360) % 360 - 180, -middle[1]], size, 5)
    made.append(geometry({"type": "Polygon", "coordinates": [far]}, frame))
    return middle, [one for one in made if one is not None]


@settings(max_examples=share.examples(300), deadline=None)
@given(seed=seeds)
def test_polygons_have_the_same_cells_together_and_by_themselves(seed: int) -> None:
    rng = random.Random(seed)
    middle, corners = shapes.place(rng), rng.choice([3, 4, 5, 8, 9, 20, 60])
    made: list[Geometry] = []
    while len(made) < 8:
        there, size = shapes.beside(middle, rng.uniform(0, 7), rng.uniform(0, 0.3)), shapes.size_of(rng)
        ring = shapes.star(rng, there, size, corners)
        if rng.random() < 0.7:  # convex
            around = [2 * math.pi * at / corners for at in range(corners)]
            ring = [shapes.beside(there, azimuth, size) for azimuth in around]
            ring.append(ring[0])
        one = geometry({"type": "Polygon", "coordinates": [ring]})
        made += [] if one is None else [one]
    _, rings = rings_of([encode_part(one.geojson) for one in made], "geographic")
    most = rng.choice([1, 8, 16])
    for one, cells in zip(made, quick_cells_of_rings(rings, most), strict=True):
        assert cells is None or cells == cells_of(one, most)


@settings(max_examples=share.examples(300), deadline=None)
@given(seed=seeds, frame=st.sampled_from(["geographic", "planar"]))
def test_rings_that_are_sound_together_are_by_themselves(seed: int, frame: Frame) -> None:
    rng = random.Random(seed)
    raws: list[Any] = []
    for _ in range(8):
        middle = shapes.place(rng)
        ring = shapes.star(rng, middle, shapes.size_of(rng), rng.randint(3, 9))
        if rng.random() < 0.4:
            at = rng.randrange(1, len(ring) - 1)
            ring[at] = shapes.beside(middle, rng.uniform(0, 7), rng.uniform(0, 1.5))
        raws.append({"type": "Polygon", "coordinates": [ring]})
    are, rings = rings_of([encode_part(one) for one in raws], frame)
    assert are.all()
    for raw, sound in zip(raws, sound_rings(rings).tolist(), strict=True):
        made = geometry(raw, frame)
        assert made is not None or not sound
        assert sound or made is None or (frame == "geographic" and not made.drawing.whole)


@settings(max_examples=share.examples(600), deadline=None)
@given(seed=seeds, frame=st.sampled_from(["geographic", "planar"]))
def test_many_polygons_are_told_as_each_of_them(seed: int, frame: Frame) -> None:
    rng = random.Random(seed)
    middle, made = rings_around(rng, frame)
    are, rings = rings_of([encode_part(one.geojson) for one in made], frame)
    assert are.all()
    assert len(rings) == len(made)
    corners = [one.geojson["coordinates"][0][0] for one in made]
    kind = rng.choice(["Point", "Point", "Polygon", ""])
    at = rng.choice([middle, rng.choice(corners)]) if corners else middle
    shape = geometry(shapes.shape(rng, at, shapes.size_of(rng), kind), frame)
    if shape is None or not made:
        return
    away = [distance(one, shape) for one in made]
    measured = ring_distances(shape, rings).tolist()
    assert measured == pytest.approx(away, rel=1e-12, abs=1e-8)
    for relation in RELATIONS:
        metres = rng.choice([*away, rng.choice(away) * rng.uniform(0.9, 1.1)])
        region = QueryShape(relation, shape, metres)
        told = region.test_rings(rings).tolist()
        for one, got, far in zip(made, told, away, strict=True):
            if relation != "dwithin" or abs(far - metres) > 1e-8 + 1e-12 * metres:
                assert got == region.test(one), relation
    for number, metres in enumerate(measured):
        if shape.is_point:
            assert QueryShape("dwithin", shape, metres).test_rings(rings)[number]


# --- relations --------------------------------------------------------------------------------------------


@settings(max_examples=share.examples(800), deadline=None)
@given(seed=seeds)
@example(343)  # wider than half the earth, where PostGIS says that they meet
@example(1441)
@example(1669)
def test_relations_are_those_of_brute_force_and_what_matches_is_read(seed: int) -> None:
    made = pair(seed)
    if made is None:
        return
    rng, document, shape = made
    a, b = oracle.Sphere(document.geojson), oracle.Sphere(shape.geojson)
    cells = cells_of(document)
    wanted: dict[Relation, bool | None] = {
        "intersects": oracle.meet(a, b),
        "within": oracle.covers(b, a),
        "contains": oracle.covers(a, b),
    }
    for relation, want in wanted.items():
        region = QueryShape(relation, shape)
        got = region.test(document)
        assert want is None or got == want, relation
        if got:
            most = rng.choice([4, 16, 32, 64])
            spans = region.spans(most)
            check_spans(spans, most)
            assert found(cells, spans), relation


@settings(max_examples=share.examples(500), deadline=None)
@given(seed=seeds)
def test_distances_are_those_of_brute_force_and_what_is_near_is_read(seed: int) -> None:
    made = pair(seed)
    if made is None:
        return
    rng, document, shape = made
    a, b = oracle.Sphere(document.geojson), oracle.Sphere(shape.geojson)
    metres = distance(document, shape)
    meets = oracle.meet(a, b)
    if meets:
        assert metres == 0
    elif meets is False:
        possible = oracle.possible_distances(a, b)
        known = [one for one in possible if one is not None]
        assert len(known) < len(possible) or any(
            math.isclose(metres, one, rel_tol=1e-8, abs_tol=1e-5) for one in known
        )
    limit = metres * rng.choice([0.5, 0.999, 1.001, 1.5]) + rng.choice([0, 1])
    region = QueryShape("dwithin", shape, limit)
    assert region.test(document) == (metres <= limit)
    if metres <= limit:
        spans = region.spans()
        check_spans(spans, 32)
        assert found(cells_of(document), spans)


@settings(max_examples=share.examples(240), deadline=None)
@given(seed=seeds)
def test_many_points_are_tested_and_measured_as_one_is(seed: int) -> None:
    rng = random.Random(seed)
    middle, size = shapes.place(rng), shapes.size_of(rng)
    raw = shapes.shape(rng, middle, size)
    frame: Frame = rng.choice(["geographic", "geographic", "planar"])
    shape = geometry(raw, frame)
    if shape is None:
        return
    at = [
        shapes.beside(middle, rng.uniform(0, 7), size * rng.uniform(0, 2))
        for _ in range(rng.choice([10, 25, 90]))
    ]
    at += [one for edge in oracle.pieces(raw).lines for one in edge]
    xs, ys = np.array([one[0] for one in at], float), np.array([one[1] for one in at], float)
    points = [point(x, y, frame) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    limit = rng.uniform(0, 2) * size * (6.4e6 if frame == "geographic" else 57)
    for relation in RELATIONS:
        region = QueryShape(relation, shape, limit)
        answers = region.test_points(xs, ys).tolist()
        assert answers == [region.test(one) for one in points], relation
        spans = region.spans()
        for one, answer in zip(points, answers, strict=True):
            assert not answer or found(cells_of(one), spans), relation
    measured = distances(shape, xs, ys).tolist()
    alone = [distance(shape, one) for one in points]
    assert all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6), measured, alone))


def grid_shape(rng: random.Random) -> shapes.Json:
    """A shape with small whole coordinates, so that much of it touches, and lies on one line."""

    def corner() -> list[float]:
        return [rng.randint(-4, 4), rng.randint(-4, 4)]

    kind = rng.choice(["box", "Polygon", "Polygon", "Point", "LineString"])
    if kind == "box":
        west, south = corner()
        return shapes.box(west, south, rng.randint(1, 4), rng.randint(1, 4))
    if kind == "Point":
        return {"type": "Point", "coordinates": corner()}
    if kind == "LineString":
        return {"type": "LineString", "coordinates": [corner(), corner()]}
    ring = [corner() for _ in range(rng.randint(3, 6))]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}


@settings(max_examples=share.examples(1600), deadline=None)
@given(seed=seeds)
def test_relations_in_the_plane_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    one, other = geometry(grid_shape(rng), "planar"), geometry(grid_shape(rng), "planar")
    if one is None or other is None:
        return
    cells = cells_of(one)
    regions = {relation: QueryShape(relation, other, 1.5) for relation in RELATIONS}
    got = {relation: region.test(one) for relation, region in regions.items()}
    for relation, region in regions.items():
        assert not got[relation] or found(cells, region.spans(rng.choice([4, 32]))), relation
    kinds = one.geojson["type"], other.geojson["type"]
    if kinds == ("Polygon", "Polygon"):
        a, b = (oracle.FlatPolygon(shape.geojson["coordinates"]) for shape in (one, other))
        assert got["intersects"] == oracle.flat_meet(a, b)
        assert got["within"] == oracle.flat_covers(b, a)
        assert got["contains"] == oracle.flat_covers(a, b)
    elif kinds == ("Point", "Polygon"):
        where = oracle.FlatPolygon(other.geojson["coordinates"]).where(oracle.flat([one.x, one.y]))
        assert (got["intersects"], got["within"], got["contains"]) == (where >= 0, where > 0, False)
    elif kinds == ("Point", "LineString"):
        edge = oracle.edges_of(other.geojson["coordinates"])[0]
        assert got["intersects"] == oracle.on_edge(oracle.flat([one.x, one.y]), edge)
    assert got["intersects"] <= got["dwithin"] == (distance(one, other) <= 1.5)


def pieces_of(rng: random.Random, edge: Floats, size: float) -> list[Floats]:
    """An edge in some pieces, either way, which touch, or lie across one another."""
    cuts = sorted([0.0, 1.0, *(rng.random() for _ in range(rng.randint(0, 3)))])
    ends = [(a, min(1.0, b + rng.choice([0, 0, 0.1]))) for a, b in pairwise(cuts)]
    made = [edge[0] + np.array(both)[:, None] * (edge[1] - edge[0]) for both in ends]
    return [(one + rng.uniform(-1, 1) * size)[:: rng.choice([1, -1])] for one in made]


@settings(max_examples=share.examples(200), deadline=None)
@given(seed=seeds)
def test_edges_are_covered_by_their_pieces_and_not_without_one_of_them(seed: int) -> None:
    rng = random.Random(seed)
    count, size = rng.choice([1, 5, 60, 400]), 10 ** rng.uniform(-6, 0)
    at = np.random.default_rng(seed).uniform(-size, size, (count + 1, 2)) + rng.choice([0.0, 0.5, -0.9])
    if rng.random() < 0.3:
        at = (at / size * 4).round() * size / 4  # many lie along one another
    kept = (at[1:] != at[:-1]).any(axis=1)
    edges = np.stack((at[:-1], at[1:]), axis=1)[kept]
    if not len(edges):
        return
    pieces = [one for edge in edges for one in pieces_of(rng, edge, TOLERANCE / 4)]
    rng.shuffle(pieces)
    other, one = shapely.multilinestrings(list(edges)), shapely.multilinestrings(pieces)
    assert covers_on(one, other)
    assert covers_on(other, one)
    assert covers_on(shapely.geometrycollections([shapely.points(3, 3), one]), shapely.linestrings(at))
    # In the middle of an edge something is missing, at which no other one is.
    edge = edges[rng.randrange(len(edges))]
    middle = edge[0] + rng.uniform(0.3, 0.7) * (edge[1] - edge[0])
    less = shapely.multilinestrings(
        [part for piece in pieces for part in without(piece, middle, 10 * TOLERANCE)]
    )
    assert covers_on(other, less)
    assert not covers_on(less, other)


def without(piece: Floats, middle: Floats, far: float) -> list[Floats]:
    """What of a piece is not that near to a place."""
    way = piece[1] - piece[0]
    length = np.hypot(*way)
    if not length:
        return [] if np.hypot(*(piece[0] - middle)) < far else [piece]
    way = way / length
    foot = float((middle - piece[0]) @ way)
    beside = float(np.hypot(*(piece[0] + foot * way - middle)))
    if beside >= far:
        return [piece]
    half = math.sqrt(far * far - beside * beside)
    cut = [(0.0, min(length, foot - half)), (max(0.0, foot + half), length)]
    return [np.array([piece[0] + a * way, piece[0] + b * way]) for a, b in cut if a < b]


# --- cells ------------------------------------------------------------------------------------------------


@settings(max_examples=share.examples(600), deadline=None)
@given(seed=seeds)
def test_a_covering_is_disjoint_and_holds_every_point_of_the_shape(seed: int) -> None:
    rng = random.Random(seed)
    frame: Frame = rng.choice(["geographic", "planar"])
    middle, size = shapes.place(rng), shapes.size_of(rng)
    shape = geometry(shapes.shape(rng, middle, size), frame)
    if shape is None:
        return
    most = rng.choice([1, 4, 8, 20])
    cells = cells_of(shape, most)
    assert 1 <= len(cells) <= max(most, 24)
    assert most < 24 or len(cells) <= most
    assert all(one < other for one, other in pairwise(cells))
    assert all(one[1] < other[0] for one, other in pairwise(map(span_of, cells)))
    assert all(cell_of(square_of(cell)) == cell for cell in cells)
    found_spans = [span_of(cell) for cell in cells]
    at = [shapes.beside(middle, rng.uniform(0, 7), size * rng.uniform(0, 1.5)) for _ in range(30)]
    parts = oracle.pieces(shape.geojson)
    at += [*parts.points, *itertools.chain(*parts.lines), *(p for rings in parts.polygons for p in rings[0])]
    region = QueryShape("intersects", shape)
    for x, y in at:
        if region.test(one := point(x, y, frame)):
            leaf = point_cell(one.x, one.y, frame)
            # Within the tolerance of the shape, a point may be in the next leaf.
            assert found((leaf,), found_spans) or distance(one, shape) < 1e-4 or oracle_far(shape, x, y)


def oracle_far(shape: Geometry, x: float, y: float) -> bool:
    """Whether a point is not clearly of a shape."""
    return shape.frame == "geographic" and not oracle.Sphere(shape.geojson).holds(oracle.vector([x, y]))


@settings(max_examples=share.examples(400), deadline=None)
@given(st.lists(st.tuples(st.floats(-180, 180), st.floats(-90, 90)), min_size=1, max_size=40))
@example(list(itertools.product([-180, -135, -90, -45, 0, 45, 90, 135, 180], [-90, -45, -30, 0, 45, 90])))
def test_the_cell_of_a_point_is_that_of_s2_and_of_many(at: list[tuple[float, float]]) -> None:
    ids = [point_cell(x, y, "geographic") for x, y in at]
    for (x, y), cell in zip(at, ids, strict=True):
        leaf, clear = oracle.s2_leaf([x, y])
        assert cell == leaf or clear < 2e-5
        assert cells_of(point(x, y, "geographic")) == (cell,)
    xs, ys = np.array(at, float).T
    assert point_cells(xs, ys, "geographic").tolist() == ids


finite = st.floats(-1e150, 1e150)


@settings(max_examples=share.examples(400), deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20), st.integers(0, LEAF))
@example([(0.0, -0.0), (-0.0, 5e-324), (-5e-324, 1e150)], 30)
def test_a_planar_cell_holds_what_is_within_its_bounds(at: list[tuple[float, float]], level: int) -> None:
    xs, ys = np.array(at, float).T
    leaves = [point_cell(x, y, "planar") for x, y in at]
    assert point_cells(xs, ys, "planar").tolist() == leaves
    width = 1 << LEAF - level
    for leaf in leaves:
        cell = parent_of(leaf, level)
        low, high = span_of(cell)
        face, i, j, _ = square_of(cell)
        assert face == 0
        left, below, right, above = lowest_of(np.array([i, j, i + width, j + width])).tolist()
        for (x, y), other in zip(at, leaves, strict=True):
            assert (low <= other <= high) == (left <= x < right and below <= y < above)


@given(st.lists(finite, min_size=2, max_size=20))
def test_places_are_in_the_order_of_numbers(values: list[float]) -> None:
    places = places_of(np.array(sorted(values), float)).tolist()
    assert places == sorted(places)
    assert all(0 <= place < 1 << LEAF for place in places)


# --- reading ----------------------------------------------------------------------------------------------

KINDS = ["Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon"]
NUMBERS = [0, 1, 2, 3, -1, 0.5, 10.0, -0.0, 90, 180, -180, 45, 1e-9, 1e-320, 89.99999999999999]
WRONG: list[Any] = [
    None,
    True,
    "1",
    [],
    {},
    [1],
    [1, 2, 3, 4],
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    1e300,
    180.5,
    -91,
]
scalars = (
    st.none() | st.booleans() | st.text(max_size=3) | st.floats() | st.integers() | st.sampled_from(WRONG)
)
members = st.sampled_from(["type", "coordinates", "geometries", "bbox"])
anything = st.recursive(
    scalars | st.sampled_from([*KINDS, "GeometryCollection", "Feature"]),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(members, some, max_size=3),
    max_leaves=12,
)


def nearly(rng: random.Random, depth: int = 0) -> Any:
    """What looks like a geometry, with numbers that are often the same, and now and then something wrong."""
    if depth < 10 and rng.random() < (0.2 if depth == 0 else 0.5 if depth < 9 else 0.9) * (depth != 1):
        return {
            "type": "GeometryCollection",
            "geometries": [nearly(rng, depth + 1) for _ in range(rng.randint(rng.random() < 0.9, 2))],
        }
    wrong = 0.01 if rng.random() < 0.3 else 0.0

    def maybe(value: Any) -> Any:
        return rng.choice(WRONG) if rng.random() < wrong else value

    def number() -> Any:
        few = rng.random() < 0.7
        return maybe(rng.choice(NUMBERS) if few else rng.choice([rng.uniform(-90, 90), rng.randint(-90, 90)]))

    def position() -> Any:
        return maybe([number(), number(), *([7] if rng.random() < 0.1 else [])])

    def some(make: Any, least: int, most: int) -> Any:
        return maybe([make() for _ in range(rng.randint(least, most))])

    def ring() -> Any:
        if rng.random() < 0.5:
            at = shapes.star(rng, [rng.uniform(-180, 180), rng.uniform(-90, 90)], rng.uniform(0, 1.5), 5)
        else:
            at = [position() for _ in range(rng.randint(2, 5))]
            at.append(maybe(at[0]))
        return maybe(at)

    kind = rng.choice(KINDS)
    makers: dict[str, Any] = {
        "Point": position,
        "MultiPoint": lambda: some(position, 1, 4),
        "LineString": lambda: some(position, 2, 5),
        "MultiLineString": lambda: some(lambda: some(position, 2, 4), 1, 3),
        "Polygon": lambda: some(ring, 1, 2),
        "MultiPolygon": lambda: some(lambda: some(ring, 1, 1), 1, 3),
    }
    return {"type": kind, "coordinates": makers[kind](), **({"bbox": [1]} if rng.random() < 0.1 else {})}


def check_any(value: Any, frame: Frame) -> bool:
    """See that it is a geometry with a normal form, or is refused; whether it is one."""
    try:
        made = geometry_of(value, frame)
    except NotAGeometryError as error:
        said = str(error)
        if not 5 < len(said) < 200:
            raise
        return False
    form = made.geojson
    assert set(form) == {"type", "geometries" if form["type"] == "GeometryCollection" else "coordinates"}
    again = geometry_of(form, frame)
    assert again == made == known_geometry(form, frame)
    assert repr(again.geojson) == repr(form)
    cells = cells_of(made)
    assert 1 <= len(cells) <= 24
    assert QueryShape("intersects", made).test(made)
    assert QueryShape("contains", made).test(made) or frame == "planar"
    assert found(cells, QueryShape("contains", made).spans())
    assert distance(made, made) == 0
    _, south, _, north = bounds(made)
    assert south <= north
    return True


@settings(max_examples=share.examples(600), deadline=None)
@given(value=anything, frame=st.sampled_from(["geographic", "planar"]))
@example({"type": "Point", "coordinates": [10**400, 0]}, "planar")
@example({"type": "Polygon", "coordinates": [[[0, 0], [1e-320, 0], [0, 1e-320], [0, 0]]]}, "planar")
@example({"type": "Polygon", "coordinates": [[[0, 0], [1e150, 0], [0, 1e150], [0, 0]]]}, "planar")
@example({"type": "LineString", "coordinates": [[0, 0], [180, 0]]}, "geographic")
def test_any_value_is_a_geometry_or_is_refused(value: Any, frame: Frame) -> None:
    check_any(value, frame)


@settings(max_examples=share.examples(3000), deadline=None)
@given(seed=seeds)
def test_what_looks_like_a_geometry_is_one_with_a_normal_form_or_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    check_any(nearly(rng), rng.choice(["geographic", "planar"]))


def test_much_of_what_looks_like_a_geometry_is_one() -> None:
    taken = [check_any(nearly(random.Random(seed)), "geographic") for seed in range(200)]
    assert 40 < sum(taken) < 160


@settings(max_examples=share.examples(400), deadline=None)
@given(seed=seeds)
def test_bounds_hold_the_shape_and_are_not_much_more(seed: int) -> None:
    rng = random.Random(seed)
    middle, size = shapes.place(rng), shapes.size_of(rng)
    shape = geometry(shapes.shape(rng, middle, size))
    if shape is None:
        return
    west, south, east, north = bounds(shape)
    width = (east - west) % 360 if east != west + 360 else 360
    region = QueryShape("intersects", shape)
    at = [shapes.beside(middle, rng.uniform(0, 7), size * rng.uniform(0, 1.5)) for _ in range(30)]
    for x, y in at:
        if region.test(point(x, y, "geographic")):
            assert south - 1e-7 <= y <= north + 1e-7
            assert (x - west + 1e-6) % 360 <= width + 2e-6 or abs(y) > 89.999


# --- what the oracle rests on -----------------------------------------------------------------------------


def test_the_oracle_knows_some_answers() -> None:
    assert oracle.geodesic([0, 0], [0, 1]) == pytest.approx(110574.388558, abs=1e-5)
    assert oracle.geodesic([0, 0], [1, 0]) == pytest.approx(111319.490793, abs=1e-5)
    assert oracle.geodesic([0, 0], [179.9, 0.1]) is None
    assert oracle.s2_leaf([0, 0])[0] == 0x1000000000000001
    square = oracle.FlatPolygon([[[0, 0], [2, 0], [2, 2], [0, 2], [0, 0]]])
    assert [square.where((Fraction(x), Fraction(1))) for x in (1, 2, 3)] == [1, 0, -1]
    world = oracle.Sphere(shapes.box(0, 0, 10, 10))
    assert world.holds(oracle.vector([5, 10.03])) is True
    assert world.holds(oracle.vector([5, 10.05])) is False
    assert world.holds(oracle.vector([10, 5])) is None


def test_an_envelope_is_a_polygon_of_great_circles() -> None:
    rng = random.Random(1)
    for _ in range(50):
        west, south = rng.uniform(-180, 180), rng.uniform(-90, 80)
        width, north = rng.uniform(0.1, 179), rng.uniform(south, 90)
        east = west + width if west + width <= 180 else west + width - 360
        made = envelope(west, south, east, north, "geographic")
        sphere = oracle.Sphere(made.geojson)
        region = QueryShape("intersects", made)
        for _ in range(10):
            x, y = rng.uniform(-180, 180), rng.uniform(-90, 90)
            want = sphere.holds(oracle.vector([x, y]))
            assert want is None or region.test(point(x, y, "geographic")) == want


@settings(max_examples=share.examples(400), deadline=None)
@given(seeds)
@example(99)
@example(187)
@example(373)
def test_wide_boxes_of_round_degrees_hold_what_their_bounds_say(seed: int) -> None:
    """Corners, poles and middles of the cube's faces lie on one great circle then: what is asked on the
    sphere must not go through a corner. Places are looked at that are some degrees off the sides."""
    rng = random.Random(seed)
    step = rng.choice((15, 30, 45))
    west, wide = (
        step * rng.randrange(-180 // step, 180 // step),
        step * rng.randrange(90 // step, 330 // step + 1),
    )
    south, north = sorted(rng.sample(range(-75, 76, 15), 2))
    area = (math.sin(math.radians(north)) - math.sin(math.radians(south))) / 2 * wide / 360
    if area > 0.48:
        return  # its other side may be the smaller one
    lower = [[west + lon, south] for lon in range(0, wide + 1, step)]
    upper = [[west + lon, north] for lon in range(wide, -1, -step)]
    ring = [[(lon + 180) % 360 - 180, lat] for lon, lat in [*lower, *upper, lower[0]]]
    shape = geometry({"type": "Polygon", "coordinates": [ring]})
    if shape is None:
        return
    places = [(10.7, 59.9), (-74.0, 40.7), (0.0, -80.0), (0.0, 90.0), (0.0, -90.0)]
    places += [(float(lon), float(lat)) for lon in range(-180, 180, 45) for lat in (-45, 0, 45)]
    places += [(rng.uniform(-180, 180), rng.uniform(-89, 89)) for _ in range(20)]
    # Sides between corners of one latitude are arcs, which come nearer to the pole than that.
    most = max(abs(south), abs(north))
    arc = math.degrees(math.atan(math.tan(math.radians(most)) / math.cos(math.radians(step / 2)))) - most + 1
    asked = QueryShape("intersects", shape)
    for lon, lat in places:
        east = (lon - west) % 360
        if min(abs(lat - south), abs(lat - north)) < arc or (
            abs(lat) < 90 and min(east, 360 - east, abs(east - wide)) < 1
        ):
            continue
        inside = south < lat < north and east < wide
        assert asked.test(point(lon, lat, "geographic")) == inside, (ring, lon, lat)


@settings(max_examples=share.examples(400), deadline=None)
@given(st.floats(-180, 180), st.floats(-89, 89))
@example(84.1, -10.87)
def test_what_lies_opposite_is_as_near_as_its_distance_says(lon: float, lat: float) -> None:
    there = point(lon, lat, "geographic")
    opposite = point(lon - 180 if lon > 0 else lon + 180, -lat, "geographic")
    assert distance(there, opposite) < 3e7
    assert QueryShape("dwithin", opposite, 3e7).test(there)


def told(seed: int, make: Callable[[random.Random], shapes.Json]) -> bool:
    """Whether there was something to tell of a wide polygon, or of several."""
    rng = random.Random(seed)
    raw = make(rng)
    shape = geometry(raw)
    sphere = oracle.Sphere(raw)
    if shape is None or any(rings[0].outside_parity is None for rings in sphere.polygons):
        return False
    places = [shapes.place(rng) for _ in range(40)] + [[0, 60], [45, -15], [-120, 30]]
    at = np.array(places, np.float64)
    held = QueryShape("within", shape).test_points(at[:, 0], at[:, 1]).tolist()
    for place, is_held in zip(places, held, strict=True):
        want = sphere.holds(oracle.vector(place))
        assert want is None or is_held == want, (raw, place)
    return True


@settings(max_examples=share.examples(400), deadline=None)
@given(seed=seeds)
def test_wide_polygons_on_a_lattice_hold_what_brute_force_says(seed: int) -> None:
    """Many go there and back on one great circle: such a one has no inside to be told."""
    told(seed, shapes.on_lattice)


@settings(max_examples=share.examples(400), deadline=None)
@given(seed=seeds)
@example(0)
def test_wide_polygons_around_corners_of_faces_hold_what_brute_force_says(seed: int) -> None:
    told(seed, shapes.wide_stars)


def test_much_of_what_is_wide_is_told() -> None:
    assert sum(told(seed, shapes.on_lattice) for seed in range(40)) > 10
    assert sum(told(seed, shapes.wide_stars) for seed in range(40)) > 10
