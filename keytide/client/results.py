"""What the clients give back: results that are read bit by bit. Each is written once, and has two faces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from keytide.client.protocol import streams
from keytide.client.protocol import tails as tailing
from keytide.client.protocol.answers import Aggregate, Count, Event, Hold, MisuseError, Page, Row, TimeVector
from keytide.client.protocol.arrow import frame_of, table_of_rows
from keytide.client.protocol.calls import Flow
from keytide.client.protocol.options import (
    AggregateOptions,
    ColumnType,
    CountOptions,
    MomentOptions,
    PageOptions,
    ScanOptions,
)
from keytide.client.protocol.states import HoldState, QueryState, ResultState, ScanState, TailState
from keytide.client.transports import AsyncShell, Shell
from keytide.client.waiting import (
    AsyncContext,
    AsyncIterator,
    FlowMethod,
    FlowStream,
    NextPart,
    SyncContext,
    SyncIterator,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

StateT = TypeVar("StateT", bound=ResultState)
ItemT = TypeVar("ItemT")


class BaseResult(Generic[StateT, ItemT]):
    """What scans and queries have in common: rows that are read once, and from which moment they come, once
    something was read."""

    def __init__(self, shell: Shell | AsyncShell, state: StateT) -> None:
        self._shell: Any = shell
        self._core = shell.core
        self._state = state
        self._items: deque[ItemT] = deque()

    @property
    def snapshot(self) -> int | None:
        """Number of the snapshot; None of a tip scan."""
        return self._state.known().snapshot

    @property
    def timestamp(self) -> TimeVector:
        """The snapshot's place in the source; good as `at_least` of another request."""
        return self._state.known().timestamp

    @property
    def session(self) -> str:
        """Token of a session that has seen the snapshot."""
        return self._state.known().session

    @property
    def staleness_ms(self) -> int | None:
        """How old the snapshot was when the newest part was read."""
        return self._state.known().staleness_ms

    @FlowMethod
    def to_list(self) -> Flow[list[ItemT]]:
        """All rows."""
        return self._all()

    def _begin(self) -> None:
        self._state.read("rows")

    def _fetch(self) -> Flow[None]:
        if not self._state.way:
            self._begin()
        self._items.extend((yield from self._next_rows()) or ())

    def _next_rows(self) -> Flow[list[ItemT] | None]:
        raise NotImplementedError

    def _all(self) -> Flow[list[ItemT]]:
        self._begin()
        rows: list[ItemT] = []
        while True:
            rows += self._items
            self._items.clear()
            yield from self._fetch()
            if not self._items:
                return rows


class BaseScan(BaseResult[ScanState, Row]):
    """The rows of a scan: an iterator that is read once, or a whole in another form."""

    @FlowMethod
    def to_arrow(
        self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False
    ) -> Flow[pa.Table]:
        """All rows as a table: a column for each key part, the id, and each included column.

        Args:
            types: of columns by name. What is not named has the type of its values; a column that holds
                several types is JSON texts, and its field says so.
            any_order: slices one after the other instead of in key order, which is faster.

        >>> client.scan("by_city").to_arrow().column_names
        ['city', 'n', 'id']
        """
        return self._table(types, any_order)

    @FlowMethod
    def to_pandas(
        self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False
    ) -> Flow[pd.DataFrame]:
        """The same as a data frame; a column that holds several types has Python's objects."""
        return frame_of((yield from self._table(types, any_order)))

    @FlowMethod
    def schema(
        self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False
    ) -> Flow[pa.Schema]:
        """The schema of the batches, which are to be asked for in the same words."""
        self._state.read("batches")
        return streams.schema(self._core, self._state, streams.form(types, any_order))

    @FlowStream
    def batches(
        self, *, types: dict[str, ColumnType] | None = None, any_order: bool = False
    ) -> NextPart[pa.RecordBatch]:
        """Record batches as they come, with a bounded part of them in memory.

        Raises:
            TypeChangedError: a value does not fit its column's type in the batches before; name the column
                in `types`.

        >>> sum(batch.num_rows for batch in client.scan("by_city").batches())
        4
        """
        self._state.read("batches")
        return partial(streams.next_batch, self._core, self._state, streams.form(types, any_order))

    @FlowStream
    def ndjson(self) -> NextPart[bytes]:
        """Whole lines of JSON, a row each, as they come.

        >>> next(client.scan("by_city", equals=["Bonn"]).ndjson())
        b'{"key":["Bonn",9],"id":"u5"}\\n'
        """
        self._state.read("lines", whole=True)
        return partial(streams.next_lines, self._core, self._state)

    @FlowMethod
    def close(self) -> Flow[None]:
        """End a stream that is not read to its end."""
        return self._stop()

    def _stop(self) -> Flow[None]:
        return streams.stop(self._state)

    def _next_rows(self) -> Flow[list[Row] | None]:
        return self._core.next_rows(self._state)

    def _table(self, types: dict[str, ColumnType] | None, any_order: bool) -> Flow[pa.Table]:
        self._state.read("a table", whole=True)
        return streams.table(self._core, self._state, streams.form(types, any_order))


class Scan(BaseScan, SyncIterator[Row]):
    """The rows of a scan: an iterator that is read once, or a whole in another form.

    >>> scan = client.scan("by_city", equals=["Boston"])
    >>> len(scan.to_list()), scan.snapshot
    (2, 7)
    """


class AsyncScan(BaseScan, AsyncIterator[Row]):
    """The rows of a scan: an iterator that is read once, or a whole in another form. As `Scan`, awaited."""


class BaseQuery(BaseResult[QueryState, list[Any]]):
    """The rows of a SELECT, each a list of its columns' values: an iterator that is read once."""

    @property
    def columns(self) -> list[str]:
        """Their names, once something was read."""
        self._state.known()
        return list(self._state.columns or ())

    @property
    def index(self) -> str | None:
        """The index that served the query."""
        self._state.known()
        return self._state.served_by

    @FlowMethod
    def to_arrow(self) -> Flow[pa.Table]:
        """All rows as a table; a column that Arrow has no type for is JSON texts."""
        return self._table()

    @FlowMethod
    def to_pandas(self) -> Flow[pd.DataFrame]:
        """All rows as a data frame."""
        return frame_of((yield from self._table()))

    def _next_rows(self) -> Flow[list[list[Any]] | None]:
        return self._core.next_query_rows(self._state)

    def _table(self) -> Flow[pa.Table]:
        rows = yield from self._all()
        return table_of_rows(self._state.columns or (), rows)


class Query(BaseQuery, SyncIterator[list[Any]]):
    """The rows of a SELECT, each a list of its columns' values: an iterator that is read once."""

    @property
    def columns(self) -> list[str]:
        """Their names; asks the query if that was not done yet."""
        self._shell.run(self._core.first_of_query(self._state))
        return super().columns


class AsyncQuery(BaseQuery, AsyncIterator[list[Any]]):
    """The rows of a SELECT, each a list of its columns' values: an iterator that is read once."""


ScanT = TypeVar("ScanT", bound=BaseScan)
QueryT = TypeVar("QueryT", bound=BaseQuery)


class BaseHeldSnapshot(Generic[ScanT, QueryT]):
    """One snapshot of an index, held between `with` and its end. Reads through it see that one only.

    Attributes:
        at: its token, good as `at` of any request for this index, in other processes too.
    """

    _scan: Callable[[Any, ScanState], ScanT]
    _query: Callable[[Any, QueryState], QueryT]

    def __init__(self, shell: Shell | AsyncShell, state: HoldState) -> None:
        self._shell: Any = shell
        self._core = shell.core
        self._state = state

    @property
    def index(self) -> str:
        return self._state.index

    @property
    def at(self) -> str:
        """Its token."""
        return self._known().at

    @property
    def snapshot(self) -> int:
        """Its number."""
        return self._known().snapshot

    @property
    def timestamp(self) -> TimeVector:
        """Its place in the source."""
        return self._known().timestamp

    @property
    def session(self) -> str:
        """Token of a session that has seen it."""
        return self._known().session

    @property
    def slices(self) -> int:
        """How many slices the index has: `slices=[n]` of a scan reads one of them."""
        return self._known().slices

    def scan(
        self, *, page_size: int = 1_000, limit: int | None = None, **request: Unpack[ScanOptions]
    ) -> ScanT:
        """As the client's `scan`, of this snapshot."""
        state = ScanState(self.index, self._with(request), page_size=page_size, left=limit)
        return self._scan(self._shell, state)

    @FlowMethod
    def page(self, **request: Unpack[PageOptions]) -> Flow[Page]:
        """As the client's `page`, of this snapshot."""
        return self._core.page(self.index, self._with(request))

    @FlowMethod
    def count(self, **request: Unpack[CountOptions]) -> Flow[Count]:
        """As the client's `count`, of this snapshot."""
        return self._core.count(self.index, self._with(request))

    @FlowMethod
    def aggregate(
        self, functions: Sequence[str | dict[str, Any]], **request: Unpack[AggregateOptions]
    ) -> Flow[Aggregate]:
        """As the client's `aggregate`, of this snapshot."""
        return self._core.aggregate(self.index, {"functions": list(functions), **self._with(request)})

    def query(self, sql: str, *, page_size: int = 1_000, **moment: Unpack[MomentOptions]) -> QueryT:
        """As the client's `query`, of this snapshot: served by this index or refused."""
        return self._query(
            self._shell, QueryState("", {"sql": sql, "limit": page_size, **self._with(moment)})
        )

    def _enter(self) -> Flow[None]:
        if self._state.hold is not None:
            raise MisuseError("a snapshot is held once", next_step="call `client.snapshot(...)` again")
        self._state.hold = yield from self._core.hold(self.index, self._state.request)

    def _leave(self) -> Flow[None]:
        at = self.at
        self._state.over = True
        return self._core.give_back(self.index, at)

    def _known(self) -> Hold:
        if self._state.hold is None or self._state.over:
            raise MisuseError(
                "the snapshot was given back" if self._state.over else "the snapshot is not held yet",
                next_step="read from it inside of `with client.snapshot(...) as at:`",
            )
        return self._state.hold

    def _with(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A request that reads from here."""
        return {**request, "at": self.at}


class HeldSnapshot(BaseHeldSnapshot[Scan, Query], SyncContext):
    """One snapshot of an index, held between `with` and its end. Reads through it see that one only.

    Attributes:
        at: its token, good as `at` of any request for this index, in other processes too.
    """

    _scan, _query = Scan, Query


class AsyncHeldSnapshot(BaseHeldSnapshot[AsyncScan, AsyncQuery], AsyncContext):
    """One snapshot of an index, held between `async with` and its end. As `HeldSnapshot`, awaited."""

    _scan, _query = AsyncScan, AsyncQuery


class BaseTail:
    """Changes as they come: an iterator without an end. Close it, or use it in `with`."""

    def __init__(self, shell: Shell | AsyncShell, state: TailState) -> None:
        self._shell: Any = shell
        self._core = shell.core
        self._state = state
        self._items: deque[Event] = deque()

    @property
    def token(self) -> str | None:
        """Where the newest event that was given ends: `resume` of another tail."""
        return self._state.token

    @FlowMethod
    def close(self) -> Flow[None]:
        """Let the node know that nobody listens any more."""
        return self._leave()

    def _begin(self) -> None:
        """A tail goes on where it was left."""

    def _fetch(self) -> Flow[None]:
        self._items.append((yield from tailing.next_event(self._core, self._state)))

    def _enter(self) -> Flow[None]:
        yield from ()

    def _leave(self) -> Flow[None]:
        self._state.over = True
        self._state.ready.clear()
        return tailing.stop(self._state)


class Tail(BaseTail, SyncIterator[Event], SyncContext):
    """Changes as they come: an iterator without an end. Close it, or use it in `with`."""


class AsyncTail(BaseTail, AsyncIterator[Event], AsyncContext):
    """Changes as they come: an iterator without an end. Close it, or use it in `async with`."""
