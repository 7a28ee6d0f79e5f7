"""The messages of a repair to slices, and what slices say of it: the mutation queues and the heartbeats.

Theory of operation. A repair writes into the same queues as the projectors, whatever they write meanwhile: it
is one more sender. A round is over for a slice when all nodes that hold it have dealt with all messages; what
it has done is safe when the slice reads on behind the end of the round after any crash (`queue_position` of
its heartbeat, R6). Heartbeats are read from the end of the reports topic on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaError, Message

from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.kafka.admin import admin, list_offsets
from keytide.kafka.topics import TopicReader, producer
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from keytide.wire.messages import (
    Corrections,
    NodeHeartbeat,
    RepairEnd,
    RepairWatch,
    SliceStatus,
    UnreadableMessageError,
    decode,
    encode,
    split,
)

POLL_S: Final = 0.2
SEND_LIMIT_S: Final = 60.0

SliceStatuses = Mapping[tuple[str, int], SliceStatus]
"""(node, slice) -> its newest status."""


class SliceChannel:
    """To and from the slices of one index.

    Args:
        sender: names this run in messages that are sent in parts (R20).
    """

    def __init__(self, settings: Settings, index: IndexRecord, sender: str) -> None:
        self._index = index
        self._topic = Topics(settings.cluster).mutations(index.id)
        self._limit = settings.topics.message_max_bytes * 9 // 10
        self._producer = producer(settings)
        self._sender = sender
        self._number = 0
        reports = Topics(settings.cluster).reports
        with admin(settings) as client:
            end = list_offsets(client, reports, [0])[0]
        self._reports = TopicReader(settings, reports, {0: end})
        self._told: dict[tuple[str, int], SliceStatus] = {}

    def close(self) -> None:
        self._reports.close()

    def send(self, messages: list[RepairWatch | Corrections | RepairEnd]) -> dict[int, int]:
        """Send messages, and wait until the queues have them.

        Returns:
            Slice -> queue offset of the last message to it.

        Raises:
            RetryableError: Kafka does not take them.
        """
        reached: dict[int, int] = {}
        failed: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(str(error))
            else:
                number = message.partition() or 0
                reached[number] = max(reached.get(number, -1), message.offset() or 0)

        for message in messages:
            self._number += 1
            for part in split(encode(message), self._limit, self._sender, self._number):
                self._producer.produce(
                    self._topic, value=part, partition=message.slice, on_delivery=delivered
                )
                self._producer.poll(0)
        if self._producer.flush(SEND_LIMIT_S):
            failed.append(f"not taken within {SEND_LIMIT_S:.0f} s")
        if failed:
            raise RetryableError(f"the mutation queues of {self._index.name} take nothing: {failed[0]}")
        return reached

    def wait(
        self, what: str, done: Callable[[SliceStatus], bool], limit_s: float, stopped: Callable[[], bool]
    ) -> SliceStatuses:
        """Wait until every slice, on every node that holds it, says something.

        Args:
            what: is waited for, in words.

        Raises:
            RetryableError: not within the limit, or the driver is to end.
        """
        deadline = time.monotonic() + limit_s
        places = [(node, number) for number, nodes in enumerate(self._index.placement) for node in nodes]
        self._told.clear()
        while True:
            missing = [place for place in places if place not in self._told or not done(self._told[place])]
            if not missing:
                return dict(self._told)
            if stopped():
                raise RetryableError("the driver was asked to end")
            if time.monotonic() > deadline:
                names = ", ".join(f"slice {number} on {node}" for node, number in missing[:5])
                raise RetryableError(
                    f"{names} of {self._index.name}: not {what} within {limit_s:.0f} s",
                    next_step="see `keytide topology`: every slice must be LIVE",
                )
            self._listen()

    def _listen(self) -> None:
        for record in self._reports.poll(POLL_S):
            try:
                message = decode(record.value() or b"")
            except UnreadableMessageError:
                continue
            if not isinstance(message, NodeHeartbeat):
                continue
            for status in message.slices:
                if status.index == self._index.id:
                    self._told[message.node, status.slice] = status
