"""`backwards`: a fourth structure, as somebody would write it who adds one. The stored key is the canonical
key with all of its bits inverted, so entries lie from the greatest key to the least; ranges and prefixes are
stretches of them still, but what wants rows in the order of keys is refused.

Nobody needs it. It is one class, for tests to show that one class and a line in the registry are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

from keytide.collation.layout import INVERTED
from keytide.errors import InvariantViolationError
from keytide.model.entry import MAX_KEY_BYTES
from keytide.model.protocol import OTHER_STRUCTURES
from keytide.structure import Box, Boxed, Selected, WantedKeys, Wishes
from keytide.structure.btree import BTree
from keytide.structure.keyed import KeyedStructure


@final
@dataclass(frozen=True, slots=True)
class Backwards(KeyedStructure):
    """The structure of an index USING backwards."""

    name: ClassVar = "backwards"
    since: ClassVar = OTHER_STRUCTURES
    has_places: ClassVar = False
    several: ClassVar = False
    key_limit: ClassVar[int | None] = MAX_KEY_BYTES
    stored_bytes: ClassVar[int | None] = None

    parts: int
    descending: tuple[bool, ...] = ()

    @classmethod
    def made(cls, parts: int, descending: tuple[bool, ...], srid: int) -> Self:
        del srid
        return cls(parts, descending)

    def fault(self, wishes: Wishes) -> tuple[str, str] | None:
        if wishes.include_missing:
            return "a backwards index leaves out what is not there", "Leave include_missing out."
        if any(self.descending):
            return "a backwards index has no order that a part could descend in", "Leave DESC out."
        return None

    @property
    def _tree(self) -> BTree:
        return BTree(self.parts, (True,) * self.parts)

    def stored(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        return [(key.translate(INVERTED),) for key in keys]

    def stem(self, key: bytes) -> bytes:
        return key.translate(INVERTED)

    def id_start(self, entry_key: bytes) -> int:
        return self._tree.id_start(entry_key)

    def id_starts(self, entry_keys: Sequence[bytes]) -> list[int]:
        return self._tree.id_starts(entry_keys)

    def check(self, entry_key: bytes, value: bytes) -> None:
        if entry_key[: self.id_start(entry_key)] != self.stem(self.whole_key(value)):
            raise InvariantViolationError("EntryDecodes", f"{entry_key.hex()} is none of its value's key")

    def selected(self, wanted: WantedKeys) -> Selected:
        return self._tree.selected(wanted)

    def boxed(self, box: Box, most: int) -> Boxed | str:
        return self._tree.boxed(box, most)
