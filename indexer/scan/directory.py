"""What scans look up in the system dictionary, worked out once per change of it and not once per scan."""

from __future__ import annotations

from dataclasses import dataclass

from indexer.scan.choose import IndexNotReadyError, UnknownIndexError
from indexer.scan.selection import Shape
from indexer.view import NodeView
from keytide.catalog import Catalog, IndexRecord, KeyspaceRecord


@dataclass(frozen=True, slots=True)
class Scannable:
    """A READY index with what a scan of it needs.

    Attributes:
        placement: slice -> the nodes that hold it.
        partitions, incarnation: of its keyspace.
    """

    id: str
    name: str
    keyspace: str
    shape: Shape
    placement: list[list[str]]
    partitions: int
    incarnation: int


class Directory:
    """Indexes by name, as the node's catalog has them now."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._catalog: Catalog | None = None
        self._offset = -1
        self._by_name: dict[str, IndexRecord] = {}
        self._ready: dict[str, Scannable] = {}
        self._secret = b""

    def index(self, name: str) -> Scannable:
        """The READY index of this name.

        Raises:
            UnknownIndexError: no index has it.
            IndexNotReadyError: it cannot be scanned yet, or not any more.
        """
        self._refresh()
        scannable = self._ready.get(name)
        if scannable is not None:
            return scannable
        record = self._by_name.get(name)
        if record is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise UnknownIndexError(
                f"there is no index {name} (indexes: {known})", next_step="see `keytide index list`"
            )
        if record.state == "READY":
            raise IndexNotReadyError(
                f"this node has not read all of the metadata of index {name} yet",
                next_step="try again in a moment",
            )
        next_steps = {
            "FAILED": "drop it and create it again",
            "DEFERRED": f"BUILD INDEX ON {record.keyspace} ({name})",
            "PAUSED": "resume its build (`keytide build list`)",
        }
        raise IndexNotReadyError(
            f"index {name} is {record.state}{': ' + record.reason if record.reason else ''}",
            next_step=next_steps.get(record.state, "wait for its build (`keytide build list`)"),
            build=record.build,
            state=record.state,
        )

    def secret(self) -> bytes:
        """What tokens are signed with.

        Raises:
            IndexNotReadyError: the node has not read the cluster's record yet.
        """
        self._refresh()
        if not self._secret:
            raise IndexNotReadyError(
                "this node has not read the cluster's metadata yet", next_step="try again in a moment"
            )
        return self._secret

    def _refresh(self) -> None:
        catalog = self._view.catalog()
        if catalog is self._catalog and catalog.offset == self._offset:
            return
        offset = catalog.offset
        keyspaces = {record.name: record for record in catalog.keyspaces()}
        records = [record for record in catalog.indexes() if record.state != "DROPPING"]
        # As Catalog.index_by_name: of two with one name (one is being replaced) the first counts.
        self._by_name = {record.name: record for record in reversed(records)}
        self._ready = {
            name: _scannable(record, keyspaces[record.keyspace])
            for name, record in self._by_name.items()
            if record.state == "READY" and record.keyspace in keyspaces and _is_placed(record)
        }
        self._secret = bytes.fromhex(catalog.cluster.secret) if catalog.cluster else b""
        self._catalog, self._offset = catalog, offset


def _is_placed(record: IndexRecord) -> bool:
    return len(record.placement) == record.slices and all(record.placement)


def _scannable(record: IndexRecord, keyspace: KeyspaceRecord) -> Scannable:
    return Scannable(
        record.id,
        record.name,
        record.keyspace,
        Shape.of(record.definition),
        record.placement,
        keyspace.partitions,
        keyspace.incarnation,
    )
