"""Planted faults where releases run side by side. Importing this adds them to `mutants_unit.UNIT_MUTANTS`."""

from __future__ import annotations

from coordinator.core.speakers import Speakers
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_versions


@unit_mutant(
    "R52",
    "what needs a later version is written whoever does not speak it",
    "all processes are of one release there",
    test_versions.test_a_new_layout_waits_until_all_know_of_layouts,
    statement=test_versions.LAYOUT,
    who="n2",
    named="node n2",
)
def write_what_somebody_misreads(patches: Patches) -> None:
    patches.put(Speakers, "check", lambda self, *_: None)
