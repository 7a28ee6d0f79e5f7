"""The clients: what they do, written once, and the two faces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from keytide.client.protocol.addresses import NodeAddresses
from keytide.client.protocol.answers import Aggregate, Count, IndexName, Page
from keytide.client.protocol.calls import Disconnect, Flow
from keytide.client.protocol.flows import Core
from keytide.client.protocol.options import (
    AggregateOptions,
    CountOptions,
    MomentOptions,
    PageOptions,
    ScanOptions,
    TailOptions,
)
from keytide.client.protocol.states import HoldState, QueryState, ScanState, TailState
from keytide.client.results import (
    AsyncHeldSnapshot,
    AsyncQuery,
    AsyncScan,
    AsyncTail,
    BaseHeldSnapshot,
    BaseQuery,
    BaseScan,
    BaseTail,
    HeldSnapshot,
    Query,
    Scan,
    Tail,
)
from keytide.client.session import Session
from keytide.client.transports import AsyncShell, Shell, awaited_connections, connections
from keytide.client.waiting import AsyncContext, FlowMethod, SyncContext

if TYPE_CHECKING:
    import httpx

ScanT = TypeVar("ScanT", bound=BaseScan)
QueryT = TypeVar("QueryT", bound=BaseQuery)
SnapshotT = TypeVar("SnapshotT", bound=BaseHeldSnapshot[Any, Any])
TailT = TypeVar("TailT", bound=BaseTail)


class BaseClient(Generic[ScanT, QueryT, SnapshotT, TailT]):
    """Reads indexes through any indexer node."""

    _scan: Callable[[Any, ScanState], ScanT]
    _query: Callable[[Any, QueryState], QueryT]
    _snapshot: Callable[[Any, HoldState], SnapshotT]
    _tail: Callable[[Any, TailState], TailT]

    def __init__(self, url: str | Sequence[str], retries: int) -> None:
        self._session = Session()
        self._core = Core(NodeAddresses(url), retries, self._session)
        self._shell: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.nodes.urls!r})"

    @FlowMethod
    def close(self) -> Flow[None]:
        """Close the connections. Results that are not read to their end cannot be read on."""
        return self._leave()

    def _enter(self) -> Flow[None]:
        yield from ()

    def _leave(self) -> Flow[None]:
        yield Disconnect()

    # --- the session ----------------------------------------------------------

    @property
    def session(self) -> str | None:
        """What the client has seen, as a token: give it to another client to make that one see no less."""
        return self._session.token

    @session.setter
    def session(self, token: str | None) -> None:
        self._session.reset(token)

    def reset_session(self) -> None:
        """Begin a session that has seen nothing: after a `HistoryChangedError`, once what was concluded from
        earlier answers is read again."""
        self._session.reset()

    # --- reading --------------------------------------------------------------

    def scan(
        self, index: str, *, page_size: int = 1_000, limit: int | None = None, **request: Unpack[ScanOptions]
    ) -> ScanT:
        """Rows in key order, from one snapshot. Nothing is asked before something is read.

        Args:
            index: its name.
            page_size: rows fetched at once.
            limit: rows at most; None for all.
            request: see `keytide.client.options.ScanOptions`.

        Reading raises:
            HistoryChangedError: a rollback took back what the session or an earlier page saw (see
                `reset_session`), or the offset that `at_least` names with its epoch.
            SnapshotGoneError: the scan was left alone for so long that its snapshot is no longer held.
            KeytideError: with the server's problem type; `RetryableError` where trying again may help.

        >>> client.scan("by_city", low=["A"], high=["C"], limit=2).to_pandas()["id"].tolist()
        ['u7', 'u5']
        """
        return self._scan(self._shell, ScanState(index, dict(request), page_size=page_size, left=limit))

    @FlowMethod
    def page(self, index: str, **request: Unpack[PageOptions]) -> Flow[Page]:
        """One answer of the scan endpoint, with its snapshot, timestamp and page token. Raises as `scan`.

        >>> page = client.page("by_city", limit=1)
        >>> page.rows[0].id, client.page("by_city", page=page.page).rows[0].id
        ('u7', 'u5')
        """
        return self._core.page(index, request)

    @FlowMethod
    def count(self, index: str, **request: Unpack[CountOptions]) -> Flow[Count]:
        """How many entries a selection has, at one snapshot. Raises as `scan`.

        >>> client.count("by_city", prefix="Bo").count
        3
        """
        return self._core.count(index, request)

    @FlowMethod
    def aggregate(
        self, index: str, functions: Sequence[str | dict[str, Any]], **request: Unpack[AggregateOptions]
    ) -> Flow[Aggregate]:
        """Functions over the entries of a selection, worked out where they lie. Raises as `scan`.

        Args:
            functions: as in SQL, or as `{"function": "sum", "of": "n", "as": "total"}`.

        >>> for group in client.aggregate("by_city", ["count", "sum(n)"], group_by=["city"]).groups:
        ...     print(group.key, group.values)
        ['Aachen'] {'count': 1, 'sum(n)': 5}
        ['Bonn'] {'count': 1, 'sum(n)': 9}
        ['Boston'] {'count': 2, 'sum(n)': 50}
        """
        return self._core.aggregate(index, {"functions": list(functions), **request})

    def query(self, sql: str, *, page_size: int = 1_000, **moment: Unpack[MomentOptions]) -> QueryT:
        """The rows of a SELECT, from one snapshot of the index that serves it. Nothing is asked before
        something is read. Reading raises as `scan` does; and 422 `no-index`, with the CREATE INDEX that would
        serve, when no index does.

        >>> query = client.query("SELECT id, n FROM users WHERE city = 'Boston'")
        >>> list(query), query.columns
        ([['u1', 3], ['u2', 47]], ['id', 'n'])
        """
        return self._query(self._shell, QueryState("", {"sql": sql, "limit": page_size, **moment}))

    @FlowMethod
    def explain(self, sql: str, **moment: Unpack[MomentOptions]) -> Flow[dict[str, Any]]:
        """How a SELECT would be answered: index, spans, slices, what is pushed down.

        >>> client.explain("SELECT id FROM users WHERE city = 'Boston'")["index"]
        'by_city'
        """
        return self._core.explain(sql, moment)

    def snapshot(
        self, index: str, *, lease_s: int | None = None, **moment: Unpack[MomentOptions]
    ) -> SnapshotT:
        """Hold one snapshot of an index, so that many reads see the same one. Each read renews the lease.

        Args:
            lease_s: how long it is held after its last use; the nodes have a default and a bound.

        >>> with client.snapshot("by_city") as at:
        ...     at.count().count == len(list(at.scan())) == len(list(client.scan("by_city", at=at)))
        True
        """
        return self._snapshot(self._shell, HoldState(index, {**moment, "lease_s": lease_s}))

    def tail(self, index: str, *, resume: str | None = None, **request: Unpack[TailOptions]) -> TailT:
        """The changes of a selection, an event for each newer snapshot; for ever, over broken connections.

        Args:
            resume: token of the event to go on from.

        Reading raises:
            SnapshotGoneError: that snapshot is no longer held; begin anew, with `initial=True`.
            HistoryChangedError: the source has lost records that were told.

        >>> with client.tail("by_city", equals=["Boston"], initial=True) as tail:
        ...     for event in tail:
        ...         print([row.id for row in event.added], [row.id for row in event.removed])
        ...         if not event.first:
        ...             break
        ['u1', 'u2'] []
        ['u9'] ['u1']
        """
        return self._tail(self._shell, TailState(index, dict(request), resume))

    @FlowMethod
    def indexes(self) -> Flow[list[IndexName]]:
        """The indexes that can be scanned.

        >>> [index.name for index in client.indexes()]
        ['by_city']
        """
        return self._core.indexes()


class Client(BaseClient[Scan, Query, HeldSnapshot, Tail], SyncContext):
    """Reads indexes through any indexer node.

    Args:
        url: of an indexer node, or of several: the next one is asked when one does not answer.
        token: API token, if the cluster has any.
        retries: how often a request is tried again, where that may help. Reading changes nothing, so all
            requests are safe to be tried again.
        transport: of httpx, to reach nodes by in place of urllib3 or aiohttp; sleep: for tests.
        answer_s: how long nothing may come back at most: a request whose own time-out is longer is given up
            then, too. None for no such limit.
        tls_authority: file of certificates (PEM) to trust, and no others; "" for what
            `KEYTIDE_SECURITY__TLS_AUTHORITY` names, else what the machine trusts.

    Several threads may use one client at the same time. A result (`Scan`, `Query`, `Tail`) is for one thread.

    >>> with Client("http://127.0.0.1:8093") as client:
    ...     for row in client.scan("by_city", equals=["Boston"]):
    ...         print(row.key, row.id)
    ['Boston', 3] u1
    ['Boston', 47] u2
    """

    _scan, _query, _snapshot, _tail = Scan, Query, HeldSnapshot, Tail

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str = "",
        retries: int = 4,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        answer_s: float | None = None,
        tls_authority: str = "",
    ) -> None:
        super().__init__(url, retries)
        nodes = connections(self._core.nodes.urls, token, transport, tls_authority)
        self._shell = Shell(self._core, nodes, sleep, answer_s)


class AsyncClient(BaseClient[AsyncScan, AsyncQuery, AsyncHeldSnapshot, AsyncTail], AsyncContext):
    """Reads indexes through any indexer node, on an event loop: as `Client`, awaited.

    All tasks of one event loop may use one client at the same time. A result (`AsyncScan`, `AsyncQuery`,
    `AsyncTail`) is for one task.

    >>> async def main():
    ...     async with AsyncClient("http://127.0.0.1:8093") as client:
    ...         async for row in client.scan("by_city", equals=["Boston"]):
    ...             print(row.key, row.id)
    ...         print((await client.count("by_city")).count)
    >>> asyncio.run(main())
    ['Boston', 3] u1
    ['Boston', 47] u2
    4
    """

    _scan, _query, _snapshot, _tail = AsyncScan, AsyncQuery, AsyncHeldSnapshot, AsyncTail

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str = "",
        retries: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        answer_s: float | None = None,
        tls_authority: str = "",
    ) -> None:
        super().__init__(url, retries)
        nodes = awaited_connections(self._core.nodes.urls, token, transport, tls_authority)
        self._shell = AsyncShell(self._core, nodes, sleep, answer_s)
