"""How far entries of a spatial index are from a place, as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.scan.local.once import NotShortError
from indexer.scan.peer.messages import Entry
from keytide.definition.expression import DistanceTo
from keytide.definition.spatial.meaning import geometry_literal
from keytide.geometry import distance, distances, nearest_points, ring_distances
from keytide.model.entry import canonical_keys
from keytide.structure.place_columns import MOST_AREA_BYTES, of_keys, of_places
from keytide.structure.spatial import PLANAR_SRID, geometry_of_key


class DistanceColumn:
    """Measures entries. One thread at a time.

    Args:
        to: from where, of the index's key.
    """

    def __init__(self, to: DistanceTo) -> None:
        self.place = geometry_literal(to.place)
        """From where."""
        self._srid = to.place.srid
        self.together = self.place.is_point
        """Whether polygons are measured many at once, in some microseconds each."""

    def of(self, entries: Sequence[Entry]) -> npt.NDArray[np.float64]:
        """f64[n]: metres, or units of a plane.

        Raises:
            InvariantViolationError, NotAGeometryError: an entry cannot have been written.
        """
        return of_places(
            [value for _, value in entries],
            self._srid,
            lambda xs, ys: distances(self.place, xs, ys) if len(xs) else np.empty(0),
            lambda rings: ring_distances(self.place, rings),
            lambda key: distance(geometry_of_key(key, self._srid), self.place),
        )

    def nearest(self, entries: Sequence[Entry], wanted: int) -> npt.NDArray[np.float64]:
        """The same of those that can be among the `wanted` nearest, from a point; infinite of some others,
        which are farther away than the last of them.

        Raises:
            NotShortError: there is more to measure than a few milliseconds allow.
            InvariantViolationError, NotAGeometryError: as `of`.
        """
        keys = canonical_keys([value for _, value in entries])
        if sum(map(len, keys)) > MOST_AREA_BYTES:
            raise NotShortError
        if self._srid == PLANAR_SRID:
            return of_keys(
                keys,
                self._srid,
                lambda xs, ys: distances(self.place, xs, ys) if len(xs) else np.empty(0),
                lambda rings: ring_distances(self.place, rings),
                _dear,
            )
        return of_keys(
            keys,
            self._srid,
            lambda xs, ys: nearest_points(self.place, xs, ys, wanted) if len(xs) else np.empty(0),
            lambda rings: ring_distances(self.place, rings, wanted),
            _dear,
        )


def _dear(_: bytes) -> float:
    raise NotShortError
