"""Undo files: what a fold overwrote in the base, so that the base can step back over it (R33).

Theory of operation
===================
A fold writes one file before it commits: for every row that it changes the old value, or that there was none,
and the state (`Applied`, counts) before it. The file reaches the disk, then the commit, in which the base's
meta table names the file (`fold.UNDO_KEY`). The file names the one before it. So the files that lead back
from a state are a chain that begins in that state; a file of a fold that never committed is in no chain.

    file    blocks, footer (JSON), trailer: bytes of the footer, digest of the footer, magic
    block   table, rows with an old value, rows without, bytes of keys, bytes of values;
            u16 per key, u32 per value, keys (those with an old value first), values

This module runs in the fold worker: it imports no lmdb, numpy or msgspec.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from struct import Struct, error
from typing import IO, Final, NamedTuple

import xxhash

from indexer.store.files.pages import DamagedError

UNDO_FOLDER: Final = "undo"
NEXT_UNDO_FILE: Final = "next"

_MAGIC: Final = b"KTUNDO01"
_BLOCK: Final = Struct("<BIIQQ")
_TRAILER: Final = Struct("<QQ8s")

Row = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class UndoStep:
    """One step back: the footer of an undo file.

    Attributes:
        name: of the file.
        previous: the name of the one before it, empty when there is none.
        sequence: of the state before the fold (the filter asks, see `filter`).
        at: milliseconds, when the fold ran.
        state, counts: of the state before the fold, in hexadecimal.
        rows, row_bytes: how much a step back writes.
        body_bytes, body_digest: of the blocks.
    """

    name: str
    previous: str
    sequence: int
    at: int
    state: str
    counts: str
    rows: int
    row_bytes: int
    body_bytes: int
    body_digest: int


class UndoBlock(NamedTuple):
    """Rows of one table, by ascending key.

    Attributes:
        table: its name.
        old: rows to put back.
        new: keys to take away again.
    """

    table: bytes
    old: list[Row]
    new: list[bytes]


class UndoWriter:
    """Writes the undo file of one fold.

    Args:
        folder: of the slice's undo files; made if missing.
        tables: names of the tables, in a fixed order.
        limit_bytes: a larger file is given up: `full` is true then.

    Attributes:
        no_room: it was given up because the disk is nearly full.
    """

    def __init__(self, folder: Path, tables: Sequence[bytes], limit_bytes: int) -> None:
        folder.mkdir(exist_ok=True)
        self.full = self.no_room = False
        self._folder = folder
        self._tables = list(tables)
        self._limit = limit_bytes
        self._digest = xxhash.xxh3_64()
        self._bytes = self._rows = self._row_bytes = 0
        self._file: IO[bytes] = (folder / NEXT_UNDO_FILE).open("wb")

    def add(self, table: bytes, old: Sequence[Row], new: Sequence[bytes]) -> None:
        """Rows that a block of the fold changes: those that were there, and keys of those that were not."""
        if self.full or not (old or new):
            return
        keys = [key for key, _ in old]
        keys += new
        values = [value for _, value in old]
        key_lengths, value_lengths = array("H", map(len, keys)), array("I", map(len, values))
        key_bytes, value_bytes = b"".join(keys), b"".join(values)
        head = _BLOCK.pack(self._tables.index(table), len(old), len(new), len(key_bytes), len(value_bytes))
        for piece in (head, key_lengths.tobytes(), value_lengths.tobytes(), key_bytes, value_bytes):
            self._digest.update(piece)
            self._file.write(piece)
            self._bytes += len(piece)
        self._rows += len(keys)
        self._row_bytes += len(key_bytes) + len(value_bytes)
        self.full = self._bytes > self._limit

    def finish(
        self, name: str, previous: str, sequence: int, at: int, state: bytes, counts: bytes, *, sync: bool
    ) -> None:
        """Put the file in its place; on return it has reached the disk, if wanted."""
        step = UndoStep(
            name, previous, sequence, at, state.hex(), counts.hex(),
            self._rows, self._row_bytes, self._bytes, self._digest.intdigest(),
        )  # fmt: skip
        footer = json.dumps(asdict(step)).encode()
        self._file.write(footer + _TRAILER.pack(len(footer), xxhash.xxh3_64_intdigest(footer), _MAGIC))
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._folder / NEXT_UNDO_FILE, self._folder / name)
        if sync:
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def leave_room(self) -> None:
        """Write no more: the disk is nearly full."""
        self.full = self.no_room = True

    def give_up(self) -> None:
        """No file after all."""
        self._file.close()
        (self._folder / NEXT_UNDO_FILE).unlink(missing_ok=True)


def read_step(folder: Path, name: str) -> UndoStep | None:
    """The footer of an undo file; None when the file is missing or damaged (blocks are not read)."""
    try:
        with (folder / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TRAILER.size))
            footer_bytes, digest, magic = _TRAILER.unpack(file.read())
            footer_bytes = min(footer_bytes, size - _TRAILER.size)
            file.seek(size - _TRAILER.size - footer_bytes)
            footer = file.read(footer_bytes)
    except (OSError, error):
        return None
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(footer) != digest:
        return None
    step = UndoStep(**json.loads(footer))
    whole = step.body_bytes + len(footer) + _TRAILER.size == size and step.name == name
    return step if whole else None


def intact(folder: Path, step: UndoStep) -> bool:
    """Whether the blocks of an undo file are there and what was written."""
    digest = xxhash.xxh3_64()
    left = step.body_bytes
    try:
        with (folder / step.name).open("rb") as file:
            while left and (piece := file.read(min(left, 1 << 20))):
                digest.update(piece)
                left -= len(piece)
    except OSError:
        return False
    return not left and digest.intdigest() == step.body_digest


def blocks(folder: Path, step: UndoStep, tables: Sequence[bytes]) -> Iterator[UndoBlock]:
    """The blocks of an undo file that is intact.

    Raises:
        DamagedError: it is not.
    """
    left = step.body_bytes
    with (folder / step.name).open("rb") as file:
        while left > 0:
            head = file.read(_BLOCK.size)
            if len(head) < _BLOCK.size:
                raise DamagedError(f"{folder / step.name} ends within a block")
            table, old, new, key_bytes, value_bytes = _BLOCK.unpack(head)
            size = 2 * (old + new) + 4 * old + key_bytes + value_bytes
            data = file.read(min(size, left))
            if len(data) < size or table >= len(tables):
                raise DamagedError(f"{folder / step.name} ends within a block")
            left -= len(head) + size
            lengths = 2 * (old + new)
            keys = _cut(array("H", data[:lengths]), data, lengths + 4 * old)
            values = _cut(array("I", data[lengths : lengths + 4 * old]), data, lengths + 4 * old + key_bytes)
            yield UndoBlock(tables[table], list(zip(keys[:old], values, strict=True)), keys[old:])


def _cut(lengths: array[int], data: bytes, begin: int) -> list[bytes]:
    pieces = []
    for length in lengths:
        pieces.append(data[begin : begin + length])
        begin += length
    return pieces
