"""Questions to Kafka's admin API, and the few things that are made or removed through it.

Theory of operation: each call sends one request and waits for its answer, so none of them belongs on a hot
path. A thing that does not exist is an ordinary answer; everything else that goes wrong is
`KafkaUnavailableError`, to be tried again. Times are in seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from keytide.errors import RetryableError
from keytide.kafka.clients import AdminClient
from keytide.kafka.log_repeats import Repeats
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)
log.addFilter(Repeats())
_T = TypeVar("_T")

AnyAdminClient = confluent_kafka.admin.AdminClient
"""What is asked with: of this module, or a test's own."""

REQUEST_TIMEOUT_S = 30.0
CONTROLLER_S = 5.0
"""How long a client may wait for the controller that it knows before it asks who that is now."""
SETTLING_S = 3.0
"""How long a new topic, partition or leader may take until every broker and this client know it."""

_SETTLING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # (a broker that has not heard of a new one)
    }
)

ANSWER_MS = 15_000
"""A connection on which a request stays without an answer for so long is given up, and another broker asked.
By librdkafka's default, a minute, a broker whose link is cut one way holds back for as long what others could
have taken."""
COMMON: dict[str, Any] = {
    "socket_timeout_ms": ANSWER_MS,
    "socket_nagle_disable": True,
    "socket_keepalive_enable": True,
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 1_000,
    "topic_metadata_refresh_interval_ms": 10_000,
}
"""librdkafka settings of every client; underscores stand for dots.

A client forgets the brokers that are not in the newest list of them, and asks for that every five minutes by
default: one that was told while two of three brokers were down knew of the third alone for so long after they
had come back, and when that one went, too, it was without any, and stayed so (librdkafka 2.16)."""


class KafkaUnavailableError(RetryableError):
    """Kafka did not answer in time, or refused for a reason that passes."""

    problem_type = "kafka-unavailable"


def log_error(error: KafkaError) -> None:
    """librdkafka's connection troubles: it goes on trying by itself, so they are news, not failures."""
    log.log(logging.ERROR if error.fatal() else logging.INFO, "kafka: %s", error)


def error_code(error: BaseException) -> int | None:
    """The librdkafka error code inside a `KafkaException`, else None."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0].code()
    return None


class TopicInfo(NamedTuple):
    """What the broker says of a topic."""

    name: str
    id: str
    """Kafka's topic id: another one after the topic is deleted and made anew (R15)."""
    partitions: int


def client_config(settings: Settings, **overrides: Any) -> dict[str, Any]:
    """A librdkafka configuration: the user's pass-through settings, what all clients share, then `overrides`.

    Underscores in the names stand for dots, but for callables (`on_commit`), whose names have them.
    """
    values = {**COMMON, **overrides}
    callbacks = {name: values.pop(name) for name in list(values) if callable(values[name])}
    return {**settings.kafka.client(**values), "error_cb": log_error, **callbacks}


def admin(settings: Settings, **overrides: Any) -> AdminClient:
    """An admin client of one thread, which closes it; `overrides` are librdkafka settings, underscores for
    dots."""
    return AdminClient(client_config(settings, **overrides), logger=log)


def _result(future: Future[_T], timeout: float) -> _T:
    """The future's result; Kafka's own errors pass, a time-out becomes `KafkaUnavailableError`."""
    try:
        return future.result(timeout)
    except TimeoutError as error:
        raise KafkaUnavailableError(f"Kafka did not answer within {timeout:.0f} s") from error


def describe_topics(
    client: AnyAdminClient, names: Iterable[str], timeout: float = REQUEST_TIMEOUT_S
) -> dict[str, TopicInfo]:
    """Topics by name; those that do not exist are left out.

    Raises:
        KafkaUnavailableError: no answer, or a topic whose description is not to be had now.
    """
    names = list(names)
    if not names:
        return {}
    deadline = time.monotonic() + timeout
    try:
        return _described(client, names, min(CONTROLLER_S, timeout))
    except KafkaUnavailableError:
        if timeout <= CONTROLLER_S:
            raise
    find_controller(client, CONTROLLER_S)
    return _described(client, names, max(1.0, deadline - time.monotonic()))


def find_controller(client: AnyAdminClient, timeout: float) -> None:
    """Have a client learn who Kafka's controller is now.

    One without topics of its own never looks for another controller than the one that it knows, and a broker
    that is gone for good may be that. Metadata of any kind name the present one.

    Raises:
        KafkaUnavailableError: no answer.
    """
    try:
        client.list_topics(timeout=timeout)
    except KafkaException as error:
        raise KafkaUnavailableError(f"Kafka does not answer: {error}") from error


def _described(client: AnyAdminClient, names: list[str], timeout: float) -> dict[str, TopicInfo]:
    found: dict[str, TopicInfo] = {}
    futures = client.describe_topics(TopicCollection(names), request_timeout=timeout)
    for name, future in futures.items():
        try:
            description = _result(future, timeout + 1)  # the client's own word says more
        except KafkaException as error:
            if error_code(error) in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                continue
            raise KafkaUnavailableError(f"topic {name} cannot be described: {error}") from error
        found[name] = TopicInfo(name, str(description.topic_id), len(description.partitions))
    return found


def _refresh(client: AnyAdminClient, topic: str, timeout: float) -> None:
    """Make the client ask anew where the topic's partitions are: it answers from what it knew before they
    grew."""
    try:
        client.list_topics(topic, timeout=timeout)
    except KafkaException as error:
        raise KafkaUnavailableError(f"topic {topic} cannot be looked up: {error}") from error


def list_offsets(
    client: AnyAdminClient,
    topic: str,
    partitions: Iterable[int],
    *,
    earliest: bool = False,
    read_committed: bool = True,
    timeout: float = REQUEST_TIMEOUT_S,
) -> dict[int, int]:
    """Offsets by partition.

    Args:
        earliest: the log's start in place of its end.
        read_committed: the end for a read_committed reader (the last stable offset, below the first open
            transaction); False gives the high watermark.

    Raises:
        KafkaUnavailableError: no answer for one of the partitions.
    """
    where = OffsetSpec.earliest if earliest else OffsetSpec.latest
    spec: OffsetSpec = where()  # type: ignore[no-untyped-call]
    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    if not wanted:
        return {}
    settled = time.monotonic() + min(SETTLING_S, timeout)
    while True:
        futures = client.list_offsets(wanted, isolation_level=level, request_timeout=timeout)
        try:
            return {
                place.partition: _known(int(_result(future, timeout).offset))
                for place, future in futures.items()
            }
        except KafkaException as error:
            if error_code(error) not in _SETTLING or time.monotonic() > settled:
                raise KafkaUnavailableError(f"offsets of {topic} are not to be had: {error}") from error
        _refresh(client, topic, timeout)
        time.sleep(0.05)


def _known(offset: int) -> int:
    """An offset; a leader that was elected a moment ago may say -1."""
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return offset


def topic_config(client: AnyAdminClient, topic: str, timeout: float = REQUEST_TIMEOUT_S) -> dict[str, str]:
    """The topic's settings by name (`cleanup.policy`, `delete.retention.ms`, ...), defaults included."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        entries = _result(client.describe_configs([resource], request_timeout=timeout)[resource], timeout)
    except KafkaException as error:
        raise KafkaUnavailableError(f"settings of {topic} are not to be had: {error}") from error
    return {name: entry.value for name, entry in entries.items()}


def in_sync(replication_factor: int) -> int:
    """How many replicas must have what a producer is told is written (`min.insync.replicas`), so that one of
    three, and two of five, may be away."""
    return (replication_factor + 1) // 2


def create_topic(
    client: AnyAdminClient,
    name: str,
    partitions: int,
    replication_factor: int = 1,
    config: Mapping[str, str] | None = None,
    timeout: float = REQUEST_TIMEOUT_S,
) -> bool:
    """Create a topic and wait until the broker describes it; True when it was made now, False when it
    existed.

    Raises:
        KafkaUnavailableError: refused or no answer.
    """
    topic = NewTopic(name, partitions, replication_factor, config=dict(config or {}))
    try:
        _result(client.create_topics([topic], request_timeout=timeout)[name], timeout)
    except KafkaException as error:
        if error_code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise KafkaUnavailableError(f"topic {name} cannot be created: {error}") from error
    settled = time.monotonic() + min(SETTLING_S, timeout)
    while not describe_topics(client, [name], timeout) and time.monotonic() < settled:
        time.sleep(0.02)
    return True


def grow_topic(
    client: AnyAdminClient, name: str, partitions: int, timeout: float = REQUEST_TIMEOUT_S
) -> bool:
    """Give a topic that exists so many partitions, where it has fewer, and wait until the broker describes
    them; True when it had. One that has more keeps them.

    Raises:
        KafkaUnavailableError: refused or no answer, or there is no such topic (any more).
    """

    def count() -> int:
        info = describe_topics(client, [name], timeout).get(name)
        return info.partitions if info is not None else 0

    present = count()
    if present >= partitions:
        return False
    if not present:
        raise KafkaUnavailableError(f"topic {name} is there, and cannot be described yet")
    wanted = [NewPartitions(name, partitions)]
    try:
        _result(client.create_partitions(wanted, request_timeout=timeout)[name], timeout)
    except KafkaException as error:
        if error_code(error) != KafkaError.INVALID_PARTITIONS:  # (somebody else has given it as many)
            raise KafkaUnavailableError(f"topic {name} gets no more partitions: {error}") from error
    settled = time.monotonic() + min(SETTLING_S, timeout)
    while count() < partitions and time.monotonic() < settled:
        time.sleep(0.02)
    return True


def delete_topic(client: AnyAdminClient, name: str, timeout: float = REQUEST_TIMEOUT_S) -> bool:
    """Delete a topic; False when it did not exist.

    Raises:
        KafkaUnavailableError: refused or no answer.
    """
    try:
        _result(client.delete_topics([name], request_timeout=timeout)[name], timeout)
    except KafkaException as error:
        if error_code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise KafkaUnavailableError(f"topic {name} cannot be deleted: {error}") from error
    return True
