"""Copies of slices that are filled here from another node's.

A `CopyRecord` of the dictionary names this node as its target. Until it is whole, the copy lies in a folder
of its own, beside the slice's, where a restart finds it again; then it takes the place of the slice's, and is
opened like any other. Who carries rows from node to node is a `CopyFiller` (`indexer.copying`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from indexer.hosting.core.slice_status import absent
from indexer.hosting.node_folder import NodeFolder
from indexer.hosting.slice_runner import SliceKey
from keytide.catalog.copies import CopyRecord
from keytide.wire.messages import SliceStatus

log = logging.getLogger(__name__)


class FillProgress(NamedTuple):
    """How far a copy is.

    Attributes:
        rows: rows of all tables that it has.
        rows_total: those that its source has; 0 while that is not known.
        error: why it waits at the moment, "" when it does not.
        done: it is whole, and its folder closed.
    """

    rows: int = 0
    rows_total: int = 0
    error: str = ""
    done: bool = False


class CopyFiller(Protocol):
    """Carries the rows of copies from their sources, beside everything else. All methods return at once."""

    def begin(self, copy: CopyRecord, folder: Path) -> None:
        """Fill what is in a folder on, or from the beginning. Again with the same id: its record has changed
        (it is filled from another source, or at another rate), and what it has stays."""
        ...

    def look(self, id_: str) -> FillProgress:
        """How far a copy is; one that was not begun has nothing."""
        ...

    def leave(self, id_: str) -> None:
        """Stop; what is on the disk stays, and may be deleted. What is at hand is still finished, and
        another copy in the same folder begins when that is done."""
        ...


class Fillings:
    """The copies of a node that are not whole yet. Used by the ingest thread.

    Args:
        filler: carries their rows.
    """

    def __init__(self, folder: NodeFolder, filler: CopyFiller) -> None:
        self._folder = folder
        self._filler = filler
        self._copies: dict[SliceKey, CopyRecord] = {}

    def keep(self, wanted: Mapping[SliceKey, CopyRecord]) -> None:
        """Give up all but these."""
        for key, copy in list(self._copies.items()):
            if key not in wanted or wanted[key].id != copy.id:
                log.info("copy %s of slice %s/%d is filled no further", copy.id, *key)
                self._filler.leave(copy.id)
                self._folder.drop_filling(key)
                del self._copies[key]

    def fill(self, copy: CopyRecord) -> None:
        """Begin, or go on; hearing it again changes nothing."""
        key = copy.index, copy.slice
        if self._copies.get(key) != copy:
            self._copies[key] = copy
            self._filler.begin(copy, self._folder.begin_filling(copy))

    def take_whole(self) -> list[SliceKey]:
        """The slices whose copies are whole by now. They lie in their places, and are nothing of this any
        more."""
        whole = [key for key, copy in self._copies.items() if self._filler.look(copy.id).done]
        for key in whole:
            self._filler.leave(self._copies.pop(key).id)
            self._folder.put_filled(key)
        return whole

    def statuses(self) -> list[SliceStatus]:
        """For the node's heartbeat, in order."""
        return [_status(copy, self._filler.look(copy.id)) for _, copy in sorted(self._copies.items())]

    @property
    def incarnations(self) -> dict[SliceKey, int]:
        """Those that are not whole yet, each with the incarnation that its record names."""
        return {key: copy.incarnation for key, copy in sorted(self._copies.items())}

    def close(self) -> None:
        """Stop; what is on the disk stays."""
        for copy in self._copies.values():
            self._filler.leave(copy.id)
        self._copies.clear()


def _status(copy: CopyRecord, progress: FillProgress) -> SliceStatus:
    key = copy.index, copy.slice
    told = absent(key, "FILLING", progress.error, copy.incarnation, copy.id)
    return replace(told, rows=progress.rows, rows_total=progress.rows_total)
