"""Entries to Arrow record batches. Pure.

Usual keys are taken apart by columns (`arrow_keys`), and columns made of their bytes: texts are the bytes of
the keys with everything else left out, numbers come from one view of them. A batch with an unusual key, or
with a key part as JSON text, is decoded row by row. Included columns are decoded by msgspec, all rows of a
batch in one call.

Nothing is squeezed into a column: what does not fit its type is a `TypeChangedError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.scan.plan.selection import Shape
from indexer.scan.request.request import ColumnType
from indexer.scan.shape.arrow_keys import (
    FALSE,
    NOTHING,
    NUMBER,
    TEXT,
    TRUE,
    UNUSUAL,
    KeyPartColumn,
    Split,
    split_keys,
)
from indexer.scan.shape.arrow_schema import INT64, ArrowColumn
from indexer.scan.shape.rows import encode
from keytide.collation import Missing, Value, decode_key
from keytide.errors import InvariantViolationError
from keytide.model.byte_columns import ByteColumn, Bytes, EntryColumns, Flags, Places, views
from keytide.model.entry import unpack_value

JSON_MARK: Final = {"keytide.type": "json"}
"""Metadata of a column that holds JSON text."""

_ARROW: Final[dict[ColumnType, pa.DataType]] = {
    "text": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "json": pa.string(),
}
_FIELD: Final[dict[ColumnType, Any]] = {
    "text": str | None,
    "bigint": int | float | None,
    "double": int | float | None,
    "boolean": bool | None,
    "json": msgspec.Raw,
}
"""How msgspec reads an included column."""
_NO_RAW: Final = msgspec.Raw(b"")


def schema_of(columns: Sequence[ArrowColumn], metadata: dict[str, str]) -> pa.Schema:
    """The Arrow schema; which columns are JSON text stands in its metadata and in theirs, and in theirs which
    of `columns` each belongs to."""
    fields = [pa.field(column.name, _ARROW[column.type], metadata=_told(column)) for column in columns]
    in_json = [column.name for column in columns if column.type == "json"]
    return pa.schema(fields, {**metadata, "keytide.json": encode(in_json).decode()})


def _told(column: ArrowColumn) -> dict[str, str]:
    """Metadata of a column's field."""
    told = dict(JSON_MARK) if column.type == "json" else {}
    if column.part is not None:
        return {**told, "keytide.column": "key", "keytide.part": str(column.part)}
    return {**told, "keytide.column": "id" if column.path is None else "include"}


class BatchMaker:
    """Makes the record batches of one stream.

    Args:
        shape: of the index.
        columns: with their types.
        metadata: of the schema.
    """

    def __init__(self, shape: Shape, columns: Sequence[ArrowColumn], metadata: dict[str, str]) -> None:
        self.schema = schema_of(columns, metadata)
        self._columns = list(columns)
        self._parts = shape.parts
        self._descending = shape.descending
        self._structure = shape.structure
        keyed = [column for column in columns if column.part is not None]
        self._by_rows = any(column.type == "json" for column in keyed)
        self._doubles = any(column.type == "double" for column in keyed)
        included = [column for column in columns if column.path is not None]
        self._included = _Included(included) if included else None

    def batch(self, entries: EntryColumns) -> pa.RecordBatch:
        """Entries as a record batch.

        Raises:
            TypeChangedError: a value does not fit its column.
            InvariantViolationError, UnicodeDecodeError: bytes that no entry has.
        """
        if not entries.rows:
            return pa.RecordBatch.from_pylist([], self.schema)
        if self._structure.key_in_value:
            entries = EntryColumns.of(list(itertools.starmap(self._structure.in_full, entries.items())))
        keys = entries.keys
        unpacked = [] if entries.values is None else list(map(unpack_value, entries.values.items()))
        forms = [form for form, _ in unpacked]
        split = None
        if not self._by_rows and not (self._doubles and any(forms)):  # forms know -0.0
            split = split_keys(keys, self._parts, self._descending)
        if split is None:
            arrays = self._decoded(keys.items(), forms)
        else:
            arrays = self._split(split, keys)
        if self._included is not None:
            included = self._included.arrays([b"{}" if json is None else json for _, json in unpacked])
            if not unpacked:
                included = [pa.nulls(keys.rows, array.type) for array in included]
            names = (c.name for c in self._columns if c.path is not None)
            arrays.update(zip(names, included, strict=True))
        return pa.RecordBatch.from_arrays([arrays[c.name] for c in self._columns], schema=self.schema)

    # --- usual keys: by columns -------------------------------------------------

    def _split(self, split: Split, keys: ByteColumn) -> dict[str, pa.Array]:
        arrays: dict[str, pa.Array] = {}
        for column in self._columns:
            if column.part is not None:
                arrays[column.name] = self._part(column, split.parts[column.part], keys)
            elif column.path is None:
                arrays[column.name] = _texts(split.data, split.id_begins, split.id_ends, None)
        return arrays

    def _part(self, column: ArrowColumn, part: KeyPartColumn, keys: ByteColumn) -> pa.Array:
        """A key part of a usual batch."""
        fits = _FITS[column.type](part)
        if part.uniform not in (UNUSUAL, NOTHING) and fits.all():
            valid = None
        else:
            misfits = ~fits & (part.classes != NOTHING)
            if misfits.any():
                self._refuse(column, keys.at(int(np.argmax(misfits))))
            valid = fits
        if column.type == "text":
            return _texts(part.source, part.begins, part.ends, valid)
        if column.type == "boolean":
            return _array_of(
                pa.bool_(), keys.rows, np.packbits(part.classes == TRUE, bitorder="little"), valid
            )
        if part.doubles is None:
            return pa.nulls(keys.rows, _ARROW[column.type])
        if column.type == "double":
            numbers = np.ascontiguousarray(part.doubles)
        else:
            doubles = part.doubles if valid is None else np.where(valid, part.doubles, 0)
            numbers = doubles.astype(np.int64)
            if part.residuals is not None:
                numbers += part.residuals
        return _array_of(_ARROW[column.type], keys.rows, numbers, valid)

    def _refuse(self, column: ArrowColumn, key: bytes) -> None:
        """Raise `TypeChangedError` for the column's value in a key."""
        parts, _ = decode_key(key, self._parts, self._descending)
        raise column.misfit(parts[column.part or 0])

    # --- others: row by row -----------------------------------------------------

    def _decoded(self, keys: Sequence[bytes], forms: Sequence[bytes]) -> dict[str, pa.Array]:
        decoded: list[list[Value]] = []
        ids: list[str] = []
        for at, key in enumerate(keys):
            parts, end = decode_key(key, self._parts, self._descending, forms[at] if forms else b"")
            decoded.append(parts)
            ids.append(key[end:].decode())
        arrays: dict[str, pa.Array] = {}
        for column in self._columns:
            if column.part is not None:
                ordinal = column.part
                arrays[column.name] = _array(column, [parts[ordinal] for parts in decoded])
            elif column.path is None:
                arrays[column.name] = pa.array(ids, pa.string())
        return arrays


class _Included:
    """Decodes included columns, all rows of a batch at a time."""

    def __init__(self, columns: Sequence[ArrowColumn]) -> None:
        self._columns = list(columns)
        fields: list[tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for at, column in enumerate(columns):
            fields.append((f"f{at}", _FIELD[column.type], _NO_RAW if column.type == "json" else None))
            names[f"f{at}"] = column.path or ""
        row = msgspec.defstruct("Included", fields, rename=names, gc=False)
        self._decode = msgspec.json.Decoder(list[row]).decode  # type: ignore[valid-type]

    def arrays(self, texts: Sequence[bytes]) -> list[pa.Array]:
        """One array per column.

        Args:
            texts: JSON objects.

        Raises:
            TypeChangedError: a value does not fit its column.
        """
        try:
            rows = self._decode(b"[" + b",".join(texts) + b"]")
        except msgspec.ValidationError:
            self._refuse(texts)
            raise
        arrays: list[pa.Array] = []
        for at, column in enumerate(self._columns):
            values: list[Any] = [getattr(row, f"f{at}") for row in rows]
            if column.type == "json":
                arrays.append(pa.array([bytes(raw).decode() or None for raw in values], pa.string()))
            else:
                arrays.append(_array(column, values))
        return arrays

    def _refuse(self, texts: Sequence[bytes]) -> None:
        """Raise `TypeChangedError` for the first value that does not fit."""
        for text in texts:
            included = msgspec.json.decode(text)
            for column in self._columns:
                value = included.get(column.path)
                if value is not None and not _fits(column.type, value):
                    raise column.misfit(value)


def _array(column: ArrowColumn, values: Sequence[Value]) -> pa.Array:
    """An array of decoded values.

    Raises:
        TypeChangedError: one does not fit.
    """
    if column.type == "json":
        texts = [None if isinstance(value, Missing) else encode(value).decode() for value in values]
        return pa.array(texts, pa.string())
    plain = [None if isinstance(value, Missing) else value for value in values]
    for value in plain:
        if value is not None and not _fits(column.type, value):
            raise column.misfit(value)
    if column.type == "bigint":
        plain = [None if value is None else int(value) for value in plain]  # type: ignore[arg-type]
    elif column.type == "double":
        plain = [None if value is None else float(value) for value in plain]  # type: ignore[arg-type]
    return pa.array(plain, _ARROW[column.type])


def _fits(kind: ColumnType, value: Any) -> bool:
    """Whether a value that is not null is one of the type, exactly."""
    match kind:
        case "text":
            return type(value) is str
        case "boolean":
            return type(value) is bool
        case "bigint":
            whole = type(value) is int or (type(value) is float and value.is_integer())
            return whole and -INT64 <= value < INT64
        case "double":
            return type(value) is float or (type(value) is int and _is_double(value))
    return True


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _whole(part: KeyPartColumn) -> Flags:
    """Which rows hold an integer of 64 bits."""
    if part.doubles is None:
        return np.zeros(len(part.classes), np.bool_)
    doubles = part.doubles
    whole: Flags = (part.classes == NUMBER) & (np.floor(doubles) == doubles)
    inside: Flags = (doubles >= -INT64) & (doubles < INT64)
    return whole & inside


def _exact(part: KeyPartColumn) -> Flags:
    """Which rows hold a double."""
    numbers: Flags = part.classes == NUMBER
    return numbers if part.residuals is None else numbers & (part.residuals == 0)


_FITS: Final[dict[ColumnType, Callable[[KeyPartColumn], Flags]]] = {
    "text": lambda part: part.classes == TEXT,
    "bigint": _whole,
    "double": _exact,
    "boolean": lambda part: (part.classes == TRUE) | (part.classes == FALSE),
}


def _array_of(kind: pa.DataType, rows: int, values: npt.NDArray[Any], valid: Flags | None) -> pa.Array:
    """An array of its buffer of values."""
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [bitmap, pa.py_buffer(values)])


def _texts(data: Bytes, begins: Places, ends: Places, valid: Flags | None) -> pa.Array:
    """Stretches of a buffer as an array of strings.

    Raises:
        UnicodeDecodeError: one of them is no UTF-8.
    """
    stretches = views(data, begins, ends - begins, valid)
    try:
        return stretches.cast(pa.string())
    except pa.ArrowInvalid as error:
        for text in stretches.cast(pa.binary()).drop_null().to_pylist():
            text.decode()  # says where
        raise InvariantViolationError("KeyDecodes", f"a string or id is no text: {error}") from error
