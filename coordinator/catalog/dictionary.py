"""The system dictionary as the leader means it to be: the catalog, with the changes that are still to be
written. Pure.

The leader is the only writer, so it decides on its own copy. What one event changes is taken out by `drain`
as one `Write` (one transaction), and the shell carries out everything that follows from it after that: write
first, act after.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.core.instructions import Write
from coordinator.core.speakers import Speakers
from keytide.catalog.catalog import Catalog
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord, KeyspaceRecord, Record, record_key
from keytide.definition.index import IndexDefinition
from keytide.errors import CallerError
from keytide.model.hints import did_you_mean
from keytide.model.protocol import FIRST_PROTOCOL, NARROWED, PLACES, SPOKEN, SUBPARTITIONS
from keytide.model.topics import Topics


class NoSuchIndexError(CallerError):
    """No index has that name."""

    problem_type = "index-not-found"
    status = 404


class Dictionary:
    """The leader's own copy of the catalog.

    Args:
        catalog: as read at the start of the term; it is changed in place from now on.
        cluster: the cluster's name.
        speakers: who speaks which version of the protocol; nobody but nodes by default.

    Attributes:
        changed: something changed since `drain` was last called.
        ordered: how many writes were taken out.
        committed: how many of them are known to be committed; they are in order.
        written: metadata offset up to which this leader knows who has written what: whoever has read further
            has read what another leader wrote (R49).
    """

    def __init__(self, catalog: Catalog, cluster: str, speakers: Speakers | None = None) -> None:
        self.catalog = catalog
        self.speakers = speakers or Speakers()
        self.topics = Topics(cluster)
        self._pending: dict[str, Record | None] = {}
        self._bumped: set[str] = set()
        self._next_number = catalog.offset
        self.ordered = self.committed = 0
        self.written = catalog.offset

    @property
    def changed(self) -> bool:
        return bool(self._pending)

    def put(self, record: Record) -> None:
        """Change or add a record."""
        key = record_key(record)
        if self.catalog.records.get(key) != record:
            self.catalog.put(key, record)
            self._pending[key] = record

    def delete(self, key: str) -> None:
        """Remove a record."""
        if self.catalog.remove(key):
            self._pending[key] = None

    def use_protocol(self, version: int, what: str, without: str = "") -> None:
        """Have the cluster use a version of the protocol from now on, by the same write as what needs it
        (R52).

        Args:
            what, without: as in `Speakers.check`.

        Raises:
            UpgradeNeededError: somebody does not speak it.
        """
        self.speakers.check(self.catalog, version, what, without)
        record = self.catalog.cluster
        if record is not None and record.protocol < version:
            self.put(replace(record, protocol=version))

    def drain(self) -> Write | None:
        """All changes since the last call, as one transaction.

        Keyspaces come last: a projector that reads a new version must find everything that belongs to it
        (R13).
        """
        if not self._pending:
            return None
        write = Write(tuple(sorted(self._pending.items(), key=lambda item: item[0].startswith("keyspace/"))))
        self._pending = {}
        self._bumped.clear()
        self.ordered += 1
        return write

    def wrote(self, end: int) -> None:
        """The oldest write that was not known to be committed is. `end` as in `DictionaryWritten`."""
        self.committed += 1
        self.written = max(self.written, end + 1)  # (behind a transaction is its marker)

    def number(self) -> int:
        """A number that no id has borne before (R19). It starts at the metadata topic's end and every id
        costs that topic a record at least, so the next leader starts past it."""
        number = self._next_number
        self._next_number += 1
        return number

    def define(self, definition: IndexDefinition, now: int, replaces: str = "") -> IndexRecord:
        """Add an index, which no build is to make yet.

        Args:
            replaces: id of the one whose name it is to take over. The new one has another id than any before,
                given-up ones included: projectors that have not read of the end of such a one still send into
                the queue of its id (R50).

        Raises:
            UpgradeNeededError: as `use_protocol_of`.
        """
        self.use_protocol_of(definition)
        if not any(self.catalog.indexes()) and not self.speakers.behind(self.catalog, SPOKEN):
            self.use_protocol(SPOKEN, "the first index")  # (there is nothing to go back to)
        index = IndexRecord(
            id=f"{definition.name}-{self.number()}",
            definition=definition,
            state="DEFERRED",
            version=0,
            placement=[],
            build=None,
            created_at=now,
            replaces=replaces,
            hears_by_id=self.hears_by_id(definition),
        )
        self.put(index)
        return index

    def hears_by_id(self, definition: IndexDefinition) -> bool:
        """Whether slices of a new index hear only of the documents that their ids let them hold (R16): ids
        say which, and everybody understands that. (No UNIQUE index: what it judges by is what it hears.)"""
        understood = self.catalog.protocol >= NARROWED and not definition.unique
        return understood and Partitioning.of(definition).by_id

    def use_protocol_of(self, definition: IndexDefinition) -> None:
        """Have the version of the protocol in use that makes everybody understand a definition.

        Raises:
            UpgradeNeededError: somebody does not know what it needs.
        """
        needs: list[tuple[int, str]] = []
        if definition.speaks_of_places:
            needs.append((PLACES, "an index of places, or with a condition on them"))
        if definition.structure_type.since > FIRST_PROTOCOL:
            needs.append((definition.structure_type.since, f"an index USING {definition.using}"))
        if definition.spread:
            needs.append((SUBPARTITIONS, "an index with SUBPARTITION BY"))
        # The latest first: what is refused has raised nothing.
        for version, what in sorted(needs, key=lambda need: -need[0]):
            self.use_protocol(version, what)

    def index_named(self, name: str) -> IndexRecord:
        """The index of that name.

        Raises:
            NoSuchIndexError: there is none.
        """
        record = self.catalog.index_by_name(name)
        if record is None:
            raise NoSuchIndexError(
                f"there is no index {name!r}",
                next_step=did_you_mean(
                    name,
                    (index.name for index in self.catalog.indexes()),
                    "`keytide index list` shows what there is",
                ),
            )
        return record

    def bump(self, keyspace: str) -> KeyspaceRecord:
        """Raise a keyspace's catalog version: projectors then activate it on each partition (R13). Once per
        event: a second call before `drain` returns the same version."""
        record = self.catalog.keyspace(keyspace)
        if record is None:
            raise KeyError(keyspace)
        if keyspace in self._bumped:
            return record
        self._bumped.add(keyspace)
        raised = replace(record, version=record.version + 1)
        self.put(raised)
        return raised
