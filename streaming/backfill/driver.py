"""The Spark driver of one build: its life from start to end.

Theory of operation
===================
One Structured Streaming query reads the keyspace from its earliest offset, once for all indexes of the
build (`streaming.backfill.batches` has its micro-batches). Its trigger is the default one, round after
round, until the backfill timestamp covers the load timestamp and every low-watermark offset; those appear in
the metadata while the build runs. Then the driver closes: no further micro-batch begins, PASSED is reported,
and it ends. A driver that is killed anywhere is started again on the same checkpoint.

Spark takes long to start, so a Kafka that is away for a while does not end the driver: what failed is tried
again in the same process (the query, when it was that), until nothing has got on for twice
`build.kafka_away_s`; coordinators have builds pause before that.

A build may begin with a table in place of the log's beginning (`streaming.backfill.table_origin`): it is
micro-batch 0, read before the query is started, and the query begins at the offsets at which the table was
taken.

When the source holds nothing below that goal, or an earlier driver had passed it, Spark is not even
started. Slices still need the end of a micro-batch 0 to know where they stand, so an empty one is sent.

A rollback of the keyspace makes what was read worthless (R28): the coordinator starts the build again under
another id, and a driver whose build began under an older incarnation ends. Lost history may also show here
first, as offsets that are gone or a topic that was made anew; the driver says that its build has failed, and
the coordinator finds out which it is. Or what was read is not on the log any more
(`streaming.core.log_identity`): then it ends with a status of its own, and the build begins again. So it
does where the folder of the build is gone (a coordinator on another machine has taken over, a disk was lost).

Threads: the main thread decides on the end; one follows the metadata, one reports; Spark calls
`Batches.on_batch` in another, and a table is read in one more. What they share is in `Status`.

Files, in `<data_dir>/builds/<build>`: `checkpoint` (Spark's), `progress.json`, `scratch` (shuffle files),
`lock`.
"""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import RetryableError
from keytide.kafka.admin import admin, describe_topics, list_offsets
from keytide.kafka.history import log_history
from keytide.kafka.identity import KafkaIdentity
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.wire.messages import BuildProgress
from streaming.backfill.batches import Batches, BuildPlan
from streaming.backfill.table_origin import begins_at, read_table, starting_offsets
from streaming.core import micro_batches as core
from streaming.drivers import failures
from streaming.drivers.engine import SparkEngine
from streaming.drivers.lifecycle import Driver, MetadataFollower, Outage
from streaming.drivers.progress import Status, StoppedError
from streaming.spark import session as spark
from streaming.spark.checkpoint import Checkpoint, CheckpointLostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

LOCK_LIMIT_S = 15.0
ACTIVATION_LIMIT_S = 10.0
"""With nothing to read, this long for projectors to activate the build before Spark is started."""
HISTORY_TIMEOUT_S = 10.0
POLL_S = 0.1
AGAIN_S = 1.0
"""Before what failed is tried again."""


class BackfillDriver(Driver):
    """Runs one build's backfill to its end (`streaming.drivers.lifecycle.Driver`)."""

    kind = "build"
    stands_back = False

    def prepare(self) -> None:
        self._identity = KafkaIdentity(self._settings)
        self._status = Status(self.folder / "progress.json")
        self._batches: Batches | None = None
        self._outage = Outage(2 * self._settings.build.kafka_away_s)

    def report(self) -> BuildProgress:
        return self._status.report(self._id, self._batches.run if self._batches else "", now_ms())

    def failed(self, never: bool, note: str) -> None:
        self._status.enter("FAILED" if never else "RUNNING", note)

    def _lock(self) -> None:
        """Take the build's lock, so that two drivers never share a checkpoint; it goes with the process."""
        deadline = self._now() + LOCK_LIMIT_S
        self._locked = (self.folder / "lock").open("w")
        while True:
            try:
                fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if self._now() > deadline:
                    raise RetryableError(f"another driver works on build {self._id}") from error
                if self._stop.wait(POLL_S):
                    raise StoppedError from error

    def work(self, held: ExitStack) -> None:
        self._lock()
        self._batches = batches = self._loaded(held)
        own = self._settings.build
        os.nice(own.rebuild_nice if self._build.rebuild else own.nice)  # Spark's processes are children
        journal = self._status.journal
        if not self._table_left() and (journal.nothing_to_read is not None or self._passed_already()):
            self._pass(batches)
            return
        self._stream(self.start_spark(rows=self._table_left()), batches)

    # --- what the build is ----------------------------------------------------------------------------------

    def _loaded(self, held: ExitStack) -> Batches:
        """What `_load` reads, while the metadata is followed; tried again while Kafka is away."""
        while True:
            try:
                with ExitStack() as if_it_fails:
                    self._metadata = MetadataFollower(self._settings)
                    if_it_fails.callback(self._metadata.close)
                    batches = self._load()
                    held.enter_context(if_it_fails.pop_all())
                    return batches
            except (RetryableError, KafkaException) as error:
                self._wait_out(error)

    def _wait_out(self, error: BaseException) -> None:
        """Wait a moment before what failed is tried again.

        Raises:
            BaseException: `error`, if waiting does not help, or has not for long.
            StoppedError: the driver is asked to end.
        """
        failure = failures.diagnose(error)
        if not failure.away or self._outage.over(self._status.finished, self._now()):
            raise error
        log.warning("build %s: %s; tried again", self._id, failure.message)
        if self._stop.wait(AGAIN_S):
            raise StoppedError from error

    def _load(self) -> Batches:
        """Read what the build is, and how far it has come."""
        self._build = self._wanted()
        keyspace = self._metadata.catalog().keyspace(self._build.keyspace)
        if keyspace is None:
            raise failures.BuildImpossibleError(f"keyspace {self._build.keyspace} is not in the metadata")
        self._keyspace = keyspace
        self._check_source()
        indexes = tuple(self._index(name) for name in sorted(self._build.indexes))
        slices = {index.id: self._build.slices_of(index) for index in indexes}
        filled = tuple(index for index in indexes if slices[index.id])
        self._plan = BuildPlan(self._id, keyspace.name, keyspace.topic_id, filled, slices)
        origin = self._build.origin
        self._checkpoint = Checkpoint(
            self.folder / "checkpoint", keyspace.name, keyspace.topic_id, first=1 if origin else 0
        )
        earliest = self._checkpoint.begin()
        journal = self._status.journal
        if not journal.size:  # never cut
            journal.newest = self._checkpoint.newest()
        begun = earliest is not None or journal.table_read or journal.nothing_to_read is not None
        if core.forgotten(self._build, journal.first_read_at, begun):
            raise CheckpointLostError(f"{self.folder} does not have the checkpoint of build {self._id}")
        if earliest is None and origin is not None:
            earliest = Timestamp.of(origin.offsets, keyspace.topic_id)
        if earliest is None:
            with admin(self._settings) as client:
                offsets = list_offsets(client, keyspace.name, range(keyspace.partitions), earliest=True)
            earliest = Timestamp.of(offsets, keyspace.topic_id)
        newest = journal.newest
        position = Timestamp.of(newest.reached, keyspace.topic_id) if newest else earliest
        self._status.resume(journal.finished, position, earliest)
        return Batches(
            self._settings,
            self._plan,
            self._checkpoint,
            self._status,
            check_source=self._check_source,
            read_history=self._read_history,
        )

    def _table_left(self) -> bool:
        """Whether the build begins with a table that is not in the queues yet."""
        return self._build.origin is not None and not self._status.journal.table_read

    def _wanted(self) -> BuildRecord:
        """The build's record, while it is to be backfilled."""
        catalog = self._metadata.catalog()
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

    def _check_source(self) -> None:
        """The topic must be the one that the build began with, or what was read means nothing."""
        self._identity.look()
        name = self._keyspace.name
        with admin(self._settings) as client:  # (in whatever thread a micro-batch is)
            info = describe_topics(client, [name]).get(name)
        expected = (
            self._keyspace.topic_id,
            len(self._build.load_timestamp.places) or self._keyspace.partitions,
        )
        error = failures.source_changed(name, expected, (info.id, info.partitions) if info else None)
        if error is not None:
            raise error

    def _read_history(self, read: Timestamp) -> LogHistory:
        """The past of the source, back to what was read."""
        down_to = {partition: place.epoch for partition, place in read.places.items() if place.epoch >= 0}
        return log_history(self._settings, self._keyspace.name, HISTORY_TIMEOUT_S, down_to=down_to)

    def _follow(self) -> None:
        """Take in what the metadata says now.

        Raises:
            StoppedError: the build is not wanted any more, or the driver is asked to end.
        """
        self._build = self._wanted()
        if self._stop.is_set():
            raise StoppedError

    # --- the end --------------------------------------------------------------------------------------------

    def _passed(self, position: Timestamp) -> bool:
        return core.passed(position, self._build, self._keyspace.partitions)

    def _passed_already(self) -> bool:
        """Whether there is nothing to do for Spark: a finished backfill, or nothing in the source."""
        deadline = self._now() + ACTIVATION_LIMIT_S
        while self._status.position.covers(self._build.load_timestamp):
            if self._status.try_close(self._passed):
                return True
            if self._status.journal.pending or self._now() > deadline:
                return False
            self._stop.wait(POLL_S)
            self._follow()
        return False

    def _pass(self, batches: Batches) -> None:
        """Say that the build has passed; with nothing to read, slices get an empty micro-batch first."""
        empty = self._status.journal.nothing_to_read
        if self._status.finished < 0 or empty is not None:
            end = Timestamp.of(empty or self._status.position.offsets(), self._keyspace.topic_id)
            self._status.finish_empty(end)
            batches.send_ends(0, end, end, [{} for _ in self._plan.targets])
        reach("driver-passed")
        self._status.enter("PASSED")
        self._reporter.send()
        log.info("build %s: passed after %d micro-batches", self._id, self._status.finished + 1)

    # --- the query ------------------------------------------------------------------------------------------

    def _stream(self, engine: SparkEngine, batches: Batches) -> None:
        """Run the query until the build has passed."""
        engine.shuffle(spark.shuffle_partitions(len(self._plan.targets), engine.parallelism))
        self._status.gate = gate = engine.gate
        gate.limit(self._build.rate_limit)
        batches.prepare(engine.partitions, gate)
        if self._build.origin is not None and self._table_left():
            self._status.begin_reading(now_ms())
            self._read_table(engine, batches, self._build.origin)
        engine.warm_up()
        batches.rate = self._build.rate_limit
        query = self._start_query(engine.session, batches)
        try:
            while not self._status.try_close(self._passed):
                if not query.isActive:
                    self._wait_out(
                        batches.error or query.exception() or RetryableError("Spark ended the query")
                    )
                    query = self._start_query(engine.session, batches)
                self._stop.wait(POLL_S)
                self._follow()
                batches.rate = self._build.rate_limit
                gate.limit(batches.rate)
            self._pass(batches)
        finally:
            self._status.close()
            batches.close()
            gate.close()
            query.stop()

    def _read_table(self, engine: SparkEngine, batches: Batches, origin: TableOrigin) -> None:
        """Read the table that the build begins with, while the metadata is followed."""
        table = read_table(engine.session, origin, self._settings.build.origin_options)

        def follow() -> None:
            self._follow()
            engine.gate.limit(self._build.rate_limit)

        engine.run(lambda: batches.on_table(table, begins_at(origin)), follow)

    def _start_query(self, session: SparkSession, batches: Batches) -> StreamingQuery:
        batches.error = None  # of a query that ended
        options = spark.source_options(self._settings, self._keyspace.name)
        if self._build.origin is not None:
            options["startingOffsets"] = starting_offsets(self._keyspace.name, self._build.origin.offsets)
        writer = (
            session.readStream.format("kafka")
            .options(**options)
            .load()
            .writeStream.queryName(self._id)
            .foreachBatch(batches.on_batch)
            .option("checkpointLocation", str(self._checkpoint.folder))
        )
        self._status.begin_reading(now_ms())  # from here on Spark asks for the source's offsets
        return writer.start()
