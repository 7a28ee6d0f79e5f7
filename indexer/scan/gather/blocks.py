"""How much is read at once: so many entries, or so many bytes of them. Pure."""

from __future__ import annotations

import math


def even_share(rows: int, slices: int) -> int:
    """How many of `rows` a slice holds at most, very likely, when they fall to `slices` by a hash."""
    mean = rows / slices
    return rows if slices == 1 else math.ceil(mean + 3 * math.sqrt(mean)) + 3


def next_block(block: int, read: int, size: int, most: int, most_bytes: int) -> int:
    """How many entries to read next: about `most_bytes` of them, `most` at most.

    Args:
        block: how many were to be read last.
        read, size: entries that were, and their bytes.
    """
    return max(1, min(most, 8 * block, most_bytes * read // size)) if size else min(most, 8 * block)
