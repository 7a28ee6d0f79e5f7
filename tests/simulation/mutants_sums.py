"""Planted faults where sums verify a build. Importing this adds them to `mutants_unit.UNIT_MUTANTS`."""

from __future__ import annotations

from coordinator.builds.completion import BuildCompletion
from keytide.wire.entry_sums import EntrySums
from streaming.drivers.journal import Journal
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_jobs, test_journal

COMPARED = "histories compare every commit with the source by themselves"


@unit_mutant(
    "R55, several micro-batches",
    "sums are compared where a later micro-batch may have replaced something",
    COMPARED,
    test_journal.test_sums_count_once_and_nothing_behind_a_gap_does,
)
def sum_up_what_is_replaced(patches: Patches) -> None:
    def projected(self: Journal, targets: int) -> list[EntrySums] | None:
        done = 0 <= self.finished == self.summed - 1
        return list(self.sums) if done and len(self.sums) == targets else None

    patches.put(Journal, "projected", projected)


@unit_mutant(
    "R55, differences",
    "the source is not read again, whatever sums have shown",
    COMPARED,
    test_jobs.test_where_sums_differ_or_say_nothing_the_source_is_read_again,
)
def believe_any_sums(patches: Patches) -> None:
    patches.put(BuildCompletion, "_proven", staticmethod(lambda record: bool(record.compared)))
