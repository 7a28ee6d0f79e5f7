"""Conditions on the place of a spatial index's entries, told of blocks of them at once.

Nearly all places are points, whose coordinates stand where they always do in their values
(`keytide.structure.point_keys`): of a block they are taken as columns, and compared as such. Only of other
places a geometry is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from indexer.scan.peer.messages import Entry
from keytide.definition.expression import Predicate, Relates, same
from keytide.definition.index import IndexDefinition
from keytide.definition.spatial.meaning import query_shape
from keytide.geometry import NotAGeometryError
from keytide.query.parse.normal import conjuncts
from keytide.structure.point_keys import canonical_keys, points_of
from keytide.structure.spatial import geometry_of_key


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

    def __call__(self, entry_key: bytes, value: bytes) -> bool:
        return bool(self.pick([(entry_key, value)]))

    def pick(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those for which the conditions hold, in order."""
        keys = canonical_keys([value for _, value in entries])
        are, xs, ys = points_of(keys)
        wanted = are.copy()
        held = None
        for node in self._nodes:
            with query_shape(node) as shape:
                found = shape.test_points(xs, ys)
            held = found if held is None else held & found
        wanted[are] = held
        for at in (~are).nonzero()[0].tolist():
            wanted[at] = self._meets(keys[at])
        found_entries = [entry for entry, one in zip(entries, wanted.tolist(), strict=True) if one]
        if self._rest is None:
            return found_entries
        rest = self._rest
        return [entry for entry in found_entries if rest(*entry)]

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
