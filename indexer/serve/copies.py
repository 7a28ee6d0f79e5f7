"""Answers other nodes that fill copies of this node's slices (`indexer.copying.source`), in a thread of its
own: one copy is read at a time, and none keeps a thread from scans.

Copies give way. When the event loop comes late to an answer that is there, so does it to those of scans: the
processors are busy, or this process is. Then the answer waits for some times as long, and with it who fills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final, TypeVar

from indexer.copying.messages import CopyRequest, read_request
from indexer.copying.source import CopySources
from indexer.view import NodeView, StoreDamagedError
from keytide.errors import RetryableError
from keytide.process.clock import now_ms

LOOK_S: Final = 10.0
"""Between looks for exports that nobody asks for any more."""
LATE_S: Final = 0.004
"""So late the loop may come to an answer: a shared processor takes a few milliseconds to come back."""
GIVE_WAY: Final = 4
"""Times the loop was late; a copy takes a fifth of what it would then, at most."""
LONGEST_WAIT_S: Final = 0.5
"""A copy goes on in any case, by an answer in so long: its slice's queue in Kafka waits for it."""

ResultT = TypeVar("ResultT")


class CopyEndpoint:
    """What a node answers. Used on the event loop."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._sources = CopySources(view.export, view.catalog, view.node_id)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copied")
        self._looking: asyncio.Task[None] | None = None

    async def answer(self, body: bytes) -> bytes:
        """The next rows for a copy.

        Raises:
            MalformedRequestError: `body` is no request.
            RetryableError: `store-damaged`, and as `CopySources.answer`.
        """
        request = read_request(body)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        answer, ready = await self._do(lambda: (self._answer(request), monotonic()))
        if (late := monotonic() - ready) > LATE_S:
            await asyncio.sleep(min(GIVE_WAY * late, LONGEST_WAIT_S))
        return answer

    def _answer(self, request: CopyRequest) -> bytes:
        try:
            return self._sources.answer(request, now_ms())
        except StoreDamagedError as error:
            self._view.report_damage(request.index, request.slice, error.message)
            raise RetryableError(
                f"slice {request.slice} of {request.index} is damaged: {error.message}",
                problem_type="store-damaged",
                next_step="it is filled from another copy, or rebuilt",
            ) from error

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._do(lambda: self._sources.expire(now_ms()))

    async def _do(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Close all exports."""
        if self._looking is not None:
            self._looking.cancel()
        await self._do(self._sources.close)
        self._thread.shutdown(wait=False)
