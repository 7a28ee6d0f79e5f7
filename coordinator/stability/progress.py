"""The acknowledged progress of one keyspace: what projectors report, merged (monotone, per incarnation).
Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.core.speakers import Speaker
from keytide.catalog.records import KeyspaceRecord
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import PartitionProgress, Progress, StabilityTimestamp


def partition_subject(keyspace: str, partition: int) -> tuple[str, str, int]:
    """The projector of a source partition, whichever it is, for the failure_detector."""
    return ("partition", keyspace, partition)


@dataclass(slots=True)
class AcknowledgedPartition:
    """One source partition.

    Attributes:
        place: everything below it is acknowledged by every slice of every emitting index.
        end: the end as last seen by a projector.
        fresh_at: last time at which `place` covered the end that was seen, 0 when never.
        issued_fresh_at: the same for the issued timestamp.
        version: newest catalog version activated on it.
        heard_at: when a projector last reported it; 0 when not in this term.
    """

    place: Place
    end: int = 0
    fresh_at: int = 0
    issued_fresh_at: int = 0
    version: int = 0
    heard_at: int = 0
    projector: str = ""


@dataclass(slots=True)
class ProjectorState:
    """One projector instance: its counters since its start, and the version of the protocol that it
    speaks."""

    documents: int
    skipped: dict[str, dict[str, int]]
    heard_at: int
    protocol: int


class Content(NamedTuple):
    """What was acknowledged at one moment.

    Attributes:
        fresh_at: last time at which each partition's place covered the end that was seen, by partition.
    """

    timestamp: Timestamp
    fresh_at: dict[int, int]


class KeyspaceProgress:
    """Progress of all partitions of a keyspace.

    Attributes:
        keyspace: its record as of now.
        unissued: something is acknowledged that the last issued timestamp does not cover.
    """

    PROJECTORS_KEPT = 64

    def __init__(self, keyspace: KeyspaceRecord) -> None:
        self.keyspace = keyspace
        self.partitions: dict[int, AcknowledgedPartition] = {}
        self.projectors: dict[str, ProjectorState] = {}
        self.unissued = False
        self._known = False
        self._reported = 0

    def belongs_to_another(self, keyspace: KeyspaceRecord) -> bool:
        """Whether the keyspace has another history by now: it was rolled back, or is another topic of the
        same name (what was reported of the old one means nothing in it, and its offsets, being larger, would
        never be reached)."""
        if keyspace.incarnation != self.keyspace.incarnation:
            return True
        known = self.keyspace.topic_id
        return bool(known and keyspace.topic_id and known != keyspace.topic_id)

    @property
    def complete(self) -> bool:
        """Whether a first timestamp may be made: each partition was reported, or an earlier timestamp is
        known. (Else a timestamp made from half of the reports after a coordinator's restart could lie before
        one that was issued.)"""
        # (Partitions are never forgotten; this is asked at every event.)
        while self._reported in self.partitions:
            self._reported += 1
        return self._known or self._reported >= self.keyspace.partitions

    @property
    def heard(self) -> bool:
        """Whether every partition was reported in this term."""
        states = [self.partitions.get(partition) for partition in range(self.keyspace.partitions)]
        return all(state is not None and state.heard_at > 0 for state in states)

    def merge(self, message: Progress, now: int) -> None:
        """Fold a report in; those of another incarnation or another topic of the same name are left out (what
        follows from another topic is decided where histories are examined:
        `coordinator.rollback.rollback`)."""
        if message.incarnation != self.keyspace.incarnation:
            return
        if message.topic_id and self.keyspace.topic_id and message.topic_id != self.keyspace.topic_id:
            return
        for one in message.partitions:
            self._merge_partition(one, message.projector, now)
        self.projectors.pop(message.projector, None)  # so that the newest are last
        self.projectors[message.projector] = ProjectorState(
            message.documents, message.skipped, now, message.protocol
        )
        while len(self.projectors) > self.PROJECTORS_KEPT:
            del self.projectors[next(iter(self.projectors))]

    def _merge_partition(self, report: PartitionProgress, projector: str, now: int) -> None:
        state = self.partitions.get(report.partition)
        if state is None:
            state = self.partitions[report.partition] = AcknowledgedPartition(_place(report))
            state.fresh_at = report.fresh_at
            self.unissued = True
        elif report.acked > state.place.offset:
            state.place = _place(report)
            state.fresh_at = max(state.fresh_at, report.fresh_at)
            self.unissued = True
        elif report.acked == state.place.offset:
            state.fresh_at = max(state.fresh_at, report.fresh_at)
            if report.epoch > state.place.epoch:
                state.place = _place(report)
        if not self.unissued:  # the issued timestamp still is at `place`
            state.issued_fresh_at = state.fresh_at
        state.end = max(state.end, report.end)
        state.version = max(state.version, report.version)
        state.heard_at = now
        state.projector = projector

    def speakers(self) -> Iterator[Speaker]:
        """The projectors that were last heard of its partitions."""
        owners = {state.projector for state in self.partitions.values()}
        for name in owners & self.projectors.keys():
            yield Speaker(f"projector {name}", self.projectors[name].protocol)

    def begin(self, timestamp: Timestamp, before: KeyspaceProgress | None) -> None:
        """Start from where a rollback went back to. Which catalog versions are activated is known from
        before."""
        for partition, place in sorted(timestamp.places.items()):
            self.partitions[partition] = AcknowledgedPartition(place, end=place.offset)
        for partition, state in before.partitions.items() if before else ():
            mine = self.partitions.setdefault(partition, AcknowledgedPartition(timestamp.place(partition)))
            mine.version = state.version
        self._known = True

    def recover(self, message: StabilityTimestamp) -> bool:
        """Start from a timestamp of an earlier term (the caller knows that its number holds); False when it
        belongs to another topic."""
        known, theirs = self.keyspace.topic_id, message.timestamp.topic_id
        if known and theirs and known != theirs:
            return False
        for partition, place in sorted(message.timestamp.places.items()):
            state = self.partitions.setdefault(partition, AcknowledgedPartition(place))
            if place.offset >= state.place.offset:
                state.place = place
                state.fresh_at = state.issued_fresh_at = max(state.issued_fresh_at, message.fresh_at)
        self._known = True
        return True

    def content(self) -> Content:
        """Everything that is acknowledged now."""
        fresh_at = {partition: state.fresh_at for partition, state in self.partitions.items()}
        return Content(self.timestamp(), fresh_at)

    def take(self, content: Content) -> Timestamp:
        """The timestamp to issue; from now on only what was acknowledged after `content` is news."""
        for partition, fresh_at in content.fresh_at.items():
            self.partitions[partition].issued_fresh_at = fresh_at
        self.unissued = not content.timestamp.covers(self.timestamp())
        return content.timestamp

    def timestamp(self) -> Timestamp:
        """Everything that is acknowledged, as a timestamp."""
        places = {partition: self.partitions[partition].place for partition in sorted(self.partitions)}
        return Timestamp(places, self.keyspace.topic_id)

    def fresh_at(self) -> int:
        """The smallest, over partitions, last time at which the issued timestamp covered the end that was
        seen; 0 when never."""
        return min((state.issued_fresh_at for state in self.partitions.values()), default=0)

    def activated(self, partition: int) -> int:
        """Newest catalog version that is activated on a partition, 0 when unknown."""
        state = self.partitions.get(partition)
        return state.version if state else 0

    def silent(self, partition: int, now: int, limit_ms: int) -> bool:
        """Whether no projector has reported a partition within the limit: nobody owns it."""
        state = self.partitions.get(partition)
        return state is None or not state.heard_at or now - state.heard_at > limit_ms


def _place(report: PartitionProgress) -> Place:
    return Place(report.acked, report.epoch, report.tail)
