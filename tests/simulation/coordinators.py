"""A coordinator process: the real leader, with the shell's two ways out: timestamps at once, everything else
in order through an executor. One that was deposed does not know it until its next write is fenced."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import (
    BoundWritten,
    BuildPrepared,
    ControlTail,
    DictionaryWritten,
    Event,
    HistoryExamined,
    Issued,
    IssueFailed,
    QueuesTrimmed,
    Reported,
    RollbackWritten,
    SourceSampled,
    Tick,
    TopicsDeleted,
    TopicSeen,
)
from coordinator.core.instructions import (
    Broadcast,
    ConfirmBound,
    ConfirmRollback,
    ConfirmTopic,
    DeleteTopics,
    DriverTask,
    ExamineHistory,
    Instruction,
    Note,
    PrepareBuild,
    QueueLimit,
    RemoveBuildFolder,
    SampleSource,
    SendEnds,
    StartDriver,
    StopDriver,
    TrimQueues,
    Write,
)
from coordinator.core.limits import CoreLimits
from coordinator.kafka.log_examination import holds, newest_on_log, standing
from coordinator.leader import Leader
from coordinator.queues.trim_guard import stays_from
from coordinator.statements.commands import CommandResult
from keytide.catalog.records import TermRecord
from keytide.model.protocol import CHANGES
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import HeartbeatChanges, Message, Published, StabilityTimestamp, encode
from tests.simulation.kafka import CLUSTER, Reader
from tests.simulation.mishaps import machine_of
from tests.simulation.source import PARTITIONS

if TYPE_CHECKING:
    from tests.simulation.world import World

LIMITS = CoreLimits(
    interval_ms=10,
    heartbeat_ms=60,
    pacing_limit_ms=200,
    node_timeout_ms=500,
    trim_interval_ms=120,
    newest_held=3,
    landmarks_held=16,
    reserve=6,
    examine_retry_ms=60,
    examine_pause_ms=60,
    queue_settling_ms=150,
    leave_after_ms=60_000,
)
BUILD_LIMITS = BuildLimits(
    restarts=50,
    back_off_ms=20,
    rebuild_wait_ms=60,
    settle_ms=80,
    driver_disk_bytes=1,
    rebuild_check_ms=40,
    rebuild_pause_ms=200,
    lost_grace_ms=400,
)
"""Waits, like all here, are scaled to a world whose storm is over after three seconds."""
SAMPLE_MS = 150
PREPARING_MS = 200
"""How long it may take to make the queues of a build, where indexes are altered meanwhile."""


def number_of(world: World, message: StabilityTimestamp, offset: int) -> int:
    """A timestamp's number (R3)."""
    return offset


class SimCoordinator:
    """One term of one process.

    Attributes:
        alive: it still believes that it leads.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        kafka = world.kafka
        reader = Reader(kafka)
        reader.read()
        self.term = reader.catalog.term + 1
        self.machine = machine_of(self.term)
        kafka.term = self.term
        world.mishaps.begin(self.machine)
        self._protocol = world.plan.leader_protocol(self.term)
        kafka.metadata.append(("term", TermRecord(self.term, f"c{self.term}", self.now, self._protocol)))
        reader.read()
        self.alive = True
        limits = replace(BUILD_LIMITS, seed_layouts=world.plan.seeds)
        self.leader = Leader(reader.catalog, CLUSTER, self.term, LIMITS, limits)
        self._heard = len(kafka.reports)
        self._inbox: deque[Event] = deque()
        self._executor: deque[Instruction] = deque()
        self._broadcasts: deque[StabilityTimestamp | Published] = deque()
        self._sampled_at = 0
        world.note("term", self.term)
        self._carry_out(self.leader.handle(self._recovered()))

    def _recovered(self) -> ControlTail:
        """What the shell reads of the control topic: nothing of a lower term behind a higher one."""
        stamps: list[tuple[int, StabilityTimestamp]] = []
        published: list[Published] = []
        term = 0
        for number, message in self.world.kafka.kept_control():
            if message.term < term:
                continue
            term = message.term
            if isinstance(message, Published):
                published.append(message)
            else:
                stamps.append((number_of(self.world, message, number), message))
        return ControlTail(tuple(stamps), tuple(published), self.now)

    @property
    def now(self) -> int:
        """By the clock of its machine."""
        return self.world.mishaps.now(self.machine)

    def _pass_by(self) -> None:
        """It may end here. (One that was deposed ends when its successor says so.)"""
        if self.term == self.world.kafka.term:
            self.world.mishaps.pass_by(self.machine)

    # --- its loops ----------------------------------------------------------------------------------------

    def step(self) -> None:
        """The control loop for a moment, and the executor."""
        world, chance = self.world, self.world.chance
        kafka, now = world.kafka, self.now
        self._send_broadcasts()
        most = 1 + chance.below(12) if world.storm else 1 << 30
        upto = min(len(kafka.reports), self._heard + most)
        begin, self._heard = self._heard, upto
        for message in kafka.reports[begin:upto]:
            self._take(message, now)
        while self._inbox:
            self._carry_out(self.leader.handle(self._inbox.popleft()))
        if now - self._sampled_at >= SAMPLE_MS:
            self._sampled_at = now
            self._carry_out(self.leader.handle(SourceSampled(kafka.source.facts(now), "", now)))
            world.looked(self)
        self._carry_out(self.leader.handle(Tick(now)))
        for _ in range(1 + chance.below(4) if world.storm else 1 << 30):
            if not self._executor or not self.alive:
                break
            self._work(self._executor.popleft())

    def _take(self, message: Message, now: int) -> None:
        """A report. (The release before does not know of heartbeats that say what has changed.)"""
        if isinstance(message, HeartbeatChanges) and self._protocol < CHANGES:
            return
        self._carry_out(self.leader.handle(Reported(message, now)))
        if isinstance(message, HeartbeatChanges):
            known = self.leader.stability.nodes.by_id.get(message.node)
            if known is not None and known.heartbeat.sequence == message.sequence:
                self.world.checkers.heard(known)

    def step_if_alive(self) -> None:
        if self.alive:
            self.step()

    def tell(self, event: Event) -> None:
        """Something has come of what it ordered."""
        self._inbox.append(event)

    def ask(self, answer: CommandResult) -> None:
        """A statement was executed."""
        self._carry_out(answer.instructions)

    def order(self, instructions: list[Instruction]) -> None:
        """Something was changed in the dictionary on request."""
        self._carry_out(self.leader._settle(instructions, self.now))

    def stop(self) -> None:
        """Its process ends."""
        self.alive = False
        self._executor.clear()
        self._broadcasts.clear()

    @property
    def idle(self) -> bool:
        return not (self._executor or self._inbox or self._broadcasts)

    # --- instructions -------------------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            self._pass_by()
            match instruction:
                case Broadcast(message):
                    self._broadcasts.append(message)
                    if not self.world.fault("late-broadcast", 0.3):
                        self._send_broadcasts()
                case ConfirmTopic():
                    self._confirm(instruction)
                case Note():
                    self.world.note("event", instruction.kind, instruction.subject, instruction.text)
                    self.world.seen[instruction.kind] += 1
                case StopDriver(build):
                    self.world.stop_driver(build, self.term)
                    self._executor.append(instruction)
                case _:
                    self._executor.append(instruction)

    def _confirm(self, question: ConfirmTopic) -> None:
        """Kafka looks at once; its answer may take a while, or not come in time."""
        world, now = self.world, self.now
        error = "timed out" if world.fault("late-broadcast", 0.03) else ""
        topic_id = "" if error else world.kafka.source.topic_id
        late = world.chance.below(20) if world.fault("late-broadcast", 0.3) else 0
        answer = TopicSeen(question.keyspace, question.ask, topic_id, error, now + late)
        if late:
            world.clock.after(late, lambda: self._inbox.append(answer))
        else:
            self._inbox.append(answer)

    def _send_broadcasts(self) -> None:
        """In order, as one producer sends."""
        world, control = self.world, self.world.kafka.control
        while self._broadcasts:
            message = self._broadcasts.popleft()
            self._pass_by()
            offset = len(control)
            failed = world.fault("late-broadcast", 0.03)
            lost = failed and world.chance.happens(0.5)
            if not lost:
                control.append(message)
                world.stamped(message)
            if isinstance(message, StabilityTimestamp):
                number = number_of(world, message, offset)
                if not lost:
                    world.note(
                        "stamp", number, message.term, message.incarnation, message.timestamp.offsets()
                    )
                now = self.now
                self._inbox.append(
                    IssueFailed(message, "no answer", now) if failed else Issued(message, number, now)
                )
            elif not lost:
                world.note("published", message.term, message.incarnation, dict(message.numbers))
                world.published(message)

    def _work(self, job: Instruction) -> None:
        world, kafka, now = self.world, self.world.kafka, self.now
        self._pass_by()
        match job:
            case Write(records):
                if kafka.write(self.term, records):
                    self._inbox.append(DictionaryWritten(len(kafka.metadata), now))
                else:
                    self.stop()  # fenced
                world.wrote(self, records)
            case PrepareBuild(build, _, topics, queues):
                for topic, partitions in topics:
                    if not kafka.make(topic, partitions):
                        kafka.grow(topic, partitions)
                    self._pass_by()
                ends = {topic: kafka.ends(topic) for topic, _ in queues}
                world.sampled.setdefault(build, []).append(dict(kafka.source.kept_from))
                done = BuildPrepared(build, kafka.source.facts(now), now, ends)
                if world.plan.alters and world.storm:  # (somebody may come in between)
                    world.clock.after(world.chance.below(PREPARING_MS), lambda: self._inbox.append(done))
                else:
                    self._inbox.append(done)
            case ConfirmRollback(keyspace, incarnation):
                self._inbox.append(RollbackWritten(keyspace, incarnation, now))
            case ConfirmBound(keyspace, bound):
                self._inbox.append(BoundWritten(keyspace, bound, now))
            case ExamineHistory():
                self._inbox.append(self._examined(job, now))
            case TrimQueues(limits):
                self._inbox.append(self._trimmed(limits, now))
            case SampleSource(_, build, read):
                same = read.topic_id == kafka.source.topic_id
                lost = kafka.source.history().diverging(read.places) if same else {}
                self._inbox.append(SourceSampled(kafka.source.facts(now), build, now, lost))
            case SendEnds(messages):
                for topic, partition, message in messages:
                    queue = kafka.queue(topic, partition)
                    if queue is not None:
                        self._pass_by()
                        queue.append(encode(message), world.clock.now)
                        world.note("end of build", topic, partition)
            case DeleteTopics(topics, index):
                for topic in topics:
                    kafka.delete(topic)
                    self._pass_by()
                if index:
                    self._inbox.append(TopicsDeleted(index, now))
            case StopDriver(build):
                world.stop_driver(build, self.term)
            case StartDriver(build, delay, task):
                world.clock.after(delay, lambda: self.start_driver(build, task))
            case RemoveBuildFolder(build):
                world.remains.pop(build, None)
            case _:
                raise TypeError(job)

    def _examined(self, job: ExamineHistory, now: int) -> HistoryExamined:
        """As `coordinator.kafka.log_examination`, of the simulated Kafka."""
        source = self.world.kafka.source
        if job.topic_id and job.topic_id != source.topic_id:
            return HistoryExamined(job.keyspace, source.topic_id, PARTITIONS, -1, Timestamp(), {}, "", now)
        history = source.history()
        numbered = [
            (number_of(self.world, message, n), message)
            if isinstance(message, StabilityTimestamp)
            else (n, message)
            for n, message in self.world.kafka.kept_control()
        ]
        stamps = [
            (number, message.timestamp)
            for number, message in reversed(standing(numbered))
            if holds(message, number, job.keyspace, job.topic_id, job.history)
        ]
        found = newest_on_log(stamps, job.stood, history.diverging)
        return HistoryExamined(job.keyspace, source.topic_id, PARTITIONS, *found, "", now)

    def _trimmed(self, limits: Sequence[QueueLimit], now: int) -> QueuesTrimmed:
        """As `coordinator.kafka.queue_trimming`, on the simulated queues."""
        reached: dict[tuple[str, int], int] = {}
        expired: list[tuple[str, int]] = []
        removed = 0
        for limit in limits:
            queue = self.world.kafka.queue(limit.topic, limit.partition)
            if queue is None:
                continue
            self._pass_by()
            young = queue.young(limit.older_than) if limit.older_than else None
            gone = queue.trim(stays_from(limit, queue.end, young))
            reached[limit.topic, limit.partition] = queue.begin
            removed += gone
            if limit.older_than and gone:
                expired.append((limit.topic, limit.partition))
        self.world.seen["trimmed"] += removed
        return QueuesTrimmed(reached, removed, tuple(expired), now)

    def start_driver(self, build: str, task: DriverTask) -> None:
        """Start a driver, if this coordinator still lives."""
        if self.alive:
            self.world.start_driver(build, self, task)
