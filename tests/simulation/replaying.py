"""One line that runs a history again: `command_of` writes it, `plan_of` reads it.

A plan is told as what its seed makes, and what is left of that. Steps that no seed makes (of plans that were
kept by hand, or under an earlier `chance`) are spelled out, each with its chance.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

from tests.simulation import planting
from tests.simulation.chance import (
    ALTERED,
    BROKERS_LOST,
    EVERY,
    FAULTS,
    RETENTION,
    Plan,
    Step,
    altering,
    plan,
)

PROGRAM = "python -m tests.simulation"
OWN = "own"
"""The faults that a seed chooses itself. (With a planted fault that is not what is taken by default.)"""
APART = (ALTERED, BROKERS_LOST, RETENTION)
"""Faults of histories of their own."""
_GROUPS: dict[str, tuple[str, ...]] = {"none": (), "usual": FAULTS, "all": EVERY}
_WORDS = " or ".join(_GROUPS)
_TOLD = frozenset({"seed", "faults", "steps"})
"""Fields of a plan that have options of their own; `--set` is for the others."""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m tests.simulation`."""
    made = argparse.ArgumentParser(
        prog=PROGRAM, description="Run one history; a failure prints its story, and ends with status 1."
    )
    made.add_argument("seed", type=int)
    made.add_argument("--drawn", metavar="FAULTS", help=f"draw steps for a,b,... or {_WORDS} or {OWN}")
    made.add_argument("--faults", help=f"only these may strike: a,b,... or {_WORDS}")
    made.add_argument("--first", type=int, metavar="N", help="only the first N steps")
    made.add_argument("--steps", help="only these: numbers, 1,4-6, or each with its chance, write:17,poll:4")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another field")
    made.add_argument("--plant", metavar="MUTANT", help="with a planted fault (docs/simulation.md)")
    made.add_argument("--shrink", action="store_true", help="look for the smallest plan that fails alike")
    return made


def plan_of(flags: argparse.Namespace, bent: Callable[[int], Plan] = plan) -> Plan:
    """The plan that a line names.

    Args:
        bent: makes the plan of a seed when a fault is planted and the line does not say what it is drawn for.

    Raises:
        ValueError: it names none.
    """
    if flags.drawn is None and flags.plant:
        one = bent(flags.seed)
    else:
        one = _base(
            flags.seed,
            None if flags.drawn in (None, OWN) else _names(flags.drawn),
            alters="alters=yes" in flags.set,
        )
    if flags.steps is not None:
        one = one._replace(steps=_picked(one.steps, flags.steps))
    if flags.first is not None:
        one = one._replace(steps=one.steps[: flags.first])
    if flags.faults is not None:
        one = limited(one, frozenset(_names(flags.faults)))
    for assignment in flags.set:
        name, _, value = assignment.partition("=")
        if name not in Plan._fields or name in _TOLD:
            raise ValueError(f"a plan has no {name} to set")
        changed: dict[str, Any] = {name: int(value) if name == "calm_ms" else value == "yes"}
        one = one._replace(**changed)
    return one


def limited(one: Plan, faults: frozenset[str]) -> Plan:
    """A plan in which only these faults may strike."""
    steps = tuple(step for step in one.steps if step[0] not in EVERY or step[0] in faults)
    return one._replace(faults=faults, steps=steps)


def command_of(one: Plan) -> str:
    """The line that runs a plan again, with what is planted now."""
    drawn = _drawn(one)
    parts = [str(one.seed)]
    base = _base(one.seed, drawn, alters=one.alters)
    if drawn is not None or planting.PLANTED:
        parts += ["--drawn", OWN if drawn is None else _listed(drawn)]
    parts += _told_steps(one, base)
    if one.faults != base.faults:
        parts += ["--faults", _listed(sorted(one.faults))]
    for name in Plan._fields:
        value = getattr(one, name)
        if name not in _TOLD and (value != getattr(base, name) or (name == "alters" and value)):
            said = ("no", "yes")[value] if isinstance(value, bool) else value
            parts += ["--set", f"{name}={said}"]
    for name in planting.PLANTED:
        parts += ["--plant", name]
    return " ".join([PROGRAM, *(quote(part) for part in parts)])


def _base(seed: int, drawn: Sequence[str] | None, *, alters: bool) -> Plan:
    """What a seed makes."""
    one = plan(seed, drawn)
    return altering(one) if alters else one


def _told_steps(one: Plan, base: Plan) -> list[str]:
    """The options that make a plan's steps of those that its seed makes."""
    numbers = _numbers(one.steps, base.steps)
    if numbers is None:
        return ["--steps", ",".join(f"{action}:{chance}" for action, chance in one.steps)]
    if limited(base, one.faults).steps == one.steps:
        return []
    count = numbers[-1] + 1 if numbers else 0
    if limited(base._replace(steps=base.steps[:count]), one.faults).steps == one.steps:
        return ["--first", str(count)]
    return ["--steps", _ranges(numbers)]


def _drawn(one: Plan) -> Sequence[str] | None:
    """What a plan's steps were drawn for; None, as for the seed's own choice, when nobody knows."""
    wanted = one.faults
    for drawn in (None, FAULTS, EVERY, sorted(wanted)):
        base = _base(one.seed, drawn, alters=one.alters)
        if _numbers(one.steps, base.steps) is not None:
            return drawn
    return None


def _names(text: str) -> list[str]:
    if text in _GROUPS:
        return list(_GROUPS[text])
    names = text.split(",")
    if unknown := set(names) - {*EVERY, *APART}:
        raise ValueError(f"no faults: {', '.join(sorted(unknown))}; there are {', '.join(EVERY)}")
    return names


def _listed(names: Sequence[str]) -> str:
    found = next((word for word, group in _GROUPS.items() if set(group) == set(names)), "")
    return found or ",".join(names)


def _picked(steps: Sequence[Step], text: str) -> tuple[Step, ...]:
    """Steps by number, from 1, or spelled out."""
    picked: list[Step] = []
    for part in text.split(","):
        if ":" in part:
            action, _, chance = part.partition(":")
            picked.append((action, int(chance)))
        else:
            first, _, last = part.partition("-")
            picked += steps[int(first) - 1 : int(last or first)]
    return tuple(picked)


def _numbers(steps: Sequence[Step], whole: Sequence[Step]) -> list[int] | None:
    """Where the steps stand among all of them, in order; None when they do not."""
    places = {step: number for number, step in enumerate(whole)}
    numbers = [places.get(step, -1) for step in steps]
    return numbers if -1 not in numbers and numbers == sorted(set(numbers)) else None


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers from 0 as `1,4-6`, from 1."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0] + 1}-{run[-1] + 1}" if len(run) > 1 else str(run[0] + 1) for run in runs)
