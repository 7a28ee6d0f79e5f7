"""The projectors' consumer group, and its members: librdkafka's consumer as the projector's shell sees it.

A member fetches into a queue per partition and hands out of it later. What lies there is thrown away at
`pause`, `seek` and assignment, errors stay. The group's news and the answers to commits are told within
`consume`, before or behind the records of that call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from keytide.model.timestamp import Place
from projector.progress.commits import Committed, decode_metadata
from tests.simulation.chance import BROKERS_LOST
from tests.simulation.source import KEYSPACE, Log

if TYPE_CHECKING:
    from tests.simulation.projectors import Life
    from tests.simulation.world import World

SESSION_MS = 200
"""After so long without an answer the group goes on without a member."""
BURST = 64
"""Records of one fetch, when nothing makes them fewer."""
_Callback = Callable[[Any, list[TopicPartition]], None]


class Group:
    """Who has which source partition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._members: dict[str, SimConsumer] = {}
        self._moving: dict[int, str] = {}
        """Who waits for a partition that its owner has been asked to give back."""

    def join(self, member: SimConsumer) -> None:
        """A process has started, or has left and comes back: it gets what its predecessor had."""
        self._members[member.name] = member
        for partition, (name, _) in enumerate(self._world.kafka.owner):
            if name == member.name:
                self.give(partition, name)

    def give(self, partition: int, name: str, *, politely: bool = False) -> None:
        """Give a partition to a member.

        Args:
            politely: its owner is asked first, and may commit; else it hears of it later.
        """
        previous, generation = self._world.kafka.owner[partition]
        before = self._members.get(previous)
        if (
            politely
            and previous != name
            and before is not None
            and before.generation(partition) == generation
        ):
            self._moving[partition] = name
            before.tell("revoked", partition, generation)
            self._world.clock.after(SESSION_MS, lambda: self.released(partition, generation))
        else:
            self._move(partition, name)

    def released(self, partition: int, generation: int) -> None:
        """A partition was given back, or was not in time."""
        if partition in self._moving and self._world.kafka.owner[partition][1] == generation:
            self._move(partition, self._moving[partition])

    def _move(self, partition: int, name: str) -> None:
        world = self._world
        self._moving.pop(partition, None)
        previous, generation = world.kafka.owner[partition]
        world.kafka.owner[partition] = (name, generation + 1)
        self._members[name].tell("assigned", partition, generation + 1)
        before = self._members.get(previous)
        if before is not None and previous != name:
            delay = world.chance.below(SESSION_MS) if world.storm else 1
            world.clock.after(delay, lambda: before.tell("lost", partition, generation))


class _News(NamedTuple):
    """What the group tells a member: `kind` is the callback."""

    kind: str
    partition: int
    generation: int


class _Ready(NamedTuple):
    """A message, and the position (next offset, leader epoch) when it is handed out."""

    message: Message
    offset: int
    epoch: int


@dataclass(slots=True)
class _Fetcher:
    """How far one assigned partition is.

    Attributes:
        at: next offset to fetch.
        epoch: of the last record fetched, -1 when none was.
        position: behind what was handed out last, with its leader epoch.
        begun: it takes seeks.
        broken: it was told that `at` is not in the log, and reads no more.
        ended: the end that was told last.
        high: where the log ended at the last fetch.
    """

    generation: int
    at: int
    epoch: int = -1
    position: tuple[int, int] = (OFFSET_INVALID, -1)
    paused: bool = False
    begun: bool = False
    broken: bool = False
    ended: int = -1
    high: int = OFFSET_INVALID
    queue: deque[_Ready] = field(default_factory=deque)

    def go(self, offset: int) -> None:
        """Throw away what was fetched; fetch from `offset` on."""
        self.queue = deque(one for one in self.queue if _is_failure(one.message))
        self.at, self.epoch, self.ended = offset, -1, -1


def _is_failure(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() != KafkaError._PARTITION_EOF


class SimConsumer:
    """`projector.service.transport.GroupConsumer`, of one life of a projector."""

    def __init__(
        self, world: World, life: Life, on_commit: Callable[[KafkaError | None, list[TopicPartition]], None]
    ) -> None:
        self.name = life.name
        self.has_broker = True
        """Without one it hears nothing, and nobody hears it."""
        self._world, self._life, self._on_commit = world, life, on_commit
        self._callbacks: dict[str, _Callback] | None = None
        self._fetchers: dict[int, _Fetcher] = {}
        self._generations: dict[int, int] = {}
        self._news: list[_News] = []
        self._answers: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        self._known: dict[int, tuple[str, int]] = {}
        """Topic id and leader epoch of each partition, as it knows them."""

    # --- the group

    def subscribe(
        self, topics: list[str], *, on_assign: _Callback, on_revoke: _Callback, on_lost: _Callback
    ) -> None:
        joins = self._callbacks is None
        self._callbacks = {"assigned": on_assign, "revoked": on_revoke, "lost": on_lost}
        if joins:
            self._world.group.join(self)

    def unsubscribe(self) -> None:
        raise NotImplementedError  # (the keyspace is always there)

    def generation(self, partition: int) -> int:
        """Of its assignment, as it knows it; -1 when it has none."""
        return self._generations.get(partition, -1)

    def tell(self, kind: str, partition: int, generation: int) -> None:
        self._news.append(_News(kind, partition, generation))

    def _hear(self) -> None:
        """Run callbacks."""
        news, self._news = self._news, []
        for kind, partition, generation in news:
            held = self.generation(partition)
            if kind == "assigned":
                if held >= 0 and not (self._world.storm and self._world.chance.below(2)):
                    self._call("lost", partition)  # it was away for too long
                    held = -1
                self._generations[partition] = generation
                if held < 0:
                    self._call("assigned", partition)
                else:  # it keeps it
                    self._fetchers[partition].generation = generation
            elif held == generation:
                self._call(kind, partition)
                self._world.group.released(partition, generation)
        answers, self._answers = self._answers, []
        for error, places in answers:
            self._on_commit(error, places)

    def _call(self, kind: str, partition: int) -> None:
        assert self._callbacks is not None
        self._callbacks[kind](self, [TopicPartition(KEYSPACE, partition)])
        if kind != "assigned":
            assert partition not in self._fetchers
            del self._generations[partition]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            log = self._world.kafka.source.logs[place.partition]
            offset = log.low if place.offset == OFFSET_BEGINNING else place.offset
            self._fetchers[place.partition] = _Fetcher(self._generations[place.partition], offset)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            if self._fetchers.pop(place.partition, None) is None:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    def close(self) -> None:
        for partition in sorted(self._fetchers):
            generation = self._generations[partition]
            self._call("revoked", partition)
            self._world.group.released(partition, generation)

    # --- reading

    def pause(self, partitions: list[TopicPartition]) -> None:
        for fetcher in self._of(partitions):
            fetcher.paused = True
            fetcher.go(max(fetcher.position[0], 0))

    def resume(self, partitions: list[TopicPartition]) -> None:
        for fetcher in self._of(partitions):
            fetcher.paused = False

    def seek(self, partition: TopicPartition) -> None:
        (fetcher,) = self._of([partition])
        if fetcher.broken or not fetcher.begun or self._world.fault("out-of-range", 0.15):
            raise KafkaException(KafkaError(KafkaError._STATE))
        fetcher.go(partition.offset)
        fetcher.position = (partition.offset, -1)

    def _of(self, partitions: Sequence[TopicPartition]) -> list[_Fetcher]:
        self._world.mishaps.pass_by(self._life.name)
        missing = [place for place in partitions if place.partition not in self._fetchers]
        if missing:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return [self._fetchers[place.partition] for place in partitions]

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        world, chance = self._world, self._world.chance
        world.mishaps.pass_by(self._life.name)
        if self.has_broker and world.fault(BROKERS_LOST, 0.02):
            self.has_broker = False
            world.seen["brokers lost"] += 1
        if not self.has_broker:
            return []
        late = world.storm and bool(self._news or self._answers) and chance.below(3) == 0
        if not late:
            self._hear()
        ahead = world.fault("prefetch", 0.6)
        if not ahead:
            self._fetch()
        found = self._hand_out(num_messages)
        if ahead:
            self._fetch()
        if late and chance.below(2):
            self._hear()
        return found

    def _hand_out(self, most: int) -> list[Message]:
        world = self._world
        found: list[Message] = []
        if world.fault("prefetch", 0.2):
            most = min(most, world.chance.below(4))
        partitions = sorted(self._fetchers)
        if world.storm and world.chance.below(2):
            partitions.reverse()
        for partition in partitions:
            fetcher = self._fetchers[partition]
            while fetcher.queue and len(found) < most:
                one = fetcher.queue.popleft()
                found.append(one.message)
                if one.offset >= 0:
                    fetcher.position = (one.offset, one.epoch)
        return found

    def _fetch(self) -> None:
        world = self._world
        for partition, fetcher in sorted(self._fetchers.items()):
            fetcher.begun = not world.fault("out-of-range", 0.3) or fetcher.begun
            if not (fetcher.paused or fetcher.broken) and self._knows(
                log := world.kafka.source.logs[partition]
            ):
                self._fetch_one(fetcher, log)

    def _knows(self, log: Log) -> bool:
        """Whether it may read a log. It goes by the leader epochs that it has heard of, and takes a topic
        that was made anew, whose epochs are smaller, for an old leader."""
        topic_id, epoch = self._known.get(log.partition, (log.topic_id, -1))
        if topic_id != log.topic_id and log.epoch < epoch:
            return False
        self._known[log.partition] = (log.topic_id, log.epoch)
        return True

    def _fetch_one(self, fetcher: _Fetcher, log: Log) -> None:
        world, chance = self._world, self._world.chance
        if world.storm and not chance.below(5):
            return
        code = 0
        if not log.low <= fetcher.at <= log.end or (fetcher.at and world.fault("out-of-range", 0.02)):
            world.seen["behind"] += fetcher.at < log.low
            code = KafkaError._AUTO_OFFSET_RESET
        elif fetcher.epoch >= 0 and not log.has(Place(fetcher.at, fetcher.epoch)) and chance.below(2):
            code = KafkaError._LOG_TRUNCATION
        if code:
            world.seen["out of range"] += 1
            fetcher.broken = True
            fetcher.queue.append(_Ready(_message(log, fetcher.at, code), -1, -1))
            return
        end = min(log.end, fetcher.at + (chance.below(4) if world.storm else BURST))
        if not world.fault("prefetch", 0.5):
            fetcher.high = log.end
        for version in log.read(fetcher.at, end):
            message = Message(
                topic=KEYSPACE,
                partition=log.partition,
                offset=version.offset,
                key=version.id,
                value=version.document,
                timestamp=(1, version.time),
                leader_epoch=version.epoch,
            )
            fetcher.queue.append(_Ready(message, version.offset + 1, version.epoch))
            fetcher.epoch = version.epoch
        fetcher.at = end
        if end == log.end and fetcher.ended != end:
            fetcher.ended = end
            epoch = log.records[end - 1].epoch if end and not log.records[end - 1].id else -1
            fetcher.queue.append(_Ready(_message(log, end, KafkaError._PARTITION_EOF), end, epoch))

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        places = []
        for place, fetcher in zip(partitions, self._of(partitions), strict=True):
            offset, epoch = fetcher.position
            places.append(TopicPartition(place.topic, place.partition, offset, "", epoch))
        return places

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool = False) -> tuple[int, int]:
        (fetcher,) = self._of([partition])
        return 0, fetcher.high

    # --- commits

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        if not self.has_broker or self._world.fault("late-answers", 0.1):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        found = []
        for place in partitions:
            offset, epoch, metadata = self._world.kafka.committed[place.partition]
            offset = OFFSET_INVALID if offset is None else offset
            found.append(TopicPartition(place.topic, place.partition, offset, metadata, epoch))
        return found

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        self._world.mishaps.pass_by(self._life.name)
        if not self.has_broker:
            if asynchronous:
                return offsets
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        generations = [self.generation(place.partition) for place in offsets]
        if not asynchronous:
            error = self._commit(offsets, generations)
            if error is not None:
                raise KafkaException(error)
            return offsets
        world = self._world

        def land() -> None:
            self._answers.append((self._commit(offsets, generations), offsets))

        if world.storm:
            world.clock.after(world.chance.below(20), land)
        else:
            land()
        return offsets

    def _commit(self, offsets: list[TopicPartition], generations: list[int]) -> KafkaError | None:
        """A request is one generation's: it is taken in whole, or refused."""
        world = self._world
        commits = {
            place.partition: (generation, Committed(place.offset, _epoch(place), place.metadata or ""))
            for place, generation in zip(offsets, generations, strict=True)
        }
        if world.clock.now > self._life.cut:
            return KafkaError(KafkaError._TRANSPORT)
        if not world.kafka.commit(commits):
            return KafkaError(KafkaError.ILLEGAL_GENERATION)
        for place in offsets:
            version = decode_metadata(place.metadata or "").v
            world.note("place", self._life.sender, place.partition, place.offset, version)
        if world.fault("late-answers", 0.05):
            return KafkaError(KafkaError.REQUEST_TIMED_OUT)
        return None


def _message(log: Log, offset: int, code: int) -> Message:
    return Message(topic=KEYSPACE, partition=log.partition, offset=offset, error=KafkaError(code))


def _epoch(place: TopicPartition) -> int:
    epoch: int | None = place.leader_epoch
    return -1 if epoch is None else epoch
