"""A limit on a rate, held by resting after what was taken. Pure."""

from __future__ import annotations


class RateLimit:
    """What shares one limit.

    Args:
        rate: bytes per second; 0 for no limit.

    Attributes:
        due: when the next may be taken, in seconds.
    """

    def __init__(self, rate: int) -> None:
        self.due = 0.0
        self._rate = rate

    def take(self, size: int, now: float) -> None:
        """So many bytes were taken."""
        if self._rate:
            self.due = max(self.due, now) + size / self._rate
