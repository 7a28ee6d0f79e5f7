"""What structures have in common whose entries hold the canonical key in their value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from keytide.collation import skip_key
from keytide.errors import InvariantViolationError
from keytide.model.entry import pack_keyed_value, pack_value, places_of, unpack_keyed_value


class KeyedStructure(ABC):
    """Reads values that hold the canonical key (`keytide.structure.Structure`)."""

    __slots__ = ()

    key_in_value: ClassVar = True
    ordered: ClassVar = False
    key_limit: ClassVar[int | None] = None

    parts: int

    @abstractmethod
    def id_start(self, entry_key: bytes) -> int: ...

    def canonical(self, stored: bytes, value: bytes) -> bytes:
        del stored
        return unpack_keyed_value(value)[2]

    def in_full(self, entry_key: bytes, value: bytes) -> tuple[bytes, bytes]:
        forms, include, key = unpack_keyed_value(value)
        return key + entry_key[self.id_start(entry_key) :], pack_value(forms, include)

    def without_columns(self, value: bytes) -> bytes:
        forms, _, key = unpack_keyed_value(value)
        return pack_keyed_value(forms, None, key, places_of(value))

    def whole_key(self, value: bytes) -> bytes:
        """The canonical key of a value.

        Raises:
            InvariantViolationError: it has not as many parts as the index.
        """
        _, _, key = unpack_keyed_value(value)
        if skip_key(key, self.parts) != len(key):
            raise InvariantViolationError("EntryDecodes", f"{key[:80].hex()} is no key of {self.parts} parts")
        return key
