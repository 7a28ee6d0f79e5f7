"""Planted faults in new layouts of indexes. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

from typing import Any

from coordinator.copies.reports import CopyReports
from coordinator.layouts.layouts import Layouts
from indexer.scan.plan.directory import IndexDirectory, Scannable
from keytide.catalog.records import IndexRecord
from tests.simulation.mutants import mutant
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_layouts


@mutant("R45, at once", "a layout goes whoever reads from it", faults=("late-control", "lost-report"))
def drop_whoever_reads(patches: Patches) -> None:
    patches.put(Layouts, "_unused", lambda self, *_: True)


@mutant("R45, tokens", "the name decides which layout a token is read from", faults=("slow",))
def let_names_decide(patches: Patches) -> None:
    def index(self: IndexDirectory, name: str, layout: str = "") -> Scannable:
        found: Scannable = _index(self, name)
        return found

    _index = patches.put(IndexDirectory, "index", index)


@mutant("R45, never gone", "a layout that was replaced stays", faults=("node-crash",))
def keep_old_layouts(patches: Patches) -> None:
    patches.put(Layouts, "_old", lambda self, *_: [])


@unit_mutant(
    "R45, sessions",
    "a layout takes over a name before what is published of it is as new as what was of the old one",
    "its session waits there for what it has seen",
    test_layouts.test_nobody_reads_older_states_than_before,
)
def take_over_early(patches: Patches) -> None:
    patches.put(CopyReports, "shows", lambda self, index, other: True)


@unit_mutant(
    "R44, given up",
    "a layout whose build was cancelled stays",
    "it has no slices any more, and nobody can name it",
    test_layouts.test_a_build_that_is_cancelled_takes_its_layout_with_it,
)
def keep_cancelled_layouts(patches: Patches) -> None:
    def new(self: Layouts, index: IndexRecord, *others: Any) -> Any:
        return [] if index.state == "DEFERRED" else _new(self, index, *others)

    _new = patches.put(Layouts, "_new", new)
