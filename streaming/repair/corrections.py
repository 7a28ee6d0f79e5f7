"""What a repair does about differences: corrections for each slice, and how they are listed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from keytide.model.timestamp import TABLE_PARTITION
from keytide.wire.corrections import Correction
from streaming.verify.core.comparing import SourceDocument
from streaming.verify.core.difference import Difference, DifferenceClass, IndexedDocument

CORRECTED: Final = frozenset(
    {
        DifferenceClass.MISSING,
        DifferenceClass.EXTRA,
        DifferenceClass.WRONG_KEY,
        DifferenceClass.WRONG_INCLUDED,
        DifferenceClass.WRONG_RECORD,
    }
)
"""The classes that a repair puts right. A duplicate in a UNIQUE index is in the source itself, and of what is
UNPROVABLE nobody knows what is right: both are listed and left."""

Action = Literal["put", "remove", "replace", "record"]


class Planned(msgspec.Struct, frozen=True):
    """What is done about one document in one slice.

    Attributes:
        action: put (the slice has nothing of it), remove (it must have nothing), replace (it has other
            entries than it must), record (its entries are right, what it remembers of the document is not).
    """

    slice: int
    action: Action
    correction: Correction


def wanted(differences: Iterable[Difference]) -> set[bytes]:
    """Ids of the documents that a repair is to correct."""
    return {one.id for one in differences if one.kind in CORRECTED}


def planned(
    docid: bytes, index: str, slices: int, held: Sequence[IndexedDocument], truth: SourceDocument
) -> list[Planned]:
    """What to do about one document that differs, slice by slice; slices that are right are left out.

    Args:
        index: index id.
        held: what slices hold of it.
        truth: what the source has of it at the same snapshot.
    """
    by_slice = {one.slice: one for one in held}
    found: list[Planned] = []
    for number in range(slices):
        holding = by_slice.get(number, IndexedDocument(number, None, (), ()))
        values = {entry.key: entry.value for entry in truth.entries.get(index, ()) if entry.slice == number}
        action = _action(holding, values, truth)
        if action is None:
            continue
        strays = [entry.key for entry in holding.entries if entry.key not in values]
        found.append(Planned(number, action, _correction(docid, truth, values, strays)))
    return found


def _action(holding: IndexedDocument, values: Mapping[bytes, bytes], truth: SourceDocument) -> Action | None:
    there = {entry.key: entry.value for entry in holding.entries}
    if there == values:
        return None if _remembers(holding, values, truth) else "record"
    if not values:
        return "remove"
    return "replace" if there or holding.version is not None else "put"


def _remembers(holding: IndexedDocument, values: Mapping[bytes, bytes], truth: SourceDocument) -> bool:
    """Whether the record of a slice whose entries are right is right, too: none where it has no entries."""
    held = holding.version
    if not values or held is None:
        return not values and held is None
    return held.is_same(truth.version) and set(holding.keys) == set(values)


def _correction(
    docid: bytes, truth: SourceDocument, values: dict[bytes, bytes], strays: list[bytes]
) -> Correction:
    """A document of which the source has nothing has a version that is older than every record."""
    version = truth.version
    if version is None:
        return Correction(docid, TABLE_PARTITION, 0, 0, False, values, strays)
    foreign = bool(truth.others)
    return Correction(docid, version.partition, version.offset, version.time, foreign, values, strays)


def batches(corrections: Iterable[Correction], most: int, most_bytes: int) -> list[list[Correction]]:
    """Corrections in messages of at most so many documents, and bytes unless one alone has more; none where
    there are none."""
    found: list[list[Correction]] = []
    size = 0
    for one in corrections:
        mine = len(one.id) + sum(len(key) + len(value) for key, value in one.values.items())
        mine += sum(map(len, one.strays))
        if not found or len(found[-1]) >= most or size + mine > most_bytes:
            found.append([])
            size = 0
        found[-1].append(one)
        size += mine
    return found


def count_actions(plans: Iterable[Planned]) -> dict[str, int]:
    """Action -> how many."""
    counts: dict[str, int] = {}
    for one in plans:
        counts[one.action] = counts.get(one.action, 0) + 1
    return dict(sorted(counts.items()))
