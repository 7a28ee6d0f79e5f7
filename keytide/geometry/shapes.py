"""`Geometry`: one shape of a document or a query."""

from __future__ import annotations

from typing import Any

from keytide.geometry.geojson import Frame


class Geometry:
    """One shape. Made by `geometry_of`, `known_geometry`, `point` and `envelope`; never changed. What a test
    needs beyond its coordinates is made when it is needed, and kept.

    Attributes:
        frame: how its coordinates are meant.
        is_point: whether it is one position (a Point).
        x, y: of a point its coordinates (degrees east and north, or units of the plane); 0.0 otherwise.
        geojson: its normal form, {"type", "coordinates"} (a GeometryCollection: {"type", "geometries"}): two
            numbers per position, whole ones as int (up to 2**53), no -0.0; no other member. Not to be changed.

    Two are equal when frame and normal form are.
    """

    frame: Frame
    is_point: bool
    x: float
    y: float
    geojson: dict[str, Any]


def geometry_of(value: object, frame: Frame) -> Geometry:
    """The geometry that a decoded JSON value is: a GeoJSON geometry of any of the seven types.

    Raises:
        NotAGeometryError: it is none; bounded by the size of the value in time.
    """
    raise NotImplementedError


def known_geometry(geojson: dict[str, Any], frame: Frame) -> Geometry:
    """The same of a normal form that `geometry_of` has given before, as an index holds it: nothing is checked
    again, which takes a third of the time. Of anything else the outcome is not defined."""
    raise NotImplementedError


def point(x: object, y: object, frame: Frame) -> Geometry:
    """The point of two JSON values: longitude and latitude, or x and y.

    Raises:
        NotAGeometryError: they are not two numbers in range.
    """
    raise NotImplementedError


def envelope(west: float, south: float, east: float, north: float, frame: Frame) -> Geometry:
    """A box as PostGIS' ST_MakeEnvelope makes it: a polygon of four corners.

    Geographic: its edges are great circles, so the northern edge of a wide box bulges north of its corners'
    latitude. `west > east` crosses the antimeridian.

    Raises:
        NotAGeometryError: no numbers in range, south >= north, no width; geographic: 180 degrees wide or
            more (its edges, the shorter arcs, would go round the other side); planar: west >= east.
    """
    raise NotImplementedError
