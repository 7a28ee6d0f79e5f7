"""What a slice does: a pure state machine from events to instructions.

Theory of operation
===================
A slice is in one of five states:

    BUILDING  reads its backfill queue, one durable commit per micro-batch; timestamps pass it by
    CATCHUP   reads its mutation queue and has committed no snapshot since its build, start or rollback
    LIVE      has committed a numbered snapshot since then
    STOPPED   cannot go on by itself, and says why; only a new start (by the shell, later) helps
    LOST      what it has, or must read next, is gone; it serves nothing until another build fills it anew

`indexer.slice.building` is what it does in the first, `indexer.slice.following` in the next two. No clock,
no I/O: `now` comes with events, everything to do goes out as instructions. After model/protocol.py and, in
form, dask's `worker_state_machine`.

Rollback (R30 to R33). When the dictionary tells of one, whatever the slice was doing with its mutation queue
is void: commits that are under way or tried again, what is heard, timestamps. The slice asks for `StepBack`,
hears nothing until that is done, and then follows its queue anew from the state that it is given. The same at
its start, when the rollback happened while its node was away. A slice that is building goes on, for the
coordinator begins all builds of the keyspace again (R28); it only refuses to switch to a queue from a state
that is void.
"""

from __future__ import annotations

from typing import Literal

from indexer.slice.building import Building
from indexer.slice.corrections import Correcting
from indexer.slice.events import (
    Acknowledge,
    BackfillData,
    CaughtUp,
    DataLost,
    Decide,
    Done,
    DropChunks,
    Event,
    Failed,
    Instruction,
    Lose,
    MutationData,
    ReadBackfill,
    ReadMutations,
    RetrySucceeded,
    RolledBack,
    Stamped,
    StepBack,
    SteppedBack,
    Stop,
)
from indexer.slice.failure import CannotGoOnError, GoneError
from indexer.slice.following import QueueFollower
from indexer.slice.limits import SliceLimits
from indexer.store.interface import UNNUMBERED, Applied
from keytide.catalog.history import History
from keytide.errors import invariant
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import RepairStatus, StabilityTimestamp

SliceState = Literal["BUILDING", "CATCHUP", "LIVE", "STOPPED", "LOST"]


class SliceCore:
    """One slice.

    Args:
        index: id of the index.
        slice_number: which slice of it.
        applied: the state of the store, as opened.
        limits: bounds.
        term: the leader's newest term known; messages of lower terms are ignored.
        history: of the keyspace; None when it has none but what `applied` shows.
        version: of the index's record; what was projected under an earlier one is not for this slice.

    Attributes:
        applied: the state after the last commit.
        history: of the keyspace, as far as the dictionary has told.
        incarnation: of the history that the slice is in; it has rolled back as far as that says.
        state: see above.
        reason: why it is STOPPED or LOST, or what its commit fails of while it is tried again; else empty.
        evicted: documents that it let go of while it was full, for no timestamp reached them (R4).
    """

    def __init__(
        self,
        index: str,
        slice_number: int,
        applied: Applied,
        limits: SliceLimits,
        term: int = 0,
        history: History | None = None,
        version: int = 0,
    ) -> None:
        self.index = index
        self.slice = slice_number
        self.limits = limits
        self.applied = applied
        self.state: SliceState = "BUILDING" if applied.building else "CATCHUP"
        self.reason = ""
        self.evicted = 0
        self.history = history or History(incarnation=applied.incarnation)
        self.incarnation = applied.incarnation if applied.building else self.history.incarnation
        self._term = term
        self._version = version
        self._read_again_at: int | None = None
        """The queue position from which it was read again for what is missing there."""
        self._mode: Building | QueueFollower | None = None
        """None: it steps back, or has not been told to begin."""
        if applied.building:
            self._mode = Building(index, slice_number, applied)
        elif self._holds(applied):
            self._mode = self._follow(UNNUMBERED)
        else:
            self.incarnation = applied.incarnation

    def anew(self, applied: Applied) -> SliceCore:
        """Another one in its place, on the store as it is."""
        other = SliceCore(
            self.index, self.slice, applied, self.limits, self._term, self.history, self._version
        )
        other.evicted = self.evicted
        return other

    # --- what others may ask --------------------------------------------------------------

    @property
    def following(self) -> QueueFollower | None:
        """The mutation queue, None while building."""
        return self._mode if isinstance(self._mode, QueueFollower) else None

    @property
    def number(self) -> int:
        """Newest snapshot committed since the start, -1 when none."""
        return self._mode.number if isinstance(self._mode, QueueFollower) else UNNUMBERED

    @property
    def queue_documents(self) -> int:
        """Heard and not yet applied."""
        return self._mode.queue.documents if isinstance(self._mode, QueueFollower) else 0

    @property
    def gap_drops(self) -> int:
        """Segments dropped because they lay beyond the position (R10)."""
        return self._mode.gap_drops if isinstance(self._mode, QueueFollower) else 0

    def repair(self, durable: Applied) -> RepairStatus | None:
        """How far it is with the last repair that it has heard of, None when it has of none.

        Args:
            durable: the state that a crash goes back to.
        """
        return self._mode.correcting.told(durable) if isinstance(self._mode, QueueFollower) else None

    @property
    def paused(self) -> bool:
        return self._mode is not None and self._mode.paused

    def heard(self) -> Timestamp:
        """Everything below it is heard."""
        return self._mode.heard() if isinstance(self._mode, QueueFollower) else self.applied.timestamp

    def set_limits(self, limits: SliceLimits) -> None:
        """Change the bounds; they hold from the next decision on."""
        self.limits = limits
        if isinstance(self._mode, QueueFollower):
            self._mode.set_limits(limits)

    # --- events --------------------------------------------------------------

    def start(self) -> list[Instruction]:
        """The first instructions: where to read."""
        if self.applied.building:
            return [ReadBackfill(self.applied.build, self.applied.backfill_position)]
        if self.applied.incarnation > self.history.incarnation:
            self.state = "STOPPED"
            self.reason = f"the system dictionary does not tell yet of incarnation {self.applied.incarnation}"
            return [Stop(self.reason)]
        if self._mode is None:
            return [StepBack(self.history)]
        return [ReadMutations(self.applied.queue_position)]

    def cannot_start(self, reason: str) -> list[Instruction]:
        """Instead of `start`: what it stands on cannot be shown for now."""
        self.state, self.reason = "STOPPED", reason
        return [Stop(reason)]

    def handle(self, event: Event) -> list[Instruction]:
        """Take in one event; returns what to do, in order."""
        if self.state == "LOST":
            return []
        try:
            match event:
                case DataLost(reason=reason):
                    raise GoneError(reason)
                case RolledBack(history=history):
                    return self._rolled_back(history)
            if self.state == "STOPPED":
                return []
            match self._mode:
                case Building():
                    return self._handle_building(self._mode, event)
                case QueueFollower() as mode:
                    before = mode.evicted
                    out = self._handle_following(mode, event)
                    self.evicted += mode.evicted - before
                    return out
                case None:
                    return self._handle_stepping_back(event)
        except GoneError as error:
            self.state, self.reason = "LOST", error.message
            return [Lose(error.message)]
        except CannotGoOnError as error:
            self.state, self.reason = "STOPPED", error.message
            return [Stop(error.message)]

    def _handle_building(self, mode: Building, event: Event) -> list[Instruction]:
        match event:
            case BackfillData():
                return mode.data(event)
            case Done(applied=applied):
                self._committed(applied)
                return mode.committed(applied) if applied.building else self._switched(mode, applied)
            case Failed(reason=reason):
                self.reason = reason
                return mode.failed()
            case RetrySucceeded():
                self.reason = ""
                return mode.go_on()
            case Stamped(message=message):
                self._valid_term(message)
        return []

    def _handle_following(self, mode: QueueFollower, event: Event) -> list[Instruction]:
        match event:
            case MutationData():
                mode.data(event)
            case Decide(now=now):
                if self._read_again(mode, now):
                    self._mode = self._follow(mode.number, mode.correcting)
                    return [ReadMutations(self.applied.queue_position)]
                mode.watch(now)
                return mode.decide()
            case Stamped(number=number, message=message):
                if self._valid_term(message):
                    mode.stamped(number, message)
            case CaughtUp(now=now):
                mode.caught_up(now)
            case Done(applied=applied, corrected=corrected):
                self._committed(applied)
                mode.committed(applied, corrected)
                if applied.number == UNNUMBERED:
                    return mode.decide()
                self.state = "LIVE"
                return [Acknowledge(applied.number, applied.incarnation), *mode.decide()]
            case Failed(reason=reason):
                self.reason = reason
        return []

    def _handle_stepping_back(self, event: Event) -> list[Instruction]:
        match event:
            case SteppedBack(applied=applied, number=number):
                story = f"{self.index}/{self.slice} stepped back to {applied}, which is void"
                invariant(self._holds(applied), "Untorn", story)
                self.applied = applied
                self.incarnation = self.history.incarnation
                self.reason = ""
                self._mode = self._follow(number)
                return [ReadMutations(applied.queue_position)]
            case Failed(reason=reason):
                self.reason = reason
            case Stamped(message=message):
                self._valid_term(message)
        return []

    def _rolled_back(self, history: History) -> list[Instruction]:
        """The dictionary tells of a rollback. Hearing it again changes nothing."""
        if history.incarnation <= self.history.incarnation:
            return []
        self.history = history
        if isinstance(self._mode, Building):
            return []
        self._mode = None
        self.state, self.reason = "CATCHUP", ""
        return [StepBack(history)]

    def _committed(self, applied: Applied) -> None:
        story = f"{self.index}/{self.slice} went from {self.applied} to {applied}"
        invariant(applied.timestamp.covers(self.applied.timestamp), "Contiguous", story)
        self.applied = applied
        self.reason = ""

    def _switched(self, mode: Building, applied: Applied) -> list[Instruction]:
        """The build is over for this slice; the mutation queue is read from where the build's end says, and
        cut."""
        if not self._holds(applied):
            raise CannotGoOnError("the build began before a rollback of its keyspace: it begins again (R28)")
        self.state = "CATCHUP"
        self.incarnation = self.history.incarnation
        self._mode = self._follow(UNNUMBERED)
        return [DropChunks(mode.chunks()), ReadMutations(applied.queue_position)]

    def _read_again(self, mode: QueueFollower, now: int) -> bool:
        """Whether the queue is to be read once more from the slice's position: for what was let go of, or
        before a gap stops the slice: what is missing may be there, lost between the broker and here."""
        position = self.applied.queue_position
        if mode.deaf or mode.committing:
            return False
        if mode.reads_again():
            return True
        if not mode.gaps.late(now) or self._read_again_at == position:
            return False
        self._read_again_at = position
        return True

    def _follow(self, number: int, before: Correcting | None = None) -> QueueFollower:
        """The mutation queue from the slice's position on; arguments as of `QueueFollower`."""
        return QueueFollower(
            self.index, self.slice, self.applied, self.limits, self.history, number, self._version, before
        )

    def _holds(self, applied: Applied) -> bool:
        return self.history.holds(applied.timestamp, applied.incarnation)

    def _valid_term(self, message: StabilityTimestamp) -> bool:
        """Whether a message is of the newest term seen, which it may raise."""
        if message.term < self._term:
            return False
        self._term = message.term
        return True
