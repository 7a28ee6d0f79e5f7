"""Waiting in tests: for a condition, with a limit that is there for what hangs, and not for what is slow.

Limits are for a machine with two quiet cores of today. One that is slower gets more time, by what a small
loop takes there, and so does one on which more wants to run than can, by its load when the limit is reached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Literal, TypeVar

_T = TypeVar("_T")
LIMIT_S = 300.0
_LOOP_S = 0.03
"""What the loop takes on the machine that limits are for."""
_MOST = 3.0


@cache
def slowness() -> float:
    """How many times as long things take here: 1 to 3."""
    took = min(_loop() for _ in range(3))
    return min(_MOST, max(1.0, took / _LOOP_S))


def _loop() -> float:
    began, total = time.perf_counter(), 0
    for number in range(500_000):
        total += number
    return time.perf_counter() - began


def crowding() -> float:
    """How many times as long things take here because others run, too, of late: 1 to 3."""
    return min(_MOST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def wait_for(
    condition: Callable[[], _T | Literal[False] | None],
    what: str | Callable[[], str] = "the condition",
    limit: float = LIMIT_S,
) -> _T:
    """What a condition says once that is true.

    Args:
        what: is waited for, in words.
        limit: seconds, on a machine that is as fast as most, and does nothing else.

    Raises:
        AssertionError: it did not come true within the limit.
    """
    limit *= slowness()
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        if waited > limit and waited > min(limit * crowding(), LIMIT_S):
            raise AssertionError(f"not within {waited:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(min(0.1, max(0.005, waited / 20)))  # asking takes time from what is waited for
    return found
