"""The slices of a node fold one after the other: no two begin in one look after them, and none waits for
ever."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from indexer.hosting.fold_turns import EARLIER, in_turn
from indexer.store.interface import Applied
from indexer.store.settings import StoreSettings
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from tests.simulation.wire import TOPIC_ID
from tests.unit.test_hosting import Place, Run

AGE_MS = 30_000
"""Of a delta in the stores of `Run`."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "node")
    yield made
    made.hosting.close()
    made.folds.close()
    made.folder.close()


def of_age(node: Place, path: Path, count: int) -> list[Run]:
    """Slices of a node whose deltas began in one moment."""
    runs = [Run(path / str(number), Applied(timestamp=Timestamp({}, TOPIC_ID))) for number in range(count)]
    for number, run in enumerate(runs):
        run.hear(0, 0, 3)
        run.stamp(1, 3)
        node.hosting.runners["i", number] = run.runner
    node.hosting.look_after(0)
    return runs


def test_two_slices_of_age_do_not_both_begin_a_fold_in_one_look(node: Place, tmp_path: Path) -> None:
    runs = of_age(node, tmp_path, 3)
    node.hosting.look_after(AGE_MS - 1)
    assert not any(run.store.folding for run in runs)
    for now in range(AGE_MS, AGE_MS + 3):
        node.hosting.look_after(now)
        assert sum(run.store.folding for run in runs) == 1
    node.hosting.look_after(AGE_MS + 3)
    assert [run.store.durable.number for run in runs] == [1, 1, 1]


def test_slices_that_are_due_again_at_once_let_the_others_fold(node: Place, tmp_path: Path) -> None:
    runs = of_age(node, tmp_path, 3)
    for run in runs:
        run.store._fold_age_ms = 0
    for number in range(2, 10):
        for run in runs:
            run.stamp(number, 3)
        node.hosting.look_after(number)
    assert all(run.store.durable.number > 1 for run in runs)


def test_a_slice_that_cannot_begin_a_fold_does_not_hold_up_the_others(
    node: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = of_age(node, tmp_path, 2)

    def full() -> bool:
        raise RetryableError("no space left on device", problem_type="disk-full")

    monkeypatch.setattr(runs[0].store, "start_fold", full)
    node.hosting.look_after(AGE_MS)
    assert [run.store.folding for run in runs] == [False, True]


@pytest.mark.parametrize("index", ["i-1", "i-2", "i-77"])
def test_ages_differ_by_slice_and_never_pass_what_is_set(index: str) -> None:
    settings = StoreSettings(fold_age_ms=AGE_MS)
    ages = [in_turn(settings, (index, number)).fold_age_ms for number in range(8)]
    assert ages == [in_turn(settings, (index, number)).fold_age_ms for number in range(8)]
    assert min(ages) >= (1 - EARLIER) * AGE_MS
    assert max(ages) <= AGE_MS
    assert min(later - earlier for earlier, later in pairwise(sorted(ages))) > 0.04 * EARLIER * AGE_MS


def test_stores_are_opened_with_ages_of_their_own(node: Place) -> None:
    node.index("BUILDING", nodes=("n1", "n1"))
    ages = [runner.store._settings.fold_age_ms for runner in node.hosting.runners.values()]  # type: ignore[attr-defined]
    assert ages == [in_turn(StoreSettings(fold_age_ms=AGE_MS), ("i-1", n)).fold_age_ms for n in (0, 1)]
    assert ages[0] != ages[1]
