"""What a node tells the coordinators: acknowledged snapshots at once, heartbeats again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from indexer.hosting.slice_runner import SliceKey
from keytide.kafka.topics import lasting_producer
from keytide.model.protocol import FIRST_PROTOCOL, SPOKEN
from keytide.model.topics import Topics
from keytide.process.sync_points import reach
from keytide.settings.settings import Settings
from keytide.wire.heartbeats import HeartbeatWriter
from keytide.wire.messages import Acknowledged, NodeHeartbeat, SliceStatus, encode

log = logging.getLogger(__name__)

_QUEUE_MESSAGES = 10_000
"""Reports that wait for Kafka; beyond it new ones are dropped: the next heartbeat says it all again."""


def _nothing() -> None:
    """Of a report that need not be made up for: the next heartbeat says it too."""


class NodeReporter:
    """Sends a node's reports. Used by one thread.

    Args:
        url: where the node serves scans.
        started_at: milliseconds.
        confirmed: as `BrokerWatch`.
    """

    def __init__(
        self, settings: Settings, node: str, url: str, started_at: int, confirmed: Callable[[int], bool]
    ) -> None:
        self._topic = Topics(settings.cluster).reports
        self._producer = lasting_producer(
            settings, self._topic, confirmed, queue_buffering_max_messages=_QUEUE_MESSAGES
        )
        self._producer.begin()
        self._node = node
        self._url = url
        self._zone = settings.indexer.zone
        self._roles = settings.indexer.roles
        self._started_at = started_at
        self._heartbeats = HeartbeatWriter()
        self._acks: dict[tuple[str, int, int], list[SliceKey]] = {}

    def acknowledge(self, keyspace: str, incarnation: int, number: int, key: SliceKey) -> None:
        """Note that a slice holds a number; sent with the others of the same number by `flush_acks`."""
        self._acks.setdefault((keyspace, incarnation, number), []).append(key)

    def flush_acks(self) -> None:
        """One message per number that was acknowledged."""
        if not self._acks:
            return
        acks, self._acks = self._acks, {}
        for (keyspace, incarnation, number), keys in sorted(acks.items()):
            self._send(encode(Acknowledged(self._node, keyspace, incarnation, number, keys)))
            reach("snapshot-acknowledged")

    def heartbeat(
        self,
        statuses: list[SliceStatus],
        now: int,
        memory: int,
        disk_free: int,
        catalog_offset: int,
        term: int = 0,
        leader_protocol: int = FIRST_PROTOCOL,
    ) -> None:
        """Say how the node and its slices are, to the leader of a term: what has changed, or all of it."""
        beat = NodeHeartbeat(
            self._node,
            self._url,
            self._started_at,
            now,
            statuses,
            memory,
            disk_free,
            catalog_offset,
            self._zone,
            self._roles,
            SPOKEN,
        )
        message = self._heartbeats.write(beat, term, leader_protocol)
        self._send(encode(message), self._heartbeats.lost)

    def poll(self) -> None:
        """Let delivery reports be heard."""
        self._producer.poll()

    def close(self) -> None:
        """Send what waits, for a moment."""
        self._producer.flush(1.0)

    def _send(self, data: bytes, lost: Callable[[], None] = _nothing) -> None:
        """Send a report.

        Args:
            lost: called when it did not arrive.
        """

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                log.warning("a report did not arrive: %s", error)
                lost()

        try:
            self._producer.produce(self._topic, data, key=self._node.encode(), on_delivery=delivered)
        except BufferError:
            log.warning("a report is dropped: Kafka takes none")
            lost()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            log.error(
                "a report of %d bytes is dropped, for Kafka takes none as large: the node is silent "
                "for the coordinator while there is no smaller one; give topics.message_max_bytes, and "
                "message.max.bytes of the brokers, a larger value, or have more nodes, with fewer slices",
                len(data),
            )
            lost()
