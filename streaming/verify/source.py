"""Reading the source for verification: by tasks of Spark, or of the driver alone when that is sooner done.

Theory of operation
===================
A *reading* is over exact offsets of each partition, `read_committed`, from the earliest that there is: the
ends are the snapshot's timestamp (or, for a second look, the end of the log), so what is read is what the
index was made of. Offsets that retention removes meanwhile are left out: whoever judges looks at the first
offsets once more afterwards.

Tasks get *extents*, parts of partitions, and read them as those of builds do
(`streaming.stages.source_reader`). Starting Spark takes some seconds; a source with few records is read,
projected and summed up by the driver itself within that time, by the very same functions
(`streaming.drivers.stages`).

A job has one Spark session at most, for all its readings. Whatever is waited for, the rate limit of the build
that waits for the job is followed, and a driver that is asked to end is heard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from keytide.catalog.catalog import Catalog
from keytide.errors import RetryableError
from keytide.kafka.admin import describe_topics, list_offsets, topic_config
from keytide.kafka.clients import AdminClient
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import SecuritySettings, Settings
from streaming.drivers.engine import TASKS_PER_CORE, Engine
from streaming.drivers.failures import BuildImpossibleError
from streaming.drivers.stages import Rows, Shuffle
from streaming.spark.checkpoint import Extent
from streaming.verify import tasks

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


class SourceReader:
    """Reads and projects a source by tasks, within the rate limit; one engine may have several.

    Args:
        rate: documents per second that may be read now, 0 for no limit; asked all the time.
    """

    def __init__(self, settings: Settings, engine: Engine, rate: Callable[[], int]) -> None:
        self._settings = settings.model_copy(update={"security": SecuritySettings()})
        self._engine = engine
        self._rate = rate
        self._before = 0
        self.partitions = engine.partitions
        engine.gate.begin(0, 0)

    def documents(self) -> int:
        """Records read so far, by all readings."""
        return self._before + self._engine.gate.documents

    def _run(self, action: Callable[[], Rows]) -> Rows:
        return self._engine.run(lambda: list(action()), lambda: self._engine.gate.limit(self._rate()))

    def sums(self, reading: SourceRanges, work: tasks.VerifyWork) -> Iterator[tuple[int, tasks.Counted]]:
        """The digests of each range of documents that has any."""
        if not reading.ranges:
            return
        source_tasks = self._begin(reading)
        gathered = functools.partial(tasks.read_and_gather, work, source_tasks)
        summed = functools.partial(tasks.sum_up, work)
        shuffle = Shuffle(gathered, summed, tasks.ROW, len(work.routes), ("place",))
        rows = self._run(lambda: self._engine.stages.shuffle(len(source_tasks.extents), shuffle))
        for row in rows:
            yield row["place"], tasks.decode_counted(bytes(row["body"]))

    def find(self, reading: SourceRanges, work: tasks.VerifyWork) -> list[tasks.DocumentVersions]:
        """The versions of chosen documents."""
        if not reading.ranges:
            return []
        source_tasks = self._begin(reading)
        found = functools.partial(tasks.read_and_find, work, source_tasks)
        rows = self._run(lambda: self._engine.stages.run(len(source_tasks.extents), found, tasks.ROW))
        return [tasks.decode_found(bytes(row["body"])) for row in rows]

    def _begin(self, reading: SourceRanges) -> tasks.SourceTasks:
        """Count a reading from now on; what its tasks read."""
        gate = self._engine.gate
        self._before += gate.documents
        extents = reading.extents(TASKS_PER_CORE * self._engine.parallelism)
        gate.begin(reading.documents, len(extents))
        return tasks.SourceTasks(self._settings, reading.topic, extents, self._engine.client)
