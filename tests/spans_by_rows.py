"""Snapshots of tests that read several spans one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from indexer.store.interface import Row


class ReadsRows(Protocol):
    """What gives the rows of one span."""

    def rows(
        self, low: bytes, high: bytes | None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[list[Row]]: ...


class SpansByRows:
    """Mixes in `rows_of`, by `rows`."""

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
