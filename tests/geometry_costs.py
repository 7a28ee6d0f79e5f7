"""Shapes that cost much, and what work with a geometry costs: no clock, but the positions that are given to
GEOS and to our own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import numpy as np
import shapely

from keytide.geometry.drawn import charts, covered, drawing, meeting, turned, wide, work

Json = dict[str, Any]
_ROOMS: Final = (charts, drawing, turned, wide)
_LINES: Final = (1, 5, 7)
"""GEOS' types of what may have lines."""
_ARITHMETIC: Final = ("uvw", "crossings", "normals", "signed_area", "degrees")


def ring_of(at: list[list[float]]) -> list[list[float]]:
    return [*at, at[0]]


def polygon(*at: list[float]) -> Json:
    return {"type": "Polygon", "coordinates": [ring_of(list(at))]}


def together(*polygons: Json) -> Json:
    return {"type": "MultiPolygon", "coordinates": [one["coordinates"] for one in polygons]}


def comb(teeth: int, width: float = 170.0, reach: float = 60.0) -> Json:
    """Teeth from one side of the equator to the other, each across several faces of the cube."""
    step = width / teeth
    at = [
        [round(step * number / 2 - width / 2, 6), -reach if number % 2 else reach]
        for number in range(2 * teeth + 1)
    ]
    return polygon(*at, *([lon, -reach - 10] for lon in (width / 2, 0.0, -width / 2)))


def girdle(teeth: int) -> Json:
    """The same, all around a pole."""
    return polygon(*([360 * n / teeth / 2 - 180, 70.0 if n % 2 else 40.0] for n in range(2 * teeth)))


def belt(teeth: int) -> Json:
    """Half of the earth, or nearly so."""
    return polygon(*([180 * n / teeth - 180, 4.0 if n % 2 else 9.0] for n in range(2 * teeth)))


def islands(count: int) -> Json:
    """Half of the earth, or nearly so, with holes."""
    side = math.isqrt(count - 1) + 1
    places = [(160 * (n % side) / side - 80, 25 * (n // side) / side - 25) for n in range(count)]
    holes = [[[x, y], [x + 5 / side, y], [x + 5 / side, y + 5 / side], [x, y]] for x, y in places]
    outline = polygon([-170, -60], [0, -35], [170, -60], [170, 3], [90, 2], [0, 4], [-90, 3], [-170, 2])
    return {"type": "Polygon", "coordinates": [*outline["coordinates"], *holes]}


def aslant(teeth: int) -> Json:
    """Teeth that lie within each other's boxes."""
    at = [[10 * n / teeth / 2 + 10 * (n % 2), 10.0 * (n % 2)] for n in range(2 * teeth)]
    return polygon(*at, [25, 10], [25, -1], [0, -1])


def triangles(count: int, width: float = 150.0) -> Json:
    """Triangles as wide as oceans that lie across each other."""
    made = []
    for number in range(count):
        lon, lat = -180 + 360 * number / count % 30, -30 + 60 * (number * 7 % count) / count
        made.append(
            polygon(
                *(
                    [(lon + east + 180) % 360 - 180, lat + north]
                    for east, north in ((0, 0), (width, 0), (width / 2, 5))
                )
            )
        )
    return together(*made)


def bars(count: int) -> Json:
    """Long bars that lie across as many others."""

    def box(a: float, b: float, c: float, d: float) -> Json:
        return polygon([a, b], [c, b], [c, d], [a, d])

    size, thick = 20.0, 10.0 / count
    places = [size * number / count for number in range(count)]
    return together(
        *(box(0, at, size, at + thick) for at in places), *(box(at, 0, at + thick, size) for at in places)
    )


def tiles(count: int) -> Json:
    """Squares side by side."""
    side = math.isqrt(count)
    places = [(number % side / 10, number // side / 10) for number in range(side * side)]
    return together(*(polygon([x, y], [x + 0.1, y], [x + 0.1, y + 0.1], [x, y + 0.1]) for x, y in places))


def scribble(count: int, seed: int = 1) -> Json:
    """A line that crosses itself nearly everywhere."""
    at = np.random.default_rng(seed).uniform(0, 10, (count, 2)).round(6)
    return {"type": "LineString", "coordinates": at.tolist()}


def scribbles(count: int, seed: int = 1) -> Json:
    """The same as lines of two positions each."""
    at = scribble(count, seed)["coordinates"]
    return {"type": "MultiLineString", "coordinates": [at[n : n + 2] for n in range(0, count, 2)]}


def scattered(count: int) -> Json:
    """Lines of two positions, an area and a point."""
    lines = [{"type": "LineString", "coordinates": at} for at in scribbles(count)["coordinates"]]
    others = [polygon([0, 0], [1, 0], [1, 1]), {"type": "Point", "coordinates": [20, 1]}]
    return {"type": "GeometryCollection", "geometries": [*lines, *others]}


def around_the_globe(count: int) -> Json:
    """A line from anywhere to anywhere."""
    at = np.random.default_rng(1).normal(size=(count, 3))
    lats = np.degrees(np.arcsin(at[:, 2] / np.linalg.norm(at, axis=1)))
    lons = np.degrees(np.arctan2(at[:, 1], at[:, 0]))
    return {"type": "LineString", "coordinates": np.stack((lons, lats), axis=1).tolist()}


@contextmanager
def pairs_counted() -> Iterator[Callable[[], int]]:
    """While it lasts, pairs of positions that are looked at, or that GEOS may look at of two shapes of which
    one has lines; tells how many."""
    pairs = 0
    spend = work.Work.spend

    def spent(self: work.Work, more: int) -> None:
        nonlocal pairs
        pairs += more
        spend(self, more)

    class Geos:
        def __getattr__(self, name: str) -> Any:
            found = getattr(shapely, name)
            if name not in ("covers", "intersects", "dwithin", "difference", "intersection", "buffer"):
                return found

            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal pairs
                one, other = args[0], args[0] if name == "buffer" else args[1]
                lines = np.isin(shapely.get_type_id(one), _LINES) | np.isin(
                    shapely.get_type_id(other), _LINES
                )
                every = np.multiply(shapely.get_num_coordinates(one), shapely.get_num_coordinates(other))
                pairs += int(np.sum(np.where(lines, every, 0)))
                return found(*args, **kwargs)

            return call

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(work.Work, "spend", spent))
        for room in (covered, drawing, meeting):
            stack.enter_context(mock.patch.object(room, "shapely", Geos()))
        yield lambda: pairs


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """While it lasts, what is done costs; tells how much it was."""
    cost = 0

    def positions(value: object) -> int:
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.size if value.dtype == np.float64 else 0
        if isinstance(value, (np.ndarray, list, tuple, shapely.Geometry)):
            try:
                return int(np.sum(shapely.get_num_coordinates(value)))
            except (TypeError, ValueError):
                return 0
        return 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal cost
            cost += 1 + sum(map(positions, args))
            return function(*args, **kwargs)

        return call

    class Geos:
        def __getattr__(self, name: str) -> Any:
            found = getattr(shapely, name)
            return counting(found) if callable(found) and not isinstance(found, type) else found

    with ExitStack() as stack:
        for room in _ROOMS:
            stack.enter_context(mock.patch.object(room, "shapely", Geos()))
            for name in _ARITHMETIC:
                if hasattr(room, name):
                    work = counting(getattr(room, name))
                    stack.enter_context(mock.patch.object(room, name, work))
        yield lambda: cost
