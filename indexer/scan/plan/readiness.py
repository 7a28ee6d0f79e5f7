"""Waiting for an index that cannot be scanned yet: for the end of its build, or for the news of it here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from indexer.scan.plan.agreement import CATALOG_LAG_S
from indexer.scan.plan.directory import IndexDirectory, Scannable
from indexer.scan.plan.errors import IndexNotReadyError, UnknownIndexError
from indexer.scan.plan.waiting import Deadline, Gone, SnapshotNotifier

READY_LAG_S: Final = 3.0
"""How long a scan of an index that is being built waits: so late a node may read that it is READY, on a
machine whose cores are all busy."""

NotReady = IndexNotReadyError | UnknownIndexError


async def first_ready(
    directory: IndexDirectory,
    notifier: SnapshotNotifier,
    names: Sequence[str],
    layout: str,
    timeout_s: float,
    gone: Gone,
) -> Scannable:
    """The first of some indexes that is ready, waiting a moment for it.

    Args:
        names: at least one.
        layout: as in `IndexDirectory.index`.
        timeout_s: the longest wait, if that is less than what this waits anyway.

    Raises:
        UnknownIndexError, IndexNotReadyError: as `IndexDirectory.index`, of the index that can be expected
            soonest: one that is being built, else one that is not, else one that is not there.
    """
    with Deadline(min(READY_LAG_S, timeout_s), gone) as deadline:
        while True:
            with notifier.listening() as told:
                errors: list[NotReady] = []
                for name in names:
                    try:
                        return directory.index(name, layout)
                    except (IndexNotReadyError, UnknownIndexError) as error:
                        errors.append(error)
                soonest = max(errors, key=lambda one: (isinstance(one, IndexNotReadyError), _patience_s(one)))
                left_s = min(deadline.left, _patience_s(soonest) - deadline.waited_ms / 1000)
                if left_s <= 0:
                    raise soonest
                await deadline.wait(told, at_most=left_s)


def _patience_s(error: NotReady) -> float:
    """How long it may be that this node has not read yet what somebody was told."""
    if isinstance(error, UnknownIndexError):
        return CATALOG_LAG_S  # (who has misspelt it is to be told soon)
    return READY_LAG_S if error.extra.get("state", "BUILDING") == "BUILDING" else 0.0
