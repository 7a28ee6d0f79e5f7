"""Entries of several slices as one stream: what is final of what they gave, merged. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import gt, itemgetter, lt
from typing import Final

import msgspec

from indexer.scan.gather.scatter import Target
from indexer.scan.local.cursor import behind
from indexer.scan.local.entry_bytes import bytes_of
from indexer.scan.peer.messages import Entry
from keytide.errors import invariant

LEAST_SHARE: Final = 4
"""However much was given already, a slice may give a quarter of its even part of what a page has room for."""


class SliceCursor(msgspec.Struct):
    """One slice while it is being read: what it gave and was not taken yet, and where it is."""

    slice: int
    after: bytes
    entries: list[Entry] = []
    more: bool = True


def share_of(room: int, filled: int, sources: Sequence[SliceCursor], hungry: int) -> int:
    """How many bytes each of the slices that are to be read may give.

    Args:
        room: of the page.
        filled: bytes that it has.
        sources: all slices that are being read.
        hungry: how many of them are to be read now.
    """
    held = sum(bytes_of(source.entries) for source in sources)
    least = max(1, room // (LEAST_SHARE * len(sources)))
    return max(least, min(room - filled, 2 * room - filled - held) // hungry)


def frontier_of(sources: Sequence[SliceCursor], reverse: bool) -> bytes:
    """The nearest place that any source with more has reached; one must have more."""
    places = (source.after for source in sources if source.more)
    return max(places) if reverse else min(places)


def onward_of(frontier: bytes, last: bytes, target: Target, reverse: bool) -> bytes:
    """Where all slices go on: at the frontier or, of distinct keys, behind the last one that was taken if
    the frontier lies within it."""
    return behind(last, reverse) if target.distinct and last and frontier.startswith(last) else frontier


def final_of(sources: Sequence[SliceCursor], reverse: bool, *, distinct: bool = False) -> list[Entry]:
    """Take what is at or before the frontier out of the buffers, merged."""
    frontier = frontier_of(sources, reverse) if any(source.more for source in sources) else None
    if frontier is not None and reverse and distinct:
        # Backwards the key in which a slice has paused lies behind its entries: whoever has it gives it now.
        for source in sources:
            at = first_behind(source.entries, frontier, reverse)
            if at < len(source.entries) and frontier.startswith(source.entries[at][0]):
                frontier = source.entries[at][0]
                break
    merged: list[Entry] = []
    for source in sources:
        entries = source.entries
        if not entries:
            continue
        last = entries[-1][0]
        if frontier is None or ((last >= frontier) if reverse else (last <= frontier)):
            merged += entries
            source.entries = []
        else:
            cut = first_behind(entries, frontier, reverse)
            merged += entries[:cut]
            source.entries = entries[cut:]
    merged.sort(reverse=reverse)  # sorted runs one after the other: Python's sort merges them
    return merged


def once(entries: Sequence[Entry], last: bytes) -> list[Entry]:
    """Each key once, and `last` not again."""
    once: list[Entry] = []
    for entry in entries:
        if entry[0] != last:
            once.append(entry)
            last = entry[0]
    return once


def first_behind(entries: Sequence[Entry], frontier: bytes, reverse: bool) -> int:
    """Index of the first entry that lies behind the frontier in the direction of the read."""
    if not reverse:
        return bisect_right(entries, frontier, key=itemgetter(0))
    return len(entries) - bisect_left(entries[::-1], frontier, key=itemgetter(0))


def check_order(entries: Sequence[Entry], reverse: bool) -> None:
    """One document has an entry key once in all slices of one snapshot."""
    keys = [key for key, _ in entries]
    in_order = all(map(gt if reverse else lt, keys, keys[1:]))
    invariant(in_order, "Untorn", "an entry came twice, or out of order, from the slices of one snapshot")
