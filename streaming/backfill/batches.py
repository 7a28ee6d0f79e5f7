"""Micro-batches of one build: what happens in `foreachBatch`.

Theory of operation: Spark has fixed in the checkpoint what it plans to read; the driver cuts it into the
micro-batches of the build, one after the other (`streaming.core.sizing`). Both stages of one run as one Spark
job (`streaming.stages.tasks`), the summaries settle who won (`streaming.core.micro_batches`), the source is
checked to be the one that the build began with and its log to be the one that was read before
(`streaming.core.log_identity`; what may be of two logs is read again), the micro-batch is written down, and
then every slice gets its end: from there on it counts. A driver that dies after it was written down leaves a
batch that is run again, whole, under the same number; slices that had it skip it. One that dies before
leaves nothing. When all that Spark has planned is done, Spark commits it. The places where a crash test
strikes are named by `reach`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.kafka.topics import producer
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.process.sync_points import reach
from keytide.settings.settings import SecuritySettings, Settings
from keytide.wire.messages import BatchEnd, encode
from streaming.backfill.table_origin import TableError, run_table
from streaming.core import log_identity
from streaming.core import micro_batches as core
from streaming.core.sizing import SizedBatch, Sizing, documents
from streaming.core.versions import Offsets, Version, losers_of
from streaming.drivers.progress import Status
from streaming.drivers.rate_gate import RateClient, RateGate
from streaming.spark.checkpoint import Checkpoint, Extent, Range
from streaming.stages.tasks import VERSION_ROW, read_and_find_versions, read_and_project, settled
from streaming.stages.work import BatchWork, DeliveryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

FLUSH_LIMIT_S = 60.0
READINGS = 5
"""Of one micro-batch by one driver, while leaders change."""
HISTORY_LIMIT_S = 10.0
"""For a leader that was replaced, and does not know it yet, to be out of the way."""
HISTORY_PAUSE_S = 0.2
UNCOUNTED = 1 << 62
"""Documents of a table, at most."""


@dataclass(frozen=True)
class BuildPlan:
    """What does not change while a build runs.

    Attributes:
        slices: index id -> the slices that the build fills.
    """

    build: str
    keyspace: str
    topic_id: str
    indexes: tuple[IndexRecord, ...]
    slices: Mapping[str, Sequence[int]]

    @functools.cached_property
    def targets(self) -> list[core.SliceTarget]:
        return core.targets_of(self.slices)


class Batches:
    """Runs the micro-batches of one driver.

    Args:
        check_source: raises when the source is not the topic that the build began with.
        read_history: asks for the source's past, as far back as the places of what was read need it; raises
            when Kafka does not answer.

    Attributes:
        run: names this start of the driver.
        error: what a micro-batch failed with.
        rate: limit of the build, documents per second; 0 for none.
    """

    def __init__(
        self,
        settings: Settings,
        plan: BuildPlan,
        checkpoint: Checkpoint,
        status: Status,
        *,
        check_source: Callable[[], None],
        read_history: Callable[[Timestamp], LogHistory],
    ) -> None:
        self.run = uuid.uuid4().hex[:12]
        self.error: BaseException | None = None
        self.rate = 0
        self._settings = settings
        own, size = settings.build, status.journal.size
        self._sizing = Sizing(own.batch_documents, own.batch_least_documents, own.batch_seconds, size)
        self._begun = False
        self._plan = plan
        self._checkpoint = checkpoint
        self._status = status
        self._check_source = check_source
        self._read_history = read_history
        self._history: LogHistory | None = None
        self._gate: RateGate | None = None
        self._end = threading.Event()
        self._routes: tuple[int, ...] = ()
        self._producer = producer(settings)

    def prepare(self, partitions: int, gate: RateGate) -> None:
        """Set how many partitions the shuffle has, and what tasks say to whom what they read."""
        self._routes = tuple(core.exact_routes(partitions))
        self._gate = gate

    def close(self) -> None:
        """End all waiting; the query is about to be stopped."""
        self._end.set()

    def on_batch(self, frame: DataFrame, batch: int) -> None:
        """Spark's call for each micro-batch, numbered as the query does."""
        try:
            planned = self._checkpoint.range(self._checkpoint.first + batch)
            while (sized := self._next(planned)) is not None:
                self._status.begin_batch()
                try:
                    self._run_batch(frame, sized)
                finally:
                    self._status.end_batch()
        except BaseException as error:
            self.error = error
            raise

    def _next(self, planned: Range) -> SizedBatch | None:
        """What is to be done next of what Spark has planned; None when all is done."""
        most = self._sizing.limited(self.rate)
        return self._status.next_batch(planned.start.offsets(), planned.end.offsets(), most)

    def on_table(self, table: DataFrame, begin: Timestamp) -> None:
        """Run micro-batch 0 of a build that begins with a table.

        Args:
            table: as `streaming.backfill.table_origin.read_table` gives it.
            begin: where reading the log begins, with leader epochs.

        Raises:
            TableError: the source has lost records that the table may hold, or the table is none.
        """
        self._status.begin_batch()
        try:
            self._history = self._checked_history(begin)
            if reason := log_identity.lost(begin, self._history):
                raise TableError(
                    f"the table may hold records that the source has lost: {reason}",
                    next_step="take a newer table",
                )
            reach("driver-batch-begun")
            self._status.at_table = True
            outcome = run_table(table, self._work(0), self._client(UNCOUNTED, 0))
            reach("driver-before-batch-end")
            end = log_identity.placed(begin, Timestamp(), self._history)
            self._status.settle_batch(end, None)
            self.send_ends(0, begin, end, outcome.winners)
            journal = self._status.journal
            journal.table_read, journal.table_documents = True, outcome.documents
            self._status.at_table = False
            self._status.finish_batch(0, end, self._plan.targets, outcome)
            reach("driver-batch-ended")
        finally:
            self._status.end_batch()
        log.info("build %s: %d rows of the table are read", self._plan.build, outcome.documents)

    def _run_batch(self, frame: DataFrame, sized: SizedBatch) -> None:
        """Run a micro-batch and send its ends; how long it takes decides how large the next one is."""
        began = time.monotonic()
        if not self._begun:
            self._begun = True
            self._status.note_size(self._sizing.struck())
        batch, topic_id = sized.number, self._plan.topic_id
        covered = Range(Timestamp.of(sized.start, topic_id), Timestamp.of(sized.end, topic_id))
        work = self._work(batch)
        if self._history is None:
            self._history = self._checked_history(covered.end)
        reach("driver-batch-begun")
        outcome, end = self._read(frame, work, covered, self._history)
        reach("driver-before-batch-end")
        self._status.settle_batch(end, sized)
        self.send_ends(batch, covered.start, end, outcome.winners)
        self._status.finish_batch(batch, end, self._plan.targets, outcome)
        reach("driver-batch-ended")
        log.info(
            "build %s: micro-batch %d done, %d documents, %d entries",
            *(self._plan.build, batch, outcome.documents, sum(outcome.entries)),
        )
        if self._gate is not None:
            self._gate.settle(outcome.documents)
        self._sizing.finished(documents(sized.start, sized.end), time.monotonic() - began)
        self._status.note_size(self._sizing.size)

    def _read(
        self, frame: DataFrame, work: BatchWork, covered: Range, before: LogHistory
    ) -> tuple[core.SettledBatch, Timestamp]:
        """Read a micro-batch, again while what was read may be of two logs; what it came to, and its end with
        leader epochs.

        Args:
            before: the source's past, looked at before.

        Raises:
            ReadLostError: the log is not the one of the micro-batches before.
            RetryableError: leaders change all the time.
        """
        for _ in range(READINGS):
            outcome = self._act(frame, work, covered)
            if outcome.foreign:
                losers = self._losers(frame, work, covered, outcome.foreign)
                outcome = self._act(frame, dataclasses.replace(work, losers=losers), covered)
            reach("driver-chunks-sent")
            self._check_source()
            now = self._history = self._checked_history(covered.end, before)
            mixed = log_identity.mixed(before, now, covered.start, covered.end)
            if not mixed:
                return outcome, log_identity.placed(covered.end, self._status.journal.read, now)
            words = "build %s: micro-batch %d is read again: leaders of partitions %s have changed meanwhile"
            log.warning(words, self._plan.build, work.batch, mixed)
            before = now
        raise RetryableError(f"leaders of {self._plan.keyspace} changed in each of {READINGS} readings")

    def _checked_history(self, end: Timestamp, before: LogHistory | None = None) -> LogHistory:
        """Look at the source's past; it must hold what was read, and what is to be read up to `end`.

        Raises:
            ReadLostError: it does not.
            RetryableError: Kafka does not answer, or with what it said before `before`.
        """
        deadline = time.monotonic() + HISTORY_LIMIT_S
        read = self._status.journal.read
        while True:
            now = self._read_history(read)
            if now.topic_id != self._plan.topic_id:
                raise RetryableError(f"topic {self._plan.keyspace} changes while it is read")
            if not log_identity.stale(before or LogHistory(), now):
                break
            if time.monotonic() > deadline:
                raise RetryableError(f"a leader of {self._plan.keyspace} that was replaced still answers")
            self._end.wait(HISTORY_PAUSE_S)
        if reason := log_identity.lost(read, now) or log_identity.cut_short(end, now):
            raise log_identity.ReadLostError(f"the source lost records that the build has read: {reason}")
        return now

    def _losers(self, frame: DataFrame, work: BatchWork, covered: Range, hashes: bytes) -> dict[int, Offsets]:
        """The versions that documents with these hashes have a newer one of, in another partition."""
        wanted = np.sort(np.frombuffer(hashes, np.uint64))
        log.warning(
            "build %s: %d documents lie in more than one partition of %s; micro-batch %d runs again with "
            "their newest versions only (do its producers use different partitioners?)",
            *(self._plan.build, len(wanted), self._plan.keyspace, work.batch),
        )
        extents = covered.extents
        find: Any = functools.partial(
            read_and_find_versions, work, wanted.tobytes(), self._plan.keyspace, extents
        )
        rows = _a_task_each(frame, extents).mapInArrow(find, VERSION_ROW).collect()
        return losers_of(
            (bytes(row["id"]), Version(row["time"], row["partition"], row["offset"])) for row in rows
        )

    def _work(self, batch: int) -> BatchWork:
        definitions = ((index.id, msgspec.json.encode(index.definition)) for index in self._plan.indexes)
        return BatchWork(
            build=self._plan.build,
            run=self.run,
            batch=batch,
            targets=tuple(self._plan.targets),
            definitions=tuple(definitions),
            routes=self._routes,
            heard=batch > 0,
            settings=self._settings.model_copy(update={"security": SecuritySettings()}),
            splits={index.id: index.splits for index in self._plan.indexes if index.splits},
        )

    def _act(self, frame: DataFrame, work: BatchWork, covered: Range) -> core.SettledBatch:
        """The one Spark action of a micro-batch. The tasks read the source themselves
        (`streaming.stages.source_reader`); `frame`, which Spark's own source would read, only says that its
        offsets are planned."""
        extents = covered.extents
        client = self._client(covered.start.documents_to(covered.end), len(extents))
        project: Any = functools.partial(read_and_project, work, client, self._plan.keyspace, extents)
        return settled(work, _a_task_each(frame, extents), project, len(extents))

    def _client(self, documents: int, extents: int) -> RateClient | None:
        """What the tasks of the micro-batch that begins say their reading to; how much that is at most."""
        if self._gate is None:
            return None
        self._gate.begin(documents, extents)
        return self._gate.client

    def send_ends(
        self, batch: int, start: Timestamp, end: Timestamp, winners: Sequence[dict[str, int]]
    ) -> None:
        """Send every slice the end of a micro-batch, and wait until all are acknowledged.

        Args:
            end: with leader epochs: a slice commits no timestamp of what the log had before an election.

        Raises:
            DeliveryError: one is not.
        """
        topics = Topics(self._settings.cluster)
        errors: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(error)

        ends: list[BatchEnd] = core.batch_ends(
            self._plan.build, self.run, batch, self._plan.targets, start, end, winners
        )
        try:
            for message in ends:
                topic = topics.backfill(message.index, self._plan.build)
                self._producer.produce(topic, encode(message), partition=message.slice, on_delivery=delivered)
            left = self._producer.flush(FLUSH_LIMIT_S)
        finally:
            self._producer.hand_over()  # a table, micro-batches and the last ends come from different threads
        if left or errors:
            reason = errors[0] if errors else f"no answer within {FLUSH_LIMIT_S:.0f} s"
            raise DeliveryError(f"the ends of micro-batch {batch} were not delivered: {reason}")


def _a_task_each(frame: DataFrame, extents: Sequence[Extent]) -> DataFrame:
    """The numbers of extents, one in each partition."""
    return frame.sparkSession.range(0, len(extents), 1, max(1, len(extents)))
