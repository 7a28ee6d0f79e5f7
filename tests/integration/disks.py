"""Small disks: a tmpfs of its own on a folder, which is filled with ballast. Mounting needs root."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

MIB: Final = 1024 * 1024
NODE_RESERVE: Final = 256 * MIB
"""What a node leaves free; folds may use three quarters of it."""


class SmallDisk:
    """A file system of its own on a folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._size = size
        self._ballast = folder / "ballast"

    def mount(self) -> None:
        self.folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            pytest.skip(f"a small disk needs the right to mount one: {run.stderr.strip()}")

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @contextmanager
    def full(self, left: int) -> Iterator[None]:
        """While the block runs, only so many bytes are free."""
        try:
            with self._ballast.open("wb", buffering=0) as file:
                try:
                    while (more := shutil.disk_usage(self.folder).free - left) > 0:
                        file.write(bytes(min(more, MIB)))
                except OSError as error:  # others write there, too, and took what was left
                    if error.errno != errno.ENOSPC:
                        raise
            yield
        finally:
            self._ballast.unlink()
