"""What a leader hears: the reports of all services, and claims of its term in the dictionary."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, Message, TopicPartition

from keytide.kafka.admin import admin
from keytide.kafka.clients import Consumer
from keytide.kafka.end_watch import EndWatch
from keytide.kafka.topics import consumer, drain
from keytide.model.topics import Topics
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

PARTITION: Final = 0
"""Both topics have one."""


class HeardTopics:
    """Reads on where it was told to begin. When its client hears nothing though reports go on (it may have
    lost all its brokers for good, `keytide.kafka.end_watch`) another one does: a leader that is deaf would
    take everybody for silent. One thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = Topics(settings.cluster).reports
        self._consumer: Consumer = self._reader()
        self._positions: dict[str, int] = {}
        self._watch = EndWatch(lambda: admin(settings), self._reports)

    def _reader(self) -> Consumer:
        """One that goes on at the end when its place is gone: reports are said again. What a broker holds a
        fetch for is left as it is (500 ms): a report ends it, and they come all the time."""
        return consumer(self._settings, auto_offset_reset="latest")

    def assign(self, starts: Mapping[str, int]) -> None:
        """Begin at these offsets, by topic."""
        self._positions = dict(starts)
        self._consumer.assign([TopicPartition(topic, PARTITION, at) for topic, at in starts.items()])

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Records, and errors that are worth a word; waits at most `timeout` seconds for the first."""
        if self._watch.stands_still(self._positions.get(self._reports, 0)):
            log.warning("%s goes on, and nothing was heard of it: a new client reads on", self._reports)
            self._consumer.close()
            self._consumer = self._reader()
            self.assign(self._positions)
        heard: list[Message] = []
        for message in drain(self._consumer, limit, timeout):
            topic, offset, error = message.topic() or "", message.offset() or 0, message.error()
            if error is None:
                self._positions[topic] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._positions[topic] = offset
                continue
            heard.append(message)
        return heard

    def hand_over(self) -> None:
        """Another thread has it from now on."""
        self._watch.hand_over()
        self._consumer.hand_over()

    def close(self) -> None:
        self._consumer.close()
        self._watch.close()
