"""Drawings: geometries on planes in which their edges are straight, as GEOS takes them.

Theory of operation
===================
GEOS (shapely) knows straight edges in a plane; edges of geographies are great circles. On a plane that
touches the sphere, seen from the centre, great circles are straight (the gnomonic projection), so there
GEOS's predicates, which are exact, are those of the sphere. Such planes are the six faces of the cube that
S2's cells lie on: one drawing serves tests, rings that cross themselves, and coverings, in which a cell is a
rectangle of (u, v). These planes are called *charts*; a planar geometry has one, the plane itself.

A geometry is *whole* on a chart when all of it is within 78 degrees of the chart's middle (`LEAST_W`).
Anything up to some 20 degrees wide is whole on the chart of its first position's face at least. Two
geometries that are whole on one chart are compared there. What is whole on none, or not on the same, is
compared face by face, by pieces: what is seen of it on the face's square. A single polygon is cut to pieces
on a chart of its own, around its middle (`keytide.geometry.drawn.turned`), and only one that is not whole
there by what its edges do on each face (`keytide.geometry.drawn.wide`).

How much work that is has a limit (`keytide.geometry.drawn.work`), which is looked at before GEOS is asked.

Inside of a ring is the smaller side of it: where a ring is whole, the side that does not reach the chart's
horizon.

What is made is kept, and made again by another thread at worst; GEOS's geometries, unless prepared, are never
changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from keytide.geometry.drawn import wide
from keytide.geometry.drawn.along import runs_along_itself
from keytide.geometry.drawn.charts import (
    AXES,
    FACES,
    PLANE,
    SQUARE,
    Shape,
    Stretch,
    line_of,
    polygon_of,
    together,
    uvw,
)
from keytide.geometry.drawn.covered import NearEdges
from keytide.geometry.drawn.flat import FlatShape
from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.drawn.sphere import TOLERANCE, Floats, degrees, vectors
from keytide.geometry.drawn.turned import LEAST_W, TurnedPolygon
from keytide.geometry.drawn.work import HOLE, TURNED, WIDE, Work
from keytide.geometry.geojson import NotAGeometryError, Parts

_SMALL: Final = 0.2
"""In units of the sphere's radius: what is less wide is nearly always whole where it reaches."""
_ANTIPODAL: Final = 1e-9
"""Two ends of an edge that are so near to opposite, 6 mm, have no shorter way between them."""


class Drawing:
    """The parts of one geometry, as arrays and on charts.

    Attributes:
        at: all positions (n, 2).
        vector: the same on the unit sphere (n, 3); empty for a planar geometry.
        parts: what it was made from.
        points: how many of them are points; they come first.
        lines, polygons: stretches of positions: lines, and rings of polygons.
        whole: the charts it is whole on.
        spent: how much work it is, as far as that was looked at (`check`), in pairs of edges.
    """

    def __init__(self, parts: Parts, geographic: bool, prepare: bool = False) -> None:
        self.parts = parts
        self.geographic = geographic
        self.prepare = prepare
        self.points = len(parts.points)
        self.lines: list[Stretch] = []
        self.polygons: list[list[Stretch]] = []
        every: list[list[float]] = []
        if len(parts.polygons) == 1 and len(parts.polygons[0]) == 1 and not (parts.points or parts.lines):
            every = parts.polygons[0][0]
            self.polygons.append([(0, len(every))])
        else:
            every = list(parts.points)
            for line in parts.lines:
                self.lines.append((len(every), len(every) + len(line)))
                every += line
            for rings in parts.polygons:
                self.polygons.append(stretches := [])
                for ring in rings:
                    stretches.append((len(every), len(every) + len(ring)))
                    every += ring
        self.at: Floats = np.array(every, np.float64)
        self.vector: Floats = vectors(self.at) if geographic else np.empty((0, 3))
        self.whole: tuple[int, ...] = (PLANE,)
        if geographic:
            low, high = self.vector.min(axis=0).tolist(), self.vector.max(axis=0).tolist()
            near = [axis for axis in range(3) if low[axis] >= LEAST_W]
            self.whole = (*near, *(axis + 3 for axis in range(3) if high[axis] <= -LEAST_W))
        self._drawn: dict[int, Shape] = {}
        self._near: dict[int, NearEdges] = {}
        self._pieces: dict[int, Shape | None] = {}
        self._turned: dict[int, TurnedPolygon | None] = {}
        self._flat: FlatShape | None = None
        self.spent = 0

    def prepared(self) -> Drawing:
        """One more of the same, whose shapes are prepared (indexed by GEOS) for many questions of one thread:
        the indexes of GEOS are built as questions come, without a lock."""
        made = Drawing(self.parts, self.geographic, True)
        made._turned = self._turned
        return made

    def stretches(self) -> Iterable[Stretch]:
        """Lines and rings."""
        yield from self.lines
        for rings in self.polygons:
            yield from rings

    def edges(self) -> tuple[Floats, Floats]:
        """(starts, ends) of all edges, as vectors."""
        pairs = [(self.vector[a : b - 1], self.vector[a + 1 : b]) for a, b in self.stretches()]
        if not pairs:
            return np.empty((0, 3)), np.empty((0, 3))
        starts, ends = zip(*pairs, strict=True)
        return np.concatenate(starts), np.concatenate(ends)

    def on(self, chart: int) -> Shape:
        """The whole geometry on a chart that it is whole on."""
        drawn = self._drawn.get(chart)
        if drawn is None:
            drawn = self._drawn[chart] = self._ready(self._draw(self.project(chart)))
        return drawn

    def project(self, chart: int) -> Floats:
        """Positions on a chart (n, 2). Only those with w > 0 mean anything."""
        if not self.geographic:
            return self.at
        seen = uvw(self.vector, chart)
        return seen[:, :2] / seen[:, 2:]

    def piece(self, face: int) -> Shape | None:
        """What is seen of it on a face, and no more than there is; None where it does not reach there. Parts
        may reach beyond the face's square."""
        if face not in self._pieces:
            self._pieces[face] = self._ready(self._cut(face))
        return self._pieces[face]

    def near(self, shape: Shape) -> NearEdges:
        """The edges of one of its shapes, to be held against many places: many times faster than GEOS says of
        each how far it is away."""
        near = self._near.get(id(shape))
        if near is None:
            near = self._near[id(shape)] = NearEdges(shape)
        return near

    @property
    def flat(self) -> FlatShape:
        """Its shape in the plane, for what contains what there."""
        if self._flat is None:
            self._flat = FlatShape.of(self.on(PLANE), self._ready)
        return self._flat

    def _ready(self, shape: Shape | None) -> Shape | None:
        if self.prepare and shape is not None:
            shapely.prepare(shape)
        return shape

    def _draw(self, seen: Floats) -> Shape:
        shapes = [polygon_of(seen, rings) for rings in self.polygons]
        return together(shapes, [line_of(seen[a:b]) for a, b in self.lines], seen[: self.points])

    def _cut(self, face: int) -> Shape | None:
        seen = uvw(self.vector, face)
        w = seen[:, 2]
        axis = AXES[face][2]
        ahead = w >= LEAST_W
        flat = seen[:, :2] / np.where(ahead, w, 1.0)[:, None]
        polygons, lines = [], []
        for rings in self.polygons:
            if all(ahead[a:b].all() for a, b in rings):
                polygons.append(polygon_of(flat, rings))
            elif reaches(self.vector[slice(*rings[0])], axis):
                polygons.append(self._polygon_piece(rings, face))
        for a, b in self.lines:
            if ahead[a:b].all():
                lines.append(line_of(flat[a:b]))
            elif reaches(self.vector[a:b], axis):
                lines += wide.clipped(self.vector[a : b - 1], self.vector[a + 1 : b], face)
        near = flat[: self.points][ahead[: self.points]]
        shape = together([one for one in polygons if one is not None], lines, near)
        return shape if shape is not None and shapely.intersects(shape, SQUARE) else None

    def _polygon_piece(self, rings: list[Stretch], face: int) -> Shape | None:
        """What is seen on a face of a polygon that is not whole on its chart."""
        turned = self._turned_polygon(rings)
        if turned is not None:
            return turned.piece(face)
        return wide.polygon_piece([self.vector[a : b - 1] for a, b in rings], face)

    def _turned_polygon(self, rings: list[Stretch]) -> TurnedPolygon | None:
        """A polygon on its own chart; None of one that is too wide. Made once, and never changed."""
        at = rings[0][0]
        if at not in self._turned:
            self._turned[at] = TurnedPolygon.of([self.vector[a:b] for a, b in rings])
        return self._turned[at]

    # --- is it one? ---------------------------------------------------------------

    @quietly
    def check(self) -> None:
        """See that edges are less than half around, and that rings bound an area and do not cross.

        Raises:
            NotAGeometryError: they are not, or do not.
        """
        if self.geographic and not self.whole:
            for a, b in self.stretches():
                opposite = np.abs(self.vector[a : b - 1] + self.vector[a + 1 : b]).max(axis=1) < _ANTIPODAL
                if opposite.any():
                    x, y = self.at[a + int(opposite.argmax())]
                    raise NotAGeometryError(
                        f"the edge at ({x:g} {y:g}) goes half around the earth: which way?"
                    )
        self.spent = self._weigh()
        for number, rings in enumerate(self.polygons, 1):
            of = f" of polygon {number}" if len(self.polygons) > 1 else ""
            self._check_rings(rings, of)

    def _weigh(self) -> int:
        """See that what GEOS is to do with the polygons is not too much; how much it is.

        Raises:
            TooComplexError: it is.
        """
        if not self.polygons:
            return 0
        work = Work()
        starts = [(a, b, number) for number, rings in enumerate(self.polygons) for a, b in rings]
        first = np.concatenate([np.arange(a, b - 1) for a, b, _ in starts])
        polygon = np.repeat([number for *_, number in starts], [b - a - 1 for a, b, _ in starts])
        if self.whole:
            seen = self.project(self.whole[0])
            work.compare(np.stack((seen[first], seen[first + 1]), axis=1), polygon)
            return work.spent
        for rings in self.polygons:
            if np.ptp(self.vector[rings[0][0] : rings[-1][1]], axis=0).max() < _SMALL:
                continue
            turned, holes = self._turned_polygon(rings), len(rings) - 1
            if turned is None:
                work.spend(WIDE + holes * (HOLE + (rings[0][1] - rings[0][0]) // 8))
            else:
                work.spend(TURNED)
                work.compare(turned.edges(), np.zeros(len(turned.edges()), np.int64))
        for face in FACES:
            pairs, edge = wide.clip(self.vector[first], self.vector[first + 1], face)
            work.compare(pairs, polygon[edge])
        return work.spent

    def _check_rings(self, rings: list[Stretch], of: str) -> None:
        chart = self._chart_of(rings)
        axes = AXES[chart or PLANE]
        if chart is None:
            turned = self._turned_polygon(rings)
            if turned is None:
                fault = wide.fault_of([self.vector[a : b - 1] for a, b in rings])
                if fault is not None:
                    what, place = fault
                    x, y = degrees(place[None])[0]
                    raise NotAGeometryError(f"{what}{of} near ({x:.6g} {y:.6g})")
                return
            axes, shape = turned.axes, turned.shape
        elif self.whole and len(self.polygons) == 1 and not self.lines and not self.points:
            shape = self.on(chart)
        else:
            shape = self._polygon_on(chart, rings)
        if not shapely.is_valid(shape):
            raise NotAGeometryError(self._reason(shape, axes, of))
        if self.geographic:
            self._check_widths(rings, shape, of, apart=chart is None)

    def _check_widths(self, rings: list[Stretch], shape: Shape, of: str, *, apart: bool) -> None:
        """See that the rings of a polygon, on a chart, bound areas that are wider than the tolerance.

        Args:
            apart: see, too, that no ring runs along itself: what is wide is not exactly straight on a chart.
        """
        on_chart = shapely.get_rings(shape)
        thin = ~bound_areas(shapely.polygons(on_chart))
        along = [apart and runs_along_itself(shapely.get_coordinates(ring)) for ring in on_chart]
        for what, which in (("a ring has no area", thin), ("a ring runs along itself", np.array(along))):
            if which.any():
                x, y = self.at[rings[int(which.argmax())][0]]
                raise NotAGeometryError(f"{what}{of} near ({x:.6g} {y:.6g})")

    def _chart_of(self, rings: list[Stretch]) -> int | None:
        """A face's chart on which one polygon is whole; None when there is none."""
        if self.whole:
            return self.whole[0]
        w = self.vector[rings[0][0] : rings[-1][1]] @ AXES[:, 2].T
        whole = np.flatnonzero((w >= LEAST_W).all(axis=0))
        return int(whole[0]) if len(whole) else None

    def _polygon_on(self, chart: int, rings: list[Stretch]) -> Shape:
        """One polygon on a chart that it is whole on: what that takes does not grow with the others."""
        first, last = rings[0][0], rings[-1][1]
        if self.geographic:
            seen = uvw(self.vector[first:last], chart)
            seen = seen[:, :2] / seen[:, 2:]
        else:
            seen = self.at[first:last]
        return polygon_of(seen, [(a - first, b - first) for a, b in rings])

    def _reason(self, shape: Shape, axes: Floats, of: str) -> str:
        told = str(shapely.is_valid_reason(shape))
        what, _, where = told.partition("[")
        said = _REASONS.get(what.strip(), what.strip().lower())
        try:
            x, y = (float(one) for one in where.rstrip("]").split()[:2])
        except ValueError:
            return f"{said}{of}"
        if self.geographic:
            x, y = degrees(np.array([[x, y, 1.0]]) @ axes)[0]
        return f"{said}{of} near ({x:.6g} {y:.6g})"


_REASONS: Final = {
    "Self-intersection": "a ring crosses or touches itself or another ring",
    "Ring Self-intersection": "a ring touches itself",
    "Hole lies outside shell": "a hole lies outside of the outline",
    "Holes are nested": "a hole lies within another hole",
    "Interior is disconnected": "holes cut the inside in two",
    "Too few points in geometry component": "a ring has no area",
    "Duplicate Rings": "two rings are the same",
    "Nested shells": "an outline lies within another one",
}
"""What GEOS says of polygons, in our words."""


def bound_areas(outlines: Shape) -> NDArray[np.bool_]:
    """Which of many polygons of one ring, on a chart, are wider than the tolerance: rounding makes areas of
    rings that go there and back."""
    return np.asarray(shapely.area(outlines) > TOLERANCE * shapely.length(outlines))


_CORNER: Final = 0.956
"""The angle from a face's middle to its corners, and a little."""


def reaches(vector: Floats, axis: Floats) -> bool:
    """Whether a line or ring may reach the square of the face around an axis."""
    middle, radius = cap(vector)
    # A cap of less than half the sphere holds the inside of a ring, too.
    return radius > 1.5 or math.acos(max(-1.0, min(1.0, float(middle @ axis)))) < radius + _CORNER


def cap(vector: Floats) -> tuple[Floats, float]:
    """A circle around vectors: (its middle, its radius in radians); not the smallest one."""
    middle = vector.sum(axis=0)
    length = float(np.linalg.norm(middle))
    if length < 1e-6:
        return vector[0], float(np.pi)
    middle = middle / length
    worst = float(((vector - middle) ** 2).sum(axis=1).max())
    return middle, float(2 * np.arcsin(min(1.0, np.sqrt(worst) / 2)))
