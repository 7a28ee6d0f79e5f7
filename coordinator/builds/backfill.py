"""A build in BACKFILL: watching its Spark driver, its source, and how far both timestamps are. Pure.

A driver reports twice a second from its first moment on, by a thread of its own. One that stands still
(SIGSTOP, a machine that swaps) does not end, and would hold up its build for ever: it is given up, as one
that died, when it says nothing for long. Only time in which others are heard counts: silence of all is
Kafka's, or the coordinator's own.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from coordinator.builds.pausing import BuildPausing
from coordinator.builds.phases import with_bytes
from coordinator.builds.registry import BuildLimits, BuildRegistry, BuildRun
from coordinator.core import drivers
from coordinator.core.events import DriverExited, SourceSampled
from coordinator.core.failure_detector import SILENT_MS, START_MS, ReportWatch
from coordinator.core.instructions import Instruction, Note, SampleSource, StartDriver, StopDriver
from coordinator.sources.source_checks import (
    finished,
    open_transactions,
    reached,
    target,
    unbuildable,
    waiting_words,
)
from keytide.catalog.records import BuildRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Activated, BuildProgress

WRITE_INTERVAL_MS = 1_000
"""Between writes of progress alone: it may be lost, the driver reports it again."""
DOUBT_MS = 3_000
"""Before a driver's word that its build can never work is final: sources are looked at every second."""
BEGIN_AGAIN: Final[dict[int, str]] = {
    drivers.READ_LOST: "the source lost records that the build has read",
    drivers.JOURNAL_LOST: "Kafka has lost its journal, which says what it has read",
    drivers.SEED_UNFIT: "the slices that it was to begin with have met documents in two source partitions",
}
"""Why a build begins again, by the exit status of its driver."""


class BackfillPhase:
    """What happens to a build while it is in BACKFILL."""

    def __init__(self, registry: BuildRegistry, limits: BuildLimits, pausing: BuildPausing) -> None:
        self._registry = registry
        self._limits = limits
        self._pausing = pausing
        self._reports_heard = ReportWatch()

    def heard(self, now: int) -> None:
        """A report came, of whomever: reports can be heard."""
        self._reports_heard.heard(now)

    def tick(self, record: BuildRecord, now: int) -> list[Instruction]:
        """Write progress now and then; miss a driver that ended without a word, or stands still."""
        run = self._registry.run(record.id)
        if now - run.written_at >= WRITE_INTERVAL_MS:
            run.written_at = now
            self._registry.put(record)
        if run.failing:
            doubted = record.keyspace in self._registry.halted or now - run.failing_at < DOUBT_MS
            return [] if doubted else self._registry.fail(record, run.failing, now)
        if run.exited_at and now - run.exited_at > drivers.EXIT_GRACE_MS:
            return self._died(record, "it ended before it had passed the load timestamp", now)
        if not (run.exited_at or run.sampling) and self._silent(run, now):
            story = f"it does not end, and has said nothing for {SILENT_MS // 1000} s"
            return [StopDriver(record.id), *self._died(record, story, now)]
        return []

    def _silent(self, run: BuildRun, now: int) -> bool:
        """Whether a driver has said nothing for too long; counts the time since the last tick."""
        run.silent_ms += self._reports_heard.silence(run.counted_at or now, now)
        run.counted_at = now
        return run.silent_ms >= SILENT_MS

    def activated(self, message: Activated) -> list[Instruction]:
        """A partition's segments for an index begin at this offset: a component of the low-watermark
        timestamp. The first word counts (a later, larger offset would be safe as well)."""
        for record in self._registry.all():
            if record.state != "BACKFILL" or record.keyspace != message.keyspace:
                continue
            versions = [index.version for index in self._registry.indexes(record)]
            if message.partition not in record.low_watermark and message.version >= max(versions, default=0):
                low = {**record.low_watermark, message.partition: message.offset}
                self._registry.note_progress(
                    _counted(replace(record, low_watermark=dict(sorted(low.items()))))
                )
                self._registry.run(
                    record.id
                ).written_at = 0  # the driver waits for it: the next tick writes it
        return []

    def progress(self, message: BuildProgress, now: int) -> list[Instruction]:
        """The driver's word. Reports may come twice and late; what they count only grows."""
        record = self._registry.find(message.build, "BACKFILL")
        run = self._registry.run(message.build) if record else None
        if record is None or run is None:
            return []
        run.silent_ms = min(run.silent_ms, 0)  # (it may be the last word of the driver before this one)
        if (message.attempt, message.sent_at) < run.reported:
            return []
        run.reported = message.attempt, message.sent_at
        record = replace(
            record,
            backfill_timestamp=record.backfill_timestamp.merge_max(message.timestamp),
            batches=max(record.batches, message.batches),
            earliest=message.earliest if message.earliest.places else record.earliest,
            first_read_at=record.first_read_at or message.first_read_at,
            table_documents=message.table_documents
            if record.seed and message.table_documents
            else max(record.table_documents, message.table_documents),
            left_out=message.left_out or record.left_out,
            skipped=message.skipped or record.skipped,
            engine=message.engine or record.engine,
            compared=message.compared if message.state == "PASSED" else record.compared,
        )
        record = with_bytes(_counted(record, message.documents), message)
        self._registry.note_progress(record)
        run.count(now, record.documents_done)
        run.driver_phase = message.phase
        if record.seed:
            run.waiting_for = message.error if message.state == "RUNNING" else ""
        over = min(finished(record, record.backfill_timestamp), record.documents_total)
        run.pace.report(now, message.phase, record.documents_done, over)
        if message.state == "FAILED":
            return self._never(record, message.error, now)
        if message.state != "PASSED" or run.sampling:
            return []
        if reached(record):
            run.sampling, run.exited_at = True, 0
            return [SampleSource(record.keyspace, record.id, _with_epochs(record.backfill_timestamp))]
        text = (
            f"the driver says that it has passed, and was to reach {target(record).offsets()}; "
            f"it has reached {record.backfill_timestamp.offsets()}"
        )
        return [Note("warning", "build-not-passed", record.id, text)]

    def watch_source(self, event: SourceSampled) -> list[Instruction]:
        """A periodic sample of the source: can this build still be right?"""
        out: list[Instruction] = []
        if event.source.keyspace in self._registry.halted:
            return out  # a build of another history than the source's begins again, it does not fail
        for record in self._registry.all():
            if record.keyspace != event.source.keyspace or record.state not in ("BACKFILL", "PAUSED"):
                continue
            reason = unbuildable(record, event.source)
            if not reason:
                hidden = open_transactions(record.load_timestamp, event.source)
                waits = waiting_words(hidden)
                run = self._registry.run(record.id)
                run.open_until = Timestamp.of(event.source.stable) if hidden else Timestamp()
                if record.state == "BACKFILL" and (waits or not record.seed):
                    run.waiting_for = waits
                waited = event.now - record.started_at
                if waits and waited > self._limits.transaction_limit_ms:
                    reason = (
                        f"it has waited {waited // 1000} s for {waits} (setting build.transaction_limit_s)"
                    )
            if reason:
                out += self._registry.fail(record, reason, event.now)
        return out

    def driver_exited(self, event: DriverExited) -> list[Instruction]:
        """The driver has ended: well (then its last report says PASSED), or it died and is started again."""
        record = self._registry.find(event.build, "BACKFILL")
        if record is None or self._registry.run(event.build).sampling:
            return []
        if event.status == drivers.NEVER_AGAIN or self._registry.run(event.build).failing:
            return self._never(record, event.tail, event.now)
        if event.status == 0:
            self._registry.run(event.build).exited_at = event.now
            return []
        if event.status == drivers.NO_ROOM:
            return self._pausing.pause(record, "system", event.tail, event.now, "room")
        return self._died(record, drivers.end_of(event), event.now)

    def _never(self, record: BuildRecord, reason: str, now: int) -> list[Instruction]:
        """The driver says that its build can never work. It may be the first to see that the source has lost
        records: then the build is to begin again, not to fail. So its word is kept until others have had time
        to notice."""
        run = self._registry.run(record.id)
        if not run.failing:
            unsaid = f"the Spark driver gave no reason; its log is builds/{record.id}/driver.log"
            run.failing, run.failing_at = reason or unsaid, now
        return []

    def _died(self, record: BuildRecord, story: str, now: int) -> list[Instruction]:
        run = self._registry.run(record.id)
        run.exited_at = 0
        if record.batches > run.restarts_batches:
            run.restarts, run.restarts_batches = 0, record.batches
        if run.restarts >= self._limits.restarts:
            return self._pausing.lost_spark(record, story, now)
        delay = drivers.back_off(self._limits.back_off_ms, run.restarts)
        run.restarts += 1
        run.silent_ms = -START_MS - delay
        text = f"the Spark driver died and is started again in {delay / 1000:g} s: {story}"
        return [StartDriver(record.id, delay), Note("warning", "driver-restarted", record.id, text)]


def _with_epochs(read: Timestamp) -> Timestamp:
    """The places of which it can be told whether they are on a log."""
    return Timestamp({p: place for p, place in read.places.items() if place.epoch >= 0}, read.topic_id)


def _counted(record: BuildRecord, documents: int = 0) -> BuildRecord:
    """With how many documents are done, of how many: offsets from the earliest to what the backfill must
    reach, and rows of a table that it begins with; or rows of another layout. Within a micro-batch what the
    driver counts."""
    if record.seed:
        read = documents or record.documents_done  # (what is read again counts anew)
        return replace(
            record, documents_total=record.table_documents, documents_done=min(read, record.table_documents)
        )
    wanted = target(record)
    total = record.earliest.documents_to(wanted) + record.table_documents
    reached_now = finished(record, record.backfill_timestamp.merge_min(wanted))
    done = max(reached_now, min(documents, total), min(record.documents_done, total))
    return replace(record, documents_total=total, documents_done=done)
