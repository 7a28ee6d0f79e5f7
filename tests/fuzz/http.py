"""Fuzzes the HTTP edge of the servers: bytes that are nearly requests, on real connections.

Requests are made from well-formed ones: heads cut off or turned, lengths that lie, chunks that are none,
bodies that never end, connections that are dropped in the middle; all without a token, many at once. Whatever
comes, nothing is answered but refusals, nothing is a traceback in the log, other clients are answered, and no
connection is left when the patience of the server is over.
"""

from __future__ import annotations

import http.client
import logging
import random
import socket
import time
from collections import Counter
from typing import Final, Self

from prometheus_client import CollectorRegistry

from indexer.serve.api import create_app
from indexer.serve.one_write import OneWriteProtocol
from keytide.serving.server import server_of
from keytide.settings.settings import load_settings
from tests.live_node import LiveNode
from tests.serving import running

LIMIT_S: Final = 30.0
AT_ONCE: Final = 20
_PATHS: Final = (
    "/v1/indexes/by_city/scan",
    "/v1/query",
    "/internal/v1/read",
    "/internal/v1/verify",
    "/v1/indexes/by_city/snapshots",
    "/nope",
    "//v1/indexes/by_city/scan",
    "/v1/%2e%2e/internal/v1/read",
    "/%ff",
    "*",
    "",
)
_HEADERS: Final = (
    "Content-Type: application/json",
    "Content-Type: application/msgpack",
    "Content-Type: \xff\xfe",
    "Authorization: Bearer no-such-token",
    "Authorization: Keytide-Cluster 00",
    "Authorization:",
    "Origin: null",
    "Sec-Fetch-Site: cross-site",
    "Expect: 100-continue",
    "Connection: close",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "X: " + "y" * 70_000,
    "Content-Length: 2\r\nContent-Length: 20",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: chunked",
)
_OPEN: Final = frozenset({400, 401, 403, 404, 405, 411, 413, 415})


class _Troubles(logging.Handler):
    """What was logged that nobody wants to see."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage() + str(record.exc_info or ""))


class HttpFuzz:
    """One seed's connections to a server of a node with tokens. Use within `with`."""

    def __init__(self, node: LiveNode, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self._seed = seed
        self._random = random.Random(seed)
        limits = {"head_timeout_s": 0.5, "body_timeout_s": 0.5, "idle_timeout_s": 1}
        settings = load_settings(security={"tokens": {"t" * 40: ["read"]}}, http=limits)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._port: int = self._listener.getsockname()[1]
        app = create_app(node.view, settings, CollectorRegistry())
        self._server = server_of(app, settings.http, settings.security, OneWriteProtocol, loop="uvloop")
        self._running = running(self._server, self._listener)
        self._troubles = _Troubles()

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._troubles)
        logging.getLogger("uvicorn.error").addHandler(self._troubles)
        self._running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)
        logging.getLogger().removeHandler(self._troubles)
        logging.getLogger("uvicorn.error").removeHandler(self._troubles)

    def run(self, messages: int) -> None:
        """Send so many, and then see that the server is as it was."""
        halves: list[socket.socket] = []
        for at in range(messages):
            sent = self._request()
            halves.append(self._send(sent))
            if len(halves) >= AT_ONCE:
                self._settle(halves.pop(0), f"seed {self._seed}, message {at}")
        for half in halves:
            self._settle(half, f"seed {self._seed}, at the end")
        assert self._troubles.told == [], f"seed {self._seed}: {self._troubles.told[:3]}"
        assert self._healthy() == 200
        deadline = time.monotonic() + LIMIT_S
        while self._server.server_state.connections:
            assert time.monotonic() < deadline, f"seed {self._seed}: connections are left"
            time.sleep(0.01)

    def _send(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT_S)
        try:
            connection.sendall(data)
        except ConnectionError:
            pass  # refused in the middle
        return connection

    def _settle(self, connection: socket.socket, story: str) -> None:
        """Drop the connection, or wait for what is answered on it until the server closes it."""
        with connection:
            if self._random.random() < 0.3:
                self.answers["dropped"] += 1
                return
            heard = b""
            try:
                while part := connection.recv(65_536):
                    heard += part
            except ConnectionError:
                pass
            for answer in heard.split(b"HTTP/1.1 ")[1:]:
                status = int(answer[:3])
                self.answers[str(status)] += 1
                assert status in _OPEN or status == 100, f"{story}: {answer[:200]!r}"
            self.answers["closed"] += 1

    def _healthy(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status
        finally:
            connection.close()

    def _request(self) -> bytes:
        draw = self._random
        method = draw.choice(("POST", "POST", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW", "post"))
        body = draw.choice((b"", b"{}", b"{broken", b"\x91" * 100, b"x" * 100_000, draw.randbytes(50)))
        headers = draw.sample(_HEADERS, draw.randint(0, 3))
        head = f"{method} {draw.choice(_PATHS)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += "".join(f"{one}\r\n" for one in headers)
        if draw.random() < 0.6:
            head += f"Content-Length: {draw.choice((len(body), len(body), len(body) + 50, 0))}\r\n"
        data = head.encode("latin-1") + b"\r\n" + body
        chance = draw.random()
        if chance < 0.3:
            data = data[: draw.randrange(len(data))]
        elif chance < 0.5:
            at = draw.randrange(min(len(data), 300))
            data = data[:at] + draw.randbytes(draw.randint(1, 4)) + data[at + 1 :]
        elif chance < 0.6:
            data += data
        return data
