"""Planted faults in copies of slices. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from coordinator.builds.rebuild import Rebuilds
from coordinator.copies.copies import Copies
from coordinator.copies.leaving import LeavingCopies
from coordinator.copies.reports import CopyReports
from coordinator.queues.trimming import Trimmer
from indexer.copying.messages import CopyRequest, pack_chunk, read_chunk
from indexer.copying.source import CopySources
from indexer.hosting import hosting
from indexer.hosting.placed import Placed
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord
from streaming.verify.slices import SliceClient
from tests.simulation.mutants import mutant
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import (
    test_copies_filling,
    test_copies_lost,
    test_copies_rebuild,
    test_copies_trimming,
    test_copying,
    test_verify_slices,
)

LOSSES = ("damage", "disk-loss")


@unit_mutant(
    "R39",
    "what a copy may need of the queue while it is filled is trimmed",
    "what it is filled from needs as much there",
    test_copies_trimming.test_what_a_copy_may_need_stays_until_it_counts,
)
def trim_what_copies_need(patches: Patches) -> None:
    def limits_of(self: Trimmer, *arguments: Any) -> Any:
        return [
            dataclasses.replace(limit, copies=kept, before=min((one.horizon for one in kept), default=-1))
            for limit in _limits_of(self, *arguments)
            for kept in (tuple(one for one in limit.copies if not one.who.startswith("copy ")),)
        ]

    _limits_of = patches.put(Trimmer, "_limits_of", limits_of)


@unit_mutant(
    "R40",
    "rows of two commits come into one copy",
    "few rows are copied there, and seldom over a fold",
    test_copying.test_a_copy_is_one_commit_whatever_happens,
)
def mix_generations(patches: Patches) -> None:
    def answer(self: CopySources, request: CopyRequest, now: int) -> bytes:
        asked = replace(request, generation="")
        chunk, _ = read_chunk(asked, _answer(self, asked, now))
        generation = request.generation or chunk.generation
        return pack_chunk(request, replace(chunk, generation=generation))

    _answer = patches.put(CopySources, "answer", answer)


@unit_mutant(
    "R41",
    "a copy counts as soon as it is whole",
    "no copy is taken out there on account of one that lacks what is published (R43)",
    test_copies_filling.test_it_does_not_count_before_it_serves,
    state="CATCHUP",
)
def count_early(patches: Patches) -> None:
    def caught_up(self: CopyReports, record: CopyRecord, index: IndexRecord) -> bool:
        status = self.filled(record)
        return status is not None and status.state in ("CATCHUP", "LIVE")

    patches.put(CopyReports, "caught_up", caught_up)


@unit_mutant(
    "R43",
    "a copy is taken out whatever the others have",
    "one that is lost has nothing either, and nobody is silent there for long enough",
    test_copies_lost.test_not_while_the_other_one_lacks_what_is_published,
)
def take_out_whatever_others_have(patches: Patches) -> None:
    patches.put(CopyReports, "holds", lambda self, index, number, node: True)


@mutant("R43, as many as there are to be", "lost copies are not replaced", faults=LOSSES)
def never_fill_up(patches: Patches) -> None:
    patches.put(Copies, "_fill_up", lambda self, now: [])


@mutant("R48", "a copy that counts and is not there is begun empty", faults=LOSSES)
def begin_lost_copies_empty(patches: Patches) -> None:
    def may_begin(placed: Placed, slice_number: int, catalog: Catalog) -> bool:
        return placed.filling is None

    patches.put(hosting, "may_begin", may_begin)


@mutant("R42", "a copy whose place another one takes goes at once", faults=("late-control", "lost-report"))
def let_go_at_once(patches: Patches) -> None:
    patches.put(LeavingCopies, "_unused", lambda self, *_: True)


@mutant("R42, R43", "a copy leaves before the one that takes its place counts", faults=("node-crash",))
def leave_before_it_counts(patches: Patches) -> None:
    patches.put(CopyReports, "caught_up", lambda self, record, index: self.filled(record) is not None)


@mutant("R42, never gone", "a copy that leaves waits for ever", faults=("node-crash",))
def never_let_go(patches: Patches) -> None:
    patches.put(CopyReports, "known", lambda self, index, number: False)


@mutant("R43, the last one", "a copy that leaves does not count again", faults=LOSSES)
def never_count_again(patches: Patches) -> None:
    patches.put(LeavingCopies, "_left_alone", lambda self, *_: False)


@unit_mutant(
    "R47",
    "a verification looks at one copy of each slice only",
    "histories compare every commit of every copy by themselves",
    test_verify_slices.test_copies_that_are_not_the_same_are_told_apart,
)
def compare_one_copy(patches: Patches) -> None:
    patches.put(SliceClient, "apart", lambda self, *_: iter(()))


@unit_mutant(
    "R46",
    "a slice is rebuilt although a copy of it came back before that began",
    "what is rebuilt there is right as well",
    test_copies_rebuild.test_a_copy_whose_node_comes_back_before_it_begins_is_kept,
)
def rebuild_what_came_back(patches: Patches) -> None:
    patches.put(Rebuilds, "_spare", lambda self, record, now: [])


@unit_mutant(
    "R49",
    "a leader trims by the word of nodes that have read what its successor wrote",
    "nothing is wrong or stuck in 100 histories",
    test_copies_trimming.test_by_no_word_of_a_node_that_has_read_more_than_this_leader_has_written,
)
def trim_by_what_is_not_known(patches: Patches) -> None:
    def said(self: Trimmer, *arguments: Any) -> Any:
        dictionary = self._registry.dictionary
        written, dictionary.written = dictionary.written, 1 << 62
        try:
            return _said(self, *arguments)
        finally:
            dictionary.written = written

    _said = patches.put(Trimmer, "_said", said)
