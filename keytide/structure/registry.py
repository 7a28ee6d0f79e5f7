"""The structures there are, by the names that USING has for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final, Literal

from keytide.structure.btree import BTree
from keytide.structure.hashed import Hash
from keytide.structure.interface import Structure

StructureName = Literal["btree", "hash"]

STRUCTURES: Final[Mapping[StructureName, Callable[[int, tuple[bool, ...]], Structure]]] = {
    "btree": BTree,
    "hash": Hash,
}


@functools.lru_cache(maxsize=1_024)
def structure_of(name: StructureName, parts: int, descending: tuple[bool, ...] = ()) -> Structure:
    """The structure of an index.

    Args:
        parts: how many parts its key has.
        descending: their directions; empty when every part ascends.
    """
    return STRUCTURES[name](parts, descending)
