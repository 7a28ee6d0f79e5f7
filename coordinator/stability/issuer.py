"""Stability timestamps: when to issue which, and which number an index's slices have in common. Pure.

Theory of operation. Projectors report, per source partition, how far everything is acknowledged by the
queues. The largest such offsets are merged, partition by partition, into the *content* of the next stability
timestamp; it never goes back (a slower report, say of a projector that took a partition over and sends again,
changes nothing). A timestamp is issued

* with new content, when there is news, `interval_ms` have passed since the last such, and every live slice of
  a READY index holds that (pacing) or `pacing_limit_ms` have passed since it was first issued;
* with the same content again, `heartbeat_ms` after the last one (R7): a restarted slice or a finished build
  joins at it.

New content is issued only when Kafka has said, after all of it was reported, that the keyspace's name still
stands for the same topic (`coordinator.stability.topic_confirmation`).

One timestamp of a keyspace is on its way at a time. Its number is the offset of its message in the control
topic (R3), so it is known only when it has been delivered, and acknowledgements of it may come before that.

Which number the slices of an index have in common is found in `coordinator.stability.publishing`, whom a
timestamp waits for in `coordinator.stability.pacing`.

A keyspace whose history is being examined is halted: nothing new is issued or published. A rollback, seen as
a higher incarnation in the dictionary, begins its stream anew at the timestamp that was gone back to;
reports, acknowledgements and heartbeats of other incarnations do not count (R31).

Invariants here: *Monotonic* (content and numbers only grow), *Published* (a published number is held by
every slice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordinator.core.events import (
    BoundWritten,
    CommonSnapshot,
    ControlTail,
    Event,
    Issued,
    IssueFailed,
    KafkaAnswered,
    Reported,
    SourceSampled,
    Tick,
    TopicSeen,
)
from coordinator.core.failure_detector import FailureDetector
from coordinator.core.instructions import Broadcast, Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.nodes import HeardNodes
from coordinator.core.speakers import Speaker
from coordinator.stability import topic_confirmation as confirming
from coordinator.stability.acknowledgements import AcknowledgedNumbers
from coordinator.stability.pacing import Pacing
from coordinator.stability.progress import Content, partition_subject
from coordinator.stability.publishing import Publishing
from coordinator.stability.stream import STAMPS_KEPT, StabilityStream, begin
from keytide.catalog.catalog import EMITTING, Catalog
from keytide.catalog.records import IndexRecord, KeyspaceRecord
from keytide.errors import invariant
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Acknowledged, NodeHeartbeat, Progress, SliceStatus, StabilityTimestamp


class TimestampIssuer:
    """Merges progress, paces and numbers timestamps, finds common snapshots, for all keyspaces of a cluster.

    Args:
        limits: settings.
        term: the leader's term, which every message carries.
    """

    def __init__(self, limits: CoreLimits, term: int) -> None:
        self.limits = limits
        self.term = term
        self.streams: dict[str, StabilityStream] = {}
        self.failure_detector = FailureDetector(limits.suspect_ms)
        self.nodes = HeardNodes(limits.node_timeout_ms, self.failure_detector, limits.copy_after_ms)
        self.acknowledgements = AcknowledgedNumbers(limits.newest_held, limits.landmarks_held)
        self._pacing = Pacing(limits, self.acknowledgements, self.nodes)
        self._publishing = Publishing(self.acknowledgements, self.nodes, term)

    def catalog_changed(self, catalog: Catalog, now: int) -> list[Instruction | CommonSnapshot]:
        """Take over what the dictionary says of keyspaces and indexes."""
        out: list[Instruction | CommonSnapshot] = []
        for node, index, slice_number in self.nodes.catalog_changed(catalog):
            self.acknowledgements.reset(node, index, slice_number)
        self._publishing.catalog_changed(catalog)
        for keyspace in catalog.keyspaces():
            mine = [
                record for record in self._publishing.indexes.values() if record.keyspace == keyspace.name
            ]
            stream = self._stream(keyspace, catalog, mine)
            stream.emitting = [record for record in mine if record.state in EMITTING and record.version > 0]
            stream.ready = [record for record in mine if record.state == "READY"]
            out += self._publishing.newest(stream, now)
        return out

    def _stream(
        self, keyspace: KeyspaceRecord, catalog: Catalog, indexes: list[IndexRecord]
    ) -> StabilityStream:
        """The keyspace's stream: the one that there is, or a new one when another history begins."""
        stream = self.streams.get(keyspace.name)
        if stream is None or stream.progress.belongs_to_another(keyspace):
            stream = begin(keyspace, catalog.rollbacks(keyspace.name), stream)
            self.streams[keyspace.name] = stream
            for record in indexes:
                self.acknowledgements.void(record.id, max(stream.stamps, default=-1))
        stream.progress.keyspace = keyspace
        return stream

    def projectors(self) -> Iterator[Speaker]:
        """The projectors that were last heard of the partitions that are read."""
        for stream in self.streams.values():
            if stream.emitting:
                yield from stream.progress.speakers()

    def halt(self, keyspace: str) -> None:
        """Issue and publish nothing of a keyspace until `resume` is called."""
        if keyspace in self.streams:
            self.streams[keyspace].halted = True

    def resume(self, keyspace: str) -> None:
        """Go on with a keyspace."""
        if keyspace in self.streams:
            self.streams[keyspace].halted = False

    def handle(self, event: Event) -> list[Instruction | CommonSnapshot]:
        """One event; what to do now, and news for builds."""
        names: Iterable[str] = sorted(self.streams)
        match event:
            case Reported(Progress() as message, now):
                out, names = self._progress(message, now), [message.keyspace]
            case Reported(Acknowledged() as message, now):
                out, names = self._acknowledged(message, now), [message.keyspace]
            case Reported(NodeHeartbeat() as message, now):
                out = self._heartbeat(message, now)
            case Issued(message, number, now):
                out, names = self._issued(message, number, now), [message.keyspace]
            case IssueFailed(message, error, now):
                out = self._issue_failed(message, error)
            case ControlTail():
                return self._recovered(event)
            case KafkaAnswered():
                self.failure_detector.confirmed()
                return []
            case TopicSeen(now=now):
                confirming.answered(self.streams.get(event.keyspace), event)
                out = []
            case SourceSampled(source, "", _):
                stream = self.streams.get(source.keyspace)
                if stream is not None and source.topic_id == stream.progress.keyspace.topic_id:
                    stream.settling.sampled(source)
                return []
            case BoundWritten(now=now):
                out = []  # (what waited for it may be issued)
            case Tick(now):
                out = self._tick(now)
            case _:
                return []
        for name in names:  # (what the others wait for is time, or a node)
            if name in self.streams:
                out += self._maybe_issue(name, self.streams[name], now)
        return out

    # --- issuing --------------------------------------------------------------------------------------------

    def next_due(self, now: int) -> int:
        """Milliseconds from now until something is due by time alone; at most the heartbeat interval."""
        due = now + self.limits.heartbeat_ms
        for stream in self.streams.values():
            if stream.may_issue:
                due = min(due, self._beat_at(stream))
                if stream.issuable and stream.ready:
                    allowed = self._news_at(stream)
                    if not self._pacing.paced(stream):
                        allowed = max(allowed, stream.content_since + self.limits.pacing_limit_ms)
                    due = min(due, confirming.not_before(stream, allowed, now))
        return max(0, due - now)

    @property
    def asks(self) -> bool:
        """Whether Kafka is asked which topic some keyspace's is: its answer lets a timestamp be issued."""
        return any(stream.asked is not None for stream in self.streams.values())

    def _beat_at(self, stream: StabilityStream) -> int:
        """When the same content is due again (R7); it waits a little for an answer that may bring new one."""
        since = stream.issued_at if stream.asked is None else max(stream.issued_at, stream.asked_at)
        return since + self.limits.heartbeat_ms

    def _news_at(self, stream: StabilityStream) -> int:
        """When the interval allows new content. A heartbeat, which brings none, does not begin it again."""
        if stream.ready:
            return stream.content_since + self.limits.interval_ms
        return stream.issued_at + self.limits.heartbeat_ms

    def _maybe_issue(
        self, name: str, stream: StabilityStream, now: int
    ) -> list[Instruction | CommonSnapshot]:
        if not stream.may_issue:
            return []
        wanted = (stream.content is None and stream.open) or (
            stream.issuable
            and now >= self._news_at(stream)
            and (self._pacing.paced(stream) or now - stream.content_since >= self.limits.pacing_limit_ms)
        )
        ripe = stream.ripe if wanted else None
        out: list[Instruction | CommonSnapshot] = []
        if ripe is not None:
            self._renew(stream, ripe, now)
        elif wanted:
            out += confirming.ask(stream, now)
        if stream.content is None or not (ripe or now >= self._beat_at(stream)):
            return out
        progress = stream.progress
        message = StabilityTimestamp(
            name,
            self.term,
            progress.keyspace.incarnation,
            stream.content,
            progress.fresh_at(),
            now,
            stream.settling.by(stream.content),
        )
        stream.in_flight = message
        stream.issued_at = now
        return [*out, Broadcast(message)]

    def _renew(self, stream: StabilityStream, confirmed: Content, now: int) -> None:
        before = stream.content or Timestamp()
        content = stream.progress.take(confirmed)
        stream.confirmed = None
        invariant(content.covers(before), "Monotonic", lambda: f"timestamp {content} after {before}")
        stream.content = content
        stream.floor = None
        stream.content_number = None
        stream.content_since = now

    def _issued(
        self, message: StabilityTimestamp, number: int, now: int
    ) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is None or stream.in_flight is not message:
            return []
        invariant(number > stream.number, "Monotonic", lambda: f"number {number} after {stream.number}")
        stream.in_flight = None
        stream.number = number
        stream.first = number if stream.first < 0 else stream.first
        stream.settling.issued(message.issued_at, number)
        if stream.content_number is None:
            stream.content_number = number
        self._pacing.delivered(stream, now)
        stream.stamps[number] = message.timestamp
        while len(stream.stamps) > STAMPS_KEPT:
            del stream.stamps[next(iter(stream.stamps))]
        # Acknowledgements may have overtaken the delivery report.
        return self._publishing.common(stream, [record.id for record in stream.emitting], number, now)

    def _issue_failed(self, message: StabilityTimestamp, error: str) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is not None and stream.in_flight is message:
            # Its content stays the newest: it may be in the topic; the heartbeat sends it again.
            stream.in_flight = None
        text = f"a stability timestamp was not sent: {error}"
        return [Note("warning", "timestamp-not-sent", message.keyspace, text)]

    def _recovered(self, event: ControlTail) -> list[Instruction | CommonSnapshot]:
        """Go on where the last leader stopped, so that timestamps of this term cover those of the terms
        before. What a rollback has made void since does not count."""
        for number, message in event.stamps:
            stream = self.streams.get(message.keyspace)
            if stream is None or not stream.history.number_holds(number, message.incarnation):
                continue
            if stream.progress.recover(message):
                stream.content = (stream.content or Timestamp()).merge_max(message.timestamp)
                stream.content_number = stream.number = number
                stream.stamps[number] = message.timestamp
        for common in event.published:
            stream = self.streams.get(common.keyspace)
            if stream is not None:
                ready = {record.id for record in stream.ready}
                for index, number in common.numbers.items():
                    if index in ready and stream.history.number_holds(number, common.incarnation):
                        stream.published[index] = max(number, stream.published.get(index, -1))
        return []

    def _tick(self, now: int) -> list[Instruction | CommonSnapshot]:
        self.failure_detector.tick(now)
        version = self.nodes.version
        out: list[Instruction | CommonSnapshot] = [*self.nodes.tick()]
        if self.nodes.version != version:
            self._publishing.slices_changed()
        streams = [stream for _, stream in sorted(self.streams.items())]
        for stream in streams:
            lagging = frozenset(stream.lagging)
            out += self._pacing.tick(stream, now)
            if self.nodes.version != version or stream.lagging != lagging:
                out += self._publishing.newest(stream, now)
        return out + self._publishing.repeat(streams, now, 2 * self.limits.heartbeat_ms)

    # --- reports --------------------------------------------------------------------------------------------

    def _progress(self, message: Progress, now: int) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is not None:
            stream.progress.merge(message, now)
            for one in message.partitions:
                self.failure_detector.heard(partition_subject(message.keyspace, one.partition))
        return []

    def _heartbeat(self, message: NodeHeartbeat, now: int) -> list[Instruction | CommonSnapshot]:
        version = self.nodes.version
        restarted, notes = self.nodes.heartbeat(message, now)
        if self.nodes.version != version:
            self._publishing.slices_changed()
        if restarted:
            self.acknowledgements.reset(message.node)
        if self.nodes.by_id[message.node].heartbeat is not message:
            return [*notes]  # of a start that is over
        out: list[Instruction | CommonSnapshot] = [*notes]
        held: dict[int, list[tuple[str, int]]] = {}
        for status in message.slices:
            if status.number < 0:
                self.acknowledgements.reset(message.node, status.index, status.slice)
            elif self._of_this_history(status):
                held.setdefault(status.number, []).append((status.index, status.slice))
        for number, slices in sorted(held.items()):
            out += self._hold(message.node, slices, number, now)
        if self.nodes.version != version:
            for _, stream in sorted(self.streams.items()):
                out += self._publishing.newest(stream, now)
        return out

    def _of_this_history(self, status: SliceStatus) -> bool:
        """Whether a slice has rolled back as far as its keyspace is: only then its number counts (R32)."""
        record = self._publishing.indexes.get(status.index)
        stream = self.streams.get(record.keyspace) if record else None
        return stream is not None and status.incarnation == stream.progress.keyspace.incarnation

    def _acknowledged(self, message: Acknowledged, now: int) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is None or message.incarnation != stream.progress.keyspace.incarnation:
            return []
        return self._hold(message.node, message.slices, message.number, now)

    def _hold(
        self, node: str, slices: Iterable[tuple[str, int]], number: int, now: int
    ) -> list[Instruction | CommonSnapshot]:
        """Slices on a node hold a number; what follows. Copies that the dictionary does not name do not
        count."""
        by_index: dict[str, list[int]] = {}
        for index, slice_number in slices:
            if index in self._publishing.indexes and self.nodes.names(node, index, slice_number):
                by_index.setdefault(index, []).append(slice_number)
        out: list[Instruction | CommonSnapshot] = []
        touched: dict[str, list[str]] = {}
        for index, mine in by_index.items():
            self.acknowledgements.acknowledge(node, index, mine, number)
            touched.setdefault(self._publishing.indexes[index].keyspace, []).append(index)
        for keyspace, indexes in touched.items():
            if keyspace in self.streams:
                out += self._publishing.common(self.streams[keyspace], indexes, number, now)
        return out
