"""Several sorted levels as one sorted stream of blocks: newest wins, markers vanish.

Theory of operation
===================
Levels are read in blocks, never row by row. Of every level that has more to come, the last key of its current
block bounds what is known; below the smallest of these bounds nothing unread can lie, so that part of all
blocks is merged at once: a dictionary, filled from the oldest level to the newest, then sorted (which, for a
few sorted runs, is a merge). What lies beyond stays for the next round. One level alone is passed through.

Long entries come from their own table as a further stream: merged over the levels by long key, sorted within
each group by entry key (a group is read whole: entries whose first 400 bytes are equal), then merged with the
main stream as if it were a level.

Blocks are read beyond the end of a span, and cut there: that costs less than to look at every key first. Not
where values are large (`View.has_large`): what lies behind the end may be a hundred times what was asked for,
so there a value is copied only when its key lies inside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

import lmdb

from indexer.store.formats.long_rows import unpack_long
from indexer.store.formats.records import REMOVED
from indexer.store.interface import Row
from indexer.store.lmdb.levels import View
from keytide.model.entry import LONG_PREFIX, long_group

FIRST_BLOCK: Final = 128
"""Rows read at first: a page of a scan. Blocks then grow eightfold up to `LARGEST_BLOCK`, or about
`BLOCK_BYTES` if rows are large: whoever reads on has a block in memory, of every level. One takes half a
millisecond, in which nobody else of the process gets on; larger ones are not read faster (measured)."""
LARGEST_BLOCK: Final = 1024
BLOCK_BYTES: Final = 1 << 20
FIRST_LARGE: Final = 8
"""Rows read at first where some values are large, by whoever may want no more."""
SPAN_BLOCK: Final = 16
"""Rows read at first of one of many spans, which are narrow as a rule."""
_SAMPLED: Final = 16
"""One row of so many tells how large they are."""


KeySpan = tuple[bytes, bytes | None]
"""low <= key < high; None for no end."""


def table_blocks(
    cursor: lmdb.Cursor[bytes], low: bytes, high: bytes | None, reverse: bool, first: int, large: bool = False
) -> Iterator[list[Row]]:
    """Rows of one table with low <= key < high, tagged, in blocks.

    Args:
        large: whether some values of the table are.
    """
    if large and (low if reverse else high is not None):
        yield from _in_blocks(inside(cursor, ((low, high),), reverse), first)
        return
    if reverse:
        rows = cursor.iterprev() if seek_last(cursor, high) else iter(())
    else:
        rows = cursor.iternext() if cursor.set_range(low) else iter(())
    size = first
    while block := list(islice(rows, size)):
        last = block[-1][0]
        if reverse and last < low:
            block = block[: reverse_cut(block, low)]
        elif not reverse and high is not None and last >= high:
            block = block[: bisect_left(block, high, key=key_of)]
        elif len(block) == size:
            yield block
            size = _next_size(size, block)
            continue
        if block:
            yield block
        return


def inside(cursor: lmdb.Cursor[bytes], spans: Sequence[KeySpan], reverse: bool) -> Iterator[Row]:
    """Rows of some spans, of which no value is copied that lies elsewhere."""
    value = cursor.value
    for low, high in spans:
        if reverse:
            if not seek_last(cursor, high):
                return
            for key in cursor.iterprev(values=False):
                if key < low:
                    break
                yield key, value()
        else:
            if not cursor.set_range(low):
                return
            for key in cursor.iternext(values=False):
                if high is not None and key >= high:
                    break
                yield key, value()


def _in_blocks(rows: Iterator[Row], first: int) -> Iterator[list[Row]]:
    """Rows in blocks as `table_blocks` gives them."""
    size = first
    while block := list(islice(rows, size)):
        yield block
        if len(block) < size:
            return
        size = _next_size(size, block)


def spans_blocks(
    cursor: lmdb.Cursor[bytes], spans: Sequence[KeySpan], reverse: bool, first: int, large: bool
) -> Iterator[list[Row]]:
    """Rows of one table that lie in some spans, tagged, in blocks: one walk for many narrow spans. What lies
    between two of them is stepped over or sought past, whichever is less, and of what is read beyond a span
    the next ones are served.

    Args:
        spans: disjoint, in the direction of the read.
        first: rows of the first block.
        large: see `table_blocks`.
    """
    if large and len(spans) > 1:
        yield from _in_blocks(inside(cursor, spans, reverse), first)
        return
    if reverse or len(spans) == 1:
        for low, high in spans:
            yield from table_blocks(cursor, low, high, reverse, first, large)
        return
    found: list[Row] = []
    at, size = 0, SPAN_BLOCK
    there = cursor.set_range(spans[0][0])
    while there:
        began_in = at
        rows = list(islice(cursor.iternext(), size))
        last = rows[-1][0]
        begin = 0
        while begin < len(rows):
            at = _first_above(spans, rows[begin][0], at)
            if at == len(spans):
                if found:
                    yield found
                return
            low, high = spans[at]
            begin = bisect_left(rows, low, begin, key=key_of)
            end = len(rows) if high is None else bisect_left(rows, high, begin, key=key_of)
            found += rows[begin:end]
            begin = max(end, begin)
            if begin == len(rows):
                break
        if len(found) >= first:
            yield found
            found = []
        if len(rows) < size:
            break
        low, high = spans[at]
        if last < low:
            size = SPAN_BLOCK
            there = cursor.set_range(low)
        else:  # it goes on
            size = _next_size(size, rows) if at == began_in else SPAN_BLOCK
            there = cursor.next()
    if found:
        yield found


def _first_above(spans: Sequence[KeySpan], key: bytes, at: int) -> int:
    """The first of the spans from `at` on that does not end at or before a key."""
    while at < len(spans) and (high := spans[at][1]) is not None and high <= key:
        at += 1
    return at


def _next_size(size: int, block: list[Row]) -> int:
    """How many rows to read after a full block of `size`."""
    sample = block[::_SAMPLED]
    row_bytes = sum(len(value) for _, value in sample) // len(sample) + 1
    return max(1, min(size * 8, LARGEST_BLOCK, BLOCK_BYTES // row_bytes))


def merged_blocks(sources: Sequence[Iterator[list[Row]]], reverse: bool) -> Iterator[list[Row]]:
    """Merge streams of sorted blocks, given from the oldest to the newest; values stay tagged, markers in."""
    if len(sources) == 1:
        yield from sources[0]
        return
    heads = [_Head(source, reverse) for source in sources]
    while True:
        waiting = [head for head in heads if head.fill()]
        if len(waiting) <= 1:
            break
        bounds = [head.bound() for head in waiting]
        bound = max(bounds) if reverse else min(bounds)
        parts = [part for head in waiting if (part := head.take(bound))]
        if len(parts) == 1:
            yield parts[0]
            continue
        rows = dict(chain.from_iterable(parts))
        yield [(key, rows[key]) for key in sorted(rows, reverse=reverse)]
    for head in waiting:
        yield from head.rest()


class _Head:
    """A stream of blocks and what is left of its current one."""

    def __init__(self, source: Iterator[list[Row]], reverse: bool) -> None:
        self._source = source
        self._reverse = reverse
        self._block: list[Row] = []

    def fill(self) -> bool:
        if not self._block:
            self._block = next(self._source, [])
        return bool(self._block)

    def bound(self) -> bytes:
        return self._block[-1][0]

    def take(self, bound: bytes) -> list[Row]:
        """The rows up to and with `bound`."""
        block = self._block
        if block[-1][0] == bound:
            self._block = []
            return block
        if self._reverse:
            cut = reverse_cut(block, bound)
        else:
            cut = bisect_right(block, bound, key=key_of)
        self._block = block[cut:]
        return block[:cut]

    def rest(self) -> Iterator[list[Row]]:
        if self._block:
            yield self._block
        yield from self._source


def live_blocks(
    views: Sequence[View], spans: Sequence[KeySpan], reverse: bool, first: int
) -> Iterator[list[Row]]:
    """Entries of several views, given from the oldest to the newest, without tags and markers. A block of
    nothing but markers is empty: whoever reads looks at the clock between blocks.

    Args:
        spans: disjoint, in the direction of the read.
        first: rows to read at first.
    """
    sources = [
        spans_blocks(view.cursor(view.tables.forward), spans, reverse, first, view.has_large)
        for view in views
    ]
    with_long = [view for view in views if view.has_long]
    if with_long:
        sources.append(chain.from_iterable(long_blocks(with_long, low, high, reverse) for low, high in spans))
    for block in merged_blocks(sources, reverse):
        yield [(key, value[1:]) for key, value in block if value != REMOVED]


def few_of(views: Sequence[View]) -> int:
    """Rows to read at first when it is not known how many are wanted."""
    return FIRST_LARGE if any(view.has_large for view in views) else FIRST_BLOCK


def long_blocks(views: Sequence[View], low: bytes, high: bytes | None, reverse: bool) -> Iterator[list[Row]]:
    """Long entries of several views in entry key order, tagged, one block per group."""
    group_low = low[:LONG_PREFIX]
    group_high = None if high is None else _after_group(high[:LONG_PREFIX])
    sources: list[Iterator[list[Row]]] = []
    for view in views:
        cursor, large = view.cursor(view.tables.long), view.has_large_long
        first = FIRST_LARGE if large else FIRST_BLOCK
        sources.append(table_blocks(cursor, group_low, group_high, reverse, first, large))
    group: list[Row] = []
    prefix = b""
    for key, value in chain.from_iterable(merged_blocks(sources, reverse)):
        if value == REMOVED:
            continue
        if group and long_group(key) != prefix:
            yield from _sorted_group(group, low, high, reverse)
            group = []
        prefix = long_group(key)
        group.append(unpack_long(value))
    if group:
        yield from _sorted_group(group, low, high, reverse)


def _sorted_group(group: list[Row], low: bytes, high: bytes | None, reverse: bool) -> Iterator[list[Row]]:
    inside = [row for row in group if row[0] >= low and (high is None or row[0] < high)]
    if inside:
        inside.sort(reverse=reverse)
        yield inside


def _after_group(prefix: bytes) -> bytes:
    """A bound above every long key of entry keys that begin with `prefix` (shorter than a group, maybe)."""
    return prefix + b"\xff" * (LONG_PREFIX + 32 - len(prefix))


def seek_last(cursor: lmdb.Cursor[bytes], high: bytes | None) -> bool:
    """Put the cursor on the last row below `high`."""
    if high is None or not cursor.set_range(high):
        return bool(cursor.last())
    return bool(cursor.prev())


def reverse_cut(block: list[Row], bound: bytes) -> int:
    """How many rows of a descending block are at or above `bound`."""
    return len(block) - bisect_left(block[::-1], bound, key=key_of)


def key_of(row: Row) -> bytes:
    return row[0]
