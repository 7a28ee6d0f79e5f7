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

from keytide.geometry.drawn import charts, drawing, turned, wide

Json = dict[str, Any]
_ROOMS: Final = (charts, drawing, turned, wide)
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
