"""What a node tells its scan processes: snapshots that its slices hold, the dictionary, the control topic.

Theory of operation
===================
Every ring of snapshots tells of what it keeps and drops as it does so, under its lock: so each process hears
of a slice in the order in which it happened, and who comes later hears first what is held by then. An open
folder goes along with the first commit of each level, for names are used again, and a descriptor leads to the
folder that was meant. It is compared with the file that the level has open before it goes.

Called by the ingest thread, by whoever finds damage, and by the supervisor's thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from indexer.hosting.snapshots import SnapshotRing
from indexer.scan_processes.channel import Channel
from indexer.scan_processes.core.messages import (
    Closed,
    ControlRecord,
    DictionaryChange,
    Dropped,
    Kept,
    LevelAt,
    SliceKey,
)
from indexer.store.interface import StoreSnapshot
from indexer.store.lmdb.levels import Level, file_of
from indexer.store.lmdb.snapshot import LmdbSnapshot
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import Record, encode_record

log = logging.getLogger(__name__)

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Listening:
    """One scan process, as it is told things.

    Attributes:
        channel: to it.
        shown: of each slice that it is told of, the levels that it knows.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.shown: dict[SliceKey, set[int]] = {}
        self.records: dict[str, Record] = {}
        """Of the dictionary, as it knows it."""


class Telling:
    """Tells all scan processes of a node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Of what is told beside slices. Taken within a ring's lock, never around one."""
        self._listening: tuple[Listening, ...] = ()
        self._rings: dict[SliceKey, SnapshotRing] = {}
        self._levels: WeakKeyDictionary[Level, int] = WeakKeyDictionary()
        self._numbered = 0
        self._catalog = Catalog()

    # --- the ingest thread ----------------------------------------------------------------------------

    def watch(self, key: SliceKey, ring: SnapshotRing) -> None:
        """A slice begins to run here."""
        with self._lock:
            self._rings[key] = ring
        ring.watch(_RingTelling(self, key, None))

    def control(self, position: int, data: bytes) -> None:
        """A record of the control topic was read."""
        message = ControlRecord(position, data)
        for one in self._listening:
            one.channel.tell(message)

    def dictionary(self, catalog: Catalog) -> None:
        """The dictionary has changed; `catalog` is a copy that nobody changes any more."""
        with self._lock:
            self._catalog = catalog
            for one in self._listening:
                self._tell_dictionary(one)

    # --- the supervisor's thread ----------------------------------------------------------------------

    def join(self, channel: Channel) -> Listening:
        """Tell a new scan process all that holds, and from now on what changes."""
        joining = Listening(channel)
        with self._lock:
            self._listening = (*self._listening, joining)
            self._tell_dictionary(joining)
            rings = list(self._rings.items())
        for key, ring in rings:
            ring.show(_RingTelling(self, key, joining))
        return joining

    def leave(self, leaving: Listening) -> None:
        """A scan process is gone: what it has kept from being reused is free again."""
        with self._lock:
            self._listening = tuple(one for one in self._listening if one is not leaving)
            rings = list(self._rings.values())
        freed = _Freeing()
        for ring in rings:
            ring.show(freed)

    def count_reads(self, reads: Iterable[tuple[SliceKey, int]]) -> None:
        """Scan processes have read from slices so often."""
        for key, count in reads:
            ring = self._rings.get(key)
            if ring is not None:
                ring.reads += count

    # --- inside ---------------------------------------------------------------------------------------

    def _tell_dictionary(self, one: Listening) -> None:
        now, known = self._catalog.records, one.records
        changed = {key: encode_record(record) for key, record in now.items() if known.get(key) is not record}
        removed = [key for key in known if key not in now]
        one.records = dict(now)
        if changed or removed:
            one.channel.tell(DictionaryChange(self._catalog.offset, changed, removed))

    def begun(self, key: SliceKey, only: Listening | None) -> None:
        """Under the lock of the slice's ring, as the next ones."""
        for one in self._listening if only is None else (only,):
            one.shown.setdefault(key, set())

    def kept(self, key: SliceKey, number: int, snapshot: LmdbSnapshot, only: Listening | None) -> None:
        commits = snapshot.commits()
        with self._lock:
            levels = [LevelAt(self._number(level), commit, level.map_bytes) for level, commit in commits]
        for one in self._listening if only is None else (only,):
            known = one.shown.get(key)
            if known is None:
                continue  # it has joined just now, and is told of this slice in a moment
            new = [at for at in levels if at.level not in known]
            folders = _folders([level for level, _ in commits if self._levels[level] not in known])
            if folders is None:
                continue
            one.shown[key] = {at.level for at in levels}
            opened = [at.level for at in new]
            one.channel.tell(Kept(key, number, snapshot.applied, snapshot.counts, levels, opened), folders)

    def dropped(self, key: SliceKey, number: int) -> None:
        for one in self._listening:
            if key in one.shown:
                one.channel.tell(Dropped(key, number))

    def closed(self, key: SliceKey) -> None:
        with self._lock:
            self._rings.pop(key, None)
        for one in self._listening:
            if one.shown.pop(key, None) is not None:
                one.channel.tell(Closed(key))

    def _number(self, level: Level) -> int:
        number = self._levels.get(level)
        if number is None:
            self._numbered += 1
            number = self._levels[level] = self._numbered
        return number


class _RingTelling:
    """Tells all scan processes of one slice, or one of them."""

    def __init__(self, telling: Telling, key: SliceKey, only: Listening | None) -> None:
        self._telling, self._key, self._only = telling, key, only
        self._told_before = False

    def begun(self) -> None:
        self._told_before = self._only is not None and self._key in self._only.shown
        self._telling.begun(self._key, self._only)

    def kept(self, number: int, snapshot: StoreSnapshot) -> None:
        if isinstance(snapshot, LmdbSnapshot) and not self._told_before:
            self._telling.kept(self._key, number, snapshot, self._only)

    def dropped(self, number: int) -> None:
        self._telling.dropped(self._key, number)

    def closed(self) -> None:
        self._telling.closed(self._key)


class _Freeing:
    """Frees, in all levels that are read, what processes that are gone have kept."""

    def __init__(self) -> None:
        self._done: set[Level] = set()

    def begun(self) -> None: ...

    def kept(self, _: int, snapshot: StoreSnapshot) -> None:
        if isinstance(snapshot, LmdbSnapshot):
            for level, _ in snapshot.commits():
                if level not in self._done:
                    self._done.add(level)
                    level.environment.reader_check()

    def dropped(self, _: int) -> None: ...

    def closed(self) -> None: ...


def _folders(levels: Sequence[Level]) -> list[int] | None:
    """An open folder of each level; None when one is not where it was."""
    found: list[int] = []
    try:
        for level in levels:
            found.append(os.open(level.folder, _FOLDER))
            if file_of(level.folder, found[-1]) != level.file:
                raise FileNotFoundError(level.folder)
    except OSError as error:
        log.warning("a level cannot be shown to scan processes: %s", error)
        for one in found:
            os.close(one)
        return None
    return found
