"""How a store is copied from one node to another: what gives the rows, and what takes them.

Both sides deal in rows of the store's tables as they lie on the disk, in key order, so that a copy is written
from end to end, and is what the other one was, tombstones and skip ledger included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from indexer.store.interface import Applied, Counts, Row

EXPORT_TABLES: Final = ("forward", "long", "back", "skips")
"""What a store consists of beside its state, in the order in which a copy is filled."""


class StoreExport(Protocol):
    """What a store has made durable, as rows of its tables, for a copy on another node. One commit:
    nothing that is folded, loaded or stepped back meanwhile shows. May be used on any thread, until closed.

    Attributes:
        generation: names this commit of this store. Never used for another one: neither after a step back nor
            by a store that is made anew in the same folder.
        applied: the state of that commit.
        counts: what it holds.
        rows_total: rows of all tables.
    """

    @property
    def generation(self) -> str: ...
    @property
    def applied(self) -> Applied: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def rows_total(self) -> int: ...

    def rows(self, table: str, after: bytes, most_bytes: int) -> list[Row]:
        """Rows of a table behind a key (b"": from its beginning), in key order, as the store writes them: at
        least one, and no more than about `most_bytes` of keys and values. None when there are no more.

        Raises:
            StoreDamagedError: what is stored cannot be read.
            RetryableError: `snapshot-closed`, it was closed.
        """
        ...

    def close(self) -> None:
        """Let go of the commit. Closing twice does nothing."""
        ...


class StoreFilling(Protocol):
    """A store that is being filled with the rows of another one. Used by one thread. What was put outlives
    the process, and the next one goes on behind it.

    Attributes:
        generation: of what it holds rows; "" before it has begun.
        place: table and key of the last row that it has; what is asked for next lies behind it.
        rows: how many it has, of all tables.
    """

    @property
    def generation(self) -> str: ...
    @property
    def place(self) -> tuple[str, bytes]: ...
    @property
    def rows(self) -> int: ...

    def begin(self, generation: str) -> None:
        """Begin anew, with nothing, of this generation. Durable on return."""
        ...

    def put(self, table: str, rows: Sequence[Row]) -> None:
        """Add the next rows of a table; durable on return.

        Raises:
            RetryableError: `disk-full`. Nothing has changed.
            InvariantViolationError: Mirror: they do not lie behind `place`.
        """
        ...

    def finish(self, applied: Applied, counts: Counts) -> None:
        """All rows are there: from now on the folder holds a slice's store in this state, which the node
        opens like any other. It has no way back: its horizon is this state.

        Raises:
            StoreDamagedError: the rows are not those that the counts tell of.
            RetryableError: `disk-full`.
        """
        ...

    def close(self) -> None:
        """Close it; what was put stays."""
        ...
