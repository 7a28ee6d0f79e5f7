"""A limit on a rate, held by resting after what was taken. Pure."""

from __future__ import annotations

from typing import Final

CHUNK_S: Final = 0.25
"""Of a rate, that is taken at once."""
LEAST_CHUNK_BYTES: Final = 64 * 1024
MOST_CHUNK_BYTES: Final = 1 << 30
LATE_S: Final = 0.05
"""By so much who rests may be late, and makes up for it: a wait of 5 ms lasts 6 on a busy machine."""


class RateLimit:
    """What shares one limit.

    Args:
        rate: bytes per second; 0 for no limit.

    Attributes:
        rate: as given.
        due: when the next may be taken, in seconds.
    """

    def __init__(self, rate: int) -> None:
        self.due = 0.0
        self.rate = rate

    @property
    def chunk_bytes(self) -> int:
        """How much is to be taken at once, so that rests are short."""
        wanted = max(LEAST_CHUNK_BYTES, int(self.rate * CHUNK_S))
        return min(wanted, MOST_CHUNK_BYTES) if self.rate else MOST_CHUNK_BYTES

    def take(self, size: int, asked: float) -> None:
        """So many bytes were taken.

        Args:
            asked: when they were asked for: what they were on their way is a part of the rest.
        """
        if self.rate:
            late = asked - self.due
            self.due = (self.due if late < LATE_S else asked) + size / self.rate
