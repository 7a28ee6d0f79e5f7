"""Rollback of one slice: its store and its snapshots go back to what still holds (R30, R33).

The newest state that holds is, in this order: the one that the slice has; the one of its last fold; that of
one fold after the other, back to the store's horizon. Where nothing at all holds of what was done under the
slice's incarnation (the source topic was made anew, or lost everything), an empty store takes its place:
projectors read from the beginning, so the queue brings everything there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from indexer.hosting.snapshots import SnapshotRing
from indexer.slice.events import DataLost, SteppedBack
from indexer.store.interface import Applied, SliceStore
from keytide.catalog.history import History
from keytide.model.timestamp import Timestamp

log = logging.getLogger(__name__)

BeginAnew = Callable[[SliceStore, Applied], SliceStore]
"""Deletes a slice's store and makes an empty one of this state in its place."""


def step_back(
    store: SliceStore, ring: SnapshotRing, history: History, begin_anew: BeginAnew | None
) -> tuple[SliceStore, SteppedBack | DataLost]:
    """Take a slice back; returns its store, which may be another one, and what came of it.

    May be done again after an error, and by the next process after a kill.

    Raises:
        RetryableError: `disk-full`.
        StoreDamagedError: the store is not what was written.
    """
    ring.roll_back(history)
    before = store.applied
    if not history.holds(before.timestamp, before.incarnation):
        if begin_anew is not None and history.begins_anew(before.incarnation):
            timestamp = Timestamp({}, history.topic_id)
            empty = Applied(timestamp=timestamp, incarnation=history.incarnation, build=before.build)
            store = begin_anew(store, empty)
        elif not store.step_back(lambda state: history.holds(state.timestamp, state.incarnation)):
            reached = store.horizon.timestamp.offsets()
            reason = f"the source lost records, and the slice cannot step back further than {reached}"
            return store, DataLost(f"{reason}: it must be rebuilt")
    applied = store.applied
    log.info("rolled back to incarnation %d: from %s to %s", history.incarnation, before, applied)
    return store, SteppedBack(applied, ring.newest())
