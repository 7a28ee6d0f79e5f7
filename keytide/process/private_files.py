"""Files that only the user whom a process runs as can read: they hold keys, included columns, secrets."""

from __future__ import annotations

import os
from pathlib import Path

from keytide.errors import ConfigurationError

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def private_folder(folder: Path, setting: str) -> None:
    """Make a data folder, or take it back from others: releases before this one left it open to all.

    Args:
        setting: what names it, for the message.

    Raises:
        ConfigurationError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
        if folder.stat().st_mode & 0o077:
            _take_back(folder)
    except OSError as error:
        raise ConfigurationError(
            f"the data folder {folder} cannot be used: {error.strerror}",
            next_step=f"name another one ({setting}), or let this user write to it",
        ) from error


def _take_back(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        os.chmod(path, FOLDER_MODE)
        for name in files:
            file = os.path.join(path, name)
            if not os.path.islink(file):
                os.chmod(file, os.stat(file).st_mode & FOLDER_MODE)
