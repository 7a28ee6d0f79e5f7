"""What changed in a slice from one snapshot to another, as a task (`indexer.scan.local.tasks`).

Theory of operation
===================
Both snapshots give their entries of the spans in key order. What lies up to the nearer of the two blocks'
last keys is complete on both sides, and is compared as a whole: equal stretches, which is nearly everything,
cost one comparison of two lists; only where they differ are sets made of them. Only differences travel. One
call looks at a bounded number of entries, and says where it got to.

An entry whose value has changed (included columns, or 5 that became 5.0) is removed and added. Without
included columns, when a reader does not want them, only the rest counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from indexer.scan.local.filtering import Filters, picked
from indexer.scan.local.once import read_once
from indexer.scan.local.tasks import SliceWork
from indexer.scan.plan.selection import stretches
from indexer.view import ReadableSnapshot
from keytide.model.entry import Entry

TASK: Final = "changes"
EXAMINED: Final = 100_000
"""Entries of both snapshots that one call looks at: some tens of milliseconds."""

Side = Literal["both", "added", "removed"]


class ChangesWanted(msgspec.Struct, frozen=True, array_like=True):
    """Arguments of the task: the request names the newer snapshot and the spans.

    Attributes:
        older, incarnation: the snapshot to compare with.
        bytes: of changes that one call gives, about.
        include: whether included columns count.
    """

    older: int
    incarnation: int
    bytes: int
    include: bool
    side: Side = "both"


class SliceChanges(msgspec.Struct, array_like=True):
    """What one slice, or several, have to tell.

    Attributes:
        gone: the slice does not hold the older snapshot; nothing was compared.
        more, reached: whether there may be further changes, and behind which key.
    """

    added: list[Entry]
    removed: list[Entry]
    gone: bool = False
    more: bool = False
    reached: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
encode_wanted = _encode
_decode_wanted = msgspec.msgpack.Decoder(ChangesWanted).decode
decode_changes = msgspec.msgpack.Decoder(SliceChanges).decode


_filters = Filters()


def find_changes(work: SliceWork) -> bytes:
    """The task.

    Raises:
        StoreDamagedError: the store is not what was written.
    """
    wanted = _decode_wanted(work.request.shape.body)
    older = work.view.acquire(work.request.span.index, work.slice, wanted.older)
    if older is None:
        return _encode(SliceChanges([], [], gone=True))
    try:
        if older.incarnation != wanted.incarnation:
            return _encode(SliceChanges([], [], gone=True))
        older_once = read_once(older, work.definition.structure, work.request.span.spans)
        return _encode(_compared(work, older_once, wanted))
    finally:
        older.release()


def _compared(work: SliceWork, older: ReadableSnapshot, wanted: ChangesWanted) -> SliceChanges:
    found = SliceChanges([], [])
    without_columns = work.definition.structure.without_columns
    test = _filters.test(work.request.span.index, work.definition, work.request.shape)
    size = examined = 0
    spans = list(stretches(work.request.span, work.after))
    some = (filter(None, one.rows_of(spans)) for one in (older, work.snapshot))
    for place, before, after in _aligned(*some):
        examined += len(before) + len(after)
        if before != after:
            if test is not None:
                before, after = list(picked(test, before)), list(picked(test, after))
            if not wanted.include:
                before = [(key, without_columns(value)) for key, value in before]
                after = [(key, without_columns(value)) for key, value in after]
            was, now = set(before), set(after)
            removed = [row for row in before if row not in now] if wanted.side != "added" else []
            added = [row for row in after if row not in was] if wanted.side != "removed" else []
            size += sum(len(key) + len(value) for rows in (added, removed) for key, value in rows)
            found.removed += removed
            found.added += added
        work.pace.look()
        if size >= wanted.bytes or examined >= EXAMINED or work.pace.spent:
            found.more, found.reached = True, place
            return found
    return found


def _aligned(
    older: Iterator[list[Entry]], newer: Iterator[list[Entry]]
) -> Iterator[tuple[bytes, list[Entry], list[Entry]]]:
    """Both streams cut at the same keys: (last key, older entries up to it, newer entries up to it)."""
    before: list[Entry] = []
    after: list[Entry] = []
    while True:
        before = before or next(older, [])
        after = after or next(newer, [])
        if not before and not after:
            return
        place = min(block[-1][0] for block in (before, after) if block)
        first, second = _up_to(before, place), _up_to(after, place)
        yield place, before[:first], after[:second]
        before, after = before[first:], after[second:]


def _up_to(block: list[Entry], place: bytes) -> int:
    """How many entries of a block lie at or before a key."""
    if block and block[-1][0] <= place:
        return len(block)
    return bisect_right(block, place, key=_key)


def _key(entry: Entry) -> bytes:
    return entry[0]
