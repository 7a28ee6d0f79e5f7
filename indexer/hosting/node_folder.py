"""A node's folder: its id, a lock, the cluster that its data belongs to, and a folder per slice.

<data_dir>/nodes/<name>/node-id        also the lock: one process at a time
                        cluster        id of the cluster; data of another one is never touched
                        slices/<index id>/<slice>/
                        slices/<index id>/damaged-<slice>/     set aside, one of a slice at most
                        slices/<index id>/filling-<slice>/     a copy that is being filled, until it is whole

In the folder of a copy that is or was filled from another one lies `copy`, with its id.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from indexer.hosting.slice_runner import SliceKey
from keytide.catalog.copies import CopyRecord
from keytide.errors import ConfigurationError
from keytide.process.private_files import FILE_MODE, private_folder

LOCK_WAIT_S: Final = 5.0
"""How long to wait for a process that is just ending."""
_DEFAULT: Final = "default"
_ASIDE: Final = "damaged-"
_FILLING: Final = "filling-"
_COPY_FILE: Final = "copy"


class NodeFolder:
    """Opened for as long as the process lives.

    Args:
        data_dir: of this machine's parts.
        node_id: from the settings; when empty, the id that is kept in the folder (made at first).

    Raises:
        ConfigurationError: another process uses it, or the folder is another node's.
    """

    def __init__(self, data_dir: Path, node_id: str = "") -> None:
        self.path = data_dir.absolute() / "nodes" / (node_id or _DEFAULT)
        private_folder(self.path, "data_dir")
        self._lock = os.open(self.path / "node-id", os.O_RDWR | os.O_CREAT, FILE_MODE)
        self._take_lock()
        kept = os.read(self._lock, 1_000).decode().strip()
        if node_id and kept and kept != node_id:
            raise ConfigurationError(f"{self.path} belongs to node {kept}, not {node_id}")
        self.node_id = kept or node_id or f"node-{secrets.token_hex(4)}"
        if not kept:
            os.write(self._lock, self.node_id.encode() + b"\n")
            os.fsync(self._lock)

    def check_cluster(self, cluster_id: str) -> None:
        """Note, or compare, the cluster that the data belongs to.

        Raises:
            ConfigurationError: it is another one's.
        """
        file = self.path / "cluster"
        if not file.exists():
            new = file.with_suffix(".new")
            new.write_text(cluster_id)
            new.replace(file)
        elif (kept := file.read_text().strip()) != cluster_id:
            raise ConfigurationError(
                f"{self.path} has slices of cluster {kept}, and Kafka is cluster {cluster_id}",
                next_step="name the right Kafka, or another data folder",
            )

    def slice_folder(self, key: SliceKey) -> Path:
        return self.path / "slices" / key[0] / str(key[1])

    def slices(self) -> list[SliceKey]:
        """Slices that have a folder here, be it set aside or being filled, in order."""
        found = set()
        for folder in (self.path / "slices").glob("*/*"):
            name = folder.name.removeprefix(_ASIDE).removeprefix(_FILLING)
            if name.isdigit():
                found.add((folder.parent.name, int(name)))
        return sorted(found)

    def set_aside(self, key: SliceKey) -> Path | None:
        """Keep a damaged slice's folder under another name, for people to look at, in the place of an earlier
        one; where it is now, None when there was nothing."""
        folder, aside = self.slice_folder(key), self.aside(key)
        if not folder.exists():
            return None
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        return aside

    def aside(self, key: SliceKey) -> Path:
        """Where a slice's damaged folder is kept."""
        return self.slice_folder(key).with_name(f"{_ASIDE}{key[1]}")

    def copy_id(self, key: SliceKey) -> str:
        """The id of the copy in a slice's folder, "" when a build has filled it, or there is none."""
        return _copy_id(self.slice_folder(key))

    def begin_filling(self, copy: CopyRecord) -> Path:
        """The folder to fill a copy in: with what there is of that copy, and of no other. What the slice's
        folder still has is of a copy that is lost, or was taken away, and goes."""
        key = copy.index, copy.slice
        shutil.rmtree(self.slice_folder(key), ignore_errors=True)
        folder = self._filling(key)
        if _copy_id(folder) != copy.id:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / _COPY_FILE).write_text(copy.id)
        return folder

    def put_filled(self, key: SliceKey) -> None:
        """A copy is whole: it is the slice's folder from now on."""
        self._filling(key).rename(self.slice_folder(key))

    def drop_filling(self, key: SliceKey) -> None:
        """A copy is filled no further: delete what there is of it."""
        shutil.rmtree(self._filling(key), ignore_errors=True)

    def _filling(self, key: SliceKey) -> Path:
        return self.slice_folder(key).with_name(f"{_FILLING}{key[1]}")

    def remove(self, key: SliceKey) -> None:
        """Delete a slice's folder, and its index's when that is empty."""
        folder = self.slice_folder(key)
        for one in (folder, self.aside(key), self._filling(key)):
            shutil.rmtree(one, ignore_errors=True)
        try:
            folder.parent.rmdir()
        except OSError:
            pass  # other slices of the index are here

    def disk_free(self) -> int:
        """Bytes."""
        return shutil.disk_usage(self.path).free

    def close(self) -> None:
        os.close(self._lock)

    def _take_lock(self) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    os.close(self._lock)
                    raise ConfigurationError(
                        f"another process uses {self.path}",
                        next_step="stop it, or set indexer.node_id",
                    ) from error
                time.sleep(0.05)


def _copy_id(folder: Path) -> str:
    try:
        return (folder / _COPY_FILE).read_text()
    except FileNotFoundError:
        return ""
