"""Documents of a window against what is held: which rows to write. Pure.

Theory of operation
===================
For each document the window's newest version meets the record in the back index (`resolve`):

    held older, or not at all   the new keys replace the held ones; keys that are no longer there are removed
    held equal                  the keys unite (one document's keys may come in several chunks, R17)
    held newer                  the version is ignored

The rule for newer is `interface`'s: by offset within a partition, by (time, partition) between partitions,
and a document's time never falls within its partition. A row of the table that a build began with is older
than every record, and nothing is remembered of it beside one (`TABLE_PARTITION`).

Nearly all documents are plain: at most one new key, at most one held key, the same partition, held older.
Those are done column-wise (`_plain_puts`, `_plain_removals`). The others go one by one through `step`, which
is the whole rule in a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from indexer.store.formats.records import (
    HEADER_BYTES,
    PUT,
    pack_headers,
    pack_record,
    read_headers,
    unpack_record,
)
from indexer.store.interface import Counts, StoredDocument
from indexer.store.resolve.documents import Ints, Mask, WindowDocuments
from keytide.model.timestamp import TABLE_PARTITION

KeyAndValue = tuple[bytes, bytes]
"""(canonical key, value)."""


@dataclass(slots=True)
class RowChanges:
    """Rows to write, in no order; the keys of a list are all different.

    Attributes:
        put_keys, put_values: entry keys to put, and their tagged values (None: all are the bare tag).
        removed: entry keys to take away; none of them is in `put_keys`.
        back_ids, back_records: records to put.
        gone: document ids whose record goes.
        entries, documents, tombstones, foreign: what the counts change by.
        ignored: versions older than what is held.
        looked_up: documents that were looked up.
    """

    put_keys: list[bytes] = field(default_factory=list)
    put_values: list[bytes] | None = None
    removed: list[bytes] = field(default_factory=list)
    back_ids: list[bytes] = field(default_factory=list)
    back_records: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    entries: int = 0
    documents: int = 0
    tombstones: int = 0
    foreign: int = 0
    ignored: int = 0
    looked_up: int = 0

    def rows(self) -> int:
        """Rows to write, in all tables."""
        return len(self.put_keys) + len(self.removed) + len(self.back_ids) + len(self.gone)

    def row_bytes(self) -> int:
        """Their keys and values together, a little more at most."""
        size = sum(map(len, self.put_keys)) + sum(map(len, self.removed)) + sum(map(len, self.gone))
        size += sum(map(len, self.back_ids)) + sum(map(len, self.back_records))
        # A long entry stands in its row with its entry key in the value as well.
        return 2 * size + sum(map(len, self.put_values or ()))

    def counts(self, skips: int) -> Counts:
        """What the counts change by, with so many new lines of the skip ledger."""
        return Counts(self.entries, self.documents, self.tombstones, skips, self.foreign)

    def add_sums(self, other: RowChanges) -> None:
        """Add another window's numbers (not its rows)."""
        self.entries += other.entries
        self.documents += other.documents
        self.tombstones += other.tombstones
        self.foreign += other.foreign
        self.ignored += other.ignored
        self.looked_up += other.looked_up


def newer(partition: int, offset: int, time: int, held: StoredDocument) -> bool:
    """Whether a version is newer than the held one."""
    if partition == held.partition:
        return offset > held.offset
    if TABLE_PARTITION in (partition, held.partition):
        return held.partition == TABLE_PARTITION
    return (time, partition) > (held.time, held.partition)


def step(
    held: StoredDocument | None, partition: int, offset: int, time: int, keys: Sequence[bytes]
) -> tuple[StoredDocument | None, bool]:
    """One version of one document meets what is held.

    Args:
        held: None when the back index has nothing under the id.
        keys: canonical keys that the version brings; empty: a deletion, or its keys belong to other slices.

    Returns:
        What is held after it, and whether the version was taken (its values hold).
    """
    if held is None:
        return (StoredDocument(partition, offset, time, tuple(keys), False) if keys else None), True
    foreign = held.foreign or (
        partition != held.partition and TABLE_PARTITION not in (partition, held.partition)
    )
    if partition == held.partition and offset == held.offset:
        united = held.keys + tuple(key for key in keys if key not in held.keys)
        return held._replace(keys=united), True
    if not newer(partition, offset, time, held):
        return held._replace(foreign=foreign), False
    if partition == held.partition:
        time = max(time, held.time)
    if not keys and not foreign:
        return None, True
    return StoredDocument(partition, offset, time, tuple(keys), foreign), True


def resolve(documents: WindowDocuments, found: Sequence[tuple[bytes, bytes]]) -> RowChanges:
    """What to write for a window.

    Args:
        documents: the window's.
        found: (id, record) of those looked up that the back index has, contested ones included.
    """
    changes = RowChanges()
    held = dict(found)
    where = np.fromiter(map(documents.index.get, held, repeat(-1)), np.int64, len(held))
    records = list(held.values())
    plain_new = np.bincount(documents.owners, minlength=len(documents.ids))
    times = documents.times.copy()
    special, plain_old = _sort_out(documents, plain_new, where, records, times)
    _plain_puts(changes, documents, special, times)
    _plain_removals(changes, documents, plain_new, where, plain_old, records)
    _one_by_one(changes, documents, special, held)
    changes.looked_up = int(documents.maybe_held.sum()) + len(documents.contested)
    return changes


def _sort_out(
    documents: WindowDocuments, new_keys: Ints, where: Ints, records: list[bytes], times: Ints
) -> tuple[Mask, Mask]:
    """Which documents must be taken one by one (bool[n]), and which records are plainly replaced
    (bool[found]). Raises `times` of the plain ones to what is held."""
    special = new_keys > 1
    if not documents.ids:
        return special, np.zeros(len(records), np.bool_)
    if not records:
        return special, np.empty(0, np.bool_)
    headers = read_headers(records)
    known = where >= 0
    plain = known & (headers["flags"] == 0) & (headers["partition"] == documents.partitions[where])
    plain &= headers["offset"].astype(np.int64) < documents.offsets[where]
    plain &= ~special[where]
    special[where[known & ~plain]] = True
    rows = where[plain]
    times[rows] = np.maximum(times[rows], headers["time"][plain])
    return special, plain


def _plain_puts(changes: RowChanges, documents: WindowDocuments, special: Mask, times: Ints) -> None:
    """Records and entries of documents with one new key."""
    owners, keys, values = documents.owners, documents.keys, documents.values
    if special.any():
        entries = np.flatnonzero(~special[owners])
        owners = owners[entries]
        keys = [keys[entry] for entry in entries.tolist()]
        if values is not None:
            values = [values[entry] for entry in entries.tolist()]
    whose = owners.tolist()
    ids = documents.ids
    mine = [ids[owner] for owner in whose]
    headers = pack_headers(documents.partitions[owners], times[owners], documents.offsets[owners])
    changes.put_keys = [key + docid for key, docid in zip(keys, mine, strict=True)]
    changes.put_values = None if values is None else [PUT + value for value in values]
    changes.back_ids = mine
    changes.back_records = [header + key for header, key in zip(headers, keys, strict=True)]
    changes.entries = changes.documents = len(mine)


def _plain_removals(
    changes: RowChanges,
    documents: WindowDocuments,
    new_keys: Ints,
    where: Ints,
    plain: Mask,
    records: list[bytes],
) -> None:
    """Entries that plainly replaced records held, and the records of documents without a new key."""
    if not plain.any():
        return
    ids = documents.ids
    chosen = np.flatnonzero(plain)
    whose = where[chosen]
    changes.entries -= len(chosen)
    changes.documents -= len(chosen)
    old = [
        records[row][HEADER_BYTES:] + ids[owner]
        for row, owner in zip(chosen.tolist(), whose.tolist(), strict=True)
    ]
    changes.gone = [ids[owner] for owner in whose[new_keys[whose] == 0].tolist()]
    # A key that came again is put, not removed.
    changes.removed = list(set(old).difference(changes.put_keys)) if changes.put_keys else old


def _one_by_one(
    changes: RowChanges, documents: WindowDocuments, special: Mask, held: dict[bytes, bytes]
) -> None:
    """Documents with several keys, equal or older versions, flags, or two source partitions."""
    rows = np.flatnonzero(special).tolist()
    if not rows and not documents.contested:
        return
    values = documents.values
    entries: dict[int, list[KeyAndValue]] = {row: [] for row in rows}
    for entry in np.flatnonzero(special[documents.owners]).tolist():
        value = b"" if values is None else values[entry]
        entries[int(documents.owners[entry])].append((documents.keys[entry], value))
    for row in rows:
        version: tuple[int, int, int, list[KeyAndValue]] = (
            int(documents.partitions[row]),
            int(documents.offsets[row]),
            int(documents.times[row]),
            entries[row],
        )
        docid = documents.ids[row]
        _settle(changes, docid, held.get(docid), [version])
    for contested in documents.contested:
        _settle(changes, contested.id, held.get(contested.id), contested.versions)


def _settle(
    changes: RowChanges,
    docid: bytes,
    record: bytes | None,
    versions: Sequence[tuple[int, int, int, list[KeyAndValue]]],
) -> None:
    """All versions of one document, one after the other; then the difference to what was held."""
    before = None if record is None else unpack_record(record)
    held = before
    values: dict[bytes, bytes] = {}
    for partition, offset, time, entries in versions:
        held, taken = step(held, partition, offset, time, list(dict.fromkeys(key for key, _ in entries)))
        if taken:
            values.update(entries)
        else:
            changes.ignored += 1
    _write(changes, docid, before, held, values)


def _write(
    changes: RowChanges,
    docid: bytes,
    before: StoredDocument | None,
    after: StoredDocument | None,
    values: dict[bytes, bytes],
) -> None:
    old_keys: tuple[bytes, ...] = () if before is None else before.keys
    new_keys: tuple[bytes, ...] = () if after is None else after.keys
    puts = [key for key in new_keys if key in values]
    if changes.put_values is None and any(values[key] for key in puts):
        changes.put_values = [PUT] * len(changes.put_keys)
    changes.put_keys += [key + docid for key in puts]
    if changes.put_values is not None:
        changes.put_values += [PUT + values[key] for key in puts]
    changes.removed += [key + docid for key in old_keys if key not in new_keys]
    if after is None:
        if before is not None:
            changes.gone.append(docid)
    elif after != before:
        changes.back_ids.append(docid)
        changes.back_records.append(pack_record(after))
    changes.entries += len(new_keys) - len(old_keys)
    changes.documents += bool(new_keys) - bool(old_keys)
    changes.tombstones += _is_tombstone(after) - _is_tombstone(before)
    changes.foreign += _is_foreign(after) - _is_foreign(before)


def _is_tombstone(held: StoredDocument | None) -> int:
    return int(held is not None and not held.keys)


def _is_foreign(held: StoredDocument | None) -> int:
    return int(held is not None and held.foreign)
