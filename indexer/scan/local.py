"""Reading this node's own slices: answers `ReadRequest` and `LeaseRequest` from the snapshots that it holds.

Theory of operation
===================
Snapshots are taken hold of, leased and given back on the event loop; only reading their entries may take
long. A read of at most `INLINE_ROWS` rows is done at once (a hop to a thread costs more than the read), a
longer one or a count in a small pool of threads, so that it holds up no other scan.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from indexer.scan.leases import LeaseBook
from indexer.scan.reading import TIP, LeaseReply, LeaseRequest, ReadReply, ReadRequest, SliceReply
from indexer.view import NodeView, ReadableSnapshot
from keytide.clock import now_ms
from keytide.timestamp import Timestamp

INLINE_ROWS: Final = 2_000
"""Rows that are read or written as JSON on the event loop: about 2 ms."""
READERS: Final = 4
"""Threads for long reads: two cores' worth, and some that wait for the disk."""

_NOTHING: Final = Timestamp()
_Held = list[ReadableSnapshot | None]


class LocalReader:
    """Reads the slices of this node.

    Args:
        view: the node.
        max_leases: see `LeaseBook`.
    """

    def __init__(self, view: NodeView, max_leases: int) -> None:
        self._view = view
        self._leases = LeaseBook(view, max_leases)
        self.threads = ThreadPoolExecutor(READERS, thread_name_prefix="scan")

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: ReadRequest) -> ReadReply:
        """Answer from the snapshots held here. A slice without the snapshot is marked `gone`, never answered
        from another one.

        Raises:
            TooManyLeasesError: a lease was asked for, and is one too many.
        """
        held = [self._acquire(request, slice_number) for slice_number in request.slices]
        try:
            newest = [self._view.newest(request.index, slice_number) for slice_number in request.slices]
            if _is_short(request):
                replies = _read(request, held, newest)
            else:
                loop = asyncio.get_running_loop()
                replies = await loop.run_in_executor(self.threads, _read, request, held, newest)
            leased = False
            if request.lease_ms and request.number != TIP and any(reply.more for reply in replies):
                leased = not self._keep(request)
            return ReadReply(replies, leased)
        finally:
            for snapshot in held:
                if snapshot is not None:
                    snapshot.release()

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Keep snapshots that are held here.

        Raises:
            TooManyLeasesError: one too many.
        """
        return LeaseReply(self._keep(request))

    def _acquire(self, request: ReadRequest, slice_number: int) -> ReadableSnapshot | None:
        if request.number == TIP:
            return self._view.tip(request.index, slice_number)
        snapshot = self._view.acquire(request.index, slice_number, request.number)
        if snapshot is not None and snapshot.incarnation != request.incarnation:  # voided by a rollback (R31)
            snapshot.release()
            return None
        return snapshot

    def _keep(self, request: ReadRequest | LeaseRequest) -> list[int]:
        """Keep the snapshot of a request's slices; returns those that do not hold it."""
        return self._leases.keep(
            request.index,
            request.number,
            request.slices,
            request.lease_ms,
            in_use=request.in_use,
            now=now_ms(),
        )


def _is_short(request: ReadRequest) -> bool:
    """Whether the read is done faster than a thread is asked to do it."""
    if request.limit:
        return request.limit * len(request.slices) <= INLINE_ROWS
    return all(not low and high is None for low, high in request.spans)  # the store knows this count


def _read(request: ReadRequest, held: _Held, newest: list[int]) -> list[SliceReply]:
    """Read every slice of the request. Any thread."""
    replies = []
    for slice_number, snapshot, after, latest in zip(
        request.slices, held, request.after, newest, strict=True
    ):
        if snapshot is None:
            replies.append(SliceReply(slice_number, -1, _NOTHING, [], False, 0, True, latest))
            continue
        entries: list[tuple[bytes, bytes]] = []
        counted = 0
        if request.limit:
            entries = _entries(snapshot, request, after)
        else:
            counted = sum(snapshot.count(low, high) for low, high in request.spans)
        more = bool(request.limit) and len(entries) >= request.limit
        replies.append(
            SliceReply(
                slice_number, snapshot.number, snapshot.timestamp, entries, more, counted, False, latest
            )
        )
    return replies


def _entries(snapshot: ReadableSnapshot, request: ReadRequest, after: bytes) -> list[tuple[bytes, bytes]]:
    """Up to the limit of entries behind `after`, over all spans in the direction of the read."""
    entries: list[tuple[bytes, bytes]] = []
    for low, high in reversed(request.spans) if request.reverse else request.spans:
        if after and ((low >= after) if request.reverse else (high is not None and high <= after)):
            continue  # this span was read to its end on an earlier page
        inside = after if after and low <= after and (high is None or after < high) else None
        wanted = request.limit - len(entries)
        for block in snapshot.rows(low, high, request.reverse, wanted, inside):
            entries += block
        if len(entries) >= request.limit:
            return entries[: request.limit]
    return entries
