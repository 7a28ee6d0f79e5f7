"""How a store is copied from one node to another: what takes the rows that a `StoreExport` gives.

Both sides deal in rows of the store's tables as they lie on the disk, in key order, so that a copy is written
from end to end, and is what the other one was, tombstones and skip ledger included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol, get_args

from indexer.store.interface import Applied, Counts, Row

Table = Literal["forward", "long", "back", "skips"]

EXPORT_TABLES: Final[tuple[Table, ...]] = get_args(Table)
"""What a store consists of beside its state, in the order in which a copy is filled."""


class StoreFilling(Protocol):
    """A store that is being filled with the rows of another one. Used by one thread at a time. What was put
    outlives the process, and the next one goes on behind it.

    Attributes:
        generation: of what it holds rows; "" before it has begun.
        place: table and key of the last row that it has; what is asked for next lies behind it.
        rows: how many it has, of all tables.
        finished: whether it was finished: nothing is put any more, and the folder holds a slice's store.
    """

    @property
    def generation(self) -> str: ...
    @property
    def place(self) -> tuple[Table, bytes]: ...
    @property
    def rows(self) -> int: ...
    @property
    def finished(self) -> bool: ...

    def begin(self, generation: str) -> None:
        """Begin anew, with nothing, of this generation. Durable on return.

        Raises:
            RetryableError: `disk-full`. It has not begun then.
        """
        ...

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Add the next rows of a table; durable on return.

        Raises:
            RetryableError: `disk-full`. Nothing has changed.
            InvariantViolationError: Mirror: they do not lie behind `place`.
        """
        ...

    def finish(self, applied: Applied, counts: Counts) -> None:
        """All rows are there: once it is closed, the folder holds a slice's store in this state, which the
        node opens like any other. It has no way back: its horizon is this state.

        Raises:
            StoreDamagedError: the rows are not those that the counts tell of.
            RetryableError: `disk-full`.
        """
        ...

    def close(self) -> None:
        """Close it; what was put stays."""
        ...
