"""`python -m streaming.sample --build ID`: find the splits of the RANGE indexes of a build, and
report them.

Theory of operation: a build of indexes whose splits are not given waits in QUEUED for this driver. It reads a
sample of the source (`streaming.sample.sampling`), of the table first if the build begins with one, and sends
`BuildSampled`. It keeps nothing: a driver that dies is started again and samples again. So does one whose
blocks the topic's retention took away before they were read: another start finds what is there then.

Exit status: as `streaming.backfill`; 0 when the report has arrived.
"""

from __future__ import annotations

import functools
import logging
import shutil
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec

from keytide.catalog.catalog import BuildRecord, IndexRecord
from keytide.errors import RetryableError
from keytide.kafka.clients import AdminClient
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.topics import CatalogReader, admin, describe_topics, list_offsets, producer
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.settings.settings import SecuritySettings, Settings
from keytide.wire.messages import BuildSampled, encode
from streaming.core import micro_batches as core
from streaming.drivers import failures
from streaming.drivers.process import run_driver
from streaming.drivers.progress import StoppedError
from streaming.sample.sampling import ROW, SampleResult, sample_blocks, sample_rows, spread
from streaming.spark import session as spark
from streaming.spark.checkpoint import Extent
from streaming.stages.source_reader import OffsetsLostError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
FLUSH_S: Final = 30.0
TASKS_PER_CORE: Final = 4


class SampleDriver:
    """Samples for one build.

    Args:
        settings, build, stop: as of `streaming.backfill.driver.Driver`.
    """

    def __init__(self, settings: Settings, build: str, stop: threading.Event) -> None:
        self._settings = settings
        self._id = build
        self._stop = stop
        self._folder = settings.data_dir.resolve() / "builds" / build
        self._catalog = CatalogReader(settings)

    def run(self) -> int:
        """Sample and report; returns the exit status."""
        try:
            self._catalog.start()
            self._send(self._sampled(self._wanted()))
            return core.EXIT_PASSED
        except StoppedError:
            return core.EXIT_STOPPED
        except Exception as error:
            if self._stop.is_set():
                return core.EXIT_STOPPED
            failure = failures.diagnose(error)
            log.error("sample of build %s: %s: %s", self._id, failure.reason, failure.message)
            log.debug("sample of build %s", self._id, exc_info=error)
            never = failure.never and failure.reason != OffsetsLostError.problem_type
            return core.EXIT_NEVER if never else core.EXIT_RETRY
        finally:
            self._catalog.close()

    def _wanted(self) -> BuildRecord:
        """The build, while it waits for its splits."""
        build = self._catalog.catalog.build(self._id)
        if build is None or build.state != "QUEUED" or self._stop.is_set():
            log.info("build %s is %s", self._id, build.state if build else "not in the metadata")
            raise StoppedError
        return build

    def _sampled(self, build: BuildRecord) -> BuildSampled:
        found = [self._catalog.catalog.index(id_) for id_ in sorted(build.indexes)]
        indexes = [one for one in found if one is not None and one.definition.samples_splits]
        starts, ends = self._offsets(build)
        sample = SampleResult()
        if indexes and (build.origin is not None or starts != ends):
            self._with_spark(build, indexes, starts, ends, sample)
        splits: dict[str, list[bytes]] = {}
        entries: dict[str, int] = {}
        for index in indexes:
            made, entries[index.id] = sample.splits(index.id, index.slices)
            splits[index.id] = list(made)
        return BuildSampled(self._id, uuid.uuid4().hex[:12], splits, sample.documents, entries, now_ms())

    def _offsets(self, build: BuildRecord) -> tuple[dict[int, int], dict[int, int]]:
        """What of the source's log can be read, and has no transaction open below it."""
        KafkaIdentity(self._settings).look()
        with admin(self._settings) as client:
            return self._offsets_by(client, build)

    def _offsets_by(self, client: AdminClient, build: BuildRecord) -> tuple[dict[int, int], dict[int, int]]:
        info = describe_topics(client, [build.keyspace]).get(build.keyspace)
        if info is None:
            raise failures.BuildImpossibleError(
                f"topic {build.keyspace} does not exist", next_step="make it, and build again"
            )
        partitions = range(info.partitions)
        starts = list_offsets(client, build.keyspace, partitions, earliest=True)
        if build.origin is not None:
            starts = {p: max(start, build.origin.offsets.get(p, start)) for p, start in starts.items()}
        ends = list_offsets(client, build.keyspace, partitions)
        return starts, {p: max(end, starts[p]) for p, end in ends.items()}

    def _with_spark(
        self,
        build: BuildRecord,
        indexes: list[IndexRecord],
        starts: dict[int, int],
        ends: dict[int, int],
        sample: SampleResult,
    ) -> None:
        scratch = self._folder / "sample"
        shutil.rmtree(scratch, ignore_errors=True)  # of a driver that was killed
        scratch.mkdir(parents=True)
        options = spark.session_options(self._settings, scratch)
        session = spark.start_session(
            {**options, "spark.app.name": "keytide-sample"}, self._settings.build.jars
        )
        try:
            with ThreadPoolExecutor(1, "sample") as threads:
                work = threads.submit(self._collect, session, build, indexes, starts, ends, sample)
                try:
                    while not work.done():  # the build may be cancelled meanwhile
                        self._catalog.poll(POLL_S)
                        self._wanted()
                finally:
                    if not work.done():
                        session.sparkContext.cancelAllJobs()
                work.result()
        finally:
            session.stop()
            shutil.rmtree(scratch, ignore_errors=True)

    def _collect(
        self,
        session: SparkSession,
        build: BuildRecord,
        indexes: list[IndexRecord],
        starts: dict[int, int],
        ends: dict[int, int],
        sample: SampleResult,
    ) -> None:
        """Run the tasks, and take what they bring."""
        definitions = tuple((one.id, msgspec.json.encode(one.definition)) for one in indexes)
        documents = self._settings.build.sample_documents
        length = sum(ends[partition] - start for partition, start in starts.items())
        if build.origin is not None:
            from streaming.backfill.table_origin import read_table

            table = read_table(session, build.origin, self._settings.build.origin_options)
            rows = table.count()
            share = min(1.0, documents / max(1, rows + length))
            documents = max(1, int(share * length))
            take: Any = functools.partial(sample_rows, definitions)
            self._take(table.sample(fraction=share, seed=1).mapInArrow(take, ROW), sample)
        extents = spread(starts, ends, documents)
        if extents:
            settings = self._settings.model_copy(update={"security": SecuritySettings()})
            read: Any = functools.partial(sample_blocks, settings, build.keyspace, definitions, extents)
            self._take(_numbers(session, extents).mapInArrow(read, ROW), sample)

    def _take(self, rows: DataFrame, sample: SampleResult) -> None:
        for row in rows.collect():
            sample.add(bytes(row["body"]))
        reach("sample-taken")

    def _send(self, report: BuildSampled) -> None:
        out = producer(self._settings)
        out.produce(Topics(self._settings.cluster).reports, encode(report))
        if out.flush(FLUSH_S):
            raise RetryableError(f"the splits of build {self._id} did not reach Kafka")
        log.info("build %s: %d documents sampled, %s entries", self._id, report.documents, report.entries)


def _numbers(session: SparkSession, extents: list[Extent]) -> DataFrame:
    """The numbers of the blocks, shared out to a few tasks."""
    tasks = min(len(extents), TASKS_PER_CORE * session.sparkContext.defaultParallelism)
    return session.range(len(extents), numPartitions=tasks)


def main(arguments: list[str] | None = None) -> int:
    """Run the driver until it has reported, failed, or was stopped."""
    return run_driver(
        "streaming.sample", "Sample the source for one build.", SampleDriver, "build", arguments
    )


if __name__ == "__main__":
    sys.exit(main())
