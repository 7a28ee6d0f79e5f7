"""One page after the other, of scans and of queries: entries, their rows, and the token of the next page.

Theory of operation
===================
A token names everything that the next page needs (`tokens.PageToken`), so that any node answers it from the
same snapshot. Rows are made within the read: when entries turn out to be none that can have been written, the
slices examine what they gave, and the one that is damaged is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from indexer.scan.gather.answer import encode
from indexer.scan.gather.gather import Gathered, examine, gather
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Entry, SnapshotMissingError, Target, behind
from indexer.scan.local.extent import INLINE_ROWS
from indexer.scan.peer.messages import TIP
from indexer.scan.plan.agreement import Agreed, with_timestamp
from indexer.scan.plan.choose import PageSnapshotGoneError, Stamp
from indexer.scan.plan.selection import Shape, slices_ahead
from indexer.scan.plan.tokens import PageToken, Saw, Seen
from keytide.collation import Span
from keytide.errors import InvariantViolationError, KeytideError
from keytide.model.timestamp import Timestamp

UNREADABLE: Final = (InvariantViolationError, UnicodeDecodeError)
"""What gathering and decoding entries raises that cannot have been written."""


async def encoded(shared: Reads, count: int, rows: Callable[[], Any]) -> bytes:
    """So many rows as JSON; many of them are made in a thread."""
    if count <= INLINE_ROWS:
        return encode(rows())
    return await shared.local.lanes.run(lambda: encode(rows()))


async def page_of(
    target: Target,
    shared: Reads,
    rows: Callable[[Sequence[Entry]], Any],
    after: bytes,
    reverse: bool,
    limit: int,
    offset: int,
) -> Gathered:
    """A page of entries with its rows.

    Args:
        rows: makes the rows of entries.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot, or is damaged.
        InvariantViolationError: the entries cannot be, and yet no slice finds fault with its own.
        RetryableError: a node did not answer.
    """
    try:
        gathered = await gather(target, shared.nodes, after, reverse, limit, offset)
        entries = gathered.entries
        gathered.rows = await encoded(shared, len(entries), lambda: rows(entries))
    except UNREADABLE:
        await examine(target, shared.nodes, after, reverse, limit + offset)
        raise
    return gathered


def token_of(
    index: str,
    stamp: Stamp,
    target: Target,
    seen: Seen,
    *,
    after: bytes,
    reverse: bool,
    limit: int,
    offset: int,
    columns: Sequence[str] | None = None,
    validate: bool = False,
) -> PageToken:
    """What the page behind a first page needs.

    Args:
        index: its id.
        seen: what the session has seen with the first page.
        after, offset: where it goes on, and what of the offset is left.
    """
    return PageToken(
        index,
        stamp.number,
        stamp.incarnation,
        stamp.fresh_at,
        [(span.low, span.high) for span in target.spans],
        list(target.by_node().items()),
        after,
        reverse,
        limit,
        list(columns) if columns is not None else None,
        seen,
        target.filter,
        target.distinct,
        offset,
        target.hold,
        target.lease_ms if target.hold else 0,
        validate,
        target.in_order,
    )


def target_of(token: PageToken, shape: Shape, saw: Saw, timeout_s: float, lease_ms: int) -> Target:
    """What a later page reads. Slices that lie behind it are not asked any more.

    Args:
        shape: of the index.
        saw: what the session has seen of its keyspace, the token's pages included.
        lease_ms: how long its snapshot is kept, unless it is a held one.
    """
    named = {number: node for node, slices in token.nodes for number in slices}
    ahead = slices_ahead(shape, token.after, token.reverse) if token.in_order else range(shape.slices)
    # A token means that there is more: when none of its slices lies ahead, the splits are not those that it
    # was made under (the index was built anew), and any slice can tell that the snapshot is gone.
    nodes = {number: node for number, node in named.items() if number in ahead} or named
    return Target(
        token.index,
        token.number,
        token.incarnation,
        [Span(low, high) for low, high in token.spans],
        nodes,
        timeout_s,
        token.lease_ms or lease_ms,
        True,
        token.filter,
        token.distinct,
        token.hold,
        token.in_order,
        saw=saw,
    )


def later(token: PageToken, target: Target, gathered: Gathered) -> Agreed[Gathered]:
    """A later page as something agreed on: by the first one."""
    stamp = with_timestamp(
        Stamp(token.number, token.incarnation, Timestamp(), token.fresh_at),
        (reply.timestamp for reply in gathered.replies.values()),
    )
    return Agreed(stamp, target, gathered, 0, [])


def first_lease_ms(shared: Reads) -> int:
    """How long the token of a first page keeps its snapshot."""
    return min(shared.settings.first_lease_s, shared.settings.lease_s) * 1000


def gone_by(missing: SnapshotMissingError, token: PageToken, shared: Reads, again: str) -> KeytideError:
    """The error of a later page whose snapshot is not held any more; one of newest states waits for a slice
    that is behind.

    Args:
        again: what to do, in words.
    """
    if token.number == TIP:
        return behind(missing)
    return PageSnapshotGoneError(
        f"slice {missing.slice} no longer holds snapshot {token.number}"
        + (f": {missing.reason}" if missing.reason else ""),
        next_step=f"{again}; the second page must be asked for within "
        f"{first_lease_ms(shared) // 1000} s (scan.first_lease_s), each further one within "
        f"{shared.settings.lease_s} s (scan.lease_s)",
    )
