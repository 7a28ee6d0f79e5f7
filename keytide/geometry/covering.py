"""Coverings: the cells of documents, and the stretches of cells that a query reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from keytide.geometry.geojson import Frame
from keytide.geometry.shapes import Geometry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CELL_BYTES: Final = 8
"""A cell id is an unsigned 64-bit number; big-endian bytes keep its order."""
LEVEL_MOD: Final = 2
"""Cells of documents have levels that are multiples of it, or are leaves (level 30)."""


def cells_of(geometry: Geometry, most: int = 8) -> tuple[int, ...]:
    """The covering of a document: ids of disjoint cells, ascending, that hold every point of it.

    Args:
        most: how many cells at most; never fewer than the faces that the geometry touches (one in a plane,
            up to six on the sphere), at most 6 where `most` is less.
    """
    raise NotImplementedError


def point_cell(x: float, y: float, frame: Frame) -> int:
    """The leaf of a point in range, as `cells_of` gives it: the fast way for one, without an object.

    Undefined for what `point` would refuse.
    """
    raise NotImplementedError


def point_cells(xs: NDArray[np.float64], ys: NDArray[np.float64], frame: Frame) -> NDArray[np.uint64]:
    """The same of many points; the same ids on every machine."""
    raise NotImplementedError
