"""Writes docs/simulation.md's table and `killers`: a seed that sees each planted fault.

python -m tests.simulation.table [--budget N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.simulation.all_mutants import MUTANTS
from tests.simulation.killers import Killer
from tests.simulation.mutants_unit import UNIT_MUTANTS
from tests.simulation.running import cheapest_killer, quietly

ROOT: Final = Path(__file__).parents[2]
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def faults() -> list[tuple[str, str]]:
    """(name, the rules that it breaks) of every planted fault."""
    return [(one.name, one.rules) for one in MUTANTS] + [(one.name, one.rules) for one in UNIT_MUTANTS]


def rows(found: dict[str, Killer]) -> list[str]:
    """The table, by rule."""
    lines = ["| rule | mutant | what it does | seed | seen as |", "| --- | --- | --- | --- | --- |"]
    for one in MUTANTS:
        seed, _, name = found[one.name]
        lines.append(f"| {one.rules} | `{one.name}` | {one.text} | {seed} | {name} |")
    lines += ["", "What no history can show, and the test that must fail instead:", ""]
    lines += ["| rule | mutant | what it does | why not here | seen by |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {one.rules} | `{one.name}` | {one.text} | {one.why} | `{one.where()}` |" for one in UNIT_MUTANTS
    ]
    return lines


def main() -> int:
    """Find the killers, write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=400)
    budget = parser.parse_args().budget
    found: dict[str, Killer] = {}
    with quietly():
        for one in MUTANTS:
            seen = cheapest_killer(one, budget)
            if seen is None:
                print(f"{one.name} survived {budget} seeds", file=sys.stderr)
                return 1
            found[one.name] = seen
            print(f"{one.name}: {seen}", flush=True)
    page = ROOT / "docs" / "simulation.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text("\n".join([before + BEGIN, *rows(found), END]) + after)
    killers = Path(__file__).with_name("killers.py")
    head = killers.read_text().split("KILLERS:")[0]
    body = "".join(
        f'    "{name}": Killer({seed}, {steps}, "{seen}"),\n' for name, (seed, steps, seen) in found.items()
    )
    killers.write_text(f"{head}KILLERS: Final[dict[str, Killer]] = {{\n{body}}}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
