"""Smaller plans that fail in the same way: the shortest prefix of steps that still does, then fewer faults
and fewer steps (delta debugging, Zeller and Hildebrandt 2002). Steps carry their own chance, so the others do
the same without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from keytide.errors import InvariantViolationError
from tests.simulation.chance import Plan, Step
from tests.simulation.checkers import BrokenError

Fails = Callable[[Plan], str]
"""The kind of failure that a plan ends in, "" for none."""
MOST_RUNS = 600


def kind(error: BaseException) -> str:
    """What counts as the same failure."""
    if isinstance(error, BrokenError | InvariantViolationError):
        return error.name
    return type(error).__name__


class Shrunk(NamedTuple):
    """What is left of a plan that fails.

    Attributes:
        prefix: its first steps, as few as still fail alike.
        smallest: of those, only what matters.
    """

    prefix: Plan
    smallest: Plan


def shrink(plan: Plan, fails: Fails, most: int = MOST_RUNS) -> Shrunk:
    """Plans that fail like `plan`: a prefix of it, and one of which nothing more can be left out.

    Args:
        fails: runs a plan.
        most: runs, at most.
    """
    wanted = fails(plan)
    if not wanted:
        return Shrunk(plan, plan)
    left = most

    def same(smaller: Plan) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and fails(smaller) == wanted

    prefix = shortest_prefix(plan, same)
    smallest = _fewer_faults(prefix, same)
    smallest = _fewer_steps(smallest, same)
    return Shrunk(prefix, _fewer_faults(smallest, same))


def shortest_prefix(plan: Plan, same: Callable[[Plan], bool]) -> Plan:
    """By bisection: the prefix fails, and the one that is a step shorter does not. (A failure that a step
    meets stays in all longer prefixes; where only the heal meets it, a shorter one may fail all the same.)
    """
    passes, fails = -1, len(plan.steps)
    while fails - passes > 1:
        middle = (passes + fails) // 2
        if same(plan._replace(steps=plan.steps[:middle])):
            fails = middle
        else:
            passes = middle
    return plan._replace(steps=plan.steps[:fails])


def _fewer_faults(plan: Plan, same: Callable[[Plan], bool]) -> Plan:
    for fault in sorted(plan.faults):
        steps = tuple(step for step in plan.steps if step[0] != fault)
        smaller = plan._replace(faults=plan.faults - {fault}, steps=steps)
        if same(smaller):
            plan = smaller
    for simpler in (
        plan._replace(real_pipeline=False),
        plan._replace(real_pipeline=False, replicas=False, restart_at_end=False),
    ):
        if simpler != plan and same(simpler):
            plan = simpler
    return plan


def _fewer_steps(plan: Plan, same: Callable[[Plan], bool]) -> Plan:
    """Leave out chunks of steps, large ones first."""
    size = max(1, len(plan.steps) // 2)
    while True:
        at, found = 0, False
        while at < len(plan.steps):
            steps: tuple[Step, ...] = plan.steps[:at] + plan.steps[at + size :]
            if same(smaller := plan._replace(steps=steps)):
                plan, found = smaller, True
            else:
                at += size
        if size == 1 and not found:
            return plan
        size = max(1, size // 2)
