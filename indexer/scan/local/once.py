"""A slice as readers see it where a document may have several entries: each document once.

An entry is left out unless it is the one by which a read of some spans gives its document
(`keytide.structure.spatial.first_of_several`). That follows from the entry and the spans of the whole read,
so pages, slices and nodes agree without telling each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from indexer.scan.peer.messages import Entry
from indexer.view import ReadableSnapshot, SkipLine, StoredDocument
from keytide.model.timestamp import Timestamp
from keytide.structure import Structure
from keytide.structure.spatial import first_of_several


def read_once(
    snapshot: ReadableSnapshot, structure: Structure, spans: Sequence[tuple[bytes, bytes | None]]
) -> ReadableSnapshot:
    """A snapshot of which each document is read once.

    Args:
        spans: all that the read reads, on every page and of every slice.
    """
    return OncePerDocument(snapshot, spans) if structure.several else snapshot


class OncePerDocument:
    """A `ReadableSnapshot` of another one, without the entries by which its documents are not given."""

    def __init__(self, snapshot: ReadableSnapshot, spans: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._inner = snapshot
        self._is_first = first_of_several(spans)

    @property
    def number(self) -> int:
        return self._inner.number

    @property
    def incarnation(self) -> int:
        return self._inner.incarnation

    @property
    def timestamp(self) -> Timestamp:
        return self._inner.timestamp

    @property
    def foreign(self) -> int:
        return self._inner.foreign

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[Entry]]:
        is_first, left = self._is_first, limit
        # Nearly every entry is one of a point, and given: so many as are asked for are nearly enough.
        while left is None or left > 0:
            asked, looked_at, last = left, 0, start_after
            for block in self._inner.rows(low, high, reverse, left, start_after):
                looked_at += len(block)
                last = block[-1][0]
                found = [entry for entry in block if is_first(*entry)]
                if left is not None:
                    left -= len(found)
                if found:
                    yield found
            if asked is None or looked_at < asked:
                return
            start_after = last

    def rows_of(
        self,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[Entry]]:
        left = limit
        for block in self._inner.rows_of(spans, reverse):
            found = [entry for entry in block if self._is_first(*entry)][:left]
            if found:
                yield found
            if left is not None:
                left -= len(found)
                if left <= 0:
                    return

    def count(self, low: bytes, high: bytes | None) -> int:
        return sum(map(len, self.rows(low, high)))

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        return self._inner.back_rows(after)

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        return self._inner.documents(ids)

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        return self._inner.skips(limit, after)

    def release(self) -> None:
        self._inner.release()
