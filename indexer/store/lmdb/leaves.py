"""Entries of a level by columns: the leaf pages of its tree, read and taken apart many at a time.

Theory of operation
===================
A cursor gives a row at a time, as two objects and with a call that lets go of the interpreter. Who reads a
whole index reads pages: the branches of the tree say which leaves hold a span, the leaves are read into one
buffer (`os.preadv`, neighbours at once), and where every key and value of all of them lies is worked out
with numpy. None of it is copied row by row (`keytide.model.byte_columns`).

That is safe beside whoever writes: a view's read transaction keeps every page of its commit as it is
(`indexer.store.files.pages` says why), also for those who do not read through it. The root of the tree is
what LMDB's own table of tables has under this transaction. The file is the one that the level has open, or
nothing is read (a store that was destroyed has snapshots, but no file that can be opened).

Nothing here judges. Values on pages of their own, pages that are not what they should be, a file that ends
early: all of that is `UnusualPagesError`, and whoever asked reads through LMDB, row by row, which also
tells damage.

Source: lmdb's `mdb.c` (struct MDB_page, MDB_node, MDB_db).
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import Final

import numpy as np

from indexer.store.files.pages import BRANCH, LEAF, NO_ROOT, NODE, PAGE, TREE
from indexer.store.formats.records import PUT, REMOVED
from indexer.store.lmdb.levels import DATA, Level, View
from indexer.store.lmdb.merge import KeySpan, few_of, live_blocks
from keytide.model.byte_columns import (
    PADDING,
    ByteColumn,
    Bytes,
    EntryColumns,
    gathered,
    joined_entries,
    order_of,
    words_at,
)

MOST_LEAVES: Final = 128
"""Leaves that are read at once: some thousand rows, some tenths of a millisecond."""
MOST_SPANS: Final = 16
"""Of more spans, which are narrow as a rule, pages hold little."""
FEWEST_ROWS: Final = 1_500
"""Of fewer, cursors give what is wanted sooner than numpy is called."""
_TABLE: Final = b"forward"
_HALF: Final = np.uint64(0xFFFF)
_SIZE: Final = np.uint64(0xFFFFFFFF)
_CHILD: Final = np.uint64((1 << 48) - 1)


class UnusualPagesError(Exception):
    """What is to be read is not all on usual pages: it is to be read row by row."""


class LeafReader:
    """Reads the entries of one view by leaves. Close it.

    Raises:
        UnusualPagesError: its file cannot be opened.
    """

    def __init__(self, view: View) -> None:
        record = view.get(_TABLE, None)
        if not isinstance(view.level, Level) or record is None or len(record) != TREE.size:
            raise UnusualPagesError
        _, self._flags, self._depth, _, leaves, _, rows, self._root = TREE.unpack(record)
        self._page = int(view.level.environment.stat()["psize"])
        self.rows_of_leaf = max(1, rows // max(1, leaves))
        try:
            self._file = os.open(view.level.folder / DATA, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnusualPagesError from error
        status = os.fstat(self._file)
        if (status.st_dev, status.st_ino) != view.level.file:
            self.close()
            raise UnusualPagesError

    def close(self) -> None:
        os.close(self._file)

    def blocks(self, low: bytes, high: bytes | None, reverse: bool, rows: int) -> Iterator[EntryColumns]:
        """The rows with low <= key < high in the direction of the read, never none at once. Values are
        tagged; there are none where all of them are the tag of an entry without a value.

        Args:
            rows: how many are wanted, about.

        Raises:
            UnusualPagesError: they are to be read otherwise. What was given stands.
        """
        if self._flags:
            raise UnusualPagesError
        if self._root == NO_ROOT:
            return
        leaves = self._leaves(self._root, self._depth, low, high, reverse)
        count = min(MOST_LEAVES, rows // self.rows_of_leaf + 2)
        while numbers := list(islice(leaves, count)):
            count = min(MOST_LEAVES, 2 * count)  # who goes on has found less in them than was wanted
            block = self._block(numbers[::-1] if reverse else numbers, reverse)
            keys = block.keys
            begin, end = keys.before(low, reverse=reverse, equal=reverse), keys.rows
            if reverse:
                begin, end = 0 if high is None else keys.before(high, reverse=True, equal=True), begin
            elif high is not None:
                end = keys.before(high)
            if begin < end:
                yield block.part(begin, end)

    # --- pages ------------------------------------------------------------------

    def _leaves(
        self, number: int, depth: int, low: bytes, high: bytes | None, reverse: bool
    ) -> Iterator[int]:
        """Numbers of the leaves below a page that may hold keys of a span."""
        if depth <= 1:
            yield number
            return
        wanted = self._children(number, low, high)
        for child in reversed(wanted) if reverse else wanted:
            yield from self._leaves(child, depth - 1, low, high, reverse)

    def _children(self, number: int, low: bytes, high: bytes | None) -> list[int]:
        """The pages below a branch that may hold keys of a span."""
        page, size = self._read([number]), self._page
        itself, _, flags, lower, _ = PAGE.unpack_from(page.data)
        if (itself, flags) != (number, BRANCH) or not PAGE.size < lower <= size or lower % 2:
            raise UnusualPagesError
        places = page[PAGE.size : lower].view("<u2").astype(np.int64)
        nodes = words_at(page, np.minimum(places, size - NODE.size))
        ends = places + NODE.size + (nodes >> np.uint64(48)).astype(np.int64)
        if (ends > size).any():
            raise UnusualPagesError

        def begins_with(child: int) -> bytes:
            """The first key below a child; of the first one it is not said."""
            return page[places[child] + NODE.size : ends[child]].tobytes() if child else b""

        every = range(len(places))
        begin = max(0, bisect_right(every, low, key=begins_with) - 1)
        end = len(every) if high is None else max(begin + 1, bisect_left(every, high, key=begins_with))
        children: list[int] = (nodes[begin:end] & _CHILD).tolist()
        return children

    def _read(self, numbers: Sequence[int]) -> Bytes:
        """Pages into one buffer, with room behind them."""
        size = self._page
        buffer = np.empty(len(numbers) * size + len(PADDING), np.uint8)
        buffer[len(numbers) * size :] = 0
        into = buffer.data
        at = 0
        while at < len(numbers):
            end = at + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
                end += 1
            try:
                read = os.preadv(self._file, [into[at * size : end * size]], numbers[at] * size)
            except (OSError, OverflowError) as error:
                raise UnusualPagesError from error
            if read != (end - at) * size:
                raise UnusualPagesError
            at = end
        return buffer

    def _block(self, numbers: Sequence[int], reverse: bool) -> EntryColumns:
        """All rows of some leaves, which are given in ascending order."""
        data, size = self._read(numbers), self._page
        begins = np.arange(len(numbers)) * size
        heads = words_at(data, begins + NODE.size)  # pad, flags, lower, upper
        lower = (heads >> np.uint64(32) & _HALF).astype(np.int64)
        if (words_at(data, begins) != np.array(numbers, np.uint64)).any():
            raise UnusualPagesError
        if ((heads >> np.uint64(16) & _HALF) != LEAF).any() or (lower > size).any() or (lower % 2).any():
            raise UnusualPagesError
        counts = (lower - PAGE.size) // 2
        if (counts < 1).any():
            raise UnusualPagesError
        of_page = np.repeat(begins, counts)
        within = np.arange(len(of_page)) - np.repeat(np.cumsum(counts) - counts, counts)
        halves = np.ndarray((len(data) // 2,), "<u2", data)
        places = halves[(of_page + PAGE.size) // 2 + within].astype(np.int64)
        nodes = words_at(data, of_page + np.minimum(places, size - NODE.size))
        key_sizes = (nodes >> np.uint64(48)).astype(np.int64)
        value_sizes = (nodes & _SIZE).astype(np.int64)
        flags = nodes >> np.uint64(32) & _HALF
        ends = places + NODE.size + key_sizes + value_sizes
        if flags.any() or (ends > size).any() or (key_sizes < 1).any() or (value_sizes < 1).any():
            raise UnusualPagesError
        keys_at = of_page + places + NODE.size
        values_at = keys_at + key_sizes
        if reverse:
            keys_at, values_at = keys_at[::-1], values_at[::-1]
            key_sizes, value_sizes = key_sizes[::-1], value_sizes[::-1]
        bare = (value_sizes == 1).all() and (data[values_at] == PUT[0]).all()
        values = None if bare else gathered(data, values_at, value_sizes)
        return EntryColumns(gathered(data, keys_at, key_sizes), values)


# --- levels -----------------------------------------------------------------------------------------------


def level_columns(
    views: Sequence[View], spans: Sequence[KeySpan], reverse: bool, rows: int
) -> Iterator[EntryColumns]:
    """Entries of several views as `live_blocks` gives them, without tags and markers, by columns.

    Args:
        views: from the oldest to the newest.
        spans: disjoint, in the direction of the read.
        rows: how many are wanted, about.
    """
    left = list(spans)
    if rows >= FEWEST_ROWS and len(spans) <= MOST_SPANS and not any(view.has_long for view in views):
        try:
            with ExitStack() as opened:
                readers = [
                    opened.enter_context(closing(LeafReader(view))) for view in views if view.has_entries
                ]
                while left:
                    low, high = left[0]
                    sources = [reader.blocks(low, high, reverse, rows) for reader in readers]
                    for block in _merged(sources, reverse):
                        live = _live(block)
                        if live.rows:
                            last = live.keys.at(live.rows - 1)
                            left[0] = (low, last) if reverse else (last + b"\x00", high)
                            yield live
                    del left[0]
                return
        except UnusualPagesError:
            pass
    left = [(low, high) for low, high in left if high is None or low < high]
    for entries in filter(None, live_blocks(views, left, reverse, min(rows, few_of(views))) if left else ()):
        yield EntryColumns.of(entries)


def _merged(sources: Sequence[Iterator[EntryColumns]], reverse: bool) -> Iterator[EntryColumns]:
    """Streams of blocks as one, the newest row of each key; as `merged_blocks`."""
    if len(sources) == 1:
        yield from sources[0]
        return
    heads: list[EntryColumns | None] = [None] * len(sources)
    nearest = max if reverse else min
    while True:
        heads = [
            next(source, None) if head is None else head for source, head in zip(sources, heads, strict=True)
        ]
        waiting = [head for head in heads if head is not None]
        if not waiting:
            return
        bound = nearest(head.keys.at(head.rows - 1) for head in waiting)
        parts: list[EntryColumns] = []
        for at, head in enumerate(heads):
            if head is None:
                continue
            cut = head.keys.before(bound, reverse=reverse, equal=True)
            if cut:
                parts.append(head.part(0, cut))
            heads[at] = head.part(cut, head.rows) if cut < head.rows else None
        yield _newest(parts, reverse)


def _newest(parts: Sequence[EntryColumns], reverse: bool) -> EntryColumns:
    """The rows of several levels, given from the oldest to the newest, in order, the newest of each key."""
    if len(parts) == 1:
        return parts[0]
    if any(part.values is not None for part in parts):
        parts = [EntryColumns(part.keys, _tagged(part)) for part in parts]
    whole = joined_entries(parts)
    rows, steps = order_of(whole.keys)
    if steps is not None:
        rows = rows[np.append(steps, True)]  # (equal keys stand by the age of their levels)
    return whole.take(rows[::-1] if reverse else rows)


def _tagged(block: EntryColumns) -> ByteColumn:
    """The tagged values of a block, whatever they are."""
    if block.values is not None:
        return block.values
    return ByteColumn(np.full(block.rows, PUT[0], np.uint8), np.arange(block.rows + 1))


def _live(block: EntryColumns) -> EntryColumns:
    """The rows of a block that are there, without tags."""
    if block.values is None:
        return block
    values = block.values
    begins, lengths = values.offsets[:-1], values.lengths
    removed = (lengths == 1) & (values.data[begins] == REMOVED[0])
    if removed.any():
        block = block.take(np.flatnonzero(~removed))
        return _live(block) if block.rows else block
    if (lengths == 1).all():
        return EntryColumns(block.keys, None)
    data = np.concatenate([values.whole, np.frombuffer(PADDING, np.uint8)])
    return EntryColumns(block.keys, gathered(data, begins - begins[0] + 1, lengths - 1))
