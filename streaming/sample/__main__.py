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
import sys
import uuid
from contextlib import ExitStack
from typing import Final

import msgspec

from keytide.catalog.records import BuildRecord
from keytide.errors import RetryableError
from keytide.kafka.admin import admin, describe_topics, list_offsets
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.settings.settings import SecuritySettings
from keytide.wire.messages import BuildSampled
from streaming.drivers import failures
from streaming.drivers.engine import TASKS_PER_CORE, Engine, SparkEngine
from streaming.drivers.failures import StoppedError
from streaming.drivers.lifecycle import Driver, MetadataFollower, run_driver
from streaming.drivers.stages import Rows, SparkStages
from streaming.sample.sampling import ROW, Definitions, SampleResult, sample_blocks, sample_rows, spread
from streaming.stages.source_reader import OffsetsLostError

FLUSH_S: Final = 30.0


class SampleDriver(Driver):
    """Samples for one build (`streaming.drivers.lifecycle.Driver`)."""

    kind = "build"

    @property
    def title(self) -> str:
        return f"sample of build {self._id}"

    def diagnose(self, error: Exception) -> failures.DriverFailure:
        failure = super().diagnose(error)
        return failure._replace(never=False) if failure.reason == OffsetsLostError.problem_type else failure

    def work(self, held: ExitStack) -> None:
        self._metadata = MetadataFollower(self._settings)
        held.callback(self._metadata.close)
        report = self._sampled(self._wanted())
        self._reporter.send(report)
        if not self._reporter.flush(FLUSH_S):
            raise RetryableError(f"the splits of build {self._id} did not reach Kafka")
        words = "build %s: %d documents sampled, %s entries"
        self.log.info(words, self._id, report.documents, report.entries)

    def _wanted(self) -> BuildRecord:
        """The build, while it waits for its splits."""
        catalog = self._metadata.catalog()
        self.check_led(catalog)
        build = catalog.build(self._id)
        if build is None or build.state != "QUEUED" or self._stop.is_set():
            self.log.info("build %s is %s", self._id, build.state if build else "not in the metadata")
            raise StoppedError
        return build

    def _sampled(self, build: BuildRecord) -> BuildSampled:
        found = [self._metadata.catalog().index(id_) for id_ in sorted(build.indexes)]
        indexes = [one for one in found if one is not None and one.definition.samples_splits]
        starts, ends = self._offsets(build)
        sample = SampleResult()
        if indexes and (build.origin is not None or starts != ends):
            length = sum(ends[partition] - start for partition, start in starts.items())
            engine = self._engine_for(build, length)
            definitions = tuple((one.id, msgspec.json.encode(one.definition)) for one in indexes)
            engine.run(
                lambda: self._collect(engine, build, definitions, starts, ends, length, sample),
                self._wanted,  # the build may be cancelled meanwhile
            )
        splits: dict[str, list[bytes]] = {}
        entries: dict[str, int] = {}
        for index in indexes:
            made, entries[index.id] = sample.splits(index.id, index.definition.partitions)
            splits[index.id] = list(made)
        wanted = {index.id: index.definition.wanted_splits for index in indexes}
        run = uuid.uuid4().hex[:12]
        return BuildSampled(self._id, run, splits, sample.documents, entries, now_ms(), wanted)

    def _engine_for(self, build: BuildRecord, length: int) -> Engine:
        """Spark, where much is to be read; so it is where there is a table.

        Args:
            length: of the source, in offsets.
        """
        own = self._settings.build
        if build.origin is None and min(length, own.sample_documents) <= own.local_documents:
            return self.start_local()
        return self.start_spark("sample", app="keytide-sample")

    def _offsets(self, build: BuildRecord) -> tuple[dict[int, int], dict[int, int]]:
        """What of the source's log can be read, and has no transaction open below it."""
        with admin(self._settings) as client:
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

    def _collect(
        self,
        engine: Engine,
        build: BuildRecord,
        definitions: Definitions,
        starts: dict[int, int],
        ends: dict[int, int],
        length: int,
        sample: SampleResult,
    ) -> None:
        """Run the tasks, and take what they bring."""
        documents = self._settings.build.sample_documents
        if build.origin is not None and isinstance(engine, SparkEngine):
            from streaming.backfill.table_origin import read_table

            table = read_table(engine.session, build.origin, self._settings.build.origin_options)
            rows = table.count()
            share = min(1.0, documents / max(1, rows + length))
            documents = max(1, int(share * length))
            take = functools.partial(sample_rows, definitions)
            self._take(SparkStages.collected(table.sample(fraction=share, seed=1), take, ROW), sample)
        extents = spread(starts, ends, documents)
        if extents:
            settings = self._settings.model_copy(update={"security": SecuritySettings()})
            read = functools.partial(
                sample_blocks, settings, engine.client, build.keyspace, definitions, extents
            )
            tasks = min(len(extents), TASKS_PER_CORE * engine.parallelism)
            self._take(engine.stages.run(len(extents), read, ROW, tasks), sample)

    def _take(self, rows: Rows, sample: SampleResult) -> None:
        for row in rows:
            sample.add(bytes(row["body"]))
        reach("sample-taken")


if __name__ == "__main__":
    sys.exit(run_driver(SampleDriver, "streaming.sample", "Sample the source for one build."))
