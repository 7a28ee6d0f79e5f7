"""What a slice does: a pure state machine from events to instructions.

Theory of operation
===================
A slice is in one of four states:

    BUILDING  reads its backfill queue, one durable commit per micro-batch; timestamps pass it by
    CATCHUP   reads its mutation queue and has no snapshot yet: after a build, after a restart
    LIVE      has committed a numbered snapshot since its start
    STOPPED   cannot go on by itself, and says why; only a new start (by the shell, later) helps

`indexer.building` is what it does in the first, `indexer.following` in the next two. No clock, no I/O:
`now` comes with events, everything to do goes out as instructions. After model/protocol.py and, in form,
dask's `worker_state_machine`.
"""

from __future__ import annotations

from typing import Literal

from indexer.building import Building
from indexer.events import (
    Acknowledge,
    BackfillData,
    CaughtUp,
    Done,
    DropChunks,
    Event,
    Failed,
    Instruction,
    MutationData,
    QueueLost,
    ReadBackfill,
    ReadMutations,
    Recovered,
    Stamped,
    Stop,
    Turn,
)
from indexer.failure import CannotGoOnError
from indexer.following import Following, Limits
from indexer.store.interface import UNNUMBERED, Applied
from keytide.errors import invariant
from keytide.messages import StabilityTimestamp
from keytide.timestamp import Timestamp

State = Literal["BUILDING", "CATCHUP", "LIVE", "STOPPED"]


class SliceCore:
    """One slice.

    Args:
        index: id of the index.
        slice_number: which slice of it.
        applied: the state of the store, as opened.
        limits: bounds.
        term: the leader's newest term known; messages of lower terms are ignored.

    Attributes:
        applied: the state after the last commit.
        state: see above.
        reason: why it is STOPPED, or what its commit fails of while it is tried again; else empty.
    """

    def __init__(
        self, index: str, slice_number: int, applied: Applied, limits: Limits, term: int = 0
    ) -> None:
        self.index = index
        self.slice = slice_number
        self.limits = limits
        self.applied = applied
        self.state: State = "BUILDING" if applied.building else "CATCHUP"
        self.reason = ""
        self._term = term
        self._mode: Building | Following = (
            Building(index, slice_number, applied)
            if applied.building
            else Following(index, slice_number, applied, limits)
        )

    # --- what others may ask --------------------------------------------------------------

    @property
    def following(self) -> Following | None:
        """The mutation queue, None while building."""
        return self._mode if isinstance(self._mode, Following) else None

    @property
    def number(self) -> int:
        """Newest snapshot committed since the start, -1 when none."""
        return self._mode.number if isinstance(self._mode, Following) else UNNUMBERED

    @property
    def queue_documents(self) -> int:
        """Heard and not yet applied."""
        return self._mode.queue.documents if isinstance(self._mode, Following) else 0

    @property
    def gap_drops(self) -> int:
        """Segments dropped because they lay beyond the position (R10)."""
        return self._mode.gap_drops if isinstance(self._mode, Following) else 0

    @property
    def incomplete_batches(self) -> int:
        """Batch ends that were passed over because chunks were missing."""
        return self._mode.incomplete if isinstance(self._mode, Building) else 0

    @property
    def paused(self) -> bool:
        return self._mode.paused

    def heard(self) -> Timestamp:
        """Everything below it is heard."""
        return self._mode.heard() if isinstance(self._mode, Following) else self.applied.timestamp

    def set_limits(self, limits: Limits) -> None:
        """Change the bounds; they hold from the next decision on."""
        self.limits = limits
        if isinstance(self._mode, Following):
            self._mode.set_limits(limits)

    # --- events --------------------------------------------------------------

    def start(self) -> list[Instruction]:
        """The first instructions: where to read."""
        if self.applied.building:
            return [ReadBackfill(self.applied.build, self.applied.backfill_position)]
        return [ReadMutations(self.applied.queue_position)]

    def handle(self, event: Event) -> list[Instruction]:
        """Take in one event; returns what to do, in order."""
        if self.state == "STOPPED":
            return []
        try:
            if isinstance(event, QueueLost):
                raise CannotGoOnError(event.reason)
            match self._mode:
                case Building():
                    return self._handle_building(self._mode, event)
                case Following():
                    return self._handle_following(self._mode, event)
        except CannotGoOnError as error:
            self.state = "STOPPED"
            self.reason = error.message
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
            case Recovered():
                self.reason = ""
                return mode.go_on()
            case Stamped(message=message):
                self._valid_term(message)
        return []

    def _handle_following(self, mode: Following, event: Event) -> list[Instruction]:
        match event:
            case MutationData():
                mode.data(event)
            case Turn(now=now):
                mode.watch(now)
                return mode.decide()
            case Stamped(number=number, message=message):
                if self._valid_term(message):
                    mode.stamped(number, message)
            case CaughtUp(now=now):
                mode.caught_up(now)
            case Done(applied=applied):
                self._committed(applied)
                mode.committed(applied)
                if applied.number == UNNUMBERED:
                    return mode.decide()
                self.state = "LIVE"
                return [Acknowledge(applied.number, applied.incarnation), *mode.decide()]
            case Failed(reason=reason):
                self.reason = reason
        return []

    def _committed(self, applied: Applied) -> None:
        story = f"{self.index}/{self.slice} went from {self.applied} to {applied}"
        invariant(applied.timestamp.covers(self.applied.timestamp), "Contiguous", story)
        self.applied = applied
        self.reason = ""

    def _switched(self, mode: Building, applied: Applied) -> list[Instruction]:
        """The build is over for this slice; the mutation queue is read from its beginning, and trimmed."""
        self.state = "CATCHUP"
        self._mode = Following(self.index, self.slice, applied, self.limits)
        return [DropChunks(mode.chunks()), ReadMutations(applied.queue_position)]

    def _valid_term(self, message: StabilityTimestamp) -> bool:
        """Whether a message is of the newest term seen, which it may raise."""
        if message.term < self._term:
            return False
        self._term = message.term
        return True
