"""Pages of this node's slices, read as one: the shortest way of a scan.

Theory of operation
===================
Most scans read the number that is published now, thousands of them the same one before the next is. So a
snapshot of a set of slices is looked up once, checked once (it is of the history that holds, no slice is
being rebuilt, all have one timestamp), and read again and again with cursors that stay open
(`indexer.store.joint`). What was looked up is void with a change of the system dictionary, and when a slice
has let go of the snapshot (a rollback, damage, its end): then it is looked up again.

What is the least out of the ordinary is not read here, nor what comes to more than `LOOKED_AT_BYTES`, about:
the answer is None, and `reader.LocalReader` reads slice by slice, in a thread if it takes long, and finds out
and reports what is wrong. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add, gt, lt
from typing import Final, NamedTuple, TypeVar

from msgspec import structs

from indexer.scan.local.entry_bytes import bytes_of
from indexer.scan.local.filtering import key_test
from indexer.scan.peer.messages import (
    Entry,
    JointPage,
    JointRead,
    JointSpans,
    LeaseRequest,
    ReadSpan,
    SliceReply,
)
from indexer.scan.plan.directory import rebuilding
from indexer.scan.plan.leases import Leases
from indexer.scan.plan.selection import stretches
from indexer.view import LOOKED_AT_BYTES, JointSnapshot, LargeRowsError, NodeView, StoreDamagedError
from keytide.catalog.catalog import Catalog
from keytide.errors import InvariantViolationError
from keytide.geometry import CELL_BYTES
from keytide.structure import Structure

REMEMBERED: Final = 64
"""Snapshots of a node that are remembered: then the oldest ones are forgotten."""

MOST_ROWS: Final = 1 << 31
"""More than a page has."""
FEW_SPANS: Final = 4
"""So many are read one after the other, a tenth of a millisecond each, and no further than is wanted."""
MOST_OF_SPANS: Final = 1_000
"""Rows of more spans, half a millisecond to read."""
MOST_SEEKS: Final = 512
"""Spans of a slice each: some 2 ms."""
IN_VAIN: Final = 4_000
"""Rows that are looked at in slices one after the other, beside those that are found: a few milliseconds."""
LARGE_MS: Final = 1_000
"""For so long no page of a snapshot is tried that has as many rows as one that was too large: the next ones
of the same scan will be, too; those of others are read more slowly meanwhile."""

_Found = tuple[list[Entry], dict[int, int], Mapping[int, SliceReply]]
"""The first three of `JointPage`."""
_Key = tuple[str, tuple[int, ...], int, int]
"""(index, slices, number, incarnation)."""
_T = TypeVar("_T")


class _LookedUp(NamedTuple):
    """A snapshot, the structure of its index, what its slices say of it, under which dictionary it was
    checked, and the newest numbers that the replies tell, slice by slice."""

    snapshot: JointSnapshot
    structure: Structure
    replies: Mapping[int, SliceReply]
    catalog: Catalog
    offset: int
    newest: list[int]


def _remember(known: dict[_Key, _T], key: _Key, value: _T) -> None:
    """Add what is known of a snapshot; what was added first is forgotten."""
    while len(known) >= REMEMBERED:
        del known[next(iter(known))]
    known[key] = value


class JointReads:
    """Reads the slices of this node as one.

    Args:
        view: the node.
        leases: what page tokens keep.
        now: the clock that leases go by, ms.
    """

    def __init__(self, view: NodeView, leases: Leases, now: Callable[[], int]) -> None:
        self._view = view
        self._leases = leases
        self._now = now
        self._known: dict[_Key, _LookedUp] = {}
        self._large: dict[_Key, tuple[int, int]] = {}  # (rows, until, ms)

    def first(self, asked: JointRead) -> JointPage | None:
        """The first entries; None when they are to be read slice by slice.

        Raises:
            TooManyLeasesError: a lease was asked for, and is one too many.
        """
        if asked.after or len(asked.spans) > 1:
            asked = structs.replace(asked, spans=_spans_ahead(asked), after=b"")
            spans = len(asked.spans)
            if not spans or (spans > 1 and spans * len(asked.slices) > MOST_SEEKS):
                return None
        if asked.keys and len(asked.spans) <= FEW_SPANS:
            return None  # a slice reads no row of another key, each of which may be long
        key = (asked.index, asked.slices, asked.number, asked.incarnation)
        if self._large and asked.count >= self._too_many(key):
            return None
        try:
            if asked.in_order:
                found = self._one_by_one(asked)
            else:
                found = self._read(asked, asked.slices, asked.count)
        except LargeRowsError:  # as many are not tried again: half of them would be read in vain
            _remember(self._large, key, (asked.count, self._now() + LARGE_MS))
            return None
        if found is None:
            return None
        entries, read, replies = found
        leased = (
            asked.lease_ms > 0
            and len(entries) >= asked.count
            and not self._leases.keep(
                LeaseRequest(
                    asked.index,
                    asked.number,
                    asked.incarnation,
                    list(asked.slices),
                    asked.lease_ms,
                    asked.in_use,
                    client=asked.client,
                ),
                self._now(),
            )
        )
        return JointPage(entries, read, replies, leased)

    def _too_many(self, key: _Key) -> int:
        """Rows that were too large together a moment ago."""
        count, until = self._large.get(key, (MOST_ROWS, 0))
        if until <= self._now():
            self._large.pop(key, None)
            return MOST_ROWS
        return count

    def within(self, asked: JointSpans) -> JointPage | None:
        """One entry at least of each document that has some in these spans; None when they are many, or to be
        read slice by slice."""
        key = (asked.index, asked.slices, asked.number, asked.incarnation)
        found = self._known_or_new(
            key,
            lambda one: one.snapshot.within(asked.lows, asked.highs, asked.most, CELL_BYTES),
            several=True,
        )
        if found is None or sum(found[1].values()) > asked.most:
            return None
        return JointPage(*found, leased=False)

    def _one_by_one(self, asked: JointRead) -> _Found | None:
        """The entries of slices whose order is theirs."""
        ahead = gt if asked.reverse else lt
        entries, room = list[Entry](), LOOKED_AT_BYTES
        read: dict[int, int] = {}
        replies: dict[int, SliceReply] = {}
        for number in asked.slices:
            found = self._read(asked, (number,), asked.count - len(entries))
            if found is None:
                return None
            if entries and found[0] and not ahead(entries[-1][0], found[0][0][0]):
                return None  # whoever reads them alone finds out which slice is not what it should be
            entries += found[0]
            read.update(found[1])
            replies.update(found[2])
            full = len(entries) >= asked.count
            if not full or len(entries) > len(found[0]):  # (what is read at once has its own bound)
                room = _left(room, found[0])
            if full:
                break
            if sum(read.values()) - len(entries) > IN_VAIN:
                return None
        return entries, read, replies

    def _read(self, asked: JointRead, slices: tuple[int, ...], count: int) -> _Found | None:
        """The first entries of some of the slices."""
        key = (asked.index, slices, asked.number, asked.incarnation)
        return self._known_or_new(key, lambda one: _first(one, asked, count), several=False)

    def _known_or_new(
        self,
        key: _Key,
        read: Callable[[_LookedUp], tuple[list[Entry], list[int]] | None],
        *,
        several: bool,
    ) -> _Found | None:
        """Read a snapshot that is known, or is looked up.

        Args:
            several: whether the documents may have several entries; else none is read that has.
        """
        slices, known = key[1], self._known.get(key)
        try:
            found = None
            if known is not None and self._holds(known):
                if known.structure.several and not several:
                    return None
                found = read(known)
            if found is None and (known := self._look_up(key, several)) is not None:
                found = read(known)
        except StoreDamagedError:
            found = None  # the slice's ring knows, and gives nothing out: whoever reads it alone is told why
        if known is None or found is None:
            self._known.pop(key, None)
            return None
        entries, counts = found
        return entries, dict(zip(slices, counts, strict=True)), self._replies(key, known)

    def _replies(self, key: _Key, one: _LookedUp) -> Mapping[int, SliceReply]:
        """What the slices say: the same as last time, unless one has committed since."""
        newest = [self._view.newest(key[0], number) for number in key[1]]
        if newest == one.newest:
            return one.replies
        told = zip(one.replies.values(), newest, strict=True)
        replies = {reply.slice: structs.replace(reply, newest=number) for reply, number in told}
        self._known[key] = one._replace(replies=replies, newest=newest)
        return replies

    def _holds(self, one: _LookedUp) -> bool:
        catalog = self._view.catalog()
        return catalog is one.catalog and catalog.offset == one.offset

    def _look_up(self, key: _Key, several: bool) -> _LookedUp | None:
        """Find a snapshot, and check it; None when it is to be read slice by slice. (`_known_or_new` has
        `several`.)"""
        index, slices, number, incarnation = key
        catalog = self._view.catalog()
        record, offset = catalog.index(index), catalog.offset
        if record is None or (record.definition.structure.several and not several):
            return None
        if not slices or any(rebuilding(catalog, index, one) for one in slices):
            return None
        if not self._view.history(index).number_holds(number, incarnation):
            return None
        snapshot = self._view.joint(index, slices, number)
        if snapshot is None:
            return None
        first, *others = snapshot.timestamps
        if any(one != first for one in others) or any(one != incarnation for one in snapshot.incarnations):
            return None
        replies = {
            one: SliceReply(one, number, first, [], True, 0, False, number, incarnation) for one in slices
        }
        newest = [0] * len(slices)
        found = _LookedUp(snapshot, record.definition.structure, replies, catalog, offset, newest)
        _remember(self._known, key, found)
        return found


def _spans_ahead(asked: JointRead) -> list[tuple[bytes, bytes | None]]:
    """What of the spans lies behind `after` in the direction of the read, ascending."""
    whole = ReadSpan(asked.index, [], asked.spans, [], asked.reverse)
    return sorted(stretches(whole, asked.after))


def _first(one: _LookedUp, asked: JointRead, count: int) -> tuple[list[Entry], list[int]] | None:
    """The first entries, and how many were looked at in each slice; None when they are not all wanted, or as
    `JointSnapshot.first`."""
    few = len(asked.spans) <= FEW_SPANS
    found = _one_after_the_other(one, asked, count) if few else _together(one, asked, count)
    if found is not None and asked.keys:
        has_key = key_test(one.structure, asked.keys)
        try:
            return found if all(has_key(*entry) for entry in found[0]) else None
        except InvariantViolationError:
            return None  # whoever reads it alone finds out which slice it is of
    return found


def _one_after_the_other(
    one: _LookedUp, asked: JointRead, count: int
) -> tuple[list[Entry], list[int]] | None:
    entries, room = list[Entry](), LOOKED_AT_BYTES
    read = [0] * len(one.snapshot.timestamps)
    for low, high in reversed(asked.spans) if asked.reverse else asked.spans:
        found = one.snapshot.first(low, high, asked.reverse, count - len(entries))
        if found is None:
            return None
        entries = entries + found[0] if entries else found[0]
        read = [*map(add, read, found[1])]
        full = len(entries) >= count
        if not full or len(entries) > len(found[0]):  # (as above)
            room = _left(room, found[0])
        if full:
            break
    return entries, read


def _left(room: int, entries: list[Entry]) -> int:
    """How many bytes there is room for beside these.

    Raises:
        LargeRowsError: none.
    """
    room -= bytes_of(entries)
    if room < 0:
        raise LargeRowsError
    return room


def _together(one: _LookedUp, asked: JointRead, count: int) -> tuple[list[Entry], list[int]] | None:
    """All that there is in the spans is read; None when it is much."""
    lows, highs = zip(*asked.spans, strict=True)
    found = None if None in highs else one.snapshot.within(lows, highs, MOST_OF_SPANS, 0)
    if found is None or sum(found[1]) > MOST_OF_SPANS:
        return None
    return sorted(found[0], reverse=asked.reverse)[:count], found[1]
