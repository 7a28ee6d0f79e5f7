"""The Spark driver of a build: micro-batches, winning and losing attempts, zombies, restarts, reports.

What it has done, what comes next and when it has passed is the real `streaming.drivers.progress.Status`, on a
journal that outlives it, and the real `streaming.core.micro_batches`, `pieces` and `footing`. Made here are
Spark (its plan, its tasks and their attempts), and the order of a micro-batch's steps
(`streaming.backfill.batches`), between which the real one waits for Spark and Kafka, and this one for its
next turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coordinator.core.instructions import DriverTask
from keytide.catalog.records import BuildRecord
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import BuildSampled, encode
from streaming.backfill.table_origin import begins_at
from streaming.core import log_identity as footing
from streaming.core import micro_batches as core
from streaming.core import sizing as pieces
from streaming.core.micro_batches import (
    EXIT_CHECKPOINT_LOST,
    EXIT_NEVER,
    EXIT_READ_LOST,
    SettledBatch,
    SliceTarget,
)
from streaming.core.sizing import SizedBatch, Sizing
from streaming.drivers.progress import DriverTotals, Status
from tests.simulation.kafka import Reader
from tests.simulation.mishaps import machine_of
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


@dataclass(slots=True)
class Checkpoint:
    """What survives a driver: what Spark has planned, and the driver's journal.

    Attributes:
        begin: where reading began.
        planned: what Spark has planned last, and may not have committed: offsets from, and to.
        runs: starts so far.
        zombies: what tasks of drivers that died may still send.
        journal: as it was kept last.
    """

    begin: Timestamp | None = None
    planned: tuple[dict[int, int], dict[int, int]] | None = None
    runs: int = 0
    zombies: list[Message] = field(default_factory=list)
    attempts: int = 0
    journal: bytes = b""

    def load(self) -> DriverTotals:
        return msgspec.json.decode(self.journal, type=DriverTotals) if self.journal else DriverTotals()

    def keep(self, journal: DriverTotals) -> None:
        self.journal = msgspec.json.encode(journal)


class Covered(NamedTuple):
    """The micro-batch under way, until its ends are sent.

    Attributes:
        piece: what it covers; None for a table's.
        winners, entries: of each slot.
        chunks: those of its winners.
    """

    piece: SizedBatch | None
    begin: Timestamp
    end: Timestamp
    winners: list[dict[str, int]]
    entries: list[int]
    chunks: set[Message]

    @property
    def number(self) -> int:
        return self.piece.number if self.piece is not None else 0

    @property
    def documents(self) -> int:
        return pieces.documents(self.begin.offsets(), self.end.offsets())


class SimDriver:
    """One start of the driver of one build, by the coordinator of a term."""

    task: DriverTask = "backfill"

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
        self._covered: Covered | None = None
        self._settled: Covered | None = None
        self._targets: list[SliceTarget] = []
        self._looked: LogHistory | None = None
        self.status = 0
        self._passed = self._begun = False
        self._lived = 0
        self._progress = Status(checkpoint)
        self._sizing = Sizing(LARGEST, 1, 1.0, self._progress.journal.size)
        record = self._reader.catalog.build(build)
        self._origin = record.origin if record is not None else None
        if record is not None:
            indexes = [(one, self._reader.catalog.index(one)) for one in record.indexes]
            self._targets = core.targets_of({one: record.slices_of(index) for one, index in indexes if index})
            self._take_up(record)

    def _take_up(self, record: BuildRecord) -> None:
        """As `streaming.backfill.driver` does: how far the build has come, by checkpoint and journal."""
        checkpoint, journal, source = self.checkpoint, self._progress.journal, self.world.kafka.source
        if core.forgotten(record, journal.first_read_at, checkpoint.begin is not None):
            self.status = EXIT_CHECKPOINT_LOST
            return
        if checkpoint.begin is None:
            offsets = self._origin.offsets if self._origin else dict.fromkeys(source.ends(), 0)
            checkpoint.begin = Timestamp.of(offsets, source.topic_id)
        begin = checkpoint.begin
        position = Timestamp.of(journal.newest.reached, begin.topic_id) if journal.newest else begin
        self._progress.resume(journal.finished, position, begin)
        self._progress.begin_reading(self.now)

    @property
    def now(self) -> int:
        """By the clock of its coordinator's machine."""
        return self.world.mishaps.now(machine_of(self.term))

    def step(self) -> bool:
        """Send some messages; plan the next micro-batch when there is none. False when it has ended."""
        world = self.world
        self._reader.read(world.chance.below(6) if world.storm else 1 << 30)
        record = self._reader.catalog.build(self.build)
        keyspace = self._reader.catalog.keyspace(KEYSPACE)
        if record is None or keyspace is None or core.unwanted(record, keyspace):
            return False
        if self._passed or record.state == "QUEUED":
            self._report()
            return True
        for _ in range(1 + world.chance.below(5) if world.storm else 1 << 30):
            if self.status:
                return False
            if self._todo is None:
                if self._closes(record, keyspace.partitions):
                    if self._progress.finished < 0:
                        self._pass_over_nothing()
                        continue
                    self._passed = True
                    self._progress.enter("PASSED")
                    world.note("driver passed", self.build, self._progress.finished + 1)
                    break
                if not self._plan():
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
        self._report()
        return True

    @property
    def _table_left(self) -> bool:
        return self._origin is not None and not self._progress.journal.table_read

    def _closes(self, record: BuildRecord, partitions: int) -> bool:
        """Whether there is nothing (more) to do."""
        if self._table_left:
            return False
        if self._progress.journal.nothing_to_read is not None:
            return True
        return self._progress.try_close(lambda position: core.passed(position, record, partitions))

    def _pass_over_nothing(self) -> None:
        """There was nothing to read: slices get an empty micro-batch."""
        progress = self._progress
        offsets = progress.journal.nothing_to_read or progress.position.offsets()
        end = Timestamp.of(offsets, progress.position.topic_id)
        progress.finish_empty(end)
        self._todo = self._batch_ends(Covered(None, end, end, [{} for _ in self._targets], [], set()))

    def _finished(self) -> None:
        """The ends of a micro-batch are in the queues."""
        covered, self._settled = self._settled, None
        if covered is None:
            return
        outcome = SettledBatch(covered.winners, covered.entries, covered.documents, b"", {}, {})
        if covered.piece is None:
            self._progress.journal.table_read = True
        self._progress.finish_batch(covered.number, covered.end, self._targets, outcome)
        self._progress.end_batch()
        self._lived += covered.documents
        if covered.piece is not None:
            self._sizing.finished(covered.documents, covered.documents / SECOND)
            self._progress.note_size(self._sizing.size)

    def _struck(self, piece: SizedBatch) -> bool:
        """Whether it dies in a micro-batch: faults come at a pace."""
        if not (self.world.healed and self.world.plan.paced):
            return False
        if self._lived + pieces.documents(piece.start, piece.end) <= LIVES:
            return False
        self.world.seen["driver struck"] += 1
        self.status = -9
        return True

    def crash(self) -> None:
        """Of what was not sent some lands later; the next driver does the batch again. No real driver sends
        an end before its chunks, but slices do not rely on it (R22): one that lacks some may come."""
        chance, covered, left = self.world.chance, self._covered, self._todo or []
        landing = [one for one in left[:6] if chance.happens(0.6)]
        self.checkpoint.zombies += landing
        if covered is not None:
            missing = {one[:2] for one in left if one in covered.chunks and one not in landing}
            ends = [end for end in self._batch_ends(covered) if end[:2] in missing]
            self.checkpoint.zombies += [end for end in ends if chance.happens(0.6)]
            if covered.piece is not None:
                self._progress.settle_batch(self._progress.journal.read, covered.piece)
        self.world.note("driver died", self.build, self._run)

    def _append(self, topic: str, number: int, data: bytes) -> None:
        queue = self.world.kafka.queue(topic, number)
        if queue is not None:
            queue.append(data, self.world.clock.now)

    def _report(self) -> None:
        self.world.report(self._progress.report(self.build, self._run, self.now))

    # --- micro-batches ------------------------------------------------------------------------------------

    def _plan(self) -> bool:
        """Begin the next micro-batch: Spark fixes offsets before they are first read, and the driver cuts
        them. What it reads of them is read now."""
        source, journal = self.world.kafka.source, self._progress.journal
        begun = self._looked is None
        self._looked = looked = self._looked or source.history()
        if begun and footing.lost(journal.read, looked):
            self._end_lost()
            return False
        if self._origin is not None and self._table_left:
            if footing.lost(begins_at(self._origin), looked):
                self.status = EXIT_NEVER
                return False
            rows = self.world.tables.rows(self._origin)
            end = begins_at(self._origin)
            self._read(None, end, end, [rows[share::TASKS] for share in range(TASKS)])
            return True
        piece = self._next_batch()
        if piece is None or self._struck(piece):
            return False
        begin, end = (Timestamp.of(offsets, source.topic_id) for offsets in (piece.start, piece.end))
        if begun and footing.cut_short(end, looked):
            self._end_lost()
            return False
        logs = source.logs
        versions = [logs[p].read(piece.start[p], min(piece.end[p], logs[p].end)) for p in range(PARTITIONS)]
        self._read(piece, begin, end, versions)
        return True

    def _next_batch(self) -> SizedBatch | None:
        """Of what Spark has planned, or plans now; None when there is nothing to read."""
        world, checkpoint, status = self.world, self.checkpoint, self._progress
        size = LARGEST
        if world.plan.paced and world.healed:
            size = self._sizing.size
        piece = status.next_batch(*checkpoint.planned, size) if checkpoint.planned else None
        if piece is None:
            ends, begin = world.kafka.source.ends(), status.position.offsets()
            if ends == begin:
                return None
            most = 6 if world.storm else LARGEST
            if not (world.plan.paced and world.healed):
                ends = {p: min(ends[p], begin[p] + 1 + world.chance.below(most)) for p in range(PARTITIONS)}
            checkpoint.planned = (begin, ends)
            piece = status.next_batch(begin, ends, size)
        if piece is not None and not self._begun:
            self._begun = True
            status.note_size(self._sizing.struck())
        return piece

    def _read(
        self, piece: SizedBatch | None, begin: Timestamp, end: Timestamp, versions: list[list[Version]]
    ) -> None:
        """What tasks send of a micro-batch, attempts that lose included."""
        world, chance = self.world, self.world.chance
        self._progress.begin_batch()
        places = {slot: place for place, slot in enumerate(self._targets)}
        winners: list[dict[str, int]] = [{} for _ in self._targets]
        entries = [0] * len(self._targets)
        streams: list[list[Message]] = []
        chunks: set[Message] = set()
        number = piece.number if piece is not None else 0
        for task in range(TASKS):
            attempt, messages = self._task(number, versions[task::TASKS])
            for topic, n, _ in messages:
                won = winners[places[SliceTarget(topic.split(".")[2], n)]]
                won[attempt] = won.get(attempt, 0) + 1
            streams.append(messages)
            chunks.update(messages)
            if world.fault("speculative", 0.4):
                _, losing = self._task(number, versions[task::TASKS])
                kept = [one for one in losing if chance.happens(0.6)]
                if chance.happens(0.5):
                    self.checkpoint.zombies += kept
                else:
                    streams.append(kept)
        self._todo = self._interleave(streams)
        self._covered = Covered(piece, begin, end, winners, entries, chunks)

    def _settle(self, covered: Covered) -> None:
        """All is sent but the ends: is what was read of one log, and of the one that was read before?"""
        status, now = self._progress, self.world.kafka.source.history()
        before, self._looked, self._covered = self._looked, now, None
        read = status.journal.read
        if footing.lost(read, now) or footing.cut_short(covered.end, now):
            self._end_lost()
        elif before is None or footing.mixed(before, now, covered.begin, covered.end):
            self.world.seen["batch again"] += 1
            self._todo = None
            status.end_batch()
        else:
            end = footing.placed(covered.end, read, now)
            status.settle_batch(end, covered.piece)
            self._settled = covered._replace(end=end)
            self._todo = self._batch_ends(self._settled)

    def _end_lost(self) -> None:
        """The process ends: the build must begin again."""
        self.world.seen["driver lost"] += 1
        self.status = EXIT_READ_LOST

    def _task(self, batch: int, shares: list[list[Version]]) -> tuple[str, list[Message]]:
        """One attempt: the newest version per document of the task's share (its partitions), by slice."""
        self.checkpoint.attempts += 1
        attempt = f"a{self.checkpoint.attempts}"
        heard = [
            sorted({version.id: version for version in share}.values(), key=lambda version: version.offset)
            for share in shares
        ]
        messages: list[Message] = []
        for index, number in self._targets:
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

    def _batch_ends(self, covered: Covered) -> list[Message]:
        ends = core.batch_ends(
            self.build, self._run, covered.number, self._targets, covered.begin, covered.end, covered.winners
        )
        return [(TOPICS.backfill(one.index, self.build), one.slice, encode(one)) for one in ends]


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
