"""How large queues are (see `coordinator.core.queue_sizes`). Blocks; one thread at a time.

Bytes on the brokers' disks only an admin request tells that librdkafka has not: kafka-python asks
(DescribeLogDirs, as `kafka-log-dirs.sh` does). Not all users may (DESCRIBE on the cluster).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from coordinator.core.queue_sizes import QueuePartition, QueueSize
from keytide.kafka.clients import AdminClient
from keytide.kafka.kafka_python import python_client
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0


def sizes_of(
    settings: Settings, client: AdminClient, topics: Sequence[str]
) -> dict[QueuePartition, QueueSize] | None:
    """The sizes of all partitions of `topics`; those that Kafka does not tell of now are left out. None when
    it tells none."""
    try:
        config = python_client(settings)
        if config is None:
            return None
        with closing(KafkaAdminClient(**config, request_timeout_ms=int(TIMEOUT_S * 1000))) as asking:
            counts = largest(asking.describe_log_dirs(list(topics)))
        begins = _offsets(client, counts, OffsetSpec.earliest)
        ends = _offsets(client, counts, OffsetSpec.latest)
    except (
        KafkaError,
        KafkaException,
        OSError,
        ValueError,
        LookupError,
    ) as error:  # also what it cannot read
        log.warning("how large queues are is not to be had: %s", error)
        return None
    found = {
        place: QueueSize(begins[place], ends[place], count)
        for place, count in counts.items()
        if place in begins and place in ends
    }
    if not found:
        log.warning("how large queues are is not to be had: no broker tells of any (may this user DESCRIBE?)")
    return found or None


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


def _offsets(
    client: AdminClient, places: Iterable[QueuePartition], which: Callable[[], OffsetSpec]
) -> dict[QueuePartition, int]:
    """An offset of each partition that has a leader."""
    spec = which()
    wanted = {TopicPartition(*place): spec for place in places}
    found: dict[QueuePartition, int] = {}
    for place, future in client.list_offsets(wanted, request_timeout=TIMEOUT_S).items() if wanted else ():
        try:
            found[place.topic, place.partition] = int(future.result(TIMEOUT_S).offset)
        except (KafkaException, TimeoutError) as error:
            log.info("%s [%d] is not measured now: %s", place.topic, place.partition, error)
    return found
