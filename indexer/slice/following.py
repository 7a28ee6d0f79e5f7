"""A slice that follows its mutation queue: hears segments, learns timestamps, decides commits. Pure.

Theory of operation
===================
Segments are *heard* (`indexer.slice.mutation_queue`) and stability timestamps learnt
(`indexer.slice.pending_timestamps`) as they come; a `decide` after every batch of events commits a number
whose timestamp is heard entirely (R1, R2), or, when the slice is full, applies without a number what it
holds below a timestamp that it knows (R4), or, when that makes no room, pauses. One commit is under way at a
time; until it is done the slice only listens.

A slice that is full of what no timestamp reaches, while the newest one waits for what lies further on in the
queue, would stand for ever if no timestamp ever did: an election may have lost what it holds. So after some
timestamps it lets go of it and reads on; once one reaches there after all, it reads the queue again from
where that lies, up to which its position stays.

What it hears is judged by the keyspace's history first (R30): of a message that was read before a rollback
counts only what lies below the cut. A message of a *later* history than the slice knows makes it *deaf*: that
one and all behind it stay in the queue until the dictionary tells of the rollback, and the slice begins again
from the state that it has then. Timestamps of another incarnation than its own say nothing to it.

A segment beyond what is heard is dropped: its projector resends from the last commit (R10). That it is
still missing counts from when the *end* of the queue was met without it; before, it may lie further on. The
same holds for the missing parts of a message (R20).
"""

from __future__ import annotations

from msgspec import structs

from indexer.slice.corrections import Correcting
from indexer.slice.events import Apply, Correct, Instruction, MutationData, PauseReading, Resume
from indexer.slice.evicted import EvictedMutations
from indexer.slice.failure import CannotGoOnError, GoneError, unreadable
from indexer.slice.gaps import Gaps
from indexer.slice.limits import WAIT_LIMIT, SliceLimits
from indexer.slice.mutation_queue import PendingMutations, SegmentOutcome, SegmentPart
from indexer.slice.pending_timestamps import PendingStamps
from indexer.store.interface import UNNUMBERED, Applied
from keytide.catalog.history import History
from keytide.errors import invariant
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.columns import cut_segment, segment_from
from keytide.wire.messages import (
    Corrections,
    RepairEnd,
    RepairWatch,
    Segment,
    SegmentBatch,
    StabilityTimestamp,
    UnreadableMessageError,
)
from keytide.wire.parts import Assembler


class QueueFollower:
    """The mutation queue of one slice.

    Args:
        applied: the state of the slice; it holds in `history`.
        history: of the keyspace.
        number: newest snapshot that is held already.
        version: of the index's record; what was projected under an earlier one is not for this slice.
        before: the repairs as far as they were heard, when the queue is heard once more.

    Attributes:
        applied: the state after the last commit.
        number: newest snapshot committed, -1 when none.
        deaf: the later incarnation that was met in the queue, 0 when none was.
        gaps: what is missing in the queue.
        gap_drops: segments dropped because they lay beyond the position (R10).
        stale: segments that lie on a lost branch entirely.
        evicted: documents that it has let go of, each time that it has.
        correcting: the repairs.
    """

    def __init__(
        self,
        index: str,
        slice_number: int,
        applied: Applied,
        limits: SliceLimits,
        history: History,
        number: int = UNNUMBERED,
        version: int = 0,
        before: Correcting | None = None,
    ) -> None:
        self.index = index
        self.slice = slice_number
        self.applied = applied
        self.limits = limits
        self.number = number
        self.paused = False
        self.deaf = 0
        self.gap_drops = 0
        self.stale = 0
        self.evicted = 0
        self.queue = PendingMutations(applied.timestamp)
        self._history = history
        self._version = version
        self._topic_id = history.topic_id or applied.timestamp.topic_id
        self._stamps = PendingStamps()
        self._assembler = Assembler()
        self._cursor = applied.queue_position
        self._limits_of: dict[int, Timestamp | None] = {}
        self._deaf_since: int | None = None
        self._beginning: int | None = None
        self.gaps = Gaps(limits.gap_ms)
        self._incomplete: tuple[int, int] | None = None
        self._waited = 0
        self._evicted = EvictedMutations()
        self._commit: Apply | Correct | None = None
        self.correcting = before.again() if before else Correcting(history, max(number, applied.number))
        self._news = True

    def set_limits(self, limits: SliceLimits) -> None:
        """Change the bounds; they hold from the next decision on."""
        self.limits = limits
        self._news = True

    def heard(self) -> Timestamp:
        """Everything below it is heard."""
        return self.queue.heard_timestamp(self._topic_id)

    # --- events --------------------------------------------------------------

    def data(self, event: MutationData) -> None:
        """A record of the mutation queue."""
        if self.deaf or event.position < self._cursor:
            return  # not yet; or once more, after a pause
        if self._beginning is None:
            self._beginning = event.position
        self._cursor = event.position + 1
        self._news = True
        try:
            whole = self._assembler.feed(event.data, event.position)
        except UnreadableMessageError as error:
            raise unreadable("mutation queue", event.position, error) from error
        if whole is None:
            return
        batch, first = whole
        known = (SegmentBatch, RepairWatch, Corrections, RepairEnd)
        if not isinstance(batch, known) or (batch.index, batch.slice) != (self.index, self.slice):
            kind = type(batch).__name__
            raise CannotGoOnError(
                f"mutation queue, offset {event.position}: a {kind} that is not for this slice"
            )
        if batch.incarnation > self._history.incarnation:
            self.deaf, self._cursor = batch.incarnation, first
            return
        if not isinstance(batch, SegmentBatch):
            self.correcting.message(batch, first)
            return
        if batch.version < self._version:
            # On its way since before the index was built anew (R19): by RANGE other splits have sent it here.
            return
        if batch.incarnation == self._history.incarnation:
            self._check_topic(batch.topic_id)
        limit = self._limit(batch.incarnation)
        for segment in batch.segments:
            place = None if limit is None else limit.place(segment.partition)
            self.correcting.hear(segment, place)
            self._hear(segment, first, place)

    def stamped(self, number: int, message: StabilityTimestamp) -> None:
        """A stability timestamp of the leader."""
        if message.incarnation != self._history.incarnation:
            return
        self._check_topic(message.timestamp.topic_id)
        self._news = True
        if number > self.number:
            self._stamps.add(number, message.timestamp)
            self._waited += self.paused

    def caught_up(self, now: int) -> None:
        """The end of the queue was met."""
        self.gaps.end_met(now)
        self._give_up_parts(now)

    def watch(self, now: int) -> None:
        """Check what has a limit in time.

        Raises:
            CannotGoOnError: a gap stayed unfilled for too long (R10), or a rollback untold.
            GoneError: what is missing was deleted from the queue.
        """
        self.correcting.expire(now)
        limit = self.limits.gap_ms
        if self.deaf:
            self._deaf_since = now if self._deaf_since is None else self._deaf_since
            if now - self._deaf_since > limit:
                known = self._history.incarnation
                raise CannotGoOnError(
                    f"the mutation queue is at incarnation {self.deaf}, and the system dictionary at {known}"
                )
            return  # what is missing may lie further on
        late = self.gaps.late(now)
        if not late:
            return
        wanted = ", ".join(self.gaps.described(partition, self.queue.place) for partition in late)
        if any(self._deleted(partition) for partition in late):
            raise GoneError(f"deleted from the mutation queue before the slice has read it: {wanted}")
        raise CannotGoOnError(f"missing in the mutation queue: {wanted}; is a projector running?")

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._commit is not None

    def committed(self, applied: Applied, corrected: int = 0) -> None:
        """The commit under way can be read; of corrections, it changed so many documents."""
        if isinstance(self._commit, Correct):
            self.correcting.made(corrected, len(self._commit.spared), applied, self.number)
        if applied.number != UNNUMBERED:
            story = f"number {applied.number} after {self.number}"
            invariant(applied.number > self.number, "Monotonic", story)
            self.number = applied.number
        self.applied = applied
        self._commit = None
        self._news = True

    # --- decisions --------------------------------------------------------------

    def decide(self) -> list[Instruction]:
        """Commit, make room, pause or resume; nothing when nothing came since it was asked last."""
        if not self._news:
            return []
        self._news = False
        if self._commit is None:
            self._commit = self._correct() or self._next_number() or self._make_room()
            if self._commit is not None:
                return [self._commit]
        if self._waits_in_vain():
            self.evicted += self.queue.documents
            for partition in self._evicted.evict(self.queue):
                self.gaps.forget(partition)  # it is known where that is
        full = self._full() or self.deaf > 0
        if full and not self.paused:
            self.paused, self._waited = True, 0
            return [PauseReading()]
        if self.paused and not full and self._commit is None:
            self.paused = False
            return [Resume()]
        return []

    def _next_number(self) -> Apply | None:
        """R1: a number whose timestamp is heard everywhere. R2: of those at or past the position."""
        self._stamps.forget(self.applied.timestamp, self.number)
        chosen = self._stamps.next_commit(self.queue)
        if chosen is None:
            return None
        invariant(
            self.queue.covers(chosen.timestamp) and chosen.timestamp.covers(self.applied.timestamp),
            "Untorn",
            f"number {chosen.number} at {chosen.timestamp}, heard {self.heard()}, applied {self.applied}",
        )
        return self._apply(chosen.timestamp, chosen.number)

    def _correct(self) -> Correct | None:
        """What a repair has found, on the state as it is."""
        judged = self.correcting.next(self.applied.timestamp)
        if judged is None:
            return None
        applied = structs.replace(self.applied, number=UNNUMBERED, queue_position=self._position())
        return Correct(judged.corrections, judged.spared, applied)

    def _make_room(self) -> Apply | None:
        """R4. (What was let go of may tell that something here is lost: it is read again before.)"""
        if not self._full() or self.reads_again():
            return None
        target = self._stamps.make_room(self.applied.timestamp, self.queue)
        if target is None:
            return None
        doubted = {
            partition: place
            for partition, place in target.places.items()
            if place.offset > self.applied.timestamp.offset(partition)
            and place.epoch >= 0
            and not self._stamps.vouch_for(partition, place)
        }
        return self._apply(target, UNNUMBERED, self.applied.doubted | doubted)

    def _full(self) -> bool:
        """(What contradicts a timestamp is settled by what lies further on: then it reads on.)"""
        full = self.queue.documents >= self.limits.documents or self.queue.bytes >= self.limits.bytes
        return full and not self._stamps.contradicted(self.queue)

    def _waits_in_vain(self) -> bool:
        """Whether it is full of what no timestamp reaches, and the newest waits for what lies further on."""
        newest = self._stamps.newest
        return (
            self.paused
            and self._commit is None
            and self._waited >= WAIT_LIMIT
            and newest is not None
            and self._full()
            and not self.queue.covers(newest)
            and self.applied.timestamp.covers(self.queue.reachable(newest))
        )

    def reads_again(self) -> bool:
        """Whether a timestamp reaches what was let go of, and it did not come another time."""
        newest = self._stamps.newest
        return newest is not None and self._evicted.wanted(newest, self.queue)

    def _apply(self, target: Timestamp, number: int, doubted: dict[int, Place] | None = None) -> Apply:
        """Take everything below `target` out of the queue; the state after the commit is exactly there."""
        self._waited = 0
        pieces = self.queue.take(self.applied.timestamp, target)
        applied = Applied(
            timestamp=Timestamp(target.places, target.topic_id or self._topic_id),
            number=number,
            incarnation=self._history.incarnation,
            queue_position=self._position(),
            build=self.applied.build,
            batch=self.applied.batch,
            backfill_position=self.applied.backfill_position,
            doubted=doubted or {},
        )
        return Apply([_cut(piece) for piece in pieces if piece.segment.heard or piece.segment.skips], applied)

    # --- details --------------------------------------------------------------

    def _hear(self, segment: Segment, first: int, limit: Place | None) -> None:
        """
        Raises:
            GoneError: it shows that an election has lost what is applied, which nobody else knows of.
        """
        state = self.applied if self._commit is None else self._commit.applied
        doubted = state.doubted.get(segment.partition)
        if doubted and segment.epoch > doubted.epoch and segment.start < min(doubted.offset, segment.end):
            raise GoneError(
                f"partition {segment.partition}: an election has lost records below {doubted.offset} (leader "
                f"epoch {doubted.epoch}) that it applied to make room: {segment.start} is of {segment.epoch}"
            )
        outcome = self.queue.hear(segment, first, limit)
        if outcome is SegmentOutcome.VOID:
            self.stale += 1
        elif outcome is SegmentOutcome.BEYOND:
            self.gap_drops += 1
            if segment.partition in self._evicted:
                self._evicted.dropped(segment, limit)
            else:
                self.gaps.dropped(segment)
        elif outcome in (SegmentOutcome.EXTENDED, SegmentOutcome.CUT):
            place = self.queue.place(segment.partition)
            self.gaps.extended(segment.partition, place.offset)
            self._evicted.heard(segment.partition, place)

    def _limit(self, incarnation: int) -> Timestamp | None:
        """Up to where messages of an incarnation count; the present one's have no limit."""
        if incarnation not in self._limits_of:
            self._limits_of[incarnation] = self._history.limit(incarnation)
        return self._limits_of[incarnation]

    def _check_topic(self, topic_id: str) -> None:
        """A message of the present incarnation belongs to the present topic.

        Raises:
            CannotGoOnError: it is of another one, and no rollback was told.
        """
        if not self._topic_id:
            self._topic_id = topic_id
        if topic_id and topic_id != self._topic_id:
            change = f"id {self._topic_id}, now {topic_id}"
            raise CannotGoOnError(f"the source topic was made anew ({change}), and no rollback is known")

    def _deleted(self, partition: int) -> bool:
        """Whether nothing of a source partition was heard since the queue's beginning, and that is no longer
        its true one: then no resend brings what is missing."""
        trimmed = self.applied.queue_position == 0 and bool(self._beginning)
        return trimmed and self.queue.heard(partition) == self.applied.timestamp.offset(partition)

    def _position(self) -> int:
        """R6: the first message with anything unapplied."""
        places = (
            self.queue.first_position(),
            self._assembler.first_pending(),
            self.correcting.first_position(),
            self._evicted.first_position(),
            self._cursor,
        )
        return min(place for place in places if place is not None)

    def _give_up_parts(self, now: int) -> None:
        """A sender that died within a message leaves parts that nobody completes; they are sent anew. Judged
        at the end of the queue only: a node that was held up may have the others still to read."""
        first = self._assembler.first_pending()
        if first is None or self._incomplete is None or first != self._incomplete[0]:
            self._incomplete = None if first is None else (first, now)
        elif now - self._incomplete[1] > self.limits.part_ms:
            self._assembler.forget(first)
            self._incomplete = None


def _cut(piece: SegmentPart) -> Segment:
    if piece.whole:
        return piece.segment
    return cut_segment(segment_from(piece.segment, piece.start), piece.end)[0]
