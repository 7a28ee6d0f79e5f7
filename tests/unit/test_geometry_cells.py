"""Cells of documents are on disk: what a geometry is covered by stays as it was, to the bit."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator

import numpy as np

from keytide.geometry import Frame, Geometry, QueryShape, Rings, cells_of, distance, geometry_of, point

KEPT = "810978827e6977720dabf3c0dcaa830a47e5dec8699038c972201ea2ab43ad96"
"""Of the cells of `rings(7)`, as the first release that had spatial indexes gave them."""


def box(west: float, south: float, east: float, north: float) -> list[list[float]]:
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def polygon(ring: list[list[float]], frame: Frame) -> Geometry:
    return geometry_of({"type": "Polygon", "coordinates": [ring]}, frame)


def rings(seed: int) -> Iterator[Geometry]:
    """Boxes and convex polygons of all sizes, on the globe and in a plane, many of them across its axes."""
    chance = random.Random(seed)
    for number in range(400):
        planar = number % 2 == 1
        size = 10 ** chance.uniform(-8, 6 if planar else 1)
        far = (4 * size, 4 * size) if planar else (170, 70)
        x, y = (chance.choice([0, chance.uniform(-most, most)]) for most in far)
        if number % 4 < 2:
            ring = box(x - size * chance.random(), y - size * chance.random(), x + size, y + size)
        else:
            turns = sorted(chance.uniform(0, 2 * math.pi) for _ in range(chance.randrange(3, 9)))
            ring = [[x + size * math.cos(t), y + size * math.sin(t)] for t in turns]
            ring.append(ring[0])
        yield polygon(ring, "planar" if planar else "geographic")


def test_polygons_are_covered_as_they_always_were() -> None:
    found = hashlib.sha256()
    for one in rings(7):
        found.update(repr(cells_of(one)).encode())
    assert found.hexdigest() == KEPT


def test_a_box_across_an_axis_of_a_plane_is_not_the_whole_plane() -> None:
    """A cell at the end of the plane has infinite corners, and zero times that is no number."""
    assert len(cells_of(polygon(box(-3, 2, 5, 9), "planar"))) == 8


def test_what_tests_polygons_one_by_one_says_so() -> None:
    small, here = polygon(box(1, 1, 2, 2), "geographic"), point(1.0, 1.0, "geographic")
    assert QueryShape("intersects", small).tests_rings_together
    assert QueryShape("dwithin", here, 5.0).tests_rings_together
    assert not QueryShape("dwithin", small, 5.0).tests_rings_together
    assert not QueryShape("contains", small).tests_rings_together
    assert not QueryShape("intersects", polygon(box(-80, -40, 80, 40), "geographic")).tests_rings_together
    turns = [2 * math.pi * n / 200 for n in range(200)]
    round_one = [[math.cos(t), math.sin(t)] for t in turns]
    assert not QueryShape("dwithin", polygon([*round_one, round_one[0]], "planar"), 5.0).tests_rings_together


def test_what_is_exactly_as_far_away_as_is_asked_is_near_whichever_way_is_taken() -> None:
    """One by one, and many together."""
    chance = random.Random(3)
    for one in rings(11):
        if one.frame == "planar":
            continue
        place = point(chance.uniform(-170, 170), chance.uniform(-80, 80), "geographic")
        near = QueryShape("dwithin", place, distance(one, place))
        assert near.test(one)
        ring = one.geojson["coordinates"][0]
        together = Rings(np.array(ring, float), np.array([len(ring)]), "geographic")
        assert near.test_rings(together).all()
