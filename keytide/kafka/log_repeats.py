"""A log that stays readable, and small, while the same thing is said again and again.

librdkafka tells of every attempt to connect: while Kafka is away each client says so twice, some 40 times a
second, and 1,800 lines were written in ten seconds by a node (measured). A filter on the loggers that it
writes to lets one of a kind pass in a while.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 10.0
_KINDS: Final = 1_000
"""Remembered at once; there are a few dozens."""
_NUMBERS: Final = re.compile(r"\d++")


class Repeats(logging.Filter):
    """Passes one message of a kind within `every_s` seconds; the next one says how many were left out.

    Messages are of one kind if they differ in numbers only (of clients, of milliseconds). Errors that end
    something are not for this filter: put it on loggers whose messages are news of a passing state.
    """

    def __init__(self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        kind = _NUMBERS.sub("#", text)
        now = self._clock()
        with self._lock:
            last, left_out = self._seen.get(kind, (float("-inf"), 0))
            if now - last < self._every_s:
                self._seen[kind] = (last, left_out + 1)
                return False
            if len(self._seen) >= _KINDS:
                self._seen.clear()
            self._seen[kind] = (now, 0)
        if left_out:
            record.msg, record.args = "%s (and %d more like it)", (text, left_out)
        return True
