"""How much a read of slices may look at: what is done at once, and what its limit bounds. Pure."""

from __future__ import annotations

from typing import Final

from indexer.scan.local.pace import Pace
from indexer.scan.peer.messages import ReadRequest
from indexer.view import ReadableSnapshot

INLINE_ROWS: Final = 2_000
"""Rows that are read or written as JSON on the event loop: about 2 ms."""
SEEK_ROWS: Final = 20
"""A seek to a further span costs about as much as so many rows, also when nothing lies in it."""
LONGEST_READ_S: Final = 3_600.0
"""Whatever a message says. `scan.max_timeout_ms` is far below it."""


def is_plain(request: ReadRequest) -> bool:
    """Whether the first entries that are found are those that are wanted."""
    return bool(request.limit) and not (request.filter or request.distinct or request.skip)


def knows_count(request: ReadRequest) -> bool:
    """Whether this is a count that the store knows without reading."""
    return not (request.limit or request.filter or request.distinct) and all(
        not low and high is None for low, high in request.spans
    )


def is_short(request: ReadRequest) -> bool:
    """Whether the read is done faster than a thread is asked to do it."""
    if request.task:
        return False
    if is_plain(request):
        seeks = SEEK_ROWS * max(0, len(request.spans) - 1)  # the first one is in the measure of `INLINE_ROWS`
        return (request.limit + seeks) * len(request.slices) <= INLINE_ROWS
    return knows_count(request)


def within_s(request: ReadRequest) -> float | None:
    """How long a read may take; None for what its limit bounds."""
    if is_plain(request) or not request.within_ms:
        return None
    return min(request.within_ms / 1000, LONGEST_READ_S)


def entries_of(
    snapshot: ReadableSnapshot, request: ReadRequest, after: bytes, effort: Pace
) -> list[tuple[bytes, bytes]]:
    """Up to the limit of entries behind `after`, over all spans in the direction of the read."""
    entries: list[tuple[bytes, bytes]] = []
    for low, high in reversed(request.spans) if request.reverse else request.spans:
        if after and ((low >= after) if request.reverse else (high is not None and high <= after)):
            continue  # this span was read to its end on an earlier page
        inside = after if after and low <= after and (high is None or after < high) else None
        wanted = request.limit - len(entries)
        for block in snapshot.rows(low, high, request.reverse, wanted, inside):
            entries += block
            if len(entries) < request.limit:
                effort.look()
        if len(entries) >= request.limit:
            return entries[: request.limit]
    return entries
