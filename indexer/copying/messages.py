"""What the node that fills a copy of a slice asks the one that has the slice, as MessagePack over HTTP. Pure.

A request names the copy, the generation (the commit that it has rows of, see `StoreExport`), and the last row
that it has. Its answer is the rows behind. The checksum covers all that either of them names, so that an
answer to another request, one that came late or twice, is never taken for the one that is waited for (R40).
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter, lt
from typing import Annotated, Final

import msgspec
import xxhash

from indexer.scan.peer.messages import MalformedRequestError
from indexer.store.copies import EXPORT_TABLES, Table
from indexer.store.interface import Applied, Counts, Row
from keytide.errors import UNDECODABLE, RetryableError

COPY_PATH: Final = "/internal/v1/copy"

_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Key = Annotated[bytes, msgspec.Meta(min_length=1, max_length=511)]
_After = Annotated[bytes, msgspec.Meta(max_length=511)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class CopyUnknownError(RetryableError):
    """A node is asked for a copy that its dictionary does not have, or not with this slice and source: it has
    not read so far, or the copy was given up."""

    problem_type = "copy-unknown"


class GenerationGoneError(RetryableError):
    """The commit that a copy has rows of cannot be read on: the slice has made another one durable, was
    rolled back or opened anew, and nobody asked for a while. The copy begins again."""

    problem_type = "generation-gone"


class ChunkRefusedError(RetryableError):
    """An answer is not what was asked for, or not what was sent. Nothing of it was taken; it is asked for
    again."""

    problem_type = "chunk-refused"


class CopyRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next rows of a store, for a copy of it.

    Attributes:
        copy: id of the `CopyRecord`.
        index: id.
        generation: that the copy has rows of; "" when it has none, and begins with whichever there is.
        table, after: of the last row that it has; b"": none of that table.
        most_bytes: of keys and values that are wanted, about; the source gives less where that is too much.
            0: not said. Left out of checksums: sources of the release before do not know of it.
    """

    copy: _Name
    index: _Name
    slice: _Count
    generation: _Name
    table: Table
    after: _After
    most_bytes: _Count = 0


class CopyChunk(msgspec.Struct, frozen=True):
    """The rows behind.

    Attributes:
        generation: of the commit that they are of.
        applied, counts: the state of that commit.
        rows_total: rows of all its tables.
        table: that they are of: the one that was asked for, or when that has no more, a later one.
        rows: packed (`pack_rows`), in key order.
        done: there are no rows behind, of no table; and none here.
        checksum: of the request and of all of this.
    """

    generation: str
    applied: Applied
    counts: Counts
    rows_total: int
    table: Table
    rows: bytes
    done: bool
    checksum: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_request_decoder: Final = msgspec.msgpack.Decoder(CopyRequest)
_chunk_decoder: Final = msgspec.msgpack.Decoder(CopyChunk)
_rows_decoder: Final = msgspec.msgpack.Decoder(list[tuple[_Key, bytes]])
_key = itemgetter(0)


def pack_request(request: CopyRequest) -> bytes:
    return _encode(request)


def read_request(body: bytes) -> CopyRequest:
    """What another node asks.

    Raises:
        MalformedRequestError: it is no such request.
    """
    try:
        return _request_decoder.decode(body)
    except UNDECODABLE as error:
        raise MalformedRequestError(f"not a request of another node: {error}") from error


def pack_rows(rows: list[Row]) -> bytes:
    return _encode(rows)


def pack_chunk(request: CopyRequest, chunk: CopyChunk) -> bytes:
    """The answer to a request, with its checksum."""
    return _encode(msgspec.structs.replace(chunk, checksum=_checksum(request, chunk)))


def read_chunk(request: CopyRequest, body: bytes) -> tuple[CopyChunk, list[Row]]:
    """The answer to a request, and its rows.

    Raises:
        ChunkRefusedError: it is none, or its rows are not behind those that there are.
    """
    try:
        chunk = _chunk_decoder.decode(body)
    except UNDECODABLE as error:
        raise ChunkRefusedError(f"not the answer of a node: {error}") from error
    if chunk.checksum != _checksum(request, chunk):
        raise ChunkRefusedError(f"not what was sent, or to another request than {request}")
    if request.generation not in ("", chunk.generation) or not chunk.generation:
        raise ChunkRefusedError(f"rows of {chunk.generation!r}, asked for {request.generation!r}")
    try:
        rows = _rows_decoder.decode(chunk.rows)
    except UNDECODABLE as error:
        raise ChunkRefusedError(f"not the rows of a store: {error}") from error
    _check_order(request, chunk, rows)
    return chunk, rows


def _check_order(request: CopyRequest, chunk: CopyChunk, rows: list[Row]) -> None:
    if chunk.done == bool(rows):
        raise ChunkRefusedError("no rows, and yet there are more; or the last, and yet there are some")
    further = EXPORT_TABLES.index(chunk.table) - EXPORT_TABLES.index(request.table)
    keys = list(map(_key, rows))
    behind = further > 0 or (further == 0 and (not keys or keys[0] > request.after))
    if not behind or not all(map(lt, keys, islice(keys, 1, None))):
        raise ChunkRefusedError(f"rows of {chunk.table} are not in order, behind {request.table}")


def _checksum(request: CopyRequest, chunk: CopyChunk) -> int:
    asked = msgspec.structs.replace(request, most_bytes=0)
    digest = xxhash.xxh3_64(_encode((asked, msgspec.structs.replace(chunk, rows=b"", checksum=0))))
    digest.update(chunk.rows)
    return digest.intdigest()
