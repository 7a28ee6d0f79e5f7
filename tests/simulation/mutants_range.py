"""Planted faults in builds of RANGE indexes, and in reading them in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from coordinator.builds.sampling import SplitSampling
from coordinator.core.instructions import Instruction
from coordinator.kafka import admin as kafka_work
from indexer.scan.gather import gather
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.wire.messages import BuildSampled
from tests.simulation import kafka
from tests.simulation.chance import ALTERED
from tests.simulation.mutants import mutant
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_build_sampling, test_kafka_work


@mutant("ranges", "a build begins without the splits that were found", pipeline=True)
def forget_the_splits(patches: Patches) -> None:
    patches.put(SplitSampling, "splits", lambda self, record, index: ())


@mutant("ranges", "nobody looks after the driver of a sample", faults=("driver-crash",))
def leave_samples_alone(patches: Patches) -> None:
    patches.put(SplitSampling, "exited", lambda self, event: [])


@mutant("ranges", "slices are read in the wrong order")
def read_the_last_first(patches: Patches) -> None:
    def in_order(target: Any, reverse: bool) -> list[int]:
        numbers: list[int] = _in_order(target, not reverse)
        return numbers

    _in_order = patches.put(gather, "_in_order", in_order)


@mutant(
    "ranges, altered",
    "a build begins with splits that were found for another definition of its index",
    faults=(ALTERED,),
)
def begin_with_other_splits(patches: Patches) -> None:
    def splits(self: SplitSampling, record: BuildRecord, index: IndexRecord) -> tuple[bytes, ...]:
        found = self._registry.run(record.id).splits.get(index.id)
        return found[1] if found is not None else _splits(self, record, index)

    _splits: Callable[..., tuple[bytes, ...]] = patches.put(SplitSampling, "splits", splits)


@unit_mutant(
    "ranges, altered",
    "splits are taken whatever they were found for",
    "their driver is stopped at once there, and hardly ever comes to tell of them",
    test_build_sampling.test_a_sample_for_another_definition_is_begun_anew,
    order="reports, ends",
)
def take_any_sample(patches: Patches) -> None:
    def found(self: SplitSampling, message: BuildSampled) -> list[Instruction]:
        record = self._registry.find(message.build, "QUEUED")
        indexes = self._registry.indexes(record) if record is not None else []
        now = {index.id: index.definition.wanted_splits for index in indexes}
        return _found(self, replace(message, wanted=now))

    _found: Callable[..., list[Instruction]] = patches.put(SplitSampling, "found", found)


@mutant(
    "queues",
    "queues that are there keep the partitions that they had before their index was altered",
    faults=(ALTERED,),
)
def never_grow(patches: Patches) -> None:
    patches.put(kafka.Kafka, "grow", lambda self, topic, partitions: None)


@unit_mutant(
    "queues, of Kafka itself",
    "a topic that is there keeps the partitions that it has",
    "Kafka's topics are made here; `never_grow` has those",
    test_kafka_work.test_queues_that_are_there_get_the_partitions_that_they_lack,
)
def never_grow_topics(patches: Patches) -> None:
    patches.put(kafka_work, "grow_topic", lambda *_: False)
