"""An event loop by the simulated clock: what is ready runs at once, in the order in which it became ready; a
wait ends when the world's time has come to its end. Everything else goes on while coroutines wait.

It is what `asyncio` asks of a loop for tasks, futures and timers, without threads, sockets and waits of its
own. An error in a callback goes to whoever lets time pass: to the history, which it ends.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, ClassVar, Literal, TypeVar, cast

from tests.simulation.clock import Clock

_T = TypeVar("_T")


class _SimTask(asyncio.Task[_T]):
    """One by whose number sets of tasks are ordered, such as `asyncio.wait` gives: else they are by
    addresses, and those are others when Python's collector has run at another moment."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self._number = number  # (before all else: it is put into a set at once)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class SimLoop:
    """Runs coroutines in one world.

    Args:
        clock: of the world.

    Attributes:
        order: 1 when sets of tasks are to begin with the first that was made, -1 with the last.
    """

    order: ClassVar[Literal[1, -1]] = 1

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[events.Handle] = deque()
        self._running = self._due = False
        self._tasks = 0
        self._own = cast(asyncio.AbstractEventLoop, self)

    def run(self) -> None:
        """Run what is ready, and what that makes ready.

        Raises:
            BaseException: of a callback.
        """
        if self._running:
            return
        self._running = True
        try:
            self.within(self._run)
        finally:
            self._running = False

    def within(self, work: Callable[[], _T]) -> _T:
        """What `work` gives, which asks for the loop that runs."""
        outer = events._get_running_loop()
        events._set_running_loop(self._own)
        try:
            return work()
        finally:
            events._set_running_loop(outer)

    def _run(self) -> None:
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                # (Its own `_run` would keep an error to itself.)
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]

    def _run_due(self) -> None:
        self._due = False
        self.run()

    def _soon(self, handle: events.Handle) -> None:
        self._ready.append(handle)
        if not self._running and not self._due:
            self._due = True
            self._clock.after(0, self._run_due)

    # --- what coroutines, tasks and futures ask -----------------------------------------------------------

    def time(self) -> float:
        return self._clock.now / 1000

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self._own, context or copy_context())
        self._soon(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(self.time() + delay, callback, args, self._own, context or copy_context())
        # (Whole milliseconds, and at least one: else time would not get on.)
        self._clock.after(max(1, math.ceil(round(delay * 1000, 3))), lambda: self._soon(timer))
        return timer

    def _timer_handle_cancelled(self, timer: events.TimerHandle) -> None:
        """It stays on the clock, where it does nothing."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._own)

    def create_task(
        self, work: Coroutine[Any, Any, _T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[_T]:
        self._tasks += 1
        return _SimTask(self.order * self._tasks, work, loop=self._own, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task was thrown away with its world."""


def in_simulated_time(work: Coroutine[Any, Any, _T]) -> _T:
    """What a coroutine gives that asks for nothing but tasks, futures and timers: its waits take no time, and
    end in the order in which they should, however busy the machine is.

    Raises:
        BaseException: what it raises.
    """
    clock = Clock()
    loop = SimLoop(clock)
    task = loop.within(lambda: loop.create_task(work))
    while not task.done():
        assert not clock.quiet, "it waits for what never comes"
        clock.run_until(clock.now + 100)
    return task.result()
