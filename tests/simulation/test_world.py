"""Seeded histories of the real cores with faults; planted faults; determinism; the real store."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexer.store.fold import FoldJob, FoldOutcome, run_fold
from indexer.store.interface import Applied
from indexer.store.lmdb_store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import FAULTS, World, run

SEEDS = int(os.environ.get("KEYTIDE_SEEDS", "100"))
GROUPS = 5
MUTANT_SEEDS = 40


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Faults are the point here; their log lines are not."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_history_keeps_the_invariants_and_drains(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_histories_reach_what_they_are_for() -> None:
    """Without this, a world in which nothing happens would pass."""
    seen: Counter[str] = Counter()
    for seed in range(1_000, 1_012):
        world = run(seed, FAULTS)
        seen["commits"] += world.checkers.commits
        seen["scans"] += world.checkers.scans
        for node in world.nodes:
            seen["restarts"] += node.lives
            for runner in node.runners.values():
                seen["slices"] += 1
                seen["caught up"] += runner.core.state == "LIVE"
        seen += world.seen
    assert seen["caught up"] == seen["slices"]
    for what in (
        "commits",
        "scans",
        "restarts",
        "unnumbered",
        "gaps",
        "parts",
        "full disk",
        "batches",
        "switches",
        "passed over",
        "published",
    ):
        assert seen[what] > 0, (what, seen)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_planted_faults_are_seen(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            run(seed, FAULTS if seed % 2 else None)
        except Exception:  # noqa: BLE001 - whatever it is: seen
            return
    pytest.fail(f"{mutant.__name__} survived {MUTANT_SEEDS} seeds")


def test_a_seed_is_a_history() -> None:
    """The same seed gives the same trace in processes that hash differently."""
    script = (
        "import logging; logging.disable(50)\n"
        "from tests.simulation.world import run\n"
        "print([run(seed).schedule.digest() for seed in (3, 4)])"
    )
    root = Path(__file__).parents[2]
    traces = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1


class _Ticket:
    def __init__(self, outcome: FoldOutcome) -> None:
        self._outcome = outcome

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        return self._outcome


class _Inline:
    """Folds at once."""

    def submit(self, job: FoldJob) -> _Ticket:
        return _Ticket(run_fold(job))


class _OnDisk(LmdbSliceStore):
    """The real store; a crash is a second opening of its folder."""

    def __init__(self, folder: Path, initial: Applied) -> None:
        self._place = (folder, initial)
        settings = StoreSettings(
            base_map_bytes=1 << 26,
            delta_map_bytes=1 << 26,
            fold_age_ms=150,
            reserve_bytes=0,
            fsync=False,
            check_mirror=True,
        )
        super().__init__(folder, initial, settings, _Inline())

    def reopened(self) -> _OnDisk:
        self.close()
        return _OnDisk(*self._place)


@pytest.mark.parametrize("seed", range(3))
def test_the_real_store_does_the_same(seed: int, tmp_path: Path) -> None:
    world = World(seed, FAULTS, lambda name, initial: _OnDisk(tmp_path / name, initial))
    world.run()
    assert world.checkers.commits > 0
    for node in world.nodes:
        for runner in node.runners.values():
            runner.close()
