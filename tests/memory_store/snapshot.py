"""One commit of the store in dictionaries, and reading it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from indexer.store.interface import Applied, Counts, Row, SkipLine, StoredDocument
from keytide.collation import successor
from keytide.errors import RetryableError
from tests.spans_by_rows import SpansByRows

_BLOCK = 64


@dataclass(frozen=True, slots=True)
class MemoryState:
    """One commit; never changed once made."""

    applied: Applied
    entries: dict[bytes, bytes] = field(default_factory=dict)
    back: dict[bytes, StoredDocument] = field(default_factory=dict)
    lines: dict[tuple[int, int], SkipLine] = field(default_factory=dict)

    def counts(self) -> Counts:
        documents = sum(1 for held in self.back.values() if held.keys)
        return Counts(
            len(self.entries),
            documents,
            len(self.back) - documents,
            len(self.lines),
            sum(held.foreign for held in self.back.values()),
        )


class MemorySnapshot(SpansByRows):
    """One commit of a `MemorySliceStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._ordered: list[bytes] | None = None
        self._closed = False

    @property
    def applied(self) -> Applied:
        return self._state.applied

    @property
    def counts(self) -> Counts:
        return self._state.counts()

    def rows(
        self,
        low: bytes = b"",
        high: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[Row]]:
        self._check_open()
        keys = self._span(low, high)
        if start_after is not None:
            keys = [key for key in keys if (key < start_after if reverse else key > start_after)]
        if reverse:
            keys.reverse()
        keys = keys[:limit]
        for first in range(0, len(keys), _BLOCK):
            yield [(key, self._state.entries[key]) for key in keys[first : first + _BLOCK]]

    def count(self, low: bytes = b"", high: bytes | None = None) -> int:
        return len(self._span(low, high))

    def shared(self, keys: Sequence[bytes]) -> list[bytes]:
        self._check_open()
        return [key for key in keys if len(self._span(key, successor(key))) > 1]

    def backs(self, docids: Sequence[bytes]) -> dict[bytes, StoredDocument]:
        self._check_open()
        return {docid: self._state.back[docid] for docid in docids if docid in self._state.back}

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        yield from sorted(item for item in self._state.back.items() if item[0] > after)

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        self._check_open()
        lines = self._state.lines
        places = sorted(place for place in lines if after is None or place > after)
        return [lines[place] for place in places[:limit]]

    def close(self) -> None:
        self._closed = True

    def _span(self, low: bytes, high: bytes | None) -> list[bytes]:
        if self._ordered is None:
            self._ordered = sorted(self._state.entries)
        end = len(self._ordered) if high is None else bisect_left(self._ordered, high)
        return self._ordered[bisect_left(self._ordered, low) : end]

    def _check_open(self) -> None:
        if self._closed:
            raise RetryableError("the snapshot was closed", problem_type="snapshot-closed")
