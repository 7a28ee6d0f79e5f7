"""How long benchmarks wait for what may hang. Pure.

Limits are for a machine that has nothing else to do. Where every core is kept busy (`benchmarks.stress`),
builds, which stand back behind everything else (setting `build.nice`), get a thirtieth of one.
"""

from __future__ import annotations

from typing import Final

BUSY: Final = 4.0
"""So many times as long where every core is busy."""
_times = 1.0


def is_busy(wanted: bool) -> None:
    """Whether every core is kept busy from now on."""
    global _times
    _times = BUSY if wanted else 1.0


def limit(seconds: float) -> float:
    """A limit (s), as it is now."""
    return seconds * _times
