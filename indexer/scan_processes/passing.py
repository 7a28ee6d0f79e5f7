"""Passing requests on to the node, over a local socket, and its answers back.

The node listens there with the whole of its endpoint (`indexer.serve.api`). What is passed on goes as it
came, but for what HTTP says of one connection; streams come back piece by piece. Who asks is told in a header
of our own (`CLIENT_HEADER`), as only processes of the node's user reach the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import aiohttp
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from indexer.scan.http.endpoint import gone_of
from keytide.errors import RetryableError

CLIENT_HEADER: Final = b"keytide-client"
"""Address and port of a client."""
SOCKET: Final = "scan.sock"
"""In the node's folder."""
_OF_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        CLIENT_HEADER,
    }
)
_OURS: Final = frozenset({b"date", b"server"})
"""Headers of an answer that the server here writes itself."""
_LEFT_ALONE: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class NodeSilentError(RetryableError):
    """The node does not take what is passed on: it starts, or ends."""

    problem_type = "starting"


class HalfAnsweredError(Exception):
    """The node has ended in the midst of an answer. Never answered to anybody: the connection is closed."""


class Passing:
    """Passes requests on. On one event loop; close it.

    Args:
        way: to the socket.

    Attributes:
        count: requests that were passed on.
    """

    def __init__(self, way: str) -> None:
        self._way = way
        self._session: aiohttp.ClientSession | None = None
        self.count = 0

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def on(self, scope: Scope, receive: Receive, send: Send, body: bytes | None = None) -> None:
        """Have the node answer a request.

        Args:
            body: what was read of it; None when nothing was.

        Raises:
            NodeSilentError: nothing was answered.
            HalfAnsweredError: something was, and the rest does not come.
        """
        self.count += 1
        request = Request(scope, receive)
        whole = await request.body() if body is None else body
        answered = asyncio.ensure_future(self._answer(scope, whole, send))
        gone = asyncio.ensure_future(gone_of(request)())
        try:
            await asyncio.wait({answered, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                answered.result()
        finally:
            gone.cancel()
            if not answered.done():  # its connection is closed, which tells the node
                answered.cancel()
            await asyncio.gather(answered, gone, return_exceptions=True)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        begun = False
        try:
            try:
                response = await self._asked(scope, body)
            except aiohttp.ServerDisconnectedError:  # a kept connection that was just closed
                response = await self._asked(scope, body)
            async with response:
                headers = [
                    (name.lower(), value)
                    for name, value in response.raw_headers
                    if name.lower() not in _OF_CONNECTION and name.lower() not in _OURS
                ]
                begun = True
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                async for piece in response.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except aiohttp.ClientError as error:
            if begun:
                raise HalfAnsweredError(str(error)) from error
            raise NodeSilentError(
                f"the node of this scan process does not answer: {error}", next_step="try again in a moment"
            ) from error

    async def _asked(self, scope: Scope, body: bytes) -> aiohttp.ClientResponse:
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        return await self._opened().request(
            scope["method"],
            _url(path),
            data=body or None,
            headers=_headers(scope),
            allow_redirects=False,
            skip_auto_headers=_LEFT_ALONE,
        )

    async def ask(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        """What the node answers to a message: (status, body). Raises as aiohttp does."""
        async with self._opened().post(
            _url(path.encode()), data=body, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout_s)
        ) as response:
            return response.status, await response.read()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._way, limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def way_to(folder: int) -> str:
    """The address of the node's socket, through its open folder: the path itself may be too long for one."""
    return f"/proc/self/fd/{folder}/{SOCKET}"


class Passed:
    """In front of the node's application: tells it who has asked a scan process.

    Args:
        app: the application, which is reached by scan processes alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            told = dict(scope["headers"]).get(CLIENT_HEADER, b"").decode("latin-1")
            host, _, port = told.rpartition(" ")
            scope = {
                **scope,
                "client": (host, int(port)) if host and port.isdigit() else None,
                "headers": [one for one in scope["headers"] if one[0] != CLIENT_HEADER],
            }
        await self._app(scope, receive, send)


def _url(path: bytes) -> URL:
    """As it was asked for: an address that is written anew might be another one."""
    return URL("http://localhost/" + path.decode("latin-1").removeprefix("/"), encoded=True)


def _headers(scope: Scope) -> list[tuple[str, str]]:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name not in _OF_CONNECTION and name != b"content-length"
    ]
    if scope.get("client"):
        headers.append((CLIENT_HEADER.decode(), "{} {}".format(*scope["client"])))
    return headers
