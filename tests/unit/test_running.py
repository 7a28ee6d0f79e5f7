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
from tests.conftest import LONGEST_FIRST, place, ports_of

TESTS = Path(__file__).parents[1]


def item(path: str, name: str = "") -> Any:
    return SimpleNamespace(path=TESTS / path, name=name)


def test_long_files_come_first_and_new_ones_before_them() -> None:
    items = [
        item("browser/test_page.py", "a"),
        item("integration/test_stalls.py", "b"),
        item("integration/test_stalls.py", "c"),
        item("integration/test_crash_matrix.py", "d"),
        item("integration/test_of_tomorrow.py", "e"),
        item("integration/test_of_tomorrow.py", "f"),
    ]
    items.sort(key=place)
    assert "".join(one.name for one in items) == "efdbca"
    assert place(item("unit/test_gateway.py")) == -1, "another file of that name"


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
