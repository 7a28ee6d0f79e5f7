"""Where reading begins: commits as they are written, checked and read back, and the first offset of a new
activation.

Theory of operation: a commit says offset, leader epoch, catalog version and topic id (R13, R15). On
assignment it is held against what the topic is now; what does not fit is refused with a reason and never
guessed. The functions that decide are pure; the two that look things up ask Kafka's admin API once for many
partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from confluent_kafka.admin import AdminClient

from keytide.catalog import Catalog
from keytide.kafka_admin import TopicInfo, describe_topics, list_offsets
from projector.events import Assigned, Key, Located, Refused
from projector.source import Committed

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S = 5.0


class CommitMetadata(msgspec.Struct, frozen=True):
    """The JSON text in a commit.

    Attributes:
        v: catalog version that the partition works under from this offset on.
        topic_id: Kafka's id of the topic that the offset belongs to.
        epoch: leader epoch of the last record below the offset, -1 when unknown.
    """

    v: int
    topic_id: str
    epoch: int = -1


def encode_metadata(version: int, topic_id: str, epoch: int) -> str:
    return msgspec.json.encode(CommitMetadata(version, topic_id, epoch)).decode()


def decode_metadata(text: str) -> CommitMetadata:
    """What a commit says; version 0 for one that is not ours (an operator moved the offsets)."""
    try:
        return msgspec.json.decode(text, type=CommitMetadata)
    except msgspec.MsgspecError:
        return CommitMetadata(0, "")


class Extent(NamedTuple):
    """What a source partition holds now: first offset, end for read_committed, high watermark."""

    low: int
    stable: int
    high: int


def by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key in keys:
        found.setdefault(key.keyspace, []).append(key.partition)
    return found


def look_up(client: AdminClient, keys: Sequence[Key]) -> tuple[dict[str, TopicInfo], dict[Key, Extent]]:
    """The topics and the extents of the partitions; a topic that is gone is missing in both.

    Raises:
        KafkaUnavailableError: no answer.
    """
    topics = describe_topics(client, sorted(by_topic(keys)), LOOKUP_TIMEOUT_S)
    extents: dict[Key, Extent] = {}
    for topic, partitions in by_topic(keys).items():
        if topic not in topics:
            continue
        limit = LOOKUP_TIMEOUT_S
        low = list_offsets(client, topic, partitions, earliest=True, timeout=limit)
        stable = list_offsets(client, topic, partitions, timeout=limit)
        high = list_offsets(client, topic, partitions, read_committed=False, timeout=limit)
        for partition in partitions:
            extents[Key(topic, partition)] = Extent(low[partition], stable[partition], high[partition])
    return topics, extents


def take_over(
    key: Key, commit: Committed, topic: TopicInfo | None, extent: Extent | None, catalog: Catalog
) -> Assigned | Refused:
    """What to make of a partition that the group gave us."""
    said = decode_metadata(commit.metadata)
    offset = commit.offset
    record = catalog.keyspace(key.keyspace)
    ids = {said.topic_id, record.topic_id if record else "", topic.id if topic else ""} - {""}
    if topic is None or extent is None:
        return Refused(key, offset or 0, said.v, "the topic is gone")
    if len(ids) > 1:
        reason = "the topic was deleted and made anew: offsets of the old one mean nothing in it"
        return Refused(key, offset or 0, said.v, reason)
    if offset is not None and offset > extent.high:
        reason = f"the log ends at {extent.high}, below the committed offset {offset}: records were lost"
        return Refused(key, offset, said.v, reason)
    if offset is not None and offset < extent.low:
        lost = extent.low - offset
        log.warning("%s: up to %d records expired at %d before they were read", key, lost, extent.low)
    if offset is not None and said.v == 0:
        log.warning("%s: the commit at %d has no catalog version; was it made by another tool?", key, offset)
    return Assigned(key, offset, said.v, commit.epoch)


def first_place(key: Key, extent: Extent, catalog: Catalog, *, has_commit: bool) -> Located:
    """Where live reading of a partition begins, for which nothing was emitted so far.

    At the end: history is the backfill's. But a partition that came after a build sampled its load timestamp
    is none of that build's: it is read from position 0. And one that was activated before, whose commit is
    gone (the group's offsets expire when no projector runs for long), goes on from its first activation;
    slices trim what they have.
    """
    record = catalog.keyspace(key.keyspace)
    indexes = catalog.emitting(key.keyspace, record.version) if record else []
    builds = [build for build in (catalog.build(index.build or "") for index in indexes) if build is not None]
    if any(key.partition not in build.load_timestamp.places for build in builds):
        return Located(key, 0)
    marks = [b.low_watermark[key.partition] for b in builds if key.partition in b.low_watermark]
    if marks and not has_commit:
        log.error("%s: its commit is gone; reading again from its first activation at %d", key, min(marks))
        return Located(key, min(marks))
    return Located(key, extent.stable)
