"""Connections for programs that wait, by urllib3.

Theory of operation
===================
Each node has a pool of urllib3, which looks at a kept connection before it uses it again: whatever can be
read of it then is its end. It may still end in the moment in which the request is sent. So a request on a
kept connection that ends without an answer is sent again, at last on a new connection; all requests read,
and may be sent twice. All other trying again is that of the flows, so urllib3 does none.

Heads are read by `http.client`, which takes no line of more than 65,536 bytes: a stream names the next offset
of each source partition in one, some 40 bytes each, so of 1,600 partitions.

How many connections are in use is counted here, over all nodes. What is taken of `SimpleQueue` may be given
back while garbage is collected, which may happen while any lock is held: so a stream that nobody holds any
more can end its connection and give its place back at once.

In a process that was forked the pools are made anew. Closing the handles of the parent's connections says
nothing to the other end.
"""

from __future__ import annotations

import os
import ssl
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)

from keytide.client.protocol.calls import ANSWER_S, HttpCall, HttpReply, NoReply
from keytide.client.protocol.reaching import (
    CONNECTIONS,
    Origin,
    all_busy,
    closed,
    failed,
    headers_for,
    silent,
    unreachable,
)

_FAILURES: Final = (HTTPError, HTTPException, OSError, ValueError)
"""ValueError: of a file that another thread has closed."""


class _Made(threading.local):
    """Whether this thread had to make a connection for what it asks."""

    new = False


_MADE: Final = _Made()


class NotedConnection(HTTPConnection):
    """Notes when it is made."""

    def connect(self) -> None:
        _MADE.new = True
        super().connect()


class NotedTlsConnection(HTTPSConnection):
    """Notes when it is made."""

    def connect(self) -> None:
        _MADE.new = True
        super().connect()


class NodePool(urllib3.HTTPConnectionPool):
    """The kept connections to one node."""

    ConnectionCls = NotedConnection


class TlsNodePool(urllib3.HTTPSConnectionPool):
    """The kept connections to one node that serves TLS."""

    ConnectionCls = NotedTlsConnection


class OpenAnswer:
    """A stream's body, in `HttpReply.body`. One that nobody holds any more is left.

    Attributes:
        places: one of which it has taken.
        reading: held by the thread that waits for more of it.
        over: it is read, or left.
    """

    __slots__ = ("__weakref__", "over", "places", "reading", "response", "seconds")

    def __init__(self, response: urllib3.BaseHTTPResponse, seconds: float, places: SimpleQueue[None]) -> None:
        self.response = response
        self.seconds = seconds
        self.places = places
        self.reading = threading.Lock()
        self.over = False

    def leave(self) -> None:
        """End it; one that was read to its end has given its connection back."""
        if not self.over:
            self.over = True
            self.response.close()
            self.places.put(None)

    def __del__(self) -> None:
        self.leave()


class Urllib3Connections:
    """The connections of one client, for several threads.

    Args:
        origins: by the address of the node.
        trust: for nodes that serve TLS.
    """

    def __init__(self, origins: Mapping[str, Origin], trust: ssl.SSLContext | None) -> None:
        self._origins = origins
        self._trust = trust
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self._places = SimpleQueue[None]()
        for _ in range(CONNECTIONS):
            self._places.put(None)
        self._pools = {url: self._pool(origin) for url, origin in self._origins.items()}
        self._lock = threading.Lock()
        self._streams = weakref.WeakSet[OpenAnswer]()
        # Last: another thread of a child must not take a connection that is the parent's.
        self._process = os.getpid()

    def _pool(self, origin: Origin) -> urllib3.HTTPConnectionPool:
        if origin.secure:
            return TlsNodePool(origin.host, origin.port, maxsize=CONNECTIONS, ssl_context=self._trust)
        return NodePool(origin.host, origin.port, maxsize=CONNECTIONS)

    def call(self, call: HttpCall, seconds: float) -> HttpReply | NoReply:
        """An answer, whose body is open if the call says so.

        Args:
            seconds: how long nothing may come back.

        Raises:
            CallerError: a header cannot hold what it is to say.
        """
        if self._process != os.getpid():
            self._begin()
        origin = self._origins[call.node]
        headers = headers_for(call, origin.headers)
        places = self._places
        try:
            places.get(timeout=seconds)
        except Empty:
            return all_busy()
        done: HttpReply | NoReply | None = None
        try:
            done = self._ask(call, origin.path + call.path, headers, seconds, places)
        finally:
            if not isinstance(done, HttpReply) or done.body is None:
                places.put(None)
        return done

    def _ask(
        self, call: HttpCall, path: str, headers: dict[str, str], seconds: float, places: SimpleQueue[None]
    ) -> HttpReply | NoReply:
        limit = min(ANSWER_S, seconds)
        pool = self._pools[call.node]
        body = call.content if call.content or call.method == "POST" else None
        while True:
            _MADE.new = False
            try:
                response = pool.urlopen(
                    call.method,
                    path,
                    body,
                    headers,
                    retries=False,
                    redirect=False,
                    timeout=urllib3.Timeout(connect=limit, read=seconds),
                    preload_content=False,
                )
            except _FAILURES as error:
                if self.closed:
                    return closed()
                if _MADE.new or not _ended(error):
                    return _failure(error, seconds, limit)
            else:
                break
        if call.stream and response.status == 200:
            opened = OpenAnswer(response, seconds, places)
            with self._lock:
                self._streams.add(opened)
            if self.closed:
                opened.over = True  # its place is given back with the call's
                response.close()
                return closed()
            return HttpReply(call.node, 200, response.headers, b"", response.reason or "", opened)
        try:
            content = response.read()
        except _FAILURES as error:
            return _failure(error, seconds, limit)
        except BaseException:
            response.close()
            raise
        return HttpReply(call.node, response.status, response.headers, content, response.reason or "")

    def read(self, body: OpenAnswer) -> bytes | NoReply:
        """The next bytes of an open answer, b"" when it is complete."""
        with body.reading:
            if body.over:
                return NoReply("the answer was closed")
            try:
                data = body.response.read1()
            except _FAILURES as error:
                self.leave(body)
                return closed() if self.closed else _failure(error, body.seconds)
            except BaseException:
                self.leave(body)
                raise
            if not data or self.closed:
                self.leave(body)
                if self.closed:
                    return closed()
            return data

    def leave(self, body: OpenAnswer) -> None:
        """Be done with an open answer, in the middle of it or at its end."""
        body.leave()

    def close(self) -> None:
        """Be done with all connections; whoever waits for one gets to know that."""
        self.closed = True
        if self._process != os.getpid():
            self._begin()
        for pool in self._pools.values():
            pool.close()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            if stream.reading.acquire(blocking=False):
                self.leave(stream)
                stream.reading.release()
            else:
                with suppress(RuntimeError, ValueError, OSError):  # it has come to its end meanwhile
                    stream.response.shutdown()


def _ended(error: Exception) -> bool:
    """Whether a connection ended in place of an answer."""
    return isinstance(error, ProtocolError) and isinstance(error.args[-1], ConnectionError)


def _failure(error: Exception, seconds: float, limit: float = ANSWER_S) -> NoReply:
    """Why there is no answer.

    Args:
        seconds, limit: how long was waited for more of one, and for a connection.
    """
    if isinstance(error, NewConnectionError):
        return failed(error.__cause__ or error)
    if isinstance(error, ConnectTimeoutError):
        return unreachable(limit)
    if isinstance(error, ReadTimeoutError | TimeoutError):
        return silent(seconds)
    cause = error.args[-1] if isinstance(error, HTTPError) and error.args else error
    return failed(cause if isinstance(cause, Exception) else error)
