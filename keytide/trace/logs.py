"""What the messages of Keytide's own topics say of hops, read one after the other.

Theory of operation: every hop is a message that its sender made in any case, and Kafka keeps when it was
made. Offsets, numbers and what is acknowledged only rise, so "when was it first at or past X" is a search
among the places where it rose (`Rises`). What a rollback has made void does not count: of an older
incarnation offsets hold up to where it was cut, numbers up to that of the snapshot
(`keytide.catalog.history`).

Messages are given in the order of their topic. A log need not begin at the topic's beginning: `first` says
whether something smaller was seen before, for only then is what it found the first one.

Times are milliseconds since the epoch, by the clocks of the senders.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from keytide.catalog.history import History
from keytide.model.timestamp import Timestamp
from keytide.trace.changes import RecordChange, change_of
from keytide.wire.heartbeats import follow
from keytide.wire.messages import (
    QUEUE_UNAVAILABLE,
    Acknowledged,
    HeartbeatChanges,
    Message,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    Published,
    SegmentBatch,
    SliceStatus,
    StabilityTimestamp,
)

NO_HISTORY = History()


class Rise(NamedTuple):
    """Where something rose.

    Attributes:
        value: to what.
        at: when that was said, ms.
        after: whether a smaller value was seen before: else it may have risen earlier.
    """

    value: int
    at: int
    after: bool


class Rises:
    """A number that only rises, and when."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._times: list[int] = []

    def note(self, value: int, at: int) -> None:
        """It was said; one that is not larger than those before is left alone."""
        if not self._values or value > self._values[-1]:
            self._values.append(value)
            self._times.append(at)

    def first(self, value: int) -> Rise | None:
        """Where it was first at or past a value; None when it is not yet."""
        where = bisect_left(self._values, value)
        if where == len(self._values):
            return None
        return Rise(self._values[where], self._times[where], where > 0)

    @property
    def newest(self) -> int | None:
        """None when nothing was said."""
        return self._values[-1] if self._values else None


# --- mutation queues --------------------------------------------------------------------------------------


class SentSegment(NamedTuple):
    """A segment that has the record that is looked for."""

    at: int
    sender: str
    change: RecordChange


class QueueLog:
    """One slice's mutation queue.

    Args:
        history: of the keyspace.
        version: catalog version of the index; what was projected before it is of no use to a slice.
        target: (source partition, offset) of the record that is looked for, if there is one.

    Attributes:
        ends: by source partition, how far segments have come.
        sent: the segments that have the record; more than one when it was sent again.
    """

    def __init__(
        self, history: History = NO_HISTORY, version: int = 0, target: tuple[int, int] | None = None
    ) -> None:
        self.ends: defaultdict[int, Rises] = defaultdict(Rises)
        self.sent: list[SentSegment] = []
        self._history = history
        self._version = version
        self._target = target

    def read(self, at: int, message: Message) -> None:
        """The next message."""
        if not isinstance(message, SegmentBatch) or message.version < self._version:
            return
        limit = self._history.limit(message.incarnation)
        for segment in message.segments:
            self.ends[segment.partition].note(_cut(segment.end, segment.partition, limit), at)
            if self._target is None or self._target[0] != segment.partition:
                continue
            offset = self._target[1]
            change = None if _void(offset, segment.partition, limit) else change_of(segment, offset)
            if change is not None:
                self.sent.append(SentSegment(at, message.sender, change))


# --- reports ----------------------------------------------------------------------------------------------


class NewestProgress(NamedTuple):
    """What a projector last said of a source partition.

    Attributes:
        suspended: ids of the indexes that it sends nothing for any more.
    """

    at: int
    projector: str
    line: PartitionProgress
    suspended: frozenset[str]


class ReportLog:
    """The reports topic, as far as it is about a keyspace.

    Attributes:
        since: what is later than this was read, ms; 0 when the topic was read from its beginning.
        begins: when the first message that was read was sent, ms; 0 before there is one.
        acknowledged: by (index id, slice, node), the snapshot numbers that it holds.
        progress: by source partition, what was last said of it.
        statuses: by (index id, slice, node), what nodes last said of their copies.
    """

    def __init__(self, keyspace: str, history: History = NO_HISTORY, since: int = 0) -> None:
        self.since = since
        self.begins = 0
        self.acknowledged: defaultdict[tuple[str, int, str], Rises] = defaultdict(Rises)
        self.progress: dict[int, NewestProgress] = {}
        self.statuses: dict[tuple[str, int, str], SliceStatus] = {}
        self._keyspace = keyspace
        self._history = history
        self._reported: defaultdict[int, Rises] = defaultdict(Rises)
        self._nodes: dict[str, NodeHeartbeat] = {}

    def read(self, at: int, message: Message) -> None:
        """The next message."""
        self.begins = self.begins or at
        match message:
            case Progress(keyspace=keyspace) if keyspace == self._keyspace:
                self._progress(at, message)
            case Acknowledged(keyspace=keyspace) if keyspace == self._keyspace:
                if self._history.number_holds(message.number, message.incarnation):
                    for index, number in message.slices:
                        self.acknowledged[index, number, message.node].note(message.number, at)
            case NodeHeartbeat() | HeartbeatChanges():
                self._heartbeat(message)
            case _:
                pass

    def _progress(self, at: int, message: Progress) -> None:
        limit = self._history.limit(message.incarnation)
        suspended = frozenset(one for one, why in message.skipped.items() if QUEUE_UNAVAILABLE in why)
        for line in message.partitions:
            self._reported[line.partition].note(_cut(line.acked, line.partition, limit), at)
            self.progress[line.partition] = NewestProgress(at, message.projector, line, suspended)

    def _heartbeat(self, message: NodeHeartbeat | HeartbeatChanges) -> None:
        beat = follow(self._nodes.get(message.node), message)
        if beat is not None:
            self._nodes[beat.node] = beat
            for status in beat.slices:
                self.statuses[status.index, status.slice, beat.node] = status

    def reported(self, partition: int, end: int) -> Rise | None:
        """When the progress of a source partition was first at or past an offset."""
        found = self._reported[partition].first(end)
        return found if found is None or self.since else found._replace(after=True)


# --- control ----------------------------------------------------------------------------------------------


class NumberedTimestamp(NamedTuple):
    """A stability timestamp.

    Attributes:
        after: as that of `Rise`.
    """

    number: int
    at: int
    timestamp: Timestamp
    after: bool = True


class ControlLog:
    """The control topic, as far as it is about a keyspace.

    Args:
        whole: it is read from its first message on.
    """

    def __init__(self, keyspace: str, history: History = NO_HISTORY, whole: bool = False) -> None:
        self.stamps: list[NumberedTimestamp] = []
        self.published: defaultdict[str, Rises] = defaultdict(Rises)
        self._keyspace = keyspace
        self._history = history
        self._whole = whole
        self._term = 0

    def read(self, number: int, at: int, message: Message) -> None:
        """The next message, which stands at offset `number`. What a leader wrote behind its successor does
        not count."""
        if not isinstance(message, StabilityTimestamp | Published) or message.keyspace != self._keyspace:
            return
        if message.term < self._term:
            return
        self._term = message.term
        if isinstance(message, StabilityTimestamp):
            if self._history.number_holds(number, message.incarnation):
                self.stamps.append(NumberedTimestamp(number, at, message.timestamp))
            return
        for index, common in message.numbers.items():
            if self._history.number_holds(common, message.incarnation):
                self.published[index].note(common, at)

    def covering(self, partition: int, end: int) -> NumberedTimestamp | None:
        """The first timestamp that has everything of a source partition below `end`."""
        where = bisect_left(self.stamps, end, key=lambda one: one.timestamp.offset(partition))
        if where == len(self.stamps):
            return None
        return self.stamps[where]._replace(after=where > 0 or self._whole)

    def holds(self, index: str, partition: int, end: int) -> bool | None:
        """Whether what is published of an index has everything of a source partition below `end`; None when
        that cannot be said: nothing was read that is published, or older than all timestamps that were."""
        number, covering = self.published[index].newest, self.covering(partition, end)
        if covering is None:
            return False if self.stamps else None
        if number is None:
            return None
        if number >= covering.number:
            return True
        return False if covering.after else None


def _void(offset: int, partition: int, limit: Timestamp | None) -> bool:
    return limit is not None and offset >= limit.offset(partition)


def _cut(end: int, partition: int, limit: Timestamp | None) -> int:
    return end if limit is None else min(end, limit.offset(partition))
