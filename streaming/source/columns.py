"""Columns of an index as columns of a DataFrame, and back.

Theory of operation
===================
Nodes give an index as an Arrow stream: a column for each key part, the document id, each included column.
Their types are what the reader names, or else inferred from some rows; what does not fit one type is JSON
text. A DataFrame has the same columns: text and JSON are strings, bigint, double and boolean what they are.

With `.schema(...)` a DataFrame has the columns that are named there, in that order. Of columns that were
inferred as JSON, numbers or booleans a string is the JSON text; everything else is asked for by its own type,
and a value that does not fit it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from keytide.client.protocol.options import Column as Group
from streaming.source.core.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_SPARK: Final[Mapping[str, type[DataType]]] = {
    "text": StringType,
    "json": StringType,
    "bigint": LongType,
    "double": DoubleType,
    "boolean": BooleanType,
}
_ASKED: Final[Mapping[type[DataType], str]] = {
    LongType: "bigint",
    IntegerType: "bigint",
    DoubleType: "double",
    BooleanType: "boolean",
}
GROUPS: Final[tuple[Group, ...]] = ("key", "id", "include")
_ARROW: Final = {"string": "text", "int64": "bigint", "double": "double", "bool": "boolean"}
"""Arrow's names of the types of a stream's columns."""


@dataclass(frozen=True)
class IndexColumn:
    """A column of an index.

    Attributes:
        kind: `text`, `bigint`, `double`, `boolean`, `json`.
        group: which of a scan's `columns` it belongs to: `key`, `id`, `include`.
        part: which key part it is, None when it is none.
    """

    name: str
    kind: str
    group: str
    part: int | None = None


def columns_of(schema: pa.Schema) -> list[IndexColumn]:
    """The columns of a stream."""
    found = []
    for field in schema:
        told = field.metadata or {}
        kind = "json" if told.get(b"keytide.type") == b"json" else _ARROW[str(field.type)]
        part = told.get(b"keytide.part")
        group = told[b"keytide.column"].decode()
        found.append(IndexColumn(field.name, kind, group, None if part is None else int(part)))
    return found


def key_names(columns: Sequence[IndexColumn]) -> list[str]:
    """Names of the key parts, in order."""
    parts = {column.part: column.name for column in columns if column.part is not None}
    return [parts[part] for part in sorted(parts)]


def struct_of(columns: Sequence[IndexColumn]) -> StructType:
    """The columns as a DataFrame's, all of them nullable but the id."""
    return StructType([StructField(c.name, _SPARK[c.kind](), c.group != "id") for c in columns])


def chosen(columns: Sequence[IndexColumn], schema: StructType) -> list[IndexColumn]:
    """The columns of a DataFrame's schema, with the types to ask for them.

    Raises:
        OptionError: the index has no such column, or columns have no such type.
    """
    by_name = {column.name: column for column in columns}
    found = []
    for field in schema.fields:
        column = by_name.get(field.name)
        if column is None:
            raise OptionError(f"the index has no column {field.name}; it has {', '.join(by_name)}")
        found.append(IndexColumn(column.name, _kind(column, field.dataType), column.group, column.part))
    return found


def groups_of(columns: Sequence[IndexColumn]) -> list[Group]:
    """The least that a scan must give for some columns, as its member `columns`."""
    groups: list[Group] = [group for group in GROUPS if any(c.group == group for c in columns)]
    return groups or ["id"]


def arranged(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """A batch with the columns of a DataFrame's schema, in its order.

    Raises:
        OptionError: an integer that its column has no room for.
    """
    import pyarrow as pa

    arrays = []
    for field in schema.fields:
        array = batch.column(field.name)
        if isinstance(field.dataType, IntegerType):
            try:
                array = array.cast(pa.int32())
            except pa.ArrowInvalid as error:
                raise OptionError(f"column {field.name}: {error}; read it as bigint") from error
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=schema.fieldNames())


def types_of(columns: Sequence[IndexColumn]) -> dict[str, Any]:
    """The types of columns as a scan's member `types`."""
    return {column.name: column.kind for column in columns if column.group != "id"}


def _kind(column: IndexColumn, wanted: DataType) -> str:
    if isinstance(wanted, StringType):
        return "text" if column.kind == "text" else "json"
    kind = _ASKED.get(type(wanted))
    if kind is None or column.group == "id":
        known = "string" if column.group == "id" else "string, bigint, int, double and boolean"
        raise OptionError(
            f"column {column.name} cannot be {wanted.simpleString()}: read it as {known}, and cast it"
        )
    return kind
