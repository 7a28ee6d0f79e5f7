"""Which reads are done at once, on the event loop, and what bounds the others. Pure."""

from __future__ import annotations

from typing import Final

from indexer.scan.peer.messages import ReadRequest
from indexer.scan.plan.selection import sifts

INLINE_ROWS: Final = 2_000
"""Rows that are read or written as JSON on the event loop: about 2 ms."""
SEEK_ROWS: Final = 20
"""A seek to a further span costs about as much as so many rows, also when nothing lies in it."""
ROW_BYTES: Final = 16 * 1024
"""A key of up to so many bytes counts as a row: one of a btree has no more, and few are read of each."""
LONGEST_READ_S: Final = 3_600.0
"""Whatever a message says. `scan.max_timeout_ms` is far below it."""


def is_plain(request: ReadRequest) -> bool:
    """Whether the first entries that are found are those that are wanted."""
    shape = request.shape
    return bool(request.paging.limit) and not (
        shape.filter or shape.keys or shape.distinct or request.paging.skip
    )


def knows_count(request: ReadRequest) -> bool:
    """Whether this is a count that the store knows without reading."""
    shape = request.shape
    return not (request.paging.limit or shape.filter or shape.keys or shape.distinct) and all(
        not low and high is None for low, high in request.span.spans
    )


def is_short(request: ReadRequest) -> bool:
    """Whether the read is done faster than a thread is asked to do it. (Of keys it may turn out to be no
    short one.)"""
    span, paging, shape = request.span, request.paging, request.shape
    tests, keys = shape.filter or shape.distinct or paging.skip, shape.keys
    if shape.task or (keys and shape.examine):
        return False
    if paging.limit and not sifts(tests, keys, (high for _, high in span.spans)):
        seeks = SEEK_ROWS * max(0, len(span.spans) - 1)  # the first one is in the measure of `INLINE_ROWS`
        weight = 1 + max(map(len, keys), default=0) // ROW_BYTES
        return (paging.limit + seeks) * len(span.slices) * weight <= INLINE_ROWS
    return knows_count(request)


def finds_places(request: ReadRequest) -> bool:
    """Whether a read of a spatial index is begun at once: it looks at a few cells, and goes on in a thread if
    it does not end there. What is counted is read, so that is never short."""
    span, paging, shape = request.span, request.paging, request.shape
    if shape.task or shape.examine or shape.distinct or paging.skip or not paging.limit or any(span.after):
        return False
    return all(high is not None for _, high in span.spans) and paging.limit <= INLINE_ROWS


def within_s(request: ReadRequest) -> float | None:
    """How long a read may take; None for what its limit bounds."""
    if is_plain(request) or not request.paging.within_ms:
        return None
    return min(request.paging.within_ms / 1000, LONGEST_READ_S)
