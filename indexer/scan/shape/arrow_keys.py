"""Entry keys by columns: where each part of a million keys begins and ends, worked out with numpy. Pure.

Theory of operation
===================
The keys of a batch are joined into one buffer, and all of them are read in step: the tags of the first parts,
then where these end, then the tags of the second parts, and so on. A part's end follows from its tag; that of
a string is the next zero byte, which is looked for in eight bytes of every string at a time. So a
batch costs a few dozen numpy calls, however many rows it has, and no Python object per row
(`keytide.collation` describes the layout; a descending part is read from an inverted copy of the buffer).

What is rare is left to `decode_key`, a batch at a time: arrays and objects, strings with NUL in them,
integers that need more than two bytes beyond a double, and everything that is no key at all. `split_keys`
says None then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from keytide.collation.layout import (
    TAG_FALSE,
    TAG_MISSING,
    TAG_NEGATIVE,
    TAG_NULL,
    TAG_NUMBER,
    TAG_STRING,
    TAG_TRUE,
)
from keytide.model.byte_columns import PADDING, ByteColumn, Bytes, Places, words_at

Doubles: TypeAlias = npt.NDArray[np.float64]

UNUSUAL: Final = 0
NOTHING: Final = 1
NUMBER: Final = 2
TEXT: Final = 3
FALSE: Final = 4
TRUE: Final = 5
"""Classes of parts."""

_CLASS: Final = np.zeros(256, np.uint8)
for _tag, _class in {
    TAG_MISSING: NOTHING,
    TAG_NULL: NOTHING,
    TAG_FALSE: FALSE,
    TAG_TRUE: TRUE,
    TAG_NEGATIVE: NUMBER,
    TAG_NUMBER: NUMBER,
    TAG_STRING: TEXT,
}.items():
    _CLASS[_tag] = _class

_TERMINATOR: Final = 1
"""Behind the zero byte that ends a string; a NUL in one has another byte there."""
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_NUMBER_BYTES: Final = 9
"""Tag and double; the residual's length follows."""
_LONGEST_RESIDUAL: Final = 2
"""Bytes of the residual of any integer of 64 bits."""


@dataclass(frozen=True, slots=True)
class KeyPartColumn:
    """One part of every key of a batch.

    Attributes:
        classes: per row, `NOTHING` (null or missing), `NUMBER`, `TEXT`, `FALSE` or `TRUE`.
        uniform: the class that all rows have, `UNUSUAL` when they differ.
        source: the bytes that the texts lie in.
        begins, ends: of the text in `source`; empty spans in key order where there is none.
        doubles: the number's double, 0 where there is none.
        residuals: how far an integer is above its double; None when none is.
    """

    classes: Bytes
    uniform: int
    source: Bytes
    begins: Places
    ends: Places
    doubles: Doubles | None
    residuals: Places | None


@dataclass(frozen=True, slots=True)
class Split:
    """The parts and ids of a batch of entry keys.

    Attributes:
        data: all keys, one after the other, and padding.
        id_begins, id_ends: of the document ids in `data`.
    """

    parts: list[KeyPartColumn]
    data: Bytes
    id_begins: Places
    id_ends: Places


def split_keys(keys: ByteColumn, parts: int, descending: Sequence[bool]) -> Split | None:
    """The parts of entry keys, by columns; None when one of them is unusual, or no key.

    Args:
        keys: at least one, in any order.
        parts: how many parts each has.
        descending: as given to `encode_key`; empty when no part is.
    """
    data = np.concatenate([keys.whole, np.frombuffer(PADDING, np.uint8)])
    at, row_ends = keys.offsets[:-1] - keys.offsets[0], keys.offsets[1:] - keys.offsets[0]
    inverted = ~data if any(descending) else data
    found: list[KeyPartColumn] = []
    for ordinal in range(parts):
        source = inverted if descending and descending[ordinal] else data
        step = _part(source, at, row_ends)
        if step is None:
            return None
        part, at = step
        found.append(part)
    return Split(found, data, at, row_ends)


def _part(data: Bytes, at: Places, row_ends: Places) -> tuple[KeyPartColumn, Places] | None:
    """The part that stands at `at` in every row, and where the next one does."""
    if not (at < row_ends).all():
        return None
    classes = _CLASS[data[at]]
    uniform = int(classes[0])
    if not (classes == uniform).all():
        uniform = UNUSUAL
        if (classes == UNUSUAL).any():
            return None
    elif uniform == UNUSUAL:
        return None
    after = at + 1
    begins = ends = at
    doubles: Doubles | None = None
    residuals: Places | None = None
    if uniform == TEXT:
        found = _text_ends(data, at, row_ends)
        if found is None:
            return None
        begins, ends, after = at + 1, found, found + 2
    elif uniform == NUMBER:
        numbers = _numbers(data, at)
        if numbers is None:
            return None
        doubles, residuals, after = numbers
    elif uniform == UNUSUAL:
        texts = np.flatnonzero(classes == TEXT)
        if len(texts):
            found = _text_ends(data, at[texts], row_ends[texts])
            if found is None:
                return None
            begins, ends = at.copy(), at.copy()
            begins[texts] += 1
            ends[texts] = found
            after[texts] = found + 2
        rows = np.flatnonzero(classes == NUMBER)
        if len(rows):
            numbers = _numbers(data, at[rows])
            if numbers is None:
                return None
            doubles = np.zeros(len(at), np.float64)
            doubles[rows] = numbers[0]
            if numbers[1] is not None:
                residuals = np.zeros(len(at), np.int64)
                residuals[rows] = numbers[1]
            after[rows] = numbers[2]
    if not (after <= row_ends).all():
        return None
    return KeyPartColumn(classes, uniform, data, begins, ends, doubles, residuals), after


def _text_ends(data: Bytes, at: Places, row_ends: Places) -> Places | None:
    """Where the strings that stand at `at` end; None when one does not, or has a NUL in it."""
    ends = places = at + 1
    rows: Places | None = None
    while True:
        words = words_at(data, places)
        # Of the zero bytes of a word this marks the first one, and none before it (H. S. Warren, Hacker's
        # Delight, 6-1); the bits below the mark are its place. Without a zero they are all of the word.
        marks = words - _ONES & ~words & _HIGHS
        here = places + (np.bitwise_count(~marks & (marks - np.uint64(1))) >> 3)
        if rows is None:
            ends = here
        else:
            ends[rows] = here
        further = marks == 0
        if not further.any():
            break
        rows = np.flatnonzero(further) if rows is None else rows[further]
        places = here[further]
        if (places >= row_ends[rows]).any():
            return None
    return ends if (ends < row_ends).all() and (data[ends + 1] == _TERMINATOR).all() else None


def _numbers(data: Bytes, at: Places) -> tuple[Doubles, Places | None, Places] | None:
    """The numbers that stand at `at`: doubles, residuals, and where they end; None when one needs more."""
    words = np.ndarray((len(data) - 8,), ">u8", data, 0, (1,))
    bits = words[at + 1].astype(np.uint64)
    negative = data[at] == TAG_NEGATIVE
    if negative.any():
        bits = np.where(negative, ~bits, bits)
    doubles = bits.view(np.float64)
    sizes = data[at + _NUMBER_BYTES]
    ends = at + _NUMBER_BYTES + 1
    if not sizes.any():
        return (doubles, None, ends) if np.isfinite(doubles).all() else None
    if (sizes > _LONGEST_RESIDUAL).any() or not np.isfinite(doubles).all():
        return None
    high, low = data[ends].astype(np.int64), data[ends + 1].astype(np.int64)
    residuals = np.where(sizes == 0, 0, np.where(sizes == 1, high, high << 8 | low))
    return doubles, residuals, ends + sizes
