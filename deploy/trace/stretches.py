"""Stretches of topics: everything between two offsets, or two moments, of some partitions.

One consumer for all of them, outside of any group. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from keytide.errors import KeytideError
from keytide.kafka.admin import KafkaUnavailableError, TopicInfo, admin, describe_topics, list_offsets
from keytide.kafka.topics import consumer, drain
from keytide.settings.settings import Settings
from keytide.wire import messages

Stretch = tuple[int, int]
"""First offset, and the one behind the last."""
Say = Callable[[str], None]
"""Is told what is being read."""

AT_ONCE: Final = 1_000
POLL_S: Final = 0.2
"""Short, so that Ctrl-C is heard."""
PREFETCH_KB: Final = 16 * 1024
"""Of a stretch little is needed, and what was fetched beyond it is thrown away."""
FETCH_WAIT_MS: Final = 50


class Stretches:
    """Reads stretches. Close it.

    Args:
        timeout: seconds without an answer after which Kafka is given up.
    """

    def __init__(self, settings: Settings, timeout: float) -> None:
        self._timeout = timeout
        self._admin = admin(settings)
        self._consumer = consumer(
            settings,
            auto_offset_reset="earliest",
            queued_max_messages_kbytes=PREFETCH_KB,
            fetch_wait_max_ms=FETCH_WAIT_MS,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._admin.close()

    def topic(self, name: str) -> TopicInfo | None:
        """What Kafka says of a topic; None when there is none.

        Raises:
            KafkaUnavailableError: no answer.
        """
        return describe_topics(self._admin, [name], self._timeout).get(name)

    def bounds(self, topic: str, partitions: int = 1) -> dict[int, Stretch]:
        """By partition, what Kafka keeps for a read_committed reader.

        Raises:
            KafkaUnavailableError: no answer.
        """
        numbers = range(partitions)
        low = list_offsets(self._admin, topic, numbers, earliest=True, timeout=self._timeout)
        high = list_offsets(self._admin, topic, numbers, timeout=self._timeout)
        return {number: (low[number], high[number]) for number in numbers}

    def at(self, topic: str, moment: int, bounds: Mapping[int, Stretch]) -> dict[int, int]:
        """By partition, the first offset whose message is not older than a moment; the end where all are.

        Raises:
            KafkaUnavailableError: no answer.
        """
        asked = [TopicPartition(topic, number, max(0, moment)) for number in bounds]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=self._timeout)
        except KafkaException as error:
            raise KafkaUnavailableError(f"offsets of {topic} are not to be had: {error}") from error
        return {one.partition: one.offset if one.offset >= 0 else bounds[one.partition][1] for one in found}

    def read(self, topic: str, stretches: Mapping[int, Stretch]) -> Iterator[Message]:
        """The records of stretches, in offset order per partition.

        Raises:
            KafkaUnavailableError: nothing came for too long, or a partition cannot be read.
        """
        open_ = {number: (low, high) for number, (low, high) in stretches.items() if low < high}
        self._consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in open_.items()])
        heard = time.monotonic()
        while open_:
            some = drain(self._consumer, AT_ONCE, POLL_S)
            if some:
                heard = time.monotonic()
            elif time.monotonic() > heard + self._timeout:
                raise KafkaUnavailableError(f"{topic} was not read within {self._timeout:.0f} s")
            for message in some:
                number, offset = message.partition() or 0, message.offset() or 0
                stretch = open_.get(number)
                if stretch is None:
                    continue
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if not error.retriable():
                        raise KafkaUnavailableError(f"{topic} [{number}] cannot be read: {error}")
                    continue
                if error is None and offset < stretch[1]:
                    yield message
                if error is not None or offset >= stretch[1] - 1:
                    del open_[number]
                    self._consumer.incremental_unassign([TopicPartition(topic, number)])
        self._consumer.unassign()

    def messages(self, topic: str, stretch: Stretch) -> Iterator[tuple[int, int, messages.Message]]:
        """(offset, time, message) of partition 0 of one of Keytide's own topics; without those of a release
        that this one does not know. Raises as `read`."""
        for record in self.read(topic, {0: stretch}):
            try:
                message = messages.decode(record.value() or b"")
            except KeytideError:
                continue
            yield record.offset() or 0, record.timestamp()[1], message
