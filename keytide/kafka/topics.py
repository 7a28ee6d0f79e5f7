"""Small adapters over librdkafka that every service shares: clients with the right settings, readers.

Theory of operation: librdkafka's defaults are made for throughput of small messages; Keytide sends few large
ones and waits for the answer, so what differs from the defaults is decided once, here. Three of its habits
matter everywhere:

* A consumer that has filled its local queue sleeps `fetch.queue.backoff.ms` (1 s by default) before it asks
  again: a stall that looks like a slow broker. It is 2 ms here.
* `consume(n, timeout)` waits for the whole timeout unless n messages come; `drain` waits for the first only.
* Records that a reader never sees (transaction markers, aborted and cleaned records) move the position all
  the same. Only the end-of-partition event tells that place, so it is always on: a message with
  `error().code() == KafkaError._PARTITION_EOF`, whose `offset()` is the position.

A client or reader belongs to one thread (`keytide.kafka.clients`). Times are in seconds (librdkafka's own
settings in milliseconds).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from confluent_kafka import KafkaError, Message, TopicPartition

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import Record
from keytide.kafka.admin import (
    REQUEST_TIMEOUT_S,
    KafkaUnavailableError,
    admin,
    client_config,
    describe_topics,
    list_offsets,
)
from keytide.kafka.broker_watch import BrokerWatch
from keytide.kafka.clients import BROKER_STATISTICS, AdminClient, Consumer, Producer
from keytide.kafka.end_watch import EndWatch
from keytide.kafka.lasting_producer import LastingProducer
from keytide.kafka.log_repeats import Repeats
from keytide.model.topics import Topics
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)
log.addFilter(Repeats())

START_FETCH_WAIT_MS = 50
"""The dictionary ends with a transaction's marker, which only the end-of-partition event tells; the broker
gives it after this time (500 ms by default), and every process waits for it at its start. Afterwards nobody
does, and asking twenty times a second would be a third of what an idle cluster asks."""


def consumer(settings: Settings, *, group: str | None = None, **overrides: Any) -> Consumer:
    """A consumer that never commits by itself, reads committed records and reports partition ends.

    Args:
        settings: where Kafka is.
        group: consumer group; None for manual assignment only (no group is ever joined).
        overrides: librdkafka settings, underscores for dots. `auto_offset_reset` is `error` unless given: a
            position outside the log is a message with an error, never a silent jump.
    """
    config: dict[str, Any] = {
        "group_id": group or f"{settings.cluster}.reader",
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "enable_partition_eof": True,
        "isolation_level": "read_committed",
        "auto_offset_reset": "error",
        "allow_auto_create_topics": False,
        "fetch_queue_backoff_ms": 2,
        "fetch_error_backoff_ms": 50,
        "queued_max_messages_kbytes": 64 * 1024,
        **overrides,
    }
    return Consumer(client_config(settings, **config), logger=log)


def producer(settings: Settings, **overrides: Any) -> Producer:
    """An idempotent producer (acks=all, order kept) for Keytide's largest messages, without linger.

    Set `compression_type` and `linger_ms` where many small messages go. Call `poll(0)` often: it runs the
    callbacks.
    """
    config: dict[str, Any] = {
        "enable_idempotence": True,
        "linger_ms": 0,
        "message_max_bytes": settings.topics.message_max_bytes,
        "queue_buffering_max_kbytes": 256 * 1024,
        "retry_backoff_ms": 50,
        "allow_auto_create_topics": False,
        **overrides,
    }
    return Producer(client_config(settings, **config), logger=log)


def lasting_producer(
    settings: Settings, topic: str, confirmed: Callable[[int], bool], **overrides: Any
) -> LastingProducer:
    """As `producer`, for as long as the process lives.

    Args:
        topic: what it writes to, for the log.
        confirmed: as `BrokerWatch`.
    """
    options = {**BROKER_STATISTICS, **overrides}
    return LastingProducer(lambda: producer(settings, **options), topic, BrokerWatch(confirmed))


def drain(source: Consumer, limit: int, timeout: float, linger: float = 0.0) -> list[Message]:
    """Up to `limit` messages, errors and end-of-partition events among them.

    Args:
        timeout: longest wait for the first.
        linger: longest further wait for the batch to fill; 0 takes what is there.
    """
    first = source.consume(1, timeout)
    if not first or limit <= 1:
        return first
    return first + source.consume(limit - 1, linger)


class TopicReader:
    """Reads partitions of one topic by manual assignment, outside any group.

    Args:
        settings: where Kafka is.
        topic: what to read.
        starts: first offset by partition (`OFFSET_BEGINNING` and `OFFSET_END` are allowed).
        overrides: librdkafka settings of the consumer, underscores for dots.

    Attributes:
        positions: next offset by partition, markers and cleaned records included; a partition is missing
            until something (a record or its end) was read from it.
        ended: partitions whose end was met after the last record that `poll` returned.
    """

    def __init__(self, settings: Settings, topic: str, starts: Mapping[int, int], **overrides: Any) -> None:
        self.topic = topic
        self.positions: dict[int, int] = {}
        self.ended: set[int] = set()
        self._consumer = consumer(settings, **{"auto_offset_reset": "earliest", **overrides})
        self._consumer.assign(
            [TopicPartition(topic, partition, start) for partition, start in starts.items()]
        )

    def poll(self, timeout: float = 0.0, limit: int = 10_000) -> list[Message]:
        """Records in offset order per partition: waits at most `timeout` for the first, takes what is there.

        Raises:
            KafkaUnavailableError: a partition cannot be read (the topic is gone, access is refused).
        """
        records = []
        for message in drain(self._consumer, limit, timeout):
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if error is None:
                self.positions[partition] = offset + 1
                self.ended.discard(partition)
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.positions[partition] = offset
                self.ended.add(partition)
            elif not error.retriable():
                raise KafkaUnavailableError(f"{self.topic} [{partition}] cannot be read: {error}")
        return records

    def hand_over(self) -> None:
        """Another thread reads from now on."""
        self._consumer.hand_over()

    def close(self) -> None:
        self._consumer.close()


class CatalogReader:
    """Follows the metadata topic and keeps a `Catalog` of it.

    `start` reads to the end that the topic has at that moment; `poll` then folds in what came since.
    `snapshot` is a copy for other threads.

    Attributes:
        catalog: what the topic says; `catalog.offset` counts every record read, and transaction markers.
    """

    def __init__(self, settings: Settings) -> None:
        self.catalog = Catalog()
        self._settings = settings
        self._topic = Topics(settings.cluster).metadata
        self._reader: TopicReader | None = None
        self._client: AdminClient | None = None
        self._watch: EndWatch | None = None

    def start(self, timeout: float = REQUEST_TIMEOUT_S) -> Catalog:
        """Wait for the topic, then read it to its present end.

        Raises:
            KafkaUnavailableError: not done within `timeout` seconds (a coordinator makes the topic when it
            first starts).
            UnknownVersionError: as `poll`.
        """
        deadline = time.monotonic() + timeout
        if self._client is None:  # (one for all tries)
            self._client = admin(self._settings)
        client = self._client
        while not describe_topics(client, [self._topic], max(1.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    f"topic {self._topic} is not there", next_step="start a coordinator: it makes the topic"
                )
            time.sleep(0.1)
        end = list_offsets(client, self._topic, [0], timeout=max(1.0, deadline - time.monotonic()))[0]
        # From 0: OFFSET_BEGINNING would be looked up half a second later, when the leader is not known yet.
        self._reader = TopicReader(self._settings, self._topic, {0: 0}, fetch_wait_max_ms=START_FETCH_WAIT_MS)
        while self._reader.positions.get(0, -1) < end:
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    f"{self._topic} was not read to its end {end} within {timeout:.0f} s"
                )
            self.poll(0.1)
        follower = TopicReader(self._settings, self._topic, {0: self._reader.positions[0]})
        self._reader.close()
        self._reader = follower
        client.close()
        self._client = None
        self._watch = EndWatch(lambda: admin(self._settings), self._topic)
        return self.catalog

    def poll(self, timeout: float = 0.0) -> list[tuple[str, Record | None]]:
        """What changed since: (key, new record or None for a deletion), in order.

        A record of a kind that this release does not know is left out and logged.

        Raises:
            UnknownVersionError: the cluster uses a version of the protocol that this release does not speak.
        """
        if self._reader is None:
            raise RuntimeError("CatalogReader.start was not called")
        changes: list[tuple[str, Record | None]] = []
        for message in self._reader.poll(timeout):
            name, offset = (message.key() or b"").decode(errors="replace"), message.offset() or 0
            try:
                changes.append((name, self.catalog.apply(name, message.value(), offset)))
            except (msgspec.MsgspecError, KeyError) as error:
                log.error(
                    "metadata record %s at offset %d is unreadable to this release: %s", name, offset, error
                )
        self.catalog.offset = max(self.catalog.offset, self._reader.positions.get(0, 0))
        self._replace_if_deaf(self._reader)
        return changes

    def _replace_if_deaf(self, reader: TopicReader) -> None:
        """Read on with another client when this one hears nothing though there is something."""
        position = reader.positions.get(0)
        if position is None or self._watch is None or not self._watch.stands_still(position):
            return
        log.warning("%s goes on, and nothing was heard of it: a new client reads on", self._topic)
        self._reader = TopicReader(self._settings, self._topic, {0: position})
        self._reader.positions[0] = position
        reader.close()

    def snapshot(self) -> Catalog:
        return self.catalog.copy()

    def hand_over(self) -> None:
        """Another thread reads from now on."""
        for one in (self._reader, self._client, self._watch):
            if one is not None:
                one.hand_over()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._client is not None:
            self._client.close()
            self._client = None
