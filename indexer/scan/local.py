"""Reading this node's own slices: answers a `ReadRequest` from the snapshots that the node holds."""

from __future__ import annotations

from indexer.scan.reading import TIP, ReadReply, ReadRequest, SliceReply
from indexer.view import NodeView, ReadableSnapshot
from keytide.timestamp import Timestamp

_NOTHING = Timestamp()


def read_local(view: NodeView, request: ReadRequest, now: int) -> ReadReply:
    """Answer from the snapshots held here. A slice without the snapshot is marked `gone`, never answered from
    another one.

    Args:
        now: milliseconds, for leases.
    """
    return ReadReply(
        [
            _read_slice(view, request, slice_number, after, now)
            for slice_number, after in zip(request.slices, request.after, strict=True)
        ]
    )


def _read_slice(
    view: NodeView, request: ReadRequest, slice_number: int, after: bytes, now: int
) -> SliceReply:
    snapshot = (
        view.tip(request.index, slice_number)
        if request.number == TIP
        else view.acquire(request.index, slice_number, request.number)
    )
    if snapshot is None:
        newest = view.newest(request.index, slice_number)
        return SliceReply(slice_number, -1, _NOTHING, [], False, 0, True, newest)
    try:
        if request.lease and request.number != TIP:
            view.lease(request.index, slice_number, request.number, request.lease, now + request.lease_ms)
        if request.limit == 0:
            counted = sum(snapshot.count(low, high) for low, high in request.spans)
            return SliceReply(
                slice_number, snapshot.number, snapshot.timestamp, [], False, counted, False, snapshot.number
            )
        entries = _entries(snapshot, request, after)
        more = len(entries) >= request.limit
        return SliceReply(
            slice_number, snapshot.number, snapshot.timestamp, entries, more, 0, False, snapshot.number
        )
    finally:
        snapshot.release()


def _entries(snapshot: ReadableSnapshot, request: ReadRequest, after: bytes) -> list[tuple[bytes, bytes]]:
    """Up to the limit of entries behind `after`, over all spans in the direction of the read."""
    entries: list[tuple[bytes, bytes]] = []
    for low, high in reversed(request.spans) if request.reverse else request.spans:
        if after and ((low > after) if request.reverse else (high is not None and high <= after)):
            continue  # this span was read to its end on an earlier page
        inside = after if after and low <= after and (high is None or after < high) else None
        wanted = request.limit - len(entries)
        for block in snapshot.rows(low, high, request.reverse, wanted, inside):
            entries += block
            if len(entries) >= request.limit:
                return entries[: request.limit]
    return entries
