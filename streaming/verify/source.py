"""Reading the source for verification: by Spark, or by the driver alone when that is sooner done.

Theory of operation
===================
A *reading* is over exact offsets of each partition, `read_committed`, from the earliest that there is: the
ends are the snapshot's timestamp (or, for a second look, the end of the log), so what is read is what the
index was made of. Offsets that retention removes meanwhile are left out (`failOnDataLoss` is off): whoever
judges looks at the first offsets once more afterwards.

Starting Spark takes some seconds; a source with few records is read, projected and summed up by the driver
itself within that time, by the very same functions.
"""

from __future__ import annotations

import functools
import json
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from keytide.errors import RetryableError
from keytide.kafka import consumer, drain
from keytide.settings import Settings
from streaming import spark
from streaming.verify.tasks import ROW, Found, VerifyWork, decode_counted, decode_found, find, gather, sum_up
from streaming.verify.tasks import Counted as Counted

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

POLL_S = 0.2
BATCH = 20_000
SILENCE_LIMIT_S = 60.0
_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Reading:
    """What is read: source partition -> [start, end). Partitions with nothing to read are left out."""

    topic: str
    ranges: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> Reading:
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


class SourceReader(Protocol):
    """Reads and projects a source."""

    partitions: int
    """Of the shuffle."""

    def sums(self, reading: Reading, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        """The digests of each range of documents that has any."""
        ...

    def find(self, reading: Reading, work: VerifyWork) -> list[Found]:
        """The versions of chosen documents."""
        ...

    def documents(self) -> int:
        """Records read so far, by all readings."""
        ...

    def close(self) -> None: ...


class SparkReader:
    """By Spark, as a backfill.

    Args:
        scratch: folder for shuffle files.
    """

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self._settings = settings
        self._scratch = scratch
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        options = {**spark.session_options(settings, scratch, rows=True), "spark.app.name": "keytide-verify"}
        self._session: SparkSession = spark.start_session(options)
        self._counter: Accumulator[int] = self._session.sparkContext.accumulator(0)
        self.partitions = 2 * max(2, self._session.sparkContext.defaultParallelism)
        self._warming = spark.warm_up(self._session, self.partitions)
        self._session.conf.set("spark.sql.shuffle.partitions", str(self.partitions))

    def documents(self) -> int:
        return self._counter.value

    def sums(self, reading: Reading, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        if not reading.ranges:
            return
        gathered: Any = functools.partial(gather, work, self._counter)
        summed: Any = functools.partial(sum_up, work)
        rows = (
            self._frame(reading)
            .mapInArrow(gathered, ROW)
            .repartition(len(work.routes), "route")
            .sortWithinPartitions("place")
            .mapInArrow(summed, ROW)
            .collect()
        )
        for row in rows:
            yield row["place"], decode_counted(bytes(row["body"]))

    def find(self, reading: Reading, work: VerifyWork) -> list[Found]:
        if not reading.ranges:
            return []
        found: Any = functools.partial(find, work)
        return [
            decode_found(bytes(row["body"])) for row in self._frame(reading).mapInArrow(found, ROW).collect()
        ]

    def _frame(self, reading: Reading) -> DataFrame:
        """Spark's batch source over exactly these offsets."""
        options = spark.source_options(self._settings, reading.topic, 1)
        for name in ("subscribe", "maxOffsetsPerTrigger"):
            options.pop(name, None)
        starts = {str(partition): start for partition, (start, _) in reading.ranges.items()}
        ends = {str(partition): end for partition, (_, end) in reading.ranges.items()}
        options |= {
            "assign": json.dumps({reading.topic: sorted(reading.ranges)}),
            "startingOffsets": json.dumps({reading.topic: starts}),
            "endingOffsets": json.dumps({reading.topic: ends}),
            "failOnDataLoss": "false",
        }
        frame = self._session.read.format("kafka").options(**options).load()
        return frame.select("partition", "offset", "timestamp", "key", "value")

    def close(self) -> None:
        self._warming.join()
        self._session.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)


class LocalReader:
    """By the driver itself, one partition after the other.

    Args:
        stop: set to end a reading.
    """

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._read = 0
        self.partitions = 1

    def documents(self) -> int:
        return self._read

    def close(self) -> None:
        """Nothing stays open between readings."""

    def sums(self, reading: Reading, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        shuffled: dict[int, list[pa.RecordBatch]] = {}
        for partition in reading.ranges:
            for row in gather(work, None, self._records(reading, partition)):
                shuffled.setdefault(row.column("place")[0].as_py(), []).append(row)
        for place in sorted(shuffled):
            for row in sum_up(work, shuffled.pop(place)):
                yield place, decode_counted(row.column("body")[0].as_py())

    def find(self, reading: Reading, work: VerifyWork) -> list[Found]:
        return [
            decode_found(row.column("body")[0].as_py())
            for partition in reading.ranges
            for row in find(work, self._records(reading, partition))
        ]

    def _records(self, reading: Reading, partition: int) -> Iterator[pa.RecordBatch]:
        """The records of one partition, as Spark gives them.

        Raises:
            RetryableError: Kafka does not answer, or the driver was asked to end.
        """
        start, end = reading.ranges[partition]
        source = consumer(self._settings, auto_offset_reset="earliest")
        silent = 0.0
        try:
            source.assign([TopicPartition(reading.topic, partition, start)])
            position = start
            while position < end:
                if self._stop.is_set():
                    raise RetryableError("the driver was asked to end")
                messages = drain(source, BATCH, POLL_S)
                silent = 0.0 if messages else silent + POLL_S
                if silent >= SILENCE_LIMIT_S:
                    raise RetryableError(f"partition {partition} of {reading.topic} gives nothing more")
                columns: list[list[Any]] = [[], [], [], [], []]
                for message in messages:
                    error, offset = message.error(), message.offset()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            position = max(position, offset or 0)
                            continue
                        raise RetryableError(f"{reading.topic} cannot be read: {error}")
                    if offset is None or offset >= end:
                        position = end
                        continue
                    position = offset + 1
                    for column, value in zip(
                        columns,
                        (partition, offset, message.timestamp()[1] * 1000, message.key(), message.value()),
                        strict=True,
                    ):
                        column.append(value)
                self._read += len(columns[0])
                if columns[0]:
                    arrays = [pa.array(c, field.type) for c, field in zip(columns, _SCHEMA, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
        finally:
            source.close()
