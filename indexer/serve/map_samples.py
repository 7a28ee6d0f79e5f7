"""A sample of a slice's geometries, for a map.

Entries lie in the order of cells (`keytide.structure.spatial`), along a curve that fills the globe or the
plane, so the first ones of a slice would all lie in one corner. The stretch of all cells is halved again and
again, the widest part first, and of each half that has any its first entry is taken: a sample that shows
where there are any, however crowded some of them lie. It takes two seeks at most for each that it gives.
"""

from __future__ import annotations

import heapq
from typing import Final

from indexer.view import ReadableSnapshot
from keytide.definition.index import IndexDefinition
from keytide.errors import InvariantViolationError
from keytide.geometry import CELL_BYTES, NotAGeometryError, bounds
from keytide.structure.point_keys import point_of
from keytide.structure.spatial import cell_key, geometry_of_key
from keytide.wire.index_lists import BoundingBox

_CELLS: Final = 1 << 8 * CELL_BYTES


def sampled(snapshot: ReadableSnapshot, definition: IndexDefinition, most: int) -> list[BoundingBox]:
    """Bounding boxes of a spatial index's slice, up to `most`; one that has several cells may come for each.

    Raises:
        StoreDamagedError: as `ReadableSnapshot.rows`.
        InvariantViolationError: an entry is none of its index.
    """
    found: list[BoundingBox] = []
    parts = [(-_CELLS, 0, _CELLS)]  # (how wide, negative; from, to)
    while parts and len(found) < most:
        _, low, high = heapq.heappop(parts)
        first = _first(snapshot, low, high)
        if first is None:
            continue
        entry_key, value = first
        found.append(_box_of(definition, entry_key, value))
        low = int.from_bytes(entry_key[:CELL_BYTES], "big") + 1
        middle = (low + high) // 2
        for start, end in ((low, middle), (middle, high)):
            if start < end:
                heapq.heappush(parts, (start - end, start, end))
    return found


def _first(snapshot: ReadableSnapshot, low: int, high: int) -> tuple[bytes, bytes] | None:
    end = cell_key(high) if high < _CELLS else None
    return next((rows[0] for rows in snapshot.rows(cell_key(low), end, limit=1)), None)


def _box_of(definition: IndexDefinition, entry_key: bytes, value: bytes) -> BoundingBox:
    key = definition.structure.canonical(entry_key[:CELL_BYTES], value)
    at = point_of(key)
    if at is not None:
        return (*at, *at)
    try:
        return bounds(geometry_of_key(key, definition.system))
    except NotAGeometryError as error:
        raise InvariantViolationError("EntryDecodes", f"{entry_key.hex()} is no geometry: {error}") from error
