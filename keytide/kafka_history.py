"""Asks Kafka for the past of a topic: leader epochs and where they end (`keytide.log_history` judges).

Theory of operation: Kafka answers OffsetForLeaderEpoch(e) with the largest epoch of its log that is not above
e, and that epoch's end. From the leader's epoch downwards this gives the whole chain of branches, one round
per branch; rounds are few, for an epoch begins only when a leader changes. Every request names the leader
epoch that the metadata said, so that a leader which was replaced, and does not know it yet, refuses.

librdkafka does this for its own positions only and cannot be asked, so the requests go out by kafka-python.
Its names for SASL and TLS are others: `python_client` translates them. What it cannot do (OAUTHBEARER, PKCS12
key stores) leaves the check of offsets alone, and says so once.

A client is made for each call, and a call is rare: a partition is taken over, a leader has changed, a loss is
examined. Times are in seconds.
"""

from __future__ import annotations

import base64
import logging
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from keytide.kafka import consumer
from keytide.kafka_admin import KafkaUnavailableError, admin, describe_topics, list_offsets
from keytide.log_history import LogHistory, PartitionHistory
from keytide.settings import Settings
from keytide.timestamp import Place

__all__ = ["LogHistory", "PartitionHistory", "diverging", "holds_records", "log_history", "python_client"]

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
_EARLIEST, _LATEST = -2, -1
_PLAIN_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_told: set[str] = set()


def diverging(
    settings: Settings,
    topic: str,
    places: Mapping[int, Place],
    timeout: float,
    *,
    record_ends: Mapping[int, int] | None = None,
) -> dict[int, Place]:
    """The partitions whose place is no longer on the log, with where the histories part.

    Args:
        places: partition -> next offset, and the epoch of the last record below it (-1 unknown: then only
            the offset is held against the high watermark).
        record_ends: partition -> where the last record below the place ends. A reader's position may lie
            past it, behind transaction markers, which may be of a later epoch than the record. Such a place
            is right if the record is on the log and nothing that can be read lies between.

    Raises:
        KafkaUnavailableError: no answer within `timeout`.
    """
    deadline = time.monotonic() + timeout
    epochs = {partition: place.epoch for partition, place in places.items() if place.epoch >= 0}
    history = log_history(settings, topic, timeout, down_to=epochs)
    found = history.diverging(places)
    for partition, parting in list(found.items()):
        place, end = places[partition], (record_ends or {}).get(partition, places[partition].offset)
        known = history.partitions.get(partition)
        if known is None or place.offset > known.high or end > parting.offset:
            continue
        if known.parting(Place(end, place.epoch)) is None and not holds_records(
            settings, topic, partition, end, place.offset, deadline - time.monotonic()
        ):
            del found[partition]
    return found


def log_history(
    settings: Settings, topic: str, timeout: float, *, down_to: Mapping[int, int] | None = None
) -> LogHistory:
    """The past of every partition of a topic; empty when there is no such topic.

    Args:
        down_to: partition -> epoch below which nothing need be known; 0 where it does not say.

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
                return client.history(dict(down_to or {}))
        except (errors.KafkaError, OSError) as error:  # (some of them say what was refused, some where)
            reason = f"{type(error).__name__} {error}".strip()
            if time.monotonic() + RETRY_S > deadline:
                raise KafkaUnavailableError(f"the history of {topic} is not to be had: {reason}") from error
            log.info("the history of %s is asked for again: %s", topic, reason)
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
    client = admin(settings)
    info = describe_topics(client, [topic], timeout).get(topic)
    if info is None:
        return LogHistory()
    numbers = range(info.partitions)
    low = list_offsets(client, topic, numbers, earliest=True, timeout=timeout)
    high = list_offsets(client, topic, numbers, read_committed=False, timeout=timeout)
    return LogHistory(info.id, {number: PartitionHistory(low[number], high[number]) for number in numbers})


# --- the other client's names -------------------------------------------------------------------------------


def python_client(settings: Settings) -> dict[str, Any] | None:
    """kafka-python's configuration for the cluster that `[kafka]` names; None when it has no words for it.

    Raises:
        OSError: a certificate or key file cannot be read.
    """
    said = {name: str(value) for name, value in (settings.kafka.model_extra or {}).items()}
    protocol = said.get("security.protocol", "plaintext").upper()
    config: dict[str, Any] = {
        "bootstrap_servers": settings.kafka.bootstrap.split(","),
        "security_protocol": protocol,
        "client_id": said.get("client.id", "keytide"),
    }
    if protocol.startswith("SASL"):
        mechanism = (said.get("sasl.mechanisms") or said.get("sasl.mechanism") or "GSSAPI").upper()
        config["sasl_mechanism"] = mechanism
        if mechanism in _PLAIN_MECHANISMS:
            config["sasl_plain_username"] = said.get("sasl.username", "")
            config["sasl_plain_password"] = said.get("sasl.password", "")
        elif mechanism == "GSSAPI":
            config["sasl_kerberos_service_name"] = said.get("sasl.kerberos.service.name", "kafka")
        else:
            _tell_offsets_only(f"sasl.mechanism={mechanism}")
            return None
    if protocol.endswith("SSL"):
        stores = {"ssl.keystore.location", "ssl.certificate.pem", "ssl.key.pem", "ssl.engine.location"}
        if unknown := sorted(stores & said.keys()):
            _tell_offsets_only(", ".join(unknown))
            return None
        config["ssl_context"] = _tls(said)
    return config


def _tell_offsets_only(what: str) -> None:
    if what not in _told:
        _told.add(what)
        log.error(
            "leader epochs cannot be asked for with %s: only offsets past the end of a log are noticed as "
            "lost; use PLAIN, SCRAM or GSSAPI, and keys in PEM files",
            what,
        )


def _tls(said: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority = said.get("ssl.ca.location", "probe")
    if "ssl.ca.pem" in said:
        context = ssl.create_default_context(cadata=said["ssl.ca.pem"])
    elif authority != "probe":
        context = ssl.create_default_context(cafile=authority)
    if "ssl.certificate.location" in said:
        context.load_cert_chain(
            said["ssl.certificate.location"], said.get("ssl.key.location"), said.get("ssl.key.password")
        )
    if "ssl.crl.location" in said:
        context.load_verify_locations(cafile=said["ssl.crl.location"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if said.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if said.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


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

    def history(self, down_to: Mapping[int, int]) -> LogHistory:
        self._client.check_version(timeout_ms=self._left())
        topic_id, leaders = self._leaders()
        if not topic_id:
            return LogHistory()
        low = self._offsets(leaders, _EARLIEST)
        chains = self._chains(leaders, low, down_to)
        high = self._offsets(leaders, _LATEST)
        partitions = {
            number: PartitionHistory(low[number], high[number], leader.epoch, chains[number])
            for number, leader in sorted(leaders.items())
        }
        return LogHistory(topic_id, partitions)

    def _leaders(self) -> tuple[str, dict[int, _Leader]]:
        topic = MetadataRequest.MetadataRequestTopic(name=self._topic)
        node = self._client.least_loaded_node()
        answer = self._ask(node, MetadataRequest(topics=[topic], allow_auto_topic_creation=False))
        (told,) = answer.topics
        if told.error_code == errors.UnknownTopicOrPartitionError.errno:
            return "", {}
        _check(told.error_code, self._topic)
        leaders: dict[int, _Leader] = {}
        for one in told.partitions:
            _check(one.error_code, f"{self._topic} [{one.partition_index}]")
            leaders[one.partition_index] = _Leader(one.leader_id, one.leader_epoch)
        topic_id = base64.urlsafe_b64encode(told.topic_id.bytes).rstrip(b"=").decode()
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

    def _offsets(self, leaders: Mapping[int, _Leader], which: int) -> dict[int, int]:
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
                replica_id=-1, isolation_level=0, topics=[of_topic(name=self._topic, partitions=places)]
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
