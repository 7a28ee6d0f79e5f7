"""Chunks of a micro-batch on disk until its end comes.

Theory of operation
===================
A micro-batch is larger than a node's memory may grow, and which chunks count is known only at its end. So
chunks go to one file, one after the other, and are read back one at a time while the batch loads: memory is
one chunk, the page cache does the rest. The file is scratch: a restart reads the queue again and begins with
an empty one. Forgotten chunks give their room back when none is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, overload

from indexer.slice.events import ChunkKey
from keytide.errors import RetryableError, invariant
from keytide.wire.messages import PutChunk, RemovalChunk, decode, encode

_ChunkT = TypeVar("_ChunkT", PutChunk, RemovalChunk)


class Spool(Protocol):
    """Where chunks wait."""

    def keep(self, key: ChunkKey, chunk: PutChunk | RemovalChunk) -> None: ...
    def puts(self, keys: Sequence[ChunkKey]) -> Sequence[PutChunk]: ...
    def removals(self, keys: Sequence[ChunkKey]) -> Sequence[RemovalChunk]: ...
    def forget(self, keys: Sequence[ChunkKey]) -> None: ...
    def forget_all(self) -> None: ...
    def close(self) -> None: ...


class ChunkSpool:
    """A scratch file of chunks.

    Args:
        path: made anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[ChunkKey, tuple[int, int]] = {}
        self._file: int | None = None
        self._end = 0
        path.unlink(missing_ok=True)

    def keep(self, key: ChunkKey, chunk: PutChunk | RemovalChunk) -> None:
        """Append a chunk.

        Raises:
            RetryableError: `disk-full`. Nothing is kept.
        """
        data = encode(chunk)
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, memoryview(data)[written:], self._end + written)
        except OSError as error:
            raise RetryableError(
                f"{self._path} cannot be written: {error.strerror}",
                problem_type="disk-full",
                next_step="make room on the disk; the build goes on by itself",
            ) from error
        self._places[key] = (self._end, len(data))
        self._end += len(data)

    def puts(self, keys: Sequence[ChunkKey]) -> Sequence[PutChunk]:
        """The chunks of these names, each read from disk when it is asked for."""
        return _Lazy(self, keys, PutChunk)

    def removals(self, keys: Sequence[ChunkKey]) -> Sequence[RemovalChunk]:
        """The chunks of these names, each read from disk when it is asked for."""
        return _Lazy(self, keys, RemovalChunk)

    def forget(self, keys: Sequence[ChunkKey]) -> None:
        """Forget chunks; the file shrinks when none is left."""
        for key in keys:
            self._places.pop(key, None)
        if not self._places and self._file is not None:
            os.ftruncate(self._file, 0)
            self._end = 0

    def forget_all(self) -> None:
        """Forget all chunks."""
        self.forget(list(self._places))

    def close(self) -> None:
        """Delete the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._places.clear()
        self._path.unlink(missing_ok=True)

    def read(self, key: ChunkKey, kind: type[_ChunkT]) -> _ChunkT:
        place = self._places.get(key)
        if place is None or self._file is None:
            raise KeyError(key)
        chunk = decode(os.pread(self._file, place[1], place[0]))
        invariant(isinstance(chunk, kind), "ChunkKept", f"{key} is a {type(chunk).__name__}")
        return chunk  # type: ignore[return-value]


class _Lazy(Sequence[_ChunkT]):
    """Chunks that are read each time they are asked for."""

    def __init__(self, spool: ChunkSpool, keys: Sequence[ChunkKey], kind: type[_ChunkT]) -> None:
        self._spool = spool
        self._keys = keys
        self._kind: type[_ChunkT] = kind

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, place: int) -> _ChunkT: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[_ChunkT]: ...
    def __getitem__(self, place: int | slice) -> _ChunkT | Sequence[_ChunkT]:
        if isinstance(place, slice):
            return _Lazy(self._spool, self._keys[place], self._kind)
        return self._spool.read(self._keys[place], self._kind)

    def __iter__(self) -> Iterator[_ChunkT]:
        return (self._spool.read(key, self._kind) for key in self._keys)
