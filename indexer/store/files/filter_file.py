"""The file of a slice's filter of ids."""

from __future__ import annotations

import os
from pathlib import Path

from indexer.store.resolve.bloom_filter import IdFilter


def save_filter(ids: IdFilter, path: Path, sequence: int, *, sync: bool) -> None:
    """Write a filter to a file. The caller moves the file to its place.

    Args:
        sequence: of the base commit that it covers.
        sync: whether the file has reached the disk on return.

    Raises:
        OSError: the disk is full, or another error of the disk.
    """
    head, body = ids.stored(sequence)
    with path.open("wb") as file:
        file.write(head)
        file.write(body)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_filter(path: Path) -> tuple[IdFilter, int] | None:
    """A saved filter and its sequence number; None when the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return IdFilter.of_stored(data)
