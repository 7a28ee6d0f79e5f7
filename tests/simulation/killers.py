"""Which seed first saw each planted fault, and as what. Written by `python -m tests.simulation.table`."""

from __future__ import annotations

from typing import Final

KILLERS: Final[dict[str, tuple[int, str]]] = {}
