"""Asking a primary that blocks, from the event loop: threads, time-outs, and no more at once than is set.

Theory of operation
===================
A call gets a thread of its own, a daemon: it may hang in a driver that knows no time-out, and must neither
hold up the loop nor the end of the process. At most `connections` run at once. Who has waited long enough
goes; its thread keeps its place until it returns, so a primary that hangs costs that many threads and no
more, and those who come meanwhile are told that it does not answer when their time is over.

The first call makes the primary, in its thread: a driver takes half a second to load.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from indexer.validation.core.primary import Primary, PrimaryUnreachableError
from keytide.process.worker import Worker, logged

_T = TypeVar("_T")


class PrimaryThreads:
    """One primary, for the event loop.

    Args:
        keyspace: whose documents it has.
        make: makes it.
        limit: calls at once.
    """

    def __init__(self, keyspace: str, make: Callable[[], Primary], limit: int) -> None:
        self._keyspace = keyspace
        self._make = make
        self._making = threading.Lock()
        self._primary: Primary | None = None
        self._places = asyncio.Semaphore(limit)

    async def run(self, work: Callable[[Primary], _T], timeout_s: float) -> _T:
        """Do `work` in a thread.

        Raises:
            PrimaryUnreachableError: it takes longer than `timeout_s`, the wait for a place included.
            KeytideError: what `work` raises.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        try:
            await asyncio.wait_for(self._places.acquire(), timeout_s)
        except TimeoutError as error:
            raise self._too_late(timeout_s) from error
        done: asyncio.Future[_T] = loop.create_future()
        done.add_done_callback(_forget)  # whoever waits may be gone by then
        Worker(f"primary-{self._keyspace}", logged, lambda: self._call(loop, done, work)).open()
        await asyncio.wait([done], timeout=max(0.0, ends_at - loop.time()))
        if not done.done():
            raise self._too_late(timeout_s)
        return done.result()

    def close(self) -> None:
        if self._primary is not None:
            self._primary.close()

    def _made(self) -> Primary:
        with self._making:
            if self._primary is None:
                self._primary = self._make()
            return self._primary

    def _call(
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[_T], work: Callable[[Primary], _T]
    ) -> None:
        """In the thread."""
        tell: Callable[[], None]
        try:
            result = work(self._made())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
            failure = error

            def tell() -> None:
                done.set_exception(failure)
        else:

            def tell() -> None:
                done.set_result(result)

        def end() -> None:
            self._places.release()
            if not done.cancelled():
                tell()

        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:  # the loop was closed: nobody waits
            return

    def _too_late(self, timeout_s: float) -> PrimaryUnreachableError:
        return PrimaryUnreachableError(
            f"the primary of {self._keyspace} did not answer within {timeout_s:.1f} s",
            next_step="try again, or allow more with timeout_ms",
        )


def _forget(done: asyncio.Future[_T]) -> None:
    """Take note of what it brought, so that asyncio does not log what nobody waits for as forgotten."""
    if not done.cancelled():
        done.exception()
