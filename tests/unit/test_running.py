"""How tests are run: their order, the ports of workers that run side by side, and Hypothesis' settings."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from keytide.settings.names import OTHER_VARIABLES
from tests import conftest
from tests.conftest import LONGEST_FIRST, TAKE_TURNS, has_turn, place, ports_of, pytest_collection_modifyitems

TESTS = Path(__file__).parents[1]


def item(path: str, name: str = "") -> Any:
    given: list[pytest.MarkDecorator] = []
    return SimpleNamespace(
        path=TESTS / path,
        name=name,
        given=given,
        get_closest_marker=lambda _: None,
        add_marker=lambda marker, append: given.append(marker),
    )


def collected(items: list[Any], *arguments: str) -> list[Any]:
    """What is left out of a run of pytest with these arguments; the others are left in `items`."""
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config: Any = SimpleNamespace(args=arguments, hook=hook, getini=lambda _: "600")
    pytest_collection_modifyitems(config, items)
    return left_out


def test_long_files_come_first_and_new_ones_before_them() -> None:
    items = [
        item("browser/test_page.py", "a"),
        item("integration/test_stalls.py", "b"),
        item("integration/test_stalls.py", "c"),
        item("integration/test_crash_matrix.py", "d"),
        item("integration/test_of_tomorrow.py", "e"),
        item("integration/test_of_tomorrow.py", "f"),
    ]
    assert collected(items, "tests/integration/test_stalls.py") == []
    assert "".join(one.name for one in items) == "efdbca"
    assert place(TESTS / "unit/test_gateway.py") == -1, "another file of that name"


def test_files_take_turns_unless_one_is_named() -> None:
    items = [item(f"integration/test_{name}.py") for name in TAKE_TURNS]
    everything = list(items)
    left_out = collected(items, "tests/integration", "tests/browser")
    assert [one.path for one in left_out] == [one.path for one in everything if not has_turn(one.path)]
    files = sorted((one.path for one in everything), key=place)
    assert [one.path for one in items] == [file for file in files if has_turn(file)]


def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "slowness", lambda: 2.0)
    items = [item("unit/test_gateway.py")]
    collected(items)
    assert [marker.args for marker in items[0].given] == [(1200.0,)]


def test_every_file_of_the_order_is_there() -> None:
    there = {
        path.stem for path in TESTS.glob("*/test_*.py") if path.parent.name in ("integration", "browser")
    }
    assert {f"test_{name}" for name in LONGEST_FIRST} <= there


@pytest.mark.parametrize("count", [1, 2, 8])
def test_workers_share_no_ports(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those that come in the place of workers that died."""
    monkeypatch.delenv("KEYTIDE_PORTS", raising=False)
    ranges = [range(*map(int, ports_of(worker, count).split("-"))) for worker in range(2 * count)]
    assert ranges[0].start >= 20_000
    assert all(one.stop < other.start for one, other in pairwise(ranges)), "`stop` is its last one"
    assert ranges[-1].stop < 32_768
    assert min(map(len, ranges)) > 500


def test_examples_take_as_long_as_they_take() -> None:
    for made in (settings.default, settings(max_examples=7)):
        assert made is not None
        assert made.deadline is None
        assert HealthCheck.too_slow in made.suppress_health_check
        assert made.derandomize is (os.environ.get("KEYTIDE_NO_SKIPS") == "1")


def test_variables_of_test_runs_are_known_to_the_product() -> None:
    """Else each process that a test starts refuses it as a setting that there is not."""
    files = [TESTS.parent / name for name in ("Makefile", ".ci/run", "tests/share.py", "tests/conftest.py")]
    names = {name for file in files for name in re.findall(r"KEYTIDE_[A-Z]+(?:_[A-Z]+)*", file.read_text())}
    assert len(names) > 4
    assert names - OTHER_VARIABLES == set()
