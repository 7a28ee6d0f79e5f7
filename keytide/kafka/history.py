"""Asks Kafka for the past of a topic: leader epochs and where they end (`keytide.model.log_history` judges).

Theory of operation: Kafka answers OffsetForLeaderEpoch(e) with the largest epoch of its log that is not above
e, and that epoch's end. From the leader's epoch downwards this gives the whole chain of branches, one round
per branch; rounds are few, for an epoch begins only when a leader changes. Every request names the leader
epoch that the metadata said, so that a leader which was replaced, and does not know it yet, refuses.

librdkafka does this for its own positions only and cannot be asked, so the requests go out by kafka-python.
Where that cannot reach the cluster (see `keytide.kafka.kafka_python`), offsets alone are checked.

A client is made for each call, and a call is rare: a partition is taken over, a leader has changed, a loss is
examined. Times are in seconds.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from keytide.kafka.admin import KafkaUnavailableError, admin, describe_topics, list_offsets
from keytide.kafka.kafka_python import python_client
from keytide.kafka.topics import consumer
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
_EARLIEST, _LATEST = -2, -1


def partings(
    settings: Settings,
    topic: str,
    history: LogHistory,
    places: Mapping[int, Place],
    timeout: float,
) -> dict[int, Place]:
    """The partitions whose place is no longer on the log, with where the histories part. That the topic is
    still the same one is the caller's to know.

    A place whose tail is of a later epoch than its last record is on the log if that record is, and nothing
    that can be read lies between: this is looked up where it matters.

    Args:
        history: of the topic, down to the epochs of the places.
        places: partition -> next offset, and the epoch of the last record below it (-1 unknown: then only
            the offset is held against the high watermark).

    Raises:
        KafkaUnavailableError: no answer within `timeout`.
    """
    deadline = time.monotonic() + timeout
    found = history.diverging(places)
    for partition, parting in list(found.items()):
        place, known = places[partition], history.partitions.get(partition)
        end = place.offset - place.tail
        if known is None or end > parting.offset or place.offset > known.high:
            continue
        if known.parting(Place(end, place.epoch)) is None and not holds_records(
            settings, topic, partition, end, place.offset, deadline - time.monotonic()
        ):
            del found[partition]
    return found


def log_history(
    settings: Settings,
    topic: str,
    timeout: float,
    *,
    down_to: Mapping[int, int] | None = None,
    partitions: Iterable[int] | None = None,
) -> LogHistory:
    """The past of partitions of a topic; empty when there is no such topic.

    Args:
        down_to: partition -> epoch below which nothing need be known; 0 where it does not say.
        partitions: all when None. One that the topic has not is missing in the answer.

    Raises:
        KafkaUnavailableError: no answer within `timeout` (a partition has no leader, Kafka is away).
    """
    deadline = time.monotonic() + timeout
    config = python_client(settings)
    if config is None:
        return _by_offsets(settings, topic, timeout)
    while True:
        try:
            with _Client(config, topic, deadline) as client:
                return client.history(down_to or {}, None if partitions is None else set(partitions))
        except (errors.KafkaError, OSError) as error:  # (some of them say what was refused, some where)
            reason = f"{type(error).__name__} {error}".strip()
            if time.monotonic() + RETRY_S > deadline:
                raise KafkaUnavailableError(f"the history of {topic} is not to be had: {reason}") from error
            log.debug("the history of %s is asked for again: %s", topic, reason)
        time.sleep(RETRY_S)


def holds_records(
    settings: Settings, topic: str, partition: int, start: int, end: int, timeout: float
) -> bool:
    """Whether a read_committed reader meets a record in [start, end), or cannot come as far as `end`.

    Raises:
        KafkaUnavailableError: no answer within `timeout`.
    """
    deadline = time.monotonic() + timeout
    reader = consumer(settings)
    try:
        reader.assign([TopicPartition(topic, partition, start)])
        while (left := deadline - time.monotonic()) > 0:
            message = reader.poll(left)
            if message is None:
                continue
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                return (message.offset() or 0) < end
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                return True
    except KafkaException as error:
        raise KafkaUnavailableError(f"{topic} [{partition}] cannot be read: {error}") from error
    finally:
        reader.close()
    raise KafkaUnavailableError(f"{topic} [{partition}] was not read up to {end} within {timeout:.0f} s")


def _by_offsets(settings: Settings, topic: str, timeout: float) -> LogHistory:
    """The ends of the logs alone."""
    with admin(settings) as client:
        info = describe_topics(client, [topic], timeout).get(topic)
        if info is None:
            return LogHistory()
        numbers = range(info.partitions)
        low = list_offsets(client, topic, numbers, earliest=True, timeout=timeout)
        high = list_offsets(client, topic, numbers, read_committed=False, timeout=timeout)
        stable = list_offsets(client, topic, numbers, timeout=timeout)
    partitions = {n: PartitionHistory(low[n], high[n], stable=stable[n]) for n in numbers}
    return LogHistory(info.id, partitions)


# --- requests -----------------------------------------------------------------------------------------------


class _Leader(NamedTuple):
    node: int
    epoch: int


class _Client:
    """One connection's worth of questions about one topic. Errors are kafka-python's."""

    def __init__(self, config: Mapping[str, Any], topic: str, deadline: float) -> None:
        self._topic, self._deadline = topic, deadline
        limit = {"request_timeout_ms": self._left(), "reconnect_backoff_max_ms": 1000}
        self._client = KafkaNetClient(**{**config, **limit})

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _left(self) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise errors.KafkaTimeoutError("no time left")
        return max(1, int(1000 * left))

    def history(self, down_to: Mapping[int, int], wanted: Container[int] | None) -> LogHistory:
        self._client.check_version(timeout_ms=self._left())
        topic_id, leaders = self._leaders(wanted)
        if not topic_id:
            return LogHistory()
        low = self._offsets(leaders, _EARLIEST)
        chains = self._chains(leaders, low, down_to)
        high, stable = self._offsets(leaders, _LATEST), self._offsets(leaders, _LATEST, committed=True)
        partitions = {
            number: PartitionHistory(low[number], high[number], leader.epoch, chains[number], stable[number])
            for number, leader in sorted(leaders.items())
        }
        return LogHistory(topic_id, partitions)

    def _leaders(self, wanted: Container[int] | None) -> tuple[str, dict[int, _Leader]]:
        topic = MetadataRequest.MetadataRequestTopic(name=self._topic)
        node = self._client.least_loaded_node()
        answer = self._ask(node, MetadataRequest(topics=[topic], allow_auto_topic_creation=False))
        (told,) = answer.topics
        if told.error_code == errors.UnknownTopicOrPartitionError.errno:
            return "", {}
        _check(told.error_code, self._topic)
        leaders: dict[int, _Leader] = {}
        for one in told.partitions:
            if wanted is not None and one.partition_index not in wanted:
                continue
            _check(one.error_code, f"{self._topic} [{one.partition_index}]")
            leaders[one.partition_index] = _Leader(one.leader_id, one.leader_epoch)
        topic_id = base64.b64encode(told.topic_id.bytes).rstrip(b"=").decode()
        return topic_id, leaders

    def _chains(
        self, leaders: Mapping[int, _Leader], low: Mapping[int, int], down_to: Mapping[int, int]
    ) -> dict[int, tuple[tuple[int, int], ...]]:
        """From the leader's epoch downwards: each answer is one branch; the next question is for the epoch
        below."""
        chains: dict[int, list[tuple[int, int]]] = {number: [] for number in leaders}
        asked = {number: leader.epoch for number, leader in leaders.items()}
        while asked:
            answers = self._epoch_ends(leaders, asked)
            asked = {}
            for number, (epoch, end) in answers.items():
                chain = chains[number]
                if epoch < 0 or end < 0 or (chain and end <= low[number]):
                    continue  # nothing is left of what came before
                chain.append((epoch, end))
                if epoch > max(0, down_to.get(number, 0)):
                    asked[number] = epoch - 1
        return {number: tuple(reversed(chain)) for number, chain in chains.items()}

    def _epoch_ends(
        self, leaders: Mapping[int, _Leader], asked: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        for node, numbers in _by_node(leaders, asked).items():
            places = [
                of_topic.OffsetForLeaderPartition(
                    partition=number, current_leader_epoch=leaders[number].epoch, leader_epoch=asked[number]
                )
                for number in numbers
            ]
            request = OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[of_topic(topic=self._topic, partitions=places)]
            )
            for topic in self._ask(node, request).topics:
                for one in topic.partitions:
                    _check(one.error_code, f"{self._topic} [{one.partition}]")
                    found[one.partition] = (one.leader_epoch, one.end_offset)
        return found

    def _offsets(
        self, leaders: Mapping[int, _Leader], which: int, *, committed: bool = False
    ) -> dict[int, int]:
        found: dict[int, int] = {}
        of_topic = ListOffsetsRequest.ListOffsetsTopic
        for node, numbers in _by_node(leaders, leaders).items():
            places = [
                of_topic.ListOffsetsPartition(
                    partition_index=number, current_leader_epoch=leaders[number].epoch, timestamp=which
                )
                for number in numbers
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(committed),
                topics=[of_topic(name=self._topic, partitions=places)],
            )
            for topic in self._ask(node, request).topics:
                for one in topic.partitions:
                    _check(one.error_code, f"{self._topic} [{one.partition_index}]")
                    found[one.partition_index] = one.offset
        return found

    def _ask(self, node: int, request: Any) -> Any:
        return self._client.send_and_receive(node, request, timeout_ms=self._left())


def _by_node(leaders: Mapping[int, _Leader], numbers: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number in numbers:
        found.setdefault(leaders[number].node, []).append(number)
    return found


def _check(code: int, what: str) -> None:
    if code:
        raise errors.for_code(code)(what)
