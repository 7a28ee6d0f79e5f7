"""Micro-batches of one build: the order of their steps.

Theory of operation: a query plans what there is to read (`streaming.backfill.queries`); the driver cuts it
into the micro-batches of the build, one after the other (`streaming.core.sizing`). Both stages of one run
together (`streaming.stages.tasks`), the summaries settle who won (`streaming.core.micro_batches`), the source
is checked to be the one that the build began with and its log to be the one that was read before
(`streaming.core.log_identity`; what may be of two logs is read again), the micro-batch is written down, and
then every slice gets its end: from there on it counts. A driver that dies after it was written down leaves a
batch that is run again, whole, under the same number; slices that had it skip it. One that dies before
leaves nothing. When all that is planned is done, the query plans on. The places where a crash test strikes
are named by `reach`.

Tasks and Kafka are arguments (`streaming.backfill.tasks` has the real ones). Steps are coroutines: what
takes its time is awaited. The real ones block, so nothing ever waits there (`run_through`); in a simulation
everything else goes on meanwhile.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.process.sync_points import reach
from keytide.wire.messages import BatchEnd
from streaming.backfill.table_origin import TableError
from streaming.core import log_identity
from streaming.core import micro_batches as core
from streaming.core.sizing import SizedBatch, Sizing, documents
from streaming.core.versions import OffsetColumn
from streaming.drivers.progress import Status
from streaming.spark.checkpoint import Range

log = logging.getLogger(__name__)

READINGS = 5
"""Of one micro-batch by one driver, while leaders change."""
HISTORY_LIMIT_S = 10.0
"""For a leader that was replaced, and does not know it yet, to be out of the way."""
HISTORY_PAUSE_S = 0.2

Wait = Callable[[float], Awaitable[None]]
"""Waits for so many seconds, or less."""
_T = TypeVar("_T")


def run_through(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("a step of a build waits, where it should have blocked")


@dataclass(frozen=True)
class BuildPlan:
    """What does not change while a build runs.

    Attributes:
        run: names this start of the driver.
        slices: index id -> the slices that the build fills.
        summed: what is projected is summed up, and compared with what slices store.
    """

    build: str
    run: str
    keyspace: str
    topic_id: str
    indexes: tuple[IndexRecord, ...]
    slices: Mapping[str, Sequence[int]]
    summed: bool = False

    @functools.cached_property
    def targets(self) -> list[core.SliceTarget]:
        return core.targets_of(self.slices)


class Seeded(NamedTuple):
    """The slices of another layout, as micro-batch 0.

    Attributes:
        end: the timestamp of the snapshot that they were read at, with leader epochs.
    """

    outcome: core.SettledBatch
    end: Timestamp


class BatchTasks(Protocol):
    """Reads and projects what micro-batches cover, and sends it; `streaming.backfill.tasks`."""

    async def read(self, batch: int, covered: Range, losers: Mapping[int, OffsetColumn]) -> core.SettledBatch:
        """Read a range of the source, project it, send all chunks.

        Args:
            losers: versions that another partition has a newer version of.
        """
        ...

    async def losers(self, batch: int, covered: Range, hashes: bytes) -> dict[int, OffsetColumn]:
        """The versions that documents with these hashes have a newer one of, in another partition."""
        ...

    async def read_seed(self, goal: Timestamp) -> Seeded:
        """The same for the layout that the build begins with, at a snapshot that covers `goal`.

        Raises:
            RetryableError: there is no such snapshot now, or not any more.
        """
        ...

    async def read_table(self) -> core.SettledBatch:
        """The same for the table that the build begins with, as micro-batch 0.

        Raises:
            TableError: the table is none.
        """
        ...

    def settle(self, documents: int) -> None:
        """So many were read: returns when the rate limit allows that many."""
        ...

    async def send(self, batch: int, ends: Sequence[BatchEnd]) -> None:
        """Send slices the ends of a micro-batch; returns when all are acknowledged.

        Raises:
            DeliveryError: one is not.
        """
        ...


class SourceLog(Protocol):
    """What Kafka says of the source."""

    def check(self) -> None:
        """Raise when it is not the topic that the build began with."""
        ...

    def history(self, read: Timestamp) -> LogHistory:
        """Its past, as far back as the places of what was `read` need it; raises when Kafka does not
        answer."""
        ...


class Batches:
    """Runs the micro-batches of one driver.

    Args:
        wait: for what Kafka does not know yet.
        clock: seconds, of any clock that only goes on.

    Attributes:
        rate: limit of the build, documents per second; 0 for none.
    """

    def __init__(
        self,
        plan: BuildPlan,
        status: Status,
        sizing: Sizing,
        tasks: BatchTasks,
        source: SourceLog,
        wait: Wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rate = 0
        self._plan = plan
        self._status = status
        self._sizing = sizing
        self._tasks = tasks
        self._source = source
        self._wait = wait
        self._clock = clock
        self._begun = False
        self._history: LogHistory | None = None

    async def check_read(self) -> None:
        """What was read is on the log.

        Raises:
            ReadLostError: it is not any more.
            RetryableError: Kafka does not answer.
        """
        await self._checked_history(self._status.position)

    async def run(self, planned: Range) -> None:
        """Run all micro-batches of what a query has planned.

        Raises:
            StoppedError: the build has passed, or is being stopped.
            Exception: one failed.
        """
        while (sized := self._next(planned)) is not None:
            self._status.begin_batch()
            try:
                await self._run_batch(sized)
            finally:
                self._status.end_batch()

    async def read_on(
        self,
        start: Timestamp,
        plan: Callable[[Timestamp], Range | None],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        """Run what there is to read from a place on, one plan after the other, as Spark's query does; until
        something raises.

        Args:
            plan: what is to be read next from a place on, None for nothing.
            pause: called between two.
        """
        while True:
            if (planned := plan(start)) is not None:
                await self.run(planned)
                start = planned.end
            await pause()

    def _next(self, planned: Range) -> SizedBatch | None:
        """What is to be done next of what is planned; None when all is done."""
        most = self._sizing.limited(self.rate)
        return self._status.next_batch(planned.start.offsets(), planned.end.offsets(), most)

    async def run_table(self, begin: Timestamp) -> None:
        """Run micro-batch 0 of a build that begins with a table.

        Args:
            begin: where reading the log begins, with leader epochs.

        Raises:
            TableError: the source has lost records that the table may hold, or the table is none.
        """
        self._status.begin_batch()
        try:
            self._history = await self._checked_history(begin)
            if reason := log_identity.lost(begin, self._history):
                raise TableError(
                    f"the table may hold records that the source has lost: {reason}",
                    next_step="take a newer table",
                )
            reach("driver-batch-begun")
            self._status.at_table = True
            outcome = await self._tasks.read_table()
            reach("driver-before-batch-end")
            end = log_identity.placed(begin, Timestamp(), self._history)
            await self._end_first(begin, end, outcome)
        finally:
            self._status.end_batch()
        log.info("build %s: %d rows of the table are read", self._plan.build, outcome.documents)

    async def run_seed(self, goal: Timestamp) -> None:
        """Run micro-batch 0 of a build that begins with another layout.

        Args:
            goal: what it must reach.

        Raises:
            ReadLostError: the source has lost records that the layout has: it is about to be rolled back.
            RetryableError: it cannot be had now.
        """
        self._status.begin_batch()
        try:
            reach("driver-batch-begun")
            self._status.at_table = True
            outcome, end = await self._tasks.read_seed(goal)
            reach("driver-before-batch-end")
            self._history = await self._checked_history(end)
            if reason := log_identity.lost(end, self._history):
                raise log_identity.ReadLostError(f"the source lost records that the layout has: {reason}")
            await self._end_first(end, end, outcome)
        finally:
            self._status.end_batch()
        log.info("build %s: %d entries of the old layout are read", self._plan.build, outcome.documents)

    async def _end_first(self, begin: Timestamp, end: Timestamp, outcome: core.SettledBatch) -> None:
        """Write micro-batch 0 down, which has no offsets of the source, and send its ends."""
        status = self._status
        status.settle_batch(end, None)
        await self.send_ends(0, begin, end, outcome.winners)
        journal = status.journal
        journal.table_read, journal.table_documents = True, outcome.documents
        status.at_table = False
        status.finish_batch(0, end, self._plan.targets, outcome)
        reach("driver-batch-ended")

    async def _run_batch(self, sized: SizedBatch) -> None:
        """Run a micro-batch and send its ends; how long it takes decides how large the next one is."""
        began = self._clock()
        if not self._begun:
            self._begun = True
            self._status.note_size(self._sizing.struck())
        batch, topic_id = sized.number, self._plan.topic_id
        covered = Range(Timestamp.of(sized.start, topic_id), Timestamp.of(sized.end, topic_id))
        if self._history is None:
            self._history = await self._checked_history(covered.end)
        reach("driver-batch-begun")
        outcome, end = await self._read(batch, covered, self._history)
        reach("driver-before-batch-end")
        self._status.settle_batch(end, sized)
        await self.send_ends(batch, covered.start, end, outcome.winners)
        self._status.finish_batch(batch, end, self._plan.targets, outcome)
        reach("driver-batch-ended")
        log.info(
            "build %s: micro-batch %d done, %d documents, %d entries",
            *(self._plan.build, batch, outcome.documents, sum(outcome.entries)),
        )
        self._tasks.settle(outcome.documents)
        self._sizing.finished(documents(sized.start, sized.end), self._clock() - began)
        self._status.note_size(self._sizing.size)

    async def _read(
        self, batch: int, covered: Range, before: LogHistory
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
            outcome = await self._tasks.read(batch, covered, {})
            if outcome.foreign:
                losers = await self._tasks.losers(batch, covered, outcome.foreign)
                outcome = await self._tasks.read(batch, covered, losers)
            reach("driver-chunks-sent")
            self._source.check()
            now = self._history = await self._checked_history(covered.end, before)
            mixed = log_identity.mixed(before, now, covered.start, covered.end)
            if not mixed:
                return outcome, log_identity.placed(covered.end, self._status.journal.read, now)
            words = "build %s: micro-batch %d is read again: leaders of partitions %s have changed meanwhile"
            log.warning(words, self._plan.build, batch, mixed)
            before = now
        raise RetryableError(f"leaders of {self._plan.keyspace} changed in each of {READINGS} readings")

    async def _checked_history(self, end: Timestamp, before: LogHistory | None = None) -> LogHistory:
        """Look at the source's past; it must hold what was read, and what is to be read up to `end`.

        Raises:
            ReadLostError: it does not.
            RetryableError: Kafka does not answer, or with what it said before `before`.
        """
        deadline = self._clock() + HISTORY_LIMIT_S
        read = self._status.journal.read
        while True:
            now = self._source.history(read)
            if now.topic_id != self._plan.topic_id:
                raise RetryableError(f"topic {self._plan.keyspace} changes while it is read")
            if not log_identity.stale(before or LogHistory(), now):
                break
            if self._clock() > deadline:
                raise RetryableError(f"a leader of {self._plan.keyspace} that was replaced still answers")
            await self._wait(HISTORY_PAUSE_S)
        if reason := log_identity.lost(read, now) or log_identity.cut_short(end, now):
            raise log_identity.ReadLostError(f"the source lost records that the build has read: {reason}")
        return now

    async def send_ends(
        self, batch: int, start: Timestamp, end: Timestamp, winners: Sequence[dict[str, int]]
    ) -> None:
        """Send every slice the end of a micro-batch, and wait until all are acknowledged.

        Args:
            end: with leader epochs: a slice commits no timestamp of what the log had before an election.

        Raises:
            DeliveryError: one is not.
        """
        plan = self._plan
        ends = core.batch_ends(plan.build, plan.run, batch, plan.targets, start, end, winners)
        await self._tasks.send(batch, ends)
