"""The records of the system dictionary, as they stand in the compacted `metadata` topic.

One record per thing, keyed `<kind>/<name>`, JSON so that an operator can read it with Kafka's own tools.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from keytide.catalog.auto_split import AutoSplit
from keytide.catalog.copies import CopyRecord, LeavingCopy, RebalanceRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.catalog.violated import Violated
from keytide.definition.index import IndexDefinition
from keytide.model.protocol import FIRST_PROTOCOL
from keytide.model.roles import Role, has_role
from keytide.model.timestamp import Place, Timestamp

IndexState = Literal["DEFERRED", "BUILDING", "PAUSED", "READY", "FAILED", "DROPPING"]
BuildState = Literal["QUEUED", "BACKFILL", "CATCHUP", "READY", "PAUSED", "FAILED", "CANCELLED"]
PausedBy = Literal["", "operator", "system"]
JobKind = Literal["verify", "repair"]
JobState = Literal["QUEUED", "RUNNING", "DONE", "FAILED", "CANCELLED"]


class ClusterRecord(msgspec.Struct, frozen=True):
    """Key `cluster`. Written by the first leader, and when a later protocol is in use; never lowered."""

    id: str
    secret: str
    """Hex; signs page and session tokens, so that they are useless on another cluster."""
    created_at: int
    protocol: int = FIRST_PROTOCOL


class TermRecord(msgspec.Struct, frozen=True):
    """Key `term`: who leads, and what it speaks. A claim is a transaction that fences the previous leader."""

    term: int
    holder: str
    claimed_at: int
    protocol: int = FIRST_PROTOCOL


class KeyspaceRecord(msgspec.Struct, frozen=True):
    """Key `keyspace/<name>`.

    Attributes:
        version: newest catalog version: projectors activate it on each of their partitions (R13).
        bound: partition -> offset that no stability timestamp has passed; written before one does
            (`coordinator.stability.bounds`). Empty where none was issued, or a release did not write it.
        fresh_at: a time at which timestamps covered the end of the source, ms; it may have been later, by an
            hour at most. 0: not known.
    """

    name: str
    topic_id: str
    partitions: int
    version: int
    incarnation: int = 0
    bound: dict[int, int] = {}
    fresh_at: int = 0


def index_number(id_: str) -> int:
    """The number of an index's id; 0 of one that has none."""
    number = id_.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


class IndexRecord(msgspec.Struct, frozen=True):
    """Key `index/<id>`; a null value once it is dropped.

    Attributes:
        version: catalog version from which projectors emit for it; 0 before its first BUILD.
        placement: for each slice, the ids of the nodes that hold it (the first is asked first).
        build: the build that is under way or was the last.
        slice_builds: slice -> the build that fills or filled it alone, where that is another than `build`.
        splits: of a RANGE index, from the version on (`keytide.catalog.partitioning`): encoded values,
            ascending, one less than slices.
        verified_at: when its last verification ended, milliseconds; 0 when there was none.
        verification: id of the job that it was; "" for none.
        violated: what failed it, when its last build found violations of UNIQUE.
        copies: slice -> node -> id of the copy that it holds, where that was filled from another one
            (`CopyRecord`); a copy that a build has filled has none.
        leaving: slice -> node -> its copy that counts no longer, and goes when nobody reads from it any more.
        replaces: id of the index whose name it takes over when it is READY (R45); it stays when that is gone.
        took_over: it has: it bears the name also when that one is gone.
        replaced_by: id of the index that has taken over its name: it answers tokens that name it, and goes
            when nobody reads from it any more. By this member alone the one name passes to the other.
        replacement_read: every node was heard to have read that it was replaced.
        auto_split: the last new layout that was begun for a hot slice; not there when there was none.
        hears_by_id: each of its slices hears only of the documents that their ids let it hold (R16).
    """

    id: str
    definition: IndexDefinition
    state: IndexState
    version: int
    placement: list[list[str]]
    build: str | None
    created_at: int
    reason: str = ""
    slice_builds: dict[int, str] = {}
    splits: tuple[bytes, ...] = ()
    verified_at: int = 0
    verification: str = ""
    violated: Violated | None = None
    copies: dict[int, dict[str, str]] = {}
    leaving: dict[int, dict[str, LeavingCopy]] = {}
    replaces: str = ""
    took_over: bool = False
    replaced_by: str = ""
    replacement_read: bool = False
    auto_split: AutoSplit | msgspec.UnsetType = msgspec.UNSET
    hears_by_id: bool = False

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def number(self) -> int:
        """Of its id: later ones have larger ones (R19)."""
        return index_number(self.id)

    @property
    def keyspace(self) -> str:
        return self.definition.keyspace

    @property
    def slices(self) -> int:
        return self.definition.slices

    def build_of(self, slice_number: int) -> str:
        """The build that a slice's data comes from, "" before the first."""
        return self.slice_builds.get(slice_number, self.build or "")

    def copy_of(self, slice_number: int, node: str) -> str:
        """The id of the copy that a node holds of a slice, "" of one that a build has filled."""
        return self.copies.get(slice_number, {}).get(node, "")

    def copies_kept(self, slice_number: int) -> dict[str, str]:
        """Node -> id of its copy of a slice: those that count, then those that leave."""
        counted = {node: self.copy_of(slice_number, node) for node in self.placement[slice_number]}
        return counted | {node: one.copy for node, one in self.leaving.get(slice_number, {}).items()}


class BuildRecord(msgspec.Struct, frozen=True):
    """Key `build/<id>`: what must survive a restart of the coordinator.

    Attributes:
        load_timestamp: the end (high watermark) of the source at BUILD (R24).
        low_watermark: first offsets in the mutation queues; partitions appear as they are activated (R13).
        backfill_timestamp: how far finished micro-batches have come.
        final_timestamp: the source's end sampled after the final micro-batch was read (R25); None until then.
        ended: the coordinator has decided the end and `BuildEnd` is (being) sent (R23).
        earliest: from where the source could be read.
        slices: index id -> the slices that it fills, for a *rebuild*: single slices of READY indexes whose
            data was lost, while the others serve. Empty for a build of whole indexes.
        queue_positions: index id -> slice -> where in its mutation queue a rebuilt slice goes on: its end,
            taken before the source's, so that it has every offset at or past the load timestamp.
        incarnation: of the keyspace, when the build began.
        attempt: how often the same has been begun before, because the source was rolled back, a slice lost
            what it had got, or a rebuild failed.
        verify: its indexes are READY only when they were verified; `verify_full`: by a second read alone.
        phase: `waiting-for-transactions`, `sampling`, `reading`, `sorting`, `loading`, `catching-up` or
            `verifying`; "" before the first and after the last.
        paused: why it pauses, in words; "" when it does not. With state QUEUED: it is not to start.
        paused_by: who may end the pause: the operator, or the system when the reason is gone.
        bytes_done, bytes_total: of the source's records (keys and values); the total is estimated from what
            was read, 0 while nothing was.
        verification: id of the job that verifies, or verified, it; "" for none.
        origin: the table that its initial state comes from; None: the log's beginning.
        table_documents: rows of it, as far as they are read; in `documents_done` and `documents_total`.
        seed: id of the layout whose slices it begins with (R44), `table_documents` rows; "" for the source.
        left_out, skipped: index id -> reason -> documents read that it has no entries of: its definition
            leaves them out (`leading-key-missing`, `where-not-true`...), or they cannot be indexed.
        engine: what reads the source: `spark`, or `local` for the driver alone; "" for nothing yet.
        compared: `equal` when its slices store what was projected, by sums; else why not; "" for not yet.
    """

    id: str
    keyspace: str
    indexes: list[str]
    state: BuildState
    load_timestamp: Timestamp
    started_at: int
    low_watermark: dict[int, int] = {}
    backfill_timestamp: Timestamp = Timestamp()
    final_timestamp: Timestamp | None = None
    earliest: Timestamp = Timestamp()
    batches: int = 0
    ended: bool = False
    documents_done: int = 0
    documents_total: int = 0
    first_read_at: int = 0
    finished_at: int = 0
    rate_limit: int = 0  # documents per second; 0 for none
    error: str = ""
    slices: dict[str, list[int]] = {}
    queue_positions: dict[str, dict[int, int]] = {}
    incarnation: int = 0
    attempt: int = 0
    verify: bool = True
    phase: str = ""
    paused: str = ""
    paused_by: PausedBy = ""
    bytes_done: int = 0
    bytes_total: int = 0
    verification: str = ""
    origin: TableOrigin | None = None
    table_documents: int = 0
    left_out: dict[str, dict[str, int]] = {}
    skipped: dict[str, dict[str, int]] = {}
    seed: str = ""
    engine: str = ""
    verify_full: bool = False
    compared: str = ""

    @property
    def rebuild(self) -> bool:
        """Whether it fills single slices of READY indexes."""
        return bool(self.slices)

    def slices_of(self, index: IndexRecord) -> list[int]:
        """The slices of one of its indexes that it fills, ascending."""
        return self.slices.get(index.id, []) if self.slices else list(range(index.slices))


class JobRecord(msgspec.Struct, frozen=True):
    """Key `job/<id>`: work over whole indexes by a Spark driver of its own, other than builds. It has no
    checkpoint: after the death of its driver it begins again.

    Attributes:
        indexes: index ids, of one keyspace.
        build: the build that is READY only when this verification found nothing; "" for none.
        snapshot: number of the snapshot that is (or was) compared with the source; -1 before it is chosen.
        incarnation: of the keyspace, when the job was asked for.
        dry_run: a repair that only lists what it would do.
        documents, documents_total: records read of the source.
        counts: class of difference -> how many were found.
        attempts: how often its driver was started, not counting waits for something in its way.
        detail: what it does now, in words; or what it did.
    """

    id: str
    kind: JobKind
    keyspace: str
    indexes: list[str]
    state: JobState
    created_at: int
    build: str = ""
    snapshot: int = -1
    incarnation: int = 0
    dry_run: bool = False
    percent: float = 0.0
    documents: int = 0
    documents_total: int = 0
    counts: dict[str, int] = {}
    attempts: int = 0
    detail: str = ""
    error: str = ""
    started_at: int = 0
    finished_at: int = 0

    @property
    def index(self) -> str:
        """Index id of a job of one index."""
        return self.indexes[0] if self.indexes else ""


class RollbackRecord(msgspec.Struct, frozen=True):
    """Key `rollback/<keyspace>/<incarnation>`, for ever (R31): the source lost acknowledged offsets, and
    everything goes back to the newest snapshot before the loss.

    What was done under an older incarnation holds below `timestamp` only, in every partition; projectors go
    on from there. Of older incarnations, snapshot numbers up to `number` hold and later ones are void.

    Attributes:
        incarnation: the one that begins with this record.
        number: the newest snapshot before the loss; -1 when there is none.
        timestamp: of that snapshot; the zero timestamp when there is none (a topic made anew: its indexes
            begin from nothing).
        topic_id: of the topic from now on.
        cause: `truncated` (acknowledged offsets are gone) or `recreated` (another topic of the same name).
        lost: partition -> where the histories part, with the leader epoch of the new one: an offset past it
            under a smaller epoch lies on the lost branch. Empty when that is not known.
        detail: shown to people.
    """

    keyspace: str
    incarnation: int
    number: int
    timestamp: Timestamp
    topic_id: str
    cause: Literal["truncated", "recreated"]
    at: int
    lost: dict[int, Place] = {}
    detail: str = ""


class NodeRecord(msgspec.Struct, frozen=True):
    """Key `node/<id>`.

    Attributes:
        drained_at: since when it is to have no slices, ms; 0: it may have some.
        zone: what fails together with others of the same zone (`indexer.zone`), "" when that is not known.
        drain_rate: of each of the copies that are filled elsewhere, as it is drained (`CopyRecord.rate`).
        roles: what it is for (`keytide.model.roles`); none of a release that does not say: it has all.
        protocol: up to which version of the protocol it speaks, as it last said.
    """

    id: str
    url: str
    first_seen: int
    drained_at: int = 0
    zone: str = ""
    drain_rate: int = 0
    roles: tuple[str, ...] = ()
    protocol: int = FIRST_PROTOCOL

    def has(self, role: Role) -> bool:
        """Whether it has a role."""
        return has_role(self.roles, role)


Record = (
    ClusterRecord
    | TermRecord
    | KeyspaceRecord
    | IndexRecord
    | BuildRecord
    | CopyRecord
    | RebalanceRecord
    | JobRecord
    | RollbackRecord
    | NodeRecord
)

_KINDS: dict[str, type[Record]] = {
    "cluster": ClusterRecord,
    "term": TermRecord,
    "keyspace": KeyspaceRecord,
    "index": IndexRecord,
    "build": BuildRecord,
    "copy": CopyRecord,
    "rebalance": RebalanceRecord,
    "job": JobRecord,
    "rollback": RollbackRecord,
    "node": NodeRecord,
}


def record_key(record: Record) -> str:
    """The metadata key that `record` is written under."""
    match record:
        case ClusterRecord():
            return "cluster"
        case TermRecord():
            return "term"
        case KeyspaceRecord(name=name):
            return f"keyspace/{name}"
        case IndexRecord(id=id_):
            return f"index/{id_}"
        case BuildRecord(id=id_):
            return f"build/{id_}"
        case CopyRecord(id=id_):
            return f"copy/{id_}"
        case RebalanceRecord(id=id_):
            return f"rebalance/{id_}"
        case JobRecord(id=id_):
            return f"job/{id_}"
        case RollbackRecord(keyspace=keyspace, incarnation=incarnation):
            return f"rollback/{keyspace}/{incarnation}"
        case NodeRecord(id=id_):
            return f"node/{id_}"


def encode_record(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decode_record(key: str, value: bytes) -> Record:
    """The typed record of a metadata message; raises `msgspec.ValidationError` or `KeyError` if unknown."""
    return msgspec.json.decode(value, type=_KINDS[key.split("/", 1)[0]])
