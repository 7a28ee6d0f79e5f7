"""The node that fills a copy: what it asks next, and what becomes of the answer. Pure but for the store that
it fills.

Rows of two commits never come together. A filling has the generation that it has rows of, every request
names it, and answers of another one are refused. When it is gone the copy begins again, with nothing, as the
first answer of the new one comes.
"""

from __future__ import annotations

import logging

from indexer.copying.messages import CopyChunk, CopyRequest, read_chunk
from indexer.store.copies import EXPORT_TABLES, StoreFilling
from indexer.store.interface import StoreDamagedError
from keytide.catalog.copies import CopyRecord

log = logging.getLogger(__name__)


class CopyTarget:
    """One copy. Asked by one thread; goes on with what the filling has.

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
            RetryableError: `disk-full`. Nothing has changed.
            StoreDamagedError: all rows are there, and are not those that were counted; it begins again.
        """
        request = self.request()
        chunk, rows = read_chunk(request, body)
        if not request.generation:
            self._filling.begin(chunk.generation)
            self._begin_again, self.rows = False, 0
        self.rows_total = chunk.rows_total
        if chunk.done:
            self._finish(chunk)
            return
        self._filling.put(chunk.table, rows)
        self.rows = self._filling.rows

    def _finish(self, chunk: CopyChunk) -> None:
        try:
            self._filling.finish(chunk.applied, chunk.counts)
        except StoreDamagedError:
            self._begin_again = True
            raise
