"""One at a time, in the order in which they came: what makes long reads give way together."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic


class FairLock:
    """A lock of threads that is handed over to whoever has waited longest (one of Python's own may go to the
    thread that has just let go of it, for ever). A thread that has it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        self._since = 0.0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def take(self) -> None:
        """Wait for it, unless this thread has it."""
        me = threading.get_ident()
        with self._lock:
            if self._holder == me:
                return
            if not self._holder:
                self._holder, self._since = me, monotonic()
                return
            called = threading.Lock()
            called.acquire()
            self._waiting.append((me, called))
        called.acquire()

    def give(self, after_s: float = 0.0) -> None:
        """Hand it on, if this thread has it, for at least so long."""
        with self._lock:
            now = monotonic()
            if self._holder != threading.get_ident() or now < self._since + after_s:
                return
            self._holder = 0
            if self._waiting:
                (self._holder, called), self._since = self._waiting.popleft(), now
                called.release()
