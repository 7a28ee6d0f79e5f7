"""The wall clock, for shells. Cores take `now` as an argument.

Cores count waits by it, so within a process it never goes back: where the machine's clock is set back, it
goes on at half speed until that has caught up. Waits take twice as long meanwhile, instead of as long as the
clock was set back. Set forward it follows at once: waits end early, which they may do at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class ForwardClock:
    """Nanoseconds since the epoch that never go back. Safe to use from several threads.

    Args:
        wall: nanoseconds since the epoch, by the machine's clock, which may be set.
        steady: nanoseconds since whenever, by one that may not.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._now, self._at = wall(), steady()

    def now(self) -> int:
        """The time."""
        with self._lock:
            at = self._steady()
            self._now = max(self._wall(), self._now + (at - self._at) // 2)
            self._at = at
            return self._now


_CLOCK = ForwardClock()


def now_ms() -> int:
    """Milliseconds since the epoch, as Kafka's record timestamps count."""
    return _CLOCK.now() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since the epoch by the machine's clock as it is, also right after it was set back: for
    what machines compare with one another (credentials, staleness), which no process may hold against a clock
    that was put right. Nothing waits by it."""
    return time.time_ns() // 1_000_000
