"""How much a run tries. Of what is generated, a share: other examples in each run, other histories on each
day. `make check` tries a sixteenth, and a third of the planted faults; `make test` an eighth
(`KEYTIDE_EXAMPLES=8`) and all planted faults; `KEYTIDE_EXAMPLES=all` everything. Of faults on the real parts,
other files on each day; all with `KEYTIDE_MATRIX=all`. `make soak` has both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

_GIVEN = os.environ.get("KEYTIDE_EXAMPLES", "16")
EVERYTHING = _GIVEN == "all"
PARTS = 1 if EVERYTHING else int(_GIVEN)
FEWEST = 10
WHOLE_MATRIX = os.environ.get("KEYTIDE_MATRIX") == "all"
"""Faults strike everywhere (`make soak`), where otherwise a sample of the places has its turn: each takes a
minute or more on the real parts."""
TODAY = int(os.environ.setdefault("TESTS_DAY", str(date.today().toordinal())))
"""One day for all workers of a run, also around midnight. (Not a KEYTIDE_ variable: releases before this one
refuse those that they do not know, and tests start them.)"""
TURNS = 3
FEW_TURNS_FROM = 16
"""Where no more than such a share is tried, planted faults take turns, too."""
T = TypeVar("T")


def examples(everything: int) -> int:
    """How many of a test's examples this run tries, at least ten where there are so many."""
    return max(-(-everything // PARTS), min(everything, FEWEST))


def seeds(everything: int) -> range:
    """Those of the first `everything` seeds whose turn it is. All were run: one that fails tells of what was
    changed since, whichever day it is."""
    return range(everything) if EVERYTHING else range(TODAY % min(PARTS, everything), everything, PARTS)


def planted(faults: Sequence[T]) -> Sequence[T]:
    """Those of the planted faults that this run looks for: all of them in `make test`, elsewhere by turns."""
    return faults if PARTS < FEW_TURNS_FROM else faults[TODAY % TURNS :: TURNS]


def has_turn(number: int) -> bool:
    """Whether this is the day of a file of faults."""
    return WHOLE_MATRIX or number % TURNS == TODAY % TURNS
