"""Streams: a scan's rows in one answer, however many, in a form of the reader's choice (`ndjson`, `arrow`).

Theory of operation
===================
All rows come from one snapshot. It is held while the stream runs, renewed in time even if the reader is slow,
and given back when the stream ends, however that happens: a reader that goes away is noticed at once
(`http.disconnect`), one that takes nothing for `scan.stream_stall_s` is let go.

What the reader has not taken holds up everything before it (`sending`), and slices are read one round
ahead and no further (`merge`). So a stream costs the same memory whatever it is asked for and
however slowly it is read. How many run at once is limited.

Errors before the first row are answered as those of other scans. Later ones end the stream: the form's own
last word, then the connection is broken off, so that no client takes a part for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from indexer.scan.gather.holds import SnapshotHold
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.service import UNREADABLE, page_bounds
from indexer.scan.peer.messages import TIP
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.selection import Selection, Stamp
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import ColumnType, ScanRequest
from indexer.scan.stream import arrow, ndjson
from indexer.scan.stream.block import EntryBlock
from indexer.scan.stream.merge import BlockReader
from keytide.errors import CallerError, RetryableError

RENEWALS: Final = 3
"""How often a hold is renewed within its time while the reader is slow."""


class TooManyStreamsError(RetryableError):
    """The node runs as many streams as it may."""

    problem_type = "too-many-streams"
    status = 503


class StreamFormat(Protocol):
    """How a stream is written."""

    @property
    def media_type(self) -> str: ...

    def begin(self) -> bytes:
        """What comes before the first row."""
        ...

    def rows(self, block: EntryBlock) -> bytes:
        """The rows of a block. Any thread."""
        ...

    def end(self) -> bytes:
        """What says that the stream is whole."""
        ...

    def problem(self, document: dict[str, Any]) -> bytes:
        """The last word of one that is not."""
        ...


class RowStream:
    """An open stream: its first rows are read. Close it in any case.

    Attributes:
        head: the moment, as headers.
        media_type: of the form.
        rows: how many were given so far.
    """

    def __init__(self, shared: Reads, reader: BlockReader, form: StreamFormat, head: dict[str, str]) -> None:
        self.form = form
        self.head = head
        self.media_type = form.media_type
        self.rows = 0
        self._shared = shared
        self._reader = reader
        self._renewing = asyncio.ensure_future(self._renew())

    async def next(self) -> bytes | None:
        """The next rows as bytes; None when all were given.

        Raises:
            KeytideError: it cannot go on.
        """
        block = await self._reader.next()
        if block is None:
            return None
        try:
            made = await self._shared.local.threads.run(self.form.rows, block)
        except UNREADABLE:
            await self._reader.examine(block)
            raise
        self.rows += block.entries.rows
        return made

    async def close(self) -> None:
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        await self._reader.close()

    async def _renew(self) -> None:
        """Keep the snapshot while the reader is slow. That it is gone is told by the next read of it."""
        held = self._reader.held
        pause = held.lease_ms / 1000 / RENEWALS
        while held.hold:
            await asyncio.sleep(pause)
            self._shared.holds.renew(held, {}, pause)


class OpenLimit:
    """Counts what a node has open of one kind, and lets no more be opened than it may have.

    Args:
        kind: as the setting `scan.max_<kind>` calls it.
        most: so many at once.
        too_many: raised for one more.
    """

    def __init__(self, node: str, kind: str, most: int, too_many: type[RetryableError]) -> None:
        self._node = node
        self._kind = kind
        self._most = most
        self._too_many = too_many
        self._open = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """One is being opened; it counts until `closed` is called, or this is left with an error."""
        if self._open >= self._most:
            raise self._too_many(
                f"node {self._node} runs {self._open} {self._kind}",
                next_step=f"try again, ask another node, or raise scan.max_{self._kind}",
            )
        self._open += 1
        try:
            yield
        except BaseException:
            self.closed()
            raise

    def closed(self) -> None:
        """One was closed."""
        self._open -= 1


class Streams:
    """Opens the streams of one node.

    Args:
        shared: of its endpoint.

    Attributes:
        limit: of those that are open.
    """

    def __init__(self, shared: Reads) -> None:
        self._shared = shared
        self.limit = OpenLimit(
            shared.view.node_id, "streams", shared.settings.max_streams, TooManyStreamsError
        )

    async def open(self, name: str, request: ScanRequest, media_type: str, gone: Gone) -> RowStream:
        """Open a stream; it counts as open until `limit.closed` is called.

        Raises:
            TooManyStreamsError: one too many.
            KeytideError, ReaderGoneError: as a scan's.
        """
        _check(request, media_type)
        with self.limit.one_more():
            return await self._opened(name, request, media_type, gone)

    async def _opened(self, name: str, request: ScanRequest, media_type: str, gone: Gone) -> RowStream:
        shared = self._shared
        index = await shared.ready_index(name, request, gone)
        seen = shared.session(request)
        selection = await shared.selected(request, index, distinct=request.distinct, reverse=request.reverse)
        page_bounds(None, request.offset, shared.settings)
        held = await shared.open(index, selection, request, seen, gone)
        reader = self._reader(held, index, selection, request)
        try:
            await reader.begin()
            form = await self._form(reader, index, selection, request, media_type)
            stamp = reader.stamp
            head = shared.head(stamp, shared.seen_too(seen, index, stamp))
        except BaseException:
            await asyncio.shield(reader.close())
            raise
        return RowStream(shared, reader, form, headers_of(head))

    def _reader(
        self, held: SnapshotHold, index: Scannable, selection: Selection, request: ScanRequest
    ) -> BlockReader:
        shared = self._shared
        return BlockReader(
            shared,
            held,
            selection,
            shared.timeout_s(request),
            shared.settings.stream_block_bytes,
            include=index.shape.includes and (request.columns is None or "include" in request.columns),
            reverse=request.reverse,
            ordered=request.order == "key",
            limit=request.limit,
            offset=request.offset,
        )

    async def _form(
        self,
        reader: BlockReader,
        index: Scannable,
        selection: Selection,
        request: ScanRequest,
        media_type: str,
    ) -> StreamFormat:
        columns = ["key"] if request.distinct else request.columns
        if media_type == ndjson.MEDIA_TYPE:
            return ndjson.NdjsonForm(index.shape, columns)
        record = self._shared.view.catalog().index(index.id)
        if record is None:
            raise RetryableError(
                f"index {index.name} is not there any more",
                problem_type="index-not-ready",
                next_step="try again",
            )
        given: dict[str, ColumnType] = request.types or {}
        typed = await arrow.infer(
            self._shared,
            reader,
            record.definition,
            selection,
            given,
            columns,
            self._shared.timeout_s(request),
        )
        return arrow.ArrowForm(index.shape, typed, _metadata(index, reader.stamp))


def headers_of(head: dict[str, Any]) -> dict[str, str]:
    """The moment of a stream as headers: what answers have as members."""
    named = {
        "Keytide-Snapshot": head["snapshot"],
        "Keytide-Timestamp": bytes(head["timestamp"]).decode(),
        "Keytide-Session": head["session"],
        "Keytide-Staleness-Ms": head["staleness_ms"],
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def _metadata(index: Scannable, stamp: Stamp) -> dict[str, str]:
    """Of the schema."""
    snapshot = {} if stamp.number == TIP else {"keytide.snapshot": str(stamp.number)}
    return {"keytide.index": index.name, **snapshot}


def _check(request: ScanRequest, media_type: str) -> None:
    """Raise unless a stream can do what is asked."""
    wrong = ""
    if request.page is not None:
        wrong = "a stream has no pages: leave out `page`"
    elif request.validate:
        wrong = "a stream cannot be validated: ask for application/json"
    elif request.explain:
        wrong = "a stream explains nothing: ask for application/json"
    elif request.types and media_type != arrow.MEDIA_TYPE:
        wrong = "`types` are of Arrow's columns"
    elif request.order == "any" and (request.offset or request.limit is not None):
        wrong = "`limit` and `offset` need rows in key order"
    if wrong:
        raise CallerError(wrong, status=422, problem_type="invalid-request", next_step="see docs/stream.md")
