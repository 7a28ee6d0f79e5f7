"""Which slices a node runs, by the system dictionary; opens and closes them.

Theory of operation
===================
After every change of the dictionary `reconcile` compares what is placed here with what runs:

    BUILDING, PAUSED, READY   runs; a slice of another build is thrown away and begun anew (BUILDING only)
    FAILED                    stops; its folder stays until the index is built again or dropped
    DEFERRED, DROPPING, gone  stops, and its folder is deleted

Each slice belongs to the build that the index names for it (`IndexRecord.build_of`): one slice of a READY
index may be rebuilt while the others serve. A slice of a READY index cannot be made up: when its data is not
here, damaged, of another build, or past what it can read on from or step back to, it is LOST. It is closed
then, a damaged folder set aside, and nothing more is done until the dictionary names another build for it:
under that one it begins anew. As long as its build goes on, a damaged slice begins anew under the same. A
folder that cannot be opened for now (the disk is full) is tried again.

So it is with copies: the dictionary names the one that a node is to have of a slice, and another one is as
good as none (R48). Only a copy whose own record is there is filled, from that of another node (`filling`),
and runs when it is whole, whether it counts yet or not. One that leaves goes on as before, until the
dictionary names it no more.

Rollbacks of a keyspace are told to its slices here, after builds that began again because of them. The node's
memory for what is heard is shared out evenly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from indexer.hosting.core import slice_status as status
from indexer.hosting.filling import CopyFiller, Fillings
from indexer.hosting.fold_turns import FoldTurns, in_turn
from indexer.hosting.metrics import NodeMetrics
from indexer.hosting.node import ServingNode
from indexer.hosting.node_folder import NodeFolder
from indexer.hosting.placed import Placed, may_begin, placed_here
from indexer.hosting.queue_reading import QueueReading
from indexer.hosting.scrubber import Scrubber
from indexer.hosting.slice_runner import SliceKey, SliceRunner
from indexer.hosting.spool import ChunkSpool, Spool
from indexer.slice.limits import SliceLimits
from indexer.slice.write_load import WriteLoad
from indexer.store.fold.worker import Folder as FoldRunner
from indexer.store.interface import Applied, SliceStore, StoreDamagedError, StoreExport
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from indexer.unique.suspects import UniqueLimits
from indexer.unique.watch import watch_of
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import IndexerSettings
from keytide.wire.messages import SliceStatus, UniqueViolation

log = logging.getLogger(__name__)

_LEAST_DOCUMENTS: Final = 10_000
_LEAST_BYTES: Final = 1 << 20

SendAcknowledgement = Callable[[str, int, int, SliceKey], None]
OpenStore = Callable[[Path, Applied, StoreSettings, FoldRunner], SliceStore]
"""Opens what is in a slice's folder, or makes a store there in the given state."""
OpenSpool = Callable[[Path], Spool]


class SliceChange(NamedTuple):
    """`batch`: newest micro-batch committed."""

    key: SliceKey
    state: str
    batch: int
    incarnation: int


class _Lost(NamedTuple):
    """A slice that waits for another build than `build`, or another copy than `copy`."""

    build: str
    copy: str
    reason: str
    incarnation: int


class _LostError(Exception):
    """A slice cannot be opened, and another try is no use."""


class Hosting:
    """The slices of a node. Used by the ingest thread.

    Args:
        filler: carries the rows of copies from other nodes.
        open_store, open_spool: how the store of a slice, and its chunks that wait, lie in its folder.

    Attributes:
        runners: those that run, in order.
    """

    def __init__(
        self,
        folder: NodeFolder,
        node: ServingNode,
        settings: IndexerSettings,
        reading: QueueReading,
        acknowledge: SendAcknowledgement,
        metrics: NodeMetrics,
        folds: FoldRunner,
        filler: CopyFiller,
        open_store: OpenStore = LmdbSliceStore,
        open_spool: OpenSpool = ChunkSpool,
    ) -> None:
        self.runners: dict[SliceKey, SliceRunner] = {}
        self._folder = folder
        self._node = node
        self._settings = settings
        self._reading = reading
        self._acknowledge = acknowledge
        self._metrics = metrics
        self._folds = folds
        self._make_store = open_store
        self._open_spool = open_spool
        self._broken: dict[SliceKey, str] = {}
        self._lost: dict[SliceKey, _Lost] = {}
        self._copies: dict[SliceKey, str] = {}
        """Ids of the copies that run, where they have one."""
        self._fillings = Fillings(folder, filler)
        self._catalog = Catalog()
        self._fillable: frozenset[SliceKey] = frozenset()
        self._turns = FoldTurns()
        self._scrubber = Scrubber(settings.scrub_interval_s * 1_000, settings.doubt_pause_s * 1_000)
        self._unique_limits = UniqueLimits(settings.unique_keys_listed, settings.unique_documents_listed)
        self._store_settings = StoreSettings.of(settings)

    def reconcile(self, catalog: Catalog, now: int) -> None:
        """Run what is to run; stop the rest.

        Args:
            catalog: read to its end at least once.
        """
        self._catalog = catalog
        placed = placed_here(catalog, self._node.node_id)
        for key in [key for key in self.runners if key not in placed or not placed[key].runs]:
            self._stop(key, placed.get(key))
        self._fillings.keep({key: one.filling for key, one in placed.items() if one.filling and one.runs})
        for key in self._folder.slices():
            if key not in self.runners and (key not in placed or not placed[key].keeps):
                log.info("deleting slice %s/%d: it is not to be here", *key)
                self._folder.remove(key)
        self._broken = {key: why for key, why in self._broken.items() if key in placed}
        self._lost = {
            key: lost
            for key, lost in self._lost.items()
            if key in placed and placed[key].runs and placed[key][1:3] == lost[:2]
        }
        self._fillable = frozenset(key for key, one in placed.items() if may_begin(one, key[1], catalog))
        for key, one in placed.items():
            if one.runs:
                self._run(key, one, now)
        self._changed()

    def try_again(self, catalog: Catalog, now: int) -> None:
        """Slices that could not be opened."""
        if self._broken:
            self.reconcile(catalog, now)

    def look_after(self, now: int) -> None:
        """What is due by time in any slice; put away those that are LOST."""
        self._turns.look_after(self.runners, now)
        self._scrubber.look_after(self.runners, now)
        # One step, of whichever slice comes first: all slices of the node wait for it. Sweeps that have begun
        # go before those that are due again, or these would never let some end.
        begun = [one for one in self.runners.values() if one.unique is not None and one.unique.sweeping]
        any(runner.sweep(now) for runner in begun or self.runners.values())
        for runner in [runner for runner in self.runners.values() if runner.core.state == "LOST"]:
            self._put_away(runner)
        self.take_whole(now)

    def take_whole(self, now: int) -> None:
        """Open copies that are whole by now."""
        if self._fillings.take_whole():
            self.reconcile(self._catalog, now)

    def statuses(self, now: int) -> list[SliceStatus]:
        """For the node's heartbeat, in order."""
        found = [self._status(runner, now) for _, runner in sorted(self.runners.items())]
        found += [status.absent(key, "STOPPED", why) for key, why in sorted(self._broken.items())]
        found += self._fillings.statuses()
        return found + [
            status.absent(key, "LOST", lost.reason, lost.incarnation, lost.copy)
            for key, lost in sorted(self._lost.items())
        ]

    def _status(self, runner: SliceRunner, now: int) -> SliceStatus:
        copy, told, ring = self._copies.get(runner.key, ""), runner.status(now), runner.ring
        return replace(told, copy=copy, leases=ring.in_use(now), writes=runner.load.entries, reads=ring.reads)

    def violations(self) -> dict[SliceKey, Sequence[UniqueViolation]]:
        """What the slices that follow their queues list, for the endpoint."""
        return {
            key: runner.unique.shown if runner.unique else ()
            for key, runner in self.runners.items()
            if runner.core.following is not None
        }

    def slice_changes(self) -> list[SliceChange]:
        """What others want to hear of at once, of each slice."""
        found = [
            SliceChange(key, runner.core.state, runner.core.applied.batch, runner.core.incarnation)
            for key, runner in self.runners.items()
        ]
        found += [SliceChange(key, "FILLING", -1, one) for key, one in self._fillings.incarnations.items()]
        return found + [
            SliceChange(key, "LOST", -1, lost.incarnation) for key, lost in sorted(self._lost.items())
        ]

    def close(self) -> None:
        """Stop all; what is on disk stays."""
        self._node.show_slices(())
        self._fillings.close()
        for key, runner in self.runners.items():
            self._scrubber.leave(key)
            runner.close()
        self.runners.clear()

    # --- details --------------------------------------------------------------------------------------

    def _run(self, key: SliceKey, placed: Placed, now: int) -> None:
        if key in self._lost:
            return
        history = History.of(self._catalog, placed.record.keyspace)
        runner = self.runners.get(key)
        known = self._copies.get(key, "")
        if runner is not None and (runner.core.applied.build, known) != (placed.build, placed.copy):
            self._stop(key, None)  # it is built anew, or another copy is to be here
            runner = None
        if runner is not None:
            runner.rolled_back(history, now)
            runner.ring.leave(placed.left_by_all)
            if runner.core.applied.building and key not in self._fillable:
                runner.lose(f"build {placed.build} ended without it", now)
            return
        if placed.filling is not None and self._folder.copy_id(key) != placed.copy:
            self._fillings.fill(placed.filling)
            return
        try:
            runner = self._open(key, placed, history)
        except RetryableError as error:
            log.warning("slice %s/%d cannot be opened: %s", *key, error)
            self._broken[key] = error.message
            return
        except _LostError as error:
            self._broken.pop(key, None)
            self._lost[key] = _Lost(placed.build, placed.copy, str(error), history.incarnation)
            log.error("slice %s/%d is lost: %s", *key, error)
            return
        self._broken.pop(key, None)
        runner.ring.leave(placed.left_by_all)
        self.runners[key] = runner
        self._copies[key] = placed.copy
        self._changed()
        runner.start(now)

    def _open(self, key: SliceKey, placed: Placed, history: History) -> SliceRunner:
        """The slice with what is on disk, or begun anew.

        Raises:
            RetryableError: it cannot be opened for now.
            _LostError: what is on disk is no use, and it may not be begun anew.
        """
        path, record, build = self._folder.slice_folder(key), placed.record, placed.build
        fillable = key in self._fillable
        if not fillable and not path.exists():
            raise _LostError(
                "the slice was damaged, and set aside"
                if self._folder.aside(key).exists()
                else "the slice's data is not on this node"
            )
        if not fillable and (there := self._folder.copy_id(key)) != placed.copy:
            raise _LostError(f"the slice's data is of copy {there or 'none'}, not {placed.copy or 'none'}")
        empty = Timestamp({}, history.topic_id)
        initial = Applied(empty, incarnation=history.incarnation, build=build, building=True)
        store = self._open_store(key, initial)
        if (
            store.applied.build != build
            or self._folder.copy_id(key) != placed.copy
            or (store.applied.building and not fillable)
        ):
            if not fillable:
                store.close()
                raise _LostError(f"the slice's data is of build {store.applied.build}, not {build}")
            log.info("slice %s/%d of build %s is begun anew", *key, store.applied.build)
            store = self._begin_anew(key, store, initial)
        return SliceRunner(
            key,
            record.keyspace,
            store,
            self._open_spool(path / "chunks"),
            self._limits(),
            self._settings.snapshots_kept,
            self._reading,
            self._acknowledge,
            self._metrics,
            self._node.control.term,
            history,
            lambda old, empty: self._begin_anew(key, old, empty),
            watch_of(record.definition, self._unique_limits, self._node.control.term),
            record.version,
            WriteLoad(key[1], record.definition),
        )

    def _open_store(self, key: SliceKey, initial: Applied) -> SliceStore:
        """What is on disk, else a new store; a damaged one is set aside.

        Raises:
            RetryableError: it cannot be opened for now.
            _LostError: it is damaged.
        """
        try:
            return self._store_of(key, initial)
        except StoreDamagedError as error:
            self._folder.set_aside(key)
            if key not in self._fillable:
                raise _LostError(error.message) from error
            log.error("slice %s/%d begins anew: %s", *key, error)
            return self._store_of(key, initial)

    def _begin_anew(self, key: SliceKey, old: SliceStore, initial: Applied) -> SliceStore:
        """An empty store in the place of a slice's."""
        self._scrubber.leave(key)
        old.destroy()
        return self._store_of(key, initial)

    def _store_of(self, key: SliceKey, initial: Applied) -> SliceStore:
        settings = in_turn(self._store_settings, key)
        return self._make_store(self._folder.slice_folder(key), initial, settings, self._folds)

    def _put_away(self, runner: SliceRunner) -> None:
        """A slice that runs is LOST: close it."""
        key, core = runner.key, runner.core
        del self.runners[key]
        self._scrubber.leave(key)
        runner.close()
        if runner.damaged:
            self._folder.set_aside(key)
        if runner.damaged and key in self._fillable:
            self._broken[key] = core.reason
        else:
            self._lost[key] = _Lost(
                core.applied.build, self._copies.get(key, ""), core.reason, core.incarnation
            )
        self._changed()

    def _stop(self, key: SliceKey, placed: Placed | None) -> None:
        runner = self.runners.pop(key)
        self._scrubber.leave(key)
        if placed is not None and placed.keeps:
            runner.close()
        else:
            log.info("deleting slice %s/%d", *key)
            runner.destroy()
            self._folder.remove(key)
        if not any(index == key[0] for index, _ in self.runners):
            self._node.control.forget_index(key[0])

    def _changed(self) -> None:
        self.runners = dict(sorted(self.runners.items()))
        rings = [(key, runner.ring) for key, runner in self.runners.items()]
        exports = {key: partial(_export, runner) for key, runner in self.runners.items()}
        loads = {key: runner.load for key, runner in self.runners.items()}
        self._node.show_slices(rings, exports, loads)
        limits = self._limits()
        for runner in self.runners.values():
            runner.set_limits(limits)

    def _limits(self) -> SliceLimits:
        settings, slices = self._settings, max(1, len(self.runners))
        documents = min(settings.slice_queue_documents, settings.node_queue_documents // slices)
        size = min(settings.slice_queue_bytes, settings.node_queue_bytes // slices)
        return SliceLimits(
            max(_LEAST_DOCUMENTS, documents), max(_LEAST_BYTES, size), gap_ms=settings.gap_limit_s * 1_000
        )


def _export(runner: SliceRunner) -> StoreExport:
    return runner.store.export()  # of whichever store it has by then
