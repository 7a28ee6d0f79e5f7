"""The Spark driver of a build: winning and losing attempts, zombies, restarts, reports.

The order of its steps is the real one, of `streaming.backfill.course` and `streaming.backfill.batches`, on
the real `streaming.drivers.progress.Status` and `streaming.core`. Made here are Spark (its plan, its
tasks and their attempts) and Kafka: what takes its time there is done in turns, so that
everything else goes on in between.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coordinator.core.instructions import DriverTask
from keytide.catalog.records import BuildRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import CallerError, RetryableError
from keytide.kafka.fenced_writer import ShutOutError
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Timestamp
from keytide.wire.entry_sums import EntrySums
from keytide.wire.messages import BatchEnd, BuildSampled, encode
from streaming.backfill.batches import Batches, BuildPlan, Seeded
from streaming.backfill.course import BuildCourse, take_up
from streaming.core import micro_batches as core
from streaming.core.comparing import CopySums
from streaming.core.log_identity import ReadLostError
from streaming.core.micro_batches import SettledBatch, SliceTarget
from streaming.core.sizing import SizedBatch, Sizing
from streaming.core.versions import OffsetColumn
from streaming.drivers.failures import StoppedError, diagnose, source_changed
from streaming.drivers.journal import FencedJournal, Journal, JournalLostError, JournalRecord
from streaming.drivers.lifecycle import exit_status
from streaming.drivers.outage import Outage
from streaming.drivers.progress import Status
from streaming.spark.checkpoint import Range
from tests.simulation import seeding
from tests.simulation.kafka import Reader
from tests.simulation.mishaps import machine_of
from tests.simulation.packing import put_chunk, removal_chunk
from tests.simulation.projectors import TOPICS
from tests.simulation.source import KEYSPACE, PARTITIONS, Layout, Version, layout_of, splits_of

if TYPE_CHECKING:
    from tests.simulation.world import World

Message = tuple[str, int, bytes]
"""(topic, slice, record)."""
TASKS = 2
LIVES = 24
"""Documents that a driver gets done before it is struck, in the heal of a plan that is `paced`."""
LARGEST, SECOND = 60, 8
"""Documents of a micro-batch at most, and in the time that one should take."""
ACTIVATION_S = 0.1
AWAY_S = 1.0


@dataclass(slots=True)
class Remains:
    """What survives the drivers of a build.

    Attributes:
        runs: starts so far.
        zombies: what tasks of drivers that died may still send.
        journals: in Kafka, as they were kept last.
        holder: the start that has fenced last, the only one that may write.
    """

    runs: int = 0
    zombies: list[Message] = field(default_factory=list)
    attempts: int = 0
    journals: dict[str, bytes] = field(default_factory=dict)
    holder: int = 0


class SimJournalTopic:
    """The topic of journals, as one start of a driver has it (`streaming.drivers.journal.JournalTopic`)."""

    def __init__(self, remains: Remains, run: int) -> None:
        self._remains = remains
        self._run = run
        self.shut_out = False

    def fence(self) -> None:
        self._remains.holder = self._run
        self.shut_out = False

    def write(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        if self._remains.holder != self._run:
            self.shut_out = True
            raise ShutOutError("another driver has fenced")
        kept = {key: data for key, data in records if data is not None}
        self._remains.journals.update(kept)
        return 1

    def read(self, end: int) -> dict[str, bytes]:
        return dict(self._remains.journals)

    def hand_over(self) -> None:
        """Any thread may."""


class NothingEarlier:
    """No release before has left a journal."""

    def load(self) -> None:
        return None

    def remove(self) -> None:
        """There is none."""


class Sending(NamedTuple):
    """The micro-batch whose chunks are being sent.

    Attributes:
        winners: of each target.
        chunks: those of its winners.
    """

    number: int
    covered: Range
    table: bool
    winners: list[dict[str, int]]
    chunks: set[Message]


class Turn:
    """Awaited: everything else goes on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class StruckError(BaseException):
    """The driver dies here, as by kill -9."""


class SparkError(Exception):
    """What Spark says of a query that failed."""


FAILURES = (CallerError, RetryableError, ReadLostError, JournalLostError, SparkError)
"""In which a driver may end; anything else is a bug."""


class SimDriver:
    """One start of the driver of one build, by the coordinator of a term. Its process, to its course
    (`DriverShell`); Spark, to its micro-batches (`BatchTasks`); and Kafka (`SourceLog`)."""

    task: DriverTask = "backfill"
    build: BuildRecord

    def __init__(self, world: World, build: str, remains: Remains, term: int) -> None:
        self.world = world
        self.term = term
        self.name = build
        self.remains = remains
        remains.runs += 1
        self._attempt = term, remains.runs
        self._run = str(remains.runs)
        self._reader = Reader(world.kafka)
        self._reader.read()
        self._status = Status()
        self._journal = FencedJournal(
            SimJournalTopic(remains, remains.runs),
            *(build, self._attempt, NothingEarlier(), lambda _: [], AWAY_S),
            wait=lambda _: False,
            now=self.seconds,
        )
        self.status = core.EXIT_PASSED
        self._layouts: dict[str, Layout] = {}
        self._left: list[Message] = []
        self._sending: Sending | None = None
        self._lived = 0
        self._read = 0
        self._readings: set[int] = set()
        self._waits = self._idle = self._over = False
        self._main: Coroutine[Any, Any, None] | None = None
        self._query: Coroutine[Any, Any, None] | None = None
        self._queried = False
        self._error: Exception | None = None

    @property
    def now(self) -> int:
        """By the clock of its coordinator's machine."""
        return self.world.mishaps.now(machine_of(self.term))

    def step(self) -> bool:
        """Send some messages; plan the next micro-batch when there is none. False when it has ended."""
        world, chance = self.world, self.world.chance
        self._reader.read(chance.below(6) if world.storm else 1 << 30)
        self._idle = False
        try:
            self._go_on()
        except StoppedError:
            self.status, self._over = core.EXIT_STOPPED, True
        except StruckError:
            self.status = -9
            return False
        except FAILURES as error:
            failure = diagnose(error)
            self.status, self._over = exit_status(error, failure), True
            self._status.enter("FAILED" if failure.never else "RUNNING", failure.message)
            world.seen["driver lost"] += self.status == core.EXIT_READ_LOST
        self.tell()
        return not self._over

    def _go_on(self) -> None:
        """Turns of the main thread, which follows and decides, and of Spark's."""
        world, chance = self.world, self.world.chance
        if self._waits:
            self._follow_main()
        for _ in range(1 + chance.below(5) if world.storm else 1 << 30):
            if self._over:
                break
            if self._left and self.remains.zombies and chance.happens(0.3):
                self._append(*self.remains.zombies.pop(0))
            elif self._queried and not self._idle:
                self._follow_query()
            else:
                self._follow_main()
                if self._waits and (self._idle or not self._queried):
                    break

    def _follow_main(self) -> None:
        self._waits = False
        self._main = self._main or self._work()
        try:
            self._main.send(None)
        except StopIteration:
            self._over = True
            self.world.note("driver passed", self.name, self._status.finished + 1)

    def _follow_query(self) -> None:
        self._query = self._query or self._stream()
        try:
            self._query.send(None)
        except (StoppedError, *FAILURES) as error:
            self._queried, self._error = False, error

    async def _work(self) -> None:
        """As `streaming.backfill.driver.BackfillDriver` does."""
        self.follow()
        catalog, source = self._reader.catalog, self.world.kafka.source
        keyspace = catalog.keyspace(KEYSPACE)
        assert keyspace is not None
        self._expected = keyspace.topic_id, PARTITIONS
        self.check()
        self._status.take_over(self._journal)
        indexes = [(name, catalog.index(name)) for name in self.build.indexes]
        slices = {name: self.build.slices_of(index) for name, index in indexes if index is not None}
        self._layouts = {name: layout_of(index) for name, index in indexes if index is not None}
        if self._kept().begin is None and self.name not in self.world.read:
            self.world.begins[self.name] = dict(source.kept_from)
        take_up(self.build, keyspace, self._status, lambda: source.kept_from)
        self._plan = BuildPlan(self.name, self._run, KEYSPACE, keyspace.topic_id, (), slices)
        sizing = Sizing(LARGEST, 1, 1.0, self._status.journal.size)
        self._batches = Batches(self._plan, self._status, sizing, self, self, self.wait, self._pace)
        course = BuildCourse(
            self._plan, PARTITIONS, self._status, self._batches, self, Outage(AWAY_S), ACTIVATION_S
        )
        await course.run()

    def _kept(self) -> Journal:
        """What Kafka has of its journal."""
        return msgspec.json.decode(self.remains.journals[self.name], type=JournalRecord).journal

    def crash(self) -> None:
        """Of what was not sent some lands later; the next driver does the batch again. No real driver sends
        an end before its chunks, but slices do not rely on it (R22): one that lacks some may come."""
        chance, sending, left = self.world.chance, self._sending, self._left
        landing = [one for one in left[:6] if chance.happens(0.6)]
        self.remains.zombies += landing
        if sending is not None and self._may_end(sending):
            missing = {one[:2] for one in left if one in sending.chunks and one not in landing}
            ends = [end for end in self._ends(sending) if end[:2] in missing]
            self.remains.zombies += [end for end in ends if chance.happens(0.6)]
        self.world.note("driver died", self.name, self._run)

    def _may_end(self, sending: Sending) -> bool:
        """Whether it could have sent ends: not before its journal has the micro-batch."""
        if sending.table:
            return self.remains.holder == self._attempt[1]
        start, end = (at.offsets() for at in sending.covered)
        try:
            self._status.settle_batch(self._status.journal.read, SizedBatch(sending.number, start, end))
        except (StoppedError, RetryableError):
            return False
        return True

    # --- its process --------------------------------------------------------------------------------------

    def follow(self) -> None:
        catalog = self._reader.catalog
        record = catalog.build(self.name)
        if record is None or catalog.term > self.term or core.unwanted(record, catalog.keyspace(KEYSPACE)):
            raise StoppedError
        self.build = record

    async def wait(self, seconds: float) -> None:
        self._waits = True
        await Turn()

    def seconds(self) -> float:
        return self.world.clock.now / 1000

    def wall(self) -> int:
        return self.now

    def _pace(self) -> float:
        """Seconds, as if documents took some time."""
        return self._read / SECOND

    def tell(self) -> None:
        self.world.report(self._status.report(self.name, self._run, self.now, self._attempt))

    async def begin_reading(self, table: bool) -> None:
        await Turn()

    def limit(self, rate: int) -> None:
        """What tasks read takes no time here."""

    async def run_table(
        self, origin: TableOrigin, work: Callable[[], Coroutine[Any, Any, None]], follow: Callable[[], None]
    ) -> None:
        self._table = origin
        await self._beside(work(), follow)

    async def _beside(self, reading: Coroutine[Any, Any, None], follow: Callable[[], None]) -> None:
        """What another thread does, while this one follows."""
        while True:
            follow()
            try:
                reading.send(None)
            except StopIteration:
                return
            await Turn()

    async def run_seed(
        self, work: Callable[[], Coroutine[Any, Any, None]], follow: Callable[[], None]
    ) -> None:
        await self._beside(work(), follow)

    async def held_sums(self, projected: Sequence[EntrySums], batch: int) -> list[CopySums]:
        raise NotImplementedError("builds are not verified here")

    async def start_query(self) -> None:
        self._error, self._query, self._queried = None, None, True

    def ended(self) -> BaseException | None:
        return self._error

    def stop_query(self) -> None:
        self._queried = False

    async def _stream(self) -> None:
        """As a query runs: from where the build is, one plan after the other."""
        await self._batches.read_on(self._status.position, self._planned, Turn)

    def _planned(self, start: Timestamp) -> Range | None:
        planned = self._plan_from(start)
        self._idle = self._idle or planned is None
        return planned

    def _plan_from(self, start: Timestamp) -> Range | None:
        """What to read next, None when there is nothing."""
        world, chance = self.world, self.world.chance
        ends, begin = world.kafka.source.ends(), start.offsets()
        if any(ends[p] < begin[p] for p in ends):
            raise SparkError("PARTITION_OFFSET_CHANGED")
        if ends == begin:
            return None
        if not (world.plan.paced and world.healed):
            most = 6 if world.storm else LARGEST
            ends = {p: min(ends[p], begin[p] + 1 + chance.below(most)) for p in range(PARTITIONS)}
        return Range(start, Timestamp.of(ends, self._plan.topic_id))

    # --- Kafka --------------------------------------------------------------------------------------------

    def check(self) -> None:
        error = source_changed(KEYSPACE, self._expected, (self.world.kafka.source.topic_id, PARTITIONS))
        if error is not None:
            raise error

    def history(self, read: Timestamp) -> LogHistory:
        return self.world.kafka.source.history()

    async def send(self, batch: int, ends: Sequence[BatchEnd]) -> None:
        self._left = [(TOPICS.backfill(one.index, self.name), one.slice, encode(one)) for one in ends]
        await self._send_all()

    async def _send_all(self) -> None:
        while self._left:
            await Turn()
            self._append(*self._left.pop(0))

    def _append(self, topic: str, number: int, data: bytes) -> None:
        queue = self.world.kafka.queue(topic, number)
        if queue is not None:
            queue.append(data, self.world.clock.now)

    def _ends(self, sending: Sending) -> list[Message]:
        plan, (start, end), number = self._plan, sending.covered, sending.number
        ends = core.batch_ends(plan.build, plan.run, number, plan.targets, start, end, sending.winners)
        return [(TOPICS.backfill(one.index, self.name), one.slice, encode(one)) for one in ends]

    # --- Spark's tasks ------------------------------------------------------------------------------------

    async def read(self, batch: int, covered: Range, losers: Mapping[int, OffsetColumn]) -> SettledBatch:
        documents = covered.start.documents_to(covered.end)
        if self.world.healed and self.world.plan.paced and self._lived + documents > LIVES:
            self.world.seen["driver struck"] += 1  # faults come at a pace
            raise StruckError
        self.world.seen["batch again"] += batch in self._readings
        self._readings.add(batch)
        logs = self.world.kafka.source.logs
        self._check_kept(covered)
        self.world.has_begun(self.name, covered)
        versions = [
            logs[p].read(covered.start.offset(p), min(covered.end.offset(p), logs[p].end))
            for p in range(PARTITIONS)
        ]
        return await self._run_tasks(batch, covered, False, versions, documents)

    def _check_kept(self, covered: Range) -> None:
        """As Kafka's clients do that are to miss nothing."""
        for partition, kept in self.world.kafka.source.kept_from.items():
            begin = covered.start.offset(partition)
            if begin < min(kept, covered.end.offset(partition)):
                self.world.seen["read too late"] += 1
                raise SparkError(
                    f"KAFKA_DATA_LOSS: {begin} of partition {partition} is gone, {kept} is first"
                )

    async def losers(self, batch: int, covered: Range, hashes: bytes) -> dict[int, OffsetColumn]:
        raise NotImplementedError("a document has one source partition here")

    async def read_table(self) -> SettledBatch:
        rows = self.world.tables.rows(self._table)
        begin = Timestamp.of(self._table.offsets, self._plan.topic_id)
        shares = [rows[share::TASKS] for share in range(TASKS)]
        return await self._run_tasks(0, Range(begin, begin), True, shares, len(rows))

    async def read_seed(self, goal: Timestamp) -> Seeded:
        async def turn() -> None:
            await Turn()

        (name,), remains, plan = self.build.indexes, self.remains, self._plan
        index = self._reader.catalog.index(name)
        assert index is not None
        remains.attempts += 1
        build = self.name, self._run, f"a{remains.attempts}"
        outcome, end, messages = await seeding.read(
            self.world, lambda: self._reader.catalog, build, index, self.build.seed, goal, turn
        )
        assert len(outcome.winners) == len(plan.targets)
        self._left = messages
        self._sending = Sending(0, Range(end, end), True, outcome.winners, set(messages))
        await self._send_all()
        await Turn()
        self._sending = None
        return Seeded(outcome, end)

    def settle(self, documents: int) -> None:
        self._lived += documents
        self._read += documents

    async def _run_tasks(
        self, batch: int, covered: Range, table: bool, versions: list[list[Version]], documents: int
    ) -> SettledBatch:
        """What tasks send of a micro-batch, attempts that lose included."""
        world, chance, targets = self.world, self.world.chance, self._plan.targets
        places = {target: place for place, target in enumerate(targets)}
        winners: list[dict[str, int]] = [{} for _ in targets]
        streams: list[list[Message]] = []
        chunks: set[Message] = set()
        for task in range(TASKS):
            attempt, messages = self._task(batch, versions[task::TASKS])
            for topic, n, _ in messages:
                won = winners[places[SliceTarget(topic.split(".")[2], n)]]
                won[attempt] = won.get(attempt, 0) + 1
            streams.append(messages)
            chunks.update(messages)
            if world.fault("speculative", 0.4):
                _, losing = self._task(batch, versions[task::TASKS])
                kept = [one for one in losing if chance.happens(0.6)]
                if chance.happens(0.5):
                    self.remains.zombies += kept
                else:
                    streams.append(kept)
        self._left = self._interleave(streams)
        self._sending = Sending(batch, covered, table, winners, chunks)
        await self._send_all()
        await Turn()
        self._sending = None
        return SettledBatch(winners, [0] * len(targets), documents, b"", {}, {})

    def _task(self, batch: int, shares: list[list[Version]]) -> tuple[str, list[Message]]:
        """One attempt: the newest version per document of the task's share (its partitions), by slice."""
        self.remains.attempts += 1
        attempt = f"a{self.remains.attempts}"
        heard = [
            sorted({version.id: version for version in share}.values(), key=lambda version: version.offset)
            for share in shares
        ]
        messages: list[Message] = []
        for index, number in self._plan.targets:
            topic, layout = TOPICS.backfill(index, self.name), self._layouts[index]
            sequence = 0
            for versions in filter(None, heard):
                name = (self._run, batch, attempt, sequence)
                removal = removal_chunk(versions, layout, self.name, index, number, name, heard=batch > 0)
                if removal is not None:
                    messages.append((topic, number, encode(removal)))
                    sequence += 1
            rows = sorted(
                (key + version.id, key, value, version)
                for versions in heard
                for version in versions
                for key, value in version.made_in(layout).puts[number]
            )
            entries = [(key, value, version) for _, key, value, version in rows]
            for first in range(0, len(entries), 2):
                name = (self._run, batch, attempt, sequence)
                puts = put_chunk(entries[first : first + 2], self.name, index, number, name)
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


class SimSampler:
    """The driver of a build's sample: it reports the splits of the indexes as they were when it began, and
    ends."""

    task: DriverTask = "sample"

    def __init__(self, world: World, build: str, term: int) -> None:
        self.world = world
        self.build = build
        self.term = term
        self.status = 0
        self._reader = Reader(world.kafka)
        self._reader.read()
        record, catalog = self._reader.catalog.build(build), self._reader.catalog
        indexes = [catalog.index(one) for one in record.indexes] if record is not None else []
        self._sampled = [one for one in indexes if one is not None and one.definition.samples_splits]

    def step(self) -> bool:
        """Report, at the first or a later step; False when it has ended."""
        world = self.world
        if world.storm and world.chance.happens(0.4):
            return True
        self._reader.read()
        record = self._reader.catalog.build(self.build)
        if record is None or record.state != "QUEUED":
            return False
        found = {one.id: list(splits_of(one.definition)) for one in self._sampled}
        wanted = {one.id: one.definition.wanted_splits for one in self._sampled}
        entries = dict.fromkeys(found, 9)
        world.report(BuildSampled(self.build, "s", found, 9, entries, world.clock.now, wanted))
        world.seen["sample"] += 1
        return False

    def crash(self) -> None:
        """It leaves nothing."""
        self.world.note("driver of a sample died", self.build)
