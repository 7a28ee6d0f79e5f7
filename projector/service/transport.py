"""What the projector's shell asks of Kafka, as protocols, and Kafka behind them.

Theory of operation: the shell makes every client by one `Transport` that it is given, and takes its clocks as
arguments. So the simulation runs the shell's own loop, on a Kafka of its own (`tests/simulation`). The
protocols say no more than what the shell uses; messages, places and errors are confluent-kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Protocol, overload

from confluent_kafka import Message, TopicPartition

from keytide.catalog.catalog import Catalog
from keytide.kafka import history as kafka_history
from keytide.kafka import topics as kafka
from keytide.kafka.clients import BROKER_STATISTICS
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.lasting_producer import MessageProducer
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Place
from keytide.settings.settings import Settings


class GroupConsumer(Protocol):
    """A member of a consumer group (`confluent_kafka.Consumer`). Callbacks run within `consume` and
    `close`."""

    @property
    def has_broker(self) -> bool: ...

    def subscribe(
        self,
        topics: list[str],
        *,
        on_assign: Callable[[Any, list[TopicPartition]], None],
        on_revoke: Callable[[Any, list[TopicPartition]], None],
        on_lost: Callable[[Any, list[TopicPartition]], None],
    ) -> None: ...

    def unsubscribe(self) -> None: ...

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]: ...

    def pause(self, partitions: list[TopicPartition]) -> None: ...

    def resume(self, partitions: list[TopicPartition]) -> None: ...

    def seek(self, partition: TopicPartition) -> None: ...

    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]: ...

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool = False) -> Any: ...

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]: ...

    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True]) -> None: ...

    @overload
    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: Literal[False]
    ) -> list[TopicPartition]: ...

    def close(self) -> None: ...


class CatalogFollower(Protocol):
    """Follows the metadata topic (`keytide.kafka.topics.CatalogReader`)."""

    catalog: Catalog

    def start(self, timeout: float = ...) -> Catalog: ...

    def poll(self, timeout: float = ...) -> Collection[object]: ...

    def close(self) -> None: ...


class IdentityCheck(Protocol):
    """Which Kafka this is (`keytide.kafka.identity.KafkaIdentity`)."""

    def look(self) -> None: ...

    def open(self) -> object: ...

    def check(self) -> None: ...

    def confirmed(self, since: int) -> bool: ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Makes the shell's clients, and asks for the past of topics. Options are librdkafka's settings,
    underscores for dots."""

    def consumer(self, group: str, **options: Any) -> GroupConsumer: ...

    def producer(self, **options: Any) -> MessageProducer: ...

    def catalog(self) -> CatalogFollower: ...

    def identity(self) -> IdentityCheck: ...

    def log_history(
        self,
        topic: str,
        timeout: float,
        *,
        down_to: Mapping[int, int] | None = None,
        partitions: Iterable[int] | None = None,
    ) -> LogHistory:
        """As `keytide.kafka.history.log_history`."""

    def partings(
        self, topic: str, history: LogHistory, places: Mapping[int, Place], timeout: float
    ) -> dict[int, Place]:
        """As `keytide.kafka.history.partings`."""


class KafkaTransport:
    """The `Transport` of a process.

    Args:
        settings: where Kafka is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def consumer(self, group: str, **options: Any) -> GroupConsumer:
        return kafka.consumer(self._settings, group=group, **BROKER_STATISTICS, **options)

    def producer(self, **options: Any) -> MessageProducer:
        return kafka.producer(self._settings, **BROKER_STATISTICS, **options)

    def catalog(self) -> CatalogFollower:
        return kafka.CatalogReader(self._settings)

    def identity(self) -> IdentityCheck:
        return KafkaIdentity(self._settings)

    def log_history(
        self,
        topic: str,
        timeout: float,
        *,
        down_to: Mapping[int, int] | None = None,
        partitions: Iterable[int] | None = None,
    ) -> LogHistory:
        return kafka_history.log_history(
            self._settings, topic, timeout, down_to=down_to, partitions=partitions
        )

    def partings(
        self, topic: str, history: LogHistory, places: Mapping[int, Place], timeout: float
    ) -> dict[int, Place]:
        return kafka_history.partings(self._settings, topic, history, places, timeout)
