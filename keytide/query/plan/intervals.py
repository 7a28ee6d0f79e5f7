"""Sets of values as disjoint intervals of encoded key parts, and what is known of types.

An interval that is one code and all that begins with it is a *point*: one value, an equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keytide.collation import successor
from keytide.collation.layout import (
    STRING_END,
    TAG_ARRAY,
    TAG_FALSE,
    TAG_MISSING,
    TAG_NEGATIVE,
    TAG_NULL,
    TAG_NUMBER,
    TAG_OBJECT,
    TAG_STRING,
    TAG_TRUE,
)

_CONSTANT_TAGS: Final = (TAG_MISSING, TAG_NULL, TAG_FALSE, TAG_TRUE)
_NUMBER_TAGS: Final = (TAG_NEGATIVE, TAG_NUMBER)
_SHORTEST_NUMBER: Final = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """Values whose code is at or above `low` and below `high`.

    Attributes:
        above, below: the two bounds as a reader would say them; "" for the end of a type.
    """

    low: bytes
    high: bytes
    above: str = ""
    below: str = ""

    @property
    def is_point(self) -> bool:
        """Whether it is exactly one value. (The low bounds of others are tags, prefixes and successors of
        codes, which are no codes.)"""
        low = self.low
        if low[0] in _CONSTANT_TAGS:
            whole = len(low) == 1
        elif low[0] in _NUMBER_TAGS:
            whole = len(low) >= _SHORTEST_NUMBER
        else:
            whole = low[0] == TAG_STRING and low.endswith(STRING_END)
        return whole and self.high == successor(low)

    @property
    def is_bounded(self) -> bool:
        """Whether both of its ends are values, rather than the ends of a type."""
        return bool(self.above and self.below)

    def described(self) -> str:
        """As a reader would say it: `= 'Boston'`, `>= 60 and < 100`."""
        words = dict.fromkeys(word for word in (self.above, self.below) if word)
        return " and ".join(words) or "any value"


@dataclass(frozen=True, slots=True)
class Region:
    """Disjoint intervals in ascending order, and whether they say all that the condition says."""

    intervals: tuple[Interval, ...]
    exact: bool = False


_FIRST: Final = b"\x02"
_LAST: Final = b"\xff"
"""Below and above every tag, now and in later releases."""


def tag_byte(tag: int) -> bytes:
    return bytes((tag,))


def _kind(first: int, last: int, word: str) -> Region:
    return Region((Interval(tag_byte(first), tag_byte(last + 1), word, word),))


ALL: Final = Region((Interval(_FIRST, _LAST),))
MISSING_ONLY: Final = Interval(tag_byte(TAG_MISSING), tag_byte(TAG_MISSING + 1), "is missing")
NULL_ONLY: Final = Interval(tag_byte(TAG_NULL), tag_byte(TAG_NULL + 1), "is null")
NOT_MISSING: Final = Region((Interval(tag_byte(TAG_NULL), _LAST, "is not missing"),))
KNOWN: Final = Region((Interval(tag_byte(TAG_NULL + 1), _LAST, "is not null"),))
NUMBERS: Final = _kind(TAG_NEGATIVE, TAG_NUMBER, "is a number")
STRINGS: Final = _kind(TAG_STRING, TAG_STRING, "is a string")
ARRAYS: Final = _kind(TAG_ARRAY, TAG_ARRAY, "is an array")
OBJECTS: Final = _kind(TAG_OBJECT, TAG_OBJECT, "is an object")
TRUE_ONLY: Final = Interval(tag_byte(TAG_TRUE), tag_byte(TAG_TRUE + 1), "= TRUE")
FALSE_ONLY: Final = Interval(tag_byte(TAG_FALSE), tag_byte(TAG_FALSE + 1), "= FALSE")


# --- sets ---------------------------------------------------------------------------------------------------


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> tuple[Interval, ...]:
    """The values in both."""
    found: list[Interval] = []
    left = right = 0
    while left < len(one) and right < len(other):
        first, second = one[left], other[right]
        lower = first if (first.low, bool(first.above)) >= (second.low, bool(second.above)) else second
        upper = first if (first.high, not first.below) <= (second.high, not second.below) else second
        if lower.low < upper.high:
            found.append(Interval(lower.low, upper.high, lower.above, upper.below))
        if first.high <= second.high:
            left += 1
        else:
            right += 1
    return tuple(found)


def union(sets: Sequence[Sequence[Interval]]) -> tuple[Interval, ...]:
    """The values in any. Intervals that merely touch stay apart: a point is worth more than a range."""
    merged: list[Interval] = []
    for following in sorted((one for each in sets for one in each), key=lambda one: (one.low, one.high)):
        last = merged[-1] if merged else None
        if last is None or last.high <= following.low:
            merged.append(following)
        elif following.high > last.high:
            merged[-1] = Interval(last.low, following.high, last.above, following.below)
    return tuple(merged)


def without(one: Sequence[Interval], other: Sequence[Interval]) -> tuple[Interval, ...]:
    """The values in `one` and not in `other`."""
    kept: list[Interval] = []
    first = 0
    for interval in one:
        low, above = interval.low, interval.above
        while first < len(other) and other[first].high <= low:
            first += 1
        at = first
        while at < len(other) and other[at].low < interval.high:
            hole = other[at]
            name = hole.above.removeprefix("= ") if hole.is_point else ""
            if low < hole.low:
                kept.append(Interval(low, hole.low, above, f"< {name}" if name else ""))
            if low < hole.high:
                low, above = hole.high, f"> {name}" if name else ""
            at += 1
        if low < interval.high:
            kept.append(Interval(low, interval.high, above, interval.below))
    return tuple(kept)


def within(one: Sequence[Interval], other: Sequence[Interval]) -> bool:
    """Whether every value of `one` is in `other`."""
    return not without(one, other)


def touches(one: Sequence[Interval], other: Interval) -> bool:
    """Whether they share a value."""
    return bool(intersection(one, (other,)))
