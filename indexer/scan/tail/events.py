"""Tails as server-sent events: the events, heartbeats while there are none, and the end.

A tail that cannot go on ends with an event that says why (`history-changed`, `snapshot-gone`, `error`), with
a problem document. What is over soon (a node that restarts) just ends the answer: browsers, and our clients,
come again by themselves with the id of the last event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indexer.scan.plan.errors import PageSnapshotGoneError
from indexer.scan.plan.waiting import ReaderGoneError
from indexer.scan.stream.sending import StreamSender, reader_gone
from indexer.scan.stream.streams import RENEWALS
from indexer.scan.tail.tails import OpenTail, problem_event
from keytide.errors import HistoryChangedError, RetryableError
from keytide.settings.settings import ScanSettings

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "text/event-stream"
_HEARTBEAT: Final = b": nothing new\n\n"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class TailResponse(Response):
    """Sends a tail for as long as its reader is there.

    Args:
        refused: answers an error: counts and logs it, and gives the problem document as a response.
        over: told of the rows that were given and the seconds that it took, at the end.
    """

    def __init__(
        self,
        tail: OpenTail,
        settings: ScanSettings,
        refused: Callable[[Exception], Response],
        over: Callable[[int, float], None],
    ) -> None:
        super().__init__(None, 200, dict(_HEADERS), MEDIA_TYPE)
        del self.headers["content-length"]
        self._tail = tail
        self._settings = settings
        self._refused = refused
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        gone = asyncio.ensure_future(reader_gone(receive))
        renewing = asyncio.ensure_future(self._renew())
        try:
            sender = StreamSender(send, gone, self._settings.stream_stall_s)
            await sender.message(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await self._events(sender)
            await sender.message({"type": "http.response.body", "body": b"", "more_body": False})
        except ReaderGoneError:
            return
        finally:
            gone.cancel()
            renewing.cancel()
            self._over(self._tail.rows, perf_counter() - began)
            await asyncio.shield(self._tail.close())

    async def _events(self, sender: StreamSender) -> None:
        """All events, to the end of the tail."""
        tail = self._tail
        told = 0
        try:
            if tail.resumed:
                await sender.bytes(_HEARTBEAT)
            else:
                async for piece in tail.first():
                    await sender.bytes(piece)
                told = 1
            while tail.events is None or told < tail.events:
                # What is worked out for a reader who goes away is given up.
                event = await sender.unless_gone(tail.next(sender.gone, self._settings.tail_heartbeat_s))
                if event is None:
                    async for piece in tail.heartbeat():
                        await sender.bytes(piece)
                    continue
                async for piece in event:
                    await sender.bytes(piece)
                told += 1
        except ReaderGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - every error is told, and our bugs are logged
            document = json.loads(bytes(self._refused(error).body))
            if isinstance(error, RetryableError):
                log.info("a tail of %s ends: %s", tail.index, error)
                return
            named = isinstance(error, HistoryChangedError | PageSnapshotGoneError)
            await sender.bytes(problem_event(document["type"] if named else "error", document))

    async def _renew(self) -> None:
        """Keep what was told while the reader is slow, or nothing happens."""
        while True:
            await asyncio.sleep(self._settings.tail_lease_s / RENEWALS)
            self._tail.renew()
