"""In which phase a build is, how many bytes it has read, and how long it will take. Pure.

Phases are for people and programs that watch (`keytide build show`); nothing is decided by them.

    sampling                  QUEUED: splits are looked for (`sampling`)
    waiting-for-transactions  BACKFILL: everything that can be read is read, and a producer's open transaction
                              hides the rest (R24)
    reading, sorting          BACKFILL: what the driver says that it does with a micro-batch
    loading                   CATCHUP: some slice has still to load what it was sent
    catching-up               CATCHUP: slices read their mutation queues
    verifying                 BACKFILL: the driver compares what slices store with what it has projected, by
                              sums; CATCHUP: a job compares the indexes with the source (`completion`)
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coordinator.builds.registry import BuildRegistry
from coordinator.core.nodes import HeardNodes
from coordinator.sources.source_checks import target
from keytide.catalog.records import BuildRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import BuildProgress, SliceStatus

VERIFY_PART = 1.0
"""Of the time that reading a document took: reading it again to compare."""
MOST_BEFORE_READY = 99.9
"""Percent."""


def with_bytes(record: BuildRecord, message: BuildProgress) -> BuildRecord:
    """With the driver's count of bytes, and what it lets expect of the rest: as many for each document that
    counts as done, and offsets do also where records were cleaned away."""
    done = max(record.bytes_done, message.bytes)
    documents = record.documents_done
    total = done * record.documents_total // documents if documents else 0
    return replace(record, bytes_done=done, bytes_total=max(done, total))


def reads_again(record: BuildRecord) -> bool:
    """Whether the source is read a second time, as far as that is known: where sums do not show that all is
    as it was projected, that is known late."""
    return record.verify and (record.verify_full or bool(record.verification))


def percent_done(record: BuildRecord, verified: float) -> float:
    """How much of a build is done, of 100; all of it when it is READY, and not before.

    Args:
        verified: percent of its verification.
    """
    if record.state == "READY":
        return 100.0
    read = 1.0 if record.state == "CATCHUP" else 0.0
    of_a_table = record.origin is not None and not record.seed and not record.batches
    if not read and record.documents_total and not of_a_table:  # how much a table holds shows as it is read
        read = min(1.0, record.documents_done / record.documents_total)
    more = VERIFY_PART if reads_again(record) else 0.0
    return min(MOST_BEFORE_READY, (100 * read + more * verified) / (1 + more))


def reading(record: BuildRecord, driver: str, waits: bool, stable: Timestamp) -> str:
    """The phase of a build in BACKFILL.

    Args:
        driver: what its driver says.
        waits: whether transactions are open below its load timestamp.
        stable: how far readers of the source can read.
    """
    if waits and record.backfill_timestamp.covers(target(record).merge_min(stable)):
        return "waiting-for-transactions"
    return driver or "reading"


def settling(record: BuildRecord, slices: Iterable[SliceStatus]) -> str:
    """The phase of a build in CATCHUP.

    Args:
        slices: what live nodes say of the slices that it fills.
    """
    if record.phase == "verifying" and record.verification:
        return record.phase
    loads = any(one.state == "BUILDING" and one.build == record.id for one in slices)
    return "loading" if loads else "catching-up"


class Phases:
    """Keeps the phase of builds up to date, in memory only: the next write of progress takes it along.

    Args:
        nodes: what indexer nodes say.
    """

    def __init__(self, registry: BuildRegistry, nodes: HeardNodes) -> None:
        self._registry = registry
        self._nodes = nodes

    def tick(self, record: BuildRecord) -> None:
        """Look at a build in BACKFILL or CATCHUP."""
        record = self._registry.get(record.id)
        run = self._registry.run(record.id)
        if record.state == "BACKFILL":
            phase = reading(record, run.driver_phase, bool(run.open_until.places), run.open_until)
        elif record.state == "CATCHUP":
            phase = settling(record, self._slices(record))
        else:
            return
        if phase != record.phase:
            self._registry.note_progress(replace(record, phase=phase))

    def _slices(self, record: BuildRecord) -> list[SliceStatus]:
        wanted = [
            (index.id, number)
            for index in self._registry.indexes(record)
            for number in record.slices_of(index)
        ]
        return [status for key in wanted for status in self._nodes.said(*key)]

    def eta_ms(self, record: BuildRecord, now: int) -> float | None:
        """Until the build is over; None when it cannot be told (`coordinator.builds.eta`). While it verifies
        its job knows."""
        run = self._registry.run(record.id)
        if record.state != "BACKFILL" or record.phase == "waiting-for-transactions":
            return None
        if record.origin is not None and not record.seed and not record.batches:
            return None  # how much the table holds is known when it is read
        left = run.pace.left_ms(now, record.documents_done, record.documents_total, record.rate_limit)
        pace = run.pace.read_pace()
        if left is None or pace is None or not reads_again(record):
            return left
        return left + VERIFY_PART * pace * record.documents_total
