"""Polygons and edges that are too wide for one chart: what a face of the cube sees of them.

Theory of operation
===================
An edge's chord is straight in space, so it is clipped against the pyramid of a face, before it is projected.
The clipped edges of a polygon and the face's square cut the square into areas; each of these is inside or
outside as a whole, as the edge tells that it lies beside: edges are turned so that the inside is left of
them. So the work grows with the edges, and not with edges times areas.

Where no edge bounds an area, which is the whole square then, a point of it is asked on the sphere: a way from
it to a point that is known to be inside crosses the ring an even number of times, or an odd one. That is one
arc, or two, none of which comes near a corner of the ring, as the shortest way often does: the points asked
are middles of faces, and corners have round numbers of degrees.

All of this takes milliseconds, and is for single polygons that span nearly half of the earth: what is less
wide has a chart of its own (`keytide.geometry.drawn.drawing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from keytide.geometry.drawn.along import meets_others, runs_along_itself
from keytide.geometry.drawn.charts import AXES, BORDER, FACES, SQUARE, Shape, face_of, one_of, uvw
from keytide.geometry.drawn.quiet import undrawable
from keytide.geometry.drawn.sphere import TOLERANCE, Floats, Numbers, crossings, normals, signed_area
from keytide.geometry.drawn.turned import LEAST_W

_CLIP: Final = 1.01
"""Edges are clipped somewhat beyond the square, so that they cross its sides."""
_CLEAR: Final = 1e-9
"""Radians from all corners at which an arc is far from rounding."""
_ON_SIDE: Final = 1e-12
"""In units of a chart: what is so near to a side of the square is on it."""
_LEAST: Final = 1e-300
"""Smaller numbers have so few digits that GEOS does not see where their lines cross others."""
_TURN: Final = math.pi * (3 - math.sqrt(5))


def _direction(number: int, of: int) -> Floats:
    """One of some directions all over the sphere: a spiral by the golden angle."""
    height = 1 - (2 * number + 1.4142) / of
    wide, turned = math.sqrt(1 - height * height), _TURN * number + 0.7351
    return np.array([wide * math.cos(turned), wide * math.sin(turned), height])


_BETWEEN: Final = tuple(_direction(number, 40) for number in range(39))
"""Where a way of two arcs may lead by."""


def clip(start: Floats, end: Floats, face: int) -> tuple[Floats, Numbers]:
    """What of edges is on a face.

    Returns:
        (ends on its chart (k, 2, 2), in the direction of the edges; which edge each is of (k,)).
    """
    a, b = uvw(start, face), uvw(end, face)
    low, high = np.zeros(len(a)), np.ones(len(a))
    for axis in (0, 1):
        for sign in (1, -1):
            at, to = a[:, 2] * _CLIP + sign * a[:, axis], b[:, 2] * _CLIP + sign * b[:, axis]
            crosses = (at < 0) != (to < 0)
            where = np.divide(at, at - to, out=np.zeros_like(at), where=crosses)
            low = np.where(crosses & (at < 0), np.maximum(low, where), low)
            high = np.where(crosses & (at >= 0), np.minimum(high, where), high)
            high = np.where((at < 0) & (to < 0), -1.0, high)
    seen = np.flatnonzero(low < high)
    a, b, low, high = a[seen], b[seen], low[seen][:, None], high[seen][:, None]
    first, last = a + low * (b - a), a + high * (b - a)
    first = np.where(low == 0, a, first)
    last = np.where(high == 1, b, last)
    pairs = np.stack((first[:, :2] / first[:, 2:], last[:, :2] / last[:, 2:]), axis=1)
    pairs[np.abs(pairs) < _LEAST] = 0
    long = (pairs[:, 0] != pairs[:, 1]).any(axis=1)
    return pairs[long], seen[long]


def clipped(start: Floats, end: Floats, face: int) -> list[Shape]:
    """The same as lines."""
    return list(shapely.linestrings(clip(start, end, face)[0]))


def polygon_piece(rings: list[Floats], face: int) -> Shape | None:
    """What is seen of a polygon on a face.

    Args:
        rings: outline and holes, as vectors, the first one not repeated.

    Raises:
        NotAGeometryError: GEOS finds no areas.
    """
    turned = [_turned(ring) for ring in rings[:1]] + [_turned(ring)[::-1] for ring in rings[1:]]
    start = np.concatenate(turned)
    end = np.concatenate([np.roll(ring, -1, axis=0) for ring in turned])
    pairs, _ = clip(start, end, face)
    if not len(pairs):
        return SQUARE if _holds(rings, AXES[face][2]) else None
    edges = shapely.linestrings(pairs)
    lines = shapely.union_all([*edges, shapely.boundary(SQUARE)])
    areas = shapely.orient_polygons(shapely.get_parts(shapely.polygonize([lines])))
    areas = areas[np.abs(shapely.bounds(areas)).max(axis=1) < BORDER + _ON_SIDE]
    if not len(areas):
        raise undrawable("its edges and the sides of a face bound no area")
    inside = areas[_are_left(areas, edges, pairs, lambda place: _holds(rings, place @ AXES[face]))]
    return one_of(inside)


def _are_left(
    areas: Shape, edges: Shape, pairs: Floats, holds: Callable[[Floats], bool]
) -> NDArray[np.bool_]:
    """Which of the areas that edges and the square bound lie left of the edges that they lie beside.

    Args:
        areas: so oriented that each lies left of its rings.
        edges, pairs: the edges, as lines and as their ends.
        holds: asked of a place of an area that has none, (u, v, 1).
    """
    found = np.zeros(len(areas), bool)
    rings, area = shapely.get_rings(areas, return_index=True)
    at, ring = shapely.get_coordinates(rings, return_index=True)
    inner = np.flatnonzero(ring[1:] == ring[:-1])
    start, end = at[inner], at[inner + 1]
    of = area[ring[inner]]
    on_side = (np.abs(np.abs(start) - BORDER) < _ON_SIDE) & (np.abs(start - end) < _ON_SIDE)
    length = np.where(on_side.any(axis=1), -1.0, ((end - start) ** 2).sum(axis=1))
    order = np.lexsort((length, of))
    longest = order[np.append(np.flatnonzero(np.diff(of[order])), len(order) - 1)]
    told = longest[length[longest] > 0]
    beside = shapely.STRtree(edges).nearest(shapely.points((start[told] + end[told]) / 2))
    along = pairs[beside, 1] - pairs[beside, 0]
    found[of[told]] = ((end[told] - start[told]) * along).sum(axis=1) > 0
    for one in of[longest[length[longest] <= 0]].tolist():
        for spot in shapely.get_coordinates(shapely.point_on_surface(areas[one])):
            found[one] = holds(np.array([*spot, 1.0]))
    return found


def _holds(rings: list[Floats], place: Floats) -> bool:
    place = place / np.linalg.norm(place)
    return _Side(rings[0]).holds(place) and not any(_Side(hole).holds(place) for hole in rings[1:])


def fault_of(rings: list[Floats]) -> tuple[str, Floats] | None:
    """What is wrong with a polygon, and where; None when nothing is."""
    start, end = np.concatenate(rings), np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    for face in FACES:
        lines = clipped(start, end, face)
        if lines and not shapely.is_simple(shapely.multilinestrings(lines)):
            return "a ring crosses or touches itself or another ring", rings[0][0]
    for ring in rings:
        corners = _distinct(ring)
        if len(corners) < 3:
            return "a ring has no area", ring[0]
        area = signed_area(corners)
        length = float(np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1).sum())
        if min(area, 4 * math.pi - area) < max(1e-14, TOLERANCE * length):
            return "a ring has no area", ring[0]
        if _runs_along_itself(corners):
            return "a ring runs along itself", ring[0]
    outline, holes = _Side(rings[0]), [_distinct(ring) for ring in rings[1:]]
    for hole in holes:
        if not outline.holds(_on_edge(hole)):
            return "a hole lies outside of the outline", hole[0]
    within = _within_another(holes)
    return None if within is None else ("a hole lies within another hole", holes[within][0])


def _on_edge(ring: Floats) -> Floats:
    """A place of a ring that is none of its corners: there it may touch others."""
    middle: Floats = ring[0] + ring[1]
    return middle / np.linalg.norm(middle)


def _within_another(holes: list[Floats]) -> int | None:
    """A hole that lies within another one; None when there is none. They do not cross."""
    places = np.array([_on_edge(hole) for hole in holes]).reshape(-1, 3)
    whole = np.array([[uvw(hole, face)[:, 2].min() >= LEAST_W for face in FACES] for hole in holes])
    for number in np.flatnonzero(~whole.any(axis=1)) if len(holes) else ():
        side = _Side(holes[number])
        for other, place in enumerate(places):
            if other != number and side.holds(place):
                return other
    for face in FACES if len(holes) > 1 else ():
        here, at = np.flatnonzero(whole[:, face]), uvw(places, face)
        ahead = np.flatnonzero(at[:, 2] > 0)
        seen = [uvw(holes[number], face) for number in here]
        tree = shapely.STRtree([shapely.polygons(one[:, :2] / one[:, 2:]) for one in seen])
        point, area = tree.query(shapely.points(at[ahead, :2] / at[ahead, 2:]), predicate="within")
        others = ahead[point[ahead[point] != here[area]]]
        if len(others):
            return int(others[0])
    return None


def _runs_along_itself(ring: Floats) -> bool:
    """Whether a ring comes back to itself anywhere."""
    for face in FACES:
        seen = uvw(ring, face)
        if seen[:, 2].min() >= LEAST_W:  # (as most holes are; a tenth of the work)
            flat = seen[:, :2] / seen[:, 2:]
            return runs_along_itself(np.concatenate((flat, flat[:1])))
    end = np.roll(ring, -1, axis=0)
    apart = (np.abs(end - ring) > TOLERANCE).any(axis=1)  # (what is nearly one place is one)
    ring = ring[apart]
    end, faces = np.roll(ring, -1, axis=0), face_of(ring)
    for face in FACES:
        here = np.flatnonzero(faces == face)
        pairs, edge = clip(ring, end, face)
        seen = uvw(ring[here], face)
        if len(pairs) and meets_others(seen[:, :2] / seen[:, 2:], here, pairs, edge, len(ring)):
            return True
    return False


def _distinct(ring: Floats) -> Floats:
    """Without vertices that repeat the one before."""
    kept: Floats = ring[(ring != np.roll(ring, 1, axis=0)).any(axis=1)]
    return kept


def _turned(ring: Floats) -> Floats:
    """The same ring, its smaller side on the left."""
    ring = _distinct(ring)
    return ring[::-1] if signed_area(ring) > 2 * math.pi else ring


class _Side:
    """The smaller side of a ring."""

    def __init__(self, ring: Floats) -> None:
        ring = _turned(ring)
        self.start, self.end = ring, np.roll(ring, -1, axis=0)
        self.within = self._point()

    def _point(self) -> Floats:
        """A point inside: from the middle of the longest edge half the way, to the left, to the next one."""
        longest = int(((self.end - self.start) ** 2).sum(axis=1).argmax())
        middle = self.start[longest] + self.end[longest]
        middle = middle / np.linalg.norm(middle)
        left = normals(self.start[longest : longest + 1], self.end[longest : longest + 1])[0]
        plane = np.cross(middle, left)
        from_side, to_side = self.start @ plane, self.end @ plane
        met = (from_side < 0) != (to_side < 0)
        met[longest] = False
        where = (
            self.start[met] * np.abs(to_side[met])[:, None] + self.end[met] * np.abs(from_side[met])[:, None]
        )
        angles = np.arctan2(where @ left, where @ middle) % (2 * math.pi)
        half = min(float(angles.min(initial=math.pi)), math.pi) / 2
        return np.asarray(math.cos(half) * middle + math.sin(half) * left)

    def holds(self, place: Floats) -> bool:
        """Whether a point, not on the ring, is inside."""
        best, inside = -1.0, False
        for way in self._ways(place):
            arcs = [crossings(q, r, self.start, self.end) for q, r in pairwise(way)]
            clear = min(room for _, room in arcs)
            if clear > best:
                best, inside = clear, sum(count for count, _ in arcs) % 2 == 0
            if best > _CLEAR:
                break
        return inside

    def _ways(self, place: Floats) -> Iterator[tuple[Floats, ...]]:
        """Ways to the point inside: the shortest, then others, of arcs shorter than half a great circle."""
        if float(place @ self.within) > -0.9:
            yield place, self.within
        across = normals(self.start, self.end)
        for between in _BETWEEN:
            apart = min(float(place @ between), float(between @ self.within)) > -0.9
            if apart and float(np.abs(across @ between).min()) > _CLEAR:
                yield place, between, self.within
