"""The Python clients: scans, counts, aggregates, SQL and tails of indexes, each from one moment in time.

    from keytide import Client
    with Client("http://127.0.0.1:8093") as client:
        for row in client.scan("by_city", equals=["Boston"]):
            print(row.key, row.id)

A client remembers its session: it never sees an older snapshot than one it has seen. When the source has lost
records and what the session saw was rolled back, every request raises `HistoryChangedError`, until the caller
has said by `reset_session` that it knows. Any indexer node can be asked, and several may be named.

Reading changes nothing, so what fails for a while is tried again: a node that is not there, and what a node
answers with `Retry-After`. Everything else is raised at once, as the family and the problem type that the
node gave it.

A `Client` may be used by several threads, an `AsyncClient` by all tasks of one event loop. What they give
back (`Scan`, `Query`, `Tail`, held snapshots) belongs to the one that asked for it, and is read once.

    protocol          what a client does, without I/O: requests, answers, steps, streams (pure)
    transports        carry it out, by waiting or on an event loop, over
      with_urllib3, with_aiohttp   those of urllib3 and aiohttp, or
      with_httpx                   those of httpx, for proxies and transports that are given
    session           what the client has seen
    waiting           one method for both: by waiting, or awaited
    client, results   the two clients, and what they give back
    writes            what a producer was told, as what a scan must see

Imported by users, `keytide.cli`, `streaming.source` and `deploy.demo`.
"""

from keytide.client.client import AsyncClient, Client
from keytide.client.protocol.answers import (
    Aggregate,
    Count,
    Event,
    Group,
    IndexName,
    MisuseError,
    Page,
    Row,
    SnapshotGoneError,
    TypeChangedError,
)
from keytide.client.protocol.calls import LONGEST_PAUSE_S
from keytide.client.results import (
    AsyncHeldSnapshot,
    AsyncQuery,
    AsyncScan,
    AsyncTail,
    HeldSnapshot,
    Query,
    Scan,
    Tail,
)
from keytide.client.transports import problem_error
from keytide.client.writes import UndeliveredError, Writes

__all__ = [
    "LONGEST_PAUSE_S",
    "Aggregate",
    "AsyncClient",
    "AsyncHeldSnapshot",
    "AsyncQuery",
    "AsyncScan",
    "AsyncTail",
    "Client",
    "Count",
    "Event",
    "Group",
    "HeldSnapshot",
    "IndexName",
    "MisuseError",
    "Page",
    "Query",
    "Row",
    "Scan",
    "SnapshotGoneError",
    "Tail",
    "TypeChangedError",
    "UndeliveredError",
    "Writes",
    "problem_error",
]
