"""A member of the projectors' consumer group: reads, pauses, seeks, commits, and tells of rebalances.

Theory of operation: librdkafka fetches in the background; `read` takes what is there. A partition is read
only between `read_from` and `pause`. Records of any other partition that librdkafka still hands out (fetched
before a pause, a seek or a rebalance) are thrown away. A seek is done when librdkafka says so; until then the
partition gives nothing, because what it would give lies at another place.

The end-of-partition event carries the consumer's position, which lies past the last record where transaction
markers, aborted or cleaned records end the log (R9).

A partition is taken without a place to begin, and paused: the place comes from its commit, which is looked up
outside of librdkafka's callbacks, where it can be tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from keytide.kafka.admin import error_code
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from projector.progress.commits import Committed
from projector.progress.events import Key
from projector.service.record_columns import RecordColumns, group
from projector.service.transport import GroupConsumer, Transport

log = logging.getLogger(__name__)

QUEUE_KBYTES = 32 * 1024
"""Records fetched ahead: two or three full polls of documents of 240 bytes, and the largest part of this
process's memory."""

FETCH_WAIT_MS = 200
"""How long a broker holds a fetch that finds nothing. A record ends it at once (`fetch.min.bytes` is 1), so
this is only how often an idle projector asks anew, and how long a partition may wait that is resumed."""

BATCH_BYTES = 16 * 1024 * 1024
"""About how much one read takes when documents are large."""

_OUTSIDE = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
"""The position is not in the log, or no longer; librdkafka gives up that partition, and refuses to seek
in it: it must be assigned anew."""


class GroupMember:
    """A member of the projectors' group.

    Args:
        settings: the limits.
        transport: makes the consumer.
        clock: seconds, monotonic.
        assigned, revoked, lost: called from within `read` with the partitions; `revoked` may still commit.
        committed: called from within `read` when an asynchronous commit is answered: (key, offset, epoch,
            metadata, error).
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        *,
        clock: Callable[[], float],
        assigned: Callable[[list[Key]], None],
        revoked: Callable[[list[Key]], None],
        lost: Callable[[list[Key]], None],
        committed: Callable[[Key, int, int, str, KafkaError | None], None],
    ) -> None:
        self._assigned, self._revoked, self._lost, self._committed = assigned, revoked, lost, committed
        self._clock = clock
        self._reading: set[Key] = set()
        self._seeks: dict[Key, int] = {}
        self._given_up: set[Key] = set()
        """Partitions that librdkafka reads no more."""
        self._seeking_since = 0.0
        self._affordable = 1_000
        """Documents of the size of the last ones that BATCH_BYTES holds."""
        self._topics: list[str] = []
        self._consumer = transport.consumer(
            Topics(settings.cluster).projector_group,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=settings.projector.session_timeout_ms,
            heartbeat_interval_ms=max(200, settings.projector.session_timeout_ms // 10),
            queued_max_messages_kbytes=QUEUE_KBYTES,
            fetch_message_max_bytes=2 * 1024 * 1024,
            fetch_max_bytes=16 * 1024 * 1024,
            fetch_wait_max_ms=FETCH_WAIT_MS,
            topic_metadata_refresh_interval_ms=5_000,
            on_commit=self._on_commit,
        )

    # --- membership

    @property
    def has_broker(self) -> bool:
        return self._consumer.has_broker

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on (none leaves the group)."""
        wanted = sorted(topics)
        if wanted == self._topics:
            return
        self._topics = wanted
        if wanted:
            self._consumer.subscribe(
                wanted, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        else:
            self._consumer.unsubscribe()

    def _on_assign(self, group: GroupConsumer, places: list[TopicPartition]) -> None:
        """Take the partitions without reading them: where to begin is looked up after the call."""
        at = [TopicPartition(place.topic, place.partition, OFFSET_BEGINNING) for place in places]
        group.incremental_assign(at)
        if at:
            group.pause(at)
            self._assigned([Key(place.topic, place.partition) for place in places])

    def _on_revoke(self, group: GroupConsumer, places: list[TopicPartition]) -> None:
        keys = [Key(place.topic, place.partition) for place in places]
        self._forget(keys)
        try:
            self._revoked(keys)
        finally:
            self._forget(keys)
            self._given_up.difference_update(keys)
            group.incremental_unassign(places)

    def _on_lost(self, group: GroupConsumer, places: list[TopicPartition]) -> None:
        keys = [Key(place.topic, place.partition) for place in places]
        self._forget(keys)
        self._given_up.difference_update(keys)
        self._lost(keys)
        group.incremental_unassign(places)

    def _forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._reading.discard(key)
            self._seeks.pop(key, None)

    # --- reading

    def read_from(self, key: Key, offset: int) -> None:
        """Read the partition from `offset` on."""
        self._reading.discard(key)
        if not self._seeks:
            self._seeking_since = self._clock()
        self._seeks[key] = offset

    @property
    def seeking_for(self) -> float:
        """Seconds for which some partition could not be brought to its place."""
        return self._clock() - self._seeking_since if self._seeks else 0.0

    def pause(self, key: Key) -> None:
        """Stop reading the partition."""
        self._forget([key])
        try:
            self._consumer.pause([TopicPartition(*key)])
        except KafkaException as error:
            log.debug("pause of %s: %s", key, error)  # no longer assigned

    def _seek(self) -> None:
        for key, offset in list(self._seeks.items()):
            place = TopicPartition(key.keyspace, key.partition, offset)
            try:
                if key in self._given_up:
                    self._consumer.incremental_unassign([place])
                    self._consumer.incremental_assign([place])
                    self._consumer.resume([place])  # a pause outlives the assignment
                    self._given_up.discard(key)
                else:
                    self._consumer.resume([place])
                    self._consumer.seek(place)
            except KafkaException as error:
                if error_code(error) not in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                    raise
                continue  # not started yet, or just taken away: the next read tries again
            del self._seeks[key]
            self._reading.add(key)

    def read(self, limit: int, timeout: float, fill_until: float) -> RecordColumns:
        """Up to `limit` records. Rebalances, and answers to commits, happen in here.

        Args:
            timeout: longest wait for the first record, seconds.
            fill_until: time of the clock until when it waits for the batch to fill; it never waits for a
                record past it, but takes what is there.

        Raises:
            KafkaException: an error of the consumer itself (not of one partition) that does not pass.
        """
        if self._seeks:
            self._seek()
        messages = self._consumer.consume(1, min(timeout, 0.01) if self._seeks else timeout)
        if messages:
            more = min(limit, self._affordable) - 1
            messages += self._consumer.consume(more, max(0.0, fill_until - self._clock()))
            self._affordable = max(10, BATCH_BYTES * len(messages) // (1 + sum(map(len, messages))))
        harvest = RecordColumns({}, {}, {})
        if any(map(Message.error, messages)):
            messages = self._events(messages, harvest)
        if messages:
            harvest.records.update(group(messages, len(self._topics) > 1, self._reading))
        return harvest

    def _events(self, messages: list[Message], harvest: RecordColumns) -> list[Message]:
        """Sort out ends and errors; the records that are left. An end is after the records that stand before
        it."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                continue
            key = Key(message.topic() or "", message.partition() or 0)
            if error.code() == KafkaError._PARTITION_EOF:
                if key in self._reading:
                    harvest.ends[key] = message.offset() or 0
            elif error.code() in _OUTSIDE:
                self._given_up.add(key)
                if key in self._reading:
                    harvest.lost[key] = error.str()
            elif error.fatal():
                raise KafkaException(error)
            else:
                log.warning("source %s: %s", key, error)  # librdkafka goes on trying by itself
        return records

    def epoch_below(self, key: Key, end: int) -> int:
        """The leader epoch of what lies below `end`, which the last `read` has reached; -1 when it is not
        known. No request is made.

        librdkafka hands out no transaction markers, but its position passes them and has their leader epoch.
        """
        try:
            (place,) = self._consumer.position([TopicPartition(*key)])
        except KafkaException:
            return -1
        return _epoch(place) if place.error is None and place.offset == end else -1

    def high_watermark(self, key: Key) -> int:
        """The end of the partition as the last fetch saw it, -1 when none did. No request is made."""
        place = TopicPartition(*key)
        try:
            marks = self._consumer.get_watermark_offsets(place, cached=True)
        except KafkaException:
            return -1
        return int(marks[1])

    # --- commits

    def committed(self, keys: Sequence[Key], timeout: float) -> dict[Key, Committed]:
        """What the group has committed for the partitions.

        Raises:
            KafkaException: no answer, or an error for one of them.
        """
        places = self._consumer.committed([TopicPartition(*key) for key in keys], timeout=timeout)
        found = {}
        for place in places:
            if place.error is not None:
                raise KafkaException(place.error)
            offset = place.offset if place.offset >= 0 else None
            found[Key(place.topic, place.partition)] = Committed(offset, _epoch(place), place.metadata or "")
        return found

    def commit(self, places: Sequence[tuple[Key, int, int, str]], *, wait: bool) -> None:
        """Commit (key, offset, epoch, metadata) of each, fenced by the group's generation (R13).

        The answer goes to the `committed` callback: before the return when `wait`, else within a later
        `read`.
        """
        offsets = [
            TopicPartition(key.keyspace, key.partition, offset, metadata, epoch)
            for key, offset, epoch, metadata in places
        ]
        try:
            if wait:
                self._on_commit(None, self._consumer.commit(offsets=offsets, asynchronous=False))
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], offsets)

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            key = Key(place.topic, place.partition)
            self._committed(key, place.offset, _epoch(place), place.metadata or "", place.error or error)

    def close(self) -> None:
        """Leave the group; the `revoked` callback runs for what is still assigned."""
        self._consumer.close()


def _epoch(place: TopicPartition) -> int:
    """A place's leader epoch; librdkafka's binding says None for an unknown one, whatever its stub says."""
    epoch: int | None = place.leader_epoch
    return -1 if epoch is None else epoch
