"""`Geometry`: one shape of a document or a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from keytide.geometry.geojson import Frame, NotAGeometryError, Parts, known_parts, read, xy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from keytide.geometry.drawn.drawing import Drawing

_WIDEST: Final = 180


@final
class Geometry:
    """One shape. Made by `geometry_of`, `known_geometry`, `point` and `envelope`; never changed. What a test
    needs beyond its coordinates is made when it is needed, and kept.

    Attributes:
        frame: how its coordinates are meant.
        is_point: whether it is one position (a Point).
        x, y: of a point its coordinates (degrees east and north, or units of the plane); 0.0 otherwise.

    Two are equal when frame and normal form are.
    """

    __slots__ = ("_drawing", "_geojson", "_parts", "frame", "is_point", "x", "y")

    def __init__(
        self, frame: Frame, x: float, y: float, geojson: dict[str, Any] | None, parts: Parts | None
    ) -> None:
        self.frame: Final[Frame] = frame
        self.is_point: Final = geojson is None
        self.x: Final = x
        self.y: Final = y
        self._geojson = geojson
        self._parts = parts
        self._drawing: Drawing | None = None

    @property
    def geojson(self) -> dict[str, Any]:
        """Its normal form, {"type", "coordinates"} (a GeometryCollection: {"type", "geometries"}): two
        numbers per position, whole ones as int (up to 2**53), no -0.0; no other member. Not to be changed."""
        if self._geojson is None:
            return {"type": "Point", "coordinates": [self.x, self.y]}
        return self._geojson

    @property
    def drawing(self) -> Drawing:
        """What GEOS is asked about; for this package."""
        drawing = self._drawing
        if drawing is None:
            from keytide.geometry.drawn.drawing import Drawing

            parts = self._parts
            if parts is None:
                parts = Parts([[self.x, self.y]]) if self._geojson is None else known_parts(self._geojson)
            drawing = self._drawing = Drawing(parts, self.frame == "geographic")
        return drawing

    @property
    def work(self) -> int:
        """How much work it is, in pairs of edges, as `geometry_of` has seen; 0 of what is little."""
        return 0 if self._drawing is None else self._drawing.spent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self.frame == other.frame and self.geojson == other.geojson

    def __hash__(self) -> int:
        return hash((self.frame, self.x, self.y))

    def __repr__(self) -> str:
        return f"Geometry({self.frame}, {str(self.geojson)[:120]})"


@final
class Rings:
    """Many polygons of one ring each, as `indexed_geometry` would take them one by one.

    Args:
        at: all positions (m, 2), ring after ring, each closed.
        counts: how many of them each ring has (n,).
        frame: how they are meant.
    """

    __slots__ = ("_ends", "at", "counts", "frame")

    def __init__(self, at: NDArray[np.float64], counts: NDArray[np.int64], frame: Frame) -> None:
        self.at: Final = at
        self.counts: Final = counts
        self.frame: Final[Frame] = frame
        self._ends = counts.cumsum()

    def __len__(self) -> int:
        return len(self.counts)

    def some(self, which: NDArray[np.bool_]) -> Rings:
        """Some of them."""
        return Rings(self.at[which.repeat(self.counts)], self.counts[which], self.frame)

    def geometry(self, number: int) -> Geometry:
        """One of them."""
        end = self._ends[number]
        ring = self.at[end - self.counts[number] : end].tolist()
        return known_geometry({"type": "Polygon", "coordinates": [ring]}, self.frame)


def sound_rings(rings: Rings) -> NDArray[np.bool_]:
    """Which of many polygons `geometry_of` takes for sure; of the others it says what is wrong, if
    anything is."""
    from keytide.geometry.drawn.rings import are_sound

    return are_sound(rings.at, rings.counts, rings.frame == "geographic")


def geometry_of(value: object, frame: Frame) -> Geometry:
    """The geometry that a decoded JSON value is: a GeoJSON geometry of any of the seven types.

    Raises:
        NotAGeometryError: it is none.
    """
    if type(value) is dict and value.get("type") == "Point":
        coordinates = value.get("coordinates")
        if type(coordinates) is list and len(coordinates) == 2:
            return point(coordinates[0], coordinates[1], frame)
    geojson, parts = read(value, frame)
    if geojson["type"] == "Point":
        return Geometry(frame, geojson["coordinates"][0], geojson["coordinates"][1], None, None)
    made = Geometry(frame, 0.0, 0.0, geojson, parts)
    if parts.polygons or (parts.lines and frame == "geographic"):
        made.drawing.check()
    return made


def indexed_geometry(value: object, frame: Frame) -> Geometry:
    """The geometry of a value that has been indexed, as its document has it: whether its rings cross is not
    asked again, which takes half of the time.

    Raises:
        NotAGeometryError: it is none.
    """
    geojson, parts = read(value, frame)
    if geojson["type"] == "Point":
        return Geometry(frame, geojson["coordinates"][0], geojson["coordinates"][1], None, None)
    return Geometry(frame, 0.0, 0.0, geojson, parts)


def known_geometry(geojson: dict[str, Any], frame: Frame) -> Geometry:
    """The same of a normal form that `geometry_of` has given before, as an index holds it: nothing is checked
    again. Of anything else the outcome is not defined."""
    if geojson["type"] == "Point":
        x, y = geojson["coordinates"]
        return Geometry(frame, x, y, None, None)
    return Geometry(frame, 0.0, 0.0, geojson, None)


def point(x: object, y: object, frame: Frame) -> Geometry:
    """The point of two JSON values: longitude and latitude, or x and y.

    Raises:
        NotAGeometryError: they are not two numbers in range.
    """
    found = xy(x, y, frame)
    return Geometry(frame, found[0], found[1], None, None)


def envelope(west: object, south: object, east: object, north: object, frame: Frame) -> Geometry:
    """A box as PostGIS' ST_MakeEnvelope makes it: a polygon of four corners.

    Geographic: its edges are great circles, so the northern edge of a wide box bulges north of its corners'
    latitude. `west > east` crosses the antimeridian.

    Raises:
        NotAGeometryError: no numbers in range, south >= north, no width; geographic: 180 degrees wide or
            more (its edges, the shorter arcs, would go round the other side); planar: west >= east.
    """
    left, bottom = xy(west, south, frame)
    right, top = xy(east, north, frame)
    if bottom >= top:
        raise NotAGeometryError(f"an envelope's south {bottom:g} is not below its north {top:g}")
    if frame == "planar":
        if left >= right:
            raise NotAGeometryError(f"an envelope's west {left:g} is not below its east {right:g}")
    elif not 0 < (width := (right - left) % 360 if right != left else 0) < _WIDEST:
        raise NotAGeometryError(
            f"an envelope is more than 0 and less than {_WIDEST} degrees wide, this one is {width:g}:"
            " its edges are the shorter arcs between its corners"
        )
    ring = [[left, bottom], [left, top], [right, top], [right, bottom], [left, bottom]]
    made = {"type": "Polygon", "coordinates": [ring]}
    if frame == "geographic" and 90 in (-bottom, top):  # two corners may be one place
        return geometry_of(made, frame)
    return known_geometry(made, frame)
