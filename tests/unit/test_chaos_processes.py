"""Chaos strikes the cluster that it was pointed at, whatever else runs below the same process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.processes import Processes

SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Process ids of what looks like brokers of three clusters, by their names, the newest one last."""
    with ExitStack() as held:
        found = {}
        for name in ("first", "mine", "mine-too"):
            settings = str(tmp_path / name / "kafka" / "server.properties")
            process = subprocess.Popen([sys.executable, "-c", SLEEPS, "kafka.Kafka", settings])
            held.callback(process.wait)
            held.callback(process.kill)
            found[name] = process.pid
        yield found


@pytest.mark.parametrize("name", ["first", "mine", "mine-too"])
def test_another_cluster_s_broker_is_left_alone(brokers: dict[str, int], tmp_path: Path, name: str) -> None:
    found = Processes(os.getpid(), tmp_path / name).services()
    assert {part: process.pid for part, process in found.items()} == {"kafka": brokers[name]}


def test_a_second_projector_has_no_first_one_while_all_are_dead(tmp_path: Path) -> None:
    """That ends the fault, not the run: nothing is there to strike."""
    with (
        pytest.raises(LookupError, match="no projector"),
        Processes(os.getpid(), tmp_path).second_projector(),
    ):
        raise AssertionError("none runs")
