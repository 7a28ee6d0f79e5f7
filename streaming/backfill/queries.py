"""What has a build's source read, round after round: a query of Spark's, or a thread of the driver.

Both plan from where the build is to the end of the source, give each plan to the micro-batches
(`streaming.backfill.batches.Batches`), and end with the first error. A query that ended is followed by
another one, which begins where the build is by then.
"""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Final, Protocol

from keytide.errors import RetryableError
from keytide.kafka.admin import admin, list_offsets
from keytide.kafka.clients import AdminClient
from keytide.model.timestamp import Timestamp
from keytide.process.worker import Worker
from keytide.settings.settings import Settings
from streaming.backfill.batches import Batches, BuildPlan, run_through
from streaming.backfill.course import POLL_S
from streaming.backfill.table_origin import starting_offsets
from streaming.backfill.tasks import BackfillTasks
from streaming.drivers.engine import LocalEngine, SparkEngine
from streaming.drivers.failures import BuildImpossibleError, StoppedError
from streaming.drivers.stages import OutOfRoomError, SparkStages
from streaming.spark import session as spark
from streaming.spark.checkpoint import Checkpoint, Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

PAUSE_S: Final = 3 * POLL_S
"""Between two plans: meanwhile whoever decides on the end of the build finds that none is under way."""
STOP_S: Final = 1.0
"""For so long the end of a thread is waited for: it may be in the middle of asking Kafka."""
GROWTH: Final = 8
"""A source that has grown to so many times what is read without Spark is left to Spark."""


class SourceQuery(Protocol):
    """Reads on until it is stopped, or something fails."""

    def start(self, position: Timestamp) -> None:
        """Begin, again after an end, at this place."""
        ...

    def ended(self) -> BaseException | None:
        """Why it has ended; None while it goes on, and before the start."""
        ...

    def stop(self) -> None:
        """End it; tasks that wait for the rate limit are let go."""
        ...


class SparkQuery:
    """A Structured Streaming query (`SourceQuery`). Its checkpoint only says what it plans."""

    def __init__(
        self,
        settings: Settings,
        engine: SparkEngine,
        plan: BuildPlan,
        checkpoint: Checkpoint,
        tasks: BackfillTasks,
        batches: Batches,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._plan = plan
        self._checkpoint = checkpoint
        self._tasks = tasks
        self._batches = batches
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None

    def start(self, position: Timestamp) -> None:
        if self._query is None:
            self._engine.warm_up()
        self._error = None
        shutil.rmtree(self._checkpoint.folder, ignore_errors=True)
        options = spark.source_options(self._settings, self._plan.keyspace)
        options["startingOffsets"] = starting_offsets(self._plan.keyspace, position.offsets())
        self._query = (
            self._engine.session.readStream.format("kafka")
            .options(**options)
            .load()
            .writeStream.queryName(self._plan.build)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint.folder))
            .start()
        )

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Spark's call for each micro-batch, numbered as the query does. (`frame`, which Spark's own source
        would read, only says that its offsets are planned.)"""
        try:
            self._tasks.stages = SparkStages(frame.sparkSession)
            run_through(self._batches.run(self._checkpoint.range(batch)))
        except BaseException as error:
            self._error = error
            raise

    def ended(self) -> BaseException | None:
        if self._query is None or self._query.isActive:
            return None
        return self._error or self._query.exception() or RetryableError("Spark ended the query")

    def stop(self) -> None:
        self._engine.gate.close()
        if self._query is not None:
            self._query.stop()


class LocalQuery:
    """A thread that reads on without Spark (`SourceQuery`).

    Args:
        partitions: of the source.
        most: documents that one plan may have: what is more is Spark's work.
    """

    def __init__(
        self,
        settings: Settings,
        engine: LocalEngine,
        plan: BuildPlan,
        batches: Batches,
        partitions: int,
        most: int,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._plan = plan
        self._batches = batches
        self._partitions = range(partitions)
        self._most = most
        self._stopping = threading.Event()
        self._worker: Worker | None = None

    def start(self, position: Timestamp) -> None:
        self._worker = Worker("reading", None, lambda: self._read(position))
        self._worker.open()

    def _read(self, position: Timestamp) -> None:
        with admin(self._settings) as client:
            run_through(self._batches.read_on(position, lambda start: self._next(client, start), self._pause))

    def _next(self, client: AdminClient, start: Timestamp) -> Range | None:
        ends = list_offsets(client, self._plan.keyspace, self._partitions)
        found = planned(start, ends, self._plan.topic_id)
        if found is not None and found.start.documents_to(found.end) > self._most:
            raise OutOfRoomError(f"the source has grown by more than {self._most} documents meanwhile")
        return found

    async def _pause(self) -> None:
        if self._stopping.wait(PAUSE_S):
            raise StoppedError

    def ended(self) -> BaseException | None:
        if self._worker is None or self._worker.running:
            return None
        try:
            self._worker.check()
        except BaseException as error:  # noqa: BLE001 - of another thread: whoever asks decides on it
            return error
        return RetryableError("the reading has ended")

    def stop(self) -> None:
        self._stopping.set()
        self._engine.close()
        if self._worker is not None:
            self._worker.close(STOP_S)


def planned(start: Timestamp, ends: dict[int, int], topic_id: str) -> Range | None:
    """What there is to read from a place on; None for nothing. Pure.

    Raises:
        BuildImpossibleError: the source ends below it.
    """
    begin = start.offsets()
    back = sorted(p for p, end in ends.items() if end < begin.get(p, 0))
    if back:
        raise BuildImpossibleError(
            f"the source's end went back in partitions {back}: records that were acknowledged are gone, or "
            "the topic was made anew",
            problem_type="source-changed",
            next_step="build the index again",
        )
    if all(end == begin.get(p, 0) for p, end in ends.items()):
        return None
    return Range(start, Timestamp.of(ends, topic_id))
