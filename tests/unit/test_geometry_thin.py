"""Rings on the globe that go there and back: they have no inside, and are refused, however wide they are."""

from __future__ import annotations

import numpy as np
import pytest

from keytide.collation import encode_part
from keytide.geometry import NotAGeometryError, QueryShape, cells_of, geometry_of, sound_rings
from keytide.geometry.drawn.sphere import signed_area, vectors
from keytide.structure.ring_keys import rings_of
from tests import geometry_shapes as shapes

Ring = list[list[float]]
REFUSED = r"no area|crosses or touches|runs along itself"


def polygon(*rings: Ring) -> shapes.Json:
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]] for ring in rings]}


def ways_of(ring: Ring) -> list[Ring]:
    """A ring from each of its corners, both ways round."""
    turned = [ring[at:] + ring[:at] for at in range(len(ring))]
    return turned + [one[::-1] for one in turned]


@pytest.mark.parametrize("lon", range(-177, 178, 7))
def test_a_ring_of_a_meridian_has_no_area(lon: int) -> None:
    for lats in ((0, 5, 10), (20, 30, 50), (-40, -35, -1), (1, 2, 4)):
        ring: Ring = [[lon, lat] for lat in lats]
        with pytest.raises(NotAGeometryError, match=REFUSED):
            geometry_of(polygon(ring), "geographic")
        with pytest.raises(NotAGeometryError, match=REFUSED):
            geometry_of(polygon([[lon - 2, -60], [lon + 2, -60], [lon, 70]], ring), "geographic")
        _, rings = rings_of([encode_part(polygon(ring))], "geographic")
        assert not sound_rings(rings).any()


@pytest.mark.parametrize(
    "ring",
    [
        [[-105, 30], [105, 90], [75, 15]],
        [[-180, 45], [135, 0], [-90, 45]],
        [[135, -60], [90, -90], [-45, -35], [135, -35]],
        [[0, -60], [0, 0], [0, 60]],
        [[-120, 0], [10, 0], [100, 0], [20, 0]],
        [[120, 0], [-60, -30], [-180, 0], [-150, -90]],  # along itself over the pole
        [
            [-170, 0],
            [-60, 20],
            [60, -20],
            [170, 0],
            [60, -30],
            [170, 0],
            [0, -70],
        ],  # there and back at one corner
        [[-150, 5], [-50, 5], [0, 40], [50, 5], [150, 5], [50, -50], [0, 40], [-50, -50]],  # two at a corner
    ],
)
def test_a_wide_ring_that_goes_there_and_back_is_refused(ring: Ring) -> None:
    for one in ways_of(ring):
        with pytest.raises(NotAGeometryError, match=REFUSED):
            geometry_of(polygon(one), "geographic")


def test_positions_of_wide_rings_may_be_as_near_to_one_another_as_they_like() -> None:
    """What is nearly one place is no ring that comes back to itself."""
    rings: list[Ring] = [
        [[-170, 5], [-60, -5], [60, -5], [170, 5], [0, 60]],
        [[-100, 0], [0, -30], [55, 10], [0, 60]],
    ]
    for ring in rings:
        lon, lat = ring[1]
        near = [[lon + at * 1e-11, lat + at * 2e-12] for at in range(5)]
        for one in ways_of([ring[0], *near, *ring[2:]]):
            assert cells_of(geometry_of(polygon(one), "geographic"))


def test_holes_of_wide_polygons_lie_beside_one_another() -> None:
    wide: Ring = [[-170, -60], [0, -35], [170, -60], [170, 3], [90, 2], [0, 4], [-90, 3], [-170, 2]]

    def square(lon: float, size: float) -> Ring:
        return [[lon - size, -15 - size], [lon + size, -15 - size], [lon, -15 + size]]

    for few in ([square(0, 8), square(0, 2)], [square(0, 2), square(60, 5), square(0, 8)]):
        with pytest.raises(NotAGeometryError, match="a hole lies within another hole near"):
            geometry_of(polygon(wide, *few), "geographic")
    corner: Ring = [[0, -35], [0, -35], [4, -30], [-4, -30]]  # touches the outline, there twice
    beside: Ring = [[4, -30], [4, -30], [9, -25], [9, -30]]  # and that
    assert cells_of(geometry_of(polygon(wide, corner, beside, square(40, 3)), "geographic"))


def test_a_hole_that_is_a_point_has_no_area() -> None:
    lons = range(-180, 180, 20)
    outline: Ring = [[lon, -60] for lon in lons]
    with pytest.raises(NotAGeometryError, match="no area"):
        geometry_of(polygon(outline, [[70, -75]] * 3), "geographic")


def test_areas_are_those_of_the_side_on_the_left() -> None:
    octant = vectors(np.array([[0.0, 0], [90, 0], [0, 90]]))
    equator = vectors(np.array([[0.0, 0], [90, 0], [180, 0], [-90, 0]]))
    assert signed_area(octant) == pytest.approx(np.pi / 2)
    assert signed_area(octant[::-1]) == pytest.approx(3.5 * np.pi)
    assert signed_area(equator) == pytest.approx(2 * np.pi)
    for n in range(40):
        size, middle = 10 ** (-n / 8), [9.0 * n - 180, 4.4 * n - 86]
        turns = np.arange(60) * np.pi / 30
        area = signed_area(vectors(np.array([shapes.beside(middle, -turn, size) for turn in turns])))
        of_cap = 4 * np.pi * np.sin(size / 2) ** 2
        assert min(area, 4 * np.pi - area) == pytest.approx(of_cap, rel=5e-3, abs=1e-14)


@pytest.mark.parametrize(
    "ring",
    [
        [[10, 0], [10, 10], [10.0000001, 5]],
        [[10, 50], [10, 50.01], [10.0000001, 50.005]],
        [[10, 0], [10, 10], [13, 5]],
    ],
)
def test_what_is_off_a_sharp_corner_does_not_meet_it(ring: Ring) -> None:
    shape = geometry_of(polygon(ring), "geographic")
    north = ring[1][1] + 10 ** np.arange(-9.5, -3, 0.1)
    held = QueryShape("intersects", shape).test_points(np.full(len(north), 10.0), north)
    assert not held[(north - ring[1][1]) * 111_000 > 4e-5].any()
