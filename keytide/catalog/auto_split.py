"""What is remembered of slices that an index has got by itself."""

from __future__ import annotations

import msgspec


class AutoSplit(msgspec.Struct, frozen=True):
    """The last new layout that the leader has begun for a hot slice. It stands in the record of that layout,
    and in that of the one before: whoever leads next knows of it whatever becomes of the new one.

    Attributes:
        at: when, ms.
        layout: id of the new layout.
        slices: those of the new layout that have what the hot slice had; empty when any may have it.
        measure: what the slice had too much of: `writes` or `entries`.
        share: of what the whole index had, between 0 and 1.
    """

    at: int
    layout: str
    slices: tuple[int, ...]
    measure: str
    share: float
