"""Streams in Arrow's IPC format: a schema, record batches, the end mark.

A stream that cannot be finished has no end mark. Its last message is then a batch without rows whose metadata
has the problem under `keytide.error`, for readers that look there; all others see a stream that breaks off.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import pyarrow as pa

from indexer.scan.gather.gather import Gathered, gather
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Target
from indexer.scan.plan.selection import Selection, Shape
from indexer.scan.request.request import ColumnType
from indexer.scan.shape.arrow_columns import BatchMaker
from indexer.scan.shape.arrow_schema import ArrowColumn, columns_of, typed
from indexer.scan.stream.block import EntryBlock
from indexer.scan.stream.merge import BlockReader
from keytide.collation import Span, Value, decode_key
from keytide.collation.layout import TAG_NULL
from keytide.definition.index import IndexDefinition
from keytide.model.entry import unpack_value

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
ERROR_KEY: Final = "keytide.error"
"""Metadata of the last message of a stream that broke."""
SAMPLED: Final = 200
"""Rows of each slice that types are inferred from."""

_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_VALUES_ASCENDING: Final = Span(bytes((TAG_NULL + 1,)), None)
"""Entries whose leading part is neither missing nor null; the tags of all others are above."""
_VALUES_DESCENDING: Final = Span(b"", bytes((255 - TAG_NULL,)))

_decode_include = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class ArrowForm:
    """Writes rows as record batches.

    Args:
        shape: of the index.
        columns: with their types.
        metadata: of the schema.
    """

    media_type: Final = MEDIA_TYPE

    def __init__(self, shape: Shape, columns: Sequence[ArrowColumn], metadata: dict[str, str]) -> None:
        self._maker = BatchMaker(shape, columns, metadata)

    def begin(self) -> bytes:
        return memoryview(self._maker.schema.serialize()).tobytes()

    def rows(self, block: EntryBlock) -> bytes:
        """The batch of a block. Raises as `BatchMaker.batch`."""
        return memoryview(self._maker.batch(block.entries).serialize()).tobytes()

    def end(self) -> bytes:
        return _END

    def problem(self, document: dict[str, Any]) -> bytes:
        """The last message of a stream that cannot go on: an empty batch with the problem as metadata."""
        sink = io.BytesIO()
        writer = pa.ipc.new_stream(sink, self._maker.schema)
        empty = pa.RecordBatch.from_pylist([], self._maker.schema)
        start = len(self.begin())
        writer.write_batch(empty, custom_metadata={ERROR_KEY: _encode(document).decode()})
        return sink.getvalue()[start:]


async def infer(
    shared: Reads,
    reader: BlockReader,
    definition: IndexDefinition,
    selection: Selection,
    given: Mapping[str, ColumnType],
    wanted: Sequence[str] | None,
    timeout_s: float,
) -> list[ArrowColumn]:
    """The columns of a stream with their types, once the first round of its reader has come.

    Args:
        given: types that the reader of the stream has named.
        wanted: as a scan's `columns`.

    Raises:
        CallerError (422): a type for a column that there is not.
        KeytideError: as `HoldRegistry.read`.
    """
    columns = columns_of(definition, wanted)
    missing = {column.name for column in columns} - set(given) - {"id"}
    if not missing:
        return typed(columns, definition, given, [], [])
    rows = [_decoded(definition, key, value) for key, value in reader.sample(SAMPLED)]
    ends: list[Value] = []
    if definition.structure.ordered and any(
        column.part == 0 and column.name in missing for column in columns
    ):
        ends = await _ends(shared, reader, definition, selection, timeout_s)
    return typed(columns, definition, given, rows, ends)


async def _ends(
    shared: Reads, reader: BlockReader, definition: IndexDefinition, selection: Selection, timeout_s: float
) -> list[Value]:
    """The leading key part of the first and the last entry that have a value there."""
    descending = bool(definition.descending) and definition.descending[0]
    inside = _VALUES_DESCENDING if descending else _VALUES_ASCENDING
    spans = [one for span in selection.spans if not (one := _both(span, inside)).empty]
    narrowed = replace(selection, spans=spans)
    found: list[Value] = []
    if not spans or not selection.slices:
        return found
    for reverse in (False, True):

        async def work(target: Target, reverse: bool = reverse) -> Gathered:
            return await gather(target, shared.nodes, b"", reverse, 1)

        page = (await shared.holds.read(reader.held, narrowed, timeout_s, work)).gathered
        found += [_decoded(definition, key, value)[0][0] for key, value in page.entries]
    return found


def _decoded(definition: IndexDefinition, key: bytes, value: bytes) -> tuple[list[Value], dict[str, Any]]:
    """An entry's key parts and included columns."""
    key, value = definition.structure.in_full(key, value)
    forms, include = unpack_value(value)
    parts, _ = decode_key(key, len(definition.keys), definition.descending, forms)
    return parts, _decode_include(include) if include else {}


def _both(one: Span, other: Span) -> Span:
    """What lies in two spans."""
    highs = [high for high in (one.high, other.high) if high is not None]
    return Span(max(one.low, other.low), min(highs, default=None))
