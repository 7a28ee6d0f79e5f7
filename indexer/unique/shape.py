"""How the keys of an index are read by who looks for equal ones."""

from __future__ import annotations

from collections.abc import Sequence

from keytide.collation import decode_key, told_key
from keytide.collation.layout import Missing
from keytide.structure import Structure
from keytide.wire.columns import PutsView


class KeyShape:
    """How the keys of an index are read.

    Args:
        structure: of the index.

    Attributes:
        stored: canonical keys are in values (`Structure.key_in_value`): entries of one key need not be side
            by side, only those of one stem.
    """

    __slots__ = ("_id_start", "_structure", "stem", "stored")

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._id_start = structure.id_start
        self.stem = structure.stem
        self.stored = structure.key_in_value

    def split(self, entry_key: bytes, value: bytes) -> tuple[bytes, bytes]:
        """The canonical key of an entry, and its document's id."""
        at = self._id_start(entry_key)
        return self._structure.canonical(entry_key[:at], value), entry_key[at:]

    def key_of(self, entry_key: bytes, value: bytes) -> bytes:
        """The canonical key of an entry."""
        stored = entry_key[: self._id_start(entry_key)]
        return self._structure.canonical(stored, value) if self.stored else stored

    def brought(self, columns: PutsView, rows: Sequence[int]) -> list[bytes]:
        """The canonical keys that some rows of a segment bring."""
        keys = columns.keys
        if not self.stored:
            return [keys[row] for row in rows]
        values = columns.values or [b""] * len(keys)
        return [self._structure.canonical(keys[row], values[row]) for row in rows]

    def told(self, key: bytes) -> bytes:
        """By what a key is known and told: itself, or what stands for a long one (`told_key`)."""
        return told_key(key, self._structure.parts, self._structure.descending)

    def comparable(self, key: bytes) -> bool:
        """Whether a key can be equal to another: no part is NULL or MISSING, which equal nothing in SQL."""
        values, _ = decode_key(key, self._structure.parts, self._structure.descending)
        return not any(value is None or isinstance(value, Missing) for value in values)
