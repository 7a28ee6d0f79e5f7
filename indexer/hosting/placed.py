"""Which slices the dictionary wants on a node, and of which build and copy. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from indexer.hosting.slice_runner import SliceKey
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord, LeavingCopy
from keytide.catalog.records import IndexRecord

_RUNS: Final = frozenset({"BUILDING", "PAUSED", "READY"})
_KEEPS: Final = frozenset({"BUILDING", "PAUSED", "READY", "FAILED"})
_ACTIVE: Final = frozenset({"QUEUED", "BACKFILL", "CATCHUP", "PAUSED"})
"""States of a build that goes on."""


class Placed(NamedTuple):
    """A slice that is to be here.

    Attributes:
        record: of its index, in whatever state.
        build, copy: what its data is of.
        filling: the record of its copy, while that does not count yet.
        leaving: that of one that counts no longer.
    """

    record: IndexRecord
    build: str
    copy: str
    filling: CopyRecord | None = None
    leaving: LeavingCopy | None = None

    @property
    def runs(self) -> bool:
        return self.record.state in _RUNS

    @property
    def left_by_all(self) -> bool:
        """Whether it leaves, and everybody knows: no new leases are given."""
        return self.leaving is not None and self.leaving.acknowledged

    @property
    def keeps(self) -> bool:
        """Whether what is on the disk stays."""
        return self.record.state in _KEEPS


def placed_here(catalog: Catalog, node: str) -> dict[SliceKey, Placed]:
    """The slices that the dictionary wants on a node: those that count, those that leave, those to be
    filled; in order."""
    found = {
        (record.id, number): Placed(record, record.build_of(number), record.copy_of(number, node))
        for record in catalog.indexes()
        for number, nodes in enumerate(record.placement)
        if node in nodes
    }
    for record in catalog.indexes():
        for number, leaving in record.leaving.items():
            key = (record.id, number)
            if node in leaving and key not in found:
                copy_id = leaving[node].copy
                found[key] = Placed(record, record.build_of(number), copy_id, leaving=leaving[node])
    for copy in catalog.copies():
        key, index = (copy.index, copy.slice), catalog.index(copy.index)
        if copy.node == node and index is not None and index.state == "READY" and key not in found:
            found[key] = Placed(index, index.build_of(copy.slice), copy.id, copy)
    return found


def may_begin(placed: Placed, slice_number: int, catalog: Catalog) -> bool:
    """Whether a build is there that fills the slice from nothing: its index's, or one of its own. A copy that
    was ever filled from another one, or leaves, is never begun empty: its queue may have been trimmed of what
    it lacks (R48)."""
    if placed.filling is not None or placed.leaving is not None or placed.copy:
        return False
    record = placed.record
    if record.state != "READY":
        return True
    build = catalog.build(record.build_of(slice_number))
    return (
        build is not None
        and build.state in _ACTIVE
        and build.rebuild
        and slice_number in build.slices_of(record)
    )
