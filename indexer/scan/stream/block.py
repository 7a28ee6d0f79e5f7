"""Blocks: what a slice gives to a stream, as a task (`indexer.scan.local.tasks`). Pure.

A block is bounded in rows and in bytes, whichever comes first, so that a stream's memory does not depend on
how large its rows are. Its keys and values are columns from the pages of the store on, and nearly always all
values are empty: then nothing is made of them.

Nodes of the release before ask for lists of keys and values (`RowBlock`), and answer so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from indexer.scan.local.cursor import search_slice
from indexer.scan.local.filtering import Filters
from indexer.scan.local.tasks import SliceWork
from indexer.scan.plan.selection import Shape, stretches
from indexer.view import DoubtfulReadError
from keytide.errors import UNDECODABLE, InvariantViolationError
from keytide.http.node_protocol import TRY_AGAIN, NodeUnavailableError
from keytide.model.byte_columns import ByteColumn, EntryColumns, ascending, joined_entries

TASK: Final = "block"
_EXAMINED: Final = 50_000
"""Entries that one block looks at, at most, when it filters or takes distinct keys."""


class BlockWanted(msgspec.Struct, frozen=True, array_like=True):
    """Arguments of the task; the rest is in the request.

    Attributes:
        bytes: of keys and values; a block has at least one row, and may be larger by its last one.
        include: whether included columns are wanted.
        columns: whether a `ColumnBlock` is understood.
    """

    bytes: int
    include: bool
    columns: bool = False


class RowBlock(msgspec.Struct, array_like=True):
    """A block as lists: `EntryBlock`, but with `values` that are empty when all of them are."""

    keys: list[bytes]
    values: list[bytes]
    more: bool = False
    reached: bytes = b""
    examined: int = 0


class ColumnBlock(msgspec.Struct, array_like=True):
    """A block as columns. Lengths are u32, little endian; of values there are none when all are empty."""

    key_lengths: bytes
    keys: bytes
    value_lengths: bytes
    values: bytes
    more: bool
    reached: bytes
    examined: int


@dataclass(slots=True)
class EntryBlock:
    """Entries of one slice, or of many merged.

    Attributes:
        entries: in the direction of the read.
        more: whether there may be further ones.
        reached: behind which key to go on.
        examined: entries that were looked at.
    """

    entries: EntryColumns
    more: bool = False
    reached: bytes = b""
    examined: int = 0


_filters = Filters()
_encode = msgspec.msgpack.Encoder().encode
encode_wanted = _encode
_decode_wanted = msgspec.msgpack.Decoder(BlockWanted).decode
_decode_columns = msgspec.msgpack.Decoder(ColumnBlock).decode
_decode_rows = msgspec.msgpack.Decoder(RowBlock).decode
_AS_COLUMNS: Final = bytes([0x90 | len(ColumnBlock.__struct_fields__)])
"""How an array of as many members as a `ColumnBlock` has begins in MessagePack."""


def encode_block(block: EntryBlock, *, columns: bool = True) -> bytes:
    """A block as bytes: as columns, or as lists."""
    keys, values = block.entries
    if not columns:
        listed = [] if values is None else values.items()
        return _encode(RowBlock(keys.items(), listed, block.more, block.reached, block.examined))
    return _encode(
        ColumnBlock(
            keys.lengths.astype("<u4").tobytes(),
            keys.whole.tobytes(),
            b"" if values is None else values.lengths.astype("<u4").tobytes(),
            b"" if values is None else values.whole.tobytes(),
            block.more,
            block.reached,
            block.examined,
        )
    )


def decode_block(data: bytes, node: str) -> EntryBlock:
    """A block of its bytes, however it was written.

    Raises:
        NodeUnavailableError: they are none; `node` has answered so.
    """
    try:
        if data[:1] == _AS_COLUMNS:
            found: ColumnBlock | RowBlock = _decode_columns(data)
        else:
            found = _decode_rows(data)
        return EntryBlock(_entries(found), found.more, found.reached, found.examined)
    except (*UNDECODABLE, ValueError) as error:
        raise NodeUnavailableError(
            f"node {node} answered with a block that cannot be read: {error}", node=node, next_step=TRY_AGAIN
        ) from error


def _entries(block: ColumnBlock | RowBlock) -> EntryColumns:
    """The entries of a block. Raises `ValueError` when its members do not go together."""
    values: ByteColumn | None = None
    if isinstance(block, RowBlock):
        keys = ByteColumn.of(block.keys)
        if block.values:
            values = ByteColumn.of(block.values)
    else:
        keys = _column(block.key_lengths, block.keys)
        if block.value_lengths or block.values:
            values = _column(block.value_lengths, block.values)
    if values is not None and values.rows != keys.rows:
        raise ValueError(f"{keys.rows} keys have {values.rows} values")
    return EntryColumns(keys, values)


def _column(lengths: bytes, data: bytes) -> ByteColumn:
    column = ByteColumn.packed(np.frombuffer(lengths, "<u4"), data)
    if column.size != len(data):
        raise ValueError(f"{column.rows} strings of {column.size} bytes are in {len(data)}")
    return column


def read_block(work: SliceWork) -> bytes:
    """The task: at most `request.paging.limit` entries behind `work.after`.

    Raises:
        DoubtfulReadError: what is stored cannot have been written.
    """
    wanted = _decode_wanted(work.request.shape.body)
    request = work.request
    shape = request.shape
    picks = shape.filter or shape.keys or shape.distinct
    block = _picked(work, wanted.bytes) if picks else _plain(work, wanted.bytes)
    if block.entries.values is not None and not wanted.include:
        values = list(map(work.definition.structure.without_columns, block.entries.values.items()))
        block.entries = EntryColumns(block.entries.keys, ByteColumn.of(values) if any(values) else None)
    if not ascending(block.entries.keys, reverse=request.span.reverse):
        raise DoubtfulReadError("entries are out of order")
    return encode_block(block, columns=wanted.columns)


def _plain(work: SliceWork, most: int) -> EntryBlock:
    """The next entries of the spans."""
    request, limit = work.request, work.request.paging.limit
    block = EntryBlock(EntryColumns.of([]))
    parts: list[EntryColumns] = []
    rows = size = 0
    spans = list(stretches(request.span, work.after))
    for part in work.snapshot.entry_columns(spans, request.span.reverse, limit):
        if size + part.size > most:
            part = part.part(0, _reaching(part, most - size))
        parts.append(part)
        rows += part.rows
        size += part.size
        work.pace.look()
        if rows and (rows >= limit or size >= most):
            last = next(one for one in reversed(parts) if one.rows)
            block.more, block.reached = True, last.keys.at(last.rows - 1)
            break
    block.entries, block.examined = joined_entries(parts), rows
    return block


def _reaching(part: EntryColumns, size: int) -> int:
    """How many rows of a part, which is larger, make up this size."""
    ends = part.keys.offsets[1:] - part.keys.offsets[0]
    if part.values is not None:
        ends = ends + (part.values.offsets[1:] - part.values.offsets[0])
    return min(part.rows, int(np.searchsorted(ends, size)) + 1)


def _picked(work: SliceWork, most: int) -> EntryBlock:
    """The next entries that pass the filter, or the first of each key."""
    definition, request = work.definition, work.request
    try:
        test = _filters.test(request.span.index, definition, request.shape)
        result = search_slice(
            work.snapshot, request, work.after, Shape.of(definition), test, _EXAMINED, work.pace, most
        )
    except (InvariantViolationError, UnicodeDecodeError) as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error
    return EntryBlock(EntryColumns.of(result.entries), result.more, result.reached, result.examined)
