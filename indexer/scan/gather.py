"""Gathering: entries of many slices as one stream in key order.

Theory of operation
===================
Every slice gives its entries in order, a block at a time. What lies at or before the *frontier* (the nearest
last entry of any slice that may have more) is final: no slice can still bring anything before it. When the
keys are spread evenly one round of even shares (and a few standard deviations) is enough; when they are not,
blocks double from round to round, so that a scan whose rows all lie in one slice takes a few rounds only.
"""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from indexer.scan.reading import TIP, Nodes, NodeUnavailableError, ReadReply, ReadRequest, SliceReply
from keytide.collation import Span
from keytide.errors import invariant

Entry = tuple[bytes, bytes]
"""(entry key, value)."""


class SnapshotMissingError(Exception):
    """A slice does not hold the snapshot. Internal: the endpoint turns it into a new try or a typed error."""

    def __init__(self, slice_number: int, node: str, newest: int, state: str = "", reason: str = "") -> None:
        super().__init__(slice_number, node, newest, state, reason)
        self.slice = slice_number
        self.node = node
        self.newest = newest
        self.state = state
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Target:
    """What to read, where, and for how long to wait.

    Attributes:
        nodes: slice -> id of the node to ask.
        lease_ms: how long the snapshot is to be kept if there is a next page, 0 for not at all.
        in_use: this is not the first page.
        timeout_s: longest wait for a node.
    """

    index: str
    number: int
    incarnation: int
    spans: Sequence[Span]
    nodes: Mapping[int, str]
    timeout_s: float
    lease_ms: int = 0
    in_use: bool = False

    def by_node(self, slices: Iterable[int] | None = None) -> dict[str, list[int]]:
        """Node -> its slices, of `slices` or all."""
        grouped: dict[str, list[int]] = {}
        for number in self.nodes if slices is None else slices:
            grouped.setdefault(self.nodes[number], []).append(number)
        return grouped


@dataclass(slots=True)
class Gathered:
    """The result of one gathered read, while it grows.

    Attributes:
        entries: (entry key, value) in the direction of the read, at most the limit.
        rows: the entries as a JSON array of rows, once it is made.
        more: whether anything lies behind them.
        count: entries counted, for a count.
        read: slice -> entries read there.
        replies: slice -> its last reply, without entries of use.
        leased: slices whose snapshot is kept under the target's lease.
        rounds: how often slices were asked.
    """

    entries: list[Entry] = field(default_factory=list)
    rows: bytes = b""
    more: bool = False
    count: int = 0
    read: dict[int, int] = field(default_factory=dict)
    replies: dict[int, SliceReply] = field(default_factory=dict)
    leased: set[int] = field(default_factory=set)
    rounds: int = 0


@dataclass(slots=True)
class _Source:
    """One slice while it is being read."""

    slice: int
    node: str
    after: bytes
    entries: list[Entry] = field(default_factory=list)
    more: bool = True


async def gather(target: Target, nodes: Nodes, after: bytes, reverse: bool, limit: int) -> Gathered:
    """The first `limit` entries behind `after` in key order, over all slices.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot.
        RetryableError: a node did not answer.
    """
    result = Gathered()
    sources = [_Source(number, node, after) for number, node in sorted(target.nodes.items())]
    taken = result.entries
    wanted = limit + 1  # one more tells whether there is a next page
    block = 0
    while len(taken) < wanted:
        hungry = [source for source in sources if source.more and not source.entries]
        if hungry:
            still = wanted - len(taken)
            unread = sum(source.more for source in sources)
            block = min(still, max(2 * block, _even_share(still, unread)))
            await _fill(target, nodes, hungry, reverse, block, result)
        if not any(source.entries for source in sources):
            break
        final = _final(sources, reverse)
        if target.number == TIP:  # an entry on its way between slices may be in both
            final = list(dict(final).items())
        taken += final
    if target.number != TIP:
        _check_order(taken, reverse)
    result.more = len(taken) > limit
    del taken[limit:]
    return result


async def examine(target: Target, nodes: Nodes, after: bytes, reverse: bool, limit: int) -> None:
    """Have every slice look at the entries that `gather` with the same arguments has read there.

    Raises:
        SnapshotMissingError: of the first slice that holds what nothing can have written, with state LOST.
        RetryableError: a node did not answer.
    """
    sources = [_Source(number, node, after) for number, node in sorted(target.nodes.items())]
    if sources:
        await _fill(target, nodes, sources, reverse, limit + 1, Gathered(), examine=True)


async def count(target: Target, nodes: Nodes) -> Gathered:
    """How many entries the spans hold, over all slices. Raises as `gather` does."""
    result = Gathered()
    sources = [_Source(number, node, b"") for number, node in sorted(target.nodes.items())]
    if sources:
        await _fill(target, nodes, sources, False, 0, result)
    result.count = sum(reply.count for reply in result.replies.values())
    return result


def _even_share(rows: int, slices: int) -> int:
    """How many of `rows` a slice holds at most, very likely, when they fall to `slices` by a hash."""
    mean = rows / slices
    return rows if slices == 1 else math.ceil(mean + 3 * math.sqrt(mean)) + 3


async def _fill(
    target: Target,
    nodes: Nodes,
    sources: Sequence[_Source],
    reverse: bool,
    block: int,
    result: Gathered,
    *,
    examine: bool = False,
) -> None:
    """Ask every node once for the next block of its slices among `sources`, or to examine it."""
    by_slice = {source.slice: source for source in sources}
    spans = [(span.low, span.high) for span in target.spans]
    requests = {
        node: ReadRequest(
            target.index,
            target.number,
            target.incarnation,
            slices,
            spans,
            [by_slice[number].after for number in slices],
            reverse,
            block,
            target.lease_ms,
            target.in_use,
            examine,
        )
        for node, slices in target.by_node(by_slice).items()
    }
    result.rounds += 1
    for node, reply in (await _ask_all(nodes, requests, target.timeout_s)).items():
        if reply.leased:
            result.leased.update(requests[node].slices)
        for one in reply.slices:
            if one.gone:
                raise SnapshotMissingError(one.slice, node, one.newest, one.state, one.reason)
            if one.incarnation != target.incarnation or (one.number != target.number != TIP):
                raise NodeUnavailableError(
                    f"node {node} answered from snapshot {one.number} of incarnation {one.incarnation}, "
                    f"and was asked for {target.number} of {target.incarnation}",
                    node=node,
                    next_step="run the same release on every node",
                )
            invariant(one.entries or not one.more, "Gathered", f"slice {one.slice} has more but gave nothing")
            source = by_slice[one.slice]
            source.entries = one.entries
            source.more = one.more
            if one.entries:
                source.after = one.entries[-1][0]
            result.read[one.slice] = result.read.get(one.slice, 0) + len(one.entries)
            result.replies[one.slice] = one


async def _ask_all(
    nodes: Nodes, requests: Mapping[str, ReadRequest], timeout_s: float
) -> dict[str, ReadReply]:
    """All nodes' replies. Other nodes work while this one reads its own slices."""
    others = [node for node in requests if node != nodes.here]
    tasks = [asyncio.ensure_future(nodes.read(node, requests[node], timeout_s)) for node in others]
    try:
        replies = {}
        if nodes.here in requests:
            if tasks:
                await asyncio.sleep(0)  # let the requests go out first
            replies[nodes.here] = await nodes.read(nodes.here, requests[nodes.here], timeout_s)
        replies.update(zip(others, await asyncio.gather(*tasks), strict=True) if tasks else ())
        return replies
    finally:
        for task in tasks:
            task.cancel()


def _final(sources: Sequence[_Source], reverse: bool) -> list[Entry]:
    """Take what is at or before the frontier out of the buffers, merged."""
    open_ends = [source.entries[-1][0] for source in sources if source.more and source.entries]
    frontier = (max(open_ends) if reverse else min(open_ends)) if open_ends else None
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
            cut = _first_behind(entries, frontier, reverse)
            merged += entries[:cut]
            source.entries = entries[cut:]
    merged.sort(reverse=reverse)  # sorted runs one after the other: Python's sort merges them
    return merged


def _first_behind(entries: Sequence[Entry], frontier: bytes, reverse: bool) -> int:
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


def _check_order(entries: Sequence[Entry], reverse: bool) -> None:
    """One document has an entry key once in all slices of one snapshot."""
    keys = [key for key, _ in entries]
    in_order = all(map(operator.gt if reverse else operator.lt, keys, keys[1:]))
    invariant(in_order, "Untorn", "an entry came twice, or out of order, from the slices of one snapshot")
