"""`QueryShape`: one query shape with a relation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, final

from keytide.geometry.distance import distance, geodesics, nearest_places, ring_distances, same_frame
from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.geojson import NotAGeometryError, Relation
from keytide.geometry.shapes import Geometry, Rings

if TYPE_CHECKING:
    from keytide.geometry.drawn.drawing import Drawing
    from keytide.geometry.drawn.sphere import Floats, Mask

_CAP_SLACK: Final = 0.001
"""Metres that rounding may make two caps seem apart, with much to spare."""
_FEW_POSITIONS: Final = 64
"""Of a shape that many polygons are held against at once."""


@final
class QueryShape:
    """A query's shape, prepared: DOCUMENT <relation> SHAPE.

    One thread at a time: what is prepared is built as tests need it. Geometries are shared freely.

    Args:
        relation: what documents must be to the shape.
        shape: what they are held against.
        metres: for dwithin, the distance at most, at least 0; units of the plane in a planar frame.

    Raises:
        NotAGeometryError: `metres` is negative or no finite number.
    """

    def __init__(self, relation: Relation, shape: Geometry, metres: float = 0.0) -> None:
        if not 0 <= metres < math.inf:
            raise NotAGeometryError(f"a distance is a number at least 0, not {metres}")
        self.relation: Final[Relation] = relation
        self.shape: Final = shape
        self.metres: Final = metres
        self._drawing: Drawing | None = None
        self._sides: Floats | Literal[False] | None = False

    @property
    def drawing(self) -> Drawing:
        """The shape's own drawing, prepared; for this package."""
        if self._drawing is None:
            self._drawing = self.shape.drawing.prepared()
        return self._drawing

    def spans(self, most: int = 32) -> list[tuple[int, int]]:
        """Inclusive ranges of cell ids, disjoint and ascending, never more than `most` (at least 1): every
        document that `test` takes has one of its `cells_of` in one of them."""
        from keytide.geometry.cells.spans import spans_of

        return spans_of(self.relation, self.shape, lambda: self.drawing, self.metres, most)

    def test(self, geometry: Geometry) -> bool:
        """Whether a document's geometry has the relation.

        Raises:
            NotAGeometryError: it is of the other frame.
        """
        geographic = same_frame(self.shape, geometry)
        if geometry.is_point:
            return self._test_one(geometry)
        return self._test_geographic(geometry) if geographic else self._test_planar(geometry)

    def _test_one(self, geometry: Geometry) -> bool:
        import numpy as np

        return bool(
            self.test_points(np.array([geometry.x], np.float64), np.array([geometry.y], np.float64))[0]
        )

    @quietly
    def _test_planar(self, geometry: Geometry) -> bool:
        import shapely

        from keytide.geometry.drawn.charts import PLANE
        from keytide.geometry.drawn.flat import contains

        shape, other = self.drawing.on(PLANE), geometry.drawing.on(PLANE)
        match self.relation:
            case "intersects":
                return bool(shapely.intersects(shape, other))
            case "within":
                return contains(self.drawing.flat, geometry.drawing.flat)
            case "contains":
                return contains(geometry.drawing.flat, self.drawing.flat)
            case "dwithin":
                return bool(shapely.distance(shape, other) <= self.metres)  # as `distance` says

    @quietly
    def _test_geographic(self, geometry: Geometry) -> bool:
        from keytide.geometry.drawn.meeting import cover, meet

        match self.relation:
            case "intersects":
                return meet(self.drawing, geometry.drawing)
            case "within":
                return cover(self.drawing, geometry.drawing)
            case "contains":
                return cover(geometry.drawing, self.drawing)
            case "dwithin":
                return self._is_near(geometry)

    def _is_near(self, geometry: Geometry) -> bool:
        from keytide.geometry.drawn.drawing import cap
        from keytide.geometry.drawn.meeting import meet
        from keytide.geometry.drawn.sphere import EARTH_RADIUS, SPHEROID_SLACK

        (middle, radius), (other, width) = cap(self.drawing.vector), cap(geometry.drawing.vector)
        apart = 2 * math.asin(min(1.0, math.dist(middle, other) / 2)) - radius - width
        least = apart * EARTH_RADIUS * (1 - SPHEROID_SLACK) - _CAP_SLACK
        if least > self.metres and max(radius, width) < 1.5:
            return False
        if self.shape.is_point:  # to the bit as `test_rings` measures
            return distance(geometry, self.shape) <= self.metres
        if meet(self.drawing, geometry.drawing):
            return True
        return bool(geodesics(*nearest_places(self.drawing, geometry.drawing))[0] <= self.metres)

    @property
    def tests_rings_together(self) -> bool:
        """Whether `test_rings` takes some microseconds for a polygon: else it looks at them one by one, or at
        each of them with every position of this shape."""
        few, planar = len(self.drawing.at) <= _FEW_POSITIONS, self.shape.frame == "planar"
        if self.relation == "dwithin":
            return self.shape.is_point or (planar and few)
        return few and self.relation != "contains" and (planar or bool(self.drawing.whole))

    @quietly
    def test_points(self, xs: Floats, ys: Floats) -> Mask:
        """The same of many points, in range: as `test` would say of each."""
        import numpy as np

        if not len(xs):
            return np.zeros(0, bool)
        if self.shape.frame == "planar":
            return self._planar_points(xs, ys)
        from keytide.geometry.drawn.convex import hold_convex
        from keytide.geometry.drawn.meeting import hold
        from keytide.geometry.drawn.sphere import vectors

        at = np.stack((xs, ys), axis=1)
        vector = vectors(at)
        match self.relation:
            case "intersects" | "within":
                sides = self._inner_sides()
                return hold(self.drawing, vector) if sides is None else hold_convex(sides, vector)
            case "contains":
                return self._same_places(vector)
            case "dwithin":
                return self._near_points(at, vector)

    @quietly
    def test_rings(self, rings: Rings) -> Mask:
        """The same of many polygons: as `test` would say of each."""
        import numpy as np

        if self.relation == "dwithin" and (self.shape.is_point or self.shape.frame == "planar"):
            return ring_distances(self.shape, rings) <= self.metres
        if self.shape.frame == "planar":
            return self._planar_rings(rings)
        from keytide.geometry.drawn.rings import DrawnRings, covered_on, meet_on

        drawn = DrawnRings(rings.at, rings.counts)
        found, open_ = np.zeros(len(rings), bool), np.ones(len(rings), bool)
        together = {"intersects": meet_on, "within": covered_on}.get(self.relation)
        for chart in self.drawing.whole if together is not None else ():
            some = np.flatnonzero(open_ & drawn.whole[:, chart])
            if len(some) and together is not None:
                found[some] = together(self.drawing.on(chart), drawn.on(chart, some))
                open_[some] = False
        for at in np.flatnonzero(open_).tolist():
            found[at] = self._test_geographic(rings.geometry(at))
        return found

    def _planar_rings(self, rings: Rings) -> Mask:
        import numpy as np
        import shapely

        from keytide.geometry.drawn.charts import PLANE
        from keytide.geometry.drawn.flat import contains_areas
        from keytide.geometry.drawn.rings import polygons_of

        shape, others = self.drawing.on(PLANE), polygons_of(rings.at, rings.counts)
        if self.relation == "within":
            return contains_areas(self.drawing.flat, others)
        if self.relation == "contains":
            return np.asarray(shapely.within(shape, others))
        return np.asarray(shapely.intersects(shape, others))

    def _inner_sides(self) -> Floats | None:
        """Those of a convex polygon; worked out once."""
        if self._sides is False:
            from keytide.geometry.drawn.convex import inner_sides

            self._sides = inner_sides(self.shape.geojson, self.shape.drawing.vector)
        return self._sides

    def _planar_points(self, xs: Floats, ys: Floats) -> Mask:
        import numpy as np
        import shapely

        from keytide.geometry.drawn.charts import PLANE

        shape = self.drawing.on(PLANE)
        match self.relation:
            case "intersects":
                return np.asarray(shapely.intersects_xy(shape, xs, ys))
            case "within":
                return np.asarray(shapely.contains_xy(shape, xs, ys))
            case "contains":
                # Within a point is nothing but that point.
                at = self.drawing.at
                same: Mask = (xs == at[0, 0]) & (ys == at[0, 1])
                return same if (at == at[0]).all() else np.zeros(len(xs), bool)
            case "dwithin":
                return np.asarray(shapely.distance(shape, shapely.points(xs, ys)) <= self.metres)

    def _same_places(self, vector: Floats) -> Mask:
        """Which positions are all that the shape is."""
        import numpy as np

        from keytide.geometry.drawn.sphere import TOLERANCE

        found: Mask = np.ones(len(vector), bool)
        if len(self.drawing.vector) > self.drawing.points and np.ptp(self.drawing.vector, axis=0).any():
            return ~found
        for place in self.drawing.vector:
            found &= ((vector - place) ** 2).sum(axis=1) <= TOLERANCE**2
            if not found.any():
                break
        return found

    def _near_points(self, at: Floats, vector: Floats) -> Mask:
        """On the sphere first: only near the limit does the spheroid decide."""
        import numpy as np

        from keytide.geometry.drawn.meeting import hold
        from keytide.geometry.drawn.sphere import (
            EARTH_RADIUS,
            SPHEROID_SLACK,
            TOLERANCE,
            chord2_of,
            degrees,
            nearest,
        )

        near = chord2_of(self.metres * (1 - SPHEROID_SLACK) / EARTH_RADIUS)
        far = chord2_of(self.metres * (1 + SPHEROID_SLACK) / EARTH_RADIUS + TOLERANCE)
        found: Mask
        if self.shape.is_point:
            places = self.drawing.vector
            chord2 = np.minimum(
                ((vector - places) ** 2).sum(axis=1), 4.0
            )  # (rounding: no two are farther apart)
            found = chord2 < near
        else:
            found = hold(self.drawing, vector)
            chord2, places = nearest(vector, self.drawing.vector, *self.drawing.edges())
            chord2 = np.minimum(chord2, 4.0)
            found |= chord2 < near
        open_ = np.flatnonzero(~found & (chord2 <= far))
        if len(open_):
            to = self.drawing.at if self.shape.is_point else degrees(places[open_])
            found[open_] = geodesics(at[open_], to) <= self.metres
        return found
