"""The newest record of a document: partitions are searched from their ends backwards, all of them as far, for
nobody but its producer knows which one a document is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from deploy.trace.stretches import Say, Stretch, Stretches
from keytide.errors import CallerError
from keytide.trace.records import SourceRecord

FIRST_STRETCH: Final = 2_000
"""Offsets of each partition that are looked at first; then five times as many in each round."""
GROWTH: Final = 5
LONGEST_STRETCH: Final = 200_000
TOLD_EVERY: Final = 5_000
"""Records between two words of how far it is."""


class FoundRecord(NamedTuple):
    """A record, and what it holds."""

    record: SourceRecord
    key: bytes
    value: bytes | None


def newest_record(
    stretches: Stretches, keyspace: str, document: str, partition: int | None, last: int, say: Say
) -> FoundRecord:
    """The newest record of a document.

    Args:
        partition: the only one to look in, None for all.
        last: offsets of each partition that are looked at, from its end.
        say: is told how far it is.

    Raises:
        CallerError: there is no such topic, partition or record, or it is in several partitions.
        KafkaUnavailableError: Kafka does not answer.
    """
    topic = stretches.topic(keyspace)
    if topic is None:
        raise CallerError(
            f"there is no topic {keyspace}",
            problem_type="keyspace-not-found",
            status=404,
            next_step="see `keytide index list` for keyspaces; correct the name",
        )
    if partition is not None and partition >= topic.partitions:
        raise CallerError(
            f"{keyspace} has no partition {partition}: it has {topic.partitions}",
            next_step="correct --partition, or leave it out",
        )
    bounds = stretches.bounds(keyspace, topic.partitions)
    if partition is not None:
        bounds = {partition: bounds[partition]}
    found = _search(stretches, keyspace, document.encode(), bounds, last, say)
    if len(found) > 1:
        where = ", ".join(f"partition {n} (offset {one.record.offset:,})" for n, one in sorted(found.items()))
        raise CallerError(
            f"{document!r} is in several partitions of {keyspace}: {where}",
            problem_type="document-in-several-partitions",
            next_step="say which with --partition; producers must agree on one partitioner",
        )
    if not found:
        raise _not_found(keyspace, document, bounds, last)
    return next(iter(found.values()))


def _not_found(keyspace: str, document: str, bounds: Mapping[int, Stretch], last: int) -> CallerError:
    short = any(high - low > last for low, high in bounds.values())
    where = f"the last {last:,} offsets of {len(bounds)} partitions" if short else "what Kafka keeps"
    return CallerError(
        f"no record of {document!r} in {where} of {keyspace}",
        problem_type="document-not-found",
        status=404,
        next_step="look further back with --last, or correct the id: it is the record's key"
        if short
        else "correct the id: it is the record's key; an uncommitted transaction shows nothing yet",
    )


def _search(
    stretches: Stretches, keyspace: str, key: bytes, bounds: Mapping[int, Stretch], last: int, say: Say
) -> dict[int, FoundRecord]:
    """By partition the newest record in the last offsets, of the first round in which there is one."""
    ends = {number: high for number, (_, high) in bounds.items()}
    floors = {number: max(low, high - last) for number, (low, high) in bounds.items()}
    size = FIRST_STRETCH
    found: dict[int, FoundRecord] = {}
    while not found and any(ends[number] > floors[number] for number in ends):
        round_ = {number: (max(floors[number], end - size), end) for number, end in ends.items()}
        for count, message in enumerate(stretches.read(keyspace, round_)):
            if message.key() == key:
                found[message.partition() or 0] = _found(message, key)
            if count % TOLD_EVERY == 0:
                back = max(bounds[number][1] - low for number, (low, _) in round_.items())
                say(f"looking for it in the last {back:,} offsets of each partition: {count:,} records read")
        ends = {number: low for number, (low, _) in round_.items()}
        size = min(size * GROWTH, LONGEST_STRETCH)
    return found


def _found(message: Message, key: bytes) -> FoundRecord:
    kind, at = message.timestamp()
    value = message.value()
    return FoundRecord(
        SourceRecord(
            message.partition() or 0,
            message.offset() or 0,
            at,
            "append" if kind == TIMESTAMP_LOG_APPEND_TIME else "create",
            value is None,
            len(value or b""),
        ),
        key,
        value,
    )
