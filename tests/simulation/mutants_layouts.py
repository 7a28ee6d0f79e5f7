"""Planted faults in new layouts of indexes. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.builds import admission
from coordinator.builds.builds import Builds
from coordinator.builds.retirement import Retirement
from coordinator.catalog.dictionary import Dictionary
from coordinator.copies.reports import CopyReports
from coordinator.core.nodes import HeardNodes
from coordinator.layouts import layouts
from coordinator.layouts.layouts import Layouts
from coordinator.sources.layout_sources import Seed
from indexer.scan.plan.directory import IndexDirectory, Scannable
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.model.timestamp import Timestamp
from streaming.backfill.seed import Sending
from streaming.slices.entries import SliceEntries
from streaming.slices.pins import Pin, PinnedSlices
from tests.simulation.mutants import mutant
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_layout_seeds, test_layouts, test_query_changes

SAME = 1 << 30
"""A number that no other id has."""
UNSEEN = "nothing is wrong or stuck in 100 histories"


@mutant("R45, at once", "a layout goes whoever reads from it", faults=("late-control", "lost-report"))
def drop_whoever_reads(patches: Patches) -> None:
    patches.put(Layouts, "_unused", lambda self, *_: True)


@mutant("R45, tokens", "the name decides which layout a token is read from", faults=("slow",))
def let_names_decide(patches: Patches) -> None:
    def index(self: IndexDirectory, name: str, layout: str = "") -> Scannable:
        found: Scannable = _index(self, name)
        return found

    _index = patches.put(IndexDirectory, "index", index)


@unit_mutant(
    "R45, plans",
    "what a query was planned on is looked up by its name",
    "queries are planned on what nodes serve, and no history asks any",
    test_query_changes.test_no_row_is_missing_whatever_changes_during_planning,
    when=test_query_changes.WHEN[0],
    change="altered",
    kind="page",
)
def let_names_decide_of_plans(patches: Patches) -> None:
    def layout(self: IndexDirectory, id_: str) -> Scannable | None:
        self._refresh()
        return self._ready.get(self._names.get(id_, ""))

    patches.put(IndexDirectory, "layout", layout)


@mutant("R45, never gone", "a layout that was replaced stays", faults=("node-crash",))
def keep_old_layouts(patches: Patches) -> None:
    patches.put(Layouts, "_old", lambda self, *_: [])


@mutant(
    "R44, past every activation",
    "a build begins with whatever snapshot the old layout has, as if it had reached all",
    faults=("late-control", "slow-projector"),
)
def begin_with_any_snapshot(patches: Patches) -> None:
    def try_pin(self: SliceEntries, at_least: Timestamp | None = None) -> Pin:
        pin: Pin = _try_pin(self)
        return replace(pin, timestamp=pin.timestamp.merge_max(at_least or Timestamp()))

    _try_pin = patches.put(PinnedSlices, "try_pin", try_pin)


@mutant("R44, ledger", "a build begins with the entries of old slices alone", faults=("node-crash",))
def leave_old_skips(patches: Patches) -> None:
    patches.put(Sending, "skip", lambda self, _: None)


@unit_mutant(
    "R44, seed gone",
    "a build waits for the old slices whatever becomes of them",
    "here there is room for the rebuild that brings them back",
    test_layout_seeds.test_when_no_copy_of_an_old_slice_is_left_the_build_begins_again_with_the_source,
)
def wait_for_lost_seeds(patches: Patches) -> None:
    patches.put(Builds, "_seed_gone", lambda self, _: "")


@unit_mutant(
    "R44, foreign",
    "a build begins with old slices that have met documents in two source partitions",
    "a document has one source partition here",
    test_layout_seeds.test_documents_of_two_partitions_come_from_the_source,
)
def seed_foreign_documents(patches: Patches) -> None:
    def seed_of(catalog: Catalog, nodes: HeardNodes, index: IndexRecord) -> Seed:
        found: Seed = _seed_of(catalog, nodes, index)
        return Seed(index.replaces) if "two source partitions" in found.why else found

    _seed_of = patches.put(admission, "seed_of", seed_of)


@unit_mutant(
    "R44, forgotten",
    "a layout that reads the source takes over, though that has forgotten what the old one was built from",
    "the source forgets nothing while it is indexed here",
    test_layouts.test_nor_what_it_forgets_while_the_new_layout_is_built,
)
def take_what_is_left(patches: Patches) -> None:
    patches.put(layouts, "forgotten_since", lambda *_: "")


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


@unit_mutant(
    "R50",
    "a layout has the id of the one that was given up before it",
    UNSEEN,
    test_layouts.test_a_build_that_is_cancelled_takes_its_layout_with_it,
)
def use_ids_again(patches: Patches) -> None:
    def define(self: Dictionary, *of: Any, replaces: str = "") -> IndexRecord:
        number = self._next_number
        if replaces:
            self._next_number = SAME
        try:
            found: IndexRecord = _define(self, *of, replaces=replaces)
            return found
        finally:
            self._next_number = number + 1

    _define = patches.put(Dictionary, "define", define)


@unit_mutant(
    "R51",
    "queues of a layout go at once",
    UNSEEN,
    test_layouts.test_the_old_layout_answers_until_the_new_one_is_ready_and_then_goes,
)
def delete_layouts_at_once(patches: Patches) -> None:
    def deactivated(self: Retirement, index: IndexRecord, *others: Any) -> bool:
        return bool(index.replaced_by) or bool(_deactivated(self, index, *others))

    _deactivated = patches.put(Retirement, "_deactivated", deactivated)
