"""What the client for programs that wait gives back: results that are read bit by bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from keytide.client.protocol import streams
from keytide.client.protocol import tails as tailing
from keytide.client.protocol.answers import Aggregate, Count, Event, Page, Row
from keytide.client.protocol.arrow import frame_of, table_of_rows
from keytide.client.protocol.held_snapshot import HeldReader, HoldState
from keytide.client.protocol.options import (
    AggregateOptions,
    ColumnType,
    CountOptions,
    MomentOptions,
    PageOptions,
    ScanOptions,
)
from keytide.client.protocol.states import QueryState, Result, ScanState, TailState
from keytide.client.transports import Shell

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from keytide.client.sync import Client


class Scan(Result):
    """The rows of a scan: an iterator that is read once, or a whole in another form.

    >>> scan = client.scan("by_city", equals=["Boston"])
    >>> len(scan.to_list()), scan.snapshot
    (2, 7)
    """

    def __init__(self, shell: Shell, state: ScanState) -> None:
        super().__init__(state)
        self._shell = shell
        self._state = state
        self._rows: deque[Row] = deque()

    def __iter__(self) -> Self:
        self._state.read("rows")
        return self

    def __next__(self) -> Row:
        if not self._state.way:
            self._state.read("rows")
        if not self._rows:
            rows = self._shell.run(self._shell.core.next_rows(self._state))
            if rows is None:
                raise StopIteration
            self._rows.extend(rows)
        return self._rows.popleft()

    def to_list(self) -> list[Row]:
        """All rows."""
        return list(self)

    def to_arrow(self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False) -> pa.Table:
        """All rows as a table: a column for each key part, the id, and each included column.

        Args:
            types: of columns by name. What is not named has the type of its values; a column that holds
                several types is JSON texts, and its field says so.
            any_order: slices one after the other instead of in key order, which is faster.

        >>> client.scan("by_city").to_arrow().column_names
        ['city', 'n', 'id']
        """
        self._state.read("a table", whole=True)
        return self._shell.run(streams.table(self._shell.core, self._state, streams.form(types, any_order)))

    def to_pandas(
        self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False
    ) -> pd.DataFrame:
        """The same as a data frame; a column that holds several types has Python's objects."""
        return frame_of(self.to_arrow(types=types, any_order=any_order))

    def schema(self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False) -> pa.Schema:
        """The schema of the batches, which are to be asked for in the same words."""
        self._state.read("batches")
        more = streams.form(types, any_order)
        return self._shell.run(streams.schema(self._shell.core, self._state, more))

    def batches(
        self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Record batches as they come, with a bounded part of them in memory.

        Raises:
            TypeChangedError: a value does not fit its column's type in the batches before; name the column
                in `types`.

        >>> sum(batch.num_rows for batch in client.scan("by_city").batches())
        4
        """
        self._state.read("batches")
        more = streams.form(types, any_order)
        try:
            while True:
                batch = self._shell.run(streams.next_batch(self._shell.core, self._state, more))
                if batch is None:
                    return
                yield batch
        finally:
            self.close()

    def ndjson(self) -> Iterator[bytes]:
        """Whole lines of JSON, a row each, as they come.

        >>> next(client.scan("by_city", equals=["Bonn"]).ndjson())
        b'{"key":["Bonn",9],"id":"u5"}\\n'
        """
        self._state.read("lines", whole=True)
        try:
            while True:
                lines = self._shell.run(streams.next_lines(self._shell.core, self._state))
                if lines is None:
                    return
                yield lines
        finally:
            self.close()

    def close(self) -> None:
        """End a stream that is not read to its end."""
        self._shell.run(streams.stop(self._state))


class Query(Result):
    """The rows of a SELECT, each a list of its columns' values: an iterator that is read once."""

    def __init__(self, shell: Shell, state: QueryState) -> None:
        super().__init__(state)
        self._shell = shell
        self._state = state
        self._rows: deque[list[Any]] = deque()

    def __iter__(self) -> Self:
        self._state.read("rows")
        return self

    def __next__(self) -> list[Any]:
        if not self._state.way:
            self._state.read("rows")
        if not self._rows:
            rows = self._shell.run(self._shell.core.next_query_rows(self._state))
            if rows is None:
                raise StopIteration
            self._rows.extend(rows)
        return self._rows.popleft()

    @property
    def columns(self) -> list[str]:
        """Their names; asks the query if that was not done yet."""
        self._shell.run(self._shell.core.first_of_query(self._state))
        return list(self._state.columns or ())

    @property
    def index(self) -> str | None:
        """The index that served the query."""
        self._reading.known()
        return self._state.served_by

    def to_list(self) -> list[list[Any]]:
        """All rows."""
        return list(self)

    def to_arrow(self) -> pa.Table:
        """All rows as a table; a column that Arrow has no type for is JSON texts."""
        rows = list(self)
        return table_of_rows(self.columns, rows)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a data frame."""
        return frame_of(self.to_arrow())


class HeldSnapshot(HeldReader):
    """One snapshot of an index, held between `with` and its end. Reads through it see that one only.

    Attributes:
        at: its token, good as `at` of any request for this index, in other processes too.
    """

    def __init__(self, client: Client, shell: Shell, held: HoldState) -> None:
        super().__init__(held)
        self._client = client
        self._shell = shell

    def __enter__(self) -> Self:
        self._begin(self._shell.run(self._shell.core.hold(self.index, self._request())))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shell.run(self._shell.core.give_back(self.index, self._end()))

    def scan(
        self, *, page_size: int = 1_000, limit: int | None = None, **request: Unpack[ScanOptions]
    ) -> Scan:
        """As `Client.scan`, of this snapshot."""
        return self._client.scan(self.index, page_size=page_size, limit=limit, **self._with(request))

    def page(self, **request: Unpack[PageOptions]) -> Page:
        """As `Client.page`, of this snapshot."""
        return self._client.page(self.index, **self._with(request))

    def count(self, **request: Unpack[CountOptions]) -> Count:
        """As `Client.count`, of this snapshot."""
        return self._client.count(self.index, **self._with(request))

    def aggregate(
        self, functions: Sequence[str | dict[str, Any]], **request: Unpack[AggregateOptions]
    ) -> Aggregate:
        """As `Client.aggregate`, of this snapshot."""
        return self._client.aggregate(self.index, functions, **self._with(request))

    def query(self, sql: str, *, page_size: int = 1_000, **moment: Unpack[MomentOptions]) -> Query:
        """As `Client.query`, of this snapshot: served by this index or refused."""
        return self._client.query(sql, page_size=page_size, **self._with(moment))


class Tail:
    """Changes as they come: an iterator without an end. Close it, or use it in `with`."""

    def __init__(self, shell: Shell, state: TailState) -> None:
        self._shell = shell
        self._state = state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return self._shell.run(tailing.next_event(self._shell.core, self._state))

    @property
    def token(self) -> str | None:
        """Where the newest event that was given ends: `resume` of another tail."""
        return self._state.token

    def close(self) -> None:
        """Let the node know that nobody listens any more."""
        self._state.over = True
        self._state.ready.clear()
        self._shell.run(tailing.stop(self._state))
