"""`python -m tests.simulation SEED`: one history, with its story if it fails (`replaying` has options)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from tests.simulation.all_mutants import mutant_of
from tests.simulation.planting import planted
from tests.simulation.replaying import parser, plan_of
from tests.simulation.running import plan_for, quietly, run_or_tell
from tests.simulation.world import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 0 when everything held and drained, 1 when not, 2 when the line names no history."""
    options = parser()
    flags = options.parse_args(arguments)
    try:
        mutant = mutant_of(flags.plant) if flags.plant else None
        one = plan_of(flags, partial(plan_for, mutant)) if mutant else plan_of(flags)
    except ValueError as error:
        options.error(str(error))
    with quietly(), planted(mutant.plant) if mutant else nullcontext():
        try:
            world = run_or_tell(one) if flags.shrink else run(one)
        except AssertionError as failed:
            print(failed)
            return 1
    print(
        f"seed {one.seed}, {len(one.steps)} steps: {world.checkers.commits} commits and "
        f"{world.checkers.scans} scans equal the source, and everything has drained"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
