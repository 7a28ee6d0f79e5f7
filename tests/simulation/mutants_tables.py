"""Planted faults in builds that begin with a table."""

from __future__ import annotations

from typing import Any

from coordinator.builds import admission as starting
from indexer.store.resolve import resolve
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from streaming.backfill import course
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches


@mutant("tables", "a table is taken although records that it may hold were lost since")
def take_any_table(patches: Patches) -> None:
    patches.put(starting, "refused", lambda origin, facts, rollbacks=(): "")
    patches.put(course, "begins_at", lambda origin: Timestamp.of(origin.offsets, origin.topic_id))


@mutant("tables", "a row of a table is newer than a record")
def put_rows_over_records(patches: Patches) -> None:
    def newer(partition: int, offset: int, time: int, held: Any) -> bool:
        if partition != held.partition == TABLE_PARTITION:
            return False
        taken: bool = _newer(partition, offset, time, held)
        return taken

    _newer = patches.put(resolve, "newer", newer)
