"""Arrow streams, a chunk at a time, and tables for people. No I/O.

Theory of operation
===================
PyArrow reads a stream from a file; a client that waits in its own way cannot give it one. So the stream is
cut into its messages here (Arrow's "encapsulated message format": a marker, the size of the header, the
header, and a body whose length is a field of the header), and PyArrow reads each message from memory.

A stream is whole only with its end mark: a connection that breaks off never passes for a short result. The
last message of a stream that a node could not finish is a batch without rows, whose metadata has the problem.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from keytide.client.protocol.answers import MisuseError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_MARKER: Final = b"\xff\xff\xff\xff"
_BODY_LENGTH: Final = 3
"""Position of `bodyLength` in the fields of Arrow's `Message` table."""
_MAX_HEADER: Final = 64 << 20
_ERROR: Final = b"keytide.error"
"""In the metadata of such a batch."""
_END: Final = _MARKER + bytes(4)
_EXACT: Final = 2**53
"""Integers up to this are doubles."""
JSON_MARK: Final = (b"keytide.type", b"json")
"""In the metadata of a field whose values are JSON texts."""


class ArrowParts:
    """From chunks to record batches.

    Attributes:
        schema: None before it has come.
        complete: whether the end mark has come.
        problem: why it will not come, as a problem document, if the node said so.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._head = b""
        self.schema: pa.Schema | None = None
        self.complete = False
        self.problem: dict[str, Any] | None = None

    def feed(self, chunk: bytes) -> list[pa.RecordBatch]:
        """The batches that a chunk completes.

        Raises:
            ValueError: the bytes are no Arrow stream.
        """
        import pyarrow as pa

        self._rest += chunk
        batches = []
        while not self.complete and (size := self._message_size()) is not None:
            message = bytes(memoryview(self._rest)[:size])
            del self._rest[:size]
            try:
                if self.schema is None:
                    self._head, self.schema = message, pa.ipc.read_schema(pa.py_buffer(message))
                    continue
                batch = pa.ipc.read_record_batch(pa.py_buffer(message), self.schema)
                if batch.num_rows:
                    batches.append(batch)
                else:
                    self.problem = self.problem or self._told(message)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(str(error)) from error
        return batches

    def _told(self, message: bytes) -> dict[str, Any] | None:
        """The problem document in the metadata of a batch."""
        import pyarrow as pa

        reader = pa.ipc.open_stream(self._head + message + _END)
        metadata = reader.read_next_batch_with_custom_metadata().custom_metadata
        text = None if metadata is None else dict(metadata).get(_ERROR)
        document = None if text is None else json.loads(text)
        return document if isinstance(document, dict) else None

    def _message_size(self) -> int | None:
        """Bytes of the next message; None when not all of it is there, or the stream is over."""
        rest = self._rest
        if len(rest) < 8:
            return None
        if rest[:4] != _MARKER:
            raise ValueError("no marker where an Arrow message begins")
        header = int.from_bytes(rest[4:8], "little")
        if header == 0:
            self.complete = True
            return None
        if header > _MAX_HEADER:
            raise ValueError(f"an Arrow header of {header} bytes")
        if len(rest) < 8 + header:
            return None
        size = 8 + header + _body_length(memoryview(rest)[8 : 8 + header])
        return size if len(rest) >= size else None


def _body_length(header: memoryview) -> int:
    """`bodyLength` of a flatbuffer of Arrow's `Message` table; 0 where it is left out, as the default is."""
    root = int.from_bytes(header[:4], "little")
    fields = root - int.from_bytes(header[root : root + 4], "little", signed=True)
    slot = 4 + 2 * _BODY_LENGTH
    if not 0 <= fields < len(header) or slot >= int.from_bytes(header[fields : fields + 2], "little"):
        return 0
    at = int.from_bytes(header[fields + slot : fields + slot + 2], "little")
    return int.from_bytes(header[root + at : root + at + 8], "little") if at else 0


def frame_of(table: pa.Table) -> pd.DataFrame:
    """A table as a data frame; columns of JSON texts become the values that they stand for. Of a column of
    integers with nulls pandas makes doubles; where they may not be, it stays one of integers."""
    import pandas as pd
    import pyarrow.compute as pc

    frame = table.to_pandas()
    for field in table.schema:
        column = table.column(field.name)
        if (field.metadata or {}).get(JSON_MARK[0]) == JSON_MARK[1]:
            texts = column.to_pylist()
            frame[field.name] = _objects([None if text is None else json.loads(text) for text in texts])
        elif str(field.type) == "int64" and 0 < column.null_count < len(column):
            ends = pc.min_max(column).as_py()
            if max(-ends["min"], ends["max"]) > _EXACT:
                frame[field.name] = pd.array(column.to_pylist(), dtype="Int64")
    return frame


def _objects(values: Sequence[Any]) -> pd.Series:
    import pandas as pd

    return pd.Series(values, dtype="object")


def table_of_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows that came as JSON, as a table; a column that Arrow has no type for is JSON texts, marked so."""
    import pyarrow as pa

    if len(set(columns)) != len(columns):
        raise MisuseError(
            "two columns have the same name, which Arrow cannot tell apart",
            next_step="name them with AS",
        )
    fields, arrays = [], []
    for at, name in enumerate(columns):
        values = [row[at] for row in rows]
        metadata: Mapping[bytes, bytes] | None = None
        kinds = {type(value) for value in values if value is not None}
        try:
            array = pa.array(values)
            if pa.types.is_nested(array.type) or (bool in kinds and len(kinds) > 1):  # true is not 1.0
                raise pa.ArrowTypeError("no type holds them all")
        except (pa.ArrowException, OverflowError):
            texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            array, metadata = pa.array(texts, pa.string()), dict([JSON_MARK])
        fields.append(pa.field(name, array.type, metadata=metadata))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))
