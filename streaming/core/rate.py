"""How fast a build may read: documents handed out as the rate limit lets them. Pure.

Theory of operation: a bucket that fills at the rate limit. What was not taken is kept for `CREDIT_S` at most,
so that the moments between micro-batches, when nothing is read, are made up for, and any half minute still
holds the limit within a few percent. A new limit counts from the moment that it is set: nothing that was
taken, or saved, under the old one is held against it.
"""

from __future__ import annotations

CREDIT_S = 2.0
"""Seconds' worth of documents that may be saved."""


class TokenBucket:
    """Documents that may be read now.

    Args:
        now: seconds, of a clock that never goes back.
    """

    def __init__(self, now: float) -> None:
        self.rate = 0
        self._saved = 0.0
        self._at = now

    def limit(self, rate: int, now: float) -> None:
        """Set the limit: documents per second, 0 for none."""
        if rate != self.rate:
            self.rate, self._saved, self._at = rate, 0.0, now

    def take(self, wanted: int, now: float) -> int:
        """How many of `wanted` documents may be read now; they count as read."""
        if not self.rate:
            return wanted
        self._saved = min(self._saved + (now - self._at) * self.rate, max(1.0, CREDIT_S * self.rate))
        self._at = now
        granted = min(wanted, int(self._saved))
        self._saved -= granted
        return granted
