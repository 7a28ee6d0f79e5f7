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

A job has one Spark session at most (`Engine`), for all its readings. Whatever is waited for, the rate limit
of the build that waits for the job is followed, and a driver that is asked to end is heard: it still has to
give back what it holds on slices, and only then ends Spark, which takes longer.
"""

from __future__ import annotations

import functools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa

from keytide.settings.settings import SecuritySettings, Settings
from projector.core.projection import SourceBatch
from streaming.core.rate import TokenBucket
from streaming.drivers.progress import StoppedError
from streaming.drivers.rate_gate import gate_of
from streaming.spark import session as spark
from streaming.spark.checkpoint import Extent
from streaming.stages.source_reader import read_extent
from streaming.verify.tasks import (
    ROW,
    DocumentVersions,
    Shares,
    VerifyWork,
    decode_counted,
    decode_found,
    find,
    gather,
    read_and_find,
    read_and_gather,
    sum_up,
)
from streaming.verify.tasks import Counted as Counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
TASKS_PER_CORE: Final = 4
LEAST_EXTENT: Final = 50_000
"""Offsets: with fewer, starting a reader takes longer than reading."""
MOST_EXTENT: Final = 500_000
"""Offsets: what a task that fails reads again, and about what it holds at once (`PORTION_BYTES`)."""

T = TypeVar("T")


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


class SourceReader(Protocol):
    """Reads and projects a source."""

    partitions: int
    """Of the shuffle."""

    def sums(self, reading: SourceRanges, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        """The digests of each range of documents that has any."""
        ...

    def find(self, reading: SourceRanges, work: VerifyWork) -> list[DocumentVersions]:
        """The versions of chosen documents."""
        ...

    def documents(self) -> int:
        """Records read so far, by all readings."""
        ...

    def close(self) -> None: ...


class Engine:
    """Spark, for all readings of one job. Its actions run in another thread, so that the caller's is free as
    soon as the driver is asked to end.

    Args:
        scratch: folder for shuffle files.
        stop: set when the driver is to end.
        rate: documents per second that may be read now, 0 for no limit; asked all the time.

    Raises:
        StoppedError: the driver is asked to end.
    """

    def __init__(
        self, settings: Settings, scratch: Path, stop: threading.Event, rate: Callable[[], int]
    ) -> None:
        self._stop = stop
        self._rate = rate
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(1, "spark")
        self.settings = settings.model_copy(update={"security": SecuritySettings()})
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        options = {
            "spark.jars": "",  # no connector: tasks read Kafka themselves
            **spark.session_options(settings, scratch),
            "spark.app.name": "keytide-verify",
        }
        self.session = self._wait(lambda: spark.start_session(options), lambda: None)
        self.parallelism: int = self.session.sparkContext.defaultParallelism
        self.partitions = 2 * max(2, self.parallelism)
        self.gate = gate_of(self.session)
        self._warming = spark.warm_up(self.session, self.partitions)
        self.session.conf.set("spark.sql.shuffle.partitions", str(self.partitions))

    def collect(self, made: Callable[[], DataFrame]) -> list[Row]:
        """Run an action; its rows.

        Raises:
            StoppedError: the driver is asked to end; so are the tasks.
        """
        try:
            return self._wait(lambda: made().collect(), lambda: self.gate.limit(self._rate()))
        except StoppedError:
            self.session.sparkContext.cancelAllJobs()
            raise

    def _wait(self, action: Callable[[], T], meanwhile: Callable[[], None]) -> T:
        meanwhile()
        work = self._threads.submit(action)
        while not wait([work], POLL_S).done:
            if self._stop.is_set():
                raise StoppedError
            meanwhile()
        return work.result()

    def close(self) -> None:
        """End Spark: some seconds."""
        self.gate.close()
        self._warming.join()
        self.session.stop()
        self._threads.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)


class SparkReader:
    """By Spark's tasks, within the rate limit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = 0
        self.partitions = engine.partitions
        engine.gate.begin(0, 0)

    def documents(self) -> int:
        return self._before + self._engine.gate.documents

    def close(self) -> None:
        """Spark stays, for other readings of the job."""

    def sums(self, reading: SourceRanges, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        if not reading.ranges:
            return
        shares = self._begin(reading)
        gathered: Any = functools.partial(read_and_gather, work, shares)
        summed: Any = functools.partial(sum_up, work)
        rows = self._engine.collect(
            lambda: (
                self._numbers(shares)
                .mapInArrow(gathered, ROW)
                .repartition(len(work.routes), "route")
                .sortWithinPartitions("place")
                .mapInArrow(summed, ROW)
            )
        )
        for row in rows:
            yield row["place"], decode_counted(bytes(row["body"]))

    def find(self, reading: SourceRanges, work: VerifyWork) -> list[DocumentVersions]:
        if not reading.ranges:
            return []
        shares = self._begin(reading)
        found: Any = functools.partial(read_and_find, work, shares)
        rows = self._engine.collect(lambda: self._numbers(shares).mapInArrow(found, ROW))
        return [decode_found(bytes(row["body"])) for row in rows]

    def _begin(self, reading: SourceRanges) -> Shares:
        """Count a reading from now on; what its tasks read."""
        gate = self._engine.gate
        self._before += gate.documents
        extents = reading.extents(TASKS_PER_CORE * self._engine.parallelism)
        gate.begin(reading.documents, len(extents))
        return Shares(self._engine.settings, reading.topic, extents, gate.meter)

    def _numbers(self, shares: Shares) -> DataFrame:
        """The numbers of extents, one in each partition."""
        tasks = len(shares.extents)
        return self._engine.session.range(0, tasks, 1, tasks)


class DriverReader:
    """By the driver itself, one partition after the other.

    Args:
        stop: set to end a reading.
        rate: as of `Engine`.
    """

    def __init__(self, settings: Settings, stop: threading.Event, rate: Callable[[], int]) -> None:
        self._settings = settings
        self._stop = stop
        self._rate = rate
        self._bucket = TokenBucket(time.monotonic())
        self._read = 0
        self.partitions = 1

    def documents(self) -> int:
        return self._read

    def close(self) -> None:
        """Nothing stays open between readings."""

    def sums(self, reading: SourceRanges, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        shuffled: dict[int, list[pa.RecordBatch]] = {}
        for partition in reading.ranges:
            for row in gather(work, self._records(reading, partition)):
                shuffled.setdefault(row.column("place")[0].as_py(), []).append(row)
        for place in sorted(shuffled):
            for row in sum_up(work, shuffled.pop(place)):
                yield place, decode_counted(row.column("body")[0].as_py())

    def find(self, reading: SourceRanges, work: VerifyWork) -> list[DocumentVersions]:
        return [
            decode_found(row.column("body")[0].as_py())
            for partition in reading.ranges
            for row in find(work, self._records(reading, partition))
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
