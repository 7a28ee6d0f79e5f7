"""What stands for the letters of simulated documents where indexes are spatial: a point for one letter, and
for two of them several points or an area, of several cells on either side of the split."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

SPLIT: Final = 3 << 61
"""Of RANGE(cell): a, d and e lie behind it."""
CUTS: Final = (SPLIT, 1 << 61, 7 << 60, 1 << 62)
_POINTS: Final[dict[str, tuple[int, int]]] = {
    "a": (-100, 40),
    "b": (10, 50),
    "c": (100, 30),
    "d": (-60, -20),
    "e": (150, -30),
    "u": (20, 70),
    "v": (-20, 20),
    "w": (-150, 60),
    "x": (70, -50),
    "y": (0, -80),
    "z": (40, 10),
}


def statement_of(name: str, keyspace: str, ranged: bool, given: bool, slices: int, spread: str) -> str:
    """CREATE INDEX.

    Args:
        ranged: by cells; else by documents.
        given: with its split.
        spread: of how many slices partitions are, by RANGE.
    """
    at = f" SPLIT AT ({SPLIT})" if given else ""
    by = f"PARTITION BY RANGE(cell){at}" if ranged else "PARTITION BY HASH(id)"
    options = f"slices={slices}"
    if spread:
        by, options = (f"{by} {spread}", "replicas=0") if ranged else (by, f"slices={slices + 1}")
    return f"CREATE INDEX {name} ON {keyspace} USING spatial (k) INCLUDE (v) {by} WITH ({options})"


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
