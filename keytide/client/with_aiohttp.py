"""Connections on event loops, by aiohttp.

Theory of operation
===================
A session of aiohttp belongs to a loop: each loop that the client is used on has one. So it does in a process
that was forked, where those of the parent are left as they are: to close a connection tells a loop of it, and
what the parent's loop watches is watched for both processes.

A kept connection may end in the moment in which a request is sent. aiohttp asks again by itself what changes
nothing by its method; reading is most often a POST, which is sent once more here, if nothing of an answer
came. All other trying again is that of the flows.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import aiohttp
from yarl import URL

from keytide.client.protocol.calls import ANSWER_S, HttpCall, HttpReply, NoReply
from keytide.client.protocol.reaching import (
    CONNECTIONS,
    KEPT_S,
    Origin,
    all_busy,
    closed,
    failed,
    headers_for,
    silent,
    unreachable,
)

MAX_LINE_BYTES: Final = 1 << 20
"""Of a header: a stream names the next offset of each source partition in one, some 40 bytes each."""
_FAILURES: Final = (aiohttp.ClientError, OSError)
_SKIPPED: Final = ("Accept", "Content-Type")
"""Headers that aiohttp would make up."""


class LoopSession:
    """What one loop asks nodes by.

    Attributes:
        free: places for connections in use.
        streams: that are open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.free = asyncio.Semaphore(CONNECTIONS)
        self.streams = weakref.WeakSet[OpenLoopAnswer]()
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )

    async def close(self) -> None:
        """On its loop, or when that is closed."""
        for stream in list(self.streams):
            stream.leave()
        await self.http.close()

    def close_soon(self) -> None:
        """From another loop."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self.close()))


class OpenLoopAnswer:
    """A stream's body, in `HttpReply.body`. One that nobody holds any more is left.

    Attributes:
        session: one of whose places it has taken.
        over: it is read, or left.
    """

    __slots__ = ("__weakref__", "over", "process", "response", "seconds", "session")

    def __init__(self, response: aiohttp.ClientResponse, seconds: float, session: LoopSession) -> None:
        self.response = response
        self.seconds = seconds
        self.session = session
        self.process = os.getpid()
        self.over = False

    def leave(self) -> None:
        """End it; one that was read to its end has given its connection back."""
        if self.over:
            return
        self.over = True
        if self.process != os.getpid():
            _INHERITED.append(self.response)
            return
        self.session.streams.discard(self)
        _end(self.response, self.session)

    def __del__(self) -> None:
        if self.over:
            return
        if self.process != os.getpid():
            _INHERITED.append(self.response)
            return
        with suppress(RuntimeError):  # its loop is closed
            self.session.loop.call_soon_threadsafe(_end, self.response, self.session)


def _end(response: aiohttp.ClientResponse, session: LoopSession) -> None:
    if not session.loop.is_closed():
        response.close()
    session.free.release()


_INHERITED: Final[list[object]] = []
"""What is the parent's, and must not be closed here, as it is when it is collected."""


class AiohttpConnections:
    """The connections of one client, on any event loops.

    Args:
        origins: by the address of the node.
        trust: for nodes that serve TLS.
    """

    def __init__(self, origins: Mapping[str, Origin], trust: ssl.SSLContext | None) -> None:
        self._origins = origins
        self._trust = trust
        self.closed = False
        self._process = os.getpid()
        self._sessions: dict[asyncio.AbstractEventLoop, LoopSession] = {}

    async def call(self, call: HttpCall, seconds: float) -> HttpReply | NoReply:
        """An answer, whose body is open if the call says so.

        Args:
            seconds: how long nothing may come back.

        Raises:
            CallerError: a header cannot hold what it is to say.
        """
        origin = self._origins[call.node]
        headers = headers_for(call, origin.headers)
        session = await self._session()
        if session.free.locked():
            try:
                async with asyncio.timeout(seconds):
                    await session.free.acquire()
            except TimeoutError:
                return all_busy()
        else:
            await session.free.acquire()  # at once
        done: HttpReply | NoReply | None = None
        try:
            done = await self._ask(session, origin, call, headers, seconds)
        finally:
            if not isinstance(done, HttpReply) or done.body is None:
                session.free.release()
        return done

    async def _ask(
        self, session: LoopSession, origin: Origin, call: HttpCall, headers: dict[str, str], seconds: float
    ) -> HttpReply | NoReply:
        limit = min(ANSWER_S, seconds)
        try:
            try:
                response = await self._send(session, origin, call, headers, seconds)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if call.method != "POST" or not _ended(error) or self.closed:
                    raise
                response = await self._send(session, origin, call, headers, seconds)
            if call.stream and response.status == 200:
                body = OpenLoopAnswer(response, seconds, session)
                session.streams.add(body)
                return HttpReply(call.node, 200, response.headers, b"", response.reason or "", body)
            content = await response.read()
        except _FAILURES as error:
            return closed() if self.closed else _failure(error, seconds, limit)
        except RuntimeError:
            if self.closed:  # "Session is closed"
                return closed()
            raise
        return HttpReply(call.node, response.status, response.headers, content, response.reason or "")

    async def _send(
        self, session: LoopSession, origin: Origin, call: HttpCall, headers: dict[str, str], seconds: float
    ) -> aiohttp.ClientResponse:
        """The answer as far as its head. Raises as aiohttp does."""
        limit = min(ANSWER_S, seconds)
        return await session.http.request(
            call.method,
            URL(f"{origin.url}{origin.path}{call.path}", encoded=True),
            data=call.content if call.content or call.method == "POST" else None,
            headers=headers,
            allow_redirects=False,
            # (aiohttp would put off the end of 5 s and more to the clock's next whole second)
            timeout=aiohttp.ClientTimeout(
                total=None, connect=limit, sock_read=seconds, ceil_threshold=math.inf
            ),
            ssl=self._trust if origin.secure and self._trust is not None else True,
        )

    async def read(self, body: OpenLoopAnswer) -> bytes | NoReply:
        """The next bytes of an open answer, b"" when it is complete."""
        if body.over:
            return NoReply("the answer was closed")
        try:
            data = await body.response.content.readany()
        except _FAILURES as error:
            body.leave()
            return closed() if self.closed else _failure(error, body.seconds)
        except BaseException:
            body.leave()
            raise
        if not data:
            body.leave()
        return data

    async def leave(self, body: OpenLoopAnswer) -> None:
        """Be done with an open answer, in the middle of it or at its end."""
        body.leave()

    async def close(self) -> None:
        """Be done with all connections; whoever waits for one gets to know that."""
        self.closed = True
        self._begin_in_child()
        running = asyncio.get_running_loop()
        sessions, self._sessions = self._sessions, {}
        for loop, session in sessions.items():
            if loop is running or loop.is_closed():
                await session.close()
            else:
                session.close_soon()

    async def _session(self) -> LoopSession:
        """That of the running loop."""
        self._begin_in_child()
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            session = self._sessions[loop] = LoopSession(loop)
            for other in [one for one in list(self._sessions) if one.is_closed()]:
                if (ended := self._sessions.pop(other, None)) is not None:  # else another thread does it
                    await ended.close()
        return session

    def _begin_in_child(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            _INHERITED.append(self._sessions)
            self._sessions = {}


def _ended(error: Exception) -> bool:
    """Whether a connection ended in place of an answer."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is a part of one
    return not isinstance(error, aiohttp.ClientConnectorError)


def _failure(error: Exception, seconds: float, limit: float = ANSWER_S) -> NoReply:
    """Why there is no answer.

    Args:
        seconds, limit: how long was waited for more of one, and for a connection.
    """
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return unreachable(limit)
    if isinstance(error, TimeoutError):
        return silent(seconds)
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return failed(error.os_error)
    return failed(error)
