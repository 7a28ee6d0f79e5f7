"""For tests of the Python clients: nodes that answer from a script or from a few rows, and both faces in one.

What is tested of one face is tested of the other: `Face` runs the same calls on `Client` and `AsyncClient`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Literal

import httpx
import pyarrow as pa

from keytide.client import AsyncClient, Client

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
MOMENT = {"snapshot": 7, "timestamp": {"0": {"offset": 4, "epoch": 1}}, "session": "s7"}
HEADERS = {
    "Keytide-Snapshot": "7",
    "Keytide-Timestamp": json.dumps(MOMENT["timestamp"]),
    "Keytide-Session": "s7",
    "Keytide-Staleness-Ms": "3",
}

Answer = httpx.Response | Exception | dict[str, Any]


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in the given chunks, for both faces; an exception among them breaks it off.

    Attributes:
        taken: how many were taken.
        closed: how often it was closed.
    """

    def __init__(self, chunks: Iterable[bytes | Exception]) -> None:
        self._chunks = list(chunks)
        self.taken = 0
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.taken += 1
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


def page(*ids: str, page: str | None = None, session: str = "s1") -> dict[str, Any]:
    rows = [{"key": [id_.upper()], "id": id_} for id_ in ids]
    return {"rows": rows, "snapshot": 7, "timestamp": {}, "session": session, "page": page}


def refusal(status: int, kind: str, **more: Any) -> httpx.Response:
    headers = {"Retry-After": more.pop("retry_after")} if "retry_after" in more else {}
    document = {"type": kind, "title": "T", "status": status, "detail": "why", "next_step": "how", **more}
    return httpx.Response(status, json=document, headers=headers)


def stream(*chunks: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, headers=HEADERS, stream=Chunks(chunks))


class Face:
    """One of the two clients, with nodes that answer in turn what they are told to.

    Args:
        kind: which one.
        answers: in turn; a function answers every request.

    Attributes:
        asked: the bodies of all requests (their query strings, where they have none).
        requests: all of them.
        pauses: seconds.
    """

    def __init__(
        self,
        kind: Literal["sync", "async"],
        *answers: Answer,
        handler: Callable[[httpx.Request], httpx.Response] | None = None,
        url: str | list[str] = "http://127.0.0.1",
        **client: Any,
    ) -> None:
        self.kind = kind
        self._answers = list(answers)
        self._handler = handler
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        transport = httpx.MockTransport(self._answer)
        self.client: Any
        if kind == "sync":
            self.client = Client(url, transport=transport, sleep=self.pauses.append, **client)
        else:
            self.client = AsyncClient(url, transport=transport, sleep=self._sleep, **client)

    def do(self, work: Callable[[Any], Any]) -> Any:
        """What a call on the client (or on one of its results) brings."""
        made = work(self.client)
        return self.wait(made)

    def wait(self, made: Any) -> Any:
        if self._loop is None or not hasattr(made, "__await__"):
            return made
        return self._loop.run_until_complete(made)

    def read(self, result: Any) -> list[Any]:
        """Everything that a result gives."""
        if self._loop is None:
            return list(result)
        return self._loop.run_until_complete(_listed(result))

    def next(self, result: Any) -> Any:
        return next(result) if self._loop is None else self._loop.run_until_complete(anext(result))

    def enter(self, manager: Any) -> Any:
        return manager.__enter__() if self._loop is None else self.wait(manager.__aenter__())

    def exit(self, manager: Any) -> None:
        nothing = (None, None, None)
        manager.__exit__(*nothing) if self._loop is None else self.wait(manager.__aexit__(*nothing))

    def close(self) -> None:
        self.wait(self.client.close())
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def asked(self) -> list[Any]:
        return [
            json.loads(request.content) if request.content else dict(request.url.params)
            for request in self.requests
        ]

    @property
    def paths(self) -> list[str]:
        return [request.url.raw_path.decode() for request in self.requests]

    @property
    def hosts(self) -> list[str]:
        return [request.url.host.removesuffix(".example") for request in self.requests]

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self._handler is not None:
            return self._handler(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


async def _listed(result: Any) -> list[Any]:
    return [one async for one in result]


# --- a node with a few rows ----------------------------------------------------

ROWS: list[dict[str, Any]] = [
    {"key": ["Aachen", 5], "id": "u7"},
    {"key": ["Bonn", 9], "id": "u5"},
    {"key": ["Boston", 3], "id": "u1"},
    {"key": ["Boston", 47], "id": "u2"},
]


def small_node(request: httpx.Request) -> httpx.Response:
    """A node with index by_city on `users (city, n)`, as far as the examples in docstrings ask it."""
    path = request.url.path
    asked: dict[str, Any] = json.loads(request.content or b"{}") or dict(request.url.params)
    if path == "/v1/indexes":
        return httpx.Response(200, json=[{"name": "by_city", "keyspace": "users", "state": "READY"}])
    if path == "/v1/query":
        return _query(asked["sql"])
    if path.endswith("/snapshots"):
        hold = {**MOMENT, "at": "held", "slices": 1, "expires_in_s": 60}
        return httpx.Response(200, json=hold) if request.method == "POST" else httpx.Response(204)
    if path.endswith("/tail"):
        first = {**MOMENT, "added": _selected({"equals": json.loads(asked["equals"])})}
        then = {**MOMENT, "snapshot": 8, "added": [{"key": ["Boston", 1], "id": "u9"}], "removed": [ROWS[2]]}
        return stream(event("snapshot", first, "t7"), b": heartbeat\n\n", event("changes", then, "t8"))
    rows = _selected(asked)
    if path.endswith("/count"):
        return httpx.Response(200, json={**MOMENT, "count": len(rows)})
    if path.endswith("/aggregate"):
        return httpx.Response(200, json={**MOMENT, "groups": _groups(rows)})
    accept = request.headers.get("accept", "")
    if accept == ARROW:
        return stream(*pieces(arrow_of(rows[: asked.get("limit")]), 100))
    if accept == NDJSON:
        return stream(*(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows))
    after = int(asked.get("page", 0))
    end = after + asked.get("limit", 1_000 if "page" not in asked else 1)
    more = str(end) if end < len(rows) else None
    return httpx.Response(200, json={**MOMENT, "rows": rows[after:end], "page": more})


def event(name: str, document: Any, token: str) -> bytes:
    return f"id: {token}\nevent: {name}\ndata: {json.dumps(document)}\n\n".encode()


def arrow_of(rows: list[dict[str, Any]]) -> bytes:
    schema = pa.schema([("city", pa.string()), ("n", pa.int64()), ("id", pa.string())])
    columns = [[row["key"][0] for row in rows], [row["key"][1] for row in rows], [row["id"] for row in rows]]
    return arrow_stream(pa.record_batch(columns, schema=schema))


def arrow_stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _selected(asked: dict[str, Any]) -> list[dict[str, Any]]:
    equals, prefix = asked.get("equals") or [], asked.get("prefix") or ""
    low, high = asked.get("low") or [], asked.get("high")
    return [
        row
        for row in ROWS
        if row["key"][: len(equals)] == equals
        and row["key"][0].startswith(prefix)
        and row["key"][: len(low)] >= low
        and (high is None or row["key"][: len(high)] <= high)
    ]


def _groups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cities: dict[str, list[int]] = {}
    for row in rows:
        cities.setdefault(row["key"][0], []).append(row["key"][1])
    return [{"key": [city], "values": {"count": len(n), "sum(n)": sum(n)}} for city, n in cities.items()]


def _query(sql: str) -> httpx.Response:
    if sql.startswith("EXPLAIN"):
        return httpx.Response(200, json={"index": "by_city", "spans": []})
    rows = [[row["id"], row["key"][1]] for row in ROWS if row["key"][0] == "Boston"]
    return httpx.Response(200, json={**MOMENT, "columns": ["id", "n"], "rows": rows, "index": "by_city"})
