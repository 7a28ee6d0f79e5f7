"""Answers other nodes that fill copies of this node's slices (`indexer.copying.source`), in a thread of its
own: one copy is read at a time, and none keeps a thread from scans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from indexer.copying.messages import CopyRequest, read_request
from indexer.copying.source import CopySources
from indexer.view import NodeView, StoreDamagedError
from keytide.errors import RetryableError
from keytide.process.clock import now_ms

LOOK_S: Final = 10.0
"""Between looks for exports that nobody asks for any more."""

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
        return await self._do(lambda: self._answer(request))

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
