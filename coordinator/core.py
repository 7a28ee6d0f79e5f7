"""Stability timestamps: when to issue which, and which number an index's slices have in common. Pure.

Theory of operation. Projectors report, per source partition, how far everything is acknowledged by the
queues. The largest such offsets are merged, partition by partition, into the *content* of the next stability
timestamp; it never goes back (a slower report, say of a projector that took a partition over and sends again,
changes nothing). A timestamp is issued

* with new content, when there is news, `interval_ms` have passed, and every live slice of a READY index holds
  the last content (pacing) or `pacing_limit_ms` have passed since that was first issued;
* with the same content again, `heartbeat_ms` after the last one (R7): a restarted slice or a finished build
  joins at it.

One timestamp of a keyspace is on its way at a time. Its number is the offset of its message in the control
topic (R3), so it is known only when it has been delivered, and acknowledgements of it may come before that.

A READY index's newest number that every slice holds is `Published`, on change, and with every second
heartbeat for readers that started since. For an index under build the same thing is told to the build, as
`CommonSnapshot`.

Invariants here: *Monotonic* (content and numbers only grow), *Published* (a published number is held by
every slice).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.events import (
    Broadcast,
    CommonSnapshot,
    Event,
    Instruction,
    Issued,
    IssueFailed,
    Note,
    Recovered,
    Reported,
    Tick,
)
from coordinator.holdings import Holdings
from coordinator.nodes import Nodes
from coordinator.progress import Progresses
from keytide.catalog import EMITTING, Catalog, IndexRecord
from keytide.errors import invariant
from keytide.messages import Acknowledged, NodeHeartbeat, Progress, Published, StabilityTimestamp
from keytide.timestamp import Timestamp

STAMPS_KEPT = 4096
"""Numbers whose timestamp is remembered, per keyspace: a slice that acknowledges an older one is not waited
for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that the core obeys, in ms (reasons in `keytide.settings`).

    Attributes:
        newest_held: how many of its newest numbers a slice keeps for certain.
        landmarks_held: how many of those before, by rank.
    """

    interval_ms: int = 10
    heartbeat_ms: int = 200
    pacing_limit_ms: int = 2_000
    node_timeout_ms: int = 3_000
    newest_held: int = 8
    landmarks_held: int = 32


@dataclass(slots=True)
class Stream:
    """The stability timestamps of one keyspace.

    Attributes:
        content: the newest timestamp issued; None before the first.
        content_number: the first number that has this content; None until it is delivered.
        content_since: when this content was first issued.
        issued_at: when the last timestamp was issued.
        in_flight: what is being sent.
        stamps: number -> timestamp of the newest numbers.
        published: index id -> newest common number.
    """

    progress: Progresses
    content: Timestamp | None = None
    content_number: int | None = None
    content_since: int = 0
    issued_at: int = 0
    in_flight: StabilityTimestamp | None = None
    number: int = -1
    stamps: dict[int, Timestamp] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    published_at: int = 0
    emitting: list[IndexRecord] = field(default_factory=list)
    ready: list[IndexRecord] = field(default_factory=list)


class StabilityCore:
    """Merges progress, paces and numbers timestamps, finds common snapshots, for all keyspaces of a cluster.

    Args:
        limits: settings.
        term: the leader's term, which every message carries.
    """

    def __init__(self, limits: Limits, term: int) -> None:
        self.limits = limits
        self.term = term
        self.streams: dict[str, Stream] = {}
        self.nodes = Nodes(limits.node_timeout_ms)
        self.holdings = Holdings(limits.newest_held, limits.landmarks_held)
        self._indexes: dict[str, IndexRecord] = {}

    def catalog_changed(self, catalog: Catalog, now: int) -> list[Instruction | CommonSnapshot]:
        """Take over what the dictionary says of keyspaces and indexes."""
        out: list[Instruction | CommonSnapshot] = []
        records = {record.id: record for record in catalog.indexes()}
        for gone in [index for index in self.holdings.indexes() if index not in records]:
            self.holdings.forget(gone)
        self._indexes = records
        for keyspace in catalog.keyspaces():
            stream = self.streams.get(keyspace.name)
            if stream is None:
                stream = self.streams[keyspace.name] = Stream(Progresses(keyspace))
            stream.progress.keyspace = keyspace
            mine = [record for record in records.values() if record.keyspace == keyspace.name]
            stream.emitting = [record for record in mine if record.state in EMITTING and record.version > 0]
            stream.ready = [record for record in mine if record.state == "READY"]
            ready = {record.id for record in stream.ready}
            stream.published = {index: n for index, n in stream.published.items() if index in ready}
            out += self._publish(stream, [record.id for record in stream.ready], now)
        return out

    def handle(self, event: Event) -> list[Instruction | CommonSnapshot]:
        """One event; what to do now, and news for builds."""
        match event:
            case Reported(Progress() as message, now):
                out = self._progress(message, now)
            case Reported(Acknowledged() as message, now):
                out = self._acknowledged(message, now)
            case Reported(NodeHeartbeat() as message, now):
                out = self._heartbeat(message, now)
            case Issued(message, number, now):
                out = self._issued(message, number, now)
            case IssueFailed(message, error, now):
                out = self._issue_failed(message, error)
            case Recovered():
                return self._recovered(event)
            case Tick(now):
                out = [*self.nodes.tick(now), *self._repeat_published(now)]
            case _:
                return []
        for name in sorted(self.streams):
            out += self._maybe_issue(name, self.streams[name], now)
        return out

    # --- issuing --------------------------------------------------------------------------------------------

    def next_due(self, now: int) -> int:
        """Milliseconds from now until something is due by time alone; at most the heartbeat interval."""
        due = now + self.limits.heartbeat_ms
        for stream in self.streams.values():
            if stream.emitting and stream.in_flight is None and stream.progress.complete:
                due = min(due, stream.issued_at + self.limits.heartbeat_ms)
                if stream.progress.news and stream.ready:
                    allowed = stream.issued_at + self.limits.interval_ms
                    if not self._paced(stream):
                        allowed = max(allowed, stream.content_since + self.limits.pacing_limit_ms)
                    due = min(due, allowed)
        return max(0, due - now)

    def _maybe_issue(self, name: str, stream: Stream, now: int) -> list[Instruction | CommonSnapshot]:
        if stream.in_flight is not None or not stream.emitting or not stream.progress.complete:
            return []
        since = now - stream.issued_at
        beat = since >= self.limits.heartbeat_ms
        interval = self.limits.interval_ms if stream.ready else self.limits.heartbeat_ms
        fresh = stream.content is None or (
            stream.progress.news
            and since >= interval
            and (self._paced(stream) or now - stream.content_since >= self.limits.pacing_limit_ms)
        )
        if not fresh and not beat:
            return []
        if fresh:
            self._renew(stream, now)
        content = stream.content or Timestamp()
        message = StabilityTimestamp(
            name, self.term, stream.progress.keyspace.incarnation, content, stream.progress.fresh_at(), now
        )
        stream.in_flight = message
        stream.issued_at = now
        return [Broadcast(message)]

    def _renew(self, stream: Stream, now: int) -> None:
        before = stream.content or Timestamp()
        content = stream.progress.take()
        invariant(content.covers(before), "Monotonic", lambda: f"timestamp {content} after {before}")
        stream.content = content
        stream.content_number = None
        stream.content_since = now

    def _paced(self, stream: Stream) -> bool:
        """Whether every live slice of a READY index holds the present content."""
        number = stream.content_number
        if number is None:
            return stream.number < 0  # before the first delivery there is nothing to hold
        newest, serves = self.holdings.newest, self.nodes.slice_serves
        return all(
            newest(node, record.id, slice_number) >= number
            for record in stream.ready
            for slice_number, nodes in enumerate(record.placement)
            for node in nodes
            if serves(node, record.id, slice_number)
        )

    def _issued(
        self, message: StabilityTimestamp, number: int, now: int
    ) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is None or stream.in_flight is not message:
            return []
        invariant(number > stream.number, "Monotonic", lambda: f"number {number} after {stream.number}")
        stream.in_flight = None
        stream.number = number
        if stream.content_number is None:
            stream.content_number = number
        stream.stamps[number] = message.timestamp
        while len(stream.stamps) > STAMPS_KEPT:
            del stream.stamps[next(iter(stream.stamps))]
        # Acknowledgements may have overtaken the delivery report.
        return self._common(stream, [record.id for record in stream.emitting], number, now)

    def _issue_failed(self, message: StabilityTimestamp, error: str) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is not None and stream.in_flight is message:
            stream.in_flight = (
                None  # its content stays the newest: it may be in the topic; the heartbeat sends it again
            )
        return [
            Note(
                "warning",
                "timestamp-not-sent",
                message.keyspace,
                f"a stability timestamp was not sent: {error}",
            )
        ]

    def _recovered(self, event: Recovered) -> list[Instruction | CommonSnapshot]:
        """Go on where the last leader stopped, so that timestamps of this term cover those of the terms
        before."""
        for number, message in event.stamps:
            stream = self.streams.get(message.keyspace)
            if stream is not None and stream.progress.recover(message):
                stream.content = (stream.content or Timestamp()).merge_max(message.timestamp)
                stream.content_number = stream.number = number
                stream.stamps[number] = message.timestamp
        for common in event.published:
            stream = self.streams.get(common.keyspace)
            if stream is not None and common.incarnation == stream.progress.keyspace.incarnation:
                ready = {record.id for record in stream.ready}
                for index, number in common.numbers.items():
                    if index in ready:
                        stream.published[index] = max(number, stream.published.get(index, -1))
        return []

    # --- reports --------------------------------------------------------------------------------------------

    def _progress(self, message: Progress, now: int) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        return [] if stream is None else [*stream.progress.merge(message, now)]

    def _heartbeat(self, message: NodeHeartbeat, now: int) -> list[Instruction | CommonSnapshot]:
        restarted, notes = self.nodes.heartbeat(message, now)
        if restarted:
            self.holdings.reset(message.node)
        out: list[Instruction | CommonSnapshot] = [*notes]
        for status in message.slices:
            if status.number < 0:
                self.holdings.reset(message.node, status.index, status.slice)
                continue
            touched = self.holdings.acknowledge(message.node, [(status.index, status.slice)], status.number)
            record = self._indexes.get(status.index)
            if record is not None and record.keyspace in self.streams:
                out += self._common(self.streams[record.keyspace], touched, status.number, now)
        return out

    def _acknowledged(self, message: Acknowledged, now: int) -> list[Instruction | CommonSnapshot]:
        stream = self.streams.get(message.keyspace)
        if stream is None or message.incarnation != stream.progress.keyspace.incarnation:
            return []
        touched = self.holdings.acknowledge(message.node, message.slices, message.number)
        return self._common(stream, touched, message.number, now)

    # --- common snapshots -----------------------------------------------------------------------------------

    def _common(
        self, stream: Stream, indexes: list[str], number: int, now: int
    ) -> list[Instruction | CommonSnapshot]:
        """What follows for `indexes` when a replica of each has acknowledged `number`."""
        timestamp = stream.stamps.get(number)
        if timestamp is None:
            return []  # not delivered yet (then `_issued` asks again), or of an earlier life
        complete: list[str] = []
        out: list[Instruction | CommonSnapshot] = []
        for index in indexes:
            record = self._indexes.get(index)
            if record is None or not self.holdings.holds(index, record.placement, number):
                continue
            if record.state == "READY":
                complete.append(index)
            else:
                out.append(CommonSnapshot(index, number, timestamp, now))
        if complete:
            out += self._publish(stream, complete, now)
        return out

    def _publish(
        self, stream: Stream, indexes: Iterable[str], now: int
    ) -> list[Instruction | CommonSnapshot]:
        changed = False
        for index in indexes:
            record = self._indexes[index]
            number = self.holdings.newest_common(index, record.placement)
            if number > stream.published.get(index, -1) and number in stream.stamps:
                missing = self.holdings.missing(index, record.placement, number)
                invariant(not missing, "Published", f"slices {missing} of {index} do not hold {number}")
                stream.published[index] = number
                changed = True
        return [self._published(stream, now)] if changed else []

    def _published(self, stream: Stream, now: int) -> Broadcast:
        stream.published_at = now
        keyspace = stream.progress.keyspace
        return Broadcast(Published(keyspace.name, self.term, keyspace.incarnation, dict(stream.published)))

    def _repeat_published(self, now: int) -> list[Instruction | CommonSnapshot]:
        limit = 2 * self.limits.heartbeat_ms
        return [
            self._published(stream, now)
            for _, stream in sorted(self.streams.items())
            if stream.published and now - stream.published_at >= limit
        ]
