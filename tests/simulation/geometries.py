"""What stands for the letters of simulated documents where indexes are spatial: a point for one letter, and
for two of them several points or an area, of several cells on either side of the split."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from tests.statements import encode_splits

SPLIT: Final = 3 << 61
"""Of RANGE(cell): a, d and e lie behind it."""
SPLITS: Final = encode_splits([SPLIT])
_POINTS: Final[dict[str, tuple[int, int]]] = {
    "a": (-100, 40),
    "b": (10, 50),
    "c": (100, 30),
    "d": (-60, -20),
    "e": (150, -30),
    "y": (0, -80),
    "z": (40, 10),
}


def statement_of(name: str, keyspace: str, ranged: bool, given: bool, slices: int) -> str:
    """CREATE INDEX.

    Args:
        ranged: by cells; else by documents.
        given: with its split.
    """
    at = f" SPLIT AT ({SPLIT})" if given else ""
    by = f"PARTITION BY RANGE(cell){at}" if ranged else "PARTITION BY HASH(id)"
    return f"CREATE INDEX {name} ON {keyspace} USING spatial (k) INCLUDE (v) {by} WITH (slices={slices})"


@cache
def geometry_of_letters(letters: str) -> str:
    """Of one letter or two, as JSON."""
    return json.dumps(geometry(letters), separators=(",", ":"))


def geometry(letters: str) -> dict[str, Any]:
    points = [list(_POINTS[letter]) for letter in letters]
    if len(points) == 1:
        return {"type": "Point", "coordinates": points[0]}
    if letters[0] < letters[1]:
        return {"type": "MultiPoint", "coordinates": points}
    (x, y), size = points[0], 5 * (1 + "abcde".index(letters[1]))
    ring = [[x - size, y - size], [x + size, y - size], [x + size, y + size], [x - size, y + size]]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
