"""The store of a slice in dictionaries: the simulation's, and the second opinion in the conformance suite.

It does what `interface` says, version by version, by the rule in `resolve.step`, and none of what makes the
LMDB store fast. A commit is a new set of dictionaries, so snapshots are references, and so are the states
that it can step back to. A fold ends when `finish_fold` is called; `reopened` is what a crash leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from indexer.store.integrity.mirror import check_mirror
from indexer.store.interface import Applied, ApplyResult, Counts, Row, SkipLine
from indexer.store.lmdb.writing import skip_lines
from indexer.store.resolve.corrections import Corrected, Moments, correct
from indexer.store.resolve.resolve import step
from keytide.errors import RetryableError, invariant
from keytide.wire.columns import heard_ids, heard_offsets, heard_times, puts_columns, unpack
from keytide.wire.corrections import read_corrections
from keytide.wire.messages import Corrections, Heard, PutChunk, Puts, RemovalChunk, Segment
from tests.memory_store.copying import MemoryExport, MemorySliceFilling
from tests.memory_store.snapshot import MemorySnapshot, MemoryState

_GENERATIONS = count()


class MemorySliceStore:
    """`SliceStore` in memory.

    Args:
        initial: the state of a new slice.
        fold_entries, fold_age_ms: as in `StoreSettings`.
        undo_folds: how many folds it can step back at most.
        check: check Mirror at every commit.
    """

    def __init__(
        self,
        initial: Applied,
        *,
        fold_entries: int = 400_000,
        fold_age_ms: int = 30_000,
        undo_folds: int = 16,
        check: bool = False,
    ) -> None:
        self._state = MemoryState(initial)
        self._make_durable(self._state)
        self._undo: deque[MemoryState] = deque(maxlen=undo_folds)
        self._frozen: MemoryState | None = None
        self._changes = 0
        self._since: int | None = None
        self._fold_entries, self._fold_age_ms, self._check = fold_entries, fold_age_ms, check
        self._closed = False

    def _make_durable(self, state: MemoryState) -> None:
        self._durable = state
        self._generation = str(next(_GENERATIONS))

    @classmethod
    def filled(cls, filling: MemorySliceFilling, **options: Any) -> MemorySliceStore:
        """What a filling that was finished is, opened; options as for a new one."""
        state = filling.state()
        store = cls(state.applied, **options)
        store._state = store._durable = state
        return store

    @property
    def applied(self) -> Applied:
        return self._state.applied

    @property
    def durable(self) -> Applied:
        return self._durable.applied

    @property
    def counts(self) -> Counts:
        return self._state.counts()

    @property
    def folding(self) -> bool:
        return self._frozen is not None

    def apply(self, segments: Sequence[Segment], applied: Applied) -> ApplyResult:
        change = _Change(self._state)
        for segment in segments:
            if segment.heard is not None:
                change.heard(segment.partition, segment.start, segment.heard, segment.puts)
            change.lines(skip_lines(segment))
        return self._commit(change, applied)

    def correct(self, corrections: Corrections, spared: frozenset[int], applied: Applied) -> int:
        change = _Change(self._state)
        documents, moments = 0, Moments(corrections.timestamp, self.applied.timestamp)
        for ordinal, one in enumerate(read_corrections(corrections)):
            before = change.state.back.get(one.id)
            look = change.state.entries.get
            after = correct(one, before, ordinal in spared, moments, look)
            if after is not None:
                change.correct(one.id, after)
                documents += 1
        self._commit(change, applied)
        return documents

    def load(
        self, puts: Collection[PutChunk], removals: Sequence[RemovalChunk], applied: Applied
    ) -> ApplyResult:
        invariant(
            self._frozen is None and self._state == self._durable,
            "BackfillIsInvisible",
            "a micro-batch came beside changes that are not folded",
        )
        change = _Change(self._state)
        for chunk in removals:
            if chunk.heard is not None:
                change.heard(chunk.partition, chunk.base, chunk.heard, None)
            change.lines(skip_lines(chunk))
        for puts_chunk in puts:
            change.chunk(puts_chunk)
        result = self._commit(change, applied)
        self._make_durable(self._state)
        self._changes = 0
        self._undo.clear()
        return result

    def _commit(self, change: _Change, applied: Applied) -> ApplyResult:
        self._state = replace(change.state, applied=applied)
        self._changes += change.put + change.removed
        if self._check:
            self.check_mirror()
        return ApplyResult(change.put, change.removed, change.ignored, 0, self.counts)

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(self._state)

    def export(self) -> MemoryExport:
        if self._closed:
            raise RetryableError("the store was closed", problem_type="snapshot-closed")
        return MemoryExport(self._durable, self._generation, lambda: self._closed)

    def fold_due(self, now: int) -> bool:
        if self._frozen is not None or self._state == self._durable:
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._fold_age_ms or self._changes >= self._fold_entries

    def start_fold(self) -> bool:
        if self._frozen is not None or self._state == self._durable:
            return False
        self._frozen, self._changes, self._since = self._state, 0, None
        return True

    def finish_fold(self, wait_s: float = 0.0) -> Applied | None:
        if self._frozen is None:
            return None
        self._undo.append(self._durable)
        self._make_durable(self._frozen)
        self._frozen = None
        return self._durable.applied

    @property
    def horizon(self) -> Applied:
        return self._undo[0].applied if self._undo else self._durable.applied

    @property
    def undo_steps(self) -> int:
        return len(self._undo)

    @property
    def undo_given_up(self) -> bool:
        return False

    def step_back(self, holds: Callable[[Applied], bool]) -> bool:
        if holds(self._state.applied):
            return True
        self.finish_fold()
        self._state, self._changes, self._since = self._durable, 0, None
        states = [*self._undo, self._durable]
        newest = max((n for n, state in enumerate(states) if holds(state.applied)), default=None)
        if newest is None:
            return False
        for _ in range(len(states) - 1 - newest):
            self._state = self._undo.pop()
            self._make_durable(self._state)
        return True

    def verify(self) -> None:
        """Nothing is written anywhere that could be damaged."""

    def check_mirror(self) -> None:
        check_mirror(self.snapshot())

    def disk_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._durable.entries.items())

    def reopened(self) -> MemorySliceStore:
        """What is there after a crash and a restart."""
        store = MemorySliceStore(
            self.durable, fold_entries=self._fold_entries, fold_age_ms=self._fold_age_ms, check=self._check
        )
        store._state = self._durable
        store._make_durable(self._durable)
        store._undo = self._undo.copy()
        return store

    def close(self) -> None:
        self._state, self._frozen = self._durable, None
        self._closed = True

    def destroy(self) -> None:
        applied = self.applied  # (as the one on a disk, it still says what it was at)
        self.close()
        self._state = self._durable = MemoryState(applied)
        self._undo.clear()


class _Change:
    """A commit in the making."""

    def __init__(self, before: MemoryState) -> None:
        self.state = MemoryState(before.applied, dict(before.entries), dict(before.back), dict(before.lines))
        self.put = self.removed = self.ignored = 0

    def heard(self, partition: int, start: int, heard: Heard, puts: Puts | None) -> None:
        ids = heard_ids(heard)
        entries: list[list[Row]] = [[] for _ in ids]
        if puts is not None:
            view = puts_columns(puts)
            values = view.values or [b""] * puts.count
            for ordinal, key, value in zip(view.ordinals.tolist(), view.keys, values, strict=True):
                entries[ordinal].append((key, value))
        offsets, times = heard_offsets(heard, start).tolist(), heard_times(heard).tolist()
        for docid, offset, time, rows in zip(ids, offsets, times, entries, strict=True):
            self._version(docid, partition, offset, time, rows)

    def chunk(self, chunk: PutChunk) -> None:
        ids = unpack(np.frombuffer(chunk.id_lengths, np.uint8), chunk.ids)
        keys = unpack(np.frombuffer(chunk.key_lengths, "<u2"), chunk.keys)
        values = [b""] * chunk.count
        if chunk.value_lengths:
            values = unpack(np.frombuffer(chunk.value_lengths, "<u4"), chunk.values)
        partitions = np.frombuffer(chunk.partitions, "<u4").tolist()
        offsets = np.frombuffer(chunk.offsets, "<u8").tolist()
        times = np.frombuffer(chunk.times, "<i8").tolist()
        for place, docid in enumerate(ids):
            row = (keys[place], values[place])
            self._version(docid, partitions[place], offsets[place], times[place], [row])

    def correct(self, docid: bytes, after: Corrected) -> None:
        entries, back = self.state.entries, self.state.back
        for key in after.removed:
            del entries[key + docid]
        for key, value in after.puts.items():
            entries[key + docid] = value
        self.removed += len(after.removed)
        self.put += len(after.puts)
        if after.record is not None:
            back[docid] = after.record
        else:
            back.pop(docid, None)

    def lines(self, lines: Sequence[SkipLine]) -> None:
        for line in lines:
            self.state.lines.setdefault((line.partition, line.offset), line)

    def _version(self, docid: bytes, partition: int, offset: int, time: int, rows: list[Row]) -> None:
        entries, back = self.state.entries, self.state.back
        before = back.get(docid)
        after, taken = step(before, partition, offset, time, list(dict(rows)))
        if not taken:
            self.ignored += 1
        else:
            for key in () if before is None else before.keys:
                if after is None or key not in after.keys:
                    entries.pop(key + docid, None)  # (an entry that a fault has lost is no reason to stop)
                    self.removed += 1
            for key, value in rows:
                entries[key + docid] = value
                self.put += 1
        if after is not None:
            back[docid] = after
        elif before is not None:
            del back[docid]
