"""Simulated time: a heap of (time, sequence, thunk), and a trace."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b

Thunk = Callable[[], None]
Line = tuple[object, ...]
"""(time, kind, what...)."""
BEGIN = 1_000_000
"""When a history begins, ms."""


class Clock:
    """What is under way, in order of time, then of scheduling.

    Attributes:
        now: milliseconds.
        log: what has happened.
    """

    def __init__(self) -> None:
        self.now = BEGIN
        self._heap: list[tuple[int, int, Thunk]] = []
        self._sequence = 0
        self.log: list[Line] = []

    def after(self, delay: int, thunk: Thunk) -> None:
        """Do it `delay` ms from now; with 0 when the present step is over."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, thunk))

    def run_until(self, time: int) -> None:
        """Let time pass."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, thunk = heapq.heappop(heap)
            thunk()
        self.now = max(self.now, time)  # (whoever waits within a thunk has let more pass)

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        return not self._heap

    def note(self, *what: object) -> None:
        """A line of the trace: two runs of one plan have the same."""
        self.log.append((self.now, *what))

    def digest(self) -> str:
        """Names the trace."""
        return blake2b(repr(self.log).encode(), digest_size=16).hexdigest()
