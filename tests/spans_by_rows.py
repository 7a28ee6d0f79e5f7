"""Snapshots of tests that read several spans one after the other, and have one level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import chain, islice
from typing import Protocol

from indexer.store.formats.records import PUT
from indexer.store.interface import Row
from indexer.store.joint import LargeRowsError, LevelCursor
from keytide.model.byte_columns import EntryColumns


class ReadsRows(Protocol):
    """What gives the rows of one span."""

    def rows(
        self, low: bytes, high: bytes | None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[list[Row]]: ...


class RowsCursor:
    """A snapshot's only level, by its `rows`."""

    def __init__(self, snapshot: ReadsRows) -> None:
        self._snapshot = snapshot
        self._rows: Iterator[Row] = iter(())

    large = True

    def begin(self, low: bytes, high: bytes | None, reverse: bool, count: int, room: int) -> list[Row]:
        self._rows = chain.from_iterable(self._snapshot.rows(low, high, reverse))
        return self.onward(count, room)

    def onward(self, count: int, room: int) -> list[Row]:
        rows = [(key, PUT + value) for key, value in islice(self._rows, count)]
        if sum(len(value) for _, value in rows) > room:
            raise LargeRowsError
        return rows

    def ends(self) -> tuple[bytes, bytes] | None:
        keys = [key for block in self._snapshot.rows(b"", None) for key, _ in block]
        return (keys[0], keys[-1]) if keys else None

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int, full: Set[bytes]
    ) -> tuple[list[Row], int]:
        spans = zip(lows, highs, strict=True)
        rows = chain.from_iterable(block for low, high in spans for block in self._snapshot.rows(low, high))
        found = [(key, PUT + value) for key, value in islice(rows, most + 1)]
        return found, len(found)


class SpansByRows:
    """Mixes in `rows_of`, `entry_columns` and `levels`, by `rows`."""

    def entry_columns(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool, limit: int
    ) -> Iterator[EntryColumns]:
        return map(EntryColumns.of, self.rows_of(spans, reverse, limit))  # type: ignore[misc]

    def levels(self: ReadsRows) -> list[LevelCursor] | None:
        return [RowsCursor(self)]

    def rows_of(
        self: ReadsRows,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[Row]]:
        left = limit
        for low, high in spans:
            for block in self.rows(low, high, reverse, left):
                left = None if left is None else left - len(block)
                yield block
            if left == 0:
                return
