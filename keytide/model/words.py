"""How things are named to people."""

from __future__ import annotations

from collections.abc import Iterable


def few(items: Iterable[object], most: int) -> str:
    """So many items at most, with commas between them, and how many more there are."""
    named = [str(one) for one in items]
    shown = ", ".join(named[:most])
    return shown if len(named) <= most else f"{shown} and {len(named) - most} more"
