"""How many bytes entries are, of keys and values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from indexer.scan.peer.messages import Entry


def bytes_of(entries: Sequence[Entry]) -> int:
    """Of all of them."""
    return sum(map(len, chain.from_iterable(entries)))


def reaching(entries: Sequence[Entry], size: int) -> int:
    """How many of the first entries come to so many bytes, by the last of them; all where they do not."""
    for at, (key, value) in enumerate(entries, 1):
        size -= len(key) + len(value)
        if size <= 0:
            return at
    return len(entries)
