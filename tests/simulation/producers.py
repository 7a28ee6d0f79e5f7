"""librdkafka's producer as the projector's shell sees it: in order per queue, late, now and then lost or
doubled; what came of a message is told within `poll`, in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from keytide.model.topics import Topics
from keytide.wire.messages import decode
from tests.simulation.chance import BROKERS_LOST
from tests.simulation.kafka import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.projectors import Life
    from tests.simulation.world import World

TOPICS = Topics(CLUSTER)
WAIT_MS = 10
"""Time passes only for who waits for so long."""
OnDelivery = Callable[[KafkaError | None, Message], None]
_NOTHING = Message()


class LaterPart(bytes):
    """A part of a message that is not its first."""


class _Waiting(NamedTuple):
    """A message for a queue that takes nothing."""

    partition: int
    value: bytes
    done: OnDelivery


class SimProducer:
    """`keytide.kafka.lasting_producer.MessageProducer`, of one life of a projector."""

    def __init__(self, world: World, life: Life) -> None:
        self._world, self._life = world, life
        self._landing: dict[tuple[str, int], int] = {}
        """When the last message of a queue lands."""
        self._waiting: dict[str, list[_Waiting]] = {}
        self._told: list[tuple[OnDelivery, KafkaError | None]] = []
        self._dead = False
        self.has_broker = True

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        world, clock = self._world, self._world.clock
        world.mishaps.pass_by(self._life.name)
        assert on_delivery is not None
        if self.has_broker and world.fault(BROKERS_LOST, 0.01):
            self.has_broker = False
            world.seen["brokers lost"] += 1
        if not self.has_broker:
            self._waiting.setdefault(topic, []).append(_Waiting(partition, value, on_delivery))
            return
        if topic == TOPICS.reports:
            world.report(decode(value))
            self._told.append((on_delivery, None))
            return
        if self._dead:
            raise KafkaException(KafkaError(KafkaError._FATAL, "it failed before", fatal=True))
        if world.fault("late-answers", 0.01):
            world.seen["queue full"] += 1
            raise BufferError
        if topic not in world.kafka.queues:
            self._fail(on_delivery, KafkaError.UNKNOWN_TOPIC_OR_PART, 30)
        elif topic in self._waiting or world.away(topic):
            self._waiting.setdefault(topic, []).append(_Waiting(partition, value, on_delivery))
        elif world.fault("lost", 0.03):
            world.seen["lost"] += 1
            self._dead = world.chance.below(8) == 0
            self._fail(on_delivery, KafkaError._FATAL if self._dead else KafkaError._MSG_TIMED_OUT, 60)
        else:
            before = self._landing.get((topic, partition), 0)
            at = max(clock.now, before)
            if world.fault("slow", 0.15) or (isinstance(value, LaterPart) and world.fault("parts", 0.7)):
                at += world.chance.below(90)
            copies = 2 if world.fault("duplicate", 0.05) else 1
            if before < at == clock.now and copies == 1:
                self._land(topic, partition, value, on_delivery)
            else:
                self._landing[topic, partition] = at
                for _ in range(copies - 1):
                    clock.after(at - clock.now, lambda: self._land(topic, partition, value, None))
                clock.after(at - clock.now, lambda: self._land(topic, partition, value, on_delivery))

    def _fail(self, done: OnDelivery, code: int, within_ms: int) -> None:
        error = KafkaError(code, fatal=self._dead)
        self._world.clock.after(self._world.chance.below(within_ms), lambda: self._told.append((done, error)))

    def _land(self, topic: str, partition: int, value: bytes, done: OnDelivery | None) -> None:
        """What has left a process arrives, also after it died."""
        world = self._world
        if world.clock.now > self._life.cut:
            return
        queue = world.kafka.queue(topic, partition)
        error = None
        if queue is None:
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        else:
            queue.append(value, world.clock.now)
            world.note("land", topic, partition, queue.end - 1, value)
        if done is not None:
            self._told.append((done, error))

    def poll(self, timeout: float) -> int:
        clock = self._world.clock
        if self._waiting and self.has_broker:
            self._retry()
        if not self._told and timeout * 1000 >= WAIT_MS:
            clock.run_until(clock.now + round(timeout * 1000))
        told, self._told = self._told, []
        if told and self._world.fault("late-answers", 0.3):
            chance = self._world.chance
            told.sort(key=lambda _: chance.below(1 << 20))
            cut = chance.below(len(told) + 1)
            told, self._told = told[:cut], told[cut:]
        for done, error in told:
            done(error, _NOTHING)
        return len(told)

    def _retry(self) -> None:
        """Queues that took nothing may do so again."""
        world, now = self._world, self._world.clock.now
        for topic, waiting in list(self._waiting.items()):
            busy = any(at >= now for (one, _), at in self._landing.items() if one == topic)
            if not busy and not world.away(topic):
                del self._waiting[topic]
                for one in waiting:
                    self._land(topic, one.partition, one.value, one.done)

    def purge(self) -> None:
        """What waits is not sent any more."""
        waiting, self._waiting = self._waiting, {}
        for one in itertools.chain.from_iterable(waiting.values()):
            self._told.append((one.done, KafkaError(KafkaError._PURGE_QUEUE)))

    def hand_over(self) -> None:
        pass

    def flush(self, timeout: float) -> int:
        self.poll(0)
        return len(self._told)
