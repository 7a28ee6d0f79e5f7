"""The node's one Kafka consumer: the control topic and the current queue of every slice.

Theory of operation
===================
A slice reads one partition at a time, of its mutation queue or of its build's backfill queue; it may pause
it, move to another, or leave. Partitions are assigned by hand, outside any group. What is buffered is bounded
three times: in librdkafka, per poll (as many messages as come to about BATCH_BYTES by the size of recent
ones), and by the slices, which pause when they are full.

A queue that is not there yet, or for a moment, is assigned again a second later. Position 0 of a mutation
queue means the beginning of what it holds.

librdkafka says "no offset" of several things: a position below what the log still has, one past its end (a
broker whose metadata is old, a leader that has just changed), a leader epoch that it could not confirm. So
it is not believed: the ends of the log are asked for again, and only a position that is below its beginning,
or past its end for PAST_END_MS, is gone (its node was away for longer than the queue is kept) and reported to
the slice. Anything else is read again from the slice's place.

Nor is librdkafka believed when it says nothing at all. A client can lose all its brokers for good while Kafka
is well (2.10 to 2.16, when the last broker that it knows goes in a bad moment), and tells of it by silence.
The leader's word comes all the time, so when nothing at all has come for SILENT_MS, though Kafka answers
others, the client is replaced by a new one that reads on at the same places. (`keytide.kafka.broker_watch`
would see the loss of brokers alone; silence is seen whatever its cause, also of fetches that hang while
brokers are there.)

Nobody writes to a queue in transactions, and nothing compacts it, so a partition's records come one after the
other. One below the place is of an assignment before, and left out; one beyond it means that some were lost
on their way here: the partition is assigned again at its place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from indexer.hosting.slice_runner import SliceKey
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.clients import Consumer
from keytide.kafka.history import log_history
from keytide.kafka.topics import consumer, drain
from keytide.model.topics import Topics
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 12 * 1024 * 1024
"""About what one poll brings at most."""
BATCH_MESSAGES: Final = 1_000
PREFETCH_KBYTES: Final = 16 * 1024
FETCH_BYTES: Final = 8 * 1024 * 1024
FETCH_WAIT_MS: Final = 50
"""How long the broker holds a fetch that finds nothing: also how long a queue that is resumed may wait."""
REASSIGN_MS: Final = 1_000
WATERMARKS_S: Final = 2.0
"""For the ends of a log, asked for while all slices wait."""
PAST_END_MS: Final = 30_000
"""How long a place may lie past the log's end: longer than an election takes, and than metadata stay old."""
SILENT_MS: Final = 15_000
LONGEST_SILENT_MS: Final = 240_000
"""After how long without a word of anybody the client is replaced; twice as long each time until the leader
is heard, at most the longest (there may be none)."""
ANSWERED_MS: Final = 10_000
"""How lately Kafka must have answered another client all the while."""
AGAIN: Final = 20
"""How often a partition is assigned again at one place before what comes instead is taken as it is: the slice
sees for itself whether anything is missing."""

_ABSENT: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)


class TopicKind(Enum):
    CONTROL = "control"
    MUTATIONS = "mutations"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """One thing that was read. `key` is None for control; `data` is None when the queue's end was met."""

    kind: TopicKind
    key: SliceKey | None
    position: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Lost:
    """A slice's queue cannot be read from its position."""

    key: SliceKey
    reason: str


@dataclass(slots=True)
class _Place:
    """Where a slice reads: `position` is the next offset."""

    kind: TopicKind
    topic: str
    position: int
    paused: bool = False
    again_at: int | None = None
    past_end_since: int | None = None
    gone_since: int | None = None
    tries: int = 0

    def start(self) -> int:
        """Where to read from, in Kafka's words."""
        beginning = self.kind is TopicKind.MUTATIONS and self.position == 0
        return OFFSET_BEGINNING if beginning else self.position


class NodeConsumer:
    """Reads for all slices of a node. Used by one thread. Implements
    `indexer.hosting.queue_reading.QueueReading`.

    Args:
        settings: where Kafka is.
        confirmed: whether this was shown to be the right Kafka at a time (ms) or later.
    """

    def __init__(self, settings: Settings, confirmed: Callable[[int], bool] = lambda _: True) -> None:
        self._settings = settings
        self._confirmed = confirmed
        self._topics = Topics(settings.cluster)
        self._consumer = self._client()
        self._control_at = 0
        self._heard_at: int | None = None
        self._patience_ms = SILENT_MS
        self._places: dict[SliceKey, _Place] = {}
        self._readers: dict[tuple[str, int], SliceKey] = {}
        self._average = 64 * 1024.0

    def _client(self) -> Consumer:
        return consumer(
            self._settings,
            queued_max_messages_kbytes=PREFETCH_KBYTES,
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES // 4,
            fetch_wait_max_ms=FETCH_WAIT_MS,
        )

    def start(self, timeout: float = 30.0) -> None:
        """Read control from its present end.

        Raises:
            KafkaUnavailableError: the topic is not to be had.
        """
        deadline = time.monotonic() + timeout
        while (end := self._control_end()) is None:
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(f"topic {self._topics.control} is not to be had")
            time.sleep(0.1)
        self._control_at = end
        self._consumer.assign([TopicPartition(self._topics.control, 0, end)])

    def _control_end(self) -> int | None:
        try:
            marks = self._consumer.get_watermark_offsets(TopicPartition(self._topics.control, 0), timeout=5.0)
        except KafkaException as error:
            log.info("%s: %s", self._topics.control, error)
            return None
        return int(marks[1])

    def close(self) -> None:
        self._consumer.close()

    # --- what slices ask for --------------------------------------------------------------------------

    def read_mutations(self, key: SliceKey, position: int) -> None:
        self._read(key, _Place(TopicKind.MUTATIONS, self._topics.mutations(key[0]), position))

    def read_backfill(self, key: SliceKey, build: str, position: int) -> None:
        self._read(key, _Place(TopicKind.BACKFILL, self._topics.backfill(key[0], build), position))

    def pause(self, key: SliceKey) -> None:
        place = self._places.get(key)
        if place is not None and not place.paused:
            place.paused = True
            self._consumer.pause([TopicPartition(place.topic, key[1])])

    def resume(self, key: SliceKey) -> None:
        place = self._places.get(key)
        if place is not None and place.paused:
            place.paused = False
            self._consumer.resume([TopicPartition(place.topic, key[1])])

    def leave(self, key: SliceKey) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            del self._readers[place.topic, key[1]]
            partition = TopicPartition(place.topic, key[1])
            if place.paused:
                self._consumer.resume([partition])  # or it would be paused when it is assigned again
            self._consumer.incremental_unassign([partition])

    def _read(self, key: SliceKey, place: _Place) -> None:
        self.leave(key)
        self._places[key] = place
        self._readers[place.topic, key[1]] = key
        self._assign(key, place)

    def _assign(self, key: SliceKey, place: _Place) -> None:
        """Read a queue from its place on; paused, if it is."""
        partition = TopicPartition(place.topic, key[1], place.start())
        self._consumer.incremental_assign([partition])
        if place.paused:
            self._consumer.pause([partition])

    # --- reading --------------------------------------------------------------------------------------

    def poll(self, timeout: float, now: int) -> list[ConsumerRecord | Lost]:
        """What has come, in order within each partition; waits at most `timeout` seconds for the first.

        Raises:
            KafkaUnavailableError: the control topic cannot be read.
        """
        self._assign_again(now)
        limit = max(1, min(BATCH_MESSAGES, int(BATCH_BYTES / self._average)))
        records: list[ConsumerRecord | Lost] = []
        for message in drain(self._consumer, limit, timeout):
            record = self._record(message, now)
            if record is not None:
                records.append(record)
        if records:
            self._heard_at = now
        else:
            self._replace_silent(now)
        return records

    def _record(self, message: Message, now: int) -> ConsumerRecord | Lost | None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        key = self._readers.get((topic, partition))
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return self._trouble(topic, key, error, now)
        if key is None:
            if topic != self._topics.control or error is not None:
                return None
            self._control_at, self._patience_ms = offset + 1, SILENT_MS
            return ConsumerRecord(TopicKind.CONTROL, None, offset, message.value())
        place = self._places[key]
        if not self._next(place, topic, partition, offset, now):
            return None
        if error is not None:
            return ConsumerRecord(place.kind, key, offset, None)
        data = message.value() or b""
        self._average += (len(data) - self._average) / 32
        place.position = offset + 1
        return ConsumerRecord(place.kind, key, offset, data)

    def _next(self, place: _Place, topic: str, partition: int, offset: int, now: int) -> bool:
        """Whether what came is what was to come next. (The beginning of a queue may be anywhere.)"""
        if offset < place.position or (place.again_at is not None and offset > place.position):
            return False
        if offset > place.position and place.start() != OFFSET_BEGINNING and place.tries < AGAIN:
            place.tries += 1
            place.again_at = now
            log.warning(
                "%s [%d]: offset %d came and not %d; reading again",
                *(topic, partition, offset, place.position),
            )
            return False
        place.tries, place.past_end_since, place.gone_since = 0, None, None
        return True

    def _trouble(self, topic: str, key: SliceKey | None, error: KafkaError, now: int) -> Lost | None:
        if key is None:
            if topic == self._topics.control and not error.retriable():
                raise KafkaUnavailableError(f"{topic} cannot be read: {error}")
            return None
        place = self._places[key]
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return self._examine(topic, key, place, error, now)
        log.info("%s [%d]: %s", topic, key[1], error)
        if error.code() in _ABSENT:
            place.again_at = now + REASSIGN_MS
        return None

    def _examine(self, topic: str, key: SliceKey, place: _Place, error: KafkaError, now: int) -> Lost | None:
        """A place that is said not to be there: whether it is gone, by the log's ends as they are now."""
        place.again_at = now + REASSIGN_MS
        said = f"{error.str()} ({error.name()})"
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(topic, key[1]), timeout=WATERMARKS_S, cached=False
            )
        except KafkaException as unknown:
            log.info("%s [%d]: %s; its ends cannot be asked for: %s", topic, key[1], said, unknown)
            return None
        if place.position < low:
            why = "the node was away for longer than the queue is kept"
        elif place.position > high:
            place.past_end_since = now if place.past_end_since is None else place.past_end_since
            if now - place.past_end_since < PAST_END_MS:
                log.warning("%s [%d]: %d is past the end %d: %s", topic, key[1], place.position, high, said)
                return None
            why = "the queue has lost what the slice has read"
        else:
            place.past_end_since = place.gone_since = None
            log.warning(
                "%s [%d]: %d is there (%d to %d), reading again: %s",
                *(topic, key[1], place.position, low, high, said),
            )
            return None
        place.gone_since = now if place.gone_since is None else place.gone_since
        if not self._confirmed(place.gone_since):
            log.warning("%s [%d]: %d seems gone; is this the right Kafka?", topic, key[1], place.position)
            return None
        place.again_at = None
        return Lost(
            key,
            f"{topic} [{key[1]}] does not have offset {place.position}, but {low} to {high}: {why}; the "
            f"slice must be rebuilt ({self._log_of(topic, key[1])}Kafka's client: {said})",
        )

    def _log_of(self, topic: str, partition: int) -> str:
        """Which log this is, for the message: the topic's id, and where its leader epochs end."""
        try:
            history = log_history(self._settings, topic, WATERMARKS_S, partitions=[partition])
        except (KafkaUnavailableError, OSError) as error:
            return f"its leader epochs cannot be asked for: {error}; "
        known = history.partitions.get(partition)
        if known is None:
            return "there is no such topic; "
        ends = ", ".join(f"{epoch} to {end}" for epoch, end in known.branches)
        return (
            f"topic id {history.topic_id}, leader epoch {known.leader_epoch}, epochs end: {ends or 'none'}; "
        )

    def _replace_silent(self, now: int) -> None:
        """A client that says nothing while Kafka answers others: another one reads on."""
        if self._heard_at is None or not self._confirmed(now - ANSWERED_MS):
            self._heard_at = now  # (Kafka itself says nothing)
        if now - self._heard_at < self._patience_ms:
            return
        log.warning(
            "nothing was heard for %d s, not even of the leader, though Kafka answers: a new client reads on",
            (now - self._heard_at) // 1_000,
        )
        self._heard_at, self._patience_ms = now, min(LONGEST_SILENT_MS, 2 * self._patience_ms)
        self._consumer.close()
        self._consumer = self._client()
        self._consumer.assign([TopicPartition(self._topics.control, 0, self._control_at)])
        for key, place in self._places.items():
            place.again_at = None
            self._assign(key, place)

    def _assign_again(self, now: int) -> None:
        """Queues that were not there: begin anew where the slice is."""
        for key, place in self._places.items():
            if place.again_at is not None and now >= place.again_at:
                place.again_at = None
                self._consumer.incremental_unassign([TopicPartition(place.topic, key[1])])
                self._assign(key, place)
