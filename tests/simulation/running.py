"""Histories by the hundred: how they are run, counted and reported."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulation.chance import ALTERED, EVERY, FAULTS, RETENTION, Plan, altering, plan, retaining
from tests.simulation.killers import KILLERS, Killer
from tests.simulation.planting import Mutant, planted
from tests.simulation.replaying import command_of
from tests.simulation.shrink import kind, shortest_prefix, shrink
from tests.simulation.world import FailedError, World, run


@dataclass(slots=True)
class Tally:
    """What some histories came to.

    Attributes:
        seen: what happened how often.
        seconds: processor time.
    """

    histories: int = 0
    commits: int = 0
    scans: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        self.histories += 1
        self.commits += world.checkers.commits
        self.scans += world.checkers.scans
        self.seen += world.seen

    def faults(self) -> dict[str, int]:
        """How often faults struck, by kind."""
        more = ("killed amid", "gaps", "rewound", "full disk", "fenced", "rolled-back", "slices-rebuilt")
        names = (*EVERY, *more)
        return {name: self.seen[name] for name in names if self.seen[name]}

    def plus(self, other: Tally) -> None:
        self.histories += other.histories
        self.commits += other.commits
        self.scans += other.scans
        self.seconds += other.seconds
        self.seen += other.seen


@contextmanager
def quietly() -> Iterator[None]:
    """Faults are the point here; their log lines are not. (Nor are cycles: every world is thrown away, and
    what was there before need not be looked through each time.)"""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    frozen = bool(gc.get_freeze_count())
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        logging.disable(before)


def histories(seeds: Iterable[int]) -> Tally:
    """Run them all.

    Raises:
        AssertionError: one failed; it tells the story of its smallest form.
    """
    tally = Tally()
    began = time.process_time()
    with quietly():
        for seed in seeds:
            tally.add(run_or_tell(plan(seed)))
    tally.seconds = time.process_time() - began
    return tally


def run_or_tell(one: Plan) -> World:
    """Run a plan; a failure is shrunk before it is told.

    Raises:
        AssertionError: it failed; how few steps do, the story of the smallest plan, and the line to run that.
    """
    try:
        return run(one)
    except FailedError as failed:
        prefix, smallest = shrink(one, failure)
        error = failed
        try:
            run(smallest)
        except FailedError as smaller:
            error = smaller
        raise AssertionError(
            f"the first {len(prefix.steps)} of {len(one.steps)} steps fail: {command_of(prefix)}\n"
            f"of those {len(smallest.steps)} matter\n\n{error}\n\n"
            f"keep it in tests/simulation/regressions.py:\n{smallest!r}\n\n"
            f"run it again: {command_of(smallest)}"
        ) from failed.cause


def failure(one: Plan) -> str:
    """The kind of failure that a plan ends in, "" for none."""
    try:
        World(one).run()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return kind(error)
    return ""


def plans_for(mutant: Mutant, budget: int, *, whole: bool = True) -> Iterator[Plan]:
    """Plans that may show a mutant: with all faults, with random ones, with its own alone. That of its known
    killer comes first; when not `whole`, its first steps come before it, of which no more were needed."""
    known = KILLERS.get(mutant.name)
    if known is not None:
        one = plan_for(mutant, known.seed)
        if not whole:
            yield one._replace(steps=one.steps[: known.steps])
        yield one
    for seed in range(budget):
        if known is None or seed != known.seed:
            yield plan_for(mutant, seed)


def plan_for(mutant: Mutant, seed: int) -> Plan:
    """The plan of a seed, bent towards a mutant."""
    if mutant.faults and seed % 3 == 0:
        one = plan(seed, mutant.faults)
    else:
        one = plan(seed, FAULTS if seed % 3 == 1 else None)
        one = one._replace(faults=one.faults | set(mutant.faults))
    if RETENTION in mutant.faults:
        one = retaining(one)
    if ALTERED in mutant.faults:
        one = altering(one)
    return one._replace(real_pipeline=True) if mutant.pipeline else one


def seen_as(mutant: Mutant, one: Plan) -> str:
    """What a plan sees of a mutant, "" for nothing.

    Raises:
        AssertionError: the plan fails without the mutant, too; it tells the story of its smallest form.
    """
    with planted(mutant.plant):
        found = failure(one)
    if found in ("TypeError", "AttributeError", "NameError"):
        raise TypeError(f"{mutant.name} does not fit the code any more")
    if found:
        run_or_tell(one)
    return found


def killer(mutant: Mutant, budget: int, *, whole: bool = True) -> Killer | None:
    """The first plan that sees a mutant, and what it sees; None when none of the budget does.

    Args:
        whole: try the whole plan of its known killer, too, and not only its first steps.
    """
    for one in plans_for(mutant, budget, whole=whole):
        if found := seen_as(mutant, one):
            return Killer(one.seed, len(one.steps), found)
    return None


def cheapest_killer(mutant: Mutant, budget: int, kills: int = 4, patience: int = 12) -> Killer | None:
    """Of the first plans that see a mutant (`kills` of them, or what so many plans more show), the one whose
    shortest prefix takes least time; None when none of the budget sees it."""
    best: tuple[float, Killer] | None = None
    left = kills
    for number, one in enumerate(plans_for(mutant, budget)):
        if best is not None and (not left or number >= patience):
            break
        found = seen_as(mutant, one)
        if not found:
            continue
        left -= 1

        def same(smaller: Plan, wanted: str = found) -> bool:
            with planted(mutant.plant):
                return failure(smaller) == wanted

        prefix = shortest_prefix(one, same)
        began = time.process_time()
        seen_as(mutant, prefix)
        took = time.process_time() - began
        if best is None or took < best[0]:
            best = took, Killer(one.seed, len(prefix.steps), found)
    return best[1] if best is not None else None
