"""Entries to the rows that readers see, and values as JSON bytes. Pure.

Numbers are written as they are, integers of any size exactly. But an expression may give an integer (`n * n`)
that has more digits than Python writes, and than JSON readers take: that is told, and is nobody's bug.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from indexer.scan.peer.messages import Entry
from indexer.scan.plan.selection import Shape
from keytide.collation import MISSING, Value, apply_forms, decode_key, decode_keys, to_json_value
from keytide.errors import CallerError
from keytide.model.entry import unpack_keyed_value, unpack_value
from keytide.structure.place_columns import decoded_places

ALL_COLUMNS: Final = ("key", "id", "include")
_encoder: Final = msgspec.json.Encoder()
_NO_COLUMNS: Final = msgspec.Raw(b"{}")


class RowMaker:
    """Makes the rows of one index.

    Args:
        shape: of the index.
        columns: which members a row has; None for all.
    """

    def __init__(self, shape: Shape, columns: Sequence[str] | None) -> None:
        self._parts = shape.parts
        self._descending = shape.descending
        self._structure = shape.structure
        wanted = ALL_COLUMNS if columns is None else columns
        self._key = "key" in wanted
        self._id = "id" in wanted
        self._include = "include" in wanted and shape.includes

    def rows(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        """Rows, ready for `msgspec.json`, one per entry. Rows may share a list of parts."""
        parts, descending = self._parts, self._descending
        with_key, with_id, with_include = self._key, self._id, self._include
        made: list[dict[str, Any]] = []
        if self._structure.has_places:
            return self._rows_of_places(entries)
        if self._structure.key_in_value:
            entries = itertools.starmap(self._structure.in_full, entries)
        entries = list(entries)
        decoded = decode_keys([key for key, _ in entries], parts, descending)
        for (entry_key, value), (found, end) in zip(entries, decoded, strict=True):
            include: bytes | None = None
            key: Sequence[Value] = found
            if value:
                forms, include = unpack_value(value)
                if forms:
                    key = apply_forms(found, forms)
            missing: list[int] | None = None
            if MISSING in key:
                missing = [at for at, part in enumerate(key) if part is MISSING]
                key = [to_json_value(part) for part in key]
            row: dict[str, Any] = {}
            if with_key:
                row["key"] = key
                if missing:
                    row["missing"] = missing
            if with_id:
                row["id"] = entry_key[end:].decode()
            if with_include:
                row["include"] = _NO_COLUMNS if include is None else msgspec.Raw(include)
            made.append(row)
        return made

    def _rows_of_places(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        """The same of a spatial index, nearly all of whose keys are decoded together."""
        made: list[dict[str, Any]] = []
        entries = list(entries)
        unpacked = [unpack_keyed_value(value) for _, value in entries]
        places = decoded_places([b"" if forms else key for forms, _, key in unpacked]) if self._key else []
        for at, (entry_key, _) in enumerate(entries):
            row: dict[str, Any] = {}
            forms, include, key = unpacked[at]
            if self._key:
                place = places[at]
                row["key"] = decode_key(key, self._parts, (), forms)[0] if place is None else [place]
            if self._id:
                row["id"] = entry_key[self._structure.id_start(entry_key) :].decode()
            if self._include:
                row["include"] = _NO_COLUMNS if include is None else msgspec.Raw(include)
            made.append(row)
        return made


class TooManyDigitsError(CallerError):
    """An integer in the answer has more than 4300 digits."""

    problem_type = "too-many-digits"
    status = 422


def encode(value: Any) -> bytes:
    """A value as JSON.

    Raises:
        TooManyDigitsError: there is such an integer in it.
    """
    try:
        return _encoder.encode(value)
    except ValueError as error:
        raise _told(error) from error


def encode_lines(rows: Iterable[Any]) -> bytes:
    """Rows as lines of JSON. Raises as `encode`."""
    try:
        return _encoder.encode_lines(rows)
    except ValueError as error:
        raise _told(error) from error


def _told(error: ValueError) -> Exception:
    """What a reader is told of an error of the encoder."""
    if "digits" not in str(error):
        return error
    return TooManyDigitsError(
        "an integer in the answer has more than 4300 digits, which JSON readers do not take",
        next_step="leave the key out (`columns`), select around it, or index CAST(... AS double precision)",
    )
