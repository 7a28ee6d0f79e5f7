"""Sending to readers that may be slow, stop taking anything, or go away: streams, and whatever else is long.

Theory of operation
===================
Bytes are sent in small pieces, and the server (uvicorn) takes the next piece only when the connection has
room for it: a reader that does not read holds up everything behind it. What is waited for, a piece or the
next rows, is given up when the reader goes away (`http.disconnect`), a piece also after the time in which a
reader must take one.

A body that is not ended by an empty last message is broken off by the server: with chunked transfer the
client sees that the last chunk never came.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indexer.scan.plan.waiting import ReaderGoneError
from indexer.scan.stream.streams import RowStream
from keytide.settings.settings import ScanSettings

log = logging.getLogger(__name__)

PIECE: Final = 1 << 18
"""Bytes that are sent at once: what a reader must take within the time after which it is let go."""

ResultT = TypeVar("ResultT")


class Opened(Protocol):
    """What is sent.

    Attributes:
        head: headers.
        rows: how many were given so far.
    """

    head: dict[str, str]
    media_type: str
    rows: int

    async def close(self) -> None: ...


OpenedT = TypeVar("OpenedT", bound=Opened)


class LongResponse(Response, Generic[OpenedT]):
    """Sends what is open for a reader, and closes it when it is over, however that comes about.

    Args:
        refused: answers an error: counts and logs it, and gives the problem document as a response.
        over: told of the rows that were given and the seconds that it took, when it is closed.
    """

    def __init__(
        self,
        opened: OpenedT,
        settings: ScanSettings,
        refused: Callable[[Exception], Response],
        over: Callable[[int, float], None],
    ) -> None:
        super().__init__(None, 200, opened.head, opened.media_type)
        del self.headers["content-length"]
        self._opened = opened
        self._settings = settings
        self._refused = refused
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        gone = asyncio.ensure_future(reader_gone(receive))
        keeping = asyncio.ensure_future(self._keep())
        try:
            sender = StreamSender(send, gone, self._settings.stream_stall_s)
            await sender.message(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if await self._send(sender):
                await sender.message({"type": "http.response.body", "body": b"", "more_body": False})
        except ReaderGoneError:
            return
        finally:
            gone.cancel()
            keeping.cancel()
            self._over(self._opened.rows, perf_counter() - began)
            await asyncio.shield(self._opened.close())

    async def _send(self, sender: StreamSender) -> bool:
        """Send all of it, or what can be had; whether the body ends well. Without the last chunk the server
        breaks the connection off."""
        raise NotImplementedError

    async def _keep(self) -> None:
        """Runs until it is closed, from before its reader takes the head."""

    def _problem(self, error: Exception) -> dict[str, Any]:
        """The document of an error, counted and logged."""
        document: dict[str, Any] = json.loads(bytes(self._refused(error).body))
        return document


class StreamResponse(LongResponse[RowStream]):
    """Sends a stream."""

    async def _send(self, sender: StreamSender) -> bool:
        stream = self._opened
        try:
            await sender.bytes(stream.form.begin())
            while (rows := await sender.unless_gone(stream.next())) is not None:
                await sender.bytes(rows)
            await sender.bytes(stream.form.end())
        except ReaderGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - every error is told, and our bugs are logged
            await sender.bytes(stream.form.problem(self._problem(error)))
            return False
        return True


class StreamSender:
    """Sends to a reader that may be slow, stop taking anything, or go away."""

    def __init__(self, send: Send, gone: asyncio.Future[None], stall_s: float) -> None:
        self._send = send
        self._gone = gone
        self._stall_s = stall_s

    async def bytes(self, data: bytes) -> None:
        """Send a part of the body.

        Raises:
            ReaderGoneError: it takes nothing any more.
        """
        for start in range(0, len(data), PIECE):
            await self.message(
                {"type": "http.response.body", "body": data[start : start + PIECE], "more_body": True}
            )

    async def message(self, message: dict[str, Any]) -> None:
        await self.unless_gone(self._send(message), self._stall_s)

    async def gone(self) -> None:
        """Returns when the reader has gone away (`indexer.scan.plan.waiting.Gone`)."""
        await asyncio.wait([self._gone])

    async def unless_gone(self, work: Awaitable[ResultT], limit_s: float | None = None) -> ResultT:
        """The outcome of `work`.

        Raises:
            ReaderGoneError: the reader went away first, or `limit_s` seconds did.
        """
        task = asyncio.ensure_future(_awaited(work))
        try:
            either: set[asyncio.Future[Any]] = {task, self._gone}
            await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or self._gone.done():
                if not self._gone.done():
                    log.info("a reader took nothing for %.0f s, and was let go", limit_s)
                raise ReaderGoneError
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def reader_gone(receive: Receive) -> None:
    """Returns when the reader has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _awaited(work: Awaitable[ResultT]) -> ResultT:
    return await work
