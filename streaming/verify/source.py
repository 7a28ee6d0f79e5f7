"""Reading the source for verification: by Spark, or by the driver alone when that is sooner done.

Theory of operation
===================
A *reading* is over exact offsets of each partition, `read_committed`, from the earliest that there is: the
ends are the snapshot's timestamp (or, for a second look, the end of the log), so what is read is what the
index was made of. Offsets that retention removes meanwhile are left out: whoever judges looks at the first
offsets once more afterwards.

Spark's tasks get *extents*, parts of partitions, and read them as those of builds do
(`streaming.stages.source_reader`). Starting Spark takes some seconds; a source with few records is read,
projected and summed up by the driver itself within that time, by the very same functions.

A job has one Spark session at most, for all its readings. Whatever is waited for, the rate limit of the build
that waits for the job is followed, and a driver that is asked to end is heard.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from keytide.catalog.catalog import Catalog
from keytide.errors import RetryableError
from keytide.kafka.admin import describe_topics, list_offsets, topic_config
from keytide.kafka.clients import AdminClient
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import SecuritySettings, Settings
from projector.core.projection import SourceBatch
from streaming.core.rate import TokenBucket
from streaming.drivers.engine import POLL_S, TASKS_PER_CORE, SparkEngine
from streaming.drivers.failures import BuildImpossibleError, StoppedError
from streaming.spark.checkpoint import Extent
from streaming.stages.source_reader import read_extent
from streaming.stages.tasks import two_stages
from streaming.verify import tasks

if TYPE_CHECKING:
    from pyspark.sql import Row

LEAST_EXTENT: Final = 50_000
"""Offsets: with fewer, starting a reader takes longer than reading."""
MOST_EXTENT: Final = 500_000
"""Offsets: what a task that fails reads again, and about what it holds at once (`SPILL_BYTES`)."""


@dataclass(frozen=True)
class SourceRanges:
    """What is read: source partition -> [start, end). Partitions with nothing to read are left out."""

    topic: str
    ranges: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> SourceRanges:
        """From the first offsets to the given ends."""
        ranges = {
            partition: (starts.get(partition, 0), end)
            for partition, end in sorted(ends.items())
            if starts.get(partition, 0) < end
        }
        return cls(topic, ranges)

    @property
    def documents(self) -> int:
        """How many offsets that are."""
        return sum(end - start for start, end in self.ranges.values())

    def extents(self, tasks: int) -> list[Extent]:
        """The same in parts, as even as can be: about one for each of so many tasks, or more when these would
        be long, fewer when short."""
        size = min(MOST_EXTENT, max(LEAST_EXTENT, -(-self.documents // tasks)))
        found: list[Extent] = []
        for partition, (start, end) in self.ranges.items():
            parts = -(-(end - start) // size)
            edges = [start + (end - start) * part // parts for part in range(parts + 1)]
            found += [Extent(partition, *edge) for edge in pairwise(edges)]
        return found


class KafkaSource:
    """What Kafka says of a keyspace.

    Args:
        catalog: gives the dictionary as it is now.
    """

    def __init__(self, client: AdminClient, catalog: Callable[[], Catalog], keyspace: str) -> None:
        self._admin = client
        self._catalog = catalog
        self._keyspace = keyspace

    def _partitions(self) -> range:
        record = self._catalog().keyspace(self._keyspace)
        if record is None:
            raise BuildImpossibleError(f"keyspace {self._keyspace} is not in the metadata")
        return range(record.partitions)

    def earliest(self) -> dict[int, int]:
        """First offsets that are there."""
        return list_offsets(self._admin, self._keyspace, self._partitions(), earliest=True)

    def ends(self) -> dict[int, int]:
        """Ends for a read_committed reader."""
        return list_offsets(self._admin, self._keyspace, self._partitions())

    def deletions_kept_ms(self) -> int | None:
        """How long a compacted topic keeps deletions; None for one that is not compacted."""
        config = topic_config(self._admin, self._keyspace)
        if "compact" not in config.get("cleanup.policy", ""):
            return None
        return int(config["delete.retention.ms"])

    def check(self, timestamp: Timestamp, incarnation: int) -> None:
        """See that the source is the one that a snapshot is of.

        Raises:
            RetryableError: it is another topic, was rolled back, or ends below the snapshot.
        """
        info = describe_topics(self._admin, [self._keyspace]).get(self._keyspace)
        if info is None or (timestamp.topic_id and info.id != timestamp.topic_id):
            raise RetryableError(f"topic {self._keyspace} is not the one that the index is of")
        record = self._catalog().keyspace(self._keyspace)
        if record is not None and record.incarnation > incarnation:
            raise RetryableError(f"keyspace {self._keyspace} was rolled back meanwhile")
        ends = self.ends()
        short = [p for p, place in timestamp.places.items() if ends.get(p, place.offset) < place.offset]
        if short:
            raise RetryableError(f"partitions {short} of {self._keyspace} end below the snapshot")


class SparkReader:
    """Reads and projects a source by Spark's tasks, within the rate limit; one engine may have several.

    Args:
        rate: documents per second that may be read now, 0 for no limit; asked all the time.
    """

    def __init__(self, settings: Settings, engine: SparkEngine, rate: Callable[[], int]) -> None:
        self._settings = settings.model_copy(update={"security": SecuritySettings()})
        self._engine = engine
        self._rate = rate
        self._before = 0
        self.partitions = engine.partitions
        engine.gate.begin(0, 0)

    def documents(self) -> int:
        """Records read so far, by all readings."""
        return self._before + self._engine.gate.documents

    def _run(self, action: Callable[[], list[Row]]) -> list[Row]:
        return self._engine.run(action, lambda: self._engine.gate.limit(self._rate()))

    def sums(self, reading: SourceRanges, work: tasks.VerifyWork) -> Iterator[tuple[int, tasks.Counted]]:
        """The digests of each range of documents that has any."""
        if not reading.ranges:
            return
        source_tasks = self._begin(reading)
        gathered: Any = functools.partial(tasks.read_and_gather, work, source_tasks)
        summed: Any = functools.partial(tasks.sum_up, work)
        numbers = self._engine.numbers(len(source_tasks.extents))
        rows = self._run(
            lambda: two_stages(numbers, gathered, tasks.ROW, len(work.routes), ("place",), summed)
        )
        for row in rows:
            yield row["place"], tasks.decode_counted(bytes(row["body"]))

    def find(self, reading: SourceRanges, work: tasks.VerifyWork) -> list[tasks.DocumentVersions]:
        """The versions of chosen documents."""
        if not reading.ranges:
            return []
        source_tasks = self._begin(reading)
        found: Any = functools.partial(tasks.read_and_find, work, source_tasks)
        numbers = self._engine.numbers(len(source_tasks.extents))
        rows = self._run(lambda: numbers.mapInArrow(found, tasks.ROW).collect())
        return [tasks.decode_found(bytes(row["body"])) for row in rows]

    def _begin(self, reading: SourceRanges) -> tasks.SourceTasks:
        """Count a reading from now on; what its tasks read."""
        gate = self._engine.gate
        self._before += gate.documents
        extents = reading.extents(TASKS_PER_CORE * self._engine.parallelism)
        gate.begin(reading.documents, len(extents))
        return tasks.SourceTasks(self._settings, reading.topic, extents, gate.client)


class DriverReader:
    """The same by the driver itself, one partition after the other.

    Args:
        stop: set to end a reading.
        rate: as of `SparkReader`.
    """

    def __init__(self, settings: Settings, stop: threading.Event, rate: Callable[[], int]) -> None:
        self._settings = settings
        self._stop = stop
        self._rate = rate
        self._bucket = TokenBucket(time.monotonic())
        self._read = 0
        self.partitions = 1

    def documents(self) -> int:
        """Records read so far, by all readings."""
        return self._read

    def sums(self, reading: SourceRanges, work: tasks.VerifyWork) -> Iterator[tuple[int, tasks.Counted]]:
        """The digests of each range of documents that has any."""
        shuffled: dict[int, list[pa.RecordBatch]] = {}
        for partition in reading.ranges:
            for row in tasks.gather(work, self._records(reading, partition)):
                shuffled.setdefault(row.column("place")[0].as_py(), []).append(row)
        for place in sorted(shuffled):
            for row in tasks.sum_up(work, shuffled.pop(place)):
                yield place, tasks.decode_counted(row.column("body")[0].as_py())

    def find(self, reading: SourceRanges, work: tasks.VerifyWork) -> list[tasks.DocumentVersions]:
        """The versions of chosen documents."""
        return [
            tasks.decode_found(row.column("body")[0].as_py())
            for partition in reading.ranges
            for row in tasks.find(work, self._records(reading, partition))
        ]

    def _records(self, reading: SourceRanges, partition: int) -> Iterator[SourceBatch]:
        """The records of one partition, as fast as they may be read.

        Raises:
            RetryableError: Kafka does not answer.
            StoppedError: the driver is asked to end.
        """
        extent = Extent(partition, *reading.ranges[partition])
        for batch in read_extent(self._settings, reading.topic, extent, whole=False, heed=self._heed):
            self._pass(len(batch.offsets))
            yield batch

    def _pass(self, documents: int) -> None:
        """Return when the rate limit has let so many through."""
        while True:
            self._heed()
            now = time.monotonic()
            self._bucket.limit(self._rate(), now)
            granted = self._bucket.take(documents, now)
            self._read += granted
            documents -= granted
            if not documents:
                return
            self._stop.wait(POLL_S)

    def _heed(self) -> None:
        if self._stop.is_set():
            raise StoppedError


SourceReader = SparkReader | DriverReader
