"""Gathering: entries of many slices as one stream in key order.

Theory of operation
===================
Every slice gives its entries in order, a block at a time. What lies at or before the *frontier* (the nearest
place that any slice with more has reached) is final: no slice can still bring anything before it. When the
keys are spread evenly one round of even shares (and a few standard deviations) is enough; when they are not,
blocks double from round to round, so that a scan whose rows all lie in one slice takes a few rounds only.

All of that is left out where a page is plain and its slices are all here: they are read as one
(`indexer.scan.local.joint`).

Where the order of slices is that of their entries (`Target.in_order`), they are read one after the other, and
then more and more at once: what is found in the first ones is final whatever the others hold.

An offset is left out by the slice itself when only one is asked, or one after the other. Of several, keys are
gathered without values and dropped, in blocks of bounded size.

A page is bounded in bytes, too: every slice is asked for its part of what there is room for, and what comes
is counted once it is final. What slices have given beside that is hardly more than a page again.

A read that filters, skips or takes distinct keys may look at much and find little. Slices give up after a
bounded number of entries and say where they are, and so does the whole read when its time is over: `more`
with fewer entries than the limit, perhaps none, and `reached`. A count of several rounds keeps its snapshot
between them.

Distinct entries have keys without ids: equal keys of several slices are equal, and meet in the merge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from indexer.scan.gather.blocks import even_share, next_block
from indexer.scan.gather.merging import (
    SliceCursor,
    check_order,
    final_of,
    frontier_of,
    once,
    onward_of,
    share_of,
)
from indexer.scan.gather.scatter import CLIENT, SliceAnswers, Target, ask, monotonic, requests_of
from indexer.scan.local.cursor import behind
from indexer.scan.local.entry_bytes import bytes_of, reaching
from indexer.scan.local.reader import INLINE_ROWS
from indexer.scan.peer.messages import TIP, Entry, JointPage, JointRead, OutOfTimeError, SliceReader
from indexer.scan.plan.errors import CountTimeoutError
from indexer.scan.plan.leases import BETWEEN_CALLS_MS
from indexer.view import LOOKED_AT_BYTES
from keytide.errors import invariant

SKIP_BLOCK: Final = 8_192
COUNT_BLOCK: Final = 8_192
"""Keys that are left out at once for an offset, and distinct ones that are counted, over all slices."""
FIRST_KEYS: Final = 1_024
KEY_BYTES: Final = 4 << 20
"""Of both so many at first, and as many as are so many bytes once it is seen how long they are."""


@dataclass(slots=True)
class Gathered(SliceAnswers):
    """The result of one gathered read, while it grows.

    Attributes:
        entries: (entry key, value) in the direction of the read, at most the limit.
        rows: the entries as a JSON array of rows, once it is made.
        more: whether anything may lie behind them.
        reached: behind which key to go on when there is more.
        offset_left: how many entries are still to be left out then.
        count: entries counted, for a count.
    """

    entries: list[Entry] = field(default_factory=list)
    rows: bytes = b""
    more: bool = False
    reached: bytes = b""
    offset_left: int = 0
    count: int = 0


async def gather(
    target: Target,
    nodes: SliceReader,
    after: bytes,
    reverse: bool,
    limit: int,
    offset: int = 0,
    room: int = 0,
) -> Gathered:
    """The first `limit` entries behind `after` in key order, over all slices, without the first `offset`.

    Args:
        room: bytes of their keys and values: with the entry that reaches it the page ends; 0 for any.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot.
        RetryableError: a node did not answer.
    """
    tests = offset or target.filter or target.distinct
    sifts = tests or target.keys
    if not tests and (page := _first_here(target, nodes, _in_order(target, reverse), after, reverse, limit)):
        for number in target.others.keys() & page.replies.keys():  # (one of several may have been behind)
            nodes.health.holds(nodes.here, (target.index, number), page.replies[number].newest)
        return _whole(page, nodes.here, limit, room)
    result = Gathered(offset_left=offset)
    deadline = monotonic() + target.left_s if sifts else math.inf
    last = b""  # the last key that was left out: of distinct keys another slice may bring it again
    if offset and len(target.nodes) > 1 and not target.in_order:
        after, last = await _skip(target, nodes, after, reverse, result, deadline)
        if result.offset_left:
            return result
    later = [SliceCursor(number, after) for number in _in_order(target, reverse)]
    sources, later = (later[:1], later[1:]) if target.in_order else (later, [])
    taken = result.entries
    wanted = limit + 1  # one more tells whether there is a next page
    block = filled = 0
    while len(taken) < wanted and not 0 < room <= filled:
        if later and not any(source.more or source.entries for source in sources):
            count = 1 if result.offset_left else 2 * len(sources)
            sources, later, block = later[:count], later[count:], 0
        hungry = [source for source in sources if source.more and not source.entries]
        if hungry:
            still = wanted - len(taken)
            unread = sum(source.more for source in sources)
            block = min(still, max(2 * block, even_share(still, unread)))
            try:
                part = share_of(room, filled, sources, len(hungry)) if room else 0
                await _fill(target, nodes, hungry, reverse, block, result, skip=result.offset_left, room=part)
            except OutOfTimeError:
                if not taken and all(source.after == after for source in sources):
                    raise  # nothing came of it
                deadline = -math.inf
        if not any(source.entries for source in sources):
            if not later and not any(source.more for source in sources):
                break
        else:
            final = final_of(sources, reverse, distinct=target.distinct)
            if target.number == TIP:  # an entry on its way between slices may be in both
                final = list(dict(final).items())
            if target.distinct:
                final = once(final, taken[-1][0] if taken else last)
            taken += final
            filled += bytes_of(final) if room else 0
        if 0 < room <= filled:
            continue
        if len(taken) <= limit and monotonic() > deadline and any(source.more for source in sources):
            result.more = True
            result.reached = onward_of(
                frontier_of(sources, reverse), taken[-1][0] if taken else last, target, reverse
            )
            return result
    if target.number != TIP:
        check_order(taken, reverse)
    if 0 < room <= filled:
        limit = min(limit, reaching(taken, room))
        result.more = bool(later) or any(source.more or source.entries for source in sources)
    result.more = result.more or len(taken) > limit
    del taken[limit:]
    if result.more:
        result.reached = behind(taken[-1][0], reverse) if target.distinct else taken[-1][0]
    return result


def _first_here(
    target: Target, nodes: SliceReader, slices: Sequence[int], after: bytes, reverse: bool, limit: int
) -> JointPage | None:
    """The first `limit` entries behind `after`, and one more if there is one, of this node's slices as one;
    None when they are not all here, or are to be read one by one. Raises as `JointReads.first`.

    Args:
        target: without a filter or the like.
        slices: the target's, in their order if that of their entries is theirs.
    """
    if target.number == TIP or target.hold or target.elsewhere:
        return None
    if not 0 < limit < INLINE_ROWS or any(node != nodes.here for node in target.nodes.values()):
        return None
    return nodes.first_here(
        JointRead(
            target.index,
            tuple(slices),
            target.in_order != 0,
            target.number,
            target.incarnation,
            [(span.low, span.high) for span in target.spans],
            after,
            reverse,
            limit + 1,
            target.lease_ms,
            target.in_use,
            CLIENT.get(),
            target.keys,
        )
    )


def _whole(page: JointPage, here: str, limit: int, room: int) -> Gathered:
    """The result, when all was read at once."""
    if 0 < room < LOOKED_AT_BYTES:  # (else there is room for it)
        limit = min(limit, reaching(page.entries, room))
    entries, more = page.entries[:limit], len(page.entries) > limit
    leased = {number: {here} for number in page.replies} if page.leased else {}
    reached = entries[-1][0] if more else b""
    return Gathered(page.read, dict(page.replies), leased, 1, entries, more=more, reached=reached)


def _in_order(target: Target, reverse: bool) -> list[int]:
    """The slices of a target, if they have an order in that of their entries in the direction of the read."""
    return sorted(target.nodes, reverse=target.in_order != 0 and (target.in_order < 0) != reverse)


async def _skip(
    target: Target, nodes: SliceReader, after: bytes, reverse: bool, result: Gathered, deadline: float
) -> tuple[bytes, bytes]:
    """Leave out the first `offset_left` entries of several slices; returns the place behind them and the last
    key left out. When they are not all left out, `more` tells whether there are any others."""
    last, block = b"", min(FIRST_KEYS, SKIP_BLOCK)
    while result.offset_left:
        sources = [SliceCursor(number, after) for number in sorted(target.nodes)]
        share = even_share(min(result.offset_left, block), len(sources))
        await _fill(target, nodes, sources, reverse, share, result, keys_only=True)
        block = _next(block, sources, SKIP_BLOCK)
        open_ends = any(source.more for source in sources)
        frontier = frontier_of(sources, reverse) if open_ends else b""
        final = final_of(sources, reverse, distinct=target.distinct)
        if target.number == TIP:
            final = list(dict(final).items())
        if target.distinct:
            final = once(final, last)
        dropped = min(len(final), result.offset_left)
        result.offset_left -= dropped
        if dropped:
            last = final[dropped - 1][0]
        if not result.offset_left:
            return (behind(last, reverse) if target.distinct else last), last
        if not open_ends:
            return after, last
        # Behind the frontier entries are read once more: the even shares make them few.
        after = onward_of(frontier, last, target, reverse)
        if monotonic() > deadline:
            result.more, result.reached = True, after
            return after, last
    return after, last


async def examine(target: Target, nodes: SliceReader, after: bytes, reverse: bool, limit: int) -> None:
    """Have every slice look at the entries that `gather` with the same arguments has read there.

    Raises:
        SnapshotMissingError: of the first slice that holds what nothing can have written, with state LOST.
        RetryableError: a node did not answer.
    """
    sources = [SliceCursor(number, after) for number in sorted(target.nodes)]
    if sources:
        await _fill(target, nodes, sources, reverse, limit + 1, Gathered(), examine=True)


async def count(target: Target, nodes: SliceReader, *, apart: bool = True) -> Gathered:
    """How many entries (or distinct keys) the target has, over all slices.

    Args:
        apart: no key lies in two slices.

    Raises:
        CountTimeoutError: there are too many to be counted in the time.
        SnapshotMissingError, RetryableError: as `gather`.
    """
    result = Gathered()
    try:
        await _count(replace(target, lease_ms=target.lease_ms or BETWEEN_CALLS_MS), nodes, result, apart)
    except OutOfTimeError as error:
        raise CountTimeoutError(result.count, target.timeout_s) from error
    return result


async def _count(target: Target, nodes: SliceReader, result: Gathered, apart: bool) -> None:
    """Add what is counted to the result. Raises as `count`."""
    deadline = monotonic() + target.left_s
    if target.distinct and not apart and len(target.nodes) > 1:
        after, last, block = b"", b"", min(FIRST_KEYS, COUNT_BLOCK)
        while True:
            sources = [SliceCursor(number, after) for number in sorted(target.nodes)]
            share = even_share(block, len(sources))
            await _fill(target, nodes, sources, False, share, result, keys_only=True)
            block = _next(block, sources, COUNT_BLOCK)
            if open_ends := any(source.more for source in sources):
                after = frontier_of(sources, False)
            final = once(final_of(sources, False, distinct=True), last)
            result.count += len(final)
            last = final[-1][0] if final else last
            if not open_ends:
                return
            _check_time(deadline, target, result)
            target = replace(target, in_use=True)
    sources = [SliceCursor(number, b"") for number in sorted(target.nodes)]
    while sources:
        await _fill(target, nodes, sources, False, 0, result)
        sources = [source for source in sources if source.more]
        if sources:
            _check_time(deadline, target, result)
            target = replace(target, in_use=True)


def _check_time(deadline: float, target: Target, result: Gathered) -> None:
    if monotonic() > deadline:
        raise CountTimeoutError(result.count, target.timeout_s)


def _next(block: int, sources: Sequence[SliceCursor], most: int) -> int:
    """How many keys to gather next."""
    read = [entry for source in sources for entry in source.entries[::16]]
    return next_block(block, len(read), bytes_of(read), most, KEY_BYTES)


async def _fill(
    target: Target,
    nodes: SliceReader,
    sources: Sequence[SliceCursor],
    reverse: bool,
    block: int,
    result: Gathered,
    *,
    examine: bool = False,
    skip: int = 0,
    room: int = 0,
    keys_only: bool = False,
) -> None:
    """Ask every node once for the next block of its slices among `sources`, or to examine it."""
    by_slice = {source.slice: source for source in sources}
    requests = requests_of(
        target,
        by_slice,
        {number: source.after for number, source in by_slice.items()},
        reverse=reverse,
        limit=block,
        examine=examine,
        skip=skip,
        room=room,
        keys_only=keys_only,
    )
    for one in await ask(target, nodes, requests, result):
        source = by_slice[one.slice]
        if one.more:
            reached = one.reached or (one.entries[-1][0] if one.entries else b"")
            onward = reached and (
                not source.after or (reached < source.after if reverse else reached > source.after)
            )
            invariant(onward, "Gathered", f"slice {one.slice} has more but came no further")
            source.after = reached
        source.entries = one.entries
        source.more = one.more
        result.count += one.count
        result.offset_left -= one.skipped
        result.read[one.slice] = result.read.get(one.slice, 0) + (one.examined or len(one.entries))
