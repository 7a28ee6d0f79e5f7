"""What a node shows to its scan endpoint: `indexer.view.NodeView` over the slices that run here.

The ingest thread changes it, any thread may ask it. Every change is one assignment or one dictionary
operation; the rings have locks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from indexer.hosting.core.control import Control
from indexer.hosting.slice_runner import SliceKey
from indexer.hosting.snapshot_reader import JointReader, SnapshotReader
from indexer.hosting.snapshots import SnapshotRing
from indexer.slice.write_load import WriteLoad
from indexer.view import SliceTrouble, StoreExport
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.model.timestamp import Timestamp
from keytide.wire.index_lists import WrittenSlice
from keytide.wire.messages import SliceStatus, UniqueViolation

OpenExport = Callable[[], StoreExport]
_NO_HISTORY: Final = History()


class ServingNode:
    """One node.

    Attributes:
        control: what the control topic said.
        watch: told of each slice's ring when it begins to run here.
        passed_at: when the thread that owns the slices has last gone round, in seconds of its clock.
        leader_at: when a leader was last heard; since the first round when none was.
    """

    def __init__(self, node_id: str) -> None:
        self._id = node_id
        self.control = Control()
        self.watch: Callable[[SliceKey, SnapshotRing], None] = lambda _key, _ring: None
        self.passed_at = 0.0
        self.leader_at = 0.0
        self._leader_spoke = True
        self._catalog = Catalog()
        self._urls: dict[str, str] = {}
        self._histories: dict[str, History] = {}
        self._rings: dict[SliceKey, SnapshotRing] = {}
        self._exports: Mapping[SliceKey, OpenExport] = {}
        self._loads: Mapping[SliceKey, WriteLoad] = {}
        self._troubles: dict[SliceKey, SliceTrouble] = {}
        self._violations: Mapping[SliceKey, Sequence[UniqueViolation]] = {}
        self._callbacks: list[Callable[[], None]] = []

    # --- the ingest thread ----------------------------------------------------------------------------

    def show_catalog(self, catalog: Catalog) -> None:
        """The dictionary has changed; `catalog` is a copy that nobody changes any more."""
        self._urls = {record.id: record.url for record in catalog.nodes()}
        histories = {record.name: History.of(catalog, record.name) for record in catalog.keyspaces()}
        self._histories = {
            record.id: histories[record.keyspace]
            for record in catalog.indexes()
            if record.keyspace in histories
        }
        self._catalog = catalog
        self.control.raise_term(catalog.term)
        for keyspace, history in histories.items():
            self.control.show_history(keyspace, history)
        self.changed()

    def show_slices(
        self,
        rings: Iterable[tuple[SliceKey, SnapshotRing]],
        exports: Mapping[SliceKey, OpenExport] = MappingProxyType({}),
        loads: Mapping[SliceKey, WriteLoad] = MappingProxyType({}),
    ) -> None:
        """The slices that run here have changed.

        Args:
            exports: of those that others may copy: gives what the slice's store has made durable.
            loads: what is written to them.
        """
        before = self._rings
        self._rings, self._exports, self._loads = dict(rings), exports, loads
        for key, ring in self._rings.items():
            if before.get(key) is not ring:
                self.watch(key, ring)

    def show_states(self, statuses: Iterable[SliceStatus]) -> None:
        """How the slices that are placed here are, as heartbeats tell it."""
        self._troubles = {
            (one.index, one.slice): SliceTrouble(one.state, one.reason)
            for one in statuses
            if one.reason or one.state == "LOST"
        }

    def show_violations(self, violations: Mapping[SliceKey, Sequence[UniqueViolation]]) -> None:
        """The violations that the slices which follow their queues list, by key; nobody changes them."""
        self._violations = violations

    def changed(self) -> None:
        """Tell everybody who asked to be told."""
        for callback in self._callbacks:
            callback()

    def leader_heard(self) -> None:
        """The control topic brought something in this round."""
        self._leader_spoke = True

    def passed(self, now: float) -> None:
        """A round is over."""
        self.passed_at = now
        if self._leader_spoke:
            self._leader_spoke, self.leader_at = False, now

    def troubles(self) -> Mapping[SliceKey, SliceTrouble]:
        """Slices that are placed here and not in order."""
        return self._troubles

    # --- NodeView, which says what each gives -----------------------------------------------------------

    @property
    def node_id(self) -> str:
        return self._id

    def catalog(self) -> Catalog:
        return self._catalog

    def history(self, index: str) -> History:
        return self._histories.get(index, _NO_HISTORY)

    def published(self, index: str) -> int | None:
        return self.control.published(index)

    def behind(self, index: str, slice_number: int) -> frozenset[str]:
        """The nodes whose copies of a slice hold nothing that is published now."""
        return self.control.behind(index, slice_number)

    def stamp(self, keyspace: str, number: int) -> tuple[int, Timestamp, int] | None:
        return self.control.stamp(keyspace, number)

    def acquire(self, index: str, slice_number: int, number: int) -> SnapshotReader | None:
        ring = self._rings.get((index, slice_number))
        return None if ring is None else ring.acquire(number)

    def joint(self, index: str, slices: Sequence[int], number: int) -> JointReader | None:
        rings = [self._rings.get((index, one)) for one in slices]
        here = [ring for ring in rings if ring is not None]
        return JointReader.of(here, number) if len(here) == len(slices) else None

    def tip(self, index: str, slice_number: int) -> SnapshotReader | None:
        ring = self._rings.get((index, slice_number))
        return None if ring is None else ring.tip()

    def built(self, index: str, slice_number: int, build: str) -> SnapshotReader | None:
        ring = self._rings.get((index, slice_number))
        return None if ring is None else ring.built(build)

    def newest(self, index: str, slice_number: int) -> int:
        ring = self._rings.get((index, slice_number))
        return -1 if ring is None else ring.newest()

    def lease(self, index: str, slice_number: int, number: int, holder: str, until: int) -> bool:
        ring = self._rings.get((index, slice_number))
        return ring is not None and ring.lease(number, holder, until)

    def violations(self, index: str, slice_number: int) -> Sequence[UniqueViolation] | None:
        return self._violations.get((index, slice_number))

    def written(self, index: str, slice_number: int) -> WrittenSlice | None:
        load = self._loads.get((index, slice_number))
        return None if load is None else load.shown

    def trouble(self, index: str, slice_number: int) -> SliceTrouble | None:
        ring = self._rings.get((index, slice_number))
        if ring is not None and ring.damage:
            return SliceTrouble("LOST", ring.damage)
        return self._troubles.get((index, slice_number))

    def export(self, index: str, slice_number: int) -> StoreExport | None:
        """What a slice has made durable; None when it is not here, not open or damaged. Raises as
        `SliceStore.export`."""
        key = (index, slice_number)
        ring, opens = self._rings.get(key), self._exports.get(key)
        return None if ring is None or ring.damage or opens is None else opens()

    def report_damage(self, index: str, slice_number: int, reason: str) -> None:
        ring = self._rings.get((index, slice_number))
        if ring is not None:
            ring.report_damage(reason)

    def report_doubt(self, index: str, slice_number: int, reason: str) -> None:
        ring = self._rings.get((index, slice_number))
        if ring is not None:
            ring.report_doubt(reason)

    def node_url(self, node: str) -> str | None:
        return self._urls.get(node)

    def on_published(self, callback: Callable[[], None]) -> None:
        """Call back, in the ingest thread, after a published number or the catalog has changed."""
        self._callbacks.append(callback)
