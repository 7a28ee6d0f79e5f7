"""Builds of RANGE indexes whose splits are not given: a sample of the source says them before a build begins.
Pure.

Theory of operation. Splits must be in an index's record with the version that makes projectors emit for it,
so they are found while the build is still QUEUED, when it is its turn and nothing else is in its way: a
driver of its own (`streaming.sample`) looks at the source and reports `BuildSampled`, once for all
indexes of the build. The splits are kept in memory until the build begins, a moment later, when that driver
is gone: drivers of one build follow one another. An index may be altered while its build waits: splits count
for the definition that they were found for, and a sample for one that is no more is begun anew. Nothing
depends on the sample but how even the slices are: what is lost (a driver that dies, a coordinator that
restarts) is sampled again. A driver that dies while something is in the way of all builds (`pausing`: Kafka
is away, a disk is full) is not started before that is gone, and does not count as one that died.

A source that has nothing for an index gives no splits to speak of: all of it will be in its last slice, which
a note says.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.builds.pausing import BuildPausing
from coordinator.builds.registry import BuildLimits, BuildRegistry
from coordinator.core import drivers
from coordinator.core.events import DriverExited
from coordinator.core.instructions import Instruction, Note, StartDriver, StopDriver
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.wire.messages import BuildSampled


class SplitSampling:
    """The step of QUEUED builds before they are prepared."""

    def __init__(self, registry: BuildRegistry, limits: BuildLimits, pausing: BuildPausing) -> None:
        self._registry = registry
        self._limits = limits
        self._pausing = pausing

    def wanted(self, record: BuildRecord) -> list[IndexRecord]:
        """The indexes whose splits have to be found still. (Slices that are rebuilt keep theirs.)"""
        if record.rebuild:
            return []
        indexes = self._registry.indexes(record)
        return [one for one in indexes if one.definition.samples_splits and not self.splits(record, one)]

    def begin(self, record: BuildRecord) -> list[Instruction]:
        """Order a sample."""
        run = self._registry.run(record.id)
        names = ", ".join(index.name for index in self.wanted(record))
        run.finding, run.exited_at, run.restarts = True, 0, 0
        run.asked = {index.id: index.definition.wanted_splits for index in self._registry.indexes(record)}
        run.waiting_for = f"the splits of {names}: a sample of {record.keyspace} is taken"
        self._registry.put(replace(record, phase="sampling"))
        text = f"build {record.id} takes a sample of {record.keyspace} for the splits of {names}"
        return [StartDriver(record.id, task="sample"), Note("info", "build-sampling", record.id, text)]

    def tick(self, record: BuildRecord, now: int) -> list[Instruction]:
        """Stop a driver whose sample is of no use any more; miss one that ended without a word."""
        run = self._registry.run(record.id)
        if run.finding and self._altered(record):
            self._over(record)
            return [StopDriver(record.id)]
        if run.finding and run.exited_at and now - run.exited_at > drivers.EXIT_GRACE_MS:
            return self._again(record, "it ended without a report", now)
        return []

    def found(self, message: BuildSampled) -> list[Instruction]:
        """The driver's word; it may come twice. A build that has begun keeps the splits it began with."""
        record = self._registry.find(message.build, "QUEUED")
        if record is None:
            return []
        out: list[Instruction] = []
        run = self._registry.run(record.id)
        for index in self.wanted(record):
            splits, wanted = tuple(message.splits.get(index.id, ())), index.definition.wanted_splits
            if message.wanted.get(index.id, run.asked.get(index.id)) != wanted:
                continue  # the index was altered since: they part it otherwise
            if len(splits) != index.definition.partitions - 1 or list(splits) != sorted(splits):
                continue  # of another driver than the one that was started: it has its own word to say
            run.splits[index.id] = wanted, splits
            if not message.entries.get(index.id):
                text = (
                    f"the sample of {record.keyspace} has nothing for {index.name}: no splits are known, and "
                    "all of it will be in its last slice; drop it and create it when there are documents, or "
                    "give splits (PARTITION BY RANGE(...) SPLIT AT (...))"
                )
                out.append(Note("warning", "range-without-sample", index.name, text))
        if not self.wanted(record) and (run.exited_at or not run.finding):
            self._over(record)
        return out

    def exited(self, event: DriverExited) -> list[Instruction]:
        """The driver has ended; nearly always after its report, which may arrive later all the same."""
        record = self._registry.find(event.build, "QUEUED")
        run = self._registry.run(event.build) if record is not None else None
        if record is None or run is None or not run.finding:
            return []
        if not self.wanted(record) or self._altered(record):
            self._over(record)
            return []
        if event.status == 0:
            run.exited_at = event.now
            return []
        if event.status == drivers.NO_ROOM:
            run.waiting_for = event.tail
            return [StartDriver(record.id, drivers.NO_ROOM_PAUSE_MS, "sample")]
        if event.status == drivers.NEVER_AGAIN:
            why = f"no sample can be taken for its splits: {event.tail or 'the driver gave no reason'}"
            return self._registry.fail(record, f"{why}; {_advice(record)}", event.now)
        return self._again(record, drivers.end_of(event), event.now)

    def splits(self, record: BuildRecord, index: IndexRecord) -> tuple[bytes, ...]:
        """The splits that an index of a build begins with; none while they are not found."""
        if not index.definition.samples_splits:
            return index.definition.encoded_splits
        wanted, splits = self._registry.run(record.id).splits.get(index.id, ("", ()))
        return splits if wanted == index.definition.wanted_splits else ()

    def _altered(self, record: BuildRecord) -> bool:
        """Whether an index was altered since the sample was ordered, so that it is to have other splits."""
        asked = self._registry.run(record.id).asked
        wanted = {index.id: index.definition.wanted_splits for index in self._registry.indexes(record)}
        return any(asked.get(id_, one) != one for id_, one in wanted.items())

    def _over(self, record: BuildRecord) -> None:
        """No driver samples any more: the build may begin, if all splits are known."""
        run = self._registry.run(record.id)
        run.finding, run.exited_at, run.restarts, run.waiting_for = False, 0, 0, ""
        self._registry.put(replace(record, phase=""))

    def _again(self, record: BuildRecord, story: str, now: int) -> list[Instruction]:
        run = self._registry.run(record.id)
        run.exited_at = 0
        if (trouble := self._pausing.trouble(record, now)) is not None:
            run.finding, run.waiting_for = False, trouble.text
            return []
        if run.restarts >= self._limits.restarts:
            why = f"the driver of its sample died {run.restarts + 1} times; at last: {story}"
            return self._registry.fail(record, f"{why}; {_advice(record)}", now)
        delay = drivers.back_off(self._limits.back_off_ms, run.restarts)
        run.restarts += 1
        text = f"the driver of the sample died and is started again in {delay / 1000:g} s: {story}"
        return [
            StartDriver(record.id, delay, "sample"),
            Note("warning", "driver-restarted", record.id, text),
        ]


def _advice(record: BuildRecord) -> str:
    """What to do when no sample can be taken."""
    log = f"its log is builds/{record.id}/driver.log in the coordinator's data folder"
    return f"{log}; mend what it says, and build again"
