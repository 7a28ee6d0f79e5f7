"""Which snapshot numbers are worth keeping when not all can be. Pure.

A number is of use only when all slices hold it, and slices that lag commit different ones. So all parts of a
cluster prefer the same numbers, the *landmarks*, by a rank that belongs to the number alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


def rank(number: int) -> int:
    """How often two divides a hash of `number`: half of all numbers have rank 0, a quarter rank 1, and so on
    up to 32."""
    mixed = (number * 2654435761) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    return 32 if mixed == 0 else (mixed & -mixed).bit_length() - 1


class RankedNumbers:
    """A set of numbers by rank; of one rank the larger come behind. Nothing here looks at all of them."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._entries = sorted((rank(number), number) for number in numbers)

    def add(self, number: int) -> None:
        where, entry = self._find(number)
        if entry not in self._entries[where : where + 1]:
            insort(self._entries, entry)

    def discard(self, number: int) -> None:
        where, entry = self._find(number)
        if entry in self._entries[where : where + 1]:
            del self._entries[where]

    def among_last(self, most: int, number: int) -> bool:
        """Whether no more than `most` numbers, itself among them, have its rank and place or later ones."""
        return len(self._entries) - self._find(number)[0] <= most

    def just_before_last(self, most: int) -> list[int]:
        """The number in front of the last `most`, if there is one."""
        return [number for _, number in self._entries[-most - 1 : -most]]

    def _find(self, number: int) -> tuple[int, tuple[int, int]]:
        entry = rank(number), number
        return bisect_left(self._entries, entry), entry
