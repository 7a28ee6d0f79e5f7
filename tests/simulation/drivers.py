"""The Spark driver of a build: micro-batches, winning and losing attempts, zombies, restarts, reports.
When it has passed is decided by `streaming.core.micro_batches.passed`, as in the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from coordinator.core.instructions import DriverTask
from keytide.catalog.catalog import BuildRecord
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import BatchEnd, BuildProgress, BuildSampled, encode
from streaming.backfill.table_origin import begins_at
from streaming.core import log_identity as footing
from streaming.core import sizing as pieces
from streaming.core.micro_batches import EXIT_NEVER, EXIT_READ_LOST, passed
from streaming.core.sizing import Sizing
from tests.simulation.kafka import Reader
from tests.simulation.packing import put_chunk, removal_chunk
from tests.simulation.projectors import TOPICS
from tests.simulation.source import KEYSPACE, PARTITIONS, SPLITS, Version

if TYPE_CHECKING:
    from tests.simulation.world import World

Message = tuple[str, int, bytes]
"""(topic, slice, record)."""
TASKS = 2
LIVES = 24
"""Documents that a driver gets done before it is struck, in the heal of a plan that is `paced`."""
LARGEST, SECOND = 60, 8
"""Documents of a micro-batch at most, and in the time that one should take."""
WANTED = frozenset({"QUEUED", "BACKFILL"})


@dataclass(slots=True)
class Checkpoint:
    """What survives a driver.

    Attributes:
        begin: where reading began.
        ends: planned ends of micro-batches.
        finished: how many of them are finished.
        first_read_at: when reading began, ms.
        runs: starts so far.
        zombies: what tasks of drivers that died may still send.
        read: the end of the last micro-batch whose ends may have been sent, with leader epochs.
        settled: ends of how many micro-batches may have been sent: they stay as they are.
        size: documents of the next driver's first micro-batch (`streaming.core.sizing`).
    """

    begin: Timestamp | None = None
    ends: list[dict[int, int]] = field(default_factory=list)
    finished: int = 0
    first_read_at: int = 0
    runs: int = 0
    zombies: list[Message] = field(default_factory=list)
    attempts: int = 0
    read: Timestamp = field(default_factory=Timestamp)
    settled: int = 0
    size: int = 0


class Covered(NamedTuple):
    """The micro-batch under way, until its ends are sent.

    Attributes:
        chunks: those of its winners.
    """

    batch: int
    begin: dict[int, int]
    end: dict[int, int]
    winners: dict[tuple[str, int], dict[str, int]]
    chunks: set[Message]


class SimDriver:
    """One start of the driver of one build, by the coordinator of a term."""

    def __init__(self, world: World, build: str, checkpoint: Checkpoint, term: int) -> None:
        self.world = world
        self.term = term
        self.build = build
        self.checkpoint = checkpoint
        checkpoint.runs += 1
        self._run = str(checkpoint.runs)
        self._reader = Reader(world.kafka)
        self._reader.read()
        self._todo: list[Message] | None = None
        self._passed = False
        self._covered: Covered | None = None
        self._looked: LogHistory | None = None
        self.status = 0
        self._sizing = Sizing(LARGEST, 1, 1.0, checkpoint.size)
        self._lived = 0
        record = self._reader.catalog.build(build)
        self._origin = record.origin if record is not None else None
        if checkpoint.begin is None:
            source = world.kafka.source
            offsets = self._origin.offsets if self._origin else dict.fromkeys(source.ends(), 0)
            checkpoint.begin = Timestamp.of(offsets, source.topic_id)
            checkpoint.first_read_at = world.clock.now

    @property
    def task(self) -> DriverTask:
        return "backfill"

    def step(self) -> bool:
        """Send some messages; plan the next micro-batch when there is none. False when it has ended."""
        world = self.world
        self._reader.read(world.chance.below(6) if world.storm else 1 << 30)
        record = self._reader.catalog.build(self.build)
        keyspace = self._reader.catalog.keyspace(KEYSPACE)
        if record is None or keyspace is None or record.state not in WANTED or record.ended:
            return False
        if self._passed or record.state == "QUEUED":
            self._report("PASSED" if self._passed else "STARTING")
            return True
        for _ in range(1 + world.chance.below(5) if world.storm else 1 << 30):
            if self.status:
                return False
            if self._todo is None:
                table_left = self._origin is not None and not self.checkpoint.finished
                if passed(self._position(), record, keyspace.partitions) and (
                    self.checkpoint.finished == len(self.checkpoint.ends) and not table_left
                ):
                    self._passed = True
                    world.note("driver passed", self.build, self.checkpoint.finished)
                    break
                if not self._plan(record):
                    break
            elif self.checkpoint.zombies and world.chance.happens(0.3):
                self._append(*self.checkpoint.zombies.pop(0))
            elif self._todo:
                self._append(*self._todo.pop(0))
            elif self._covered is not None:
                self._settle(self._covered)
            else:
                self._todo = None
                self._finished()
                if world.storm:
                    break
        self._report("PASSED" if self._passed else "RUNNING")
        return True

    def _finished(self) -> None:
        """A micro-batch is done."""
        checkpoint = self.checkpoint
        checkpoint.finished += 1
        done = pieces.documents(self._end(checkpoint.finished - 1), self._end(checkpoint.finished))
        self._lived += done
        self._sizing.finished(done, done / SECOND)
        checkpoint.size = self._sizing.size

    def _struck(self, begin: dict[int, int], end: dict[int, int]) -> bool:
        """Whether it dies in a micro-batch: faults come at a pace."""
        if not (self.world.healed and self.world.plan.paced):
            return False
        if self._lived + pieces.documents(begin, end) <= LIVES:
            return False
        self.world.seen["driver struck"] += 1
        self.status = -9
        if self.checkpoint.settled < len(self.checkpoint.ends):
            self.checkpoint.ends.pop()
        return True

    def crash(self) -> None:
        """Of what was not sent some lands later; the next driver does the batch again. No real driver sends
        an end before its chunks, but slices do not rely on it (R22): one that lacks some may come."""
        chance, covered, left = self.world.chance, self._covered, self._todo or []
        landing = [one for one in left[:6] if chance.happens(0.6)]
        self.checkpoint.zombies += landing
        if covered is not None:
            missing = {one[:2] for one in left if one in covered.chunks and one not in landing}
            ends = [end for end in self._batch_ends(*covered[:4]) if end[:2] in missing]
            self.checkpoint.zombies += [end for end in ends if chance.happens(0.6)]
            self.checkpoint.settled = covered.batch + 1
        self.world.note("driver died", self.build, self._run)

    def _append(self, topic: str, number: int, data: bytes) -> None:
        queue = self.world.kafka.queue(topic, number)
        if queue is not None:
            queue.append(data, self.world.clock.now)

    def _position(self) -> Timestamp:
        checkpoint = self.checkpoint
        topic_id = checkpoint.begin.topic_id if checkpoint.begin else ""
        return footing.known(Timestamp.of(self._end(checkpoint.finished), topic_id), checkpoint.read)

    def _end(self, batches: int) -> dict[int, int]:
        """Where the first `batches` micro-batches end."""
        begin = self.checkpoint.begin or Timestamp()
        return self.checkpoint.ends[batches - 1] if batches else begin.offsets()

    def _report(self, state: str) -> None:
        checkpoint = self.checkpoint
        self.world.report(
            BuildProgress(
                self.build,
                self._run,
                state,
                checkpoint.finished,
                self._position(),
                checkpoint.begin or Timestamp(),
                0,
                {},
                "",
                self.world.clock.now,
                checkpoint.first_read_at,
            )
        )

    # --- micro-batches ------------------------------------------------------------------------------------

    def _plan(self, record: BuildRecord) -> bool:
        """The offsets of a batch are fixed before it is first tried; what it reads of them is read now."""
        chance, checkpoint, source = self.world.chance, self.checkpoint, self.world.kafka.source
        number = checkpoint.finished
        begin = self._end(number)
        begun = self._looked is None
        self._looked = looked = self._looked or source.history()
        if begun and footing.lost(checkpoint.read, looked):
            self._end_lost()
            return False
        if self._origin is not None and number == len(checkpoint.ends) == 0:
            checkpoint.ends.append(begin)
        if number == len(checkpoint.ends):
            ends = source.ends()
            if ends == begin and number:
                return False  # nothing to read
            if self.world.plan.paced and self.world.healed:
                checkpoint.ends.append(pieces.cut(begin, ends, self._sizing.size))
                checkpoint.size = self._sizing.struck()
            else:
                most = 6 if self.world.storm else LARGEST
                checkpoint.ends.append(
                    {p: min(ends[p], begin[p] + 1 + chance.below(most)) for p in range(PARTITIONS)}
                )
        end = checkpoint.ends[number]
        if self._struck(begin, end):
            return False
        if begun and footing.cut_short(Timestamp.of(end, source.topic_id), looked):
            self._end_lost()
            return False
        versions = [source.logs[p].read(begin[p], min(end[p], source.logs[p].end)) for p in range(PARTITIONS)]
        if self._origin is not None and number == 0:
            rows = self.world.tables.rows(self._origin)
            if footing.lost(begins_at(self._origin), looked):
                self.status = EXIT_NEVER
                return False
            versions = [rows[share::TASKS] for share in range(TASKS)]
        indexes = [(one, self._reader.catalog.index(one)) for one in record.indexes]
        slots = [(one, n) for one, index in indexes if index is not None for n in record.slices_of(index)]
        winners: dict[tuple[str, int], dict[str, int]] = {slot: {} for slot in slots}
        streams: list[list[Message]] = []
        chunks: set[Message] = set()
        for task in range(TASKS):
            attempt, messages = self._task(slots, number, versions[task::TASKS])
            for topic, n, _ in messages:
                slot = (topic.split(".")[2], n)
                winners[slot][attempt] = winners[slot].get(attempt, 0) + 1
            streams.append(messages)
            chunks.update(messages)
            if self.world.fault("speculative", 0.4):
                _, losing = self._task(slots, number, versions[task::TASKS])
                kept = [one for one in losing if chance.happens(0.6)]
                if chance.happens(0.5):
                    checkpoint.zombies += kept
                else:
                    streams.append(kept)
        self._todo = self._interleave(streams)
        self._covered = Covered(number, begin, end, winners, chunks)
        return True

    def _settle(self, covered: Covered) -> None:
        """All is sent but the ends: is what was read of one log, and of the one that was read before?"""
        checkpoint, now = self.checkpoint, self.world.kafka.source.history()
        before, self._looked, self._covered = self._looked, now, None
        start, end = (Timestamp.of(offsets, self._position().topic_id) for offsets in covered[1:3])
        if footing.lost(checkpoint.read, now) or footing.cut_short(end, now):
            self._end_lost()
        elif before is None or footing.mixed(before, now, start, end):
            self.world.seen["batch again"] += 1
            self._todo = None
        else:
            checkpoint.read = footing.placed(end, checkpoint.read, now)
            checkpoint.settled = covered.batch + 1
            self._todo = self._batch_ends(*covered[:4])

    def _end_lost(self) -> None:
        """The process ends: the build must begin again."""
        self.world.seen["driver lost"] += 1
        self.status = EXIT_READ_LOST

    def _task(
        self, slots: list[tuple[str, int]], batch: int, shares: list[list[Version]]
    ) -> tuple[str, list[Message]]:
        """One attempt: the newest version per document of the task's share (its partitions), by slice."""
        self.checkpoint.attempts += 1
        attempt = f"a{self.checkpoint.attempts}"
        heard = [
            sorted({version.id: version for version in share}.values(), key=lambda version: version.offset)
            for share in shares
        ]
        messages: list[Message] = []
        for index, number in slots:
            topic = TOPICS.backfill(index, self.build)
            sequence = 0
            for versions in heard:
                if versions and (batch > 0 or any(version.made.skip[number] for version in versions)):
                    name = (self._run, batch, attempt, sequence)
                    removal = removal_chunk(versions, self.build, index, number, name, heard=batch > 0)
                    messages.append((topic, number, encode(removal)))
                    sequence += 1
            rows = sorted(
                (key + version.id, key, value, version)
                for versions in heard
                for version in versions
                for key, value in version.made.puts[number]
            )
            entries = [(key, value, version) for _, key, value, version in rows]
            for first in range(0, len(entries), 2):
                name = (self._run, batch, attempt, sequence)
                puts = put_chunk(entries[first : first + 2], self.build, index, number, name)
                messages.append((topic, number, encode(puts)))
                sequence += 1
        return attempt, messages

    def _interleave(self, streams: list[list[Message]]) -> list[Message]:
        """Attempts run side by side; each one's messages stay in order."""
        left = [list(stream) for stream in streams if stream]
        mixed = []
        while left:
            stream = self.world.chance.pick(left)
            mixed.append(stream.pop(0))
            left = [one for one in left if one]
        return mixed

    def _batch_ends(
        self,
        batch: int,
        begin: dict[int, int],
        end: dict[int, int],
        winners: dict[tuple[str, int], dict[str, int]],
    ) -> list[Message]:
        topic_id = self._position().topic_id
        start = Timestamp.of(begin, topic_id)
        stop = footing.known(Timestamp.of(end, topic_id), self.checkpoint.read)
        return [
            (
                TOPICS.backfill(index, self.build),
                number,
                encode(BatchEnd(self.build, index, number, self._run, batch, start, stop, won)),
            )
            for (index, number), won in winners.items()
        ]


class SimSampler:
    """The driver of a build's sample: it reports the splits, and ends."""

    task: DriverTask = "sample"

    def __init__(self, world: World, build: str, term: int) -> None:
        self.world = world
        self.build = build
        self.term = term
        self.status = 0

    def step(self) -> bool:
        """Report, at the first or a later step; False when it has ended."""
        world = self.world
        if world.storm and world.chance.happens(0.4):
            return True
        reader = Reader(world.kafka)
        reader.read()
        record = reader.catalog.build(self.build)
        if record is None or record.state != "QUEUED":
            return False
        indexes = [reader.catalog.index(one) for one in record.indexes]
        splits = {
            one.id: list(SPLITS) for one in indexes if one is not None and one.definition.samples_splits
        }
        world.report(BuildSampled(self.build, "s", splits, 9, dict.fromkeys(splits, 9), world.clock.now))
        world.seen["sample"] += 1
        return False

    def crash(self) -> None:
        """It leaves nothing."""
        self.world.note("driver of a sample died", self.build)
