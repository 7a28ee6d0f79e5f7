"""The node that has a slice: answers those who fill copies of it, from exports of its store. Pure: the caller
asks it in one thread after the other, and says what time it is.

An export is opened by the first request for a copy, and kept for the next ones: every answer is of one
commit. It keeps pages of the base from being used again, so it is closed when its copy is no longer wanted,
or when nobody has asked for it for a while. Not with the last row: whoever asked may not have got it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from indexer.copying.messages import (
    CopyChunk,
    CopyRequest,
    CopyUnknownError,
    GenerationGoneError,
    pack_chunk,
    pack_rows,
)
from indexer.store.copies import EXPORT_TABLES, Table
from indexer.store.interface import Row, StoreExport
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.history import History
from keytide.errors import RetryableError

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Keys and values of an answer, about. Packing as many takes a millisecond or two, in which nobody else of
the process gets on; and each answer takes as long on its way through both processes, whatever its size."""
UNWISHED_BYTES: Final = 512 * 1024
"""For who does not say how much: targets of the release before, which rest after each answer by their rate,
and ask again before their export is closed."""
IDLE_MS: Final = 60_000
"""An export that nobody asks for is kept for so long: a target that is started again is back by then."""
MOST_EXPORTS: Final = 4
"""At once; twice what the leader begins of one node."""

Export = Callable[[str, int], StoreExport | None]
"""(index id, slice) -> what its store has made durable, None when it is not open here."""


@dataclass(slots=True)
class _Open:
    """An export of one copy, and when it was asked for last."""

    export: StoreExport
    asked_at: int


class CopySources:
    """Answers for all slices of this node. Not safe to use from several threads at once.

    Args:
        catalog: the dictionary as this node has read it.
        node_id: of this node.
    """

    def __init__(self, export: Export, catalog: Callable[[], Catalog], node_id: str) -> None:
        self._export = export
        self._catalog = catalog
        self._node_id = node_id
        self._open: dict[str, _Open] = {}

    @property
    def exports(self) -> list[str]:
        """The copies that there is an export for, by id."""
        return sorted(self._open)

    def answer(self, request: CopyRequest, now: int) -> bytes:
        """The next rows, packed. Blocks while they are read.

        Args:
            now: milliseconds.

        Raises:
            CopyUnknownError: the dictionary names no such copy with this node as its source. It may not have
                been read so far: no byte is given before, for what the copy needs of the slice's queue is
                kept from its record on.
            GenerationGoneError: the copy must begin again.
            RetryableError: `index-not-ready`, the slice is not open here, or being built; `copies-busy`.
            StoreDamagedError: the store is not what was written.
        """
        self.expire(now)
        record = self._catalog().copy_record(request.copy)
        if record is None or not self._is_source(record, request):
            raise CopyUnknownError(
                f"node {self._node_id} knows of no copy {request.copy!r} of slice {request.slice} of "
                f"{request.index} that is filled from it",
                next_step="it is asked again; the node may not have read so far",
            )
        opened = self._open.get(request.copy) or self._begin(record, now)
        opened.asked_at = now
        export = opened.export
        if request.generation not in ("", export.generation):
            self._close(request.copy)
            raise GenerationGoneError(f"copy {request.copy} has rows of {request.generation}, which is gone")
        try:
            table, rows = _next(export, request)
        except BaseException:
            self._close(request.copy)  # closed by its store, or damaged
            raise
        packed = pack_rows(rows)
        total = export.rows_total
        chunk = CopyChunk(
            export.generation, export.applied, export.counts, total, table, packed, done=not rows
        )
        return pack_chunk(request, chunk)

    def expire(self, now: int) -> None:
        """Close what nobody wants any more, and what would have to be undone at once: exports of a state that
        a rollback has taken back."""
        catalog = self._catalog()
        for id_, opened in list(self._open.items()):
            record = catalog.copy_record(id_)
            idle = now - opened.asked_at >= IDLE_MS
            if (
                idle
                or record is None
                or record.source != self._node_id
                or _void(record, opened.export, catalog)
            ):
                self._close(id_)

    def close(self) -> None:
        """Close all."""
        for id_ in list(self._open):
            self._close(id_)

    def _is_source(self, record: CopyRecord, request: CopyRequest) -> bool:
        named = (record.index, record.slice, record.source)
        return named == (request.index, request.slice, self._node_id)

    def _begin(self, record: CopyRecord, now: int) -> _Open:
        if len(self._open) >= MOST_EXPORTS:
            raise RetryableError(
                f"node {self._node_id} gives {', '.join(self.exports)} already", problem_type="copies-busy"
            )
        export = self._export(record.index, record.slice)
        if export is None or export.applied.building or _void(record, export, self._catalog()):
            if export is not None:
                export.close()
            raise RetryableError(
                f"slice {record.slice} of {record.index} is not open on node {self._node_id}, is being built "
                "or rolled back",
                problem_type="index-not-ready",
            )
        log.info("slice %s/%d is copied to node %s", record.index, record.slice, record.node)
        opened = self._open[record.id] = _Open(export, now)
        return opened

    def _close(self, id_: str) -> None:
        self._open.pop(id_).export.close()


def _void(record: CopyRecord, export: StoreExport, catalog: Catalog) -> bool:
    index = catalog.index(record.index)
    if index is None:
        return True
    history = History.of(catalog, index.keyspace)
    return not history.holds(export.applied.timestamp, export.applied.incarnation)


def _next(export: StoreExport, request: CopyRequest) -> tuple[Table, list[Row]]:
    """The first rows behind a place: of its table, or of the next one that has any."""
    after, table = request.after, request.table
    most_bytes = min(request.most_bytes or UNWISHED_BYTES, CHUNK_BYTES)
    for table in EXPORT_TABLES[EXPORT_TABLES.index(request.table) :]:
        if rows := export.rows(table, after, most_bytes):
            return table, rows
        after = b""
    return table, []
