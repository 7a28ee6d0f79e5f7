"""The driver of one build: its life from start to end.

Theory of operation
===================
One Structured Streaming query reads the keyspace from its earliest offset, once for all indexes of the
build (`streaming.backfill.batches` has its micro-batches). Its trigger is the default one, round after
round, until the backfill timestamp covers the load timestamp and every low-watermark offset; those appear in
the metadata while the build runs. Then the driver closes: no further micro-batch begins, PASSED is reported,
and it ends. A driver that is killed anywhere is followed by another one, on this machine or on that of the
next leader, which goes on where the build's journal says (`streaming.drivers.journal`).

Spark takes long to start, so a Kafka that is away for a while does not end the driver: what failed is tried
again in the same process (the query, when it was that), until nothing has got on for twice
`build.kafka_away_s`; coordinators have builds pause before that.

A build may begin with a table in place of the log's beginning (`streaming.backfill.table_origin`): it is
micro-batch 0, read before the query is started, and the query begins at the offsets at which the table was
taken.

A new layout of an index may begin with the slices of the old one (`streaming.backfill.seed`): they are
micro-batch 0, which ends past all that the build must reach, so nothing of the source is read and Spark is
not started.

Spark takes long to start. So a build that has no more than `build.local_documents` left to read is read by
the driver itself, in one process: the same plans, micro-batches, tasks and messages, without the query
(`streaming.backfill.queries`, `streaming.drivers.stages`). What turns out to be larger is left to Spark.

When the source holds nothing below that goal, or an earlier driver had passed it, Spark is not even
started. Slices still need the end of a micro-batch 0 to know where they stand, so an empty one is sent.

A rollback of the keyspace makes what was read worthless (R28): the coordinator starts the build again under
another id, and a driver whose build began under an older incarnation ends. Lost history may also show here
first, as offsets that are gone or a topic that was made anew; the driver says that its build has failed, and
the coordinator finds out which it is. Or what was read is not on the log any more
(`streaming.core.log_identity`): then it ends with a status of its own, and the build begins again. So it
does where Kafka has lost the journal.

The order of the steps is in `streaming.backfill.course` and `streaming.backfill.batches`; here is the process
around them.

Threads: the main thread decides on the end; one follows the metadata, one reports; Spark's query, or that of
the driver, runs micro-batches in another, and a table is read in one more. What they share is in `Status`.

Files, in `<data_dir>/builds/<build>`, none of which the next driver needs: `checkpoint` (Spark's), `scratch`
(shuffle files), `lock`.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from keytide.catalog.records import BuildRecord, IndexRecord, KeyspaceRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.kafka.admin import admin, describe_topics, list_offsets
from keytide.kafka.history import log_history
from keytide.kafka.identity import KafkaIdentity
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings
from keytide.wire.entry_sums import EntrySums
from keytide.wire.messages import BuildProgress
from streaming.backfill.batches import Batches, BuildPlan, run_through
from streaming.backfill.course import POLL_S, BuildCourse, take_up, wait_out
from streaming.backfill.queries import GROWTH, LocalQuery, SourceQuery, SparkQuery
from streaming.backfill.seed import SeedReader
from streaming.backfill.table_origin import read_table
from streaming.backfill.tasks import BackfillTasks
from streaming.core import micro_batches as core
from streaming.core.comparing import CopySums
from streaming.core.sizing import Sizing
from streaming.drivers import failures
from streaming.drivers.engine import Engine, SparkEngine
from streaming.drivers.failures import StoppedError
from streaming.drivers.journal import FencedJournal
from streaming.drivers.kafka_journal import EarlierJournal, KafkaJournalTopic
from streaming.drivers.lifecycle import Driver, MetadataFollower
from streaming.drivers.outage import Outage
from streaming.drivers.progress import Status
from streaming.drivers.rate_gate import RateGate
from streaming.drivers.stages import OutOfRoomError
from streaming.slices.built import ANSWER_S, BuiltSlices
from streaming.slices.entries import SliceEntries
from streaming.spark import session as spark
from streaming.spark.checkpoint import Checkpoint

log = logging.getLogger(__name__)

HISTORY_TIMEOUT_S = 10.0
PARTITION_DOCUMENTS = 1_000
"""About as many are read in the time that a driver takes to begin with a partition."""


class KafkaSourceLog:
    """What Kafka says of a build's source (`streaming.backfill.batches.SourceLog`), in any thread."""

    def __init__(
        self, settings: Settings, identity: KafkaIdentity, build: BuildRecord, keyspace: KeyspaceRecord
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._name = keyspace.name
        self._partitions = keyspace.partitions
        self._expected = keyspace.topic_id, len(build.load_timestamp.places) or keyspace.partitions

    def check(self) -> None:
        """The topic must be the one that the build began with, or what was read means nothing."""
        self._identity.look()
        with admin(self._settings) as client:
            info = describe_topics(client, [self._name]).get(self._name)
        found = (info.id, info.partitions) if info else None
        error = failures.source_changed(self._name, self._expected, found)
        if error is not None:
            raise error

    def history(self, read: Timestamp) -> LogHistory:
        """The past of the source, back to what was read."""
        down_to = {partition: place.epoch for partition, place in read.places.items() if place.epoch >= 0}
        return log_history(self._settings, self._name, HISTORY_TIMEOUT_S, down_to=down_to)

    def earliest(self) -> dict[int, int]:
        """The offsets at which it begins."""
        with admin(self._settings) as client:
            return list_offsets(client, self._name, range(self._partitions), earliest=True)


class BackfillDriver(Driver):
    """Runs one build's backfill to its end (`streaming.drivers.lifecycle.Driver`); the process of its course
    (`streaming.backfill.course.DriverShell`).

    Attributes:
        build: its record, as last taken in.
    """

    kind = "build"
    stands_back = False
    build: BuildRecord
    _query: SourceQuery
    _spark: SparkEngine

    def prepare(self) -> None:
        self._identity = KafkaIdentity(self._settings)
        self._status = Status()
        self._outage = Outage(2 * self._settings.build.kafka_away_s)
        self._start = ""  # names this start, when it has read what the build is
        self._ending = threading.Event()
        self._slices: SliceEntries | None = None
        self._limit: Callable[[int], None] = lambda rate: None  # until something reads

    def report(self) -> BuildProgress:
        return self._status.report(self._id, self._start, self.sent_at(), self.attempt)

    def failed(self, never: bool, note: str) -> None:
        self._status.enter("FAILED" if never else "RUNNING", note)

    def work(self, held: ExitStack) -> None:
        self._held = held
        course = self._loaded(held)
        own = self._settings.build
        os.nice(own.rebuild_nice if self.build.rebuild else own.nice)  # Spark's processes are children
        run_through(course.run())

    # --- what the build is ----------------------------------------------------------------------------------

    def _loaded(self, held: ExitStack) -> BuildCourse:
        """What `_load` reads, while the metadata is followed; tried again while Kafka is away."""
        while True:
            try:
                with ExitStack() as if_it_fails:
                    self._metadata = MetadataFollower(self._settings)
                    if_it_fails.callback(self._metadata.close)
                    course = self._load()
                    held.enter_context(if_it_fails.pop_all())
                    return course
            except (RetryableError, KafkaException) as error:
                run_through(
                    wait_out(error, self._outage, self._status.finished, self._id, self._now(), self.wait)
                )

    def _load(self) -> BuildCourse:
        """Read what the build is, and how far it has come."""
        self.build = self._wanted()
        keyspace = self._metadata.catalog().keyspace(self.build.keyspace)
        if keyspace is None:
            raise failures.BuildImpossibleError(f"keyspace {self.build.keyspace} is not in the metadata")
        source = KafkaSourceLog(self._settings, self._identity, self.build, keyspace)
        source.check()
        self._partitions = keyspace.partitions
        indexes = tuple(self._index(name) for name in sorted(self.build.indexes))
        slices = {index.id: self.build.slices_of(index) for index in indexes}
        filled = tuple(index for index in indexes if slices[index.id])
        self._checkpoint = Checkpoint(self.files / "checkpoint", keyspace.name, keyspace.topic_id)
        self._status.take_over(self._journal(keyspace))
        take_up(self.build, keyspace, self._status, source.earliest)
        run = uuid.uuid4().hex[:12]
        summed = self.build.verify and not self.build.verify_full and not self.build.rebuild
        self._plan = BuildPlan(self._id, run, keyspace.name, keyspace.topic_id, filled, slices, summed)
        self._tasks = BackfillTasks(self._settings, self._plan)
        own = self._settings.build
        sizing = Sizing(
            own.batch_documents, own.batch_least_documents, own.batch_seconds, self._status.journal.size
        )
        self._batches = Batches(self._plan, self._status, sizing, self._tasks, source, self._wait_for_kafka)
        self._start = run
        return BuildCourse(self._plan, keyspace.partitions, self._status, self._batches, self, self._outage)

    def _journal(self, keyspace: KeyspaceRecord) -> FencedJournal:
        def begin(checkpoint: Path) -> dict[int, int] | None:
            found = Checkpoint(checkpoint, keyspace.name, keyspace.topic_id).begin()
            return found.offsets() if found else None

        def over(builds: Iterable[str]) -> list[str]:
            catalog = self._metadata.catalog()
            return [one for one in builds if core.over(catalog, one, self._id)]

        return FencedJournal(
            KafkaJournalTopic(self._settings, self._id, self._stop),
            self._id,
            self.attempt,
            EarlierJournal(self.folder, begin),
            over,
            2 * self._settings.build.kafka_away_s,
            self._stop.wait,
            self._now,
        )

    def _wanted(self) -> BuildRecord:
        """The build's record, while it is to be backfilled."""
        catalog = self._metadata.catalog()
        self.check_led(catalog)
        build = catalog.build(self._id)
        reason = core.unwanted(build, catalog.keyspace(build.keyspace) if build else None)
        if build is None or reason:
            log.info("build %s ends here: %s", self._id, reason)
            raise StoppedError
        return build

    def _index(self, name: str) -> IndexRecord:
        index = self._metadata.catalog().index(name)
        if index is None:
            log.info("build %s: index %s is not in the metadata", self._id, name)
            raise StoppedError
        return index

    # --- what its course asks -------------------------------------------------------------------------------

    def follow(self) -> None:
        self.build = self._wanted()
        if self._stop.is_set():
            raise StoppedError

    async def wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError

    async def _wait_for_kafka(self, seconds: float) -> None:
        self._ending.wait(seconds)

    def seconds(self) -> float:
        return self._now()

    def wall(self) -> int:
        return now_ms()

    def tell(self) -> None:
        self._reporter.send()

    async def begin_reading(self, table: bool) -> None:
        left = self._status.position.documents_to(self.build.load_timestamp)
        most = self._settings.build.local_documents
        if table or not most or left + PARTITION_DOCUMENTS * self._partitions > most:
            self._begin_spark(table)
            return
        log.info("build %s: %d documents are to be read: without Spark", self._id, left)
        engine = self.start_local(self._settings.build.local_bytes)
        self._begin(engine, "local")
        self._query = LocalQuery(
            self._settings, engine, self._plan, self._batches, self._partitions, GROWTH * most
        )

    def _begin_spark(self, table: bool) -> None:
        engine = self._spark = self.start_spark(rows=table)
        engine.shuffle(spark.shuffle_partitions(len(self._plan.targets), engine.parallelism))
        self._begin(engine, "spark")
        self._query = SparkQuery(
            self._settings, engine, self._plan, self._checkpoint, self._tasks, self._batches
        )

    def _begin(self, engine: Engine, name: str) -> None:
        """Have this engine run the tasks."""
        self._tasks.prepare(engine)
        self._status.gate, self._limit, self._status.engine = engine.gate, engine.gate.limit, name

    def limit(self, rate: int) -> None:
        self._limit(rate)

    async def run_table(
        self, origin: TableOrigin, work: Callable[[], Coroutine[Any, Any, None]], follow: Callable[[], None]
    ) -> None:
        self._tasks.table = read_table(self._spark.session, origin, self._settings.build.origin_options)
        self._spark.run(lambda: run_through(work()), follow)

    async def run_seed(
        self, work: Callable[[], Coroutine[Any, Any, None]], follow: Callable[[], None]
    ) -> None:
        with ExitStack() as held:
            gate = self._status.gate = held.enter_context(closing(RateGate()))
            gate.limit(self.build.rate_limit)
            self._limit = gate.limit
            self._tasks.seed = SeedReader(
                self._plan.indexes[0],
                self.build.incarnation,
                self._old_slices(),
                gate,
                self._status,
                self._ending,
            )
            reading = held.enter_context(ThreadPoolExecutor(1, "seed")).submit(lambda: run_through(work()))
            try:
                while not futures.wait([reading], POLL_S).done:
                    follow()
            except BaseException:
                self._ending.set()
                raise
            finally:
                gate.close()  # (lets go who waits for the limit)
            reading.result()

    def _old_slices(self) -> SliceEntries:
        """Those that the build begins with; it knows which nodes were silent the last time."""
        if self._slices is None:
            nodes = BlockingNodeClient(self._settings.security.tls_authority)
            self._slices = SliceEntries(self._metadata.catalog, [self.build.seed], nodes)
            self._held.callback(self._slices.close)
        return self._slices

    async def held_sums(self, projected: Sequence[EntrySums], batch: int) -> list[CopySums]:
        nodes = BlockingNodeClient(self._settings.security.tls_authority, limit_s=ANSWER_S)
        indexes = [index.id for index in self._plan.indexes]
        with closing(BuiltSlices(self._metadata.catalog, indexes, nodes, self._id, self._now)) as slices:
            return slices.sums(self._plan.targets, projected, batch, self.follow)

    async def start_query(self) -> None:
        self._query.start(self._status.position)

    def ended(self) -> BaseException | None:
        error = self._query.ended()
        if not isinstance(error, OutOfRoomError):
            return error
        log.info("build %s: %s: Spark reads on", self._id, error.message)
        self._begin_spark(table=False)
        self._query.start(self._status.position)
        return None

    def stop_query(self) -> None:
        self._ending.set()
        self._query.stop()
