"""A producer for as long as a process lives: another one goes on when it has lost all its brokers for good
(`keytide.kafka.broker_watch`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message

from keytide.kafka.broker_watch import BrokerWatch, TellsOfBrokers

log = logging.getLogger(__name__)

DeliveryCallback = Callable[[KafkaError | None, Message], None]
"""Told what became of a message, within `poll` and `flush`."""


class MessageProducer(TellsOfBrokers, Protocol):
    """An idempotent producer (`keytide.kafka.clients.Producer`) with `BROKER_STATISTICS`."""

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        key: str | bytes | None = ...,
        partition: int = ...,
        on_delivery: DeliveryCallback | None = ...,
    ) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self, timeout: float) -> int: ...

    def purge(self) -> None: ...

    def hand_over(self) -> None: ...


class LastingProducer:
    """Has one producer after the other. One thread at a time, which polls it all the time from `begin` on, or
    once something was produced.

    Args:
        make: makes one, when it is needed.
        name: what it writes to, for the log.
        watch: of its own.
    """

    def __init__(
        self,
        make: Callable[[], MessageProducer],
        name: str,
        watch: BrokerWatch,
    ) -> None:
        self._make, self._name, self._watch = make, name, watch
        self._producer: MessageProducer | None = None

    def begin(self) -> MessageProducer:
        """Have a client: it connects, so that what is produced later need not wait for that."""
        if self._producer is None:
            self._producer = self._make()
        return self._producer

    @property
    def has_broker(self) -> bool:
        """As `Producer.has_broker`."""
        return self._producer is None or self._producer.has_broker

    def produce(self, topic: str, value: bytes, **options: Any) -> None:
        """As `confluent_kafka.Producer.produce`.

        Raises:
            BufferError: its queue is full.
            KafkaException: it takes no such message.
        """
        self.begin().produce(topic, value, **options)

    def poll(self, timeout: float = 0.0) -> None:
        """Run callbacks; waits at most `timeout` seconds for the first. What waits in a producer that is
        without brokers for good has failed."""
        producer = self._producer
        if producer is None:
            return
        producer.poll(timeout)
        if self._watch.is_lost(producer):
            log.error("the client that writes to %s has lost all brokers: a new one goes on", self._name)
            self._producer = None
            producer.purge()
            producer.poll(0)  # (tells of what has failed)

    def flush(self, timeout: float) -> bool:
        """Wait until everything is acknowledged; whether it is."""
        return self._producer is None or self._producer.flush(timeout) == 0

    def hand_over(self) -> None:
        """Another thread has it from now on."""
        if self._producer is not None:
            self._producer.hand_over()
