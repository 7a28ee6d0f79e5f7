"""Which start of a driver a process is, as the leader that started it tells it by its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "KEYTIDE_ATTEMPT"


def told(term: int, number: int) -> dict[str, str]:
    """The environment that tells a driver its start.

    Args:
        term: of the leader.
        number: how many drivers that leader has started, this one included.
    """
    return {VARIABLE: f"{term}.{number}"}


def this_attempt(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Term and number; (0, 0) of a driver that no leader has started."""
    term, _, number = environment.get(VARIABLE, "").partition(".")
    return (int(term), int(number)) if term.isdecimal() and number.isdecimal() else (0, 0)
