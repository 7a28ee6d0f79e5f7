"""What a run leaves to other runs: everything has its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import conftest, share

INTEGRATION = Path(__file__).parents[1] / "integration"


def test_every_file_that_takes_turns_has_one_within_so_many_days(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: INTEGRATION / f"test_{name}.py" for name in conftest.TAKE_TURNS}
    assert [str(file) for file in files.values() if not file.exists()] == []
    monkeypatch.setattr(share, "WHOLE_MATRIX", False)
    tried: list[str] = []
    for day in range(share.TURNS):
        monkeypatch.setattr(share, "TODAY", day)
        tried += [name for name, file in files.items() if conftest.has_turn(file)]
    assert sorted(tried) == sorted(files)
    monkeypatch.setattr(share, "WHOLE_MATRIX", True)
    assert all(map(conftest.has_turn, files.values()))


def test_other_files_are_tried_every_day() -> None:
    assert conftest.has_turn(INTEGRATION / "test_demo.py")
    assert conftest.has_turn(INTEGRATION.parent / "unit" / "test_history.py")


def test_every_history_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "EVERYTHING", False)
    tried: set[int] = set()
    for day in range(share.PARTS):
        monkeypatch.setattr(share, "TODAY", day)
        tried.update(share.seeds(50))
        assert len(share.seeds(5)) == 1, "of fewer than there are days one has its turn"
    assert tried == {*range(50)}


def test_every_planted_fault_has_its_turn_and_is_looked_for_in_each_large_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = range(50)
    tried: list[int] = []
    monkeypatch.setattr(share, "PARTS", 16)
    for day in range(share.TURNS):
        monkeypatch.setattr(share, "TODAY", day)
        tried += share.planted(faults)
    assert sorted(tried) == [*faults]
    monkeypatch.setattr(share, "PARTS", 8)
    assert share.planted(faults) == faults


def test_of_few_examples_ten_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "PARTS", 8)
    assert [share.examples(everything) for everything in (4, 40, 81, 600)] == [4, 10, 11, 75]
    monkeypatch.setattr(share, "PARTS", 1)
    assert share.examples(600) == 600
