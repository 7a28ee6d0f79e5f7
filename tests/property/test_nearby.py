"""The nearest to a point by bounds: a disc's cells miss nothing, no bound is beyond the true distance, and
who is left out is none of the nearest. Distances are `tests/geometry_oracle`'s, or those of all, measured
without bounds."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.collation import encode_part
from keytide.geometry import (
    NotAGeometryError,
    QueryShape,
    Rings,
    cells_of,
    distances,
    geometry_of,
    nearest_points,
    point,
    point_cell,
    ring_distances,
    spans_around,
)
from keytide.geometry.cells.disc import WIDEST, disc_spans
from keytide.geometry.drawn.around import RingsAround
from keytide.geometry.drawn.sphere import EARTH_RADIUS
from keytide.structure.ring_keys import rings_of
from tests import geometry_oracle as oracle
from tests import geometry_shapes as shapes
from tests import share

seeds = st.integers(0, 2**32)


def are_read(cells: tuple[int, ...], spans: list[tuple[int, int]]) -> bool:
    lows = [low for low, _ in spans]
    at = [bisect_right(lows, cell) - 1 for cell in cells]
    return any(n >= 0 and cell <= spans[n][1] for n, cell in zip(at, cells, strict=True))


def rings_near(rng: random.Random, middle: list[float]) -> Rings:
    """Polygons near a place, small and large, round and thin; some around a pole or the antimeridian."""
    size, raws = shapes.size_of(rng, 0.3), list[Any]()
    for _ in range(rng.randint(1, 14)):
        there = shapes.beside(middle, rng.uniform(0, 7), size * rng.uniform(0, 4))
        ring = shapes.star(rng, there, min(1.4, size * 10 ** rng.uniform(-1.5, 0.7)), rng.randint(3, 9))
        raws.append({"type": "Polygon", "coordinates": [ring]})
    return rings_of([encode_part(one) for one in raws if is_sound(one)], "geographic")[1]


def is_sound(raw: dict[str, Any]) -> bool:
    try:
        geometry_of(raw, "geographic")
    except NotAGeometryError:
        return False
    return True


@settings(max_examples=share.examples(2_000), deadline=None)
@given(seed=seeds)
def test_whatever_lies_in_a_disc_has_one_of_its_cells(seed: int) -> None:
    rng = random.Random(seed)
    middle, across = shapes.place(rng), rng.choice([2, 3, 4, 6, 9])
    angle = WIDEST * 10 ** rng.uniform(-8, 0)
    spans = disc_spans(oracle.vector(middle), angle, across)
    assert spans is not None
    assert all(low <= high for low, high in spans)
    assert all(one[1] + 2 < other[0] for one, other in pairwise(spans))
    for _ in range(30):
        away = angle * rng.choice([1 - 1e-9, math.sqrt(rng.random())])
        lon, lat = shapes.beside(middle, rng.uniform(0, 7), away)
        assert are_read((point_cell(lon, lat, "geographic"),), spans), (lon, lat)
    # Few cells: what is read is not many times the disc.
    wide = sum(high - low for low, high in spans if high > low) / (6 << 61) * 4
    assert wide < 40 * angle**2 + 1e-17
    assert disc_spans(oracle.vector(middle), WIDEST * 1.01, across) is None


@settings(max_examples=share.examples(600), deadline=None)
@given(seed=seeds)
def test_whatever_meets_a_disc_is_found_as_what_is_within_a_distance(seed: int) -> None:
    rng = random.Random(seed)
    middle, size = shapes.place(rng), shapes.size_of(rng, 0.1)
    place = point(middle[0], middle[1], "geographic")
    for _ in range(6):
        there = shapes.beside(middle, rng.uniform(0, 7), size * rng.uniform(0, 3))
        raw = shapes.shape(rng, there, size * 10 ** rng.uniform(-2, 0.5))
        if not is_sound(raw):
            continue
        document = geometry_of(raw, "geographic")
        metres = size * EARTH_RADIUS * rng.uniform(0, 0.8)
        spans = spans_around(place, metres, closely=rng.random() < 0.5)
        if spans is not None and QueryShape("dwithin", place, metres).test(document):
            assert are_read(cells_of(document, rng.choice([1, 4, 8])), spans)


@settings(max_examples=share.examples(1_500), deadline=None)
@given(seed=seeds)
def test_polygons_seen_from_a_place_are_as_near_and_hold_it_as_each_does(seed: int) -> None:
    rng = random.Random(seed)
    middle = shapes.place(rng)
    rings = rings_near(rng, middle)
    if not len(rings):
        return
    kind = rng.random()
    if kind < 0.3:
        middle = shapes.beside(middle, rng.uniform(0, 7), rng.uniform(0, 3))
    elif kind < 0.4:
        middle = rings.at[rng.randrange(len(rings.at))].tolist()
    seen = seen_from(middle, rings)
    here = oracle.Sphere({"type": "Point", "coordinates": middle})
    for at in range(len(rings)):
        ring = oracle.Sphere(rings.geometry(at).geojson)
        chord = 2 * math.sin(oracle.closest(here, ring)[0][0] / 2)
        # (Of a corner at the place the difference of two nearly equal numbers is left.)
        assert math.sqrt(seen.chord2[at]) == pytest.approx(chord, rel=1e-9, abs=1e-12)
        held = ring.holds(oracle.vector(middle))
        if held is not None and not seen.open[at]:
            assert seen.hold[at] == held
        assert not (seen.open[at] and seen.hold[at])


def seen_from(middle: list[float], rings: Rings) -> RingsAround:
    drawing = point(middle[0], middle[1], "geographic").drawing
    return RingsAround(rings.at, rings.counts, drawing.vector[0])


def test_what_may_be_on_a_line_and_what_is_wide_is_left_open_alone() -> None:
    ring = [[10.0, 50.0], [10.01, 50.0], [10.01, 50.01], [10.0, 50.01], [10.0, 50.0]]
    wide = [[-70.0, -60.0], [70.0, -60.0], [70.0, 60.0], [-70.0, 60.0], [-70.0, -60.0]]
    rings = Rings(np.array(ring + wide + ring), np.array([5, 5, 5]), "geographic")
    for middle, held, open_ in (
        ([10.005, 50.005], True, False),
        ([10.02, 50.005], False, False),
        ([10.01 + 1e-9, 50.005], False, True),
        ([10.01 - 1e-9, 50.005], False, True),
        ([10.01 - 1e-7, 50.005], True, False),
        ([-170.0, -50.0], False, False),
    ):
        seen = seen_from(middle, rings)
        assert seen.hold.tolist() == [held, False, held]
        assert seen.open.tolist() == [open_, True, open_]


@settings(max_examples=share.examples(800), deadline=None)
@given(seed=seeds)
def test_who_is_left_out_is_none_of_the_nearest(seed: int) -> None:
    rng = random.Random(seed)
    middle, wanted = shapes.place(rng), rng.randint(1, 8)
    place, size = point(middle[0], middle[1], "geographic"), shapes.size_of(rng, 3.0)
    at = [shapes.beside(middle, rng.uniform(0, 7), size * math.sqrt(rng.random())) for _ in range(30)]
    at += [rng.choice(at) for _ in range(5)]  # those at one distance
    xs, ys = np.array(at).T
    check(nearest_points(place, xs, ys, wanted), distances(place, xs, ys), wanted, exact=True)
    rings = rings_near(rng, middle)
    if len(rings):
        check(ring_distances(place, rings, wanted), ring_distances(place, rings), wanted, exact=False)


@pytest.mark.parametrize("seed", share.seeds(60))
def test_nor_is_who_is_at_the_other_end_of_the_globe(seed: int) -> None:
    rng = random.Random(seed)
    lon, lat = rng.uniform(-180, 180), rng.uniform(-90, 90)
    opposite = lon - math.copysign(180, lon)
    xs, ys = np.full(3, opposite), np.full(3, -lat)
    place = point(lon, lat, "geographic")
    check(nearest_points(place, xs, ys, 2), distances(place, xs, ys), 2, exact=True)
    assert np.isfinite(nearest_points(place, xs, ys, 2)).sum() >= 2
    if abs(lat) < 80 and abs(opposite) < 179:  # triangles with a corner there
        corners = [[opposite, -lat], [opposite + 0.1, -lat], [opposite, -lat + 0.1], [opposite, -lat]]
        rings = Rings(np.array(corners * 3), np.full(3, 4), "geographic")
        check(ring_distances(place, rings, 2), ring_distances(place, rings), 2, exact=False)
        assert np.isfinite(ring_distances(place, rings, 2)).sum() >= 2


def check(found: Any, every: Any, wanted: int, *, exact: bool) -> None:
    last = np.sort(every)[:wanted][-1]
    kept = np.isfinite(found)
    # (What a sum of three is depends on what is summed beside it, in its last bit.)
    assert found[kept].tolist() == pytest.approx(every[kept].tolist(), rel=0 if exact else 1e-12, abs=1e-8)
    assert (every[~kept] > last).all()


def test_most_are_left_out() -> None:
    rng = random.Random(1)
    xs = np.array([rng.uniform(10, 11) for _ in range(400)])
    ys = np.array([rng.uniform(50, 51) for _ in range(400)])
    place = point(10.5, 50.5, "geographic")
    assert np.isfinite(nearest_points(place, xs, ys, 10)).sum() <= 12
    squares = [[[x, y], [x + 1e-3, y], [x + 1e-3, y + 1e-3], [x, y]] for x, y in zip(xs, ys, strict=True)]
    rings = Rings(np.array(squares).reshape(-1, 2), np.full(400, 4), "geographic")
    assert np.isfinite(ring_distances(place, rings, 10)).sum() <= 20
