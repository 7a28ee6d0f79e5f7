"""How far around a place a search for the nearest begins. Pure."""

from __future__ import annotations

import math
from typing import Final

FIRST_RADIUS: Final = 1_000.0
"""Metres, or units of a plane, where nothing is known of an index."""
_REMEMBERED: Final = 1_000
_MARGIN: Final = 3.0
"""Those within a circle vary by the root of their number: so many roots more than the wanted ones are hardly
ever too few."""
FEW_MORE: Final = 1.5
"""The same where it costs less to search once more, now and then, than to read more each time."""


def sought(wanted: int, margin: float = _MARGIN) -> float:
    """How many a search is to find."""
    return wanted + margin * math.sqrt(wanted)


class Radii:
    """The radius that a search begins with: by how far apart entries were where an index was asked before,
    and where it was asked last as much as everywhere before together."""

    def __init__(self) -> None:
        self._spacing: dict[str, float] = {}
        self._several: set[str] = set()

    def first(self, index: str, wanted: int, margin: float = _MARGIN) -> float:
        """For so many entries of an index (id)."""
        spacing = self._spacing.get(index)
        return FIRST_RADIUS if spacing is None else spacing * math.sqrt(sought(wanted, margin))

    def several(self, index: str) -> bool:
        """Whether documents of an index had several entries each, when it was asked last."""
        return index in self._several

    def note_several(self, index: str, several: bool) -> None:
        """They had or had not."""
        if several and len(self._several) < _REMEMBERED:
            self._several.add(index)
        elif not several:
            self._several.discard(index)

    def note(self, index: str, radius: float, found: int) -> None:
        """So many entries lay within a radius."""
        if found and math.isfinite(radius):
            if len(self._spacing) >= _REMEMBERED:
                self._spacing.clear()
            spacing = radius / math.sqrt(found)
            self._spacing[index] = math.sqrt(self._spacing.get(index, spacing) * spacing)
