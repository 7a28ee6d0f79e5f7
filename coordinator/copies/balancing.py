"""Which copies move where, so that nodes have about as much. Pure.

What is planned is carried out by `coordinator.copies.moving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keytide.catalog.copies import Move


class PlannedNode(NamedTuple):
    """A node that may have slices.

    Attributes:
        disk_free: bytes.
    """

    name: str
    zone: str
    disk_free: int


class PlannedSlice(NamedTuple):
    """A slice as it lies now.

    Attributes:
        nodes: those that hold its copies that count, or will when what is under way is done.
        entries, bytes: of one copy.
        movable: whether its copies may be moved now.
    """

    index_id: str
    slice: int
    nodes: tuple[str, ...]
    entries: int
    bytes: int
    movable: bool = True


def plan(slices: Sequence[PlannedSlice], nodes: Sequence[PlannedNode], room: int) -> list[Move]:
    """The moves after which nodes have about as many entries each, in the order in which to begin them.

    Args:
        slices: all of them.
        nodes: all that may have slices; what lies elsewhere moves to them.
        room: bytes that stay free on a disk.
    """
    raise NotImplementedError
