"""How far entries of a spatial index are from a place, as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.scan.peer.messages import Entry
from keytide.definition.expression import DistanceTo
from keytide.definition.spatial.meaning import geometry_literal
from keytide.geometry import distance, distances, ring_distances
from keytide.structure.place_columns import of_places
from keytide.structure.spatial import geometry_of_key


class DistanceColumn:
    """Measures entries. One thread at a time.

    Args:
        to: from where, of the index's key.
    """

    def __init__(self, to: DistanceTo) -> None:
        self._place = geometry_literal(to.place)
        self._srid = to.place.srid
        self.together = self._place.is_point
        """Whether polygons are measured many at once, in some microseconds each."""

    def of(self, entries: Sequence[Entry]) -> npt.NDArray[np.float64]:
        """f64[n]: metres, or units of a plane.

        Raises:
            InvariantViolationError, NotAGeometryError: an entry cannot have been written.
        """
        return of_places(
            [value for _, value in entries],
            self._srid,
            lambda xs, ys: distances(self._place, xs, ys) if len(xs) else np.empty(0),
            lambda rings: ring_distances(self._place, rings),
            lambda key: distance(geometry_of_key(key, self._srid), self._place),
        )
