"""Coverings: which cells a geometry takes.

Theory of operation
===================
As S2's region coverer does it: begin with the few cells that are about as large as the geometry, and go on to
split the largest, leaving out those that do not touch the geometry, as long as there are no more than `most`.
A cell is a rectangle on the chart of its face, so GEOS says whether it touches, and whether it is inside
(then it is not split any more); all cells of a level are asked about together.

Rectangles are taken `_MARGIN` larger than they are. So what is within the tolerance of meeting
(`keytide.geometry.drawn.meeting`), or was put into a neighbouring leaf by rounding, still is in a cell that
both coverings know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from keytide.geometry.cells.curve import LEAF, SIDE, Square, cell_of, corners_around
from keytide.geometry.cells.geographic import face_coordinates, face_place, leaf_at, leaves_at
from keytide.geometry.cells.plane import lowest_of, place_of, planar_leaf, planar_leaves
from keytide.geometry.cells.quick import polygon_cells
from keytide.geometry.drawn.quiet import quietly
from keytide.geometry.geojson import Frame
from keytide.geometry.shapes import Geometry, Rings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from keytide.geometry.drawn.charts import Shape
    from keytide.geometry.drawn.drawing import Drawing
    from keytide.geometry.drawn.sphere import Floats, Mask

    Places = NDArray[np.int64]

CELL_BYTES: Final = 8
"""A cell id is an unsigned 64-bit number; big-endian bytes keep its order."""
_MARGIN: Final = 8e-12
"""In units of a face: five times the tolerance, and a 200th of a leaf."""

_LARGE: Final = 150
"""Positions."""


def point_cell(x: float, y: float, frame: Frame) -> int:
    """The leaf of a point in range, as `cells_of` gives it: the fast way for one, without an object.

    Undefined for what `point` would refuse.
    """
    return leaf_at(x, y) if frame == "geographic" else planar_leaf(x, y)


def point_cells(xs: Floats, ys: Floats, frame: Frame) -> NDArray[np.uint64]:
    """The same of many points; the same ids on every machine."""
    return leaves_at(xs, ys) if frame == "geographic" else planar_leaves(xs, ys)


def cells_of(geometry: Geometry, most: int = 8) -> tuple[int, ...]:
    """The covering of a document: ids of disjoint cells, ascending, that hold every point of it.

    Args:
        most: how many cells at most, and 24 where it is less: a geometry that meets several faces may begin
            with up to four on each.
    """
    if geometry.is_point:
        return (point_cell(geometry.x, geometry.y, geometry.frame),)
    found = polygon_cells(geometry.geojson, geometry.frame, most)
    return tuple(covering_of(geometry.drawing, most) if found is None else found)


def quick_cells_of_rings(rings: Rings, most: int = 8) -> list[tuple[int, ...] | None]:
    """The same of many polygons; None of those that are to be asked about one by one."""
    if rings.frame == "planar" or not len(rings):
        return [None] * len(rings)
    from keytide.geometry.cells.many import quick_cells

    return quick_cells(rings, most)


@quietly
def covering_of(drawing: Drawing, most: int) -> list[int]:
    """A covering of what nobody else is changing, or of a copy: preparing pays where there is much to be
    indexed, and what others may be asking is not prepared."""
    large = len(drawing.at) > _LARGE and not drawing.prepare
    return covering(Outline(drawing.prepared() if large else drawing), most)


class Covered(Protocol):
    """What a covering is made of."""

    def seeds(self) -> list[Square]:
        """Cells that together hold all of it."""
        ...

    def look(self, face: int, i: Places, j: Places, level: int) -> tuple[Mask, Mask]:
        """(which cells touch it, which of them are inside)."""
        ...


def covering(what: Covered, most: int) -> list[int]:
    """A covering of at most `most` cells (or as many as there are seeds): ids, ascending and disjoint."""
    done: list[Square] = []
    open_ = _touching(what, what.seeds(), done)
    while open_:
        level = min(square[3] for square in open_)
        if level == LEAF:
            break
        wave = [square for square in open_ if square[3] == level]
        open_ = [square for square in open_ if square[3] > level]
        families = _families(what, wave, level)
        families.sort(key=lambda family: len(family[1]) + len(family[2]))
        left = len(families)
        for square, split, within in families:
            left -= 1
            if len(done) + len(open_) + len(split) + len(within) + left <= most:
                open_ += split
                done += within
            else:
                done.append(square)
    return sorted(map(cell_of, done + open_))


def _families(
    what: Covered, wave: list[Square], level: int
) -> list[tuple[Square, list[Square], list[Square]]]:
    """Cells of one level, and which of the four within each touch, and are to be split, or are inside."""
    import numpy as np

    half = 1 << LEAF - level - 1
    families = []
    for face in {square[0] for square in wave}:
        some = [square for square in wave if square[0] == face]
        least = np.array(some)
        i = np.add.outer(least[:, 1], (0, 0, half, half)).ravel()
        j = np.add.outer(least[:, 2], (0, half, 0, half)).ravel()
        touches, inside = what.look(face, i, j, level + 1)
        found: list[tuple[list[Square], list[Square]]] = [([], []) for _ in some]
        for at in np.flatnonzero(touches).tolist():
            found[at >> 2][bool(inside[at])].append((face, int(i[at]), int(j[at]), level + 1))
        families += [(square, *two) for square, two in zip(some, found, strict=True)]
    return families


def _touching(what: Covered, seeds: list[Square], done: list[Square]) -> list[Square]:
    """Those of the seeds that are to be split; those inside are done."""
    import numpy as np

    found: list[Square] = []
    for face, level in {(seed[0], seed[3]) for seed in seeds}:
        some = [seed for seed in seeds if seed[0] == face and seed[3] == level]
        at = np.array(some)
        touches, inside = what.look(face, at[:, 1], at[:, 2], level)
        done += [seed for seed, one in zip(some, inside.tolist(), strict=True) if one]
        found += [seed for seed, one in zip(some, (touches & ~inside).tolist(), strict=True) if one]
    return found


class Outline:
    """A drawing, to be covered as it is."""

    def __init__(self, drawing: Drawing) -> None:
        import shapely

        self.drawing = drawing
        self.shapes = shapes_of(drawing)
        self.flat = {face: shapely.get_dimensions(shape) == 2 for face, shape in self.shapes.items()}

    def seeds(self) -> list[Square]:
        found: list[Square] = []
        for face, shape in self.shapes.items():
            left, low, right, high = shape.bounds
            if self.drawing.geographic:
                at = face_places(left - _MARGIN, right + _MARGIN), face_places(low - _MARGIN, high + _MARGIN)
            else:
                at = (place_of(left), place_of(right)), (place_of(low), place_of(high))
            level, corners = corners_around(*at)
            found += [(face, i, j, level) for i, j in corners]
        return found

    def look(self, face: int, i: Places, j: Places, level: int) -> tuple[Mask, Mask]:
        import numpy as np
        import shapely

        shape = self.shapes[face]
        boxes = shapely.box(*rectangles(self.drawing, shape, i, j, level))
        touches = np.asarray(shapely.intersects(shape, boxes))
        inside = np.zeros(len(touches), bool)
        if self.flat[face]:
            inside[touches] = shapely.covers(shape, boxes[touches])
        return touches, inside


def shapes_of(drawing: Drawing) -> dict[int, Shape]:
    """Face -> what of a drawing is on its square, and maybe more."""
    from keytide.geometry.drawn.charts import BORDER, FACES, PLANE, face_of

    if not drawing.geographic:
        return {PLANE: drawing.on(PLANE)}
    found = {}
    first = int(face_of(drawing.vector[:1])[0])
    for face in (first, *(face for face in FACES if face != first)):
        shape = drawing.on(face) if face in drawing.whole else drawing.piece(face)
        if shape is None:
            continue
        left, low, right, high = shape.bounds
        if left > BORDER or low > BORDER or right < -BORDER or high < -BORDER:
            continue
        found[face] = shape
        if face in drawing.whole and max(-left, -low, right, high) < 2 - BORDER:
            break
    return found


def rectangles(
    drawing: Drawing, shape: Shape, i: Places, j: Places, level: int, beyond: float = 0.0
) -> tuple[Floats, Floats, Floats, Floats]:
    """(left, low, right, high) of cells on the chart of a shape, and a margin."""
    import numpy as np

    width = 1 << LEAF - level
    if drawing.geographic:
        u = face_coordinates(np.concatenate((i, j, i + width, j + width))).reshape(4, -1)
        return u[0] - _MARGIN, u[1] - _MARGIN, u[2] + _MARGIN, u[3] + _MARGIN
    # GEOS need not see the ends of the world: somewhat more than the shape will do.
    left, low, right, high = shape.bounds
    around = (
        2 * beyond
        + max(right - left, high - low)
        + max(abs(left), abs(low), abs(right), abs(high)) * 1e-9
        + 1e-300
    )
    bounds = (
        (lowest_of(i), left, right),
        (lowest_of(j), low, high),
        (lowest_of(i + width), left, right),
        (lowest_of(j + width), low, high),
    )
    a, b, c, d = (np.clip(at, least - around, most + around) for at, least, most in bounds)
    return a, b, c, d


def face_places(low: float, high: float) -> tuple[int, int]:
    """i (or j) of two coordinates u (or v), within the face."""
    least, most = (face_place(max(-1.0, min(1.0, u))) for u in (low, high))
    return max(0, least - 1), min(SIDE - 1, most + 1)
