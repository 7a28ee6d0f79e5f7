"""All planted faults that histories show: each `mutants*` module adds its own to the list."""

from __future__ import annotations

from tests.simulation import (  # noqa: F401 - add their own
    mutants_clock,
    mutants_copies,
    mutants_heartbeats,
    mutants_layouts,
    mutants_range,
    mutants_releases,
    mutants_repair,
    mutants_retention,
    mutants_rollback,
    mutants_sums,
    mutants_tables,
    mutants_unique,
)
from tests.simulation.mutants import MUTANTS
from tests.simulation.planting import Mutant


def mutant_of(name: str) -> Mutant:
    """The planted fault of a name.

    Raises:
        ValueError: there is none.
    """
    found = next((one for one in MUTANTS if one.name == name), None)
    if found is None:
        raise ValueError(f"no planted fault is called {name}: docs/simulation.md lists them")
    return found


__all__ = ["MUTANTS", "mutant_of"]
