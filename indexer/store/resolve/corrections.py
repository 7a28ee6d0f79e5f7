"""Corrections of a repair against what is held: which rows to write. Pure.

Theory of operation
===================
A correction says what this slice must hold of one document, as of a timestamp. It decides where the back
index knows nothing of the document, or a version from below that timestamp (or one from past all that the
slice has applied, which no log has): then the record becomes what the correction says, and the entries with
it. Where the record is newer, or the caller has heard something newer (`spared`), the document stays as it
is; but a version that no log has becomes one that the next change replaces.

*Strays* are entries that were found where they must not be. They go unless the record, after the correction,
has them; also those of spared documents, for an entry that the back index does not know is wrong whatever the
document's newest version is: nothing would ever take it away.

Nothing here believes what ought to hold between the tables: a repair is for when that is broken. Which rows
change, and the counts with them, is worked out from the rows that are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from indexer.store.formats.records import PUT, pack_record
from indexer.store.interface import StoredDocument
from indexer.store.resolve.resolve import RowChanges
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from keytide.wire.corrections import Correction

Look = Callable[[bytes], bytes | None]
"""Entry key -> the value that is there, without a tag; None when there is no entry."""


class Moments(NamedTuple):
    """When corrections are true, and what the slice has applied: at or past that."""

    true_at: Timestamp
    applied: Timestamp


class Corrected(NamedTuple):
    """What becomes of one document.

    Attributes:
        record: after it; None for none.
        puts: canonical key -> value, of entries to write.
        removed: canonical keys of entries to take away, which are there.
        added: how many of `puts` are not there yet.
    """

    record: StoredDocument | None
    puts: dict[bytes, bytes]
    removed: list[bytes]
    added: int


def correct(
    correction: Correction, held: StoredDocument | None, spared: bool, moments: Moments, look: Look
) -> Corrected | None:
    """One correction meets what is held; None when nothing is to do.

    Args:
        held: None when the back index has nothing under the id.
        spared: something newer was heard of the document.
        look: at the document's entries.
    """
    decides = not spared and (held is None or not _newer(held, moments))
    record = _record(correction, held) if decides else _doubted(held, moments)
    keys = () if record is None else record.keys
    docid = correction.id
    puts: dict[bytes, bytes] = {}
    added = 0
    if decides:
        for key, value in correction.values.items():
            there = look(key + docid)
            added += there is None
            if there != value:
                puts[key] = value
    gone = [*(() if held is None else held.keys), *correction.strays]
    removed = [key for key in dict.fromkeys(gone) if key not in keys and look(key + docid) is not None]
    if record == held and not puts and not removed:
        return None
    return Corrected(record, puts, removed, added)


def corrected_rows(
    corrections: list[Correction],
    held: dict[bytes, StoredDocument],
    spared: frozenset[int],
    moments: Moments,
    look: Look,
) -> tuple[RowChanges, int]:
    """Rows to write for some corrections, and how many documents change.

    Args:
        held: what the back index has of them, by document id.
    """
    changes, documents = RowChanges(put_values=[]), 0
    for ordinal, one in enumerate(corrections):
        before = held.get(one.id)
        after = correct(one, before, ordinal in spared, moments, look)
        if after is None:
            continue
        documents += 1
        _write(changes, one.id, before, after)
    return changes, documents


def _write(changes: RowChanges, docid: bytes, before: StoredDocument | None, after: Corrected) -> None:
    changes.put_keys += [key + docid for key in after.puts]
    if changes.put_values is not None:
        changes.put_values += [PUT + value for value in after.puts.values()]
    changes.removed += [key + docid for key in after.removed]
    if after.record is None and before is not None:
        changes.gone.append(docid)
    elif after.record is not None and after.record != before:
        changes.back_ids.append(docid)
        changes.back_records.append(pack_record(after.record))
    was, now = kind_of(before), kind_of(after.record)
    changes.entries += after.added - len(after.removed)
    changes.documents += now.document - was.document
    changes.tombstones += now.tombstone - was.tombstone
    changes.foreign += now.foreign - was.foreign


class RecordCounts(NamedTuple):
    """What a record counts as, 0 or 1 each."""

    document: int
    tombstone: int
    foreign: int


def kind_of(held: StoredDocument | None) -> RecordCounts:
    if held is None:
        return RecordCounts(0, 0, 0)
    return RecordCounts(int(bool(held.keys)), int(not held.keys), int(held.foreign))


def _newer(held: StoredDocument, moments: Moments) -> bool:
    """Whether the version held is newer than what the correction is of. (Rows of a table are older than every
    record.)"""
    if held.partition == TABLE_PARTITION or _of_no_log(held, moments):
        return False
    return moments.true_at.offset(held.partition) <= held.offset


def _of_no_log(held: StoredDocument, moments: Moments) -> bool:
    """Whether the version held lies past all that the slice has applied."""
    return held.partition != TABLE_PARTITION and held.offset >= moments.applied.offset(held.partition)


def _doubted(held: StoredDocument | None, moments: Moments) -> StoredDocument | None:
    """The record of a document that is left as it is. A version that no log has would have all changes
    ignored that are still to come: it becomes one that is older than every record."""
    if held is None or not held.keys or not _of_no_log(held, moments):
        return held
    return held._replace(partition=TABLE_PARTITION, offset=0, time=0)


def _record(correction: Correction, held: StoredDocument | None) -> StoredDocument | None:
    """The record that a correction makes. A slice without entries remembers a deletion only where it has met
    the document in two partitions (as `resolve.step` does)."""
    foreign = correction.foreign or (held is not None and held.foreign)
    keys = tuple(correction.values)
    if not keys and (held is None or not foreign):
        return None
    if not keys and held is not None and correction.partition == TABLE_PARTITION:
        return StoredDocument(held.partition, held.offset, held.time, (), True)  # nothing newer is known
    if held is not None and set(keys) == set(held.keys):
        keys = held.keys
    return StoredDocument(correction.partition, correction.offset, correction.time, keys, foreign)
