"""The wall clock, for shells. Cores take `now` as an argument."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch, as Kafka's record timestamps count."""
    return time.time_ns() // 1_000_000
