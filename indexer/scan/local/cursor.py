"""Reading a slice with a filter, by distinct keys, or behind an offset: finding what is wanted among more.

Theory of operation
===================
All of these may look at many entries and give few, so one read looks at a bounded number, and says where it
got to (`SliceReply.reached`); whoever asked comes again.

Distinct keys are taken from blocks: of a block the first entry of each key, and then the read goes on behind
the last key, however many entries that still has. Blocks are small at first and grow while most of a
block's entries have keys of their own, so both kinds of index are read fast: many entries per key (one seek
each), and few (few seeks).

Any thread may read; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from indexer.scan.local.pace import Pace
from indexer.scan.peer.messages import ReadRequest
from indexer.scan.plan.selection import Shape
from indexer.view import ReadableSnapshot
from keytide.collation import skip_key
from keytide.model.entry import pack_value, unpack_value

Entry = tuple[bytes, bytes]
"""(entry key, value)."""
Test = Callable[[bytes, bytes], bool]
"""Whether an entry (entry key, value) is wanted."""

FIRST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 512
"""Entries that are looked at between two seeks for distinct keys: a seek costs as much as some tens."""


@dataclass(slots=True)
class FilteredRead:
    """What was found, while it grows.

    Attributes:
        entries: what is given, at most the request's limit; nothing when it only counts.
        more: whether there may be further ones behind `reached`.
        skipped: how many were left out for the offset.
        examined: how many entries were looked at.
        counted: how many there were, when the request only counts.
    """

    entries: list[Entry] = field(default_factory=list)
    more: bool = False
    reached: bytes = b""
    skipped: int = 0
    examined: int = 0
    counted: int = 0

    def take(self, found: list[Entry], request: ReadRequest) -> bool:
        """Count, leave out or give what was found; whether the limit is reached."""
        if not request.limit:
            self.counted += len(found)
            return False
        if self.skipped < request.skip:
            left_out = min(request.skip - self.skipped, len(found))
            self.skipped += left_out
            found = found[left_out:]
        self.entries += found
        return len(self.entries) >= request.limit


def pick(
    snapshot: ReadableSnapshot,
    request: ReadRequest,
    after: bytes,
    shape: Shape,
    test: Test | None,
    most: int,
    effort: Pace,
) -> FilteredRead:
    """What a request finds in a slice.

    Args:
        after: where to go on.
        test: the request's filter.
        most: entries to look at.
        effort: how much of the node it may take.

    Raises:
        OutOfTimeError, GivenUpError: as `Pace.look`.
        InvariantViolationError, UnicodeDecodeError: what is read cannot have been written.
    """
    picked = FilteredRead()
    for low, high in stretches(request, after):
        inside = (
            _distinct(snapshot, low, high, request, shape, test, most, picked, effort)
            if request.distinct
            else _each(snapshot, low, high, request, test, most, picked, effort)
        )
        if inside:
            break
    return picked


def stretches(request: ReadRequest, after: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The spans of a request in the direction of the read, without what lies up to `after`."""
    for low, high in reversed(request.spans) if request.reverse else request.spans:
        if not after:
            yield low, high
        elif request.reverse:
            if low < after:
                yield low, after if high is None else min(high, after)
        elif high is None or after < high:
            yield max(low, after + b"\x00"), high


def _each(
    snapshot: ReadableSnapshot,
    low: bytes,
    high: bytes | None,
    request: ReadRequest,
    test: Test | None,
    most: int,
    picked: FilteredRead,
    effort: Pace,
) -> bool:
    """Pick from a stretch; whether the read ends within it."""
    for part in (part for block in snapshot.rows(low, high, request.reverse) for part in effort.parts(block)):
        picked.examined += len(part)
        full = picked.take([entry for entry in part if test is None or test(*entry)], request)
        if full:
            del picked.entries[request.limit :]
            picked.more, picked.reached = True, picked.entries[-1][0]
            return True
        if picked.examined >= most or effort.spent:
            picked.more, picked.reached = True, part[-1][0]
            return True
    return False


def _distinct(
    snapshot: ReadableSnapshot,
    low: bytes,
    high: bytes | None,
    request: ReadRequest,
    shape: Shape,
    test: Test | None,
    most: int,
    picked: FilteredRead,
    effort: Pace,
) -> bool:
    """Pick the first entry of each key from a stretch; whether the read ends within it. Entries come without
    ids and included columns: their key is the canonical key alone."""
    reverse = request.reverse
    size = FIRST_BLOCK
    while high is None or low < high:
        block = [entry for part in snapshot.rows(low, high, reverse, size) for entry in part]
        if not block:
            return False
        found, keys, ended = _firsts(block, shape, test)
        picked.examined += len(block)
        size = min(2 * size, LARGEST_BLOCK) if 2 * keys >= len(block) else max(1, size // 4)
        place = behind(ended, reverse) if ended else block[-1][0]
        if picked.take(found, request):
            del picked.entries[request.limit :]
            picked.more, picked.reached = True, behind(picked.entries[-1][0], reverse)
            return True
        effort.look()
        if picked.examined >= most or effort.spent:
            picked.more, picked.reached = True, place
            return True
        if reverse:
            high = place
        else:
            low = place + b"\x00"
    return False


def _firsts(block: list[Entry], shape: Shape, test: Test | None) -> tuple[list[Entry], int, bytes]:
    """The first entry of each key in a block that is wanted, as (canonical key, forms); how many keys the
    block has; and its last key if it needs no further look, else b""."""
    found: list[Entry] = []
    keys = 0
    canonical, taken = b"", False
    for key, value in block:
        if not canonical or not key.startswith(canonical):
            canonical, taken = key[: skip_key(key, shape.parts, shape.descending)], False
            keys += 1
        if not taken and (test is None or test(key, value)):
            taken = True
            forms, include = unpack_value(value)
            found.append((canonical, value if include is None else pack_value(forms)))
    return found, keys, canonical if taken else b""


def behind(canonical: bytes, reverse: bool) -> bytes:
    """The place behind all entries of a key, in the direction of a read: ids, which are UTF-8, hold no FF,
    and no canonical key is the beginning of another one."""
    return canonical if reverse else canonical + b"\xff"
