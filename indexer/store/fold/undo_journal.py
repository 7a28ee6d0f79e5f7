"""The undo files of a slice as its store sees them: which lead back from the base, how far, and which may go.

A damaged or missing file ends the way back there. Files that lead nowhere (of folds that never committed, of
an earlier opening, older than the settings allow) are deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from indexer.store.fold.fold import TABLES
from indexer.store.fold.undo import UNDO_FOLDER, UndoBlock, UndoStep, blocks, intact, read_step
from indexer.store.formats.state_bytes import decode_applied, decode_counts
from indexer.store.interface import Applied, Counts
from indexer.store.settings import StoreSettings


class Back(NamedTuple):
    """A state that the base can step back to from the one after it.

    Attributes:
        step: the undo file.
        applied, counts: the state.
    """

    step: UndoStep
    applied: Applied
    counts: Counts


class UndoJournal:
    """The way back from one base. Read and changed by the store's thread; `verify` by any.

    Args:
        folder: the slice's.
    """

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        self._folder = folder / UNDO_FOLDER
        self._settings = settings
        self._ways: list[Back] = []
        self._lock = threading.Lock()

    @property
    def ways(self) -> list[Back]:
        """The states that can be gone back to, from the oldest to the newest."""
        with self._lock:
            return list(self._ways)

    def open(self, head: str) -> None:
        """Follow the chain from the file that the base names, and delete everything else."""
        found: list[Back] = []
        while head and (back := self._read(head)) is not None:
            found.append(back)
            head = back.step.previous
        with self._lock:
            self._ways = found[::-1]
            kept = {back.step.name for back in found}
        if self._folder.exists():
            for path in self._folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)

    def folded(self, head: str, now: int) -> None:
        """A fold has committed, and the base names `head` (empty: it left no way back)."""
        with self._lock:
            newest = self._ways[-1].step.name if self._ways else ""
        if head == newest:
            return
        back = self._read(head) if head else None
        if back is None or back.step.previous != newest:
            self.open(head)
        else:
            with self._lock:
                self._ways.append(back)
        self._prune(now)

    def stepped_back(self) -> None:
        """The base has gone the newest way back."""
        with self._lock:
            back = self._ways.pop()
        self._delete([back])

    def clear(self) -> None:
        """No way leads back any more."""
        with self._lock:
            ways, self._ways = self._ways, []
        self._delete(ways)

    def whole(self, back: Back) -> bool:
        """Whether an undo file is what was written; if not, the way back ends before it."""
        if intact(self._folder, back.step):
            return True
        with self._lock:
            if back in self._ways:
                self._ways = self._ways[self._ways.index(back) + 1 :]
        return False

    def verify(self) -> None:
        """Look at all files."""
        for back in reversed(self.ways):
            self.whole(back)

    def blocks(self, back: Back) -> Iterator[UndoBlock]:
        """What to put back, of a file that is `whole`."""
        return blocks(self._folder, back.step, TABLES)

    def _read(self, name: str) -> Back | None:
        step = read_step(self._folder, name)
        if step is None:
            return None
        return Back(
            step, decode_applied(bytes.fromhex(step.state)), decode_counts(bytes.fromhex(step.counts))
        )

    def _prune(self, now: int) -> None:
        """Drop the oldest ways: those of folds too long ago, and those for which there is no room.

        The state that the oldest fold kept goes back to was durable when that fold ran, so it is at least
        as old as the setting asks for.
        """
        oldest = now - 1_000 * self._settings.undo_s
        left = self._settings.undo_bytes
        with self._lock:
            ways = self._ways
            first = len(ways)
            while first and ways[first - 1].step.at >= oldest and ways[first - 1].step.body_bytes <= left:
                first -= 1
                left -= ways[first].step.body_bytes
            self._ways, dropped = ways[first:], ways[:first]
        self._delete(dropped)

    def _delete(self, ways: list[Back]) -> None:
        for back in ways:
            (self._folder / back.step.name).unlink(missing_ok=True)
