"""Distances on the spheroid and in the plane; bounds of maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keytide.geometry.shapes import Geometry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def distance(a: Geometry, b: Geometry) -> float:
    """How far two geometries are from one another, 0.0 when they meet: metres on the WGS84 spheroid between
    the points that are closest on the sphere (PostGIS' ST_Distance of geographies), or units of the plane.

    Raises:
        NotAGeometryError: they are of different frames.
    """
    raise NotImplementedError


def distances(shape: Geometry, xs: NDArray[np.float64], ys: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same of many points, in range."""
    raise NotImplementedError


def bounds(geometry: Geometry) -> tuple[float, float, float, float]:
    """(west, south, east, north) of all its points, bulging edges and poles included, for a map; west > east
    when it crosses the antimeridian, -180 and 180 when it goes round a pole."""
    raise NotImplementedError
