"""The client for programs that wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from keytide.client.protocol.answers import Aggregate, Count, IndexName, Page
from keytide.client.protocol.flows import Core
from keytide.client.protocol.held_snapshot import HoldState
from keytide.client.protocol.options import (
    AggregateOptions,
    CountOptions,
    MomentOptions,
    PageOptions,
    ScanOptions,
    TailOptions,
)
from keytide.client.protocol.states import QueryState, ScanState, TailState
from keytide.client.results import HeldSnapshot, Query, Scan, Tail
from keytide.client.session import Session
from keytide.client.transports import Shell


class Client:
    """Reads indexes through any indexer node.

    Args:
        url: of an indexer node, or of several: the next one is asked when one does not answer.
        token: API token, if the cluster has any.
        retries: how often a request is tried again, where that may help. Reading changes nothing, so all
            requests are safe to be tried again.
        transport, sleep: for tests.
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
        self._session = Session()
        self._core = Core.of(url, retries, self._session)
        self._shell = Shell(self._core, token, transport, sleep, answer_s, tls_authority)

    def __repr__(self) -> str:
        return f"Client({self._core.nodes.urls!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Results that are not read to their end cannot be read on."""
        self._shell.close()

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
    ) -> Scan:
        """Rows in key order, from one snapshot. Nothing is asked before something is read.

        Args:
            index: its name.
            page_size: rows fetched at once.
            limit: rows at most; None for all.
            request: see `keytide.client.protocol.options.ScanOptions`.

        Reading raises:
            HistoryChangedError: a rollback took back what the session or an earlier page saw (see
                `reset_session`), or the offset that `at_least` names with its epoch.
            SnapshotGoneError: the scan was left alone for so long that its snapshot is no longer held.
            KeytideError: with the server's problem type; `RetryableError` where trying again may help.

        >>> client.scan("by_city", low=["A"], high=["C"], limit=2).to_pandas()["id"].tolist()
        ['u7', 'u5']
        """
        return Scan(self._shell, ScanState(index, dict(request), page_size=page_size, left=limit))

    def page(self, index: str, **request: Unpack[PageOptions]) -> Page:
        """One answer of the scan endpoint, with its snapshot, timestamp and page token. Raises as `scan`.

        >>> page = client.page("by_city", limit=1)
        >>> page.rows[0].id, client.page("by_city", page=page.page).rows[0].id
        ('u7', 'u5')
        """
        return self._shell.run(self._core.page(index, request))

    def count(self, index: str, **request: Unpack[CountOptions]) -> Count:
        """How many entries a selection has, at one snapshot. Raises as `scan`.

        >>> client.count("by_city", prefix="Bo").count
        3
        """
        return self._shell.run(self._core.count(index, request))

    def aggregate(
        self, index: str, functions: Sequence[str | dict[str, Any]], **request: Unpack[AggregateOptions]
    ) -> Aggregate:
        """Functions over the entries of a selection, worked out where they lie. Raises as `scan`.

        Args:
            functions: as in SQL, or as `{"function": "sum", "of": "n", "as": "total"}`.

        >>> for group in client.aggregate("by_city", ["count", "sum(n)"], group_by=["city"]).groups:
        ...     print(group.key, group.values)
        ['Aachen'] {'count': 1, 'sum(n)': 5}
        ['Bonn'] {'count': 1, 'sum(n)': 9}
        ['Boston'] {'count': 2, 'sum(n)': 50}
        """
        return self._shell.run(self._core.aggregate(index, {"functions": list(functions), **request}))

    def query(self, sql: str, *, page_size: int = 1_000, **moment: Unpack[MomentOptions]) -> Query:
        """The rows of a SELECT, from one snapshot of the index that serves it. Nothing is asked before
        something is read. Reading raises as `scan` does; and 422 `no-index`, with the CREATE INDEX that would
        serve, when no index does.

        >>> query = client.query("SELECT id, n FROM users WHERE city = 'Boston'")
        >>> list(query), query.columns
        ([['u1', 3], ['u2', 47]], ['id', 'n'])
        """
        return Query(self._shell, QueryState("", {"sql": sql, "limit": page_size, **moment}))

    def explain(self, sql: str, **moment: Unpack[MomentOptions]) -> dict[str, Any]:
        """How a SELECT would be answered: index, spans, slices, what is pushed down.

        >>> client.explain("SELECT id FROM users WHERE city = 'Boston'")["index"]
        'by_city'
        """
        return self._shell.run(self._core.explain(sql, moment))

    def snapshot(
        self, index: str, *, lease_s: int | None = None, **moment: Unpack[MomentOptions]
    ) -> HeldSnapshot:
        """Hold one snapshot of an index, so that many reads see the same one. Each read renews the lease.

        Args:
            lease_s: how long it is held after its last use; the nodes have a default and a bound.

        >>> with client.snapshot("by_city") as at:
        ...     at.count().count == len(list(at.scan())) == len(list(client.scan("by_city", at=at)))
        True
        """
        return HeldSnapshot(self, self._shell, HoldState(index, {**moment, "lease_s": lease_s}))

    def tail(self, index: str, *, resume: str | None = None, **request: Unpack[TailOptions]) -> Tail:
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
        return Tail(self._shell, TailState(index, dict(request), resume))

    def indexes(self) -> list[IndexName]:
        """The indexes that can be scanned.

        >>> [index.name for index in client.indexes()]
        ['by_city']
        """
        return self._shell.run(self._core.indexes())
