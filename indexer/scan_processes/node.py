"""What a scan process sees of its node: `indexer.view.NodeView` over what it has pinned.

It hears the dictionary and the control topic from the node, by the same parts as nodes and gateways hear them
from Kafka, and is under the node's name. It reads nothing but what is pinned here, as one (`joint`) or slice
by slice.

The thread that listens to the node pins and drops; the event loop reads, and threads read what takes longer.
One short lock per slice.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import lmdb

from indexer.hosting.node import ServingNode
from indexer.hosting.snapshot_reader import JointReader, OpenSnapshot, ReaderCounts, SnapshotReader
from indexer.ingest.metadata import MetadataFeed
from indexer.scan_processes.channel import read
from indexer.scan_processes.core.messages import (
    Alive,
    Closed,
    ControlRecord,
    DictionaryChange,
    Dropped,
    Kept,
    Ping,
    Sample,
    SliceKey,
    ToScanProcess,
    Welcome,
    pieces,
    told_decoder,
)
from indexer.scan_processes.core.pins import PinnableLevel, Pins
from indexer.store.lmdb.levels import FollowedLevel, View, file_of
from indexer.store.lmdb.snapshot import LmdbSnapshot
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import decode_record
from keytide.errors import KeytideError

log = logging.getLogger(__name__)

SAMPLES_S: Final = 1.0
"""Between two looks at the metrics."""


class SliceSnapshots:
    """The snapshots of a slice that are pinned here (`indexer.hosting.snapshot_reader.HoldsSnapshots`)."""

    def __init__(self) -> None:
        self._alone = ReaderCounts()
        self._numbered: dict[int, OpenSnapshot] = {}
        self.newest = -1
        self.reads = 0

    # --- the listening thread: `indexer.scan_processes.core.pins.PinnedRing` --------------------------------

    def pin(self, told: Kept, views: Sequence[View]) -> None:
        snapshot = OpenSnapshot(LmdbSnapshot(views, told.applied, told.counts), told.number)
        with self._alone:
            self._drop(told.number)
            self._numbered[told.number] = snapshot
            self.newest = max(self.newest, told.number)

    def miss(self, number: int) -> None:
        with self._alone:
            self.newest = max(self.newest, number)
            self._drop(number)

    def drop(self, number: int) -> None:
        with self._alone:
            self._drop(number)

    def close(self) -> None:
        with self._alone:
            self.newest = -1
            for number in list(self._numbered):
                self._drop(number)

    def _drop(self, number: int) -> None:
        if (one := self._numbered.pop(number, None)) is not None:
            one.drop()

    # --- the event loop ---------------------------------------------------------------------------------

    def find(self, number: int) -> OpenSnapshot | None:
        return self._numbered.get(number)

    def acquire(self, number: int) -> SnapshotReader | None:
        """As a ring does; None when it is not pinned."""
        found = self.find(number)
        if found is None or not self.hold(found):
            return None
        return SnapshotReader(found.snapshot, number, self.report_damage, partial(self.give_back, found))

    def hold(self, found: OpenSnapshot, reads: int = 1) -> bool:
        with self._alone:
            if found.dropped:
                return False
            found.readers += 1
            self.reads += reads
            return True

    def give_back(self, held: OpenSnapshot) -> None:
        self._alone.give_back(held)

    def report_damage(self, reason: str) -> None:
        """The node finds out by itself: what fails here it is asked next."""
        log.warning("passed on: %s", reason)

    def take_reads(self) -> int:
        """How often it was read since this was last asked."""
        with self._alone:
            reads, self.reads = self.reads, 0
            return reads


class _GoneLevel:
    """One that was deleted before it could be opened."""

    def at(self, _: int) -> View | None:
        return None

    def retire(self) -> None: ...


class FollowedFiles:
    """The levels that this process has open."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], FollowedLevel] = {}

    def open(self, map_bytes: int, folder: int) -> PinnableLevel[View]:
        """The level in a folder, whose descriptor is closed."""
        way = Path(f"/proc/self/fd/{folder}")
        try:
            file = file_of(way, folder)
            level = self._open.get(file)
            if level is None or not level.revive():
                level = FollowedLevel(way, map_bytes)
        except (lmdb.Error, OSError, KeytideError) as error:
            log.debug("a level is gone before it was read: %s", error)  # counted as missed
            return _GoneLevel()
        finally:
            os.close(folder)
        self._open = {one: there for one, there in self._open.items() if not there.closed}
        self._open[file] = level
        return level


class PinnedNode(ServingNode):
    """The node, as far as it can be read from here.

    Attributes:
        pins: what is pinned.
    """

    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self._slices: dict[SliceKey, SliceSnapshots] = {}
        self.pins: Pins[View] = Pins(FollowedFiles().open, self._begin, View.release)

    def _begin(self, key: SliceKey) -> SliceSnapshots:
        self._slices[key] = made = SliceSnapshots()
        return made

    def joint(self, index: str, slices: Sequence[int], number: int) -> JointReader | None:
        rings = [self._slices.get((index, one)) for one in slices]
        here = [ring for ring in rings if ring is not None]
        return JointReader.of(here, number) if len(here) == len(slices) else None

    def acquire(self, index: str, slice_number: int, number: int) -> SnapshotReader | None:
        ring = self._slices.get((index, slice_number))
        return None if ring is None else ring.acquire(number)

    def newest(self, index: str, slice_number: int) -> int:
        ring = self._slices.get((index, slice_number))
        return -1 if ring is None else ring.newest

    def end_slice(self, key: SliceKey) -> None:
        """The node has closed it."""
        self._slices.pop(key, None)

    def take_reads(self) -> list[tuple[SliceKey, int]]:
        """How often each slice was read since this was last asked."""
        read = [(key, ring.take_reads()) for key, ring in list(self._slices.items())]
        return [one for one in read if one[1]]


class NodeListener:
    """Listens to the node, and answers its pings. One thread.

    Args:
        end: of the channel.
        view: what scans see.
        serving: whether requests are answered.
        passed_on: how many requests the node was left to answer.
        samples: of this process's metrics.
    """

    def __init__(
        self,
        end: socket.socket,
        view: PinnedNode,
        serving: Callable[[], bool],
        passed_on: Callable[[], int],
        samples: Callable[[], list[Sample]],
    ) -> None:
        self._end, self._view = end, view
        self._serving, self._passed_on, self._samples = serving, passed_on, samples
        self._sampled_at = 0.0
        self._catalog = Catalog()
        self._hearing = MetadataFeed(view)

    def run(self, stop: threading.Event, started: threading.Event) -> None:
        """Listen until `stop` is set, or the node is gone: then the process ends.

        Args:
            started: set once the dictionary was read.
        """
        for message, folders in read(self._end, stop):
            told = told_decoder.decode(message)
            if isinstance(told, Kept):
                self._view.pins.kept(told, folders)
                continue
            self._heard(told)
            if isinstance(told, DictionaryChange) and self._hearing.dictionary(self._catalog.copy()):
                started.set()
        if not stop.is_set():
            os._exit(0)  # whatever it does: nobody may answer for a node that is gone

    def _heard(self, told: ToScanProcess) -> None:
        match told:
            case Dropped():
                self._view.pins.dropped(told)
            case Closed():
                self._view.pins.closed(told)
                self._view.end_slice(told.key)
            case ControlRecord(position, data):
                self._hearing.control(position, data)
                self._view.passed(time.monotonic())
            case DictionaryChange(offset, changed, removed):
                for key, record in changed.items():
                    self._catalog.put(key, decode_record(key, record))
                for key in removed:
                    self._catalog.remove(key)
                self._catalog.offset = offset
            case Ping():
                self._answer()
            case Welcome() | Kept():
                pass

    def _answer(self) -> None:
        now = time.monotonic()
        samples: list[Sample] = []
        if now - self._sampled_at >= SAMPLES_S:
            self._sampled_at, samples = now, self._samples()
        pins = self._view.pins
        alive = Alive(
            self._serving(), pins.pinned, pins.missed, self._passed_on(), self._view.take_reads(), samples
        )
        with suppress(ConnectionError):  # (that the node is gone is seen by who listens)
            for piece in pieces(alive):
                self._end.send(piece)
