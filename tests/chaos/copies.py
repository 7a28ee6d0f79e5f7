"""Duplicates: what lies in Keytide's own queues is appended to them once more, byte for byte."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

LIMIT_S = 15.0


def queues(bootstrap: str, cluster: str, kind: str) -> list[TopicPartition]:
    """All partitions of the cluster's queues of a kind (`mutations`, `backfill`)."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=LIMIT_S).topics
    return [
        TopicPartition(name, partition)
        for name in sorted(topics)
        if name.startswith(f"{cluster}.{kind}.")
        for partition in sorted(topics[name].partitions)
    ]


def copy_tails(bootstrap: str, cluster: str, kind: str, count: int, index: str = "") -> int:
    """Append the last `count` messages of each queue partition to it again, in their order; how many.

    Args:
        index: only queues in whose name this occurs.
    """
    copied = 0
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.max.bytes": 40_000_000,
            "linger.ms": 0,
        }
    )
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "chaos-copies", "enable.auto.commit": False}
    )
    try:
        for place in queues(bootstrap, cluster, kind):
            if index not in place.topic:
                continue
            low, high = consumer.get_watermark_offsets(place, timeout=LIMIT_S)
            for value in _read(consumer, place, max(low, high - count), high):
                producer.produce(place.topic, value, partition=place.partition)
                copied += 1
        if producer.flush(LIMIT_S):
            raise TimeoutError("the copies were not taken")
    finally:
        consumer.close()
    return copied


def _read(consumer: Consumer, place: TopicPartition, start: int, end: int) -> list[bytes]:
    if start >= end:
        return []
    consumer.assign([TopicPartition(place.topic, place.partition, start)])
    found: list[bytes] = []
    at = start
    while at < end:
        message = consumer.poll(LIMIT_S)
        if message is None:
            raise TimeoutError(f"{place.topic}[{place.partition}] is not readable to {end}")
        error = message.error()
        if error is not None:
            if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                return []  # trimmed meanwhile
            continue
        at = (message.offset() or 0) + 1
        found.append(message.value() or b"")
    return found
