"""The structures there are, by the names that USING has for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final, Literal

from keytide.structure.btree import BTree
from keytide.structure.hashed import Hash
from keytide.structure.interface import Structure
from keytide.structure.spatial import GEOGRAPHIC_SRID, Spatial

StructureName = Literal["btree", "hash", "spatial"]

STRUCTURES: Final[Mapping[StructureName, Callable[[int, tuple[bool, ...], int], Structure]]] = {
    "btree": lambda parts, descending, srid: BTree(parts, descending),
    "hash": lambda parts, descending, srid: Hash(parts, descending),
    "spatial": Spatial,
}


@functools.lru_cache(maxsize=1_024)
def structure_of(
    name: StructureName, parts: int, descending: tuple[bool, ...] = (), srid: int = GEOGRAPHIC_SRID
) -> Structure:
    """The structure of an index.

    Args:
        parts: how many parts its key has.
        descending: their directions; empty when every part ascends.
        srid: of a spatial one, in which system its coordinates are.
    """
    return STRUCTURES[name](parts, descending, srid)
