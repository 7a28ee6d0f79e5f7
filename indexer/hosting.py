"""Which slices a node runs, by the system dictionary; opens and closes them.

Theory of operation
===================
After every change of the dictionary `reconcile` compares what is placed here with what runs:

    BUILDING, PAUSED, READY   runs; a slice of another build is thrown away and begun anew (BUILDING only)
    FAILED                    stops; its folder stays until the index is built again or dropped
    DEFERRED, DROPPING, gone  stops, and its folder is deleted

A slice of a READY index whose data is not here cannot be made up: it is reported as STOPPED. A folder that
cannot be opened for now (the disk is full) is tried again. The node's memory for what is heard is shared out
evenly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from indexer.folder import NodeFolder
from indexer.following import Limits
from indexer.metrics import NodeMetrics
from indexer.node import Node
from indexer.slices import QueueReading, SliceKey, SliceRunner
from indexer.spool import ChunkSpool
from indexer.store.fold_worker import Folder as FoldRunner
from indexer.store.interface import Applied
from indexer.store.lmdb_store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from keytide.catalog import Catalog, IndexRecord
from keytide.errors import RetryableError
from keytide.messages import SliceStatus
from keytide.settings import IndexerSettings
from keytide.timestamp import Timestamp

log = logging.getLogger(__name__)

_RUNS: Final = frozenset({"BUILDING", "PAUSED", "READY"})
_KEEPS: Final = frozenset({"BUILDING", "PAUSED", "READY", "FAILED"})
_FOLD_WAIT_S: Final = 2.0
"""How long a commit waits for a fold that is behind: all slices of the node wait with it."""
_LEAST_DOCUMENTS: Final = 10_000
_LEAST_BYTES: Final = 1 << 20

Acknowledge = Callable[[str, int, int, SliceKey], None]


def placed_here(catalog: Catalog, node: str) -> dict[SliceKey, IndexRecord]:
    """The slices that the dictionary places on a node, in order, whatever their index's state."""
    return {
        (record.id, number): record
        for record in catalog.indexes()
        for number, nodes in enumerate(record.placement)
        if node in nodes
    }


class Hosting:
    """The slices of a node. Used by the ingest thread.

    Attributes:
        runners: those that run, in order.
    """

    def __init__(
        self,
        folder: NodeFolder,
        node: Node,
        settings: IndexerSettings,
        reading: QueueReading,
        acknowledge: Acknowledge,
        metrics: NodeMetrics,
        folds: FoldRunner,
    ) -> None:
        self.runners: dict[SliceKey, SliceRunner] = {}
        self._folder = folder
        self._node = node
        self._settings = settings
        self._reading = reading
        self._acknowledge = acknowledge
        self._metrics = metrics
        self._folds = folds
        self._broken: dict[SliceKey, str] = {}
        self._store_settings = StoreSettings(
            base_map_bytes=settings.base_map_bytes,
            delta_map_bytes=settings.delta_map_bytes,
            fold_entries=settings.delta_entries,
            fold_age_ms=settings.delta_age_s * 1_000,
            fold_wait_s=_FOLD_WAIT_S,
            check_mirror=settings.check_mirror,
        )

    def reconcile(self, catalog: Catalog, now: int) -> None:
        """Run what is to run; stop the rest.

        Args:
            catalog: read to its end at least once.
        """
        placed = placed_here(catalog, self._node.node_id)
        for key in [key for key in self.runners if key not in placed or placed[key].state not in _RUNS]:
            self._stop(key, placed.get(key))
        for key in self._folder.slices():
            if key not in self.runners and (key not in placed or placed[key].state not in _KEEPS):
                log.info("deleting slice %s/%d: the index is gone", *key)
                self._folder.remove(key)
        self._broken = {key: why for key, why in self._broken.items() if key in placed}
        for key, record in placed.items():
            if record.state in _RUNS:
                self._run(key, record, catalog, now)
        self._changed()

    def try_again(self, catalog: Catalog, now: int) -> None:
        """Slices that could not be opened."""
        if self._broken:
            self.reconcile(catalog, now)

    def statuses(self, now: int) -> list[SliceStatus]:
        """For the node's heartbeat, in order."""
        found = [runner.status(now) for _, runner in sorted(self.runners.items())]
        return found + [_broken_status(key, why) for key, why in sorted(self._broken.items())]

    def close(self) -> None:
        """Stop all; what is on disk stays."""
        self._node.show_slices(())
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()

    # --- details --------------------------------------------------------------------------------------

    def _run(self, key: SliceKey, record: IndexRecord, catalog: Catalog, now: int) -> None:
        runner = self.runners.get(key)
        if runner is not None:
            if runner.core.applied.build == (record.build or ""):
                return
            self._stop(key, None)  # it is built anew
        try:
            runner = self._open(key, record, catalog)
        except RetryableError as error:
            log.warning("slice %s/%d cannot be opened: %s", *key, error)
            self._broken[key] = error.message
            return
        if runner is None:
            self._broken[key] = "the slice's data is not on this node: build the index again"
            return
        self._broken.pop(key, None)
        self.runners[key] = runner
        self._changed()
        runner.start(now)

    def _open(self, key: SliceKey, record: IndexRecord, catalog: Catalog) -> SliceRunner | None:
        """The slice with what is on disk, or begun anew; None when it must be there and is not."""
        path, build = self._folder.slice_folder(key), record.build or ""
        if record.state == "READY" and not path.exists():
            return None
        initial = _initial(record, catalog)
        store = LmdbSliceStore(path, initial, self._store_settings, self._folds)
        if store.applied.build != build:
            if record.state == "READY":
                store.close()
                return None
            log.info("slice %s/%d of build %s is begun anew", *key, store.applied.build)
            store.destroy()
            store = LmdbSliceStore(path, initial, self._store_settings, self._folds)
        return SliceRunner(
            key,
            record.keyspace,
            store,
            ChunkSpool(path / "chunks"),
            self._limits(),
            self._settings.snapshots_kept,
            self._reading,
            self._acknowledge,
            self._metrics,
            self._node.control.term,
        )

    def _stop(self, key: SliceKey, record: IndexRecord | None) -> None:
        runner = self.runners.pop(key)
        if record is not None and record.state in _KEEPS:
            runner.close()
        else:
            log.info("deleting slice %s/%d", *key)
            runner.destroy()
            self._folder.remove(key)
        if not any(index == key[0] for index, _ in self.runners):
            self._node.control.forget_index(key[0])

    def _changed(self) -> None:
        self.runners = dict(sorted(self.runners.items()))
        self._node.show_slices((key, runner.ring) for key, runner in self.runners.items())
        limits = self._limits()
        for runner in self.runners.values():
            runner.set_limits(limits)

    def _limits(self) -> Limits:
        settings, slices = self._settings, max(1, len(self.runners))
        documents = min(settings.slice_queue_documents, settings.node_queue_documents // slices)
        size = min(settings.slice_queue_bytes, settings.node_queue_bytes // slices)
        return Limits(
            max(_LEAST_DOCUMENTS, documents), max(_LEAST_BYTES, size), gap_ms=settings.gap_limit_s * 1_000
        )


def _initial(record: IndexRecord, catalog: Catalog) -> Applied:
    """The state of a slice before its first micro-batch."""
    keyspace = catalog.keyspace(record.keyspace)
    return Applied(
        timestamp=Timestamp({}, keyspace.topic_id if keyspace else ""),
        incarnation=keyspace.incarnation if keyspace else 0,
        build=record.build or "",
        building=True,
    )


def _broken_status(key: SliceKey, reason: str) -> SliceStatus:
    return SliceStatus(
        index=key[0],
        slice=key[1],
        state="STOPPED",
        reason=reason,
        timestamp=Timestamp(),
        number=-1,
        batch=-1,
        entries=0,
        bytes=0,
        skipped=0,
        queue_documents=0,
        queue_position=0,
        gap_drops=0,
        foreign_partition_ids=0,
    )
