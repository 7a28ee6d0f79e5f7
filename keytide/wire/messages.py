"""Every message that travels through Keytide's own topics, in one place.

Wire format: one version byte, then MessagePack of a tagged array (msgspec `array_like` structs; fields are
only ever added at the end, with defaults, so that neighbouring versions read each other). Bulk data travels
as *columns*: little-endian, numpy-compatible byte strings, one per field, thousands of documents per message;
a reader touches only what it needs.

Who sends what (topics in `keytide.model.topics`):

    mutations.<index>   projector -> slice          SegmentBatch (or its parts)
                        repair -> slice             RepairWatch, Corrections, RepairEnd (or parts)
    backfill.<index>    Spark / coordinator -> slice PutChunk, RemovalChunk, BatchEnd, BuildEnd (or parts)
    control             leader -> all               StabilityTimestamp, Published, Leading
    reports             all -> coordinators          Progress, Activated, HistoryLost, Acknowledged, ...
    metadata            leader -> all               keytide.catalog.records (JSON, compacted)

Positions are next offsets (exclusive). Times are milliseconds since the epoch.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keytide.errors import CallerError
from keytide.model.protocol import FIRST_PROTOCOL
from keytide.model.timestamp import Place, Timestamp

WIRE_VERSION = 1

QUEUE_UNAVAILABLE = "queue-unavailable"
"""The reason in `Progress.skipped` of an index that its projector has suspended (R18): what is acknowledged
from then on is not in that index's queues, so it can only be built again."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base: encoded as an array whose first element is the class name."""


# --- mutation queue -------------------------------------------------------------------------------


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """The documents of one segment in offset order, as columns: it is how a slice learns that a document it
    holds has changed, and so removes what it holds under another key. The same object for every slice of
    every index, but where a slice need not hear all (R16).

    Attributes:
        count: number of versions (n).
        offsets: u32[n], offset minus the segment's `start`.
        times: u32[n], record timestamp minus `time_base`; empty when all equal `time_base`; i64[n] when
        deltas do not fit.
        time_base: milliseconds.
        id_lengths: u8[n], bytes of each document id (1 to 250).
        ids: the document ids, UTF-8, one after the other.
        hashes: u64[n], xxh3_64 of each document id.
    """

    count: int
    offsets: bytes
    time_base: int
    times: bytes
    id_lengths: bytes
    ids: bytes
    hashes: bytes


class Puts(msgspec.Struct, frozen=True, array_like=True):
    """The entries that a segment brings to one slice, by ascending ordinal, as columns.

    Attributes:
        count: number of entries (m); one document has several when the index unnests an array.
        ordinals: u32[m], index into `Heard`.
        key_lengths: u16[m], bytes of each canonical key (without the document id).
        keys: the canonical keys, one after the other.
        value_lengths: u32[m], or empty when every value is empty.
        values: the entry values (`keytide.model.entry`), one after the other.
    """

    count: int
    ordinals: bytes
    key_lengths: bytes
    keys: bytes
    value_lengths: bytes = b""
    values: bytes = b""


class Skip(msgspec.Struct, frozen=True, array_like=True):
    """A version that could not be indexed: a line for the skip ledger of the slice `hash(id) % slices`
    (settled question).

    The version counts as a delete (R12): it is heard as such, and has no puts.
    """

    ordinal: int
    """Index into `Heard`; -1 for a record that is not there: it has no usable document id, or the slice does
    not hear every document. `offset` names it always."""
    offset: int
    id: bytes
    """As much of the record's key as is kept (at most 250 bytes)."""
    reason: str
    """Kebab-case: not-json, not-an-object, key-too-large, not-indexable, bad-id, too-deep, ..."""
    detail: str


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Everything that one source partition did in offsets [start, end), for one slice. With start == end it
    says only that the projector is alive and where it stands (R14); without `heard` it is the sync message.
    """

    partition: int
    epoch: int
    """Leader epoch of the branch that these offsets were read on, -1 when unknown (R30)."""
    start: int
    end: int
    heard: Heard | None = None
    puts: Puts | None = None
    skips: list[Skip] = []
    below: int = -1
    """Leader epoch of what lies just below `start`, as far as its sender has read it; -1 when unknown."""
    present: bytes = b""
    """Where `heard` has not every document (R16): at which offsets there are some (`keytide.wire.presence`).
    Empty where it has them all."""


class SegmentBatch(_Message, frozen=True, array_like=True):
    """One projector's poll for one slice: a segment per source partition in the poll."""

    index: str
    slice: int
    sender: str
    """The projector instance, unique per process start."""
    topic_id: str
    incarnation: int
    version: int
    """Catalog version under which it was projected; one before that of the index is of no use to a slice."""
    segments: list[Segment]
    sent_at: int
    """Milliseconds."""


class Part(_Message, frozen=True, array_like=True):
    """A piece of a message that is larger than one Kafka message may be (R20). `data` of parts 0..count-1 of
    one (sender, number), joined, is an encoded message. The reader's position moves past them only when all
    are there.
    """

    sender: str
    number: int
    part: int
    count: int
    data: bytes


class RepairWatch(_Message, frozen=True, array_like=True):
    """A repair's first word to a slice: from here on remember what is heard of these documents. What the
    repair finds out about them is as of a timestamp that covers everything that lies before this message in
    the queue (`indexer.slice.corrections`)."""

    index: str
    slice: int
    job: str
    round: int
    """Of the job; a later round takes the place of an earlier one."""
    incarnation: int
    count: int
    hashes: bytes
    """u64[n], xxh3_64 of the document ids."""


class Corrections(_Message, frozen=True, array_like=True):
    """What a slice holds of some documents at `timestamp`, if it is right: for n documents the newest version
    below it and the entries that this slice has of it (none: it has none). In one or more messages per round.
    """

    index: str
    slice: int
    job: str
    round: int
    sequence: int
    """Counts the messages of a round, from 0."""
    incarnation: int
    timestamp: Timestamp
    count: int
    id_lengths: bytes
    """u8[n]."""
    ids: bytes
    partitions: bytes
    """u32[n], of the versions."""
    offsets: bytes
    """u64[n]."""
    times: bytes
    """i64[n]: the largest that the document's partition has shown, milliseconds."""
    foreign: bytes
    """u8[n]: 1 for a document that was met in two source partitions."""
    puts: Puts | None = None
    """Entries, by ordinal of the document."""
    strays: Puts | None = None
    """Entries that were found and must not be there, by ordinal, without values: they go unless the back
    index knows them."""


class RepairEnd(_Message, frozen=True, array_like=True):
    """The round is over for this slice: it need remember nothing more."""

    index: str
    slice: int
    job: str
    round: int
    incarnation: int


# --- backfill queue -------------------------------------------------------------------------------


class PutChunk(_Message, frozen=True, array_like=True):
    """A sorted run of entries of one micro-batch, for one slice: in entry key order within and across the
    `sequence` of one attempt. Columns as in `Puts`, plus each entry's version.
    """

    build: str
    index: str
    slice: int
    run: str
    """Driver run: unique per start of the Spark driver."""
    batch: int
    attempt: str
    """Unique per task attempt; the batch end names the ones that won (R22)."""
    sequence: int
    count: int
    partitions: bytes
    """u32[m], source partition of each entry's version."""
    offsets: bytes
    """u64[m], absolute offsets."""
    times: bytes
    """i64[m], record timestamps."""
    id_lengths: bytes
    ids: bytes
    key_lengths: bytes
    keys: bytes
    value_lengths: bytes = b""
    values: bytes = b""


class RemovalChunk(_Message, frozen=True, array_like=True):
    """Every document of one task's share of a micro-batch after the first, tombstones and unprojectable
    versions included (R21), and lines for the skip ledger (in every micro-batch). Removals apply before the
    puts of the same batch.
    """

    build: str
    index: str
    slice: int
    run: str
    batch: int
    attempt: str
    sequence: int
    partition: int
    base: int
    """Offsets in `heard` count from here (in place of a segment's start)."""
    heard: Heard | None
    skips: list[Skip] = []


class BatchEnd(_Message, frozen=True, array_like=True):
    """The end of one micro-batch for one slice. All chunks of (build, batch) whose attempt is not in
    `winners` are dropped; when fewer than the named number have arrived, something is lost and the slice
    waits for the driver's next try.
    """

    build: str
    index: str
    slice: int
    run: str
    batch: int
    start: Timestamp
    end: Timestamp
    """The backfill timestamp after this batch."""
    winners: dict[str, int]
    """Attempt -> number of chunks that it sent to this slice."""


class BuildEnd(_Message, frozen=True, array_like=True):
    """The coordinator's word that the build is over for this slice (R23): switch to the mutation queue.
    Idempotent."""

    build: str
    index: str
    slice: int
    term: int
    batches: int
    """How many micro-batches there were: the slice obeys only after it has committed the last of them."""
    queue_position: int = 0
    """Where to go on in the mutation queue; 0 is the beginning of what the queue holds."""


# --- control --------------------------------------------------------------------------------------


class StabilityTimestamp(_Message, frozen=True, array_like=True):
    """A numbered timestamp; its number is the offset of this message in the control topic (R3)."""

    keyspace: str
    term: int
    incarnation: int
    timestamp: Timestamp
    fresh_at: int
    """The smallest, over partitions, last time at which the timestamp covered the end that was seen;
    staleness counts from it."""
    issued_at: int
    settled: int = -1
    """A key of a UNIQUE index that two documents have had since this number or an earlier one, and have
    still, is a violation: this timestamp covers the source's ends that were sampled after that number was
    issued (R35). -1 when nothing is settled yet."""


class Published(_Message, frozen=True, array_like=True):
    """The newest common snapshot number of each READY index of a keyspace: held by a replica of every
    slice."""

    keyspace: str
    term: int
    incarnation: int
    numbers: dict[str, int]
    """Index id -> snapshot number."""
    behind: dict[str, dict[str, list[int]]] = {}
    """Node -> index id -> slices whose copies there were not waited for while another one of their slice was:
    the node is silent, or they lag. Readers ask the others. Empty of a release that does not say."""


class Leading(_Message, frozen=True, array_like=True):
    """The leader lives; repeated all the time. A coordinator that stands by claims the cluster when it has
    heard none of the newest term for a while."""

    term: int
    holder: str
    sent_at: int
    leaving: bool = False
    """It stops now, and claims nothing again: no need to wait."""
    url: str = ""
    """Where it answers requests; "" of a release that does not say."""


# --- reports --------------------------------------------------------------------------------------


class PartitionProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far one source partition is acknowledged by every slice of every active index."""

    partition: int
    acked: int
    """Next offset."""
    epoch: int
    end: int
    """The end of the partition as last seen (read_committed), to show the lag."""
    fresh_at: int
    """Last time (ms) at which `acked` covered the end that was seen; 0 when never."""
    version: int
    """Catalog version that is activated on this partition."""
    tail: int = 0
    """Offsets below `acked` that hold no record (`Place.tail`)."""


class Progress(_Message, frozen=True, array_like=True):
    """A projector's acknowledged progress, on change and on every heartbeat (R14)."""

    keyspace: str
    projector: str
    topic_id: str
    incarnation: int
    partitions: list[PartitionProgress]
    documents: int
    """Documents projected since its start."""
    skipped: dict[str, dict[str, int]]
    """Index id -> reason -> count, since its start (left-out documents too, by reason; `QUEUE_UNAVAILABLE`
    when nothing is sent for the index any more)."""
    protocol: int = FIRST_PROTOCOL
    """As that of `NodeHeartbeat`."""


class Activated(_Message, frozen=True, array_like=True):
    """The generation-fenced commit that activates a catalog version on one source partition has succeeded
    (R13). Repeated on every heartbeat until the metadata shows it."""

    keyspace: str
    projector: str
    partition: int
    version: int
    offset: int
    """Segments for the indexes of this version begin here: a component of the low-watermark timestamp."""
    epoch: int


class HistoryLost(_Message, frozen=True, array_like=True):
    """A projector has found that offsets which it had read are no longer in the log, or belong to another
    history by now (R15). Repeated on every heartbeat until the incarnation rises; it reads nothing of that
    partition meanwhile."""

    keyspace: str
    projector: str
    partition: int
    incarnation: int
    """Under which it had read."""
    topic_id: str
    """Of the topic as it is now."""
    offset: int
    epoch: int
    """Where it stood."""
    reason: str


class Acknowledged(_Message, frozen=True, array_like=True):
    """Slices of one node whose commit of a snapshot number can now be read (R8)."""

    node: str
    keyspace: str
    incarnation: int
    number: int
    slices: list[tuple[str, int]]
    """(index id, slice number)."""


class RepairStatus(msgspec.Struct, frozen=True, array_like=True):
    """How far a slice is with a round of a repair.

    Attributes:
        watching: it remembers what it hears of the round's documents.
        sequences: how many messages of corrections it has dealt with.
        corrected: documents that it has changed.
        spared: documents that it left alone: something newer was heard of them.
        void: documents of corrections that it could not judge (it does not remember, or the source was
            rolled back), and left alone.
        durable: what it has changed is durable.
    """

    job: str
    round: int
    watching: bool
    sequences: int = 0
    corrected: int = 0
    spared: int = 0
    void: int = 0
    durable: bool = True


class DuplicateDocument(msgspec.Struct, frozen=True, array_like=True):
    """One of the documents that have one key of a UNIQUE index."""

    id: bytes
    partition: int
    offset: int
    time: int
    """The record's timestamp (ms)."""


class UniqueViolation(msgspec.Struct, frozen=True, array_like=True):
    """A violation of a UNIQUE index: a key that several documents have at one stability timestamp (R35)."""

    key: bytes
    """Canonical, or what stands for a long one (`keytide.collation.told_key`)."""
    number: int
    """The snapshot from which on two of them are known to have it."""
    documents: list[DuplicateDocument]
    """By id; as many as are listed."""
    more: bool = False
    """There are further ones, which a scan of the key shows."""


class SliceStatus(msgspec.Struct, frozen=True, array_like=True):
    """One slice's state in a node's heartbeat."""

    index: str
    slice: int
    state: str
    """BUILDING, FILLING (from another copy of the slice), CATCHUP, LIVE, STOPPED (tries again by itself),
    LOST (its data is gone, damaged, or past what it can read on from: a rebuild or another copy helps)."""
    reason: str
    """Why it is STOPPED or LOST, else empty."""
    timestamp: Timestamp
    """What it has applied."""
    number: int
    """Newest snapshot, -1 when none."""
    batch: int
    """Last backfill micro-batch committed, -1 when none."""
    entries: int
    bytes: int
    skipped: int
    queue_documents: int
    """Heard and not yet applied. What a full slice has let go of (R4) is not among them, and still holds
    `queue_position`."""
    queue_position: int
    """First queue offset that a restart would read again (durable, R6)."""
    gap_drops: int
    """Segments dropped because they lay beyond the position (R10)."""
    foreign_partition_ids: int
    """Documents met in two source partitions."""
    build: str = ""
    """The build whose batches `batch` counts, empty when the slice is not building."""
    incarnation: int = 0
    """Of the keyspace, as this slice knows it: it has rolled back as far as that says (R32)."""
    queue_horizon: int = -1
    """First queue offset that it may ever need again, steps back of its base included (R33, R34); -1 when
    that cannot be said, and nothing may be deleted."""
    undo_steps: int = 0
    """Folds that its base can step back."""
    violations: int = 0
    """Keys of a UNIQUE index that several documents have."""
    judged: int = -1
    """Whether a key that several documents had at this snapshot or an earlier one is a violation has been
    decided; -1 when that cannot be said yet, or the index is not UNIQUE."""
    violated: list[UniqueViolation] = []
    """Some of the violations; others in other heartbeats, so that all are told in time."""
    repair: RepairStatus | None = None
    """Of the last round that it has heard of, None when none."""
    listed: int = -1
    """How many of `violations` are listed, and proven; -1 of a release that does not say."""
    undo_given_up: bool = False
    """Its last fold has left no way back, for the disk was nearly full; its queue keeps nothing for one."""
    copy: str = ""
    """Id of the copy, "" of one that a build has filled."""
    rows: int = 0
    """While FILLING: rows of all tables that it has got of the copy that it is filled from."""
    rows_total: int = 0
    """While FILLING: rows that that one has; 0 while it is not known."""
    leases: int = -1
    """Snapshots of it that are leased or being read; -1 of a release that does not say."""
    writes: int = -1
    """Entries that commits of its mutation queue have put and removed since it was opened; -1 of a release
    that does not say."""
    reads: int = 0
    """How often scans have taken hold of a snapshot of it since then."""


class NodeHeartbeat(_Message, frozen=True, array_like=True):
    """An indexer node is alive; repeated every heartbeat interval."""

    node: str
    url: str
    """Where it serves scans, e.g. http://127.0.0.1:8093."""
    started_at: int
    sent_at: int
    slices: list[SliceStatus]
    memory: int
    """Resident bytes."""
    disk_free: int
    catalog_offset: int
    """Metadata it has read up to (next offset)."""
    zone: str = ""
    """What fails together with others of the same zone (`indexer.zone`), "" when that is not known."""
    roles: tuple[str, ...] = ()
    """What it is for (`keytide.model.roles`); none of a release that does not say: it has all."""
    protocol: int = FIRST_PROTOCOL
    """Up to which version of the protocol it speaks (`keytide.model.protocol`); 1 of a release that does not
    say."""
    sequence: int = -1
    """Counts the heartbeats of this process, from 1, so that `HeartbeatChanges` can follow; -1 when none
    will. (0 is never sent: `keytide.wire.heartbeats`.)"""


class TimestampChange(msgspec.Struct, frozen=True, array_like=True):
    """What has changed of a vector timestamp; topic and partitions are still there."""

    steps: list[int]
    """By how much offsets have risen, by ascending partition of the earlier timestamp."""
    places: dict[int, Place]
    """Partition -> its place, where that is new or has changed in something else than the offset."""


class HeartbeatChanges(_Message, frozen=True, array_like=True):
    """What has changed since the heartbeat before (R53): in the place of a `NodeHeartbeat` which has the same
    slices in the same order. `keytide.wire.heartbeats` makes them and puts them together."""

    node: str
    started_at: int
    sequence: int
    """Of this heartbeat (`NodeHeartbeat.sequence`): it says nothing to who lacks the one before."""
    sent_at: int
    memory: int
    disk_free: int
    catalog_offset: int
    slices: dict[int, dict[int, Any]]
    """Position in `NodeHeartbeat.slices` -> position of a field in `SliceStatus` -> its new value; of
    `timestamp` a position in `timestamps`."""
    timestamps: list[TimestampChange]
    """Each is that of all slices which had one timestamp, and have one again."""


class BuildProgress(_Message, frozen=True, array_like=True):
    """What the Spark driver of a build has done. `batches` counts finished micro-batches (their ends are in
    the queues)."""

    build: str
    run: str
    state: str
    """STARTING, RUNNING, PASSED (past load and low-watermark timestamps; the driver has ended), FAILED."""
    batches: int
    timestamp: Timestamp
    """Backfill timestamp: everything below it is in the backfill queues."""
    earliest: Timestamp
    """From where it could read (R29)."""
    documents: int
    chunk_entries: dict[str, int]
    """Index id -> entries sent."""
    error: str
    sent_at: int
    first_read_at: int = 0
    """When the first micro-batch began to read (R26 counts from here)."""
    phase: str = ""
    """What it does now (`BuildRecord.phase`); "" when it does not say."""
    bytes: int = 0
    """Keys and values read, for `documents` documents."""
    table_documents: int = 0
    """Of `documents`: rows of the table that the build begins with."""
    left_out: dict[str, dict[str, int]] = {}
    """Index id -> reason -> documents that its definition leaves out, in finished micro-batches."""
    skipped: dict[str, dict[str, int]] = {}
    """Index id -> reason -> versions that cannot be indexed (they are in the ledger)."""
    attempt: tuple[int, int] = (0, 0)
    """Which start of a driver this is: the term of the leader that started it, and how many drivers that one
    has started. It orders drivers, whose clocks may differ; (0, 0) of a release that does not say."""
    protocol: int = FIRST_PROTOCOL
    """As that of `NodeHeartbeat`."""
    engine: str = ""
    """What reads the source: `spark`, or `local` for the driver itself; "" before either."""
    compared: str = ""
    """Of one that has PASSED: as `BuildRecord.compared`."""


class BuildSampled(_Message, frozen=True, array_like=True):
    """The splits that were found for the RANGE indexes of a build that waits to begin."""

    build: str
    run: str
    """Names the start of the driver."""
    splits: dict[str, list[bytes]]
    """Index id -> its splits (`IndexRecord.splits`)."""
    documents: int
    """Versions that were looked at."""
    entries: dict[str, int]
    """Index id -> from how many entries its splits were found; 0 when the sample had none."""
    sent_at: int
    wanted: dict[str, str] = {}
    """Index id -> which they are (`IndexDefinition.wanted_splits`), for the index may be altered meanwhile;
    nothing of a release that does not say."""


class JobProgress(_Message, frozen=True, array_like=True):
    """What the driver of a job (`keytide.catalog.records.JobRecord`) has done."""

    job: str
    run: str
    """Names this start of the driver."""
    state: str
    """RUNNING, DONE (its report is written; the driver ends), FAILED (it can never work: `error`)."""
    snapshot: int
    """Number of the snapshot that it compares, -1 before it is chosen."""
    percent: float
    documents: int
    documents_total: int
    counts: dict[str, int]
    """Class of difference -> how many, so far."""
    detail: str
    error: str
    sent_at: int
    attempt: tuple[int, int] = (0, 0)
    """As that of `BuildProgress`."""
    protocol: int = FIRST_PROTOCOL
    """As that of `NodeHeartbeat`."""


Message = (
    SegmentBatch
    | RepairWatch
    | Corrections
    | RepairEnd
    | Part
    | PutChunk
    | RemovalChunk
    | BatchEnd
    | BuildEnd
    | StabilityTimestamp
    | Published
    | Leading
    | Progress
    | Activated
    | HistoryLost
    | Acknowledged
    | NodeHeartbeat
    | HeartbeatChanges
    | BuildProgress
    | BuildSampled
    | JobProgress
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_PREFIX = bytes([WIRE_VERSION])


class UnreadableMessageError(CallerError):
    """Bytes in one of Keytide's own topics that are no message of a version this program reads."""

    problem_type = "unreadable-message"


def encode(message: Message) -> bytes:
    """The wire form of `message`."""
    return _PREFIX + _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in `data`.

    Raises:
        UnreadableMessageError: not a message, or of a newer wire version.
    """
    if not data or data[0] != WIRE_VERSION:
        version = data[0] if data else None
        raise UnreadableMessageError(
            f"message of wire version {version}; this program reads version {WIRE_VERSION}",
            next_step="run the same release on every node",
        )
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise UnreadableMessageError(f"not a Keytide message: {error}") from error
