"""Simulated time: a heap of (time, sequence, thunk), one source of randomness, and a trace."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from hashlib import blake2b

Thunk = Callable[[], None]


class Schedule:
    """Runs thunks in order of time, then of scheduling.

    Attributes:
        random: the only source of chance.
        now: milliseconds.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000
        self._heap: list[tuple[int, int, Thunk]] = []
        self._sequence = 0
        self._trace = blake2b(digest_size=16)
        self.log: list[str] = []

    def after(self, delay: int, thunk: Thunk) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, thunk))

    def every(self, low: int, high: int, thunk: Thunk) -> None:
        """Again and again, after a random delay each time."""

        def again() -> None:
            thunk()
            self.after(self.random.randint(low, high), again)

        self.after(self.random.randint(0, high), again)

    def run_until(self, time: int) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.now, _, thunk = heapq.heappop(self._heap)
            thunk()
        self.now = time

    def note(self, what: str) -> None:
        """A line of the trace: two runs of one seed have the same."""
        line = f"{self.now} {what}"
        self._trace.update(line.encode() + b"\n")
        self.log.append(line)

    def digest(self) -> str:
        return self._trace.hexdigest()
