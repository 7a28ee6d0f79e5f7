"""Entries to the rows that readers see. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from indexer.scan.selection import Shape
from keytide.collation import MISSING, decode_key, to_json_value
from keytide.entry import unpack_value

ALL_COLUMNS: Final = ("key", "id", "include")
_NO_COLUMNS: Final = msgspec.Raw(b"{}")

Entry = tuple[bytes, bytes]
"""(entry key, value)."""


class RowMaker:
    """Makes the rows of one index.

    Args:
        shape: of the index.
        columns: which members a row has; None for all.
    """

    def __init__(self, shape: Shape, columns: Sequence[str] | None) -> None:
        self._parts = shape.parts
        self._descending = shape.descending
        wanted = ALL_COLUMNS if columns is None else columns
        self._key = "key" in wanted
        self._id = "id" in wanted
        self._include = "include" in wanted and shape.includes

    def rows(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        """Rows, ready for `msgspec.json`, one per entry."""
        parts, descending = self._parts, self._descending
        with_key, with_id, with_include = self._key, self._id, self._include
        made: list[dict[str, Any]] = []
        for entry_key, value in entries:
            forms, include = unpack_value(value) if value else (b"", None)
            key, end = decode_key(entry_key, parts, descending, forms)
            row: dict[str, Any] = {}
            if with_key:
                if MISSING in key:
                    row["key"] = [to_json_value(part) for part in key]
                    row["missing"] = [at for at, part in enumerate(key) if part is MISSING]
                else:
                    row["key"] = key
            if with_id:
                row["id"] = entry_key[end:].decode()
            if with_include:
                row["include"] = _NO_COLUMNS if include is None else msgspec.Raw(include)
            made.append(row)
        return made
