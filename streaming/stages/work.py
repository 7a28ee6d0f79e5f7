"""What tasks are told, and how they send. All of it runs where tasks do.

Compiled indexes and the producer are kept by their process from task to task (`streaming.stages.tasks`
has what sending must hold to).
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException

from keytide.catalog.partitioning import Partitioning
from keytide.definition.index import IndexDefinition
from keytide.errors import RetryableError
from keytide.kafka.clients import Producer
from keytide.kafka.topics import producer
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from keytide.wire.messages import Message, encode
from keytide.wire.parts import split
from projector.core.projection import KeyspacePlan
from streaming.core.extent_projection import SPILL_BYTES
from streaming.core.micro_batches import SliceTarget, target_numbers
from streaming.core.runs import ChunkHeader
from streaming.core.versions import OffsetColumn

_FLUSH_LIMIT_S = 600.0


class DeliveryError(RetryableError):
    """A message did not get into its backfill queue; the task fails and is run again."""

    problem_type = "delivery-failed"


@dataclass(frozen=True)
class BatchWork:
    """What the tasks of one micro-batch must know; pickled with them.

    Attributes:
        targets: what the build fills (`streaming.core.micro_batches`).
        definitions: index id -> its definition as JSON.
        routes: route of each shuffle partition (`streaming.core.micro_batches.exact_routes`).
        heard: whether targets hear of documents (R21): in every micro-batch after the first.
        settings: without secrets that only other parts need.
        losers: partition -> offsets of versions that another partition has a newer version of.
        splits: index id -> its splits, of those by RANGE.
        summed: whether what is projected is summed up, to be compared with what slices store.
    """

    build: str
    run: str
    batch: int
    targets: tuple[SliceTarget, ...]
    definitions: tuple[tuple[str, bytes], ...]
    routes: tuple[int, ...]
    heard: bool
    settings: Settings = field(repr=False)
    losers: Mapping[int, OffsetColumn] = field(default_factory=dict, repr=False)
    spill_bytes: int = SPILL_BYTES
    splits: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict, repr=False)
    summed: bool = False

    def route(self, target: int) -> int:
        return self.routes[target % len(self.routes)]

    def header(self, target: int, attempt: str) -> ChunkHeader:
        index, number = self.targets[target]
        return ChunkHeader(self.build, index, number, self.run, self.batch, attempt)


class ChunkSender:
    """Sends the messages of one task attempt to the backfill queues."""

    def __init__(self, work: BatchWork) -> None:
        self.attempt = uuid.uuid4().hex[:20]
        self._work = work
        self._producer = _producer_for(work.settings.model_dump_json())
        self._topics = {
            index: Topics(work.settings.cluster).backfill(index, work.build) for index, _ in work.targets
        }
        self._part_bytes = work.settings.topics.part_bytes
        self._messages = 0
        self._failed: list[KafkaError] = []

    def send(self, target: int, message: Message) -> None:
        index, number = self._work.targets[target]
        self._messages += 1
        for data in split(encode(message), self._part_bytes, self.attempt, self._messages):
            self._produce(self._topics[index], number, data)

    def _produce(self, topic: str, partition: int, data: bytes) -> None:
        deadline = time.monotonic() + _FLUSH_LIMIT_S
        while not self._failed:
            try:
                self._producer.produce(topic, data, partition=partition, on_delivery=self._delivered)
                self._producer.poll(0)
                return
            except KafkaException as error:  # the producer is beyond repair
                self._failed.append(error.args[0])
            except BufferError:  # the queue of librdkafka is full: Kafka is slower than we are
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    break
        self._fail()

    def finish(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            DeliveryError: something is not.
        """
        if self._producer.flush(_FLUSH_LIMIT_S) or self._failed:
            self._fail()

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def _fail(self) -> None:
        _producer_for.cache_clear()  # this one may be beyond repair: the next attempt gets a new one
        reason = self._failed[0] if self._failed else f"no answer within {_FLUSH_LIMIT_S:.0f} s"
        raise DeliveryError(f"a chunk of micro-batch {self._work.batch} was not delivered: {reason}")


@functools.lru_cache(maxsize=1)
def _producer_for(settings: str) -> Producer:
    """One producer for all tasks that a worker process runs, one after the other."""
    return producer(Settings.model_validate_json(settings))


@functools.lru_cache(maxsize=1)
def plan_of(definitions: tuple[tuple[str, bytes], ...]) -> KeyspacePlan:
    """The compiled indexes of a build, once per worker process."""
    return KeyspacePlan(
        (index, msgspec.json.decode(definition, type=IndexDefinition)) for index, definition in definitions
    )


def rules_of(work: BatchWork) -> dict[str, Partitioning]:
    """Index id -> how its entries fall to its slices."""
    indexes = plan_of(work.definitions).indexes
    return {id_: Partitioning.of(one.definition, work.splits.get(id_, ())) for id_, one in indexes.items()}


def targets_by_index(work: BatchWork) -> dict[str, list[int]]:
    """Index id -> the target number of each of its slices, -1 for those that the build does not fill."""
    indexes = plan_of(work.definitions).indexes
    return target_numbers(work.targets, {id_: index.definition.slices for id_, index in indexes.items()})
