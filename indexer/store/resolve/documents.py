"""Documents of a window as columns, the newest version of each: what `resolve` works on.

Within a window the newest version of a document decides. All but that one are dropped here (`newest`), with
their largest time kept. Two kinds of document keep all their versions, as `contested`, and `resolve` takes
them one by one: those met in two partitions, and those that went and came back (what is forgotten in between,
a time, may matter once a second partition shows up).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from keytide.wire.columns import hashes_of

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WindowDocuments:
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


def newest(
    ids: list[bytes],
    partitions: Ints,
    offsets: Ints,
    times: Ints,
    maybe_held: Mask,
    hashes: Hashes,
    owners: Ints,
    keys: list[bytes],
    values: list[bytes] | None,
) -> WindowDocuments:
    """Keep the newest version of each id; `ids` may repeat, and `owners` are places in it.

    Rows of one partition come in offset order, or are one version that comes several times (chunks).
    """
    last = dict(zip(ids, range(len(ids)), strict=True))
    if len(last) == len(ids):
        return WindowDocuments(
            ids, last, partitions, offsets, times, maybe_held, hashes, owners, keys, values
        )
    return _Repeated(ids, last, partitions, offsets, times, owners, keys, values).documents(
        maybe_held, hashes
    )


class _Repeated:
    """A window in which some ids come more than once (the slower way of `newest`)."""

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
        self.rows: dict[bytes, list[int]] = {}  # repeated id -> all its rows
        final = np.zeros(len(ids), np.bool_)
        final[np.fromiter(last.values(), np.int64, len(last))] = True
        for row in np.flatnonzero(~final).tolist():
            self.rows.setdefault(ids[row], []).append(row)
        for docid, rows in self.rows.items():
            rows.append(last[docid])

    def documents(self, maybe_held: Mask, hashes: Hashes) -> WindowDocuments:
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
        return WindowDocuments(
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
