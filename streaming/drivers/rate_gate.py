"""Back-pressure on reading: every task says to the driver's gate what it reads, and goes on when it may.

Theory of operation. A rate limit must hold over all tasks, on all machines, and a change of it must be felt
in the middle of a micro-batch of minutes. So the driver listens on a port of its own; each Python worker
keeps one connection, says of each block how many documents and bytes it has, and waits for a byte in answer
before it goes on. The driver answers at once when there is no limit, else when the bucket
(`streaming.core.rate`) has given out as many. What tasks say is also how far the micro-batch is.

The gate hinders nothing: a worker that cannot reach it reads on, and what it did not say is made up for after
the micro-batch (`RateGate.settle`). It listens where Spark's driver does, and wants a token that only tasks
know.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keytide.process.worker import Worker, logged
from streaming.core.rate import TokenBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

TOKEN_BYTES = 16
_WORD = struct.Struct("<qqq")
"""Documents, bytes, extents that were read to their end."""
_GO = b"\x01"
_PAUSE_S = 0.05
"""Between looks at the bucket, and at whether the gate is closed."""
_CONNECT_LIMIT_S = 5.0


@dataclass(frozen=True)
class RateClient:
    """What tasks are given: where the gate is. Pickled with them."""

    host: str
    port: int
    token: bytes

    def read(self, documents: int, size: int) -> None:
        """Say that so many documents, of so many bytes, were read; returns when more may be."""
        self._tell(documents, size, 0)

    def finished(self) -> None:
        """Say that an extent is read to its end."""
        self._tell(0, 0, 1)

    def heed(self) -> None:
        """Nothing: whoever runs a task on another machine ends it."""

    def _tell(self, documents: int, size: int, extents: int) -> None:
        line = _connected(self)
        if line is None or line.fileno() < 0:
            return
        try:
            line.sendall(_WORD.pack(documents, size, extents))
            heard = line.recv(1) == _GO
        except OSError as error:
            log.warning("the driver does not hear what is read: %s", error)
            heard = False
        if not heard:
            line.close()


_connections: dict[RateClient, socket.socket | None] = {}
"""Of this worker; None where there is no gate."""


def _connected(client: RateClient) -> socket.socket | None:
    """This worker's connection; None when there is none."""
    if client in _connections:
        return _connections[client]
    _connections[client] = None
    try:
        line = socket.create_connection((client.host, client.port), _CONNECT_LIMIT_S)
    except OSError as error:
        log.warning("the driver's gate at %s:%d is not reached: %s", client.host, client.port, error)
        return None
    line.settimeout(None)  # the answer may take as long as the limit wants; the socket closes with the driver
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(client.token)
    _connections[client] = line
    return line


class RateGate:
    """Hears what all tasks of a driver read, and lets them go on at the rate limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bucket = TokenBucket(time.monotonic())
        self._documents = self._bytes = self._extents = 0
        self._most = self._wanted = 0
        self._end = threading.Event()

    def limit(self, rate: int) -> None:
        """Set the limit: documents per second, 0 for none. Felt at once."""
        with self._lock:
            self._bucket.limit(rate, time.monotonic())

    def begin(self, documents: int, extents: int) -> None:
        """A micro-batch begins.

        Args:
            documents: that it has at most; attempts that are run again count no further than that.
            extents: that it has.
        """
        with self._lock:
            self._documents = self._bytes = self._extents = 0
            self._most, self._wanted = documents, extents

    @property
    def documents(self) -> int:
        """Read in this micro-batch."""
        with self._lock:
            return min(self._documents, self._most)

    @property
    def bytes(self) -> int:
        """The same in bytes of keys and values."""
        with self._lock:
            over = self._most / self._documents if self._documents > self._most else 1.0
            return int(self._bytes * over)

    @property
    def all_read(self) -> bool:
        """Whether all extents of this micro-batch are read."""
        with self._lock:
            return 0 < self._wanted <= self._extents

    def settle(self, documents: int) -> None:
        """Wait as long as the limit wants for what a micro-batch has read and no task has said.

        Args:
            documents: that the micro-batch has read.
        """
        with self._lock:
            left = documents - self._documents
        self._pass(max(0, left), 0)

    def close(self) -> None:
        """Let everybody go."""
        self._end.set()

    def hear(self, documents: int, size: int, extents: int, heed: Callable[[], None] = lambda: None) -> None:
        """Take what a task says; returns when it may go on.

        Args:
            heed: called while it waits; what it raises ends the waiting.
        """
        self._pass(documents, size, heed)
        with self._lock:
            self._extents += extents

    def _pass(self, documents: int, size: int, heed: Callable[[], None] = lambda: None) -> None:
        """Return when so many documents have been let through."""
        left = documents
        while not self._end.is_set():
            heed()
            with self._lock:
                granted = self._bucket.take(left, time.monotonic())
                self._documents += granted
                self._bytes += size * granted // documents if documents else 0
            left -= granted
            if left <= 0:
                return
            self._end.wait(_PAUSE_S)


class _Connection(socketserver.StreamRequestHandler):
    """A worker's, in a thread of its own."""

    server: _GateServer
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.settimeout(_CONNECT_LIMIT_S)
            if not hmac.compare_digest(self.rfile.read(TOKEN_BYTES), self.server.token):
                return
            self.connection.settimeout(None)  # a task may read for long
            while len(word := self.rfile.read(_WORD.size)) == _WORD.size:
                self.server.gate.hear(*_WORD.unpack(word))
                self.wfile.write(_GO)


class _GateServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: str, gate: RateGate) -> None:
        super().__init__((address, 0), _Connection)
        self.gate = gate
        self.token = secrets.token_bytes(TOKEN_BYTES)


class ListeningGate(RateGate):
    """The same for tasks of other processes.

    Args:
        host: where tasks find it.
        bind: the address that it listens at; "" for `host`.

    Attributes:
        client: what tasks are given.
    """

    def __init__(self, host: str = "127.0.0.1", bind: str = "") -> None:
        super().__init__()
        self._server = server = _GateServer(bind or host, self)
        self.client = RateClient(host, server.server_address[1], server.token)
        self._listening = Worker("gate", logged, lambda: server.serve_forever(_PAUSE_S))
        self._listening.open()

    def close(self) -> None:
        """Let everybody go, and listen no more."""
        super().close()
        self._server.shutdown()
        self._listening.wait()
        self._server.server_close()


class LocalClient:
    """The same for a task in the driver's own process.

    Args:
        heed: called while it reads or waits; what it raises ends the task.
    """

    def __init__(self, gate: RateGate, heed: Callable[[], None]) -> None:
        self._gate = gate
        self.heed = heed

    def read(self, documents: int, size: int) -> None:
        """As of `RateClient`."""
        self._gate.hear(documents, size, 0, self.heed)
        self.heed()  # the gate lets everybody go when it is closed

    def finished(self) -> None:
        """As of `RateClient`."""
        self._gate.hear(0, 0, 1)


TaskClient = RateClient | LocalClient
"""What a task says to the gate what it reads by."""


def gate_of(session: SparkSession) -> ListeningGate:
    """A gate that listens, and is found by tasks, where Spark's driver is."""
    host, bind = (session.conf.get(f"spark.driver.{name}", "") for name in ("host", "bindAddress"))
    return ListeningGate(host or "127.0.0.1", bind or "")
