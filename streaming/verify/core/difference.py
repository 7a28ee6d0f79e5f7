"""What verification can find: the classes of differences, each with its evidence. Pure.

A difference is about one document in one index. What the index holds is seen per slice: the version that the
back index of the slice has, and the forward entries of the document there. What the source holds is the
newest version of the document below the snapshot's timestamp, projected by the projector's own core.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class DifferenceClass(StrEnum):
    """The classes, as they are named in reports."""

    MISSING = "MISSING"
    """The source has an entry that the index lacks, and the index has no other entry for it."""
    EXTRA = "EXTRA"
    """The index has an entry of a document that the source does not have, or that has no entry."""
    WRONG_KEY = "WRONG_KEY"
    """Entry and document are both there, under different keys, or the entry lies in a wrong slice."""
    WRONG_INCLUDED = "WRONG_INCLUDED"
    """The key is right; the included columns, or the spelling of the key's values, are not."""
    DUPLICATE_UNIQUE = "DUPLICATE_UNIQUE"
    """Two live documents have one key in a UNIQUE index."""
    WRONG_RECORD = "WRONG_RECORD"
    """The entries are right, and what the slice remembers of the document (its version, its keys) is not: its
    next change may be ignored, or leave an entry behind."""
    COPIES_DIFFER = "COPIES_DIFFER"
    """Two copies of a slice hold something else of the document at one snapshot: one of them is damaged
    (R47). Expected is what the copy has that was compared with the source, found what the other one has."""
    UNPROVABLE = "UNPROVABLE"
    """Index and source differ, and the source no longer holds the proof of what is right."""


NOT_EXAMINED: Final = "NOT_EXAMINED"
"""Beside the classes in counts: buckets of documents that differ and were not looked at any more."""


def is_clean(counts: Mapping[str, int]) -> bool:
    """Whether counts (class -> how many) say that nothing is wrong, and that all was looked at."""
    return not any(count for kind, count in counts.items() if kind != DifferenceClass.UNPROVABLE.value)


class VersionPlace(msgspec.Struct, frozen=True, array_like=True):
    """A version of a document: where its record lies (or lay) in the source."""

    partition: int
    offset: int
    time: int = 0
    """The record's timestamp in milliseconds; between partitions it decides which version is newer."""

    def is_same(self, other: VersionPlace | None) -> bool:
        """Whether both are of one record, whose time may be another where more of its partition was read."""
        return other is not None and (self.partition, self.offset) == (other.partition, other.offset)


class SliceEntry(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An entry of a document, without its id: stored key, value (`keytide.model.entry`), and the slice
    that it lies in, or belongs into."""

    key: bytes
    value: bytes
    slice: int


class IndexedDocument(msgspec.Struct, frozen=True, array_like=True):
    """What one slice holds of a document.

    Attributes:
        slice: its number.
        version: of the back index; None when that does not know the document.
        keys: stored keys that the back index has, sorted.
        entries: forward entries, sorted.
    """

    slice: int
    version: VersionPlace | None
    keys: tuple[bytes, ...]
    entries: tuple[SliceEntry, ...]


class Difference(msgspec.Struct, frozen=True):
    """One finding.

    Attributes:
        kind: its class.
        index: index id.
        id: document id.
        expected: what the index should hold: entries, with their slices; empty for none.
        found: what it holds.
        version: the newest version below the snapshot that the source has; None when it has none.
        held: slice -> the version that the slice has.
        others: with DUPLICATE_UNIQUE: the other documents with the key.
        reason: in words, where the class alone does not say it.
    """

    kind: DifferenceClass
    index: str
    id: bytes
    expected: tuple[SliceEntry, ...] = ()
    found: tuple[SliceEntry, ...] = ()
    version: VersionPlace | None = None
    held: dict[int, VersionPlace] = {}
    others: tuple[bytes, ...] = ()
    reason: str = ""
