"""What goes into the coordinator's pure cores, and what comes out: events and instructions.

An event carries its own time (`now`, ms since the epoch): the cores have no clock. An instruction says what
the shell must do; whatever comes of it returns as another event. Instructions of one event are carried out in
their order, with one exception: `Broadcast`, `ConfirmTopic`, `Note` and `StopDriver` do not wait for the
writes before them (a timestamp must not wait for a transaction; see `coordinator.lane`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coordinator.facts import SourceFacts as SourceFacts
from keytide.catalog import Record
from keytide.history import History
from keytide.messages import BuildEnd, Message, Published, StabilityTimestamp
from keytide.timestamp import Place, Timestamp

# --- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reported:
    """A message from the reports topic."""

    message: Message
    now: int


@dataclass(frozen=True, slots=True)
class Issued:
    """A stability timestamp is in the control topic: `number` is its offset there."""

    message: StabilityTimestamp
    number: int
    now: int


@dataclass(frozen=True, slots=True)
class IssueFailed:
    """A stability timestamp could not be sent."""

    message: StabilityTimestamp
    error: str
    now: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest timestamps and common snapshots that the tail of the control topic has, at the start of a
    term."""

    stamps: tuple[tuple[int, StabilityTimestamp], ...]
    published: tuple[Published, ...]
    now: int


@dataclass(frozen=True, slots=True)
class SourceSampled:
    """Source facts, periodic (`build` empty) or asked for by `SampleSource`.

    Attributes:
        lost: of the places that were asked about, those that are not on the log any more, with where the
            histories part.
    """

    facts: SourceFacts
    build: str
    now: int
    lost: Mapping[int, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """Answer to `ConfirmTopic`: the topic that has this name, at some moment between question and answer.

    Attributes:
        topic_id: "" when there is none, or `error` says why it cannot be told now.
    """

    keyspace: str
    ask: int
    topic_id: str
    error: str
    now: int


@dataclass(frozen=True, slots=True)
class BuildPrepared:
    """The topics of a build are there; the source was sampled after that.

    Attributes:
        queue_ends: topic -> partition -> end of the queues that were asked about, looked up before the source
            was sampled: what the source got after the sample is in the queue behind them.
    """

    build: str
    facts: SourceFacts
    now: int
    queue_ends: dict[str, dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """The topics of a build could not be made."""

    build: str
    error: str
    now: int


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """All topics of an index that is dropped, cancelled or failed are gone."""

    index: str
    now: int


NO_ROOM = 74
"""In place of a driver's exit status (as EX_IOERR); drivers themselves never use it."""


@dataclass(frozen=True, slots=True)
class DriverExited:
    """The Spark driver of a build has ended.

    Attributes:
        status: exit status; negative: the signal that ended it. `NO_ROOM`: it was not started, for its disk
            is full.
        tail: the last lines of its log.
    """

    build: str
    status: int
    tail: str
    now: int


@dataclass(frozen=True, slots=True)
class CommonSnapshot:
    """Every slice of an index holds snapshot `number`, whose timestamp is `timestamp`."""

    index: str
    number: int
    timestamp: Timestamp
    now: int


@dataclass(frozen=True, slots=True)
class HistoryExamined:
    """What Kafka says of the history that the timestamps of a keyspace rest on.

    Attributes:
        topic_id: of the topic now; "" when there is none. With another id than was asked about, the rest is
            of no meaning.
        partitions: how many it has now.
        number: the newest stability timestamp of which every place is still on the log; -1 when there is
            none.
        timestamp: that one; the zero timestamp when there is none.
        lost: partition -> where the histories part, with the new one's leader epoch, as far as places were
            found that are not on the log any more.
        error: why nothing can be said now, else "".
    """

    keyspace: str
    topic_id: str
    partitions: int
    number: int
    timestamp: Timestamp
    lost: dict[int, Place]
    error: str
    now: int


@dataclass(frozen=True, slots=True)
class RollbackWritten:
    """A rollback is in the dictionary for ever: timestamps of its incarnation may be issued."""

    keyspace: str
    incarnation: int
    now: int


@dataclass(frozen=True, slots=True)
class QueuesTrimmed:
    """Queues were trimmed, as far as Kafka did it.

    Attributes:
        reached: (topic, partition) -> first offset that is still there.
        removed: how many offsets went.
        expired: (topic, partition) that lost what a silent node may not have read.
    """

    reached: dict[tuple[str, int], int]
    removed: int
    expired: tuple[tuple[str, int], ...]
    now: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: int


Event = (
    Reported
    | Issued
    | IssueFailed
    | Recovered
    | TopicSeen
    | SourceSampled
    | BuildPrepared
    | PrepareFailed
    | TopicsDeleted
    | DriverExited
    | CommonSnapshot
    | HistoryExamined
    | RollbackWritten
    | QueuesTrimmed
    | Tick
)

# --- instructions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send to the control topic, at once."""

    message: StabilityTimestamp | Published


@dataclass(frozen=True, slots=True)
class ConfirmTopic:
    """Ask Kafka, at once, which topic has this name now. There is always an answer: `TopicSeen`."""

    keyspace: str
    ask: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write these records (None: a tombstone) to the metadata topic, in one transaction."""

    records: tuple[tuple[str, Record | None], ...]


@dataclass(frozen=True, slots=True)
class PrepareBuild:
    """Make the topics (name, partitions), look up the ends of queues (the same), then sample the source:
    `BuildPrepared` or `PrepareFailed`."""

    build: str
    keyspace: str
    topics: tuple[tuple[str, int], ...]
    queues: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Sample the source now, for a build: `SourceSampled`.

    Attributes:
        read: how far the build has read: are its places, where they have a leader epoch, on the log?
    """

    keyspace: str
    build: str
    read: Timestamp = field(default_factory=Timestamp)


@dataclass(frozen=True, slots=True)
class SendBuildEnd:
    """Send to backfill queues: (topic, partition, message)."""

    messages: tuple[tuple[str, int, BuildEnd], ...]


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Delete topics; with an index, `TopicsDeleted` when they are gone."""

    topics: tuple[str, ...]
    index: str = ""


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start the Spark driver of a build, not before `delay_ms` from now: `DriverExited` when it ends."""

    build: str
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class StopDriver:
    """Stop the Spark driver of a build (also one that was to be started later), without a `DriverExited`."""

    build: str


@dataclass(frozen=True, slots=True)
class RemoveBuildFolder:
    """Remove the checkpoint of a build that is over (its log stays)."""

    build: str


@dataclass(frozen=True, slots=True)
class ExamineHistory:
    """Find the newest stability timestamp that is still on the log: `HistoryExamined`.

    Attributes:
        topic_id: the topic as it is known.
        history: says which numbers in the control topic are valid.
        stamps: the newest valid timestamps with their numbers, newest first; older ones are in the control
            topic.
        stood: partition -> places beyond them that projectors have read up to.
    """

    keyspace: str
    topic_id: str
    history: History
    stamps: tuple[tuple[int, Timestamp], ...]
    stood: dict[int, Place]


@dataclass(frozen=True, slots=True)
class ConfirmRollback:
    """The writes before this one are done: `RollbackWritten`."""

    keyspace: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """What of one queue partition is needed no more.

    Attributes:
        before: everything below this offset; -1 when no node counts that could say.
        older_than: but only what is older than this (ms); 0 for no such limit.
    """

    topic: str
    partition: int
    before: int
    older_than: int = 0


@dataclass(frozen=True, slots=True)
class TrimQueues:
    """Delete records from queues: `QueuesTrimmed`."""

    limits: tuple[QueueLimit, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that an operator wants to know: a line in `GET /v1/events`.

    Attributes:
        kind: kebab-case, e.g. index-ready.
        subject: what it is about: an index, a build, a node, a keyspace.
    """

    level: Literal["info", "warning", "error"]
    kind: str
    subject: str
    text: str


Instruction = (
    Broadcast
    | ConfirmTopic
    | Write
    | PrepareBuild
    | SampleSource
    | SendBuildEnd
    | DeleteTopics
    | StartDriver
    | StopDriver
    | RemoveBuildFolder
    | ExamineHistory
    | ConfirmRollback
    | TrimQueues
    | Note
)
