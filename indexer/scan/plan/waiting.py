"""Waiting: scans that need a later snapshot sleep until the node tells of one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

Gone = Callable[[], Awaitable[None]]
"""Returns when the reader of a request has gone away; never before."""


class ReaderGoneError(Exception):
    """The reader has gone away; nobody wants the answer."""


class SnapshotNotifier:
    """Wakes those who wait for a published number or the catalog to change. Made on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def tell(self) -> None:
        """There is news (any thread). Costs nothing while nobody waits."""
        if self._listeners:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop was closed: the endpoint is down, the ingest thread is not
                return

    @contextmanager
    def listening(self) -> Iterator[asyncio.Future[None]]:
        """A future that is done at the next news. Listen, then look, then wait: so nothing is missed."""
        heard: asyncio.Future[None] = self._loop.create_future()
        self._listeners[heard] = None
        try:
            yield heard
        finally:
            self._listeners.pop(heard, None)

    def _wake(self) -> None:
        for heard in self._listeners:
            if not heard.done():
                heard.set_result(None)


class Deadline:
    """Bounds the waits of one request: by its deadline, and by its reader's going away.

    Args:
        seconds: until the deadline, from the beginning of the request.
        gone: see `Gone`; asked only if the request has to wait.
        spent: seconds since its beginning.
    """

    def __init__(self, seconds: float, gone: Gone, spent: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time() - spent
        self._deadline = self._began + seconds
        self._gone = gone
        self._watch: asyncio.Future[None] | None = None

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self._deadline - self._loop.time())

    @property
    def waited_ms(self) -> int:
        return int((self._loop.time() - self._began) * 1000)

    async def wait(self, heard: asyncio.Future[None] | None = None, at_most: float | None = None) -> None:
        """Wait until `heard` is done, `at_most` seconds or the deadline.

        Raises:
            ReaderGoneError: nobody waits for the answer any more.
        """
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._gone())
        futures = {self._watch} if heard is None else {self._watch, heard}
        seconds = self.left if at_most is None else min(self.left, at_most)
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._watch.done():
            raise ReaderGoneError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
