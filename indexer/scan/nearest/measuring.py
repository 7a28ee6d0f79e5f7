"""How far entries of a spatial index are from a place, as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.scan.peer.messages import Entry
from keytide.definition.expression import DistanceTo
from keytide.definition.spatial.meaning import geometry_literal
from keytide.geometry import distance, distances
from keytide.structure.point_keys import canonical_keys, points_of
from keytide.structure.spatial import geometry_of_key


class DistanceColumn:
    """Measures entries. One thread at a time.

    Args:
        to: from where, of the index's key.
    """

    def __init__(self, to: DistanceTo) -> None:
        self._place = geometry_literal(to.place)
        self._srid = to.place.srid

    def of(self, entries: Sequence[Entry]) -> npt.NDArray[np.float64]:
        """f64[n]: metres, or units of a plane.

        Raises:
            InvariantViolationError, NotAGeometryError: an entry cannot have been written.
        """
        keys = canonical_keys([value for _, value in entries])
        are, xs, ys = points_of(keys)
        found = np.empty(len(keys))
        if len(xs):
            found[are] = distances(self._place, xs, ys)
        for at in np.flatnonzero(~are).tolist():
            found[at] = distance(geometry_of_key(keys[at], self._srid), self._place)
        return found
