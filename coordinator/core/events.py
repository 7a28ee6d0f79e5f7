"""What goes into the coordinator's pure cores: events. (What comes out: `coordinator.core.instructions`.)

An event carries its own time (`now`, ms since the epoch): the cores have no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.instructions import DriverTask
from coordinator.core.queue_sizes import KafkaDisk, QueuePartition, QueueSize
from coordinator.core.source_status import SourceStatus
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.index_lists import WrittenSlice
from keytide.wire.messages import Message, Published, StabilityTimestamp


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
class ControlTail:
    """The newest timestamps and common snapshots that the tail of the control topic has, at the start of a
    term."""

    stamps: tuple[tuple[int, StabilityTimestamp], ...]
    published: tuple[Published, ...]
    now: int


@dataclass(frozen=True, slots=True)
class SourceSampled:
    """The state of a source, periodic (`build` empty) or asked for by `SampleSource`.

    Attributes:
        lost: of the places that were asked about, those that are not on the log any more, with where the
            histories part.
    """

    source: SourceStatus
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
    source: SourceStatus
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


@dataclass(frozen=True, slots=True)
class DriverExited:
    """A Spark driver, of a build or a job, has ended.

    Attributes:
        build: id of the build or job.
        status: exit status; negative: the signal that ended it (`coordinator.core.drivers`).
        tail: the last lines of its log.
    """

    build: str
    status: int
    tail: str
    now: int
    task: DriverTask = "backfill"


@dataclass(frozen=True, slots=True)
class SourceAway:
    """A source could not be looked at: Kafka does not answer.

    Attributes:
        since: when the look that failed began.
    """

    keyspace: str
    error: str
    since: int
    now: int


@dataclass(frozen=True, slots=True)
class RoomSeen:
    """How much is free on the disk of the drivers' folders (periodic).

    Attributes:
        folder: where they are.
        free: bytes.
    """

    folder: str
    free: int
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
class BoundWritten:
    """A bound of a keyspace is in the dictionary: timestamps may go so far."""

    keyspace: str
    bound: dict[int, int]
    now: int


@dataclass(frozen=True, slots=True)
class DictionaryWritten:
    """A `Write` is committed; there is one of these for each, in their order.

    Attributes:
        end: metadata offset behind its last record, -1 when Kafka has not told.
    """

    end: int
    now: int


@dataclass(frozen=True, slots=True)
class QueuesTrimmed:
    """Queues were trimmed, as far as Kafka did it.

    Attributes:
        reached: (topic, partition) -> first offset that is still there.
        removed: how many offsets went.
        expired: (topic, partition) that lost what a silent node may not have read.
        sizes: of the queues that were to be measured; None when none were, or Kafka did not say.
        disks: that they lie on, as far as Kafka says.
    """

    reached: dict[tuple[str, int], int]
    removed: int
    expired: tuple[tuple[str, int], ...]
    now: int
    sizes: dict[QueuePartition, QueueSize] | None = None
    disks: tuple[KafkaDisk, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenTold:
    """A node was asked which values are written to a slice.

    Attributes:
        index: id.
        written: what it told; None when it did not.
    """

    index: str
    slice: int
    written: WrittenSlice | None
    now: int


@dataclass(frozen=True, slots=True)
class KafkaAnswered:
    """Kafka has taken a word of the leader's (several times a second): it is there."""

    now: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: int


Event = (
    Reported
    | Issued
    | IssueFailed
    | ControlTail
    | TopicSeen
    | SourceSampled
    | SourceAway
    | RoomSeen
    | BuildPrepared
    | PrepareFailed
    | TopicsDeleted
    | DriverExited
    | CommonSnapshot
    | HistoryExamined
    | RollbackWritten
    | BoundWritten
    | DictionaryWritten
    | QueuesTrimmed
    | WrittenTold
    | KafkaAnswered
    | Tick
)
