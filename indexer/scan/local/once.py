"""A slice as readers see it where a document may have several entries: each document once.

An entry is left out unless it is the one by which a read of some spans gives its document
(`keytide.structure.spatial.firsts_of_several`). That follows from the entry and the spans of the whole read,
so pages, slices and nodes agree without telling each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from indexer.scan.local.filtering import EntryTest, picked
from indexer.scan.local.place_filter import PlaceTest
from indexer.scan.peer.messages import Entry, ReadRequest
from indexer.view import ReadableSnapshot, SkipLine, StoredDocument
from keytide.model.byte_columns import EntryColumns
from keytide.model.timestamp import Timestamp
from keytide.structure import Structure
from keytide.structure.place_columns import MOST_AREA_BYTES, areas_bytes
from keytide.structure.spatial import firsts_of_several


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
        self._firsts = firsts_of_several(spans)

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
        left = limit
        # Nearly every entry is one of a point, and given: so many as are asked for are nearly enough.
        while left is None or left > 0:
            asked, looked_at, last = left, 0, start_after
            for block in self._inner.rows(low, high, reverse, left, start_after):
                looked_at += len(block)
                last = block[-1][0]
                found = self._firsts(block)
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
        # (Of so many as are wanted not all would be given; and blocks are read as they are taken.)
        for block in self._inner.rows_of(spans, reverse):
            found = self._firsts(block)[:left]
            yield found  # also when nothing is left: whoever reads looks at the clock between blocks
            if left is not None:
                left -= len(found)
                if left <= 0:
                    return

    def entry_columns(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool, limit: int
    ) -> Iterator[EntryColumns]:
        return map(EntryColumns.of, self.rows_of(spans, reverse, limit))

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


MOST_TESTED_BYTES: Final = 2_500
"""Of a filter that is tested at once: what shapes it has are of few positions, and so soon made ready."""
_OF_SEVERAL: Final = (b"MultiPolygon", b"MultiLineString", b"GeometryCollection")


class NotShortError(Exception):
    """A read that was begun at once is none that ends soon."""


@dataclass(slots=True)
class SoonDone:
    """What a read that is begun at once may still look at, over all of its slices: places that are near to
    one another may lie in one of them.

    Attributes:
        rows: entries, one at least.
        area_bytes: of other places than points.
    """

    rows: int
    area_bytes: int = MOST_AREA_BYTES

    def take(self, looked_at: int, tested: Sequence[bytes], *, together: bool) -> None:
        """So many entries are looked at, and these values are tested.

        Args:
            together: whether polygons are.

        Raises:
            NotShortError: which takes longer.
        """
        self.rows = max(1, self.rows - looked_at)
        size = areas_bytes(tested)
        if size is None or size > (self.area_bytes if together else 0):
            raise NotShortError
        self.area_bytes -= size


class OneByOne:
    """Picks of a block the entries by which documents are given as above, and of those the
    ones that are wanted: so what is looked at is counted before either.

    Args:
        spans: of the whole read.
        soon: what may be looked at; None for everything.
    """

    def __init__(
        self, spans: Sequence[tuple[bytes, bytes | None]], test: EntryTest | None, soon: SoonDone | None
    ) -> None:
        self._firsts = firsts_of_several(spans)
        self._test = test
        self._soon = soon

    def __call__(self, entry_key: bytes, value: bytes) -> bool:
        return bool(self.pick([(entry_key, value)]))

    def pick(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those of some entries.

        Raises:
            NotShortError: to test them takes long.
        """
        found = self._firsts(entries)
        if self._soon is not None:
            together = self._test is None or (isinstance(self._test, PlaceTest) and self._test.together)
            self._soon.take(len(entries), [value for _, value in found], together=together)
        return picked(self._test, found)


def finds_places(request: ReadRequest, most: int) -> bool:
    """Whether a read of a spatial index is begun at once: it looks at a few cells, and goes on in a thread if
    it does not end there. What is counted is read, so that is never short.

    Args:
        most: rows that are read at once.
    """
    span, paging, shape = request.span, request.paging, request.shape
    if shape.task or shape.examine or shape.distinct or paging.skip or not paging.limit or any(span.after):
        return False
    tested = shape.filter
    if len(tested) > MOST_TESTED_BYTES or any(kind in tested for kind in _OF_SEVERAL):
        return False
    return all(high is not None for _, high in span.spans) and paging.limit <= most
