"""A projector: the real tracker, with sends that are late, lost or doubled, and owners that overlap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keytide.messages import encode, split
from projector import events
from projector.events import Key
from projector.tracker import Tracker
from tests.simulation.topics import PARTITIONS, SLICES
from tests.simulation.wire import batch, segment

if TYPE_CHECKING:
    from tests.simulation.world import World

KEYSPACE = "ks"
_NEVER = 1 << 60


@dataclass(slots=True)
class Life:
    """One start of a projector: what it sent may land until `cut`, also after it died."""

    sender: str
    cut: int = _NEVER
    tracker: Tracker = field(default_factory=Tracker)
    reading: set[int] = field(default_factory=set)
    last_landing: dict[tuple[str, int], int] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    polls: int = 0
    sent: int = 0

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
        return Life(f"{self.name}.{self._lives}")

    def crash(self) -> None:
        """Die with sends under way, and start again at once."""
        self.life.cut = self.world.schedule.now + self.world.schedule.random.randint(0, 30)
        self.life = self._born()
        self.learn()
        for partition in range(PARTITIONS):
            if self.world.topics.owner[partition][0] == self.name:
                self.world.give(partition, self)

    def learn(self) -> None:
        """Read the catalog."""
        self._handle(self.life, events.KeyspaceChanged(KEYSPACE, self.world.version, 1))

    def assigned(self, partition: int, generation: int) -> None:
        offset, version = self.world.topics.committed[partition]
        self.life.generations[partition] = generation
        self._handle(self.life, events.Assigned(Key(KEYSPACE, partition), offset, version, 0))

    def revoked(self, partition: int) -> None:
        if self.world.topics.owner[partition][0] != self.name:
            self._handle(self.life, events.Revoked(Key(KEYSPACE, partition)))
            self.life.reading.discard(partition)

    def tick(self) -> None:
        self._handle(self.life, events.Tick())

    def poll(self) -> None:
        """Read a few records of each partition, send a message to each slice (a heartbeat when empty)."""
        life, chance = self.life, self.world.schedule.random
        ranges: dict[Key, tuple[int, int, int]] = {}
        for state in life.tracker.running():
            partition = state.key.partition
            if partition in life.reading and chance.random() < 0.8:
                end = len(self.world.topics.history[partition])
                reached = min(end, state.position + chance.randint(0, 3))
                ranges[state.key] = (state.position, reached, state.version)
        if not ranges:
            return
        life.polls += 1
        messages = self._messages(ranges)
        reached_all = {key: events.Reached(end, 0) for key, (_, end, _) in ranges.items()}
        self._handle(life, events.Polled(life.polls, len(messages), reached_all))
        for queue, data in messages:
            self._send(life, queue, data, life.polls)

    def progress(self) -> dict[int, int]:
        """What it reports: acknowledged offsets of the partitions that it thinks it owns."""
        running = self.life.tracker.running()
        return {state.key.partition: state.acked for state in running}

    def _messages(self, ranges: dict[Key, tuple[int, int, int]]) -> list[tuple[tuple[str, int], bytes]]:
        topics = self.world.topics
        versions = {
            key.partition: topics.read(key.partition, start, end) for key, (start, end, _) in ranges.items()
        }
        messages = []
        for index, emitted_from in self.world.emitting():
            for slice_number in range(SLICES):
                segments = [
                    segment(key.partition, start, end, versions[key.partition], slice_number, SLICES)
                    for key, (start, end, version) in sorted(ranges.items())
                    if version >= emitted_from
                ]
                if segments:
                    message = batch(segments, index, slice_number, self.life.sender)
                    messages.append(((index, slice_number), encode(message)))
        return messages

    def _send(self, life: Life, queue: tuple[str, int], data: bytes, poll: int) -> None:
        """In order per queue, as an idempotent producer sends; what is lost is lost alone."""
        world, chance = self.world, self.world.schedule.random
        if world.fault("lost", 0.04):
            world.schedule.after(chance.randint(1, 60), lambda: self._handle(life, events.SendFailed(poll)))
            return
        life.sent += 1
        parts = split(data, 150 if world.fault("parts", 0.3) else 1 << 20, life.sender, life.sent)
        world.seen["parts"] += len(parts) > 1
        for copy in range(2 if world.fault("duplicate", 0.05) else 1):
            for part in parts:
                self._land_later(life, queue, part)
            if copy == 0:
                last = life.last_landing[queue]
                world.schedule.after(
                    last - world.schedule.now + chance.randint(0, 10),
                    lambda: self._handle(life, events.Delivered(poll)),
                )

    def _land_later(self, life: Life, queue: tuple[str, int], part: bytes) -> None:
        schedule = self.world.schedule
        delay = (
            schedule.random.randint(0, 40) if self.world.fault("slow", 0.3) else schedule.random.randint(0, 2)
        )
        at = max(life.last_landing.get(queue, 0), schedule.now + delay)
        life.last_landing[queue] = at

        def land() -> None:
            if schedule.now <= life.cut:
                self.world.topics.mutations[queue].append(part)

        schedule.after(at - schedule.now, land)

    def _handle(self, life: Life, event: events.Event) -> None:
        if not life.alive:
            return
        for instruction in life.tracker.handle(event):
            self._do(life, instruction)

    def _do(self, life: Life, instruction: events.Instruction) -> None:
        world, chance = self.world, self.world.schedule.random
        match instruction:
            case events.Pause(key):
                life.reading.discard(key.partition)
            case events.ReadFrom(key, _) | events.Activated(key):
                life.reading.add(key.partition)
            case events.Locate(key):
                end = len(world.topics.history[key.partition])
                world.schedule.after(
                    chance.randint(1, 10), lambda: self._handle(life, events.Located(key, end))
                )
            case events.Commit():
                world.schedule.after(chance.randint(1, 10), lambda: self._commit(life, instruction))
            case events.Rewound():
                pass

    def _commit(self, life: Life, commit: events.Commit) -> None:
        if not life.alive:
            return
        key = commit.key
        generation = life.generations.get(key.partition, -1)
        if self.world.topics.commit(key.partition, generation, commit.offset, commit.version):
            done: events.Event = events.CommitDone(key, commit.offset, commit.epoch, commit.version)
        else:
            done = events.CommitFailed(key, commit.version, fenced=True)
        self._handle(life, done)
