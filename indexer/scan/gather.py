"""Gathering: entries of many slices as one stream in key order.

Every slice gives its entries in order, a block at a time. What lies at or before the *frontier* (the nearest
last entry of any slice that may have more) is final: no slice can still bring anything before it. Blocks are
sized so that one round is usually
enough: an even share of the limit and some slack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from indexer.scan.reading import ReadReply, ReadRequest, SliceReply
from keytide.collation import Span
from keytide.errors import invariant
from keytide.timestamp import Timestamp

Ask = Callable[[str, ReadRequest], Awaitable[ReadReply]]
"""Sends a request to a node (by id; this one included) and gives its reply."""

_SLACK = 16
"""Entries beyond the even share that a slice is asked for first: hashing is not quite even."""


class SnapshotMissingError(Exception):
    """A slice does not hold the snapshot. Internal: the endpoint turns it into a new try or a typed error."""

    def __init__(self, slice_number: int, newest: int) -> None:
        super().__init__(slice_number, newest)
        self.slice = slice_number
        self.newest = newest


@dataclass(slots=True)
class _Source:
    """One slice while it is being read."""

    slice: int
    node: str
    after: bytes
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)
    more: bool = True
    read: int = 0


@dataclass(frozen=True, slots=True)
class Gathered:
    """The result of one gathered read.

    Attributes:
        entries: (entry key, value) in the direction of the read, at most the limit.
        more: whether anything lies behind them.
        read: slice -> entries read there.
        numbers: slice -> snapshot number read.
        timestamps: slice -> timestamp read.
    """

    entries: list[tuple[bytes, bytes]]
    more: bool
    read: dict[int, int]
    numbers: dict[int, int]
    timestamps: dict[int, Timestamp]


@dataclass(frozen=True, slots=True)
class Target:
    """What to read, and where.

    Attributes:
        nodes: slice -> id of the node to ask.
    """

    index: str
    number: int
    incarnation: int
    spans: Sequence[Span]
    nodes: Mapping[int, str]


async def gather(target: Target, ask: Ask, after: bytes, reverse: bool, limit: int) -> Gathered:
    """The first `limit` entries behind `after` in key order, over all slices.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot.
        RetryableError: a node did not answer.
    """
    sources = [_Source(number, node, after) for number, node in sorted(target.nodes.items())]
    numbers: dict[int, int] = {}
    timestamps: dict[int, Timestamp] = {}
    taken: list[tuple[bytes, bytes]] = []
    wanted = limit + 1  # one more tells whether there is a next page
    while len(taken) < wanted:
        hungry = [source for source in sources if source.more and not source.entries]
        if hungry:
            share = wanted - len(taken)
            block = share if len(sources) <= 1 else min(share, share // len(sources) * 5 // 4 + _SLACK)
            for reply in await _ask_all(target, ask, hungry, reverse, block):
                numbers[reply.slice], timestamps[reply.slice] = reply.number, reply.timestamp
        if not any(source.entries for source in sources):
            break
        taken += _final(sources, reverse)
    read = {source.slice: source.read for source in sources}
    return Gathered(taken[:limit], len(taken) > limit, read, numbers, timestamps)


async def count(target: Target, ask: Ask) -> tuple[int, dict[int, int], dict[int, Timestamp]]:
    """How many entries the spans hold, over all slices; with each slice's snapshot number and timestamp."""
    sources = [_Source(number, node, b"") for number, node in sorted(target.nodes.items())]
    replies = await _ask_all(target, ask, sources, False, 0)
    return (
        sum(reply.count for reply in replies),
        {reply.slice: reply.number for reply in replies},
        {reply.slice: reply.timestamp for reply in replies},
    )


async def _ask_all(
    target: Target, ask: Ask, sources: Sequence[_Source], reverse: bool, block: int
) -> list[SliceReply]:
    """Ask every node once for the next block of its slices among `sources`, and fill them."""
    by_node: dict[str, list[_Source]] = {}
    for source in sources:
        by_node.setdefault(source.node, []).append(source)
    spans = [(span.low, span.high) for span in target.spans]
    requests = [
        (
            node,
            ReadRequest(
                target.index,
                target.number,
                target.incarnation,
                [source.slice for source in mine],
                spans,
                [source.after for source in mine],
                reverse,
                block,
            ),
        )
        for node, mine in sorted(by_node.items())
    ]
    if len(requests) == 1:
        replies = [await ask(*requests[0])]
    else:
        replies = await asyncio.gather(*(ask(node, request) for node, request in requests))
    by_slice = {source.slice: source for source in sources}
    flat = [reply for one in replies for reply in one.slices]
    for reply in flat:
        if reply.gone:
            raise SnapshotMissingError(reply.slice, reply.newest)
        invariant(
            reply.entries or not reply.more or not block,
            "Gathered",
            f"slice {reply.slice} has more but gave nothing",
        )
        source = by_slice[reply.slice]
        source.entries = reply.entries
        source.more = reply.more
        source.read += len(reply.entries)
        if reply.entries:
            source.after = reply.entries[-1][0]
    return flat


def _final(sources: Sequence[_Source], reverse: bool) -> list[tuple[bytes, bytes]]:
    """Take what is at or before the frontier out of the buffers, merged."""
    open_ends = [source.entries[-1][0] for source in sources if source.more and source.entries]
    if not open_ends:
        merged = [entry for source in sources for entry in source.entries]
        for source in sources:
            source.entries = []
        merged.sort(reverse=reverse)
        return merged
    frontier = max(open_ends) if reverse else min(open_ends)
    merged = []
    for source in sources:
        if not source.entries:
            continue
        last = source.entries[-1][0]
        if (last >= frontier) if reverse else (last <= frontier):
            merged += source.entries
            source.entries = []
        else:
            cut = _first_behind(source.entries, frontier, reverse)
            merged += source.entries[:cut]
            source.entries = source.entries[cut:]
    merged.sort(reverse=reverse)
    return merged


def _first_behind(entries: Sequence[tuple[bytes, bytes]], frontier: bytes, reverse: bool) -> int:
    """Index of the first entry that lies behind the frontier in the direction of the read (bisection)."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        key = entries[middle][0]
        if (key >= frontier) if reverse else (key <= frontier):
            low = middle + 1
        else:
            high = middle
    return low
