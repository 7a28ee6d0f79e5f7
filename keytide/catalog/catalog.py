"""The system dictionary: what the compacted `metadata` topic says, as typed records.

The coordinator's leader is the only writer. Everybody else folds the topic into a `Catalog` (pure: `apply`
one record at a time) and asks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from keytide.catalog.copies import CopyRecord, RebalanceRecord
from keytide.catalog.records import (
    BuildRecord,
    ClusterRecord,
    IndexRecord,
    JobRecord,
    KeyspaceRecord,
    NodeRecord,
    Record,
    RollbackRecord,
    TermRecord,
    decode_record,
)
from keytide.model.protocol import FIRST_PROTOCOL, check_spoken

RecordT = TypeVar("RecordT", bound=Record)

EMITTING: frozenset[str] = frozenset({"BUILDING", "PAUSED", "READY"})
"""States of an index for which projectors emit."""


class Catalog:
    """All records by key, as of `offset` (the next metadata offset to read). Of one thread; others take a
    `copy`."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._listed: dict[type[object], Sequence[Record]] = {}
        """Of each kind that was asked for since it changed: its records in key order. (The leader asks for
        the same lists at every event.)"""
        self.offset = 0
        self.ended: set[str] = set()
        """Keys of indexes and builds whose removal was read: of those, and no others, the cluster may have
        left topics behind. (Kafka keeps removals for a day at least, then nobody remembers them.)"""

    @property
    def records(self) -> Mapping[str, Record]:
        """All of them by key, as they are at any moment."""
        return self._records

    def put(self, key: str, record: Record) -> None:
        """Change or add a record."""
        self._records[key] = record
        self._listed.pop(type(record), None)

    def remove(self, key: str) -> bool:
        """Forget a record; whether there was one."""
        record = self._records.pop(key, None)
        self._listed.pop(type(record), None)
        return record is not None

    def apply(self, key: str, value: bytes | None, offset: int) -> Record | None:
        """Fold one metadata message in. Returns the new record, or None for a deletion.

        Raises:
            msgspec.ValidationError, KeyError: as `decode_record`.
            UnknownVersionError: the cluster uses a version of the protocol that this release does not speak.
        """
        self.offset = offset + 1
        if value is None:
            self.remove(key)
            if key.startswith(("index/", "build/")):
                self.ended.add(key)
            return None
        record = decode_record(key, value)
        if isinstance(record, ClusterRecord):
            check_spoken(record.protocol)
        self.put(key, record)
        return record

    def copy(self) -> Catalog:
        """A shallow copy for readers in other threads: records are immutable."""
        other = Catalog()
        other._records, other._listed = dict(self._records), dict(self._listed)
        other.offset, other.ended = self.offset, set(self.ended)
        return other

    def _all(self, kind: type[RecordT]) -> list[RecordT]:
        listed = self._listed.get(kind)
        if listed is None:
            records = self._records
            listed = [records[key] for key in sorted(records) if isinstance(records[key], kind)]
            self._listed[kind] = listed
        return list(cast("Sequence[RecordT]", listed))

    def _one(self, key: str, kind: type[RecordT]) -> RecordT | None:
        record = self._records.get(key)
        return record if isinstance(record, kind) else None

    @property
    def cluster(self) -> ClusterRecord | None:
        return self._one("cluster", ClusterRecord)

    @property
    def protocol(self) -> int:
        """The version of the protocol that is in use."""
        return self.cluster.protocol if self.cluster is not None else FIRST_PROTOCOL

    @property
    def secret(self) -> str:
        """Of the cluster; "" while nothing was read of it."""
        return self.cluster.secret if self.cluster is not None else ""

    @property
    def term(self) -> int:
        record = self._one("term", TermRecord)
        return record.term if record else 0

    @property
    def leader_protocol(self) -> int:
        """Up to which version of the protocol the leader speaks, as far as is known."""
        record = self._one("term", TermRecord)
        return record.protocol if record else FIRST_PROTOCOL

    def keyspace(self, name: str) -> KeyspaceRecord | None:
        return self._one(f"keyspace/{name}", KeyspaceRecord)

    def keyspaces(self) -> list[KeyspaceRecord]:
        return self._all(KeyspaceRecord)

    def index(self, id_: str) -> IndexRecord | None:
        return self._one(f"index/{id_}", IndexRecord)

    def indexes(self, keyspace: str | None = None) -> list[IndexRecord]:
        found = self._all(IndexRecord)
        return found if keyspace is None else [one for one in found if one.keyspace == keyspace]

    def index_by_name(self, name: str) -> IndexRecord | None:
        """The index that bears this name now: not one that is being dropped, was replaced, or is to replace
        another one and has not yet."""
        return next((r for r in self._all(IndexRecord) if r.name == name and self.bears_name(r)), None)

    def bears_name(self, index: IndexRecord) -> bool:
        """Whether an index is the one that its name stands for."""
        if index.state == "DROPPING" or index.replaced_by:
            return False
        if not index.replaces:
            return True
        old = self.index(index.replaces)
        return index.took_over if old is None else old.replaced_by == index.id

    def pending_layouts(self, name: str) -> list[IndexRecord]:
        """Those that are to take over a name, built or failed."""
        return [r for r in self.layouts(name) if not r.replaced_by and not self.bears_name(r)]

    def layouts(self, name: str) -> list[IndexRecord]:
        """All that have a name and are not being dropped: the index that bears it, those that it has
        replaced, and the one that is to replace it."""
        return [r for r in self._all(IndexRecord) if r.name == name and r.state != "DROPPING"]

    def listed(self) -> list[IndexRecord]:
        """Of each name the index that bears it; of one that none bears, one that is being dropped."""
        names = self.shown_names()
        return [r for r in self._all(IndexRecord) if names[r.id] == r.name]

    def shown_names(self) -> dict[str, str]:
        """Index id -> what to call it where each has a name of its own: its name, or its id where another
        one has that."""
        found = {r.name: r.id for r in reversed(self._all(IndexRecord))}
        found |= {r.name: r.id for r in self._all(IndexRecord) if self.bears_name(r)}
        return {r.id: r.name if found[r.name] == r.id else r.id for r in self._all(IndexRecord)}

    def build(self, id_: str) -> BuildRecord | None:
        return self._one(f"build/{id_}", BuildRecord)

    def builds(self) -> list[BuildRecord]:
        return self._all(BuildRecord)

    def copy_record(self, id_: str) -> CopyRecord | None:
        return self._one(f"copy/{id_}", CopyRecord)

    def copies(self) -> list[CopyRecord]:
        """All copies of slices that are being filled."""
        return self._all(CopyRecord)

    def copies_of_slices(self) -> dict[tuple[str, int], list[CopyRecord]]:
        """(index id, slice) -> its copies that are being filled, the oldest first."""
        found: dict[tuple[str, int], list[CopyRecord]] = {}
        for record in sorted(self.copies(), key=lambda one: (len(one.id), one.id)):
            found.setdefault((record.index, record.slice), []).append(record)
        return found

    def rebalances(self) -> list[RebalanceRecord]:
        """All that were begun and are still remembered, oldest first."""
        return sorted(self._all(RebalanceRecord), key=lambda one: one.created_at)

    def job(self, id_: str) -> JobRecord | None:
        return self._one(f"job/{id_}", JobRecord)

    def jobs(self) -> list[JobRecord]:
        return self._all(JobRecord)

    def rollbacks(self, keyspace: str) -> list[RollbackRecord]:
        """All rollbacks of a keyspace, oldest first."""
        found = [record for record in self._all(RollbackRecord) if record.keyspace == keyspace]
        return sorted(found, key=lambda record: record.incarnation)

    def nodes(self) -> list[NodeRecord]:
        return self._all(NodeRecord)

    def drained(self) -> frozenset[str]:
        """The nodes whose slices are to move to others."""
        return frozenset(one.id for one in self.nodes() if one.drained_at)

    def closed(self) -> frozenset[str]:
        """The nodes that get no slices: those that are drained, and those without the role for it."""
        return frozenset(one.id for one in self.nodes() if one.drained_at or not one.has("index"))

    def zones(self) -> dict[str, str]:
        """Node -> what fails together with it, in words: its zone, or where that is not known, itself."""
        return {one.id: f"zone {one.zone}" if one.zone else f"node {one.id}" for one in self.nodes()}

    def emitting(self, keyspace: str, version: int) -> list[IndexRecord]:
        """The indexes that a source partition on which `version` is activated emits for (R13), in id
        order."""
        return [r for r in self.indexes(keyspace) if r.state in EMITTING and 0 < r.version <= version]
