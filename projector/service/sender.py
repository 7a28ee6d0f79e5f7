"""The way into the mutation queues: an idempotent producer, and the books of what it has not acknowledged
yet.

Theory of operation: a message belongs to a poll and to a queue (index, slice). Delivery callbacks count per
message, and a message holds a slice's share of thousands of documents, so nothing here is per document.
Callbacks run within `poll`, `flush` and nowhere else; they are passed on as (poll, delivered?) to whoever
made the sender.

Old messages cannot be called back: after a reset those still on their way arrive, or fail, unnoticed. Slices
drop what does not continue their position, so they do no harm (R10).

R18: a queue that takes nothing for a limit of time, while other queues do, must not hold back the whole
keyspace: `stuck` names its index, `drop` forgets what is outstanding for it and tells it as acknowledged.
That time runs only while Kafka takes something: when it comes back after a minute one queue is the first
to take, and the others are not to blame; nor for the time in which this process stood still.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from keytide.kafka.broker_watch import BrokerWatch
from keytide.kafka.lasting_producer import LastingProducer, MessageProducer
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from projector.service.transport import Transport

log = logging.getLogger(__name__)

COMPRESSION = "none"
IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Of messages not acknowledged: the second bound on this process's memory, beside the polls in flight."""


@dataclass(slots=True)
class _Queue:
    """One queue partition.

    Attributes:
        outstanding: messages.
        since: when it last took a message, or began to wait for its first, in seconds for which Kafka was
            seen alive; None while nothing waits.
        tried: when it was last sent one.
    """

    outstanding: int = 0
    since: float | None = None
    tried: float = 0.0


class QueueSender:
    """Sends to the mutation queues of all indexes.

    Args:
        settings: the limits.
        transport: makes the producer.
        done: called with (poll, index, messages, error) when messages are in their queue (error None), or
            never will be.
        watch: makes the watch of its client.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        done: Callable[[int, int, str | None], None],
        watch: Callable[[], BrokerWatch],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._topics = Topics(settings.cluster)
        self._done = done
        self._watch = watch
        self._clock = clock
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._pending: dict[str, Counter[int]] = {}
        self._generation = 0
        self._fatal = False
        self._heard = clock()
        """When Kafka last took anything."""
        self._alive = 0.0
        """Seconds in which Kafka took something every now and then."""
        self.bytes_in_flight = 0
        self._open()

    def _open(self) -> None:
        # No linger: what comes here is a batch by itself. librdkafka sends a request for each partition, and
        # a broker answers those of a connection in turn: progress waits for as many as there are slices.
        self._producer = LastingProducer(self._make, "the queues", self._watch())
        self._producer.begin()

    def _make(self) -> MessageProducer:
        return self._transport.producer(
            compression_type=COMPRESSION,
            queue_buffering_max_messages=100_000,
            queue_buffering_max_kbytes=2 * IN_FLIGHT_BYTES // 1024,
            batch_size=1024 * 1024,
            delivery_timeout_ms=max(30_000, 2_000 * self._settings.projector.queue_unavailable_s),
        )

    @property
    def full(self) -> bool:
        """Whether to wait before sending more."""
        return self.bytes_in_flight >= IN_FLIGHT_BYTES

    def send(self, poll: int, index: str, slice_: int, value: bytes) -> None:
        """Send one message; `done` tells what came of it. Waits while librdkafka's own queue is full."""
        queue = self._queues.setdefault((index, slice_), _Queue())
        queue.outstanding += 1
        queue.tried = self._clock()
        if queue.since is None:
            queue.since = self._alive
        self._pending.setdefault(index, Counter())[poll] += 1
        self.bytes_in_flight += len(value)
        callback = partial(self._delivered, self._generation, poll, index, slice_, len(value))
        while True:
            try:
                self._producer.produce(
                    self._topics.mutations(index), value, partition=slice_, on_delivery=callback
                )
            except BufferError:
                self._producer.poll(0.01)
            except KafkaException as error:
                callback(error.args[0], None)
                return
            else:
                return

    def _delivered(
        self, generation: int, poll: int, index: str, slice_: int, size: int, error: KafkaError | None, _: Any
    ) -> None:
        if generation != self._generation:
            return
        self.bytes_in_flight -= size
        queue = self._queues.get((index, slice_))
        if queue is not None:
            queue.outstanding -= 1
            if error is None:
                self._hear(self._clock())
                queue.since = self._alive if queue.outstanding else None
        if error is not None and error.fatal():
            self._fatal = True
        pending = self._pending.get(index)
        if pending is None or not pending[poll]:
            return  # the index was dropped meanwhile
        pending[poll] -= 1
        if not pending[poll]:
            del pending[poll]
        self._done(poll, 1, None if error is None else f"{index} [{slice_}]: {error}")

    def poll(self, timeout: float = 0.0) -> None:
        """Run callbacks; waits at most `timeout` seconds for the first. A producer that is dead for good is
        replaced."""
        self._producer.poll(timeout)
        if self._fatal:
            self._restart()

    def _restart(self) -> None:
        log.error("the producer failed for good; going on with a new one")
        self._fatal = False
        self._generation += 1
        waiting = [poll for pending in self._pending.values() for poll in pending]
        self._pending.clear()
        self._queues.clear()
        self.bytes_in_flight = 0
        self._open()
        for poll in waiting:
            self._done(poll, 1, "the producer failed for good")

    def drop(self, index: str) -> None:
        """Forget what is outstanding for an index: it counts as acknowledged."""
        for key in [key for key in self._queues if key[0] == index]:
            del self._queues[key]
        for poll, messages in sorted(self._pending.pop(index, Counter()).items()):
            self._done(poll, messages, None)

    def stuck(self, alive_at: float) -> dict[str, float]:
        """Index -> seconds for which one of its queues has taken nothing, where that is over the limit
        although Kafka took something else: another queue's messages, or what the caller knows of. When all of
        Kafka is away, no queue is to blame.

        Args:
            alive_at: when Kafka last took a message of this process that is none of a queue.
        """
        now, limit = self._clock(), self._settings.projector.queue_unavailable_s
        self._hear(alive_at)
        if not self._producer.has_broker:  # (whoever else is answered, this client asks nobody)
            for queue in self._queues.values():
                queue.since = None if queue.since is None else self._alive
            return {}
        found: dict[str, float] = {}
        for (index, _), queue in self._queues.items():
            if not queue.outstanding and now - queue.tried > limit / 2:
                queue.since = (
                    None  # it refused the last message and is sent no more: the partitions went away
                )
            if queue.since is not None and self._alive - queue.since > limit:
                found[index] = max(found.get(index, 0.0), self._alive - queue.since)
        return found

    def _hear(self, at: float) -> None:
        """Kafka took something: the time since it last did counts, unless that was so long that it, or this
        process, was away."""
        gap = at - self._heard
        if gap <= 0:
            return
        self._heard = at
        if gap <= self._settings.projector.queue_unavailable_s / 4:
            self._alive += gap
