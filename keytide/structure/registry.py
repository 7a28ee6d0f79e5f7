"""The structures there are, by the names that USING has for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from keytide.structure.btree import BTree
from keytide.structure.hashed import Hash
from keytide.structure.interface import Structure
from keytide.structure.spatial import GEOGRAPHIC_SRID, Spatial

StructureName = str
"""One of `STRUCTURES`. (No `Literal`, which would name them a second time.)"""

STRUCTURES: Final[Mapping[StructureName, type[Structure]]] = {
    BTree.name: BTree,
    Hash.name: Hash,
    Spatial.name: Spatial,
}
DEFAULT_STRUCTURE: Final[StructureName] = BTree.name
"""That of an index which says nothing of USING. Its definition does not say it either, so that records are
what they were before there were others."""


@functools.lru_cache(maxsize=1_024)
def structure_of(
    name: StructureName, parts: int, descending: tuple[bool, ...] = (), srid: int = GEOGRAPHIC_SRID
) -> Structure:
    """The structure of an index.

    Args:
        parts: how many parts its key has.
        descending: their directions; empty when every part ascends.
        srid: of one with places, in which system its coordinates are.
    """
    return STRUCTURES[name].made(parts, descending, srid)
