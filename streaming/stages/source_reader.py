"""A share of the source, read by the task itself: librdkafka to columns, without a row of Spark's.

Theory of operation
===================
What a micro-batch covers is settled before: offsets [start, end) of each source partition.
A task gets one such *extent* and reads it with a consumer of its own, as the projector reads. Spark's own
Kafka source would poll each record into a row of the JVM, that into Arrow, and that through a pipe into this
same process: two thirds of the processor time of a build (ADR 20).

What Spark's source guarantees (`failOnDataLoss`) holds here too: only committed records are read; a position
that the log does not have, or no longer, is an error that fails the build (`OffsetsLostError`), never a
silent jump. (Verification reads what there is still, `whole` is false: it looks at the first offsets once
more afterwards.) Records that a reader never sees (transaction markers, aborted and cleaned records) move the
position all the same: a record at or past `end` shows it, or the event that tells the partition's end.

Memory: librdkafka's queue (`QUEUE_KBYTES`) and one batch (`BATCH_BYTES`, by the size of the records before).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from keytide.errors import CallerError, RetryableError
from keytide.kafka.clients import Consumer
from keytide.kafka.topics import consumer, drain
from keytide.settings.settings import Settings
from projector.core.projection import SourceBatch
from streaming.spark.checkpoint import Extent

QUEUE_KBYTES: Final = 32 * 1024
"""Records fetched ahead of a task."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""About how much is projected at once when documents are large."""
BATCH_DOCUMENTS: Final = 20_000
"""The same when they are small: more makes projecting no faster."""
FIRST_DOCUMENTS: Final = 1_000
"""Of the first batch, when the size of documents is not known."""
LINGER_S: Final = 0.02
"""How long a batch may wait to fill."""
STALL_LIMIT_S: Final = 60.0
"""Without anything from Kafka the task fails after this long, and is tried again."""

_OUTSIDE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
_timestamp_of = itemgetter(1)


class OffsetsLostError(CallerError):
    """The source does not have offsets any more that a build must read."""

    problem_type = "offsets-lost"


class AccessRefusedError(CallerError):
    """Kafka refuses the task access to the source."""

    problem_type = "access-refused"


class SourceStalledError(RetryableError):
    """Kafka gives nothing; the task fails and is tried again."""

    problem_type = "source-stalled"


def read_extent(
    settings: Settings,
    topic: str,
    extent: Extent,
    *,
    whole: bool = True,
    heed: Callable[[], None] = lambda: None,
) -> Iterator[SourceBatch]:
    """The committed records of an extent, in offset order.

    Args:
        whole: whether the log must have all its offsets; else what retention removes, before or while it is
            read, is left out.
        heed: called before each wait for Kafka, of a second at most; what it raises ends the reading.

    Raises:
        OffsetsLostError: some of its offsets are not in the log.
        AccessRefusedError: Kafka does not allow it.
        SourceStalledError: Kafka gives nothing for a minute.
    """
    if extent.start >= extent.end:
        return
    reader: Consumer = consumer(
        settings,
        queued_max_messages_kbytes=QUEUE_KBYTES,
        fetch_message_max_bytes=4 << 20,
        fetch_max_bytes=16 << 20,
        fetch_wait_max_ms=20,
        socket_receive_buffer_bytes=1 << 20,
        auto_offset_reset="error" if whole else "earliest",
    )
    try:
        reader.assign([TopicPartition(topic, extent.partition, extent.start)])
        yield from _read(reader, topic, extent, heed)
    except KafkaException as error:
        raise SourceStalledError(f"{_name(topic, extent)} cannot be read: {error}") from error
    finally:
        reader.close()


def _read(reader: Consumer, topic: str, extent: Extent, heed: Callable[[], None]) -> Iterator[SourceBatch]:
    position, limit = extent.start, FIRST_DOCUMENTS
    heard_at = time.monotonic()
    trouble = ""
    while position < extent.end:
        heed()
        messages = drain(reader, limit, 1.0, LINGER_S)
        records = [message for message in messages if message.error() is None]
        if records and (records[0].offset() or 0) < position:  # the log ends below, and was begun again
            raise SourceStalledError(f"{_name(topic, extent)}: the log has not come as far any more")
        if len(records) < len(messages):
            reached, trouble = _events(messages, topic, extent)
            position = max(position, reached)
        if records:
            last = records[-1].offset()
            position = max(position, 0 if last is None else last + 1)
            if position > extent.end:
                records = [message for message in records if (message.offset() or 0) < extent.end]
            heard_at = time.monotonic()
            if records:
                batch = columns(extent.partition, records)
                limit = affordable(batch)
                yield batch
                heard_at = time.monotonic()  # a rate limit may have held it up
        elif time.monotonic() - heard_at > STALL_LIMIT_S:
            raise SourceStalledError(
                f"{_name(topic, extent)} gives nothing at {position} for {STALL_LIMIT_S:.0f} s: "
                f"{trouble or 'no records'}"
            )


def _events(messages: list[Message], topic: str, extent: Extent) -> tuple[int, str]:
    """How far events of the partition's end tell that the position is, and the last error that passes."""
    reached, trouble = 0, ""
    for message in messages:
        error = message.error()
        if error is None:
            continue
        if error.code() == KafkaError._PARTITION_EOF:
            reached = max(reached, message.offset() or 0)
        elif error.code() in _OUTSIDE:
            raise OffsetsLostError(
                f"{_name(topic, extent)}: the log has not all of it any more ({error})",
                next_step="raise the topic's retention and build the index again",
            )
        elif error.code() in _REFUSED:
            raise AccessRefusedError(
                f"{_name(topic, extent)}: {error}",
                next_step="let the user of the build read the topic with the group that the message names",
            )
        elif error.fatal() or error.code() == KafkaError._LOG_TRUNCATION:
            # Truncated below what was read: read anew, the driver then sees which log it is (`log_identity`).
            raise SourceStalledError(f"{_name(topic, extent)}: {error}")
        else:
            trouble = str(error)
    return reached, trouble


def columns(partition: int, records: list[Message]) -> SourceBatch:
    """Records of one partition as the projector takes them."""
    offsets: Any = np.fromiter(map(Message.offset, records), np.int64, len(records))
    times: Any = map(_timestamp_of, map(Message.timestamp, records))
    return SourceBatch(
        partition=partition,
        epoch=-1,
        start=int(offsets[0]),
        end=int(offsets[-1]) + 1,
        offsets=offsets,
        ids=list(map(Message.key, records)),
        values=list(map(Message.value, records)),
        times=np.fromiter(times, np.int64, len(records)),
    )


def affordable(batch: SourceBatch) -> int:
    """Documents of the size of a batch's that the next one may have."""
    size = sum(map(len, filter(None, batch.values))) // len(batch.values) + 64
    return max(1, min(BATCH_DOCUMENTS, BATCH_BYTES // size))


def _name(topic: str, extent: Extent) -> str:
    return f"partition {extent.partition} of {topic}, offsets [{extent.start}, {extent.end})"
