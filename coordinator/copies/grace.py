"""How long what leaves may still be read from. Pure (R42, R45)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

from coordinator.core.limits import CoreLimits

READERS: Final = "who still reads "
"""Begins what is waited for by what has all it needs to go but this."""
_SETTING: Final = "(setting coordinator.leave_after_s)"

KeyT = TypeVar("KeyT", bound=Hashable)


class Grace(Generic[KeyT]):
    """The time since each of some things has begun to leave, as far as this leader has looked on."""

    def __init__(self, limits: CoreLimits) -> None:
        self._limits = limits
        self._ages: dict[KeyT, int] = {}
        self._looked_at = 0

    def look(self, keys: Iterable[KeyT], now: int) -> None:
        """What leaves now (ms). A leader that was stopped, or whose clock was set, counts only what it has
        looked on."""
        passed = min(max(0, now - self._looked_at), 2 * self._limits.copy_check_ms)
        self._looked_at = now
        self._ages = {key: self._ages.get(key, 0) + passed for key in keys}

    def over(self, key: KeyT) -> str:
        """That its time is over, in words; "" while it is not."""
        limit = self._limits.leave_after_ms
        return f"its {limit // 1000} s are over {_SETTING}" if self._ages.get(key, 0) >= limit else ""

    def waits(self, key: KeyT, what: str) -> str:
        """What it waits for, in words, as long as it is read."""
        left_s = (self._limits.leave_after_ms - self._ages.get(key, 0)) // 1000
        return f"{READERS}{what}, for {left_s} s more at most {_SETTING}"
