"""A level: one environment of a slice, its views, and its end.

Theory of operation
===================
A *view* is a read transaction on one commit of a level, shared by all snapshots of that commit and counted.
A level makes one view per commit, on demand (`view`), and keeps it until the next commit.

A level that another process writes is followed by a `FollowedLevel`: the same files, opened to be read. LMDB
opens no read transaction on an older commit than the newest, so it gives a view of a commit only to who comes
before the next one; which commit it is tells its transaction number.

A retired level (a delta that was folded, a store that was closed) lives on until its last view is let go;
then its environment is closed and, if wanted, its folder deleted (on a thread of its own). So a snapshot
outlives folds, `close` and `destroy`, and costs a reader slot and a few microseconds.

Views are counted under a lock, because scans let go of them on other threads. The read transaction itself
is safe to read from several threads: each reader has its own cursors, and the one lazy step of LMDB in it,
looking up the named databases, is done when the view is made.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Final

import lmdb

from indexer.store.environment import Room, Tables, follow_environment, open_environment
from indexer.store.resolve.bloom_filter import IdFilter
from indexer.store.settings import StoreSettings
from keytide.errors import RetryableError, invariant
from keytide.process.worker import Worker, logged

log = logging.getLogger(__name__)


class View:
    """One commit of one level. Use `acquire` and `release` in pairs; it is born acquired by its level.

    Attributes:
        level: whose.
        commit: number of its transaction, which no other commit of the level has.
        has_large, has_large_long: whether some values of entries, and of long ones, have pages of their own:
            they are of about 2 kB and more, without a bound.
    """

    def __init__(self, level: LevelFiles) -> None:
        self.level = level
        self._transaction = level.environment.begin()
        self.commit: int = self._transaction.id()
        self.tables = level.tables
        self.ids = level.ids
        self.folder = level.folder
        self.has_long = self.has_entries = self.has_large = self.has_large_long = False
        for table in level.tables:
            status = self._transaction.stat(table)
            some, large = status["entries"] > 0, status["overflow_pages"] > 0
            if table is level.tables.long:
                self.has_long, self.has_large_long = some, large
            elif table is level.tables.forward:
                self.has_entries, self.has_large = some, large
        self._holders = 1

    def acquire(self) -> View:
        with self.level.lock:
            invariant(self._holders > 0, "Stable", "a view was taken after its last holder let go")
            self._holders += 1
        return self

    def release(self) -> None:
        with self.level.lock:
            self._holders -= 1
            if self._holders:
                return
            self._transaction.abort()
            del self._transaction  # an aborted one keeps its reader slot for as long as it is referred to
            self.level.view_gone()

    def cursor(self, table: Any) -> lmdb.Cursor[bytes]:
        return self._transaction.cursor(table)

    def get(self, key: bytes, table: Any) -> bytes | None:
        value: bytes | None = self._transaction.get(key, db=table)
        return value

    def many(self, keys: list[bytes], table: Any) -> list[tuple[bytes, bytes]]:
        """(key, value) of those of `keys` that are there; fastest with ascending keys."""
        with self._transaction.cursor(table) as cursor:
            found: list[tuple[bytes, bytes]] = cursor.getmulti(keys)
        return found


class LevelFiles:
    """One environment of a slice, whoever writes it.

    Args:
        ids: contains at least the documents in `back`; None: any may be there. A look-up asks it first.

    Attributes:
        lock: guards the views of this level; reentrant.
        closed: nobody reads from it any more.
    """

    def __init__(
        self, folder: Path, opened: tuple[lmdb.Environment, Tables], ids: IdFilter | None = None
    ) -> None:
        self.folder = folder
        self.ids = ids
        self.environment, self.tables = opened
        self.lock = threading.RLock()
        self._view: View | None = None
        self._views = 0
        self._retired = self.closed = False
        self._delete: Path | None = None

    def view(self) -> View:
        """The last commit, acquired for the caller.

        Raises:
            RetryableError: `too-many-snapshots`.
        """
        with self.lock:
            if self._view is None:
                try:
                    self._view = View(self)
                except lmdb.ReadersFullError as error:
                    raise RetryableError(
                        f"{self._views} snapshots of {self.folder} are open",
                        problem_type="too-many-snapshots",
                    ) from error
                self._views += 1
            return self._view.acquire()

    def changed(self) -> None:
        """A commit was made: the next view is a new one."""
        with self.lock:
            view, self._view = self._view, None
            if view is not None:
                view.release()

    def retire(self, delete: Path | None = None) -> None:
        """Close the environment, and delete a folder, as soon as the last view is let go."""
        with self.lock:
            self._retired = True
            self._delete = delete
            self.changed()
            self._end()

    def view_gone(self) -> None:
        """Called by a view whose last holder let go."""
        self._views -= 1
        self._end()

    def _end(self) -> None:
        if not self._retired or self._views:
            return
        self._retired, self.closed = False, True
        if self._delete is None:
            self.environment.close()
        else:
            # Unlinking some hundred megabytes takes long enough to be felt by whoever lets go last: a scan.
            # The process does not end before it is done, or files would stay behind.
            folder = self._delete
            Worker("old-delta", logged, lambda: self._dispose(folder), daemon=False).open()

    def _dispose(self, folder: Path) -> None:
        self.environment.close()
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            log.warning("%s is of no use any more, and could not be deleted", folder)


class Level(LevelFiles):
    """One that this process writes.

    Attributes:
        map_bytes: its address space.
        file: what tells its data file from all others that there are.
    """

    def __init__(
        self,
        folder: Path,
        map_bytes: int,
        settings: StoreSettings,
        *,
        sync: bool,
        ids: IdFilter | None = None,
    ) -> None:
        super().__init__(folder, open_environment(folder, map_bytes, settings, sync=sync), ids)
        self.map_bytes = map_bytes
        self.room = Room(self.environment, folder, settings.reserve_bytes)
        self.file = file_of(folder)


class FollowedLevel(LevelFiles):
    """One that another process writes.

    Args:
        folder: a way to it (`/proc/self/fd/...` does).
        map_bytes: of the level there.
    """

    def __init__(self, folder: Path, map_bytes: int) -> None:
        super().__init__(folder, follow_environment(folder, map_bytes))

    def revive(self) -> bool:
        """Undo `retire`; False when it is too late. (A process must not open a file twice.)"""
        with self.lock:
            if not self.closed:
                self._retired = False
            return not self.closed

    def at(self, commit: int) -> View | None:
        """A view of that commit, acquired for the caller; None when it is not the newest any more, or cannot
        be read here."""
        with self.lock:
            if self._view is not None and self._view.commit < commit:
                self.changed()
            try:
                view = self.view()
            except (RetryableError, lmdb.Error) as error:
                log.warning("commit %d of %s cannot be read here: %s", commit, self.folder, error)
                return None
            if view.commit == commit:
                return view
            view.release()  # the level keeps it: it is one that the writer will soon tell of
            return None


DATA: Final = "data.mdb"


def file_of(folder: Path, folder_descriptor: int | None = None) -> tuple[int, int]:
    """(device, inode) of a level's data file.

    Args:
        folder_descriptor: of an open folder, in place of `folder`.
    """
    status = os.stat(folder / DATA) if folder_descriptor is None else os.stat(DATA, dir_fd=folder_descriptor)
    return status.st_dev, status.st_ino
