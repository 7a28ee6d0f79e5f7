"""Reading one level of a commit over and over, with a cursor that stays open (`indexer.store.joint`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from itertools import islice

from indexer.store.environment import DAMAGE, damaged
from indexer.store.formats.records import REMOVED
from indexer.store.interface import Row
from indexer.store.joint import LOOKED_AT_BYTES, LargeRowsError
from indexer.store.lmdb.levels import View
from indexer.store.lmdb.merge import inside, key_of, reverse_cut, seek_last


class LmdbLevelCursor:
    """One level's entries (`indexer.store.joint.LevelCursor`)."""

    __slots__ = ("_cursor", "_folder", "_high", "_low", "_reverse", "_rows", "large")

    def __init__(self, view: View) -> None:
        self._cursor = view.cursor(view.tables.forward)
        self._folder = view.folder
        self.large = view.has_large
        self._rows: Iterator[Row] = iter(())
        self._low, self._reverse = b"", False
        self._high: bytes | None = None

    def begin(self, low: bytes, high: bytes | None, reverse: bool, count: int, room: int) -> list[Row]:
        self._low, self._high, self._reverse = low, high, reverse
        cursor = self._cursor
        try:
            if self.large and (low if reverse else high is not None):
                self._rows = inside(cursor, ((low, high),), reverse)
            elif reverse:
                self._rows = cursor.iterprev() if seek_last(cursor, high) else iter(())
            else:
                self._rows = cursor.iternext() if cursor.set_range(low) else iter(())
        except DAMAGE as error:
            raise damaged(self._folder, error) from error
        return self.onward(count, room)

    def onward(self, count: int, room: int) -> list[Row]:
        try:
            rows = self._within_room(count, room) if self.large else list(islice(self._rows, count))
        except DAMAGE as error:
            raise damaged(self._folder, error) from error
        if not rows:
            return rows
        last = rows[-1][0]
        if self._reverse:
            return rows[: reverse_cut(rows, self._low)] if last < self._low else rows
        high = self._high
        return rows[: bisect_left(rows, high, key=key_of)] if high is not None and last >= high else rows

    def _within_room(self, count: int, room: int) -> list[Row]:
        rows: list[Row] = []
        for row in islice(self._rows, count):
            rows.append(row)
            room -= len(row[1])
            if room < 0:
                raise LargeRowsError
        return rows

    def ends(self) -> tuple[bytes, bytes] | None:
        cursor = self._cursor
        try:
            if not cursor.first():
                return None
            first = cursor.key()
            cursor.last()
            return first, cursor.key()
        except DAMAGE as error:
            raise damaged(self._folder, error) from error

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int, full: Set[bytes]
    ) -> tuple[list[Row], int]:
        cursor, found, known = self._cursor, list[Row](), set[bytes]()
        key: bytes | None = None  # (wherever the cursor stands)
        left, room = most + 1, LOOKED_AT_BYTES
        try:
            for low, high in zip(lows, highs, strict=True):
                if key is None or key < low:
                    if not cursor.set_range(low):
                        break
                    key = cursor.key()
                if key >= high:  # what was read beyond a span is not sought for the next ones
                    continue
                for key in cursor.iternext(values=False):
                    if key >= high:
                        break
                    left -= 1
                    document = key[behind:] if behind else key
                    if document not in known:  # (a value is copied, which takes as long as ten keys)
                        found.append((key, value := cursor.value()))
                        room -= len(value)
                        if behind and value != REMOVED and document not in full:
                            known.add(document)
                    if not left or room < 0:
                        return found, most + 1
                else:  # there is nothing behind it
                    break
        except DAMAGE as error:
            raise damaged(self._folder, error) from error
        return found, most + 1 - left
