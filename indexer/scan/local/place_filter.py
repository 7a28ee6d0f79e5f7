"""Conditions on the place of a spatial index's entries, told of blocks of them at once.

Nearly all places are points, and of the others most are polygons of one ring, whose coordinates stand where
they always do in their values: of a block they are taken as columns, and compared as such
(`keytide.structure.place_columns`). Only of other places geometries are made one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from indexer.scan.peer.messages import Entry
from keytide.definition.expression import Predicate, Relates, same
from keytide.definition.index import IndexDefinition
from keytide.definition.spatial.meaning import query_shape
from keytide.geometry import NotAGeometryError, Rings
from keytide.query.parse.normal import conjuncts
from keytide.structure.place_columns import of_places
from keytide.structure.spatial import geometry_of_key

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def parted(definition: IndexDefinition, condition: Predicate) -> tuple[list[Relates], list[Predicate]]:
    """The conditions on the place of a spatial index's entries, and the others, all of which must hold."""
    places: list[Relates] = []
    others: list[Predicate] = []
    key = definition.keys[0].expression
    for one in conjuncts(condition):
        if isinstance(one, Relates) and one.place.srid == definition.system and same(one.operand, key):
            places.append(one)
        else:
            others.append(one)
    return places, others


class PlaceTest:
    """Whether the places of entries stand in some relations. Any thread.

    Args:
        nodes: the conditions, at least one, all of which must hold.
        rest: what else is tested, of the entries for which they do; None for nothing.

    Testing raises:
        InvariantViolationError: an entry was not made for this structure.
    """

    def __init__(self, nodes: Sequence[Relates], rest: Callable[[bytes, bytes], bool] | None) -> None:
        self._nodes = nodes
        self._rest = rest
        self._srid = nodes[0].place.srid

    @property
    def together(self) -> bool:
        """Whether polygons are tested many at once, in some microseconds each."""
        if self._rest is not None:
            return False
        for node in self._nodes:
            with query_shape(node) as shape:
                if not shape.tests_rings_together:
                    return False
        return True

    def __call__(self, entry_key: bytes, value: bytes) -> bool:
        return bool(self.pick([(entry_key, value)]))

    def pick(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those for which the conditions hold, in order."""
        values = [value for _, value in entries]
        wanted = of_places(values, self._srid, self._points, self._rings, self._meets)
        found_entries = list(itertools.compress(entries, wanted.tolist()))
        if self._rest is None:
            return found_entries
        rest = self._rest
        return [entry for entry in found_entries if rest(*entry)]

    def _points(self, xs: Floats, ys: Floats) -> Mask:
        found = np.ones(len(xs), bool)
        for node in self._nodes:
            with query_shape(node) as shape:
                found &= shape.test_points(xs, ys)
        return found

    def _rings(self, rings: Rings) -> Mask:
        found = np.ones(len(rings), bool)
        for node in self._nodes:
            with query_shape(node) as shape:
                found &= shape.test_rings(rings)
        return found

    def _meets(self, key: bytes) -> bool:
        try:
            geometry = geometry_of_key(key, self._srid)
        except NotAGeometryError:
            return False  # (no entry has such a key)
        for node in self._nodes:
            with query_shape(node) as shape:
                if not shape.test(geometry):
                    return False
        return True
