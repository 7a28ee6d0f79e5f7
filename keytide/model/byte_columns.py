"""Byte strings by columns: a hundred thousand keys in one buffer, compared, put in order and chosen from
without an object for each. Pure.

Theory of operation
===================
A column is Arrow's: all strings one after the other, and where each begins (`LargeBinary`). What lies
scattered over a buffer is put together by Arrow itself: stretches of a buffer are an array of *views*, and
casting that to an array of strings copies them (`gathered`).

Strings are compared eight bytes at a time (`words_at`): read in place, wherever they begin, as numbers. To
order many, the bits in which they differ are put together, from the first word on, until a number of 64
bits is full (`order_of`): of keys of one shape that is most of what there is. The numbers are sorted, which
is a merge where the column is a few sorted runs. Only those that are equal are looked at further: they are
groups, and the number of its group and the bits in which a group's strings differ, from there on, are the
next numbers. Behind the last word come the lengths, for a string and the same with zeros behind it. What a
few passes, or the first words, do not tell apart is sorted as objects are, so that no strings cost much
more than a list of them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

WORD: Final = 8
PADDING: Final = bytes(2 * WORD)
"""Behind a buffer that is read by words, wherever they begin."""
MOST_BYTES: Final = 64
"""So far strings are compared by words. Those that are alike up to there are compared as objects: that stops
at the first byte that differs, and here every further word is read of all of them."""
MOST_PASSES: Final = 3
"""Of sorting by words, before those that are left are sorted as objects."""
FEW: Final = 256
"""So few strings are not worth the calls of numpy."""
_IN_VIEW: Final = 12
"""Bytes of a string that a view holds itself."""
_BITS: Final = 64
_KEPT: Final = np.array([(1 << (8 * count)) - 1 for count in range(WORD + 1)], np.uint64)
"""Of a word all bits of its first bytes, by their number."""


class ByteColumn(NamedTuple):
    """Byte strings, one after the other.

    Attributes:
        data: their bytes, and maybe others before and behind.
        offsets: i64[n + 1], where each begins in `data`, and the last ends.
    """

    data: Bytes
    offsets: Places

    @classmethod
    def of(cls, items: Sequence[bytes]) -> ByteColumn:
        """A column of these strings."""
        offsets = np.zeros(len(items) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=offsets[1:])
        return cls(np.frombuffer(b"".join(items), np.uint8), offsets)

    @classmethod
    def packed(cls, lengths: npt.NDArray[np.integer], data: bytes) -> ByteColumn:
        """A column of its lengths and bytes."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(np.frombuffer(data, np.uint8), offsets)

    @property
    def rows(self) -> int:
        """How many strings there are."""
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Bytes of all strings."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def lengths(self) -> Places:
        """Bytes of each. i64[n]."""
        return np.diff(self.offsets)

    @property
    def whole(self) -> Bytes:
        """The bytes of all strings and no others."""
        return self.data[self.offsets[0] : self.offsets[-1]]

    def at(self, row: int) -> bytes:
        """One of the strings."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def items(self) -> list[bytes]:
        """All as objects."""
        items: list[bytes] = self._array().to_pylist()
        return items

    def part(self, begin: int, end: int) -> ByteColumn:
        """The strings from row `begin` to `end` (exclusive). Shares the bytes."""
        return ByteColumn(self.data, self.offsets[begin : end + 1])

    def take(self, rows: Places) -> ByteColumn:
        """The strings of some rows, in their order."""
        return _column(self._array().take(_integers(rows)))

    def before(self, key: bytes, *, reverse: bool = False, equal: bool = False) -> int:
        """How many strings of a column that ascends (or, in reverse, descends) come before `key`.

        Args:
            equal: count it, too.
        """
        ahead = (
            (operator.ge if equal else operator.gt) if reverse else (operator.le if equal else operator.lt)
        )
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if ahead(self.at(middle), key):
                low = middle + 1
            else:
                high = middle
        return low

    def _array(self) -> pa.Array:
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.offsets)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), self.rows, buffers)


def _integers(numbers: Places) -> pa.Array:
    """As an Arrow array (`pa.array` would import pandas, which takes a second)."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    )


class EntryColumns(NamedTuple):
    """Entries by columns.

    Attributes:
        keys: entry keys.
        values: as many; None when all of them are empty.
    """

    keys: ByteColumn
    values: ByteColumn | None

    @classmethod
    def of(cls, entries: Sequence[tuple[bytes, bytes]]) -> EntryColumns:
        """Entries as columns."""
        values = [value for _, value in entries]
        keys = ByteColumn.of([key for key, _ in entries])
        return cls(keys, ByteColumn.of(values) if any(values) else None)

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.keys.rows

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return self.keys.size + (0 if self.values is None else self.values.size)

    def items(self) -> list[tuple[bytes, bytes]]:
        """All as objects."""
        keys = self.keys.items()
        return list(zip(keys, [b""] * len(keys) if self.values is None else self.values.items(), strict=True))

    def part(self, begin: int, end: int) -> EntryColumns:
        """Those from row `begin` to `end` (exclusive). Shares the bytes."""
        return EntryColumns(
            self.keys.part(begin, end), None if self.values is None else self.values.part(begin, end)
        )

    def take(self, rows: Places) -> EntryColumns:
        """Some rows, in their order."""
        return EntryColumns(self.keys.take(rows), None if self.values is None else self.values.take(rows))


def joined_entries(columns: Sequence[EntryColumns]) -> EntryColumns:
    """The entries of some columns, one column after the other."""
    columns = [one for one in columns if one.rows]
    keys = joined([one.keys for one in columns])
    if all(one.values is None for one in columns):
        return EntryColumns(keys, None)
    values = [_empty(one.rows) if one.values is None else one.values for one in columns]
    return EntryColumns(keys, joined(values))


def _empty(rows: int) -> ByteColumn:
    return ByteColumn(np.empty(0, np.uint8), np.zeros(rows + 1, np.int64))


def joined(columns: Sequence[ByteColumn]) -> ByteColumn:
    """The strings of some columns, one column after the other."""
    if len(columns) == 1:
        return columns[0]
    if not columns:
        return ByteColumn.of([])
    *begins, total = accumulate((column.size for column in columns), initial=0)
    offsets = [
        column.offsets[:-1] + (begin - column.offsets[0])
        for column, begin in zip(columns, begins, strict=True)
    ]
    data = np.concatenate([column.whole for column in columns])
    return ByteColumn(data, np.concatenate([*offsets, np.array([total])]))


def gathered(data: Bytes, begins: Places, lengths: Places) -> ByteColumn:
    """Stretches of a buffer as a column.

    Args:
        data: at least two words more than the stretches reach to; less than 2 GiB.
    """
    return _column(views(data, begins, lengths, None).cast(pa.large_binary()))


def views(data: Bytes, begins: Places, lengths: Places, valid: Flags | None) -> pa.Array:
    """Stretches of a buffer as an array of Arrow's binary views; see `gathered`.

    Args:
        valid: which are not null; None for all.
    """
    # A view: the length, and 12 bytes: a short string itself, or of a long one its prefix, buffer and place.
    made = np.empty((len(begins), 4), "<i4")
    made[:, 0] = lengths
    made[:, 1:3] = words_at(data, begins).view("<i4").reshape(-1, 2)
    made[:, 3] = words_at(data, begins + WORD).astype(np.uint32).view("<i4")
    if (long := lengths > _IN_VIEW).any():
        made[:, 2] = np.where(long, 0, made[:, 2])
        made[:, 3] = np.where(long, begins, made[:, 3])
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.binary_view(), len(begins), [bitmap, pa.py_buffer(made), pa.py_buffer(data)]
    )


def _column(array: pa.Array) -> ByteColumn:
    _, offsets, data = array.buffers()
    bytes_of = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return ByteColumn(bytes_of, np.frombuffer(offsets, np.int64)[: len(array) + 1])


# --- comparing --------------------------------------------------------------------------------------------


def words_at(data: Bytes, places: Places) -> Words:
    """The eight bytes at each place as a number whose least byte is the first. u64[n].

    Args:
        data: a word more than the places reach to.
    """
    words: Words = np.ndarray((len(data) - WORD + 1,), "<u8", data, 0, (1,))
    return words[places]


def ascending(column: ByteColumn, *, reverse: bool = False) -> bool:
    """Whether every string is above the one before it; or, in reverse, below."""
    words = _Words.of(column)
    word = words.next()
    ones, others = word[:-1], word[1:]
    alike = np.arange(len(ones))  # rows that are like the next one as far as was read
    apart = 1
    while True:
        equal = ones == others
        if not ((ones > others if reverse else ones < others) | equal).all():
            return False
        equal = np.flatnonzero(equal)
        alike = alike[equal]
        if len(alike) <= FEW or words.far or words.ended:
            break
        words, apart = words.some(np.concatenate([equal, equal + apart])), len(equal)
        ones, others = np.split(words.next(), 2)
    ahead = operator.gt if reverse else operator.lt
    return all(map(ahead, column.take(alike).items(), column.take(alike + 1).items()))


def order_of(column: ByteColumn) -> tuple[Places, Flags | None]:
    """The rows by ascending strings, equal ones as they come; and which of them, but for the first, is
    another string than the one before it, None when all are. Fast where the column is a few sorted runs."""
    order = np.arange(column.rows)
    new = np.zeros(column.rows, np.bool_)
    new[:1] = True
    left = order.copy()  # places in the order of those that are like a neighbour as far as was read
    groups, firsts = np.zeros(column.rows, np.uint64), np.zeros(column.rows, np.int64)
    words, word = _Words.of(column), groups
    for _ in range(MOST_PASSES):
        if len(left) <= FEW:
            break
        key, room = groups, _BITS - int(groups[-1]).bit_length()
        bits, differing = room, _differing(word, firsts)
        while room:
            if not differing:
                if words.far or words.ended:
                    break
                word = words.next()
                differing = _differing(word, firsts)
                continue
            top = differing.bit_length()
            width = min(room, top - (~differing & ((1 << top) - 1)).bit_length())
            mask = (1 << width) - 1
            key = key << np.uint64(width % _BITS) | word >> np.uint64(top - width) & np.uint64(mask)
            differing &= ~(mask << (top - width))
            room -= width
        if room == bits:  # nothing that was read tells them apart
            break
        by_key = np.argsort(key, kind="stable")
        order[left] = order[left][by_key]
        ordered = key[by_key]
        new[left[1:]] = ordered[1:] != ordered[:-1]
        lone = new[left] & np.append(new[left[1:]], True)
        left, rows = left[~lone], by_key[~lone]
        heads = new[left]
        at = np.cumsum(heads) - 1
        groups, firsts = at.astype(np.uint64), np.flatnonzero(heads)[at]
        words, word = words.some(rows), word[rows]
    if len(left) and not words.ended:
        rows = np.sort(order[left])  # as they came: in runs, which is quick
        items = column.take(rows).items()
        by_item = sorted(range(len(items)), key=items.__getitem__)
        order[left] = rows[by_item]
        items = [items[at] for at in by_item]
        new[left[1:]] = list(map(operator.ne, items, islice(items, 1, None)))
    return order, None if new.all() else new[1:]


def _differing(word: Words, firsts: Places) -> int:
    """The bits in which some are unlike the first one of their group."""
    return int(np.bitwise_or.reduce(word ^ word[firsts]))


class _Words:
    """The words of strings, from their first ones on, and then their lengths: numbers that are ordered as
    the strings are. Zeros are behind the end of a string.

    Attributes:
        ended: all words and the lengths were given.
    """

    def __init__(self, data: Bytes, begins: Places, lengths: Places, read: int) -> None:
        self.ended = False
        self._data, self._begins, self._lengths, self._read = data, begins, lengths, read
        self._longest = int(lengths.max(initial=0))
        self._shortest = int(lengths.min(initial=self._longest))

    @classmethod
    def of(cls, column: ByteColumn) -> _Words:
        """All of a column."""
        data = np.concatenate([column.whole, np.frombuffer(PADDING, np.uint8)])
        return cls(data, column.offsets[:-1] - column.offsets[0], column.lengths, 0)

    def some(self, rows: Places) -> _Words:
        """Those of some of the strings, from where it stands on."""
        return _Words(self._data, self._begins[rows], self._lengths[rows], self._read)

    @property
    def far(self) -> bool:
        """Whether there is more of them, and so much was read that objects are compared sooner."""
        return MOST_BYTES <= self._read < self._longest

    def next(self) -> Words:
        """The next words, or the lengths. u64[n]."""
        if self._read >= self._longest:
            self.ended = True
            return self._lengths.astype(np.uint64)
        places = self._begins + self._read
        if self._shortest >= self._read + WORD:
            words = words_at(self._data, places)
        else:
            words = words_at(self._data, np.minimum(places, len(self._data) - WORD))
            words &= _KEPT[np.clip(self._lengths - self._read, 0, WORD)]
        self._read += WORD
        return words.byteswap()
