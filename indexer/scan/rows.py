"""Entries to the rows that readers see. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from keytide.definition import IndexDefinition

from keytide.collation import MISSING, decode_key
from keytide.entry import unpack_value

ALL_COLUMNS = ("key", "id", "include")


class RowMaker:
    """Makes the rows of one index.

    Args:
        definition: of the index.
        columns: which members a row has; None for all.
    """

    def __init__(self, definition: IndexDefinition, columns: Sequence[str] | None) -> None:
        self._parts = len(definition.keys)
        descending = tuple(part.descending for part in definition.keys)
        self._descending = descending if any(descending) else ()
        wanted = ALL_COLUMNS if columns is None else columns
        self._key = "key" in wanted
        self._id = "id" in wanted
        self._include = "include" in wanted and bool(definition.include)

    def rows(self, entries: Iterable[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
        """Rows, ready for `msgspec.json`, of (entry key, entry value) pairs."""
        parts, descending = self._parts, self._descending
        made: list[dict[str, Any]] = []
        for entry_key, value in entries:
            forms, include = unpack_value(value) if value else (b"", None)
            key, end = decode_key(entry_key, parts, descending, forms)
            row: dict[str, Any] = {}
            if self._key:
                if MISSING in key:
                    row["key"] = [None if part is MISSING else part for part in key]
                    row["missing"] = [at for at, part in enumerate(key) if part is MISSING]
                else:
                    row["key"] = key
            if self._id:
                row["id"] = entry_key[end:].decode()
            if self._include:
                row["include"] = msgspec.Raw(include if include is not None else b"{}")
            made.append(row)
        return made
