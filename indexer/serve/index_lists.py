"""Pages of the skip ledger and of violations, what is written, and samples for maps, of the slices on this
node (`keytide.wire.index_lists`)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from indexer.serve.map_samples import sampled
from indexer.view import NodeView, ReadableSnapshot, StoreDamagedError
from keytide.errors import RetryableError
from keytide.wire.index_lists import (
    LARGEST_PAGE,
    REASONS_LIMIT,
    BoundingBox,
    ListAsk,
    ListPage,
    SkippedLine,
    WrittenSlice,
)
from keytide.wire.messages import UniqueViolation

_BLOCK: Final = 5_000


def page(view: NodeView, ask: ListAsk) -> ListPage:
    """Answer a coordinator. Any thread; takes as long as it takes to read.

    Raises:
        RetryableError: `index-not-ready`, a slice is not here, or being built; `store-damaged`.
    """
    limit = max(1, min(ask.limit, LARGEST_PAGE))
    if ask.what == "violations":
        found = [one for number in ask.slices for one in _violations(view, ask, number, limit)]
        found.sort(key=lambda one: one.key)
        return ListPage(violations=found[:limit], more=len(found) > limit)
    if ask.what == "load":
        return ListPage(written=[_written(view, ask.index, number) for number in ask.slices])
    if ask.what == "map":
        return ListPage(boxes=_boxes(view, ask, limit))
    lines: list[SkippedLine] = []
    reasons: Counter[str] = Counter()
    counted_all = True
    for number in ask.slices:
        with _tip(view, ask.index, number) as snapshot:
            lines += _lines(snapshot, limit + 1, ask.after)
            if ask.reasons:
                counted_all &= _count(snapshot, reasons)
    lines.sort(key=lambda line: (line.partition, line.offset))
    return ListPage(
        lines[:limit], more=len(lines) > limit, reasons=dict(sorted(reasons.items())), counted_all=counted_all
    )


@contextmanager
def _tip(view: NodeView, index: str, number: int) -> Iterator[ReadableSnapshot]:
    """The newest state of a slice, until the end of the block."""
    snapshot = view.tip(index, number)
    if snapshot is None:
        raise _not_here(view, index, number)
    try:
        yield snapshot
    except StoreDamagedError as error:
        raise RetryableError(
            f"slice {number} of {index} is damaged: {error.message}",
            problem_type="store-damaged",
            next_step="it is rebuilt by itself; try again when the index is in order",
        ) from error
    finally:
        snapshot.release()


def _boxes(view: NodeView, ask: ListAsk, limit: int) -> list[BoundingBox]:
    record = view.catalog().index(ask.index)
    if record is None:
        raise _not_here(view, ask.index, ask.slices[0] if ask.slices else 0)
    found: dict[BoundingBox, None] = {}
    for number in ask.slices:
        with _tip(view, ask.index, number) as snapshot:
            found |= dict.fromkeys(sampled(snapshot, record.definition, -(-limit // len(ask.slices))))
    return list(found)[:limit]


def _violations(view: NodeView, ask: ListAsk, number: int, limit: int) -> list[UniqueViolation]:
    found = view.violations(ask.index, number)
    if found is None:
        raise _not_here(view, ask.index, number)
    after = ask.after_key
    at = 0 if after is None else bisect_right(found, after, key=lambda one: one.key)
    return list(found[at : at + limit + 1])


def _written(view: NodeView, index: str, number: int) -> WrittenSlice:
    found = view.written(index, number)
    if found is None:
        raise _not_here(view, index, number)
    return found


def _lines(snapshot: ReadableSnapshot, limit: int, after: tuple[int, int] | None) -> list[SkippedLine]:
    return [
        SkippedLine(line.partition, line.offset, line.id, line.reason, line.detail)
        for line in snapshot.skips(limit, after)
    ]


def _count(snapshot: ReadableSnapshot, reasons: Counter[str]) -> bool:
    """Count lines by reason; whether all were."""
    after: tuple[int, int] | None = None
    seen = 0
    while seen < REASONS_LIMIT:
        block = snapshot.skips(_BLOCK, after)
        reasons.update(line.reason for line in block)
        seen += len(block)
        if len(block) < _BLOCK:
            return True
        after = (block[-1].partition, block[-1].offset)
    return False


def _not_here(view: NodeView, index: str, number: int) -> RetryableError:
    return RetryableError(
        f"slice {number} of index {index} is not open on node {view.node_id}",
        problem_type="index-not-ready",
        next_step="a slice that is being built has no lists yet: see `keytide index show`, and try again",
    )
