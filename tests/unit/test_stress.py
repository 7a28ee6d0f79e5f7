"""A benchmark as a stress test: rounds go on, trouble in the logs fails a round, and its logs are kept."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from benchmarks import harness, stress
from benchmarks.harness import Result


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("ERROR indexer: slice by_city-3/0 is lost: offset 68", True),
        ("WARNING slice by_city-3/1 stopped: missing in the mutation queue", True),
        ("Fatal Python error: Segmentation fault", True),
        ("coordinator ended with status -11", True),
        ("invariant OneThread does not hold: x", True),
        ("INFO everything is as it should be", False),
        ("INFO projector-1 stopped", False),
    ],
)
def test_what_is_trouble(tmp_path: Path, line: str, trouble: bool) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node.log").write_text(f"begin\n{line}\nend\n")
    assert bool(stress.troubles(tmp_path)) is trouble


def test_a_slice_that_the_benchmark_takes_away_is_no_trouble(tmp_path: Path) -> None:
    stress.take_away(tmp_path, "by_city-3/0")
    log = tmp_path / "node.log"
    log.write_text("ERROR slice by_city-3/0 is lost: the slice's data is not on this node\n")
    assert stress.troubles(tmp_path) == []
    for line in (
        "ERROR slice by_city-3/1 is lost: the slice's data is not on this node",
        "ERROR slice by_city-3/0 is lost: offset 68 is not what was written",
        "ERROR slice by_city-3/0 stopped: missing in the mutation queue",
    ):
        log.write_text(f"{line}\n")
        assert stress.troubles(tmp_path) == [f"node.log: {line}"]


def test_rounds_go_on_and_logs_of_failed_ones_are_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (segment := data / "kafka" / "data" / "t-0" / "0.log").parent.mkdir(parents=True)
    segment.write_text("slice a/0 is lost: in a document")
    said = iter(("all is well", "slice a/0 is lost: gone", "all is well", "all is well"))
    number = 0

    def one() -> Result:
        nonlocal number
        number += 1
        (data / "node.log").write_text(next(said))
        failed = number == 3
        harness._look(data, failed)
        if failed:
            raise OSError("no")
        return Result("x")

    results, failures = stress.rounds("x", 4, one, tmp_path / "kept")
    assert len(results) == 2
    assert ["is lost" in failures[0], "OSError" in failures[1]] == [True, True]
    kept = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "kept").rglob("*.log"))
    assert kept == ["kept/x-2/node.log", "kept/x-3/node.log"]


def test_cores_are_busy_for_as_long_as_it_takes() -> None:
    with stress.busy(True):
        assert len(multiprocessing.active_children()) >= (os.cpu_count() or 1)
    assert multiprocessing.active_children() == []
