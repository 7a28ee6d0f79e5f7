"""A slice under build: its backfill queue. Pure.

Theory of operation
===================
Tasks of the Spark driver append sorted chunks, speculative and zombie tasks among them; after all tasks
of a micro-batch the driver appends its end, which names the attempts that won and how many chunks each
sent to this slice (R22). The slice keeps chunks (the shell keeps them on disk; here are only their names)
until the end of their batch comes, loads the winners', and forgets all of that batch. A batch that is
committed is skipped when it comes again. An end whose chunks are not all there, or whose turn has not
come, is passed over: the driver sends the batch again.

The build's own end (R23) is obeyed once the last batch is committed, and remembered until then. The
position that a restart reads from is the first message that any of this still needs.

Memory: about 300 bytes per chunk of (by default) 1 MiB, and what was read while a commit is tried again
(reading pauses then). Nothing else is held.
"""

from __future__ import annotations

from indexer.slice.events import (
    BackfillData,
    ChunkKey,
    DropChunks,
    Instruction,
    KeepChunk,
    LoadBatch,
    PauseReading,
    Resume,
    SwitchOver,
)
from indexer.slice.failure import CannotGoOnError, unreadable
from indexer.store.interface import Applied
from keytide.wire.messages import BatchEnd, BuildEnd, Message, PutChunk, RemovalChunk, UnreadableMessageError
from keytide.wire.parts import Assembler


class Building:
    """The backfill queue of one slice and build.

    Attributes:
        applied: the state after the last commit.
    """

    def __init__(self, index: str, slice_number: int, applied: Applied) -> None:
        self.index = index
        self.slice = slice_number
        self.applied = applied
        self.paused = False
        self._assembler = Assembler()
        self._cursor = applied.backfill_position
        self._chunks: dict[ChunkKey, int] = {}
        self._end: BuildEnd | None = None
        self._end_position = 0
        self._commit: LoadBatch | SwitchOver | None = None
        self._waiting: list[BackfillData] = []

    # --- events --------------------------------------------------------------

    def data(self, event: BackfillData) -> list[Instruction]:
        """A record of the backfill queue."""
        if self._commit is not None:
            self._waiting.append(event)
            return []
        if event.position < self._cursor:
            return []
        self._cursor = event.position + 1
        try:
            whole = self._assembler.feed(event.data, event.position)
        except UnreadableMessageError as error:
            raise unreadable("backfill queue", event.position, error) from error
        return [] if whole is None else self._message(*whole)

    def committed(self, applied: Applied) -> list[Instruction]:
        """A micro-batch is loaded."""
        self.applied = applied
        self._commit = None
        out: list[Instruction] = [DropChunks(self._drop_up_to(applied.batch)), *self._switch_if_over()]
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            out += self.data(event)
        return out + self.go_on()

    def go_on(self) -> list[Instruction]:
        """Read on, if reading was paused and no commit is under way."""
        if self.paused and self._commit is None:
            self.paused = False
            return [Resume()]
        return []

    def failed(self) -> list[Instruction]:
        """The shell tries the commit again; nothing more is read meanwhile."""
        if self.paused:
            return []
        self.paused = True
        return [PauseReading()]

    def chunks(self) -> list[ChunkKey]:
        """Names of all chunks kept."""
        return list(self._chunks)

    # --- messages --------------------------------------------------------------

    def _message(self, message: Message, first: int) -> list[Instruction]:
        match message:
            case PutChunk() | RemovalChunk():
                return self._chunk(message, first)
            case BatchEnd():
                return self._batch_end(message)
            case BuildEnd():
                if message.build == self.applied.build and self._end is None:
                    self._end, self._end_position = message, first
                return self._switch_if_over()
            case _:
                raise CannotGoOnError(f"backfill queue: a {type(message).__name__} does not belong there")

    def _chunk(self, chunk: PutChunk | RemovalChunk, position: int) -> list[Instruction]:
        """Keep it, unless it is of another build, of a committed batch, or there already."""
        if chunk.build != self.applied.build or chunk.batch <= self.applied.batch:
            return []
        if (chunk.index, chunk.slice) != (self.index, self.slice):
            raise CannotGoOnError("backfill queue: a chunk that is not for this slice")
        removal = isinstance(chunk, RemovalChunk)
        key = ChunkKey(chunk.batch, chunk.run, chunk.attempt, chunk.sequence, removal)
        if key in self._chunks:
            return []
        self._chunks[key] = position
        return [KeepChunk(key, chunk)]

    def _batch_end(self, end: BatchEnd) -> list[Instruction]:
        """Load the next batch, if this is its end and everything of it is there."""
        if end.build != self.applied.build or end.batch != self.applied.batch + 1:
            return []
        won = self._winners(end)
        if won is None:
            return []
        reached = self.applied.timestamp
        if end.batch > 0 and not reached.covers(end.start):
            begin, there = end.start.offsets(), reached.offsets()
            raise CannotGoOnError(
                f"micro-batch {end.batch} begins at {begin}; the one before ended at {there}"
            )
        if not end.end.covers(reached):  # (Contiguous; the node and its other slices are not to blame)
            raise CannotGoOnError(
                f"micro-batch {end.batch} ends at {end.end.offsets()}, and {reached.offsets()} is reached "
                "already: the build's journal was lost; cancel the build and build again"
            )
        applied = Applied(
            timestamp=end.end,
            incarnation=self.applied.incarnation,
            build=self.applied.build,
            batch=end.batch,
            backfill_position=self._position(end.batch),
            building=True,
        )
        self._commit = LoadBatch(
            [key for key in won if not key.removal], [key for key in won if key.removal], applied
        )
        return [self._commit]

    def _winners(self, end: BatchEnd) -> list[ChunkKey] | None:
        """The chunks that won, by attempt and sequence (sorted runs one after the other); None when some
        are missing."""
        won = [
            key
            for key in self._chunks
            if key.batch == end.batch and key.run == end.run and key.attempt in end.winners
        ]
        arrived = dict.fromkeys(end.winners, 0)
        for key in won:
            arrived[key.attempt] += 1
        if arrived != end.winners:
            return None
        return sorted(won, key=lambda key: (key.attempt, key.sequence))

    def _switch_if_over(self) -> list[Instruction]:
        """R23: the slice obeys the end only after the last batch."""
        if self._end is None or self.applied.batch + 1 < self._end.batches:
            return []
        applied = Applied(
            timestamp=self.applied.timestamp,
            incarnation=self.applied.incarnation,
            queue_position=self._end.queue_position,
            build=self.applied.build,
            batch=self.applied.batch,
            backfill_position=self._cursor,
        )
        self._commit = SwitchOver(applied)
        return [self._commit]

    def _drop_up_to(self, batch: int) -> list[ChunkKey]:
        dropped = [key for key in self._chunks if key.batch <= batch]
        for key in dropped:
            del self._chunks[key]
        return dropped

    def _position(self, batch: int) -> int:
        """First queue offset that is still needed once `batch` is committed."""
        needed = [position for key, position in self._chunks.items() if key.batch > batch]
        if self._end is not None:
            needed.append(self._end_position)
        pending = self._assembler.first_pending()
        if pending is not None:
            needed.append(pending)
        return min(needed, default=self._cursor)
