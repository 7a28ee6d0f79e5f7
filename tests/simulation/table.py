"""Writes docs/simulation.md's table and `killers`: a seed that sees each planted fault.

python -m tests.simulation.table [--budget N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.simulation import (  # noqa: F401 - add their own
    mutants_range,
    mutants_repair,
    mutants_rollback,
    mutants_tables,
    mutants_unique,
)
from tests.simulation.mutants import MUTANTS
from tests.simulation.running import killer, quietly

ROOT: Final = Path(__file__).parents[2]
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

UNITS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "R3 (terms)",
        "a number is an offset, so no two leaders have one; what terms add cannot be seen from outside",
        "tests/unit/test_slice_core.py::test_lower_terms_and_other_incarnations_are_ignored",
    ),
    ("R16", "not built: the router keeps no cache", ""),
    (
        "R17 (older ignored), R22 (append falls back to put)",
        "ids in two source partitions, unsorted chunks: the store's business",
        "tests/property/test_store.py",
    ),
    (
        "R19 (topics go after deactivation)",
        "segments of a projector that is behind are trimmed in a new topic, too",
        "tests/unit/test_builds.py::test_drop_waits_until_projectors_have_let_go",
    ),
    (
        "R23 (after the last batch)",
        "the queue's order says the same",
        "tests/unit/test_slice_core.py::test_the_end_of_the_build_waits_for_the_last_batch_and_switches",
    ),
    (
        "R24",
        "no transactions here; and R25's end lies past the load timestamp",
        "tests/unit/test_builds.py::test_an_open_transaction_is_shown_and_waited_for_up_to_the_limit",
    ),
    (
        "R25",
        "the cleaner would have to run between two of a few steps",
        "tests/unit/test_builds.py (READY needs the source's end), tests/integration/test_backfill.py",
    ),
    (
        "R26",
        "the cleaner here leaves tombstones",
        "tests/unit/test_builds.py::test_live_indexes_that_may_have_missed_tombstones_fail",
    ),
    (
        "R27",
        "the cleaner here stays behind the projectors",
        "tests/unit/test_builds.py::test_no_timestamp_falls_into_a_range_that_was_read_late",
    ),
    (
        "R28, lost before it has passed",
        "the log would have to be cut between the driver's last look and the coordinator's, a step later",
        "tests/unit/test_builds.py::test_what_has_been_read_is_looked_for_when_the_driver_has_passed",
    ),
    (
        "R29",
        "nothing expires here",
        "tests/unit/test_builds.py::test_deleted_offsets_that_were_read_do_not_matter",
    ),
    (
        "R30 (await)",
        "the position does not pass what was taken too early, and it is read again",
        "tests/unit/test_slice_core.py::test_a_later_history_makes_deaf_until_the_dictionary_tells",
    ),
    (
        "R30 (chain)",
        "needs two rollbacks and a message older than both",
        "tests/unit/test_slice_core.py::test_each_incarnation_is_cut_where_its_own_branch_ends",
    ),
)
"""(rule, why its mutant cannot be seen here, what kills it)."""


def rows(found: dict[str, tuple[int, str]]) -> list[str]:
    """The table, by rule."""
    lines = ["| rule | mutant | what it does | seed | seen as |", "| --- | --- | --- | --- | --- |"]
    for one in MUTANTS:
        seed, name = found[one.name]
        lines.append(f"| {one.rules} | `{one.name}` | {one.text} | {seed} | {name} |")
    lines += ["", "Not seen here, and why:", "", "| rule | why | killed by |", "| --- | --- | --- |"]
    lines += [f"| {rule} | {why} | {f'`{test}`' if test else ''} |" for rule, why, test in UNITS]
    return lines


def main() -> int:
    """Find the killers, write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=400)
    budget = parser.parse_args().budget
    found: dict[str, tuple[int, str]] = {}
    with quietly():
        for one in MUTANTS:
            seen = killer(one, budget)
            if seen is None:
                print(f"{one.name} survived {budget} seeds", file=sys.stderr)
                return 1
            found[one.name] = seen
            print(f"{one.name}: seed {seen[0]}, {seen[1]}", flush=True)
    page = ROOT / "docs" / "simulation.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text("\n".join([before + BEGIN, *rows(found), END]) + after)
    killers = Path(__file__).with_name("killers.py")
    head = killers.read_text().split("KILLERS:")[0]
    body = "".join(f'    "{name}": ({seed}, "{seen}"),\n' for name, (seed, seen) in found.items())
    killers.write_text(f"{head}KILLERS: Final[dict[str, tuple[int, str]]] = {{\n{body}}}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
