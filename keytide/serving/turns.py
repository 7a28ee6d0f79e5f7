"""Whose request is begun next, where more come than a server answers.

Theory of operation
===================
A page is answered in one step of the event loop, in half a millisecond: a thousand that come at once would
hold the loop for half a second, and each of them would be answered as late as the last one. So only a few
requests are begun in one pass of the loop. Those that come meanwhile wait, each client's in a queue of their
own, and are begun by turns (fair queueing): a client with a thousand connections makes another one, with a
single connection, wait for one request and not for a thousand. Not more than so many wait in all. When there
is no room, the newest request of the client with the most of them is refused: whoever asks again later is
answered then, and who waits is answered as soon as at the limit. (Longest queue drop, as in McKenney's
Stochastic Fairness Queueing, 1990.)

What the parts of the cluster ask of one another belongs to something that was begun already, and nodes have
only so many connections to each other: it waits in a queue of its own, of which up to half of what is begun
in one pass is taken, and nothing of it is refused.

Where fewer come, nothing waits, and a turn costs a microsecond.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from keytide.errors import RetryableError

AT_ONCE: Final = 4
"""Requests that are begun in one pass of the loop: it then looks after everything else, two milliseconds
later. In one pass uvloop takes in one new connection: with 16, the last of 128 that came at once was let in
after 1.3 s, and with as many as there are after 4."""


class OverloadedError(RetryableError):
    """More requests wait than may."""

    problem_type = "overloaded"


class Turns:
    """Event loop only.

    Args:
        most: requests that wait at most.

    Attributes:
        waiting: how many do.
    """

    def __init__(self, most: int) -> None:
        self.waiting = 0
        self._most = most
        self._left = AT_ONCE
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """The client whose turn comes next is the first one."""
        self._cluster: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False

    async def take_for_cluster(self) -> None:
        """Wait for a turn of what another part of the cluster asks."""
        loop = self._here()
        if not self._at_once():
            turn: asyncio.Future[None] = loop.create_future()
            self._cluster.append(turn)
            await turn

    async def take(self, client: Callable[[], str]) -> None:
        """Wait for a turn.

        Args:
            client: who asks; called where somebody has to wait.

        Raises:
            OverloadedError: there are too many before it.
        """
        loop = self._here()
        if not self._at_once():
            turn: asyncio.Future[None] = loop.create_future()
            self._join(client(), turn)
            await turn

    def _here(self) -> asyncio.AbstractEventLoop:
        """The running loop, on which a pass is due."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what was left on another one waits for ever
            self._loop, self._left, self._due, self.waiting = loop, AT_ONCE, False, 0
            self._queues.clear()
            self._cluster.clear()
        if not self._due:
            self._due = True
            loop.call_soon(self._pass)
        return loop

    def _at_once(self) -> bool:
        """Take one of this pass, if any is left."""
        if not self._left or self._queues or self._cluster:
            return False
        self._left -= 1
        return True

    def _join(self, client: str, turn: asyncio.Future[None]) -> None:
        """Wait behind the other requests of a client."""
        queue = self._queues.get(client, deque())
        if self.waiting >= self._most:
            longest = max(self._queues.values(), key=len)
            if len(longest) <= len(queue) + 1:
                raise self._refusal()
            last = longest.pop()
            self.waiting -= 1
            if not last.done():
                last.set_exception(self._refusal())
        queue.append(turn)
        self._queues[client] = queue
        self.waiting += 1

    def _pass(self) -> None:
        """In each pass of the loop in which anybody asks: begin the next ones."""
        left = AT_ONCE
        least = AT_ONCE // 2 if self._queues else 0
        while left > least and self._cluster:
            left -= _begin(self._cluster.popleft())
        while left and self._queues:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            turn = queue.popleft()
            self.waiting -= 1
            if queue:
                self._queues[client] = queue
            left -= _begin(turn)
        while left and self._cluster:
            left -= _begin(self._cluster.popleft())
        self._left = left
        self._due = left < AT_ONCE
        if self._due and self._loop is not None:
            self._loop.call_soon(self._pass)

    def _refusal(self) -> OverloadedError:
        return OverloadedError(
            f"{self.waiting} requests wait for this process already, and nobody has more of them than you",
            next_step="come again later, with fewer at a time, or ask another node; more may wait with "
            "http.max_waiting, longer",
        )


def _begin(turn: asyncio.Future[None]) -> int:
    """Give somebody a turn; how many were given: none to who has gone."""
    if turn.done():
        return 0
    turn.set_result(None)
    return 1
