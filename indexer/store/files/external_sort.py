"""Rows of any number in order of their keys, in bounded memory: an external merge sort.

Theory of operation
===================
Rows come in *runs* of a size that fits memory. Each run is sorted and, unless it stays the only one, written
to a scratch file in blocks of `BLOCK_ROWS`. Merging holds one block of every run: everything up to the
smallest of the blocks' last keys can go, and sorting pieces that are in order already is what Python's sort
does best. Rows with equal keys come out in the order in which they went in.

The scratch file has no name: it goes with the process, however that ends. Its form is Python's own
(`marshal`), for it is read by the process that wrote it and by nobody else.
"""

from __future__ import annotations

import marshal
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import IO, Final

from indexer.store.interface import Row

BLOCK_ROWS: Final = 4_096
"""About 500 kB of Python's memory per run while they are merged."""

_key = itemgetter(0)


class SortedRuns:
    """Collects runs, then gives their rows out in order. Use it once, and close it.

    Args:
        folder: where the scratch file is made.

    Attributes:
        rows: how many rows there are.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._last: list[Row] = []
        self._runs: list[list[tuple[int, int]]] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Add a run.

        Raises:
            OSError: the disk is full.
        """
        self._spill()
        self._last = sorted(rows, key=_key)
        self.rows += len(self._last)

    def _spill(self) -> None:
        """Write the run that is in memory."""
        if not self._last:
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, prefix="sorting-")  # noqa: SIM115
        places: list[tuple[int, int]] = []
        for first in range(0, len(self._last), BLOCK_ROWS):
            data = marshal.dumps(self._last[first : first + BLOCK_ROWS])
            places.append((self._file.tell(), len(data)))
            self._file.write(data)
        self._runs.append(places)
        self._last = []

    def merged(self) -> Iterator[list[Row]]:
        """All rows in order, in blocks."""
        if not self._runs:
            if self._last:
                yield self._last
            return
        self._spill()
        readers = [self._read(places) for places in self._runs]
        blocks = [next(reader, []) for reader in readers]
        while any(blocks):
            bound, first = min((block[-1][0], number) for number, block in enumerate(blocks) if block)
            ready: list[Row] = []
            for number, block in enumerate(blocks):
                # Run `first` may have more rows with that very key: those of later runs wait for them.
                cut = (bisect_right if number <= first else bisect_left)(block, bound, key=_key)
                if not cut:
                    continue
                ready += block[:cut]
                blocks[number] = block[cut:] or next(readers[number], [])
            ready.sort(key=_key)
            yield ready

    def _read(self, places: list[tuple[int, int]]) -> Iterator[list[Row]]:
        for place, size in places:
            if self._file is not None:
                self._file.seek(place)
                yield marshal.loads(self._file.read(size))

    def close(self) -> None:
        """Give the scratch file back."""
        if self._file is not None:
            self._file.close()
            self._file = None
