"""How much of what is generated a run tries: everything with `KEYTIDE_EXAMPLES=all` (`make test`, and so CI),
a share otherwise (`make check`): other examples in each run, other histories on each day."""

from __future__ import annotations

import os
from datetime import date

PARTS = 4
EVERYTHING = os.environ.get("KEYTIDE_EXAMPLES") == "all"
WHOLE_MATRIX = os.environ.get("KEYTIDE_MATRIX") == "all"
"""Faults strike everywhere (`make soak`), where otherwise a sample of the places has its turn: each takes a
minute or more on the real parts."""


def examples(everything: int) -> int:
    """How many of a test's examples this run tries, at least one."""
    return everything if EVERYTHING else -(-everything // PARTS)


def seeds(everything: int) -> range:
    """Those of the first `everything` seeds whose turn it is. CI has run them all: one that fails tells of
    what was changed since, whichever day it is."""
    return range(everything) if EVERYTHING else range(date.today().toordinal() % PARTS, everything, PARTS)
