"""Bounds of a slice: what it holds, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WAIT_LIMIT: Final = 16
"""Timestamps that come to a paused slice and make no room before it lets go of what it holds. Under load they
come every few milliseconds and soon reach what is held; to read it once more costs more than that."""

PART_LIMIT_MS: Final = 600_000
"""How long an incomplete message holds back the queue position: twice what a producer tries to send (R20)."""


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """Bounds of one slice.

    Attributes:
        documents: versions held and not applied; a full slice applies without a number (R4).
        bytes: the same in bytes.
        gap_ms: how long a gap may stay unfilled before the slice stops (R10); the same for a rollback that
            the dictionary does not tell of.
        part_ms: how long a message may stay incomplete before it is given up.
    """

    documents: int
    bytes: int
    gap_ms: int
    part_ms: int = PART_LIMIT_MS
