"""From harvested columns to encoded messages: projection once per keyspace, routing per index, one message
per slice.

Theory of operation: a partition at catalog version v emits for the indexes that emit at v (R13). Partitions
of one poll may be at different versions for a moment; they are projected by one plan (the union of the
indexes), each for its own indexes, and go out in messages of their own, since a message names one version.
Pure but for the counts that it keeps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from keytide.catalog.catalog import Catalog
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.definition.index import IndexDefinition
from keytide.wire.messages import QUEUE_UNAVAILABLE, Segment, SegmentBatch, encode
from keytide.wire.parts import split
from projector.core.projection import KeyspacePlan, SourceBatch, project
from projector.progress.events import Key, Reached
from router.core import bounded, segments
from router.recipients import BatchDocuments

_SPAN = 2**31
"""Offsets in a segment count from its start in 32 bits: a wider hole before the first record is a segment of
its own."""


class Columns(NamedTuple):
    """Records of one source partition in offset order, all of one leader epoch. All lists have the same
    length.

    Attributes:
        epoch: leader epoch, -1 when unknown.
        times: record timestamps, milliseconds.
    """

    epoch: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    times: list[int]

    def since(self, offset: int) -> Columns:
        """The records at or past `offset`: itself, nearly always."""
        if not self.offsets or self.offsets[0] >= offset:
            return self
        low = bisect_left(self.offsets, offset)
        return Columns(self.epoch, self.offsets[low:], self.keys[low:], self.values[low:], self.times[low:])


class Outgoing(NamedTuple):
    """One Kafka message for a mutation queue."""

    index_id: str
    slice: int
    value: bytes


class MessageLimits(NamedTuple):
    """Bytes (see `keytide.settings.settings.TopicSettings`)."""

    segment_target: int
    part: int


def batches_of(
    key: Key, start: int, end: int, epoch: int, columns: Iterable[Columns], marked: int = -1
) -> list[SourceBatch]:
    """One partition's share of a poll as adjacent batches from `start` to `end`, one per leader epoch.

    Args:
        start: position before the poll; records below it were sent before and are left out.
        end: position after it; at or past the last record.
        epoch: leader epoch known so far, for a range without records.
        columns: the records, in offset order.
        marked: leader epoch of the marker below `end`, -1 when it is not known or no marker is there. The
            range past the last record carries it: whoever holds records of an older leader there learns so
            that they are lost.
    """
    batches: list[SourceBatch] = []
    at = start
    for run in columns:
        run = run.since(at)
        if not run.offsets:
            continue
        if run.offsets[0] - at >= _SPAN:
            batches.append(_empty(key, run.epoch, at, run.offsets[0], epoch))
            at, epoch = run.offsets[0], run.epoch
        after = run.offsets[-1] + 1
        columns_of_run = (run.offsets, run.keys, run.values, run.times)
        batches.append(SourceBatch(key.partition, run.epoch, at, after, *columns_of_run, epoch))
        at, epoch = after, run.epoch
    if not batches or at < end:
        batches.append(_empty(key, max(epoch, marked) if at < end else epoch, at, max(at, end), epoch))
    return batches


def reached_by(batches: Sequence[SourceBatch], tail: int, marked: int = -1) -> Reached:
    """Where a share of a poll (`batches_of`) brings its partition.

    Args:
        tail: offsets without a record below where it begins.
        marked: as for `batches_of`. What lies below the end is the marker then, and the place of its epoch.
    """
    last, read = batches[-1], next((one.end for one in reversed(batches) if len(one.offsets)), None)
    bare = tail + last.end - batches[0].start if read is None else last.end - read
    return Reached(last.end, last.epoch, 0 if marked >= 0 else bare)


def _empty(key: Key, epoch: int, start: int, end: int, below: int) -> SourceBatch:
    return SourceBatch(key.partition, epoch, start, end, [], [], [], [], below)


class Pipeline:
    """Projects and routes for all keyspaces.

    Args:
        sender: this projector's name in its messages, unique per process start.
        limits: sizes of messages.

    Attributes:
        sender: as given.
        documents: keyspace to documents projected since the start.
        outcomes: index id to reason to number of documents skipped or left out since the start; a resend
            counts again.
        heard, spared: index id to documents that its slices were told of, once for each slice, and that
            they were not, for their ids say that they cannot hold them (R16); a resend counts again.
        suspended: indexes that nothing is sent for (R18).
    """

    def __init__(self, sender: str, limits: MessageLimits) -> None:
        self.documents: Counter[str] = Counter()
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.heard: Counter[str] = Counter()
        self.spared: Counter[str] = Counter()
        self.suspended: set[str] = set()
        self.sender = sender
        self._limits = limits
        self._parts = 0
        self._plans: dict[tuple[tuple[str, IndexDefinition], ...], KeyspacePlan] = {}

    def suspend(self, index: str) -> None:
        """Send nothing for an index from now on, and have the coordinator told (it makes it FAILED)."""
        self.suspended.add(index)
        self.outcomes[index][QUEUE_UNAVAILABLE] = 1

    def resume(self, index: str) -> None:
        """The index begins anew, or is over: its past does not count."""
        self.suspended.discard(index)
        if index in self.outcomes:
            self.outcomes[index].pop(QUEUE_UNAVAILABLE, None)

    def emitting(self, catalog: Catalog, keyspace: str, version: int) -> list[IndexRecord]:
        """The indexes that a partition at `version` sends for now."""
        return [r for r in catalog.emitting(keyspace, version) if r.id not in self.suspended]

    def _plan(self, indexes: Collection[IndexRecord]) -> KeyspacePlan:
        """By ids and definitions: one of an index that is not built can be altered under its id."""
        key = tuple(sorted(((record.id, record.definition) for record in indexes), key=itemgetter(0)))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > 16:  # old combinations
                self._plans.clear()
            plan = self._plans[key] = KeyspacePlan(key)
        return plan

    def emit(
        self, catalog: Catalog, keyspace: str, batches: dict[int, list[SourceBatch]], now: int
    ) -> list[Outgoing]:
        """The messages for one poll of one keyspace.

        Args:
            batches: catalog version to the batches of the partitions at that version.
            now: milliseconds.
        """
        record = catalog.keyspace(keyspace)
        if record is None:
            return []
        indexes = {version: self.emitting(catalog, keyspace, version) for version in batches}
        union = {index.id: index for some in indexes.values() for index in some}
        if not union:
            return []
        plan = self._plan(union.values())
        messages: list[Outgoing] = []
        for version, some in sorted(batches.items()):
            by_index = self._segments(plan, indexes[version], some)
            self.documents[keyspace] += sum(len(batch.offsets) for batch in some)
            for index, slices in by_index.items():
                for number, parts in enumerate(slices):
                    message = SegmentBatch(
                        index, number, self.sender, record.topic_id, record.incarnation, version, parts, now
                    )
                    messages += self._encode(message)
        return messages

    def _segments(
        self, plan: KeyspacePlan, indexes: list[IndexRecord], batches: list[SourceBatch]
    ) -> dict[str, list[list[Segment]]]:
        """Index id -> slice -> segments, in batch order."""
        found: dict[str, list[list[Segment]]] = {r.id: [[] for _ in range(r.slices)] for r in indexes}
        ids = list(found)
        rules = {record.id: Partitioning.of(record.definition, record.splits) for record in indexes}
        by_id = {record.id for record in indexes if record.hears_by_id}
        for batch in batches:
            empty = Segment(batch.partition, batch.epoch, batch.start, batch.end, below=batch.below)
            if not batch.offsets:
                for slices in found.values():
                    for some in slices:
                        some.append(empty)
                continue
            projected = project(batch, plan, ids)
            documents = BatchDocuments(projected.heard)
            for id_, slices in found.items():
                entries = projected.indexes[id_]
                if entries.left_out:
                    self.outcomes[id_].update(entries.left_out)
                if entries.skips:
                    self.outcomes[id_].update(skip.reason for skip in entries.skips)
                routed = segments(entries, rules[id_], empty, documents, by_id=id_ in by_id)
                for some, segment in zip(slices, routed, strict=True):
                    some.append(segment)
                heard = sum(segment.heard.count for segment in routed if segment.heard)
                self.heard[id_] += heard
                self.spared[id_] += len(routed) * (projected.heard.count if projected.heard else 0) - heard
        return found

    def _encode(self, message: SegmentBatch) -> list[Outgoing]:
        """Near the target size as it is, nearly always; else cut at offsets, and what is still too large in
        parts."""
        data = encode(message)
        if len(data) <= self._limits.segment_target:
            return [Outgoing(message.index, message.slice, data)]
        found: list[Outgoing] = []
        for some in bounded(message.segments, self._limits.segment_target):
            piece = SegmentBatch(
                message.index,
                message.slice,
                message.sender,
                message.topic_id,
                message.incarnation,
                message.version,
                some,
                message.sent_at,
            )
            data = encode(piece)
            self._parts += 1
            for value in split(data, self._limits.part, self.sender, self._parts):
                found.append(Outgoing(message.index, message.slice, value))
        return found
