"""Reading one commit of a slice: the views of its levels, from the base to the newest delta."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from indexer.store.environment import DAMAGE, damaged
from indexer.store.formats.records import REMOVED, ledger_key, unpack_line, unpack_record
from indexer.store.interface import Applied, Counts, Row, SkipLine, StoredDocument
from indexer.store.joint import LevelCursor
from indexer.store.lmdb.equal_keys import shared_keys
from indexer.store.lmdb.leaves import level_columns
from indexer.store.lmdb.level_cursor import LmdbLevelCursor
from indexer.store.lmdb.levels import Level, View
from indexer.store.lmdb.lookup import held_by
from indexer.store.lmdb.merge import (
    FIRST_BLOCK,
    KeySpan,
    few_of,
    live_blocks,
    merged_blocks,
    table_blocks,
)
from keytide.errors import RetryableError
from keytide.model.byte_columns import EntryColumns


class LevelCommit(NamedTuple):
    """`commit`: number of its transaction."""

    level: Level
    commit: int


class LmdbSnapshot:
    """One commit, from its views (oldest first, acquired for it)."""

    def __init__(self, views: Sequence[View], applied: Applied, counts: Counts) -> None:
        self.applied = applied
        self.counts = counts
        self._views = tuple(views)
        self._lock = threading.Lock()
        self._closed = False

    def rows(
        self,
        low: bytes = b"",
        high: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[Row]]:
        if start_after is not None:
            if reverse:
                high = start_after if high is None else min(high, start_after)
            else:
                low = max(low, start_after + b"\x00")
        if limit == 0 or (high is not None and low >= high):
            return
        yield from filter(None, self.rows_of(((low, high),), reverse, limit))

    def rows_of(
        self, spans: Sequence[KeySpan], reverse: bool = False, limit: int | None = None
    ) -> Iterator[list[Row]]:
        if limit == 0 or not spans:
            return
        wanted = limit
        with self._reading() as views:
            few = few_of(views)
            first = few if limit is None else min(limit, few)
            for block in live_blocks(views, spans, reverse, first):
                if wanted is None:
                    yield block
                    continue
                if len(block) >= wanted:
                    yield block[:wanted]
                    return
                wanted -= len(block)
                yield block

    def entry_columns(self, spans: Sequence[KeySpan], reverse: bool, limit: int) -> Iterator[EntryColumns]:
        if limit <= 0 or not spans:
            return
        left = limit
        with self._reading() as views:
            for block in level_columns(views, spans, reverse, limit):
                yield block.part(0, left) if block.rows > left else block
                left -= block.rows
                if left <= 0:
                    return

    def levels(self) -> list[LevelCursor] | None:
        with self._reading() as views:
            if any(view.has_long for view in views):
                return None
            return [LmdbLevelCursor(view) for view in views if view.has_entries]

    def commits(self) -> list[LevelCommit]:
        """What another process must follow to read the same."""
        with self._lock:
            return [
                LevelCommit(view.level, view.commit) for view in self._views if isinstance(view.level, Level)
            ]

    def count(self, low: bytes = b"", high: bytes | None = None) -> int:
        if not low and high is None:
            return self.counts.entries
        return sum(map(len, self.rows(low, high)))

    def shared(self, keys: Sequence[bytes]) -> list[bytes]:
        with self._reading() as views:
            return shared_keys(views, keys)

    def backs(self, docids: Sequence[bytes]) -> dict[bytes, StoredDocument]:
        with self._reading() as views:
            return held_by(views, docids)

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        low = after + b"\x00" if after else b""
        with self._reading() as views:
            tables = [
                table_blocks(view.cursor(view.tables.back), low, None, False, FIRST_BLOCK) for view in views
            ]
            for block in merged_blocks(tables, reverse=False):
                for docid, record in block:
                    if record != REMOVED:
                        yield docid, unpack_record(record)

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        low = b"" if after is None else ledger_key(*after) + b"\x00"
        lines: list[SkipLine] = []
        with self._reading() as views:
            tables = [
                table_blocks(view.cursor(view.tables.skips), low, None, False, min(limit, FIRST_BLOCK) or 1)
                for view in views
            ]
            for block in merged_blocks(tables, reverse=False):
                lines += [unpack_line(value) for _, value in block[: limit - len(lines)]]
                if len(lines) >= limit:
                    break
        return lines

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            views, self._views = self._views, ()  # whoever remembers the snapshot keeps no level alive
        for view in views:
            view.release()

    def _reading(self) -> _ViewGuard:
        with self._lock:
            if self._closed:
                raise RetryableError("the snapshot was closed", problem_type="snapshot-closed")
            return _ViewGuard(self._views)


class _ViewGuard:
    """Holds the views while they are read, so that closing the snapshot waits for no one."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = [view.acquire() for view in views]

    def __enter__(self) -> Sequence[View]:
        return self._views

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for view in self._views:
            view.release()
        if isinstance(error, DAMAGE):
            raise damaged(self._views[0].folder, error) from error
