"""A failing history tells how to run it again, and that line does what the history did."""

from __future__ import annotations

import shlex

import pytest

from tests.simulation.__main__ import main
from tests.simulation.all_mutants import mutant_of
from tests.simulation.chance import ALTERED, EVERY, FAULTS, Plan, altering, plan, retaining
from tests.simulation.killers import KILLERS
from tests.simulation.planting import planted
from tests.simulation.regressions import REGRESSIONS
from tests.simulation.replaying import PROGRAM, command_of, limited, parser, plan_of
from tests.simulation.running import plan_for, quietly, run_or_tell


def read(line: str) -> Plan:
    assert line.startswith(f"{PROGRAM} ")
    return plan_of(parser().parse_args(shlex.split(line.removeprefix(PROGRAM))))


def variants(seed: int) -> list[Plan]:
    """Plans as runs and shrinking make them."""
    own, all_faults = plan(seed), plan(seed, FAULTS)
    fewer = limited(own, frozenset(sorted(own.faults)[: len(own.faults) // 2]))
    return [
        own,
        all_faults,
        plan(seed, ("lost", "election", "truncate")),
        own._replace(steps=own.steps[:57]),
        own._replace(steps=own.steps[:57], real_pipeline=not own.real_pipeline, calm_ms=17),
        own._replace(steps=own.steps[1::3]),
        own._replace(faults=own.faults | {"lost", "slow"}),
        own._replace(steps=()),
        fewer,
        fewer._replace(steps=fewer.steps[: len(fewer.steps) // 2]),
        fewer._replace(steps=fewer.steps[5:7] + fewer.steps[9:10], restart_at_end=not own.restart_at_end),
        limited(all_faults, frozenset()),
        plan(seed, EVERY),
        plan(seed, ("killed", "lost")),
        own._replace(steps=(("write", 17), ("poll", 4))),
        own._replace(spread=not own.spread),
        altering(own),
        altering(all_faults)._replace(steps=altering(all_faults).steps[:40], ranged=not own.ranged),
        altering(plan(seed, (ALTERED,))),
        retaining(own),
    ]


@pytest.mark.parametrize("seed", range(16))
def test_the_line_of_a_plan_makes_that_plan(seed: int) -> None:
    for one in variants(seed):
        assert read(command_of(one)) == one


def test_lines_of_what_was_kept_by_hand() -> None:
    for _, one in REGRESSIONS:
        assert read(command_of(one)) == one


def test_lines_are_short() -> None:
    assert command_of(plan(5)) == f"{PROGRAM} 5"
    assert command_of(altering(plan(5))) == f"{PROGRAM} 5 --set alters=yes"
    first = plan(5)._replace(steps=plan(5).steps[:20])
    assert command_of(first) == f"{PROGRAM} 5 --first 20"
    assert command_of(limited(plan(5, FAULTS), frozenset())) == f"{PROGRAM} 5 --drawn usual --faults none"


def test_a_failing_history_tells_its_shortest_prefix_and_a_line_that_fails_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mutant = mutant_of("join_the_past")
    whole = plan_for(mutant, KILLERS["join_the_past"].seed)
    with quietly(), planted(mutant.plant), pytest.raises(AssertionError) as failed:
        run_or_tell(whole)
    told = str(failed.value)
    lines = told.splitlines()
    smallest = lines[-1].removeprefix("run it again: ")
    prefix = lines[0].partition(" fail: ")[2]
    assert lines[0].startswith("the first ")
    assert f"of {len(whole.steps)} steps" in lines[0]
    story = told.partition("\n\n")[2].partition("\n\nkeep it")[0]
    assert "written: " in story
    assert "step " in story

    assert main(shlex.split(smallest.removeprefix(PROGRAM))) == 1
    assert capsys.readouterr().out.strip() == story.strip()
    assert main(shlex.split(prefix.removeprefix(PROGRAM))) == 1
    steps = len(read(prefix).steps)
    assert len(read(smallest).steps) < steps < len(whole.steps)
    assert len(read(smallest).steps) <= len(whole.steps) // 2
    capsys.readouterr()
    one_less = prefix.replace(f"--first {steps}", f"--first {steps - 1}")
    assert main(shlex.split(one_less.removeprefix(PROGRAM))) == 0
    assert "drained" in capsys.readouterr().out


def test_a_planted_fault_alone_is_bent_as_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    seed = str(KILLERS["join_the_past"].seed)
    assert main([seed, "--plant", "join_the_past"]) == 1
    assert "Untorn" in capsys.readouterr().out
    assert main(["1"]) == 0


@pytest.mark.parametrize("wrong", [["--set", "seed=4"], ["--faults", "rain"], ["--plant", "nothing"]])
def test_what_names_no_history_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["1", *wrong])
    assert ended.value.code == 2
    assert "error" in capsys.readouterr().err
