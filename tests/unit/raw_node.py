"""A node of bytes, for tests of what happens on connections: it does with each request what it is told to,
and remembers what came; and both clients in one, on real connections."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from keytide.client import AsyncClient, Client

Kind = Literal["sync", "async"]
LIMIT_S = 20.0
MOMENT = {"snapshot": 7, "timestamp": {}, "session": "s7"}


@dataclass(frozen=True)
class Asked:
    """A request: the how-manieth of which connection, both from 0, and what it says."""

    connection: int
    number: int
    head: str
    body: bytes

    @property
    def path(self) -> str:
        return self.head.split(" ", 2)[1]

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            said, _, value = line.partition(": ")
            if said.lower() == name:
                return value
        return None


Reaction = Callable[[Asked, socket.socket], bytes | None]
"""Gives what to answer; None to close the connection."""


class RawNode:
    """Listens on a port of its own.

    Attributes:
        asked: requests in the order in which they came.
        connections: how many were made.
        ended: set when a connection was ended by the client.
    """

    def __init__(self, react: Reaction, tls: ssl.SSLContext | None = None) -> None:
        self._react = react
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.asked: list[Asked] = []
        self.connections = 0
        self.ended = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def cut(self) -> None:
        """End all connections, from this side."""
        with self._lock:
            for one in self._open:
                try:
                    socket.socket.shutdown(one, socket.SHUT_RDWR)
                except OSError:
                    pass
            self._open.clear()

    def bodies(self) -> list[Any]:
        return [json.loads(one.body) if one.body else None for one in self.asked]

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                number, self.connections = self.connections, self.connections + 1
                self._open.append(made)
            thread = threading.Thread(target=self._serve, args=(made, number))
            self._threads.append(thread)
            thread.start()

    def _serve(self, made: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_side=True)
                with self._lock:
                    self._open.append(made)
            for asked in _requests(made, number):
                with self._lock:
                    self.asked.append(asked)
                answer = self._react(asked, made)
                if answer is None:
                    return
                made.sendall(answer)
            self.ended.set()
        except OSError:
            self.ended.set()
        finally:
            with self._lock:
                self._open = [one for one in self._open if one is not made]
            made.close()


def _requests(made: socket.socket, connection: int) -> Iterator[Asked]:
    held, number = b"", 0
    while True:
        while b"\r\n\r\n" not in held:
            data = made.recv(65536)
            if not data:
                return
            held += data
        head, _, held = held.partition(b"\r\n\r\n")
        asked = Asked(connection, number, head.decode(), b"")
        length = int(asked.header("content-length") or 0)
        while len(held) < length:
            held += made.recv(65536)
        yield Asked(connection, number, head.decode(), held[:length])
        held, number = held[length:], number + 1


def answer(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


def counted(n: int = 0, **more: Any) -> bytes:
    return answer(json.dumps({**MOMENT, "count": n, **more}).encode())


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    """Chunks of a body, and its end."""
    made = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return made + (b"0\r\n\r\n" if end else b"")


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nKeytide-Snapshot: 7\r\nKeytide-Timestamp: {}\r\n"
    b"Keytide-Session: s7\r\n\r\n"
)


class Caller:
    """One of the two clients on real connections; what it does is waited for.

    Attributes:
        pauses: seconds.
    """

    def __init__(self, kind: Kind, url: str | list[str], **client: Any) -> None:
        self.kind = kind
        self.pauses: list[float] = []
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.client: Any
        if kind == "sync":
            self.client = Client(url, sleep=self.pauses.append, **client)
        else:
            self.client = AsyncClient(url, sleep=self._sleep, **client)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def wait(self, made: Any) -> Any:
        if self._loop is None or not hasattr(made, "__await__"):
            return made
        return self._loop.run_until_complete(made)

    def count(self, **request: Any) -> int:
        found: int = self.wait(self.client.count("i", **request)).count
        return found

    @contextmanager
    def giving_up_after(self, seconds: float) -> Iterator[None]:
        """Nothing may come back for so long at most, meanwhile. (What is to be answered has as long as it
        needs where the machine is busy.)"""
        shell = self.client._shell
        before, shell._answer_s = shell._answer_s, seconds
        yield
        shell._answer_s = before

    def next(self, result: Any) -> Any:
        return next(result) if self._loop is None else self._loop.run_until_complete(anext(result))

    def end(self, stream: Any) -> None:
        """Of a generator."""
        self.wait(stream.close() if self._loop is None else stream.aclose())

    def close(self) -> None:
        self.wait(self.client.close())
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


@contextmanager
def calling(kind: Kind, url: str | list[str], **client: Any) -> Iterator[Caller]:
    made = Caller(kind, url, **client)
    try:
        yield made
    finally:
        made.close()
