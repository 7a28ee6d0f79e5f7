"""The node that fills a copy: what it asks next, and what becomes of the answer. Pure but for the store that
it fills.

Rows of two commits never come together, for they would be a state that the slice never had (R40). A filling
has the generation that it has rows of, every request names it, and answers of another one are refused. When
it is gone the copy begins again, with nothing, as the first answer of the new one comes.

What lies behind an answer can be asked for while that is put on the disk.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from indexer.copying.messages import CopyChunk, CopyRequest, read_chunk
from indexer.store.copies import EXPORT_TABLES, StoreFilling
from indexer.store.interface import Row, StoreDamagedError
from keytide.catalog.copies import CopyRecord

log = logging.getLogger(__name__)


class CopyAnswer(NamedTuple):
    """What a source has answered, found to be what was asked for.

    Attributes:
        fresh: the request named no generation: the copy begins with this.
    """

    chunk: CopyChunk
    rows: list[Row]
    fresh: bool

    def behind(self, request: CopyRequest) -> CopyRequest | None:
        """What to ask for next, `request` having been answered with this; None when there is no more."""
        chunk = self.chunk
        if chunk.done:
            return None
        return msgspec.structs.replace(
            request, generation=chunk.generation, table=chunk.table, after=self.rows[-1][0]
        )


def read_answer(request: CopyRequest, body: bytes) -> CopyAnswer:
    """
    Raises:
        ChunkRefusedError: it is not the answer.
    """
    chunk, rows = read_chunk(request, body)
    return CopyAnswer(chunk, rows, fresh=not request.generation)


class CopyTarget:
    """One copy. Asked by one thread at a time; goes on with what the filling has.

    Args:
        record: the copy; another one of the same id may name another source.
        filling: the store; closed by the caller.

    Attributes:
        rows: that it has.
        rows_total: that the source has; 0 before the first answer.
    """

    def __init__(self, record: CopyRecord, filling: StoreFilling) -> None:
        self.rows, self.rows_total = filling.rows, 0
        self._record = record
        self._filling = filling
        self._begin_again = False

    @property
    def done(self) -> bool:
        """Whether all is there, and the filling is finished."""
        return self._filling.finished

    def request(self) -> CopyRequest:
        """What to ask now."""
        record, filling = self._record, self._filling
        if self._begin_again or not filling.generation:
            return CopyRequest(record.id, record.index, record.slice, "", EXPORT_TABLES[0], b"")
        table, after = filling.place
        return CopyRequest(record.id, record.index, record.slice, filling.generation, table, after)

    def gone(self) -> None:
        """The source says that the generation is gone."""
        log.info("copy %s begins again: what it has %d rows of is gone", self._record.id, self.rows)
        self._begin_again = True

    def take(self, body: bytes) -> None:
        """The answer to `request`. Any other is refused, and changes nothing.

        Raises:
            ChunkRefusedError: it is not the answer.
            RetryableError, StoreDamagedError: as `put`.
        """
        self.put(read_answer(self.request(), body))

    def put(self, answer: CopyAnswer) -> None:
        """Put the answer to `request` on the disk, or to what lies `behind` the one before.

        Raises:
            RetryableError: `disk-full`. Nothing has changed.
            StoreDamagedError: all rows are there, and are not those that were counted; it begins again, also
                when another process goes on with it.
        """
        chunk, filling = answer.chunk, self._filling
        if answer.fresh:
            filling.begin(chunk.generation)
            self._begin_again, self.rows = False, 0
        self.rows_total = chunk.rows_total
        if chunk.done:
            self._finish(chunk)
            return
        filling.put(chunk.table, answer.rows)
        self.rows = filling.rows

    def _finish(self, chunk: CopyChunk) -> None:
        try:
            self._filling.finish(chunk.applied, chunk.counts)
        except StoreDamagedError:
            self._filling.begin("")
            raise
