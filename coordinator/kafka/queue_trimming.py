"""Deleting from mutation queues (see `coordinator.queues.trimming`). Blocks; one thread at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from coordinator.core.events import QueuesTrimmed
from coordinator.core.instructions import QueueLimit
from coordinator.kafka.queue_sizes import SizeReader
from coordinator.queues.trim_guard import because, stays_from
from keytide.kafka.admin import KafkaUnavailableError, admin, list_offsets
from keytide.kafka.clients import AdminClient
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0


class QueueWork:
    """Admin requests about queues."""

    def __init__(self, settings: Settings) -> None:
        self._client: AdminClient = admin(settings)
        self._sizes = SizeReader(settings, self._client)

    def close(self) -> None:
        """Wait for what is under way."""
        self._sizes.close()
        self._client.close()

    def trim(self, limits: Sequence[QueueLimit], measured: Sequence[str] = ()) -> QueuesTrimmed:
        """Delete what is needed no more, then see how large queues are. A queue that Kafka does not trim now
        (it is gone, or has no leader) is left out.

        Args:
            measured: topics whose sizes are wanted.
        """
        reached: dict[tuple[str, int], int] = {}
        expired: list[tuple[str, int]] = []
        removed = 0
        by_topic: dict[str, list[QueueLimit]] = {}
        for limit in limits:
            by_topic.setdefault(limit.topic, []).append(limit)
        for topic, mine in sorted(by_topic.items()):
            try:
                gone = self._trim_topic(topic, mine, reached)
            except KafkaUnavailableError as error:
                log.info("%s is not trimmed now: %s", topic, error)
                continue
            removed += sum(gone.values())
            expired += [(topic, one.partition) for one in mine if one.older_than and gone.get(one.partition)]
        told = self._sizes.sizes(measured) if measured else None
        sizes, disks = told or (None, ())
        return QueuesTrimmed(reached, removed, tuple(expired), now_ms(), sizes, disks)

    def _trim_topic(
        self, topic: str, limits: list[QueueLimit], reached: dict[tuple[str, int], int]
    ) -> dict[int, int]:
        """How many offsets went, by partition."""
        numbers = [limit.partition for limit in limits]
        begins = list_offsets(self._client, topic, numbers, earliest=True, timeout=TIMEOUT_S)
        ends = list_offsets(self._client, topic, numbers, read_committed=False, timeout=TIMEOUT_S)
        aged = self._aged(topic, [limit for limit in limits if limit.older_than], ends)
        wanted: list[TopicPartition] = []
        for limit in limits:
            number = limit.partition
            keep = stays_from(limit, ends[number], aged.get(number))
            if keep > begins[number]:
                log.info("%s [%d]: %d to %d go: %s", topic, number, begins[number], keep, because(limit))
                wanted.append(TopicPartition(topic, number, keep))
            else:
                reached[(topic, number)] = begins[number]
        if not wanted:
            return {}
        gone: dict[int, int] = {}
        futures = self._client.delete_records(wanted, request_timeout=TIMEOUT_S, operation_timeout=TIMEOUT_S)
        for place, future in futures.items():
            low = int(_result(future).low_watermark)
            reached[(topic, place.partition)] = low
            gone[place.partition] = max(0, low - begins[place.partition])
        return gone

    def _aged(self, topic: str, limits: list[QueueLimit], ends: dict[int, int]) -> dict[int, int]:
        """The first offset that is young enough to be kept, by partition."""
        wanted = {
            TopicPartition(topic, limit.partition): OffsetSpec.for_timestamp(limit.older_than)
            for limit in limits
        }
        if not wanted:
            return {}
        found: dict[int, int] = {}
        for place, future in self._client.list_offsets(wanted, request_timeout=TIMEOUT_S).items():
            offset = int(_result(future).offset)
            found[place.partition] = offset if offset >= 0 else ends[place.partition]  # (all are older)
        return found


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise KafkaUnavailableError(f"Kafka did not trim a queue: {error}") from error
