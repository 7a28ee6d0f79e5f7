"""Which snapshot numbers are worth keeping when not all can be. Pure.

A number is of use only when all slices hold it, and slices that lag commit different ones. So all parts of a
cluster prefer the same numbers, the *landmarks*, by a rank that belongs to the number alone.
"""

from __future__ import annotations


def rank(number: int) -> int:
    """How often two divides a hash of `number`: half of all numbers have rank 0, a quarter rank 1, and so on
    up to 32."""
    mixed = (number * 2654435761) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    return 32 if mixed == 0 else (mixed & -mixed).bit_length() - 1
