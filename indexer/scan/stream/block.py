"""Blocks: what a slice gives to a stream, as a task (`indexer.scan.local.tasks`). Pure.

A block is bounded in rows and in bytes, whichever comes first, so that a stream's memory does not depend on
how large its rows are. Keys and values are lists of their own: nearly always all values are empty, and then
nothing is made of them.
"""

from __future__ import annotations

import operator
from typing import Final

import msgspec

from indexer.scan.local.cursor import search_slice
from indexer.scan.local.filtering import Filters
from indexer.scan.local.tasks import SliceWork
from indexer.scan.plan.selection import Shape, stretches
from indexer.view import DoubtfulReadError
from keytide.errors import InvariantViolationError

TASK: Final = "block"
_EXAMINED: Final = 50_000
"""Entries that one block looks at, at most, when it filters or takes distinct keys."""


class BlockWanted(msgspec.Struct, frozen=True, array_like=True):
    """Arguments of the task; the rest is in the request.

    Attributes:
        bytes: of keys and values; a block has at least one row, and may be larger by some rows.
        include: whether included columns are wanted.
    """

    bytes: int
    include: bool


class EntryBlock(msgspec.Struct, array_like=True):
    """Entries of one slice, or of many merged.

    Attributes:
        keys: entry keys, in the direction of the read.
        values: as many, or none when all of them are empty.
        more: whether there may be further ones.
        reached: behind which key to go on.
        examined: entries that were looked at.
    """

    keys: list[bytes]
    values: list[bytes]
    more: bool = False
    reached: bytes = b""
    examined: int = 0


_filters = Filters()
_encode = msgspec.msgpack.Encoder().encode
encode_wanted = _encode
_decode_wanted = msgspec.msgpack.Decoder(BlockWanted).decode
decode_block = msgspec.msgpack.Decoder(EntryBlock).decode


def read_block(work: SliceWork) -> bytes:
    """The task: at most `request.paging.limit` entries behind `work.after`.

    Raises:
        DoubtfulReadError: what is stored cannot have been written.
    """
    wanted = _decode_wanted(work.request.shape.body)
    request = work.request
    shape = request.shape
    picks = shape.filter or shape.keys or shape.distinct
    block = _picked(work) if picks else _plain(work, wanted.bytes)
    if not wanted.include:
        block.values = list(map(work.definition.structure.without_columns, block.values))
    if not any(block.values):
        block.values = []
    compare = operator.gt if request.span.reverse else operator.lt
    if not all(map(compare, block.keys, block.keys[1:])):
        raise DoubtfulReadError("entries are out of order")
    return _encode(block)


def _plain(work: SliceWork, most: int) -> EntryBlock:
    """The next entries of the spans."""
    request, limit = work.request, work.request.paging.limit
    block = EntryBlock([], [])
    size = 0
    spans = list(stretches(request.span, work.after))
    for rows in work.snapshot.rows_of(spans, request.span.reverse, limit):
        keys = [key for key, _ in rows]
        values = [value for _, value in rows]
        size += sum(map(len, keys))
        if any(values) or block.values:
            block.values = block.values or [b""] * len(block.keys)
            block.values += values
            size += sum(map(len, values))
        block.keys += keys
        work.pace.look()
        if len(block.keys) >= limit or size >= most:
            block.more, block.reached = True, block.keys[-1]
            break
    block.examined = len(block.keys)
    return block


def _picked(work: SliceWork) -> EntryBlock:
    """The next entries that pass the filter, or the first of each key."""
    definition, request = work.definition, work.request
    try:
        test = _filters.test(request.span.index, definition, request.shape)
        result = search_slice(
            work.snapshot, request, work.after, Shape.of(definition), test, _EXAMINED, work.pace
        )
    except (InvariantViolationError, UnicodeDecodeError) as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error
    keys, values = [key for key, _ in result.entries], [value for _, value in result.entries]
    return EntryBlock(keys, values, result.more, result.reached, result.examined)
