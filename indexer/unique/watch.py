"""Finds the keys of a UNIQUE index that several documents of a slice have.

Theory of operation
===================
At a commit only keys that it brought can have got another document, so only their neighbours are looked at
(`StoreSnapshot.shared`); of keys that are known to have several documents, those of which a document was
heard. When the slice is opened, ends its build, has stepped back or was corrected, a *sweep* goes once over
all its keys, in their order, some thousand at a time between other work: what a crash or a bulk load leaves
unknown. Keys that it meets are looked at again at the next commit, in the state of that commit, so that it
does not matter how long it takes. What was changed behind its back was brought by commits, and seen there.

While more keys have several documents than are listed, the sweep is repeated from time to time: it counts
them, and fills places that have become free.

Keys may be of any size (`keytide.structure.hashed`), so what is kept of them is how they are told
(`KeyShape.told`), and the stem by which their entries are found.

Used by the ingest thread; `shown` may be read by any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from indexer.store.interface import UNNUMBERED, Applied, Row, StoreSnapshot
from indexer.unique.shape import KeyShape
from indexer.unique.suspects import SettledNumbers, Suspects, UniqueLimits
from keytide.collation import successor
from keytide.definition.index import IndexDefinition
from keytide.wire.columns import heard_hashes, heard_ids, heard_offsets, puts_columns
from keytide.wire.messages import DuplicateDocument, Segment, StabilityTimestamp, UniqueViolation

SWEEP_ROWS: Final = 8_192
"""Keys looked at in one step of a sweep: about 10 ms, for which everything else of the node waits."""
SWEEP_AGAIN_MS: Final = 60_000
"""Between sweeps while not all keys are listed."""
TOLD_KEYS: Final = 8
"""Violations in one heartbeat, and documents of each."""
TOLD_DOCUMENTS: Final = 10
TOLD_BYTES: Final = 4_096
"""Of the keys in one heartbeat, beyond the first: they may be told in 16 KiB (`LONGEST_TOLD`), and the
heartbeat of a node, with all its slices, is one message."""


class Found(NamedTuple):
    """A key that several documents have.

    Attributes:
        told: `KeyShape.told`.
        stem: what its entry keys begin with.
    """

    told: bytes
    stem: bytes


class Sweep:
    """Goes over all keys of a snapshot, which it closes.

    Attributes:
        done: it has seen all.
    """

    def __init__(self, snapshot: StoreSnapshot, shape: KeyShape) -> None:
        self.done = False
        self._snapshot = snapshot
        self._shape = shape
        self._blocks: Iterator[list[Row]] = iter(snapshot.rows())
        self._key = b""
        self._repeated = False
        self._of_stem: Counter[bytes] = Counter()

    def step(self, rows: int) -> list[Found]:
        """Look at about so many more keys; those that several documents have.

        Raises:
            StoreDamagedError: the slice is damaged.
        """
        found: list[Found] = []
        while rows > 0:
            block = next(self._blocks, None)
            if block is None:
                self.close()
                break
            rows -= len(block)
            if self._shape.stored:
                self._look_by_stem(block, found)
            else:
                self._look(block, found)
        return found

    def close(self) -> None:
        """Let go of the snapshot."""
        self.done = True
        self._blocks = iter(())
        self._snapshot.close()

    def _look(self, block: list[Row], found: list[Found]) -> None:
        key, key_of, repeated = self._key, self._shape.key_of, self._repeated
        for entry_key, value in block:
            if key and entry_key.startswith(key):
                if not repeated:
                    repeated = True
                    if self._shape.comparable(key):
                        found.append(Found(key, key))
            else:
                key, repeated = key_of(entry_key, value), False
        self._key, self._repeated = key, repeated

    def _look_by_stem(self, block: list[Row], found: list[Found]) -> None:
        """The same where several keys may share a stem, which `_key` is: how often each came is counted."""
        for entry_key, value in block:
            if not self._key or not entry_key.startswith(self._key):
                self._of_stem.clear()
            key = self._shape.key_of(entry_key, value)
            self._key = self._shape.stem(key)
            self._of_stem[key] += 1
            if self._of_stem[key] == 2 and self._shape.comparable(key):
                found.append(Found(self._shape.told(key), self._key))


class UniqueWatch:
    """What one slice of a UNIQUE index knows of its violations.

    Args:
        shape: of the index's keys.
        term: the newest term known.

    Attributes:
        shown: the listed violations by key, for the endpoint; replaced, never changed.
        judged: whether a key that several documents had at this snapshot or an earlier one is a violation
            has been decided; -1 when that cannot be said yet.
    """

    def __init__(self, shape: KeyShape, limits: UniqueLimits, term: int = 0) -> None:
        self.shown: tuple[UniqueViolation, ...] = ()
        self.judged = UNNUMBERED
        self._shape = shape
        self._limits = limits
        self._settled = SettledNumbers(term)
        self._suspects = Suspects(limits)
        self._sweep: Sweep | None = None
        self._found: dict[bytes, bytes] = {}
        """Told key -> stem, of those that a sweep has met."""
        self._missed = 0
        self._swept_at = UNNUMBERED
        self._again_at = 0
        self._hashes = np.empty(0, np.uint64)
        self._gaps: dict[int, int] = {}
        self._listing: list[bytes] = []

    # --- what happens to the slice --------------------------------------------------------------------

    def begin(self, snapshot: StoreSnapshot) -> None:
        """The slice is in a state that was not reached by commits seen here; the snapshot is closed when it
        is no longer needed."""
        self.forget()
        self._sweep = Sweep(snapshot, self._shape)

    def forget(self) -> None:
        """Nothing is known of the slice any more."""
        if self._sweep is not None:
            self._sweep.close()
        self._sweep = None
        self._suspects = Suspects(self._limits)
        self._found, self._missed = {}, 0
        self._swept_at = self.judged = UNNUMBERED
        self._listing, self.shown = [], ()
        self._hashes = np.empty(0, np.uint64)

    def stamped(self, number: int, message: StabilityTimestamp) -> None:
        """A timestamp of the keyspace was heard."""
        self._settled.stamped(number, message)

    def committed(self, segments: Sequence[Segment], snapshot: StoreSnapshot, applied: Applied) -> None:
        """Segments were committed; `snapshot` shows the slice with them.

        Raises:
            StoreDamagedError: the slice is damaged.
        """
        for segment in segments:
            if (gap := _gap(segment)) is not None:
                self._gaps[segment.partition] = gap
        brought = self._brought(segments)
        touched, kept = self._heard_again(segments) if len(self._suspects) else (set(), {})
        looked, self._found = self._found, {}
        again = touched.union(key for key in brought if key in self._suspects)
        others = [key for told, key in sorted(brought.items()) if told not in again]
        new = (key for key in self._shared(snapshot, others) if self._shape.comparable(key))
        looked |= {self._shape.told(key): self._shape.stem(key) for key in new}
        looked |= {key: self._suspects.stem(key) for key in again}
        for key, stem in looked.items():
            self._look_at(key, stem, snapshot, kept)
        if applied.number != UNNUMBERED:
            self._numbered(applied)
        self._note_documents()

    def look_after(self, now: int, snapshot: StoreSnapshot | None) -> bool:
        """A step of the sweep; whether one was done.

        Args:
            snapshot: of the slice, for a sweep that is due (`due`); closed when it is no longer needed.

        Raises:
            StoreDamagedError: the slice is damaged.
        """
        if snapshot is not None:
            self._sweep = Sweep(snapshot, self._shape)
            self._suspects.overflowed = False
        sweep = self._sweep
        if sweep is None:
            return False
        for key, stem in sweep.step(SWEEP_ROWS):
            if key in self._suspects:
                continue
            if len(self._found) < self._suspects.room:
                self._found[key] = stem
            else:
                self._missed += 1
        if sweep.done:
            self._sweep = None
            self._again_at = now + SWEEP_AGAIN_MS
            self._suspects.unlisted, self._missed = self._missed, 0
            # Keys that commits brought meanwhile, and that found no place, are not in the sweep's snapshot.
            self._suspects.full = self._suspects.unlisted > 0 or self._suspects.overflowed
        return True

    @property
    def sweeping(self) -> bool:
        """Whether a sweep has begun and is not over."""
        return self._sweep is not None

    def due(self, now: int) -> bool:
        """Whether another sweep is due."""
        return self._suspects.full and self._sweep is None and now >= self._again_at

    def show(self) -> None:
        """Bring `shown` up to date."""
        listing = self._suspects.listing()
        if listing is not self._listing:
            self._listing = listing
            self.shown = tuple(self._suspects.violation(key) for key in listing)

    # --- what it says -----------------------------------------------------------------------------------

    @property
    def violations(self) -> int:
        """How many keys are violations."""
        return self._suspects.violations

    @property
    def listed(self) -> int:
        """How many of them are listed."""
        return self._suspects.proven

    def some(self) -> list[UniqueViolation]:
        """The next few violations, for a heartbeat."""
        return self._suspects.some(TOLD_KEYS, TOLD_DOCUMENTS, TOLD_BYTES)

    # --- details ----------------------------------------------------------------------------------------

    def _numbered(self, applied: Applied) -> None:
        number, settled = applied.number, self._settled.by(applied.number, applied.incarnation)
        self._suspects.numbered(number, settled)
        if self._swept_at == UNNUMBERED and self._sweep is None:
            self._swept_at = number
        known = self._swept_at != UNNUMBERED and settled >= self._swept_at and not self._suspects.full
        self.judged = settled if known else UNNUMBERED

    def _look_at(
        self, key: bytes, stem: bytes, snapshot: StoreSnapshot, kept: dict[bytes, frozenset[bytes]]
    ) -> None:
        """Who has a key now, which is told so and has this stem."""
        limit = self._limits.documents
        ids = list(islice(self._having(key, stem, snapshot), limit + 1))
        documents: list[DuplicateDocument] = []
        for docid in ids[:limit]:
            held = snapshot.backs((docid,)).get(docid)
            if held is not None:
                documents.append(DuplicateDocument(docid, held.partition, held.offset, held.time))
        self._suspects.put(key, documents, kept, self._gaps, more=len(ids) > limit, stem=stem)

    def _having(self, key: bytes, stem: bytes, snapshot: StoreSnapshot) -> Iterator[bytes]:
        """The ids of the documents that have a key."""
        if not self._shape.stored:
            for block in snapshot.rows(key, successor(key), limit=self._limits.documents + 1):
                yield from (entry_key[len(key) :] for entry_key, _ in block)
            return
        told, split = self._shape.told, self._shape.split
        for block in snapshot.rows(stem, successor(stem)):
            for entry_key, value in block:
                one, docid = split(entry_key, value)
                if told(one) == key:
                    yield docid

    def _shared(self, snapshot: StoreSnapshot, keys: Sequence[bytes]) -> list[bytes]:
        """Those of some keys that several documents may have; all that several have."""
        if not self._shape.stored:
            return snapshot.shared(keys)
        by_stem: dict[bytes, list[bytes]] = {}
        for key in keys:
            by_stem.setdefault(self._shape.stem(key), []).append(key)
        return [key for stem in snapshot.shared(sorted(by_stem)) for key in by_stem[stem]]

    def _brought(self, segments: Iterable[Segment]) -> dict[bytes, bytes]:
        """How keys are told that segments bring -> the canonical keys."""
        brought: dict[bytes, bytes] = {}
        for segment in segments:
            if segment.puts is not None:
                columns = puts_columns(segment.puts)
                keys = self._shape.brought(columns, range(len(columns.keys)))
                brought.update(
                    zip(map(self._shape.told, keys) if self._shape.stored else keys, keys, strict=True)
                )
        return brought

    def _heard_again(self, segments: Sequence[Segment]) -> tuple[set[bytes], dict[bytes, frozenset[bytes]]]:
        """Keys whose listed documents were heard of, and id -> keys that all their versions bring, as they
        are told."""
        touched: set[bytes] = set()
        kept: dict[bytes, frozenset[bytes]] = {}
        for segment in segments:
            if segment.heard is None:
                continue
            ordinals = np.flatnonzero(np.isin(heard_hashes(segment.heard), self._hashes))
            if not len(ordinals):
                continue
            keys = self._keys_at(segment, ordinals)
            for ordinal, docid in zip(ordinals.tolist(), heard_ids(segment.heard, ordinals), strict=True):
                touched.update(self._suspects.keys_of(docid))
                brings = frozenset(keys.get(ordinal, ()))
                kept[docid] = kept[docid] & brings if docid in kept else brings
        return touched, kept

    def _keys_at(self, segment: Segment, ordinals: npt.NDArray[np.int64]) -> dict[int, list[bytes]]:
        """The keys that some versions of a segment bring, as they are told, by ordinal."""
        if segment.puts is None:
            return {}
        found: dict[int, list[bytes]] = {}
        columns = puts_columns(segment.puts)
        rows = np.flatnonzero(np.isin(columns.ordinals, ordinals)).tolist()
        for row, key in zip(rows, self._shape.brought(columns, rows), strict=True):
            found.setdefault(int(columns.ordinals[row]), []).append(self._shape.told(key))
        return found

    def _note_documents(self) -> None:
        if self._suspects.moved:
            self._suspects.moved = False
            ids = self._suspects.documents
            self._hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, ids), np.uint64)


def _gap(segment: Segment) -> int | None:
    """Where the last offsets of a segment end that brought no record; None when all brought one."""
    heard = segment.heard
    if heard is None:
        return segment.end if segment.end > segment.start else None
    if heard.count == segment.end - segment.start:
        return None
    offsets = heard_offsets(heard, segment.start)
    before = np.flatnonzero(offsets != np.arange(segment.end - heard.count, segment.end))
    at = int(before[-1]) + 1 if len(before) else 0
    return int(offsets[at]) if at < heard.count else segment.end


def watch_of(definition: IndexDefinition, limits: UniqueLimits, term: int) -> UniqueWatch | None:
    """What looks for keys that several documents have in a slice; None where they may have them.

    Args:
        term: newest term known.
    """
    if not definition.unique:
        return None
    return UniqueWatch(KeyShape(definition.structure), limits, term)
