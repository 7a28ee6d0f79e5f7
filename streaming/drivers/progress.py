"""What a driver has done: kept between starts, shared by its threads, reported to the coordinator.

Theory of operation: how far the build is, is in its journal (`streaming.drivers.journal`), written before the
ends of a micro-batch are sent, and after. Counts are only for people and limits, so a batch that is counted
twice after a crash does no harm. Reports go to the coordinator twice a second from a thread of their own, and
at every change of state; they are the driver's heartbeat.

`Status` is also where the end is decided: `try_close` and `begin_batch` exclude each other, so that either
the build has passed and no further micro-batch begins, or a micro-batch is under way and the build goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from keytide.kafka.topics import producer
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.process.worker import Worker, logged
from keytide.settings.settings import Settings
from keytide.wire.messages import BuildProgress, JobProgress, Message, encode
from streaming.core.log_identity import known
from streaming.core.micro_batches import SettledBatch, SliceTarget, add_counts
from streaming.core.sizing import SizedBatch, cut, documents
from streaming.drivers.failures import StoppedError
from streaming.drivers.journal import Journal, JournalKeeper
from streaming.drivers.rate_gate import RateGate

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 0.5
_FLUSH_S = 10.0


class Status:
    """Where a driver stands; all methods may be called from any thread.

    Attributes:
        finished: number of the last micro-batch whose ends are in the queues, -1 when none.
        position: the backfill timestamp after it.
        at_table: the micro-batch under way is the table, or the layout, that the build begins with.
        rows_total: entries of that layout; 0 until it is known, and of a table.
        gate: counts what tasks of the present micro-batch have read.
        engine: what reads (`BuildProgress.engine`).
        comparing: what slices store is being compared with what was projected.
        compared: what came of it (`BuildProgress.compared`).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keeper: JournalKeeper | None = None
        self.at_table = False
        self.rows_total = 0
        self._busy = self._closing = self._counted = False
        self._state, self._note = "STARTING", ""
        self.journal = Journal()
        self.finished = -1
        self.position = self.earliest = Timestamp()
        self.gate: RateGate | None = None
        self.engine = ""
        self.comparing = False
        self.compared = ""

    def take_over(self, keeper: JournalKeeper) -> None:
        """Go on where the driver before was; from now on what is done is kept there.

        Raises:
            RetryableError: it cannot be had now.
        """
        self.journal = keeper.load()
        self._keeper = keeper

    def _keep(self, journal: Journal) -> None:
        if self._keeper is None:
            raise RuntimeError("take_over comes first")
        self._keeper.keep(journal)

    def enter(self, state: str, note: str = "") -> None:
        """Change the state that is reported."""
        with self._lock:
            self._state, self._note = state, note

    def resume(self, finished: int, position: Timestamp, earliest: Timestamp) -> None:
        """Begin at a place; its leader epochs are in the journal."""
        position = known(position, self.journal.read)
        with self._lock:
            self.finished, self.position, self.earliest, self._state = finished, position, earliest, "RUNNING"

    def begin_reading(self, now: int) -> None:
        """The first micro-batch is about to be read: tombstones count from here (R26)."""
        if not self.journal.first_read_at:
            self._keep(replace(self.journal, first_read_at=now))  # before anybody hears of it
            self.journal.first_read_at = now

    def begin_batch(self) -> None:
        """A micro-batch begins.

        Raises:
            StoppedError: the build has passed, or is being stopped.
        """
        with self._lock:
            if self._closing:
                raise StoppedError
            if self.gate is not None:
                self.gate.begin(0, 0)  # what the one before has read is in the journal
            self._busy, self._counted = True, False

    def end_batch(self) -> None:
        """A micro-batch has ended, well or not."""
        with self._lock:
            self._busy = False

    def next_batch(self, start: Mapping[int, int], end: Mapping[int, int], most: int) -> SizedBatch | None:
        """The next micro-batch of what is planned; None when all of that is done.

        Args:
            start, end: what is planned, by partition; the end is exclusive.
            most: documents that it may have.
        """
        if self.journal.pending is not None:
            return self.journal.pending
        reached = self.position.offsets()
        begin = {p: max(offset, reached.get(p, 0)) for p, offset in start.items()}
        if not documents(begin, end):
            return None
        return SizedBatch(self.journal.finished + 1, begin, cut(begin, end, most))

    def note_size(self, size: int) -> None:
        """What the next driver's first micro-batch has, if this one's comes to nothing."""
        self.journal.size = size
        self._keep(self.journal)

    def settle_batch(self, end: Timestamp, batch: SizedBatch | None) -> None:
        """What a micro-batch has read is of one log; kept before any of its ends is sent.

        Args:
            end: with leader epochs.
            batch: the micro-batch; None for a table's, which has no offsets.
        """
        self.journal.read = end
        with self._lock:
            self.journal.newest = batch
        self._keep(self.journal)

    def finish_batch(
        self, batch: int, end: Timestamp, targets: list[SliceTarget], outcome: SettledBatch
    ) -> None:
        """The ends of a micro-batch are in the queues."""
        journal = self.journal
        with self._lock:
            self.finished, self.position = batch, end
            journal.documents += outcome.documents
            journal.bytes += self.gate.bytes if self.gate is not None else 0
            self._counted = True
            for target, entries in zip(targets, outcome.entries, strict=True):
                journal.entries[target.index_id] = journal.entries.get(target.index_id, 0) + entries
            add_counts(journal.skipped, outcome.skipped)
            add_counts(journal.left_out, outcome.left_out)
            journal.add_sums(batch, outcome.sums)
            if journal.newest is not None:
                journal.newest = replace(journal.newest, done=True)
        self._keep(journal)

    def finish_empty(self, end: Timestamp) -> None:
        """Settle that micro-batch 0 is empty; kept before anybody hears of it."""
        self.journal.nothing_to_read = end.offsets()
        self._keep(self.journal)
        with self._lock:
            self.finished, self.position = 0, end

    def try_close(self, passed: Callable[[Timestamp], bool]) -> bool:
        """Whether the build has passed and nothing is under way; from then on no micro-batch begins. One
        whose ends an earlier driver may have sent must be finished first.

        Args:
            passed: judges the backfill timestamp.
        """
        with self._lock:
            if not (self._busy or self.journal.pending) and passed(self.position):
                self._closing = True
            return self._closing

    def close(self) -> None:
        """No further micro-batch begins."""
        with self._lock:
            self._closing = True

    def report(self, build: str, run: str, now: int, attempt: tuple[int, int] = (0, 0)) -> BuildProgress:
        """The present report, the micro-batch under way included in `documents`.

        Args:
            now: milliseconds; never less than before.
            attempt: which start of the driver it is.
        """
        with self._lock:
            gate = self.gate if self._busy and not self._counted else None
            under_way = gate.documents if gate is not None else 0
            journal = self.journal
            return BuildProgress(
                build=build,
                run=run,
                state=self._state,
                batches=self.finished + 1,
                timestamp=self.position,
                earliest=self.earliest,
                documents=self.journal.documents + under_way,
                chunk_entries=dict(self.journal.entries),
                error=self._note,
                sent_at=now,
                first_read_at=self.journal.first_read_at,
                phase=self._phase(gate),
                bytes=self.journal.bytes + (gate.bytes if gate is not None else 0),
                table_documents=(self.rows_total or under_way) if self.at_table else journal.table_documents,
                left_out={index: dict(reasons) for index, reasons in self.journal.left_out.items()},
                skipped={index: dict(reasons) for index, reasons in self.journal.skipped.items()},
                attempt=attempt,
                protocol=SPOKEN,
                engine=self.engine,
                compared=self.compared,
            )

    def _phase(self, gate: RateGate | None) -> str:
        """What the driver does, in the words of the contract."""
        if self._state == "PASSED":
            return "loading"
        if self.comparing:
            return "verifying"
        return "sorting" if gate is not None and gate.all_read else "reading"


class DriverReporter:
    """Sends reports twice a second until closed.

    Args:
        current: makes the present report, None for nothing to say; called from the reporter's thread too.
    """

    def __init__(self, settings: Settings, current: Callable[[], BuildProgress | JobProgress | None]) -> None:
        self._producer = producer(settings)
        self._topic = Topics(settings.cluster).reports
        self._current = current
        self._lock = threading.Lock()
        self._worker = Worker("reports", logged, self._run)
        self._worker.open()

    def send(self, message: Message | None = None) -> None:
        """Send a report now, or another message."""
        with self._lock:
            try:
                report = message or self._current()
                if report is not None:
                    self._producer.produce(self._topic, encode(report))
                self._producer.poll(0)
            except BufferError:
                log.warning("Kafka is behind: a report is left out")
            finally:
                self._producer.hand_over()  # the lock keeps the two threads apart

    def flush(self, limit_s: float) -> bool:
        """Wait until what was sent has arrived; whether it has."""
        with self._lock:
            try:
                return not self._producer.flush(limit_s)
            finally:
                self._producer.hand_over()

    def _run(self) -> None:
        while not self._worker.stopping.wait(REPORT_INTERVAL_S):
            self.send()

    def close(self) -> None:
        """Send a last report and wait for it to arrive (10 s at most)."""
        self._worker.close()
        self.send()
        if not self.flush(_FLUSH_S):
            log.error("the last report did not reach Kafka")
