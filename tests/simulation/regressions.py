"""Plans that failed once, with what was wrong then. Every one is replayed by the tests.

When `plan` changes, a seed means another history: so they are kept in full, shrunk, each step with its
chance.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.chance import Plan

REGRESSIONS: Final[list[tuple[str, Plan]]] = []
