"""Segments and chunks as columns of documents: what `resolve` works on.

Theory of operation
===================
Every slice hears every document of the keyspace, and only few concern it: those with entries for this slice,
and those that it may hold under another key. So the columns of all segments of a window are joined, tested
against the filter at once, and only the relevant documents become Python bytes.

Within a window the newest version of a document decides. All but that one are dropped here (`_newest`), with
their largest time kept. Two kinds of document keep all their versions, as `contested`, and `resolve` takes
them one by one: those met in two partitions, and those that went and came back (what is forgotten in between,
a time, may matter once a second partition shows up).

The filter is asked before this window's own puts are added to it (may the document be held already? then it
must be looked up) and after (a document that was put and then heard again without a put is relevant).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from indexer.store.filter import IdFilter
from keytide.columns import hashes_of, heard_hashes, heard_offsets, heard_times, pick, unpack
from keytide.messages import PutChunk, Puts, RemovalChunk, Segment

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Documents:
    """Newest versions of n documents, and m entries of theirs.

    Attributes:
        ids: n document ids, all different.
        index: id to its place in `ids`.
        partitions, offsets, times: i64[n], their versions.
        maybe_held: bool[n], those that the filter lets pass.
        hashes: u64[n], of the ids.
        owners: i64[m], the document of each entry (an index into `ids`).
        keys: m canonical keys.
        values: m entry values, or None when all are empty.
        contested: documents of the window whose versions must be taken one by one; they are not in `ids`.
    """

    ids: list[bytes]
    index: dict[bytes, int]
    partitions: Ints
    offsets: Ints
    times: Ints
    maybe_held: Mask
    hashes: Hashes
    owners: Ints
    keys: list[bytes]
    values: list[bytes] | None
    contested: list[Contested] = field(default_factory=list)

    def to_look_up(self) -> tuple[list[bytes], Hashes]:
        """Ids that may be held, and their hashes."""
        rows = np.flatnonzero(self.maybe_held)
        ids = self.ids
        wanted = [ids[row] for row in rows.tolist()]
        hashes = self.hashes[rows]
        if self.contested:
            wanted += [contested.id for contested in self.contested]
            hashes = np.append(hashes, hashes_of(wanted[len(rows) :], len(self.contested)))
        return wanted, hashes

    def all_hashes(self) -> Hashes:
        """Hashes of all documents here."""
        if not self.contested:
            return self.hashes
        return np.append(self.hashes, hashes_of((c.id for c in self.contested), len(self.contested)))


@dataclass(frozen=True, slots=True)
class Contested:
    """All versions of one document, in the order of the window.

    Attributes:
        versions: (partition, offset, time, [(canonical key, value)]) each.
    """

    id: bytes
    versions: list[tuple[int, int, int, list[tuple[bytes, bytes]]]]


def from_segments(segments: Sequence[Segment], held: IdFilter) -> Documents:
    """The documents of a window that concern this slice. Adds the ids of entries to the filter.

    Args:
        segments: those of one partition in offset order.
    """
    heard = [(segment, segment.heard) for segment in segments if segment.heard is not None]
    if not heard:
        return _nothing()
    counts = [columns.count for _, columns in heard]
    bases = np.cumsum([0, *counts])
    hashes = np.concatenate([heard_hashes(columns) for _, columns in heard])
    ordinals, keys_of, values = _joined_puts([segment.puts for segment, _ in heard], bases)

    maybe_held = held.test(hashes)
    held.add(hashes[_steps(ordinals)])
    relevant = np.flatnonzero(held.test(hashes)) if len(ordinals) else np.flatnonzero(maybe_held)
    id_lengths = np.frombuffer(b"".join(columns.id_lengths for _, columns in heard), np.uint8)
    ids = pick(id_lengths, b"".join(columns.ids for _, columns in heard), relevant)
    partitions = np.repeat(np.array([segment.partition for segment, _ in heard], np.int64), counts)[relevant]
    offsets = np.concatenate([heard_offsets(columns, segment.start) for segment, columns in heard])[relevant]
    times = np.concatenate([heard_times(columns) for _, columns in heard])[relevant]
    place = np.full(bases[-1], -1, np.int64)
    place[relevant] = np.arange(len(relevant))
    return _newest(
        ids,
        partitions,
        offsets,
        times,
        maybe_held[relevant],
        hashes[relevant],
        place[ordinals],
        keys_of,
        values,
    )


def from_chunk_puts(chunk_run: Sequence[PutChunk], held: IdFilter) -> Documents:
    """The documents of a run of put chunks. Adds their ids to the filter."""
    joined = b"".join
    ids = unpack(
        np.frombuffer(joined(c.id_lengths for c in chunk_run), np.uint8), joined(c.ids for c in chunk_run)
    )
    hashes = hashes_of(ids, len(ids))
    maybe_held = held.test(hashes)
    held.add(hashes)
    keys, values = _entry_columns(
        joined(c.key_lengths for c in chunk_run),
        joined(c.keys for c in chunk_run),
        [(c.count, c.value_lengths, c.values) for c in chunk_run],
    )
    return _newest(
        ids,
        np.frombuffer(joined(c.partitions for c in chunk_run), "<u4").astype(np.int64),
        np.frombuffer(joined(c.offsets for c in chunk_run), "<u8").astype(np.int64),
        np.frombuffer(joined(c.times for c in chunk_run), "<i8").astype(np.int64),
        maybe_held,
        hashes,
        np.arange(len(ids)),
        keys,
        values,
    )


def from_chunk_removals(removals: Iterable[RemovalChunk], held: IdFilter) -> Documents:
    """The documents of removal chunks that may be held: heard, without entries."""
    return from_segments([_as_segment(chunk) for chunk in removals], held)


def _as_segment(chunk: RemovalChunk) -> Segment:
    return Segment(chunk.partition, -1, chunk.base, chunk.base, chunk.heard, None, chunk.skips)


def _nothing() -> Documents:
    none = np.empty(0, np.int64)
    return Documents([], {}, none, none, none, np.empty(0, np.bool_), np.empty(0, np.uint64), none, [], None)


def _newest(
    ids: list[bytes],
    partitions: Ints,
    offsets: Ints,
    times: Ints,
    maybe_held: Mask,
    hashes: Hashes,
    owners: Ints,
    keys: list[bytes],
    values: list[bytes] | None,
) -> Documents:
    """Keep the newest version of each id; `ids` may repeat, and `owners` are places in it.

    Rows of one partition come in offset order, or are one version that comes several times (chunks).
    """
    last = dict(zip(ids, range(len(ids)), strict=True))
    if len(last) == len(ids):
        return Documents(ids, last, partitions, offsets, times, maybe_held, hashes, owners, keys, values)
    return _Repeated(ids, last, partitions, offsets, times, owners, keys, values).documents(
        maybe_held, hashes
    )


class _Repeated:
    """A window in which some ids come more than once (the slower way of `_newest`)."""

    def __init__(
        self,
        ids: list[bytes],
        last: dict[bytes, int],
        partitions: Ints,
        offsets: Ints,
        times: Ints,
        owners: Ints,
        keys: list[bytes],
        values: list[bytes] | None,
    ) -> None:
        self.ids, self.partitions, self.offsets, self.times = ids, partitions, offsets, times.copy()
        self.owners, self.keys, self.values = owners, keys, values
        self.winner = last  # id -> its row
        self.rows: dict[bytes, list[int]] = {}  # repeated id -> all its rows
        final = np.zeros(len(ids), np.bool_)
        final[np.fromiter(last.values(), np.int64, len(last))] = True
        for row in np.flatnonzero(~final).tolist():
            self.rows.setdefault(ids[row], []).append(row)
        for docid, rows in self.rows.items():
            rows.append(last[docid])

    def documents(self, maybe_held: Mask, hashes: Hashes) -> Documents:
        target = np.arange(len(self.ids))  # row -> the row that stands for its version, -1 when outdated
        brings = np.zeros(len(self.ids), np.bool_)
        brings[self.owners] = True
        contested: list[bytes] = []
        for docid, rows in self.rows.items():
            if (self.partitions[rows] != self.partitions[rows[0]]).any() or (
                brings[rows[-1]] and not brings[rows].all()
            ):
                contested.append(docid)
                target[rows] = -1
                continue
            offsets = self.offsets[rows]
            best = rows[len(rows) - 1 - int(np.argmax(offsets[::-1]))]
            target[rows] = np.where(offsets == self.offsets[best], best, -1)
            self.times[best] = self.times[rows].max()
        kept = np.flatnonzero(target == np.arange(len(self.ids)))
        place = np.full(len(self.ids) + 1, -1, np.int64)  # the last one stands for -1
        place[kept] = np.arange(len(kept))
        owners = place[target[self.owners]]
        entries = np.flatnonzero(owners >= 0)
        picked = entries.tolist()
        ids = [self.ids[row] for row in kept.tolist()]
        return Documents(
            ids,
            dict(zip(ids, range(len(ids)), strict=True)),
            self.partitions[kept],
            self.offsets[kept],
            self.times[kept],
            maybe_held[kept],
            hashes[kept],
            owners[entries],
            [self.keys[entry] for entry in picked],
            None if self.values is None else [self.values[entry] for entry in picked],
            self._contested(contested),
        )

    def _contested(self, ids: list[bytes]) -> list[Contested]:
        if not ids:
            return []
        entries: dict[int, list[int]] = {row: [] for docid in ids for row in self.rows[docid]}
        for entry, row in enumerate(self.owners.tolist()):
            if row in entries:
                entries[row].append(entry)
        values = self.values
        return [
            Contested(
                docid,
                [
                    (
                        int(self.partitions[row]),
                        int(self.offsets[row]),
                        int(self.times[row]),
                        [(self.keys[e], b"" if values is None else values[e]) for e in entries[row]],
                    )
                    for row in self.rows[docid]
                ],
            )
            for docid in ids
        ]


def _joined_puts(
    puts: Sequence[Puts | None], bases: npt.NDArray[np.int64]
) -> tuple[Ints, list[bytes], list[bytes] | None]:
    """Ordinals (over all segments), canonical keys and values of the entries of a window."""
    there = [(columns, int(base)) for columns, base in zip(puts, bases, strict=False) if columns is not None]
    if not there:
        return np.empty(0, np.int64), [], None
    ordinals = [np.frombuffer(columns.ordinals, "<u4").astype(np.int64) + base for columns, base in there]
    keys, values = _entry_columns(
        b"".join(columns.key_lengths for columns, _ in there),
        b"".join(columns.keys for columns, _ in there),
        [(columns.count, columns.value_lengths, columns.values) for columns, _ in there],
    )
    return np.concatenate(ordinals), keys, values


def _entry_columns(
    key_lengths: bytes, keys: bytes, values: Sequence[tuple[int, bytes, bytes]]
) -> tuple[list[bytes], list[bytes] | None]:
    """Keys and values of the entries of several messages.

    Args:
        values: (number of entries, value lengths, values) of each message; lengths may be b"" for none.

    Returns:
        The keys, and the values or None when all are empty.
    """
    pieces = unpack(np.frombuffer(key_lengths, "<u2"), keys)
    if not any(lengths for _, lengths, _ in values):
        return pieces, None
    lengths = [
        np.frombuffer(lengths, "<u4") if lengths else np.zeros(count, "<u4") for count, lengths, _ in values
    ]
    return pieces, unpack(np.concatenate(lengths), b"".join(data for _, _, data in values))


def _steps(ordinals: Ints) -> Ints:
    """Each ordinal once (they ascend)."""
    if len(ordinals) < 2:
        return ordinals
    return ordinals[np.concatenate(([True], ordinals[1:] != ordinals[:-1]))]
