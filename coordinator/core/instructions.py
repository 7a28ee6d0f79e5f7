"""What comes out of the coordinator's pure cores: instructions.

An instruction says what the shell must do; whatever comes of it returns as another event. Instructions of one
event are carried out in their order, with one exception: `Broadcast`, `ConfirmTopic`, `Note` and `StopDriver`
do not wait for the writes before them (a timestamp must not wait for a transaction; see
`coordinator.process.executor`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from keytide.catalog.history import History
from keytide.catalog.records import Record
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import BuildEnd, Published, RepairEnd, StabilityTimestamp

DriverTask = Literal["backfill", "sample", "verify", "repair"]
"""What a driver is for: `streaming.<task>`."""


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
class SendEnds:
    """Send the end of something to queues of slices: of builds to backfill queues, of rounds of repairs to
    mutation queues; (topic, partition, message)."""

    messages: tuple[tuple[str, int, BuildEnd | RepairEnd], ...]


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Delete topics; with an index, `TopicsDeleted` when they are gone."""

    topics: tuple[str, ...]
    index: str = ""


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start the Spark driver of a build or job, not before `delay_ms` from now: `DriverExited` when it ends.
    One driver of an id runs at a time."""

    build: str
    delay_ms: int = 0
    task: DriverTask = "backfill"


@dataclass(frozen=True, slots=True)
class StopDriver:
    """Stop the Spark driver of a build or job (also one that was to be started later), without a
    `DriverExited`."""

    build: str


@dataclass(frozen=True, slots=True)
class RemoveBuildFolder:
    """Remove what the driver of a build that is over has left.

    Attributes:
        forgotten: its record is gone too, so its log goes with it.
    """

    build: str
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class RemoveJobFolder:
    """Remove everything of a job that is forgotten: its report and its log."""

    job: str


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


class QueueCopy(NamedTuple):
    """A copy of a slice, or a rebuild of it, that counts for what its queue keeps.

    Attributes:
        who: for people.
        horizon: first offset that it may ever need again.
        position: first offset that it has not durably read.
        why: it cannot say what it may need, `horizon` is -1 then.
    """

    who: str
    horizon: int
    position: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConfirmBound:
    """The writes before this one are done: `BoundWritten`."""

    keyspace: str
    bound: dict[int, int]


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """What of one queue partition is needed no more.

    Attributes:
        before: everything below this offset; -1 when no node counts that could say.
        older_than: but only what is older than this (ms); 0 for no such limit.
        copies: all that count.
    """

    topic: str
    partition: int
    before: int
    older_than: int = 0
    copies: tuple[QueueCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class TrimQueues:
    """Delete records from queues, and see how large these are: `QueuesTrimmed`.

    Attributes:
        measured: topics whose partitions' sizes are wanted.
    """

    limits: tuple[QueueLimit, ...]
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskWritten:
    """Ask a node which values are written to a slice. There is always an answer: `WrittenTold`.

    Attributes:
        index: id.
        url: of the node.
        secret: of the cluster.
    """

    index: str
    slice: int
    url: str
    secret: str


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
    | SendEnds
    | DeleteTopics
    | StartDriver
    | StopDriver
    | RemoveBuildFolder
    | RemoveJobFolder
    | ExamineHistory
    | ConfirmRollback
    | ConfirmBound
    | TrimQueues
    | AskWritten
    | Note
)
