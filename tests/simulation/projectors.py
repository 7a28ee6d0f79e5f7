"""A projector: the real tracker and take-over, with sends that are late, lost or doubled, and owners that
overlap. On a share of the seeds the real pipeline makes the messages, else `packing` makes the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keytide.model.timestamp import Place
from keytide.model.topics import Topics
from keytide.wire.messages import (
    Activated,
    HistoryLost,
    PartitionProgress,
    Progress,
    SegmentBatch,
    encode,
    split,
)
from projector.core.pipeline import Columns, MessageLimits, Pipeline, batches_of, reached_by
from projector.progress import events
from projector.progress.commits import Committed, beginning, check, encode_metadata, first_place, take_over
from projector.progress.events import Key
from projector.progress.partition import PartitionState
from projector.progress.tracker import Tracker
from projector.service.reports import awaited_by_a_build
from tests.simulation.kafka import CLUSTER, Reader
from tests.simulation.packing import segments_of
from tests.simulation.source import KEYSPACE, PARTITIONS, SLICES, Log, Version

if TYPE_CHECKING:
    from projector.core.projection import SourceBatch
    from tests.simulation.world import World

_NEVER = 1 << 60
_PART_BYTES = 150
_IN_FLIGHT = 4
"""Polls that are not acknowledged."""
Outgoing = tuple[str, int, bytes, bool]
"""(index, slice, record, whether it is a later part of a message)."""
QUEUE_LIMIT_MS = 500
"""An index is left behind when its queue takes nothing for so long (R18)."""
TOPICS = Topics(CLUSTER)


@dataclass(slots=True)
class Waiting:
    """Messages for an index whose queue takes nothing: (poll, slice, data)."""

    since: int
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class Life:
    """One start of a projector: what it sent may land until `cut`, also after it died."""

    sender: str
    reader: Reader
    pipeline: Pipeline
    cut: int = _NEVER
    tracker: Tracker = field(default_factory=Tracker)
    reading: set[int] = field(default_factory=set)
    landing: dict[tuple[str, int], int] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    fresh_at: dict[int, int] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    emitting: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    told: list[tuple[int, int]] = field(default_factory=list)
    polls: int = 0
    parts: int = 0

    @property
    def alive(self) -> bool:
        return self.cut == _NEVER


class SimProjector:
    """One projector process and its successors."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self._lives = 0
        self.life = self._born()

    def _born(self) -> Life:
        self._lives += 1
        sender = f"{self.name}.{self._lives}"
        reader = Reader(self.world.kafka)
        reader.read()
        return Life(sender, reader, Pipeline(sender, MessageLimits(_PART_BYTES, _PART_BYTES)))

    def crash(self) -> None:
        """Die with sends under way, and start again at once."""
        self.life.cut = self.world.clock.now + self.world.chance.below(60)
        self.life = self._born()
        self.world.note("crash", self.life.sender)
        self.learn()
        for partition in range(PARTITIONS):
            if self.world.kafka.owner[partition][0] == self.name:
                self.world.give(partition, self)

    # --- the group ----------------------------------------------------------------------------------------

    def assigned(self, partition: int, generation: int) -> None:
        """The group gave us a partition."""
        life = self.life
        life.generations[partition] = generation
        life.reading.discard(partition)
        self._take_over(life, partition)

    def _take_over(self, life: Life, partition: int) -> None:
        """Look up the commit and the log, as `projector.service.lookups` does."""
        kafka, key = self.world.kafka, Key(KEYSPACE, partition)
        catalog, history = life.reader.catalog, kafka.source.history()
        begin = beginning(key, kafka.committed[partition], catalog)
        parting = kafka.source.parting(partition, begin.place or Place(0), begin.tail)
        self.handle(life, take_over(key, begin, history, parting, catalog))

    def _check(self, life: Life, key: Key) -> None:
        """Ask whether a place that is read from is on the log."""
        state = life.tracker.partitions.get(key)
        if state is None:
            return
        source = self.world.kafka.source
        place = Place(state.position, state.position_epoch)
        parting = source.parting(key.partition, place, state.position_tail)
        catalog = life.reader.catalog
        self.handle(life, check(key, place, state.incarnation, source.history(), parting, catalog))

    def revoked(self, partition: int) -> None:
        """The group tells, late, that a partition is another's."""
        if self.world.kafka.owner[partition][0] != self.name:
            self.handle(self.life, events.Revoked(Key(KEYSPACE, partition)))
            self.life.reading.discard(partition)

    # --- its loop -----------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Read some of the dictionary."""
        life, world = self.life, self.world
        life.reader.read(world.chance.below(6) if world.storm else 1 << 30)
        catalog = life.reader.catalog
        record = catalog.keyspace(KEYSPACE)
        emitting: dict[str, tuple[int, str | None]] = {}
        if record is not None:
            for index in catalog.emitting(KEYSPACE, record.version):
                emitting[index.id] = (index.version, index.build)
            for id_, old in life.emitting.items():
                if emitting.get(id_) != old:
                    life.pipeline.resume(id_)
                    life.refused.pop(id_, None)
            life.emitting = emitting
            sent = life.pipeline.emitting(catalog, KEYSPACE, record.version)
            smallest = min((index.version for index in sent), default=0)
            view = (record.version, smallest, record.incarnation, record.topic_id)
            self.handle(life, events.KeyspaceChanged(KEYSPACE, *view))

    def tick(self) -> None:
        """What is due by time: the dictionary, commits, heartbeats (R14)."""
        self.learn()
        self._look_after_waiting(self.life)
        self.handle(self.life, events.CommitDue())
        self.poll(most=0)
        self.report()

    def poll(self, most: int = 3) -> None:
        """Read a few records of each partition, send a message to each slice (a heartbeat when empty)."""
        life, chance = self.life, self.world.chance
        if len(life.tracker.outstanding) >= _IN_FLIGHT:
            return
        work: dict[int, list[SourceBatch]] = {}
        reached: dict[Key, events.Reached] = {}
        for state in life.tracker.running():
            partition = state.key.partition
            if partition in life.reading and chance.below(5):
                batches, marked = self._read(state, most)
                if not batches:
                    continue
                work.setdefault(state.version, []).extend(batches)
                reached[state.key] = reached_by(batches, state.position_tail, marked)
        if not reached:
            return
        messages = self._messages(life, work)
        life.polls += 1
        self.handle(life, events.Polled(life.polls, len(messages), reached))
        landed = 0
        for message in messages:
            if life.polls in life.tracker.outstanding:
                landed += self._send(life, message, life.polls)
        if landed:
            self.handle(life, events.Delivered(life.polls, landed))
        if most:
            self.report(beat=False)

    def _read(self, state: PartitionState, most: int) -> tuple[list[SourceBatch], int]:
        """One partition's share of a poll, and the leader epoch of the marker below its end (-1: none, or not
        known)."""
        world = self.world
        log = world.kafka.source.logs[state.key.partition]
        end = min(log.end, state.position + (world.chance.below(most + 1) if world.storm else 8 * most))
        end = reach = max(end, state.position)
        columns = columns_of(log, state.position, reach)
        last = columns[-1].offsets[-1] + 1 if columns else state.position
        below = epoch_below(log, last, end)
        if most and self._strange(state, columns, log, below):
            return [], -1
        if below and state.unlooked(end, below[0]):
            if last > state.position:
                end, below = last, []  # the records first; then the range past them is looked at
            else:
                self.world.seen["bare"] += 1
                self.handle(self.life, events.Doubted(state.key, -1, end))
                return [], -1
        if end == log.end:
            self.life.fresh_at[log.partition] = world.clock.now
        marked = below[0] if below else -1
        if end < reach:
            columns = columns_of(log, state.position, end)
        return batches_of(state.key, state.position, end, state.position_epoch, columns, marked), marked

    def _strange(self, state: PartitionState, columns: list[Columns], log: Log, below: list[int]) -> bool:
        """Whether the log is of another leader than the one that was looked at (R15), or too short."""
        strange = state.strange([*(run.epoch for run in columns), *below])
        if state.position > log.end:
            strange = -1
        if strange is not None:
            self.handle(self.life, events.Doubted(state.key, strange))
        return strange is not None

    def report(self, beat: bool = True) -> None:
        """R14: progress on every beat, else when it has changed; and activations that a build waits for
        (R13)."""
        life, world = self.life, self.world
        catalog = life.reader.catalog
        record = catalog.keyspace(KEYSPACE)
        if record is None:
            return
        lines = []
        for key, state in sorted(life.tracker.partitions.items()):
            if beat and state.phase in ("RUNNING", "IDLE") and awaited_by_a_build(catalog, state):
                world.report(
                    Activated(
                        KEYSPACE,
                        life.sender,
                        key.partition,
                        state.version,
                        state.activated_at,
                        state.acked_epoch,
                    )
                )
            if state.lost and beat:
                world.report(
                    HistoryLost(
                        KEYSPACE,
                        life.sender,
                        key.partition,
                        state.incarnation,
                        state.topic_id,
                        state.position,
                        state.position_epoch,
                        state.reason,
                    )
                )
            if state.acked < 0 or state.incarnation != record.incarnation:
                continue
            end = world.kafka.source.logs[key.partition].end
            fresh_at = life.fresh_at.get(key.partition, 0)
            lines.append(
                PartitionProgress(key.partition, state.acked, state.acked_epoch, end, fresh_at, state.version)
            )
        places = [(line.acked, line.version) for line in lines]
        if places and (beat or places != life.told):
            life.told = places
            skipped = {one.id: dict(life.pipeline.outcomes[one.id]) for one in catalog.indexes(KEYSPACE)}
            world.report(
                Progress(KEYSPACE, life.sender, record.topic_id, record.incarnation, lines, 0, skipped)
            )

    # --- sending ------------------------------------------------------------------------------------------

    def _messages(self, life: Life, work: dict[int, list[SourceBatch]]) -> list[Outgoing]:
        catalog, now = life.reader.catalog, self.world.clock.now
        if self.world.plan.real_pipeline:
            made = life.pipeline.emit(catalog, KEYSPACE, work, now)
            return [(one.index_id, one.slice, one.value, False) for one in made]
        record = catalog.keyspace(KEYSPACE)
        if record is None:
            return []
        messages: list[Outgoing] = []
        for version, batches in sorted(work.items()):
            indexes = life.pipeline.emitting(catalog, KEYSPACE, version)
            if not indexes:
                continue
            sent = [
                segments_of(one.partition, one.epoch, one.start, one.end, one.below, self._versions(one))
                for one in batches
            ]
            for number in range(SLICES):
                parts = [segments[number] for segments in sent]
                for index in indexes:
                    message = SegmentBatch(
                        index.id,
                        number,
                        life.sender,
                        record.topic_id,
                        record.incarnation,
                        version,
                        parts,
                        now,
                    )
                    data = encode(message)
                    if self.world.fault("parts", 0.4):
                        life.parts += 1
                        pieces = split(data, _PART_BYTES, life.sender, life.parts)
                        self.world.seen["parts"] += len(pieces) > 1
                        messages += [(index.id, number, piece, at > 0) for at, piece in enumerate(pieces)]
                    else:
                        messages.append((index.id, number, data, False))
        return messages

    def _versions(self, batch: SourceBatch) -> list[Version]:
        records = self.world.kafka.source.logs[batch.partition].records
        return [records[offset] for offset in batch.offsets]

    def _send(self, life: Life, message: Outgoing, poll: int) -> int:
        """In order per queue, as an idempotent producer sends; what is lost is lost alone. Returns how many
        messages are acknowledged already."""
        world, clock = self.world, self.world.clock
        index, number, data, rest = message
        topic = TOPICS.mutations(index)
        if topic not in world.kafka.queues:
            clock.after(world.chance.below(30), lambda: self._refused(life, index, poll))
            return 0
        if index in life.waiting or world.away(topic):
            life.waiting.setdefault(index, Waiting(clock.now)).messages.append((poll, number, data))
            return 0
        if world.fault("lost", 0.03):
            world.seen["lost"] += 1
            clock.after(world.chance.below(60), lambda: self.handle(life, events.SendFailed(poll)))
            return 0
        before = life.landing.get((index, number), 0)
        at = max(clock.now, before)
        if world.fault("slow", 0.15) or (rest and world.fault("parts", 0.7)):
            at += world.chance.below(90)
        copies = 2 if world.fault("duplicate", 0.05) else 1
        if before < at == clock.now and copies == 1:
            self._land(life, topic, number, data)
            return 1
        life.landing[index, number] = at
        for _ in range(copies):
            clock.after(at - clock.now, lambda: self._land(life, topic, number, data))
        delay = at - clock.now + world.chance.below(10)
        clock.after(delay, lambda: self.handle(life, events.Delivered(poll)))
        return 0

    def _refused(self, life: Life, index: str, poll: int) -> None:
        """A topic is not there: an error, unless the index was dropped; that counts as acknowledged (R18)."""
        now = self.world.clock.now
        if index in life.emitting and now - life.refused.setdefault(index, now) > QUEUE_LIMIT_MS:
            self._leave_behind(life, index)
        gone = index not in life.emitting or index in life.pipeline.suspended
        self.handle(life, events.Delivered(poll) if gone else events.SendFailed(poll))

    def _leave_behind(self, life: Life, index: str) -> None:
        """R18."""
        life.refused.pop(index, None)
        life.pipeline.suspend(index)
        self.world.seen["suspended"] += 1

    def _look_after_waiting(self, life: Life) -> None:
        """Queues that take nothing: send when they do again, or leave their index behind (R18)."""
        world, now = self.world, self.world.clock.now
        for index, waiting in list(life.waiting.items()):
            gone = index not in life.emitting
            if not gone and now - waiting.since > QUEUE_LIMIT_MS:
                self._leave_behind(life, index)
                gone = True
            if gone:
                del life.waiting[index]
                for poll, _, _ in waiting.messages:
                    self.handle(life, events.Delivered(poll))
            elif not world.away(TOPICS.mutations(index)) and not any(
                at >= now for (one, _), at in life.landing.items() if one == index
            ):
                del life.waiting[index]
                for poll, number, data in waiting.messages:
                    self._land(life, TOPICS.mutations(index), number, data)
                    self.handle(life, events.Delivered(poll))

    def _land(self, life: Life, topic: str, number: int, data: bytes) -> None:
        world = self.world
        if world.clock.now > life.cut:
            return
        queue = world.kafka.queue(topic, number)
        if queue is not None:
            queue.append(data, world.clock.now)
            world.note("land", topic, number, queue.end - 1, data)

    # --- what the tracker says ----------------------------------------------------------------------------

    def handle(self, life: Life, event: events.Event) -> None:
        """Hand an event to the tracker of a life, if it still lives."""
        if life.alive:
            for instruction in life.tracker.handle(event):
                self._do(life, instruction)

    def _do(self, life: Life, instruction: events.Instruction) -> None:
        world = self.world
        delay = world.chance.below(20) if world.storm else 1
        match instruction:
            case events.PausePartition(key):
                life.reading.discard(key.partition)
            case events.ReadFrom(key, _):
                life.reading.add(key.partition)
            case events.AnnounceActivation():
                pass  # the next tick tells
            case events.TakeOver(key):
                world.clock.after(delay, lambda: self._take_over_again(life, key))
            case events.Check(key):
                world.clock.after(delay, lambda: self._check(life, key))
            case events.Locate(key):
                world.clock.after(delay, lambda: self._locate(life, key))
            case events.Commit(key):
                generation = life.generations.get(key.partition, -1)
                world.clock.after(delay, lambda: self._commit(life, instruction, generation))
            case events.Rewound():
                world.seen["rewound"] += 1

    def _take_over_again(self, life: Life, key: Key) -> None:
        """The keyspace was rolled back."""
        if self.world.kafka.owner[key.partition] == (self.name, life.generations.get(key.partition)):
            self.world.seen["taken over again"] += 1
            self._take_over(life, key.partition)

    def _locate(self, life: Life, key: Key) -> None:
        state = life.tracker.partitions.get(key)
        if state is None:
            return
        log = self.world.kafka.source.logs[key.partition]
        has_commit = state.committed >= 0
        found = first_place(key, log.history(), life.reader.catalog, has_commit=has_commit)
        self.handle(life, found)

    def _commit(self, life: Life, commit: events.Commit, generation: int) -> None:
        """Commit, unless the partition was taken away or given again meanwhile: what was to be committed
        before is dropped then (`Membership._drop`)."""
        key, kafka = commit.key, self.world.kafka
        if not life.alive or life.generations.get(key.partition, -1) != generation:
            return
        record = life.reader.catalog.keyspace(KEYSPACE)
        topic_id = record.topic_id if record else ""
        incarnation = commit.incarnation
        metadata = encode_metadata(commit.version, topic_id, commit.epoch, incarnation, commit.tail)
        if kafka.commit(key.partition, generation, Committed(commit.offset, commit.epoch, metadata)):
            self.world.note("place", life.sender, key.partition, commit.offset, commit.version)
            place = (commit.offset, commit.epoch, commit.version)
            done: events.Event = events.CommitDone(key, *place, incarnation)
        else:
            done = events.CommitFailed(key, commit.version, True, incarnation)
        self.handle(life, done)


def epoch_below(log: Log, last: int, end: int) -> list[int]:
    """What librdkafka's position shows of the leader epoch of [last, end), in which no record came: that of a
    marker at its end, -1 when there is none (records that the cleaner took show nothing); [] of no range."""
    if end <= last:
        return []
    below = log.records[end - 1]
    return [-1 if below.id else below.epoch]


def columns_of(log: Log, start: int, end: int) -> list[Columns]:
    """What a consumer gets of [start, end), by leader epoch."""
    runs: dict[int, list[Version]] = {}
    for version in log.read(start, end):
        runs.setdefault(version.epoch, []).append(version)
    return [
        Columns(
            epoch,
            [version.offset for version in versions],
            [version.id for version in versions],
            [version.document for version in versions],
            [version.time for version in versions],
        )
        for epoch, versions in runs.items()
    ]
