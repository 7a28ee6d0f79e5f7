"""How far entries of a spatial index are from a place, as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.scan.peer.messages import Entry
from keytide.collation import decode_key
from keytide.definition.expression import DistanceTo
from keytide.definition.spatial.meaning import geometry_literal
from keytide.geometry import distance, distances, indexed_geometry
from keytide.model.entry import unpack_keyed_value
from keytide.structure.point_keys import key_at_end, points_of
from keytide.structure.spatial import frame_of


class DistanceColumn:
    """Measures entries. One thread at a time.

    Args:
        to: from where, of the index's key.
    """

    def __init__(self, to: DistanceTo) -> None:
        self._place = geometry_literal(to.place)
        self._frame = frame_of(to.place.srid)

    def of(self, entries: Sequence[Entry]) -> npt.NDArray[np.float64]:
        """f64[n]: metres, or units of a plane.

        Raises:
            InvariantViolationError, NotAGeometryError: an entry cannot have been written.
        """
        keys = [key_at_end(value) or unpack_keyed_value(value)[2] for _, value in entries]
        are, xs, ys = points_of(keys)
        found = np.empty(len(keys))
        if len(xs):
            found[are] = distances(self._place, xs, ys)
        for at in np.flatnonzero(~are).tolist():
            found[at] = distance(indexed_geometry(decode_key(keys[at], 1)[0][0], self._frame), self._place)
        return found
