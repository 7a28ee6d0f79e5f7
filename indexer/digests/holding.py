"""Getting hold of what a verifier asks of a slice, and telling of damage that reading it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from indexer.view import DoubtfulReadError, NodeView, ReadableSnapshot, StoreDamagedError
from keytide.errors import RetryableError
from keytide.wire.digests import DigestAsk, EntriesAsk, RowsAsk, SkipsAsk
from keytide.wire.entry_sums import BuiltAsk

LARGEST_LIMIT: Final = 500_000
"""Rows that one call looks at at most: about a second."""


class SnapshotNotHeldError(RetryableError):
    """A slice does not hold the snapshot (any more): it restarted, or was rolled back; or it has not loaded
    the micro-batch."""

    problem_type = "snapshot-not-held"
    status = 503


@contextmanager
def snapshot_for(
    view: NodeView, ask: DigestAsk | RowsAsk | EntriesAsk | SkipsAsk | BuiltAsk
) -> Iterator[ReadableSnapshot]:
    """What is asked for, during the block.

    Raises:
        SnapshotNotHeldError: the slice does not hold it.
        RetryableError: the slice is damaged.
    """
    snapshot = _built(view, ask) if isinstance(ask, BuiltAsk) else _numbered(view, ask)
    try:
        yield snapshot
    except StoreDamagedError as error:
        view.report_damage(ask.index, ask.slice, error.message)
        raise RetryableError(
            f"slice {ask.slice} of {ask.index} is damaged: {error.message}",
            problem_type="store-damaged",
            next_step="it is rebuilt by itself; verify the index again when it is READY",
        ) from error
    except DoubtfulReadError as error:
        view.report_doubt(ask.index, ask.slice, error.message)
        raise
    finally:
        snapshot.release()


def _numbered(view: NodeView, ask: DigestAsk | RowsAsk | EntriesAsk | SkipsAsk) -> ReadableSnapshot:
    snapshot = view.acquire(ask.index, ask.slice, ask.number)
    if snapshot is not None and snapshot.incarnation == ask.incarnation:
        return snapshot
    if snapshot is not None:
        snapshot.release()
    raise SnapshotNotHeldError(
        f"slice {ask.slice} of {ask.index} does not hold snapshot {ask.number} on node {view.node_id}",
        next_step="begin again with a newer one",
    )


def _built(view: NodeView, ask: BuiltAsk) -> ReadableSnapshot:
    snapshot = view.built(ask.index, ask.slice, ask.build)
    if snapshot is not None and snapshot.number == ask.batch:
        return snapshot
    there = "it loads, or is not of that build"
    if snapshot is not None:
        there = f"it has loaded what comes up to {snapshot.number}"
        snapshot.release()
    raise SnapshotNotHeldError(
        f"slice {ask.slice} of {ask.index} on node {view.node_id} does not end with micro-batch {ask.batch} "
        f"of build {ask.build}: {there}",
        next_step="ask again when it has loaded it",
    )
