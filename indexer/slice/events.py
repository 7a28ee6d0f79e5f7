"""What a slice's core hears (events) and what it asks for (instructions). Pure, slotted, compared by value
in tests.

The shell (`indexer.hosting.node`, or the simulation) turns Kafka messages, results and the clock into
events, hands them to `SliceCore.handle`, and carries out the instructions that come back, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from indexer.store.interface import UNNUMBERED, Applied
from keytide.catalog.history import History
from keytide.wire.messages import Corrections, PutChunk, RemovalChunk, Segment, StabilityTimestamp

# --- events --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MutationData:
    """A record of the slice's mutation queue.

    Attributes:
        data: its value, as `keytide.wire.messages.encode` and `split` made it.
        position: its offset in the queue.
    """

    data: bytes
    position: int


@dataclass(frozen=True, slots=True)
class BackfillData:
    """A record of the slice's backfill queue; attributes as in `MutationData`."""

    data: bytes
    position: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Reading has met the end of the queue: what is missing now is not merely still to be read (R10).

    Attributes:
        now: milliseconds.
    """

    now: int


@dataclass(frozen=True, slots=True)
class DataLost:
    """What the slice has, or what it must read next, is gone or damaged, for good: its queue no longer has
    its position, a file is damaged, no state is left that it could roll back to.

    Attributes:
        reason: shown to people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The dictionary tells of a rollback of the keyspace that the slice did not know (R31).

    Attributes:
        history: what holds from now on.
    """

    history: History


@dataclass(frozen=True, slots=True)
class SteppedBack:
    """The last `StepBack` is done.

    Attributes:
        applied: the state of the store now; it holds.
        number: the newest snapshot that is still held, `UNNUMBERED` when none.
    """

    applied: Applied
    number: int = UNNUMBERED


@dataclass(frozen=True, slots=True)
class Stamped:
    """The leader issued a stability timestamp for the slice's keyspace.

    Attributes:
        number: its offset in control.
    """

    number: int
    message: StabilityTimestamp


@dataclass(frozen=True, slots=True)
class Decide:
    """The shell has handed over everything that it had: decide. Sent after every batch of events and when
    nothing comes.

    Attributes:
        now: milliseconds.
    """

    now: int


@dataclass(frozen=True, slots=True)
class Done:
    """The last `Apply`, `Correct`, `LoadBatch` or `SwitchOver` is committed and can be read.

    Attributes:
        corrected: documents that a `Correct` has changed.
    """

    applied: Applied
    corrected: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """An instruction did not go through and changed nothing; the shell tries it, and those behind it, again
    until it can report `Done` (of a commit) or `RetrySucceeded`.

    Attributes:
        reason: shown to people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class RetrySucceeded:
    """What failed has gone through, and it was no commit."""


Event = (
    MutationData
    | BackfillData
    | CaughtUp
    | DataLost
    | RolledBack
    | SteppedBack
    | Stamped
    | Decide
    | Done
    | Failed
    | RetrySucceeded
)

# --- instructions --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadMutations:
    """Read the slice's mutation queue from this offset on (and no other queue)."""

    position: int


@dataclass(frozen=True, slots=True)
class ReadBackfill:
    """Read the slice's backfill queue of `build` from this offset on (and no other queue)."""

    build: str
    position: int


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Stop reading for now: what is held is at its limit and no timestamp makes room (R4)."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on reading where reading stopped."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring segments in one commit. With a number in `applied` the commit is a snapshot; without, no stable
    scan may read it."""

    segments: list[Segment]
    applied: Applied


@dataclass(frozen=True, slots=True)
class Correct:
    """Bring corrections of a repair in one commit, which no stable scan reads: the next number has it.

    Attributes:
        spared: ordinals of the documents that are left as they are, but for entries that the back index does
            not know.
    """

    corrections: Corrections
    spared: frozenset[int]
    applied: Applied


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Names one chunk of a backfill: (driver run, task attempt, sequence) within a batch, removals apart
    from puts."""

    batch: int
    run: str
    attempt: str
    sequence: int
    removal: bool


@dataclass(frozen=True, slots=True)
class KeepChunk:
    """Keep a chunk (on disk: a micro-batch is larger than memory) until its batch ends."""

    key: ChunkKey
    chunk: PutChunk | RemovalChunk


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """Bring the kept chunks of one micro-batch in one durable commit, removals before puts (R21)."""

    puts: list[ChunkKey]
    removals: list[ChunkKey]
    applied: Applied


@dataclass(frozen=True, slots=True)
class DropChunks:
    """Forget kept chunks."""

    keys: list[ChunkKey]


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """Make `applied` durable: the build is over for this slice and the mutation queue comes next (R23)."""

    applied: Applied


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the leader that this number's commit can be read (R8)."""

    number: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class StepBack:
    """Go back to the newest state that holds in `history` (R30): drop what is void of the store, and of the
    snapshots. Everything that was asked for before and is not done yet is void too.

    Attributes:
        history: judges states by timestamp and incarnation.
    """

    history: History


@dataclass(frozen=True, slots=True)
class Lose:
    """Let go of everything and serve nothing: only another build brings the slice back.

    Attributes:
        reason: shown to people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop reading: the slice cannot go on by itself.

    Attributes:
        reason: shown to people; says what to do.
    """

    reason: str


Instruction = (
    ReadMutations
    | ReadBackfill
    | PauseReading
    | Resume
    | Apply
    | Correct
    | KeepChunk
    | LoadBatch
    | DropChunks
    | SwitchOver
    | Acknowledge
    | StepBack
    | Lose
    | Stop
)
