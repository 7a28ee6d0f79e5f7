"""How large queues are (see `coordinator.core.queue_sizes`). Blocks; one thread at a time.

Bytes on the brokers' disks, and what is free there, only an admin request tells that librdkafka has not:
kafka-python asks (DescribeLogDirs, as `kafka-log-dirs.sh` does). Not all users may (DESCRIBE on the cluster).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from coordinator.core.queue_sizes import KafkaDisk, QueuePartition, QueueSize
from keytide.kafka.clients import AdminClient
from keytide.kafka.kafka_python import python_client
from keytide.kafka.log_repeats import Repeats
from keytide.settings.settings import Settings

TIMEOUT_S: Final = 10.0
TOLD_S: Final = 600.0
"""Between lines about one trouble: Kafka is asked every few seconds."""
UNTOLD: Final = (KafkaError, KafkaException, OSError, ValueError, LookupError)
"""What asking ends with when Kafka does not say; also an answer that cannot be read."""

log = logging.getLogger(__name__)
log.addFilter(Repeats(TOLD_S))


class ToldSizes(NamedTuple):
    """What Kafka says of some topics."""

    queues: dict[QueuePartition, QueueSize]
    disks: tuple[KafkaDisk, ...]


class SizeReader:
    """Asks for sizes, on a connection that stays open while it is of use.

    Args:
        client: for offsets; who made it closes it.
    """

    def __init__(self, settings: Settings, client: AdminClient) -> None:
        self._settings = settings
        self._client = client
        self._asking: KafkaAdminClient | None = None

    def close(self) -> None:
        """Be done with the connection; the next question opens another one."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()

    def sizes(self, topics: Sequence[str]) -> ToldSizes | None:
        """The sizes of all partitions of `topics`, and the disks that they lie on; what Kafka does not tell
        of now is left out. None when it tells no size."""
        try:
            if self._asking is None:
                config = python_client(self._settings)
                if config is None:
                    return None
                self._asking = KafkaAdminClient(**config, request_timeout_ms=int(TIMEOUT_S * 1000))
            told = self._asking.describe_log_dirs(list(topics))
            counts, disks = largest(told), disks_of(told)
            begins = _offsets(self._client, counts, OffsetSpec.earliest)
            ends = _offsets(self._client, counts, OffsetSpec.latest)
        except UNTOLD as error:
            log.warning("how large queues are is not to be had: %s", error)
            self.close()
            return None
        found = {
            place: QueueSize(begins[place], ends[place], count)
            for place, count in counts.items()
            if place in begins and place in ends
        }
        answer = ToldSizes(found, disks) if found else None
        if {topic for topic, _ in counts}.issuperset(topics):
            return answer
        self.close()  # the brokers may be other ones by now
        if not found:
            log.warning("how large queues are is not to be had: no broker tells (may this user DESCRIBE?)")
        return answer


def largest(brokers: Iterable[Mapping[str, Any]]) -> dict[QueuePartition, int]:
    """Of each partition the bytes of its largest replica.

    Args:
        brokers: what each says of its folders.
    """
    found: dict[QueuePartition, int] = {}
    for broker in brokers:
        for folder in broker["log_dirs"]:
            for topic in folder["topics"]:
                for one in topic["partitions"]:
                    place = topic["name"], one["partition_index"]
                    found[place] = max(found.get(place, 0), one["partition_size"])
    return found


def disks_of(brokers: Iterable[Mapping[str, Any]]) -> tuple[KafkaDisk, ...]:
    """The disks of all brokers' folders; none of a Kafka before 3.3, which does not tell (KIP-827).

    Args:
        brokers: what each says of its folders.
    """
    return tuple(
        KafkaDisk(
            broker["broker"],
            folder["log_dir"],
            folder["usable_bytes"],
            folder["total_bytes"],
            frozenset(
                (topic["name"], one["partition_index"])
                for topic in folder["topics"]
                for one in topic["partitions"]
            ),
        )
        for broker in brokers
        for folder in broker["log_dirs"]
        if folder.get("usable_bytes", -1) >= 0
    )


def _offsets(
    client: AdminClient, places: Iterable[QueuePartition], which: Callable[[], OffsetSpec]
) -> dict[QueuePartition, int]:
    """An offset of each partition that has a leader."""
    spec = which()
    wanted = {TopicPartition(*place): spec for place in places}
    found: dict[QueuePartition, int] = {}
    for place, future in client.list_offsets(wanted, request_timeout=TIMEOUT_S).items() if wanted else ():
        try:
            if (offset := int(future.result(TIMEOUT_S).offset)) >= 0:  # (a new leader may not know it yet)
                found[place.topic, place.partition] = offset
        except (KafkaException, TimeoutError) as error:
            log.info("%s [%d] is not measured now: %s", place.topic, place.partition, error)
    return found
