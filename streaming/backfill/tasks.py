"""What a build's micro-batches ask of tasks and of Kafka's queues (`streaming.backfill.batches.BatchTasks`).
Everything here blocks."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from keytide.kafka.topics import producer
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.settings.settings import SecuritySettings, Settings
from keytide.wire.messages import BatchEnd, encode
from streaming.backfill.batches import BuildPlan, Seeded
from streaming.backfill.seed import SeedReader
from streaming.backfill.table_origin import run_table
from streaming.core import micro_batches as core
from streaming.core.versions import OffsetColumn, Version, losers_of
from streaming.drivers.engine import Engine
from streaming.drivers.rate_gate import TaskClient
from streaming.drivers.stages import Stages
from streaming.spark.checkpoint import Range
from streaming.stages.tasks import (
    VERSION_ROW,
    batch_shuffle,
    read_and_find_versions,
    read_and_project,
    settled,
)
from streaming.stages.work import BatchWork, DeliveryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

FLUSH_LIMIT_S = 60.0
UNCOUNTED = 1 << 62
"""Documents of a table, at most."""


class BackfillTasks:
    """Runs one driver's micro-batches.

    Attributes:
        stages: runs the tasks.
        table: as `streaming.backfill.table_origin.read_table` gives it.
        seed: reads the layout that the build begins with.
    """

    stages: Stages
    _engine: Engine
    table: DataFrame
    seed: SeedReader

    def __init__(self, settings: Settings, plan: BuildPlan) -> None:
        self._settings = settings
        self._plan = plan
        self._routes: tuple[int, ...] = ()
        self._producer = producer(settings)

    def prepare(self, engine: Engine) -> None:
        """Set what runs the tasks."""
        self._routes = tuple(core.exact_routes(engine.partitions))
        self._engine, self.stages = engine, engine.stages

    async def read(self, batch: int, covered: Range, losers: Mapping[int, OffsetColumn]) -> core.SettledBatch:
        """Both stages of a micro-batch. The tasks read the source themselves
        (`streaming.stages.source_reader`)."""
        work = dataclasses.replace(self._work(batch), losers=losers)
        extents = covered.extents
        client = self._client(covered.start.documents_to(covered.end), len(extents))
        project = functools.partial(read_and_project, work, client, self._plan.keyspace, extents)
        return settled(work, self.stages.shuffle(len(extents), batch_shuffle(work, project)), len(extents))

    async def losers(self, batch: int, covered: Range, hashes: bytes) -> dict[int, OffsetColumn]:
        """The versions that documents with these hashes have a newer one of, in another partition."""
        wanted = np.sort(np.frombuffer(hashes, np.uint64))
        log.warning(
            "build %s: %d documents lie in more than one partition of %s; micro-batch %d runs again with "
            "their newest versions only (do its producers use different partitioners?)",
            *(self._plan.build, len(wanted), self._plan.keyspace, batch),
        )
        extents = covered.extents
        client = self._engine.client
        find = functools.partial(
            read_and_find_versions, self._work(batch), client, wanted.tobytes(), self._plan.keyspace, extents
        )
        rows = self.stages.run(len(extents), find, VERSION_ROW)
        return losers_of(
            (bytes(row["id"]), Version(row["time"], row["partition"], row["offset"])) for row in rows
        )

    async def read_seed(self, goal: Timestamp) -> Seeded:
        """Micro-batch 0 of a build that begins with another layout; no Spark is in it."""
        return self.seed.read(self._work(0), goal)

    async def read_table(self) -> core.SettledBatch:
        """Micro-batch 0 of a build that begins with a table."""
        return run_table(self.table, self._work(0), self._client(UNCOUNTED, 0))

    def settle(self, documents: int) -> None:
        """Wait for the rate limit."""
        self._engine.gate.settle(documents)

    async def send(self, batch: int, ends: Sequence[BatchEnd]) -> None:
        """Send ends, and wait until all are acknowledged.

        Raises:
            DeliveryError: one is not.
        """
        topics = Topics(self._settings.cluster)
        errors: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(error)

        try:
            for message in ends:
                topic = topics.backfill(message.index, self._plan.build)
                self._producer.produce(topic, encode(message), partition=message.slice, on_delivery=delivered)
            left = self._producer.flush(FLUSH_LIMIT_S)
        finally:
            self._producer.hand_over()  # a table, micro-batches and the last ends come from different threads
        if left or errors:
            reason = errors[0] if errors else f"no answer within {FLUSH_LIMIT_S:.0f} s"
            raise DeliveryError(f"the ends of micro-batch {batch} were not delivered: {reason}")

    def _work(self, batch: int) -> BatchWork:
        definitions = ((index.id, msgspec.json.encode(index.definition)) for index in self._plan.indexes)
        return BatchWork(
            build=self._plan.build,
            run=self._plan.run,
            batch=batch,
            targets=tuple(self._plan.targets),
            definitions=tuple(definitions),
            routes=self._routes,
            heard=batch > 0,
            settings=self._settings.model_copy(update={"security": SecuritySettings()}),
            splits={index.id: index.splits for index in self._plan.indexes if index.splits},
            summed=self._plan.summed,
        )

    def _client(self, documents: int, extents: int) -> TaskClient:
        """What the tasks of the micro-batch that begins say their reading to; how much that is at most."""
        self._engine.gate.begin(documents, extents)
        return self._engine.client
