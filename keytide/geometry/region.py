"""`Region`: one query shape with a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from keytide.geometry.shapes import Geometry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Relation = Literal["intersects", "within", "contains", "dwithin"]
"""What a document is to the shape: it meets it, lies within it, contains it, is within `metres` of it."""


class Region:
    """A query's shape, prepared: DOCUMENT <relation> SHAPE.

    One thread at a time: what is prepared is built as tests need it. Geometries are shared freely.

    Args:
        relation: what documents must be to the shape.
        shape: what they are held against.
        metres: for dwithin, the distance at most, at least 0; units of the plane in a planar frame.
    """

    def __init__(self, relation: Relation, shape: Geometry, metres: float = 0.0) -> None:
        self.relation = relation
        self.shape = shape
        self.metres = metres

    def spans(self, most: int = 32) -> list[tuple[int, int]]:
        """Inclusive ranges of cell ids, disjoint and ascending, never more than `most`: every document that
        `test` takes has one of its `cells_of` in one of them."""
        raise NotImplementedError

    def test(self, geometry: Geometry) -> bool:
        """Whether a document's geometry has the relation.

        Raises:
            NotAGeometryError: it is of the other frame.
        """
        raise NotImplementedError

    def test_points(self, xs: NDArray[np.float64], ys: NDArray[np.float64]) -> NDArray[np.bool_]:
        """The same of many points, in range: as `test` would say of each."""
        raise NotImplementedError
