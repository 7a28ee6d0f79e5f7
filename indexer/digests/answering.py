"""What a node does for verification (`keytide.wire.digests`): holds snapshots of slices, sums them up, gives
rows. Builds that begin with the slices of another layout hold and read them in the same way (`seeds`).

Theory of operation
===================
Verification asks slices of any index that is placed here, READY or not: an index is verified before it is
READY, when scans still refuse it. A snapshot is held under an id of the verifier's own, in the ring of each
slice, like a page token's; it runs out when it is not renewed, and a restart loses it (then the verification
begins again).

A call looks at a bounded number of rows and says where it is, in a thread of the pool for long reads: so it
keeps no thread from scans for long, and ends with whoever asked.

What a read finds that no commit can have written has the slice examined, as with every other read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from indexer.digests import built, seeds
from indexer.digests.holding import LARGEST_LIMIT, snapshot_for
from indexer.scan.local.tasks import UNHURRIED, Pace
from indexer.unique.shape import KeyShape
from indexer.view import DoubtfulReadError, NodeView, ReadableSnapshot, StoredDocument
from keytide.definition.index import IndexDefinition
from keytide.errors import InvariantViolationError, RetryableError
from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from keytide.wire.columns import hashes_of
from keytide.wire.digests import (
    Answer,
    Ask,
    BackRow,
    DigestAnswer,
    DigestAsk,
    DuplicateKey,
    EntriesAsk,
    PinAnswer,
    PinAsk,
    RowsAnswer,
    RowsAsk,
    SkipsAsk,
    SlicePin,
)
from keytide.wire.entry_sums import BuiltAsk

LONGEST_LEASE_MS: Final = 600_000
"""Whatever is asked: a verifier renews what it holds much sooner."""
_BLOCK: Final = 4_096
_DUPLICATES: Final = 1_000
"""A call ends with the block in which it has so many to tell."""


def answer(view: NodeView, ask: Ask, now: int, effort: Pace = UNHURRIED) -> Answer:
    """Answer a verifier. Any thread.

    Args:
        now: milliseconds.
        effort: how much of the node it may take.

    Raises:
        OutOfTimeError, GivenUpError: as `Pace.look`.
        SnapshotNotHeldError: the slice does not hold the snapshot.
        RetryableError: the index is not known here, or the slice is damaged.
    """
    if isinstance(ask, PinAsk):
        return PinAnswer([_pin(view, ask, number, now) for number in ask.slices])
    if isinstance(ask, BuiltAsk):
        with snapshot_for(view, ask) as snapshot:
            return built.part(snapshot, ask, effort)
    record = view.catalog().index(ask.index)
    if record is None:
        raise RetryableError(
            f"node {view.node_id} knows no index {ask.index}",
            problem_type="index-not-ready",
            next_step="try again in a moment",
        )
    with snapshot_for(view, ask) as snapshot:
        if isinstance(ask, DigestAsk):
            return digest(snapshot, record.definition, ask, effort)
        if isinstance(ask, EntriesAsk):
            return seeds.entries(snapshot, record.definition, ask, effort)
        if isinstance(ask, SkipsAsk):
            return seeds.skips(snapshot, ask)
        return rows(snapshot, record.definition, ask, effort)


def _pin(view: NodeView, ask: PinAsk, number: int, now: int) -> SlicePin:
    newest = view.newest(ask.index, number)
    wanted = newest if ask.number < 0 else ask.number
    trouble = view.trouble(ask.index, number)
    snapshot = view.acquire(ask.index, number, wanted) if wanted >= 0 else None
    if snapshot is None:
        return SlicePin(number, False, wanted, newest, -1, Timestamp(), trouble.reason if trouble else "")
    try:
        held = ask.number < 0 or snapshot.incarnation == ask.incarnation
        if held and ask.number >= 0:
            until = now + min(ask.lease_ms, LONGEST_LEASE_MS)
            held = view.lease(ask.index, number, wanted, ask.hold, until)
        entries = snapshot.count(b"", None)
        at = snapshot.incarnation, snapshot.timestamp
        return SlicePin(number, held, wanted, newest, *at, entries=entries, foreign=snapshot.foreign)
    finally:
        snapshot.release()


# --- digests ----------------------------------------------------------------------------------------------


def digest(
    snapshot: ReadableSnapshot, definition: IndexDefinition, ask: DigestAsk, effort: Pace
) -> DigestAnswer:
    """Sum up a part of a slice.

    Raises:
        DoubtfulReadError: a row cannot have been written.
    """
    limit = max(1, min(ask.limit, LARGEST_LIMIT))
    forward = ask.stage == "forward"
    work = _Forward(snapshot, definition, ask, effort) if forward else _Back(snapshot, ask)
    reached, seen = ask.after, 0
    try:
        for reached, count in work.blocks():
            seen += count
            effort.look()
            if seen >= limit or work.full or effort.spent:
                return work.result(True, reached, seen)
    except (InvariantViolationError, UnicodeDecodeError) as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error
    return work.result(False, reached, seen)


class _Forward:
    """Sums of forward entries, and the duplicates among them.

    Where canonical keys are in values, entries of one key may lie among others of its stem, a digest.
    A page that begins within a stem knows the key of the entry before it, which is that of all the stem, but
    for collisions: only for these is what the stem has up to there read again.
    """

    @property
    def full(self) -> bool:
        """Whether there is enough for one answer."""
        return len(self._duplicates) >= _DUPLICATES

    def __init__(
        self, snapshot: ReadableSnapshot, definition: IndexDefinition, ask: DigestAsk, effort: Pace
    ) -> None:
        self._snapshot = snapshot
        self._ask = ask
        self._effort = effort
        self._shape = KeyShape(definition.structure)
        self._id_starts = definition.structure.id_starts
        self._unique = definition.unique
        self._floors = {partition: floor for partition, floor in ask.floors.items() if floor > 0}
        self._sums = digests.no_sums(ask.bits)
        self._last: tuple[bytes, bytes] = (b"", b"")
        self._stem = b""
        self._of_stem: dict[bytes, bytes] = {}
        """Key -> the last document that has it, of keys with the present stem."""
        self._unread = b""
        """Up to which entry that stem was not read; b"" when `_of_stem` has all of it."""
        self._left_out = 0
        self._duplicates: list[DuplicateKey] = []

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Sum up block by block; (the last key, rows) of each."""
        after = self._ask.after or None
        if after and self._unique:
            self._go_on_behind(after)
        for block in self._snapshot.rows(b"", None, False, None, after):
            self._add([key for key, _ in block], [value for _, value in block])
            yield block[-1][0], len(block)

    def _go_on_behind(self, after: bytes) -> None:
        """Have what comes behind an entry compared with what came up to it."""
        if not self._shape.stored:
            (at,) = self._id_starts([after])
            self._last = after[:at], after[at:]
            return
        for ((_, value),) in self._snapshot.rows(after, after + b"\x00"):
            key, id_ = self._shape.split(after, value)
            self._stem, self._of_stem, self._unread = self._shape.stem(key), {key: id_}, after

    def _add(self, keys: list[bytes], values: list[bytes]) -> None:
        sums = self._sums
        starts = self._id_starts(keys)
        ids = [key[start:] for key, start in zip(keys, starts, strict=True)]
        buckets = digests.buckets_of(hashes_of(ids, len(ids)), self._ask.bits)
        plain, full = digests.entry_hashes(keys, values)
        digests.add(sums, digests.FORWARD, buckets, plain)
        if self._unique:
            if self._shape.stored:
                self._find_by_stem(keys, values)
            else:
                self._find_duplicates([key[:start] for key, start in zip(keys, starts, strict=True)], ids)
        if self._floors:
            kept = self._provable(ids)
            self._left_out += len(ids) - int(kept.sum())
            buckets, full = buckets[kept], full[kept]
        digests.add(sums, digests.ENTRIES, buckets, 1)
        digests.add(sums, digests.CONTENT, buckets, full)

    def _provable(self, ids: list[bytes]) -> npt.NDArray[np.bool_]:
        """Whether the version of each document lies where the source still has records. bool[n]."""
        floors = self._floors
        return np.array(
            [
                held is None or not digests.below(floors, held.partition, held.offset)
                for held in self._snapshot.documents(ids)
            ],
            np.bool_,
        )

    def _find_duplicates(self, keys: list[bytes], ids: list[bytes]) -> None:
        for one, other in pairwise([self._last, *zip(keys, ids, strict=True)]):
            if one[0] and one[0] == other[0] and self._shape.comparable(one[0]):
                self._duplicates.append(DuplicateKey(one[0], (one[1], other[1])))
        self._last = keys[-1], ids[-1]

    def _find_by_stem(self, keys: list[bytes], values: list[bytes]) -> None:
        """The same where entries of one key lie among those of others of its stem."""
        for entry_key, value in zip(keys, values, strict=True):
            key, id_ = self._shape.split(entry_key, value)
            if not self._of_stem or not entry_key.startswith(self._stem):
                self._stem, self._of_stem, self._unread = self._shape.stem(key), {}, b""
            if self._unread and key not in self._of_stem and self._shape.comparable(key):
                self._read_stem_again()
            if key in self._of_stem and self._shape.comparable(key):
                told = self._shape.told(key)
                self._duplicates.append(DuplicateKey(told, (self._of_stem[key], id_)))
            self._of_stem[key] = id_

    def _read_stem_again(self) -> None:
        """Take in what the present stem has up to where this page began."""
        before: dict[bytes, bytes] = {}
        for block in self._snapshot.rows(self._stem, self._unread + b"\x00"):
            before.update(self._shape.split(*entry) for entry in block)
            self._effort.look()
        self._of_stem, self._unread = before | self._of_stem, b""

    def result(self, more: bool, reached: bytes, seen: int) -> DigestAnswer:
        sums = self._sums.astype("<u8").tobytes()
        return DigestAnswer(sums, more, reached, seen, self._left_out, self._duplicates)


class _Back:
    """Sums of the back index."""

    full = False

    def __init__(self, snapshot: ReadableSnapshot, ask: DigestAsk) -> None:
        self._snapshot = snapshot
        self._ask = ask
        self._floors = {partition: floor for partition, floor in ask.floors.items() if floor > 0}
        self._sums = digests.no_sums(ask.bits)
        self._left_out = 0

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Sum up block by block; (the last id, rows) of each."""
        block: list[tuple[bytes, StoredDocument]] = []
        for row in self._snapshot.back_rows(self._ask.after):
            block.append(row)
            if len(block) == _BLOCK:
                self._add(block)
                yield block[-1][0], len(block)
                block = []
        if block:
            self._add(block)
            yield block[-1][0], len(block)

    def _add(self, block: Sequence[tuple[bytes, StoredDocument]]) -> None:
        rows = [(docid, held) for docid, held in block if held.keys]  # others are remembered tombstones
        ids = [docid for docid, _ in rows]
        hashes = hashes_of(ids, len(ids))
        buckets = digests.buckets_of(hashes, self._ask.bits)
        keys = [key + docid for docid, held in rows for key in held.keys]
        many = np.repeat(buckets, [len(held.keys) for _, held in rows])
        digests.add(self._sums, digests.BACK, many, hashes_of(keys, len(keys)))
        records = digests.record_hashes(
            hashes, [held.partition for _, held in rows], [held.offset for _, held in rows]
        )
        if self._floors:
            floors = self._floors
            kept = np.array(
                [not digests.below(floors, held.partition, held.offset) for _, held in rows], np.bool_
            )
            self._left_out += len(rows) - int(kept.sum())
            buckets, records = buckets[kept], records[kept]
        digests.add(self._sums, digests.RECORDS, buckets, records)

    def result(self, more: bool, reached: bytes, seen: int) -> DigestAnswer:
        return DigestAnswer(self._sums.astype("<u8").tobytes(), more, reached, seen, self._left_out, [])


# --- rows -------------------------------------------------------------------------------------------------


def rows(snapshot: ReadableSnapshot, definition: IndexDefinition, ask: RowsAsk, effort: Pace) -> RowsAnswer:
    """The rows of chosen documents among the next rows of a slice.

    Raises:
        DoubtfulReadError: a row cannot have been written.
    """
    chosen = _Chosen(ask)
    limit = max(1, min(ask.limit, LARGEST_LIMIT))
    seen = size = 0
    reached = ask.after
    entries: list[tuple[bytes, bytes, bytes]] = []
    back: list[BackRow] = []
    try:
        if ask.stage == "forward":
            id_starts = definition.structure.id_starts
            for block in snapshot.rows(b"", None, False, None, ask.after or None):
                starts = id_starts([key for key, _ in block])
                ids = [key[start:] for (key, _), start in zip(block, starts, strict=True)]
                for at in chosen.among(ids):
                    key, value = block[at]
                    entries.append((ids[at], key[: starts[at]], value))
                    size += len(key) + len(value)
                reached, seen = block[-1][0], seen + len(block)
                effort.look()
                if seen >= limit or size >= ask.bytes_limit or effort.spent:
                    return RowsAnswer(entries, back, True, reached)
        else:
            held: list[tuple[bytes, StoredDocument]] = []
            for row in snapshot.back_rows(ask.after):
                held.append(row)
                if len(held) < _BLOCK:
                    continue
                size += _choose(chosen, held, back)
                reached, seen = held[-1][0], seen + len(held)
                held = []
                effort.look()
                if seen >= limit or size >= ask.bytes_limit or effort.spent:
                    return RowsAnswer(entries, back, True, reached)
            _choose(chosen, held, back)
    except (InvariantViolationError, UnicodeDecodeError) as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error
    return RowsAnswer(entries, back, False, reached)


def _choose(chosen: _Chosen, held: list[tuple[bytes, StoredDocument]], back: list[BackRow]) -> int:
    """Add those that are wanted to `back`; about how many bytes they take."""
    size = 0
    for at in chosen.among([docid for docid, _ in held]):
        docid, one = held[at]
        back.append(BackRow(docid, one.partition, one.offset, one.time, one.keys, one.foreign))
        size += len(docid) + sum(map(len, one.keys)) + 32
    return size


class _Chosen:
    """Which documents are wanted."""

    def __init__(self, ask: RowsAsk) -> None:
        self._bits = ask.bits
        self._buckets = np.zeros(1 << ask.bits, np.bool_)
        self._buckets[ask.buckets] = True
        self._ids = frozenset(ask.ids)

    def among(self, ids: list[bytes]) -> list[int]:
        """The positions of those that are wanted."""
        wanted = self._buckets[digests.buckets_of(hashes_of(ids, len(ids)), self._bits)]
        found: list[int] = np.flatnonzero(wanted).tolist()
        if self._ids:
            more = {at for at, docid in enumerate(ids) if docid in self._ids}
            found = sorted(more.union(found))
        return found
