"""Tails as server-sent events: the events, heartbeats while there are none, and the end.

A tail that cannot go on ends with an event that says why (`history-changed`, `snapshot-gone`, `error`), with
a problem document. What is over soon (a node that restarts) just ends the answer: browsers, and our clients,
come again by themselves with the id of the last event.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from indexer.scan.plan.errors import PageSnapshotGoneError
from indexer.scan.plan.waiting import ReaderGoneError
from indexer.scan.shape.rows import encode
from indexer.scan.stream.sending import LongResponse, StreamSender
from indexer.scan.stream.streams import RENEWALS
from indexer.scan.tail.tails import OpenTail
from keytide.errors import HistoryChangedError, RetryableError

log = logging.getLogger(__name__)

_HEARTBEAT: Final = b": nothing new\n\n"


class TailResponse(LongResponse[OpenTail]):
    """Sends a tail for as long as its reader is there."""

    async def _send(self, sender: StreamSender) -> bool:
        await self._events(sender)
        return True

    async def _events(self, sender: StreamSender) -> None:
        """All events, to the end of the tail."""
        tail = self._opened
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
            document = self._problem(error)
            if isinstance(error, RetryableError):
                log.info("a tail of %s ends: %s", tail.index, error)
                return
            named = isinstance(error, HistoryChangedError | PageSnapshotGoneError)
            await sender.bytes(_problem_event(document["type"] if named else "error", document))

    async def _keep(self) -> None:
        """Keep what was told while the reader is slow, or nothing happens."""
        while True:
            await asyncio.sleep(self._settings.tail_lease_s / RENEWALS)
            self._opened.renew()


def _problem_event(name: str, document: dict[str, Any]) -> bytes:
    """The last event of a tail that cannot go on."""
    return f"event: {name}\ndata: ".encode() + encode(document) + b"\n\n"
