"""Opening LMDB environments, keeping room on the disk for them, and their errors in our families.

Theory of operation
===================
Environments are opened with a writable memory map. A fold then needs next to no memory of its own (measured:
40 MB against 560 MB without) and small commits take half the time. The price: writing to a page for which the
disk has no room is not an error but a signal that ends the process. So a writer first makes sure of the room
(`Room`): it has the file system allocate what the commit can need at most, which fails cleanly.

The data file is sparse and as large as the map; what it takes on disk is what was written or reserved. What
a commit can need at most is several times what most need, so what a large one did not use is given back.

Read transactions are not bound to threads (py-lmdb always opens with MDB_NOTLS), write transactions are.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from indexer.store.files.pages import DamagedError
from indexer.store.fold.fold import LMDB_DAMAGE
from indexer.store.interface import StoreDamagedError
from indexer.store.settings import MIB, StoreSettings
from keytide.errors import RetryableError
from keytide.process.private_files import FILE_MODE

FORMAT: Final = b"keytide-slice-1"
"""Names the layout of tables and records."""
_SPARE_PAGES: Final = 64
"""Beyond the last page in use: for commits of a few rows, before which nobody makes room."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of Linux's fallocate."""
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)


class Tables(NamedTuple):
    """The named databases of one environment.

    Attributes:
        forward: entry key -> tag, value.
        long: long key -> tag, entry key (with its length before it), value.
        back: document id -> record.
        skips: (partition, offset) -> line.
        meta: see `fold`.
    """

    forward: Any
    long: Any
    back: Any
    skips: Any
    meta: Any


def open_environment(
    folder: Path, map_bytes: int, settings: StoreSettings, *, sync: bool
) -> tuple[lmdb.Environment, Tables]:
    """Open or create the environment in `folder`.

    Raises:
        RetryableError: the disk is full.
        StoreDamagedError: there is something else than an environment.
    """
    with disk_errors(folder):
        environment = lmdb.open(
            str(folder),
            map_size=map_bytes,
            mode=FILE_MODE,
            max_dbs=len(Tables._fields),
            max_readers=settings.max_readers,
            writemap=True,
            sync=sync,
            metasync=sync,
        )
        try:
            with environment.begin(write=True) as transaction:
                tables = Tables(*(environment.open_db(n.encode(), transaction) for n in Tables._fields))
        except BaseException:
            environment.close()
            raise
    return environment, tables


def follow_environment(folder: Path, map_bytes: int) -> tuple[lmdb.Environment, Tables]:
    """Open, to read, an environment that another process has open, with a map as large as there: a writable
    map shares its pages with this one, so what is committed there can be read here at once.

    Raises:
        StoreDamagedError: there is something else than an environment.
    """
    with disk_errors(folder):
        environment = lmdb.open(
            str(folder), map_size=map_bytes, max_dbs=len(Tables._fields), readonly=True, create=False
        )
        try:
            tables = Tables(*(environment.open_db(n.encode(), create=False) for n in Tables._fields))
        except BaseException:
            environment.close()
            raise
    return environment, tables


class Room:
    """Room on the disk for the writes of one environment.

    Args:
        reserve_bytes: what must stay free on the disk beyond that.
    """

    def __init__(self, environment: lmdb.Environment, folder: Path, reserve_bytes: int) -> None:
        self._environment = environment
        self._file = folder / "data.mdb"
        self._reserve = reserve_bytes
        self._page = int(environment.stat()["psize"])
        self._allocated = 0

    def make(self, rows: int, row_bytes: int) -> None:
        """Allocate what a commit can need at most: a copy of every leaf that it touches, a split of each, and
        new pages half full.

        Args:
            rows: rows to put or delete in the whole transaction.
            row_bytes: their keys and values together.

        Raises:
            OSError: there is no room; nothing was written.
        """
        used = self.used_bytes()
        touched = min(rows * self._page, used)
        need = used + touched * 9 // 4 + 3 * (row_bytes + 32 * rows) + _SPARE_PAGES * self._page
        if need <= self._allocated:
            return
        need = (need // MIB + 1) * MIB
        start = (
            self._allocated
        )  # not `used`: below it there may be holes, pages taken and given back unwritten
        free = free_bytes(self._file.parent)
        if free < self._reserve + need - max(start, used):
            raise OSError(errno.ENOSPC, f"{free // MIB} MiB left, {self._reserve // MIB} of them reserved")
        descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, start, need - start)
        finally:
            os.close(descriptor)
        self._allocated = need

    def give_back(self) -> None:
        """Free what was allocated behind the last page in use, after a commit and before another writer's
        (the fold worker writes to the same base). Without Linux, and where that fails, it stays allocated.

        A million entries that were loaded in eight micro-batches held 1,547 MB of disk, 513 of them in use.
        """
        keep = self.used_bytes() + _SPARE_PAGES * self._page
        if self._allocated <= keep or _fallocate is None:
            return
        where = (ctypes.c_int64(keep), ctypes.c_int64(self._allocated - keep))
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            try:
                failed = _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, *where)
            finally:
                os.close(descriptor)
        except OSError:
            return  # it is only thrift
        if not failed:  # (a file system without holes keeps it)
            self._allocated = keep

    def used_bytes(self) -> int:
        """From the start of the file to its last page in use."""
        return int(self._environment.info()["last_pgno"] + 1) * self._page


def free_bytes(folder: Path) -> int:
    """Bytes that this process may still write on the folder's file system."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def allocated_bytes(folder: Path) -> int:
    """Bytes on disk of the files in a folder (sparse files count what is allocated)."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted since it was listed
    return total


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of LMDB and of the file system into ours: "disk full" and "map full" into a
    `RetryableError`, what tells of damage into a `StoreDamagedError`."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise RetryableError(
            f"the address space of {folder} is used up",
            problem_type="disk-full",
            next_step="raise the map size in the settings and restart the node",
        ) from error
    except lmdb.DiskError as error:
        raise _disk_full(folder, error) from error
    except DAMAGE as error:
        raise damaged(folder, error) from error
    except (lmdb.Error, OSError) as error:
        code = error.errno if isinstance(error, OSError) else error.code
        if abs(code or 0) == errno.EIO:
            raise damaged(folder, error) from error
        if abs(code or 0) not in _FULL:
            raise
        raise _disk_full(folder, error) from error


DAMAGE: Final = (DamagedError, *LMDB_DAMAGE)
"""Errors that tell of damage."""


def damaged(folder: Path, error: Exception) -> StoreDamagedError:
    """`error`, one of `DAMAGE` or an error of the disk itself, in our family."""
    return StoreDamagedError(
        f"{folder}: {error}", next_step="the slice is rebuilt; look after the disk if it happens again"
    )


def _disk_full(folder: Path, error: Exception) -> RetryableError:
    return RetryableError(
        f"no room on the disk of {folder}: {error}",
        problem_type="disk-full",
        next_step="free some disk space; work goes on by itself",
    )
