"""What the coordinator asks of Kafka's admin side: its own topics, queues, and the state of sources."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable
from typing import Self

from confluent_kafka import KafkaException
from msgspec.structs import replace

from coordinator.core.source_status import SourceStatus
from keytide.catalog.table_origin import TableOrigin
from keytide.kafka.admin import (
    SETTLING_S,
    KafkaUnavailableError,
    admin,
    create_topic,
    delete_topic,
    describe_topics,
    grow_topic,
    in_sync,
    list_offsets,
    topic_config,
)
from keytide.kafka.clients import AdminClient
from keytide.kafka.history import log_history
from keytide.model.hints import nearest
from keytide.model.timestamp import Place, Timestamp
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

CONFIG_AGE_S = 30.0
"""A source topic's settings are looked up this often."""
_HOUR_MS = 3_600_000


class KafkaAdminWork:
    """Admin requests, of one thread. Close it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timeout = float(settings.coordinator.request_timeout_s)
        self._client: AdminClient = admin(settings)
        self._configs: dict[str, tuple[float, dict[str, str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is under way."""
        self._client.close()

    def make_own_topics(self) -> None:
        """Metadata, control, reports and journals of builds, where they are missing.

        Raises:
            KafkaUnavailableError: Kafka is away or refuses.
        """
        topics = Topics(self._settings.cluster)
        size = {"max.message.bytes": str(self._settings.topics.message_max_bytes)}
        self._make(topics.metadata, 1, self._compacted())
        self.make_journals()
        # Both are only read at their end: control's tail says where timestamps stand, reports repeat.
        self._make(topics.control, 1, _expiring(2 * _HOUR_MS))
        self._make(topics.reports, 1, {**_expiring(_HOUR_MS), **size})

    def make_journals(self) -> None:
        """The topic of builds' journals, where it is missing: somebody may have deleted it.

        Raises:
            KafkaUnavailableError: Kafka is away or refuses.
        """
        self._make(Topics(self._settings.cluster).builds, 1, self._compacted())

    def _compacted(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "segment.ms": str(6 * _HOUR_MS),
            "max.message.bytes": str(self._settings.topics.message_max_bytes),
        }

    def make_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        """Queue topics (name, partitions). They keep everything until they are deleted (R34).

        A queue may be there from a preparation that its build did not begin after, and the index may have
        been altered since. It gets the partitions that it lacks; those that it has too many stay, and nobody
        writes to them. It is not made anew: a leader that was replaced, and does not know of it yet, would
        take away what the build has begun to fill.

        Raises:
            KafkaUnavailableError: Kafka is away or refuses.
        """
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(self._settings.topics.message_max_bytes),
        }
        for name, partitions in queues:
            if not self._make(name, partitions, config) and grow_topic(
                self._client, name, partitions, self._timeout
            ):
                log.info("queue %s was there with fewer partitions: now it has %d", name, partitions)

    def _make(self, name: str, partitions: int, config: dict[str, str]) -> bool:
        replicas = self._settings.topics.replication_factor
        config = {**config, "min.insync.replicas": str(in_sync(replicas))}
        return create_topic(self._client, name, partitions, replicas, config, self._timeout)

    def delete(self, topics: Iterable[str]) -> None:
        """Delete topics; one that does not exist is fine.

        Raises:
            KafkaUnavailableError: Kafka is away or refuses.
        """
        for name in topics:
            delete_topic(self._client, name, self._timeout)

    def all_topics(self) -> list[str]:
        """Names of all topics in Kafka.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        try:
            return sorted(self._client.list_topics(timeout=self._timeout).topics)
        except KafkaException as error:
            raise KafkaUnavailableError(f"topics cannot be listed: {error}") from error

    def end(self, topic: str) -> int:
        """The end of partition 0.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        return list_offsets(self._client, topic, [0], timeout=self._timeout)[0]

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The ends of a queue's partitions.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        numbers = range(partitions)
        return list_offsets(self._client, topic, numbers, read_committed=False, timeout=self._timeout)

    def sample_settled(self, keyspace: str) -> SourceStatus:
        """`sample`; but that there is no such topic is believed only after SETTLING_S: the broker that is
        asked may not know yet of a topic that was made a moment ago.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        settled = time.monotonic() + min(SETTLING_S, self._timeout)
        while not (source := self.sample(keyspace)).exists and time.monotonic() < settled:
            time.sleep(0.05)
        if source.exists:
            return source
        return dataclasses.replace(source, similar_topic=self._similar_topic(keyspace))

    def _similar_topic(self, keyspace: str) -> str:
        """A topic of documents with a name like `keyspace`; "" when there is none, or none to be had now."""
        own = ("__", f"{self._settings.cluster}.")
        try:
            topics = self.all_topics()
        except KafkaUnavailableError as error:
            log.info("no hint at what %s may have meant: %s", keyspace, error)
            return ""
        return nearest(keyspace, (name for name in topics if not name.startswith(own))) or ""

    def sample(self, keyspace: str) -> SourceStatus:
        """What Kafka says of a source topic now; with `topic_id` "" when there is none.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        now = now_ms()
        info = describe_topics(self._client, [keyspace], self._timeout).get(keyspace)
        if info is None:
            self._configs.pop(keyspace, None)
            return SourceStatus(keyspace, "", {}, {}, {}, False, 0, 0, now)
        config = self._config(keyspace)
        partitions = range(info.partitions)
        return SourceStatus(
            keyspace=keyspace,
            topic_id=info.id,
            earliest=list_offsets(self._client, keyspace, partitions, earliest=True, timeout=self._timeout),
            stable=list_offsets(self._client, keyspace, partitions, timeout=self._timeout),
            high=list_offsets(
                self._client, keyspace, partitions, read_committed=False, timeout=self._timeout
            ),
            compacted="compact" in config.get("cleanup.policy", ""),
            delete_retention_ms=int(config.get("delete.retention.ms", "0")),
            min_compaction_lag_ms=int(config.get("min.compaction.lag.ms", "0")),
            sampled_at=now,
        )

    def with_epochs(self, origin: TableOrigin, keyspace: str) -> TableOrigin:
        """A table that a build is to begin with, with the leader epochs that the log has at its offsets.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        known = log_history(self._settings, keyspace, self._timeout).partitions
        places = sorted((p, offset) for p, offset in origin.offsets.items() if p in known)
        return replace(origin, epochs={p: known[p].epoch_below(offset) for p, offset in places})

    def lost(self, keyspace: str, read: Timestamp) -> dict[int, Place]:
        """The partitions whose place in `read` is not on the log any more, with where the histories part;
        none when the topic is another one (`sample` says so).

        Raises:
            KafkaUnavailableError: Kafka is away, or a leader answers that was replaced.
        """
        places = read.places
        if not places:
            return {}
        down_to = {partition: place.epoch for partition, place in places.items()}
        history = log_history(self._settings, keyspace, self._timeout, down_to=down_to, partitions=places)
        if history.topic_id != read.topic_id:
            return {}
        if any(history.stale(partition, place.epoch) for partition, place in places.items()):
            raise KafkaUnavailableError(f"a leader of {keyspace} that was replaced still answers")
        return history.diverging(places)

    def _config(self, topic: str) -> dict[str, str]:
        known = self._configs.get(topic)
        if known is None or time.monotonic() - known[0] > CONFIG_AGE_S:
            known = self._configs[topic] = (
                time.monotonic(),
                topic_config(self._client, topic, self._timeout),
            )
        return known[1]


def _expiring(ms: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(ms), "segment.ms": str(ms // 4)}
