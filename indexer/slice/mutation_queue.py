"""What a slice has heard and not yet applied: the mutation queue in memory. Pure.

Theory of operation
===================
Per source partition the slice has *applied* everything below its position, and *heard* everything below a
later (or equal) offset. What lies between is held here, segment after segment without a hole: a segment
that begins where hearing ends extends it, one wholly below it is a duplicate, one that overlaps is cut,
one beyond it is dropped and waits for the resend (R10). Of a segment that was read before a rollback only
what lies below the cut is there for any of these questions (R30). `take` gives everything below a timestamp,
splitting the segments it goes through (R11), and keeps the rest.

What an election has lost may be held already; `hear` takes what the log has in its place, by the leader
epochs of segments: records of the new leader, or nothing but its marker. (Where it is applied, the
coordinator knows of it and rolls back.) A timestamp may come before what `hear` needs for that: so one of a
later leader than what is held last below it waits until a segment of that leader was heard behind that and
reaches as far. It always comes: whoever had the place acknowledged first has sent what ends there to every
slice, and a slice that held something older then has that in its queue behind it. In the same way a segment
does not continue what is held of an earlier leader than its sender has read there, before that was heard.

Each held part remembers the queue offset of the message that brought it: the smallest of them is where a
restart must begin to read (R6).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from keytide.errors import invariant
from keytide.model.timestamp import UNKNOWN_EPOCH, Place, Timestamp
from keytide.wire.columns import has_documents
from keytide.wire.messages import Segment


class SegmentOutcome(Enum):
    """What became of a segment."""

    EXTENDED = "extended"
    CUT = "cut"
    DUPLICATE = "duplicate"
    BEYOND = "beyond"
    EMPTY = "empty"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The part [start, end) of a segment.

    Attributes:
        segment: as it came; may be wider than the part.
        position: queue offset of the message that brought it, of its first part.
        arrival: the how manieth segment it was.
    """

    segment: Segment
    start: int
    end: int
    position: int
    arrival: int

    @property
    def partition(self) -> int:
        return self.segment.partition

    @property
    def whole(self) -> bool:
        """Whether the part is the segment, uncut."""
        return self.start <= self.segment.start and self.end >= self.segment.end


class _Witness(NamedTuple):
    """A segment that was heard: its leader epoch, where it ends, and the how manieth it was."""

    epoch: int
    end: int
    arrival: int


@dataclass(slots=True)
class _PartitionQueue:
    """One source partition: where hearing ends, and the parts between there and the position.

    Attributes:
        applied: where the parts begin.
        witnesses: the last segments heard, without those that a later one stands for.
    """

    heard: Place
    applied: Place
    parts: deque[SegmentPart] = field(default_factory=deque)
    witnesses: list[_Witness] = field(default_factory=list)

    def note(self, epoch: int, end: int, arrival: int) -> None:
        """A segment was heard."""
        self.witnesses = [one for one in self.witnesses if one.epoch > epoch or one.end > end]
        self.witnesses.append(_Witness(epoch, end, arrival))

    def vouched_for(self, place: Place, arrival: int) -> bool:
        """Whether a segment came behind the `arrival`th that is of the place's leader, or a later one, and
        reaches as far."""
        return any(
            one.arrival > arrival and one.epoch >= place.epoch and one.end >= place.offset
            for one in self.witnesses
        )


class PendingMutations:
    """Parts heard and not yet applied, by source partition, without holes.

    Attributes:
        documents: versions in the messages held (a split segment counts until its last part is taken).
        bytes: size of their columns.
    """

    __slots__ = ("_arrivals", "_queues", "bytes", "documents")

    def __init__(self, applied: Timestamp) -> None:
        self._queues = {
            partition: _PartitionQueue(place, place) for partition, place in sorted(applied.places.items())
        }
        self._arrivals = 0
        self.documents = 0
        self.bytes = 0

    def heard(self, partition: int) -> int:
        """Next offset of a source partition that has not been heard."""
        queue = self._queues.get(partition)
        return queue.heard.offset if queue else 0

    def place(self, partition: int) -> Place:
        """Where hearing ends in a source partition."""
        queue = self._queues.get(partition)
        return queue.heard if queue else Place(0)

    def heard_timestamp(self, topic_id: str) -> Timestamp:
        return Timestamp({p: queue.heard for p, queue in sorted(self._queues.items())}, topic_id)

    def covers(self, timestamp: Timestamp) -> bool:
        """Whether everything below `timestamp` has been heard, and is of its branch."""
        return all(
            self.heard(p) >= place.offset and not self._lost(p, place)
            for p, place in timestamp.places.items()
        )

    def contradicts(self, timestamp: Timestamp) -> bool:
        """Whether what is held below `timestamp` is of another branch than it: an election has lost the one
        or the other. It is settled by what the queue brings next, or by a rollback."""
        return any(self._lost(p, place) for p, place in timestamp.places.items())

    def _lost(self, partition: int, place: Place) -> bool:
        """Whether a document is held below `place` of a later leader than the place's, or the last one of an
        earlier leader; or it cannot be told yet, for what is held there is of an earlier leader, and nothing
        of the place's own or a later one that reaches as far was heard since."""
        queue = self._queues.get(partition)
        if queue is None or place.epoch < 0:
            return False
        if place.offset == queue.applied.offset and place.tail == 0 and place.epoch < queue.applied.epoch:
            return True  # a build has read what the log has since an election; this is of what it had before
        if not queue.parts:
            return False
        if queue.parts[0].segment.epoch == place.epoch == queue.parts[-1].segment.epoch:
            return False
        for part in queue.parts:
            end = min(part.end, place.offset)
            if part.segment.epoch > place.epoch:
                start = part.start
            elif 0 <= part.segment.epoch < place.epoch:
                start = max(part.start, place.offset - 1)
                if start < end and not queue.vouched_for(place, part.arrival):
                    return True
            else:
                continue
            if has_documents(part.segment, start, end):
                return True
        return False

    def hear(self, segment: Segment, position: int, limit: Place | None = None) -> SegmentOutcome:
        """Take in one segment of the message at queue offset `position`.

        Args:
            limit: where its branch ends in this source partition, None when it goes on; what lies at or past
                it does not count.
        """
        end = Place(segment.end, segment.epoch)
        if limit is not None and limit.offset <= segment.start:
            return SegmentOutcome.VOID
        if limit is not None and limit.offset < segment.end:
            end = limit
        self._arrivals += 1
        outcome = self._take_in(segment, position, end)
        queue = self._queues.get(segment.partition)
        if (
            queue is not None
            and segment.epoch >= 0
            and outcome not in (SegmentOutcome.BEYOND, SegmentOutcome.VOID)
        ):
            queue.note(segment.epoch, end.offset, self._arrivals)
        return outcome

    def _take_in(self, segment: Segment, position: int, end: Place) -> SegmentOutcome:
        """`hear`, up to where the segment's branch ends."""
        self._settle(segment, end.offset)
        known = self.heard(segment.partition)
        if segment.start > known:
            return SegmentOutcome.BEYOND
        if self._continues_another_branch(segment):
            return SegmentOutcome.VOID if end.offset <= known else SegmentOutcome.BEYOND
        if end.offset <= known:
            return SegmentOutcome.EMPTY if segment.start == end.offset else SegmentOutcome.DUPLICATE
        queue = self._queues.setdefault(segment.partition, _PartitionQueue(Place(0), Place(0)))
        if 0 <= segment.epoch < queue.heard.epoch and has_documents(segment, known, end.offset):
            return SegmentOutcome.VOID
        queue.parts.append(SegmentPart(segment, known, end.offset, position, self._arrivals))
        queue.heard = end
        self.documents += _documents(segment)
        self.bytes += _size(segment)
        return SegmentOutcome.EXTENDED if segment.start == known else SegmentOutcome.CUT

    def _continues_another_branch(self, segment: Segment) -> bool:
        """Whether its sender has read below its start what is of a later leader than what is held there, and
        that has not come: a send between failed. It comes again, and settles what is held (R10)."""
        queue = self._queues.get(segment.partition)
        if queue is None or segment.below < 0:
            return False
        part = next((one for one in reversed(queue.parts) if one.start < segment.start), None)
        if part is None or not 0 <= part.segment.epoch < segment.below:
            return False
        return not queue.vouched_for(Place(segment.start, segment.below), part.arrival)

    def _settle(self, segment: Segment, end: int) -> None:
        """Let go of what is held and not on the log any more: along a log leader epochs only grow, so where
        this segment is of a later epoch and has a document where an older one is held, or none where one is
        held, an election has lost what is held. (Or the cleaner took it; then a newer version follows.)

        A rollback does not cut it, for nobody may know of it: its sender may have died before it committed or
        reported any of it.
        """
        queue = self._queues.get(segment.partition)
        if queue is None or segment.start >= queue.heard.offset:
            return
        if not any(
            0 <= part.segment.epoch < segment.epoch and _either_has_documents(segment, part, end)
            for part in queue.parts
        ):
            return
        cut = max(segment.start, queue.parts[0].start)
        while queue.parts and queue.parts[-1].end > cut:
            part = queue.parts.pop()
            if part.start < cut:
                queue.parts.append(replace(part, end=cut))
                break
            self.documents -= _documents(part.segment)
            self.bytes -= _size(part.segment)
        queue.heard = Place(cut, queue.parts[-1].segment.epoch if queue.parts else UNKNOWN_EPOCH)

    def reachable(self, target: Timestamp) -> Timestamp:
        """The latest timestamp that is neither past `target` nor past what was heard."""
        places: dict[int, Place] = {}
        for partition, place in sorted(target.places.items()):
            if queue := self._queues.get(partition):
                places[partition] = place if queue.heard.offset >= place.offset else queue.heard
            else:
                places[partition] = Place(0)
        return Timestamp(places, target.topic_id)

    def bytes_below(self, target: Timestamp) -> int:
        """Bytes that `take` up to `target` would free."""
        return sum(
            _size(part.segment)
            for partition, queue in self._queues.items()
            for part in queue.parts
            if part.end <= target.offset(partition)
        )

    def take(self, applied: Timestamp, target: Timestamp) -> list[SegmentPart]:
        """Remove and return every part below `target`, by partition and in offset order.

        Args:
            applied: the slice's position, with which the parts begin.
            target: at or past `applied`, and heard entirely.
        """
        taken: list[SegmentPart] = []
        for partition, place in sorted(target.places.items()):
            queue = self._queues.get(partition)
            start = reached = applied.offset(partition)
            while queue and queue.parts and queue.parts[0].start < place.offset:
                part = queue.parts.popleft()
                invariant(
                    part.start == reached,
                    "Contiguous",
                    f"partition {partition}: part at {part.start}, not {reached}",
                )
                if part.end > place.offset:
                    queue.parts.appendleft(replace(part, start=place.offset))
                    part = replace(part, end=place.offset)
                else:
                    self.documents -= _documents(part.segment)
                    self.bytes -= _size(part.segment)
                taken.append(part)
                reached = part.end
            if queue is not None:
                queue.applied = place
            invariant(
                reached == max(start, place.offset),
                "Contiguous",
                f"partition {partition}: taken [{start}, {reached}), wanted up to {place.offset}",
            )
        return taken

    def evict(self) -> dict[int, tuple[Place, int]]:
        """Forget everything held, as if it had not come.

        Returns:
            by source partition of which anything was held: where it ended, and the smallest queue offset of
            the messages that brought it.
        """
        gone: dict[int, tuple[Place, int]] = {}
        for partition, queue in self._queues.items():
            if queue.parts:
                gone[partition] = (queue.heard, min(part.position for part in queue.parts))
                queue.parts.clear()
                queue.heard = queue.applied
        self.documents = self.bytes = 0
        return gone

    def first_position(self) -> int | None:
        """The smallest queue offset of a message with anything held, None when nothing is (R6)."""
        return min((part.position for queue in self._queues.values() for part in queue.parts), default=None)

    def empty(self) -> bool:
        return not any(queue.parts for queue in self._queues.values())


def _either_has_documents(segment: Segment, part: SegmentPart, end: int) -> bool:
    """Whether a segment, of which what lies below `end` counts, or a part has a document where both are."""
    start, end = max(part.start, segment.start), min(part.end, end)
    return any(has_documents(one, start, end) for one in (segment, part.segment))


def _documents(segment: Segment) -> int:
    return segment.heard.count if segment.heard else 0


def _size(segment: Segment) -> int:
    """Bytes of a segment's columns; small change (skips, the objects themselves) is a flat 200 bytes and
    100 per skip."""
    size = 200 + 100 * len(segment.skips) + len(segment.present)
    if segment.heard:
        heard = segment.heard
        size += (
            len(heard.offsets) + len(heard.times) + len(heard.id_lengths) + len(heard.ids) + len(heard.hashes)
        )
    if segment.puts:
        puts = segment.puts
        size += (
            len(puts.ordinals)
            + len(puts.key_lengths)
            + len(puts.keys)
            + len(puts.value_lengths)
            + len(puts.values)
        )
    return size
