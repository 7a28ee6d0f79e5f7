"""Folds of the LMDB store: when they are due, what they make durable, how they fail, and kill -9."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from indexer.store.fold.fold import FoldJob, FoldOutcome, run_fold
from indexer.store.fold.worker import FoldTicket, FoldWorker
from indexer.store.interface import Applied, Counts
from indexer.store.lmdb import folding
from indexer.store.lmdb import store as lmdb_store_module
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.errors import InvariantViolationError, RetryableError
from tests.store_kit import SMALL, Version, all_rows, chunks, key, lmdb_store, rows_of, segments, state
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
ONE_FOLD = """
import sys
from indexer.store.fold.fold import FoldJob, run_fold
sys.stdout.buffer.write(run_fold(FoldJob.from_line(sys.stdin.buffer.read())).to_line())
"""


class HeldBack:
    """Keeps jobs until it is told how they end."""

    def __init__(self) -> None:
        self.jobs: list[FoldJob] = []
        self.end: FoldOutcome | None = None

    def submit(self, job: FoldJob, prepare: Callable[[], None]) -> FoldTicket:
        prepare()
        self.jobs.append(job)
        return self

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        return self.end

    def cancel(self) -> None:
        pass  # whatever it begins, it begins when told to

    def run(self) -> None:
        """Do the last job, in a process of its own (a base is opened once per process)."""
        done = subprocess.run(
            [sys.executable, "-c", ONE_FOLD],
            input=self.jobs[-1].to_line(),
            capture_output=True,
            check=True,
            cwd=ROOT,
        )
        self.end = FoldOutcome.from_line(done.stdout)


def documents(first: int, count: int, text: str = "k") -> list[Version]:
    return [
        Version(b"d%05d" % n, 0, n, entries=((key(f"{text}{n % 97}"), b""),))
        for n in range(first, first + count)
    ]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_fold_is_due_by_entries(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, fold_entries=10))
    store.apply(segments(documents(0, 9)), state(1, p0=9))
    assert not store.fold_due(0)
    store.apply(segments(documents(9, 1)), state(2, p0=10))
    assert store.fold_due(0)
    store.close()


@pytest.mark.parametrize(("every_s", "checked"), [(None, 0), (0, 3), (3_600, 1)])
def test_mirror_is_checked_as_often_as_is_set(
    tmp_path: Path, folds: FoldWorker, every_s: float | None, checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first commit after an opening in any case, unless never."""
    looks: list[object] = []
    monkeypatch.setattr(lmdb_store_module, "check_mirror", looks.append)
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, check_mirror_s=every_s))
    for number in range(3):
        store.apply(segments(documents(number, 1)), state(number + 1, p0=number + 1))
    assert len(looks) == checked
    store.close()


def test_a_fold_is_due_by_bytes(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, fold_entries=10**6, fold_bytes=1 << 18))
    store.apply(segments(documents(0, 9)), state(1, p0=9))
    assert not store.fold_due(0)
    store.apply(segments(documents(9, 5_000)), state(2, p0=5_009))
    assert store.fold_due(0)
    store.close()


def test_a_fold_is_due_by_age_also_when_only_the_state_moved(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, fold_age_ms=500))
    assert not store.fold_due(1_000)
    store.apply([], state(1, p0=5))
    assert not store.fold_due(1_000)
    assert not store.fold_due(1_499)
    assert store.fold_due(1_500)
    assert store.start_fold()
    assert not store.fold_due(9_000), "one is at work"
    assert store.finish_fold(30) == state(1, p0=5)
    assert not store.fold_due(9_999)
    assert not store.start_fold(), "nothing is new"
    store.close()


def test_commits_go_on_beside_a_fold_and_reads_see_three_levels(tmp_path: Path) -> None:
    folds = HeldBack()
    store = lmdb_store(tmp_path / "slice", folds)
    store.load(chunks(documents(0, 5, "a")), [], state(-1, p0=5))
    store.apply(segments([Version(b"d00001", 0, 10, entries=((key("b"), b""),))]), state(1, p0=11))
    store.start_fold()
    store.apply(segments([Version(b"d00001", 0, 11), Version(b"d00002", 0, 12)]), state(2, p0=13))
    expected = [(key(f"a{n}") + b"d%05d" % n, b"") for n in (0, 3, 4)]
    assert all_rows(store) == expected
    assert store.finish_fold() is None
    assert store.durable == state(-1, p0=5)
    folds.run()
    assert all_rows(store) == expected, "the base has the fold, the store has not heard of it"
    assert store.finish_fold() == store.durable == state(1, p0=11)
    assert all_rows(store) == expected
    assert store.finish_fold() is None, "told once"
    store.close()


def test_what_was_not_folded_is_lost_and_comes_again(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 20)), state(1, p0=20))
    store.start_fold()
    store.finish_fold(30)
    store.apply(segments(documents(20, 20)), state(2, p0=40))
    store.close()
    wait_for(lambda: not list((tmp_path / "slice").glob("delta-*")))
    store = lmdb_store(tmp_path / "slice", folds)
    assert store.applied == state(1, p0=20)
    assert len(all_rows(store)) == 20
    store.apply(segments(documents(20, 20)), state(2, p0=40))
    assert len(all_rows(store)) == 40
    store.close()


def test_a_folded_delta_is_deleted_with_its_last_snapshot(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 20)), state(1, p0=20))
    snapshot = store.snapshot()
    store.start_fold()
    store.finish_fold(30)
    assert len(list((tmp_path / "slice").glob("delta-*"))) == 1
    assert len(rows_of(snapshot)) == 20
    snapshot.close()
    wait_for(lambda: not list((tmp_path / "slice").glob("delta-*")))
    store.close()


def test_the_filter_is_saved_on_another_thread_and_that_it_failed_is_told_and_mended(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slices of a node share the thread that begins folds. One whose filter was not saved was never tried
    again."""
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, fold_retry_ms=100))
    store.apply(segments(documents(0, 3)), state(1, p0=3))
    threads: list[int] = []

    def full(*_: object, **__: object) -> None:
        threads.append(threading.get_ident())
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folding, "save_filter", full)
        assert store.start_fold()
        with pytest.raises(RetryableError) as caught:
            store.finish_fold(30)
    assert caught.value.problem_type == "disk-full"
    assert threads
    assert threading.get_ident() not in threads
    assert not store.fold_due(1_000)
    assert store.fold_due(1_100)
    assert store.start_fold()
    assert store.finish_fold(30) == state(1, p0=3)
    store.close()


def test_a_fold_that_fails_is_tried_again_after_a_while(tmp_path: Path) -> None:
    folds = HeldBack()
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, fold_retry_ms=100))
    store.apply(segments(documents(0, 3)), state(1, p0=3))
    store.start_fold()
    folds.end = FoldOutcome("disk-full", "no room")
    with pytest.raises(RetryableError) as caught:
        store.finish_fold()
    assert caught.value.problem_type == "disk-full"
    assert not store.folding
    assert len(all_rows(store)) == 3
    assert not store.fold_due(1_000)
    assert store.fold_due(1_100)
    folds.end = None
    store.apply(segments(documents(3, 3)), state(2, p0=6))
    assert store.start_fold()
    folds.run()
    assert store.finish_fold() == state(1, p0=3), "the fold holds what was frozen first"
    assert len(all_rows(store)) == 6
    store.close()


def test_apply_waits_for_no_fold_that_does_not_keep_up_and_says_so(tmp_path: Path) -> None:
    folds = HeldBack()
    tight = replace(SMALL, delta_hard_bytes=1 << 16)
    store = lmdb_store(tmp_path / "slice", folds, tight)
    store.apply(segments(documents(0, 900)), state(1, p0=900))
    store.start_fold()
    store.apply(segments(documents(900, 900)), state(2, p0=1_800))
    with pytest.raises(RetryableError) as caught:
        store.apply(segments(documents(1_800, 900)), state(3, p0=2_700))
    assert caught.value.problem_type == "fold-behind"
    assert store.applied == state(2, p0=1_800)
    assert len(all_rows(store)) == 1_800
    folds.run()
    store.apply(segments(documents(1_800, 900)), state(3, p0=2_700))
    assert len(all_rows(store)) == 2_700
    assert store.finish_fold() == state(1, p0=900), "told, though apply saw it first"
    store.close()


def test_the_fold_of_an_earlier_opening_is_refused(tmp_path: Path) -> None:
    folds = HeldBack()
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 3)), state(1, p0=3))
    store.start_fold()
    (tmp_path / "kept").mkdir()
    frozen = Path(folds.jobs[0].delta_folder)
    for name in ("data.mdb", "lock.mdb"):
        os.link(frozen / name, tmp_path / "kept" / name)
    store.close()
    again = lmdb_store(tmp_path / "slice", folds)
    folds.jobs.append(replace(folds.jobs[0], delta_folder=str(tmp_path / "kept")))
    (tmp_path / "slice" / "filter.next").write_bytes(b"")
    folds.run()
    assert folds.end is not None
    assert folds.end.error == "not-owner"
    assert again.applied == Applied()
    assert all_rows(again) == []
    again.close()


def test_a_fold_checks_its_rows_against_the_counts(tmp_path: Path) -> None:
    folds = HeldBack()
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 3)), state(1, p0=3))
    store.start_fold()
    folds.jobs.append(replace(folds.jobs[0], forward=4))
    folds.run()
    with pytest.raises(InvariantViolationError, match="Mirror"):
        store.finish_fold()
    store.close()
    again = lmdb_store(tmp_path / "slice", folds)
    assert again.counts == Counts()
    again.close()


def test_a_fold_without_its_delta_is_an_outcome_not_an_exception(tmp_path: Path) -> None:
    job = FoldJob(str(tmp_path), str(tmp_path / "none"), 1 << 20, 1 << 20, 1, 1, "", "", 0, 0, 0, 0, False, 0)
    assert run_fold(job).error == "failed"


@pytest.mark.parametrize(
    ("kill", "problem"), [(signal.SIGKILL, "fold-worker-died"), (signal.SIGBUS, "disk-full")]
)
def test_a_killed_worker_is_an_error_and_is_started_again(
    tmp_path: Path, folds: FoldWorker, kill: signal.Signals, problem: str
) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 3)), state(1, p0=3))
    store.start_fold()
    store.finish_fold(30)
    first = folds.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    store.apply(segments(documents(3, 3)), state(2, p0=6))
    store.start_fold()
    wait_for(lambda: folds._at_work is not None)
    os.kill(first, kill)
    os.kill(first, signal.SIGCONT)
    with pytest.raises(RetryableError) as caught:
        store.finish_fold(30)
    assert caught.value.problem_type == problem
    assert store.start_fold()
    assert store.finish_fold(30) == state(2, p0=6)
    assert folds.pid != first
    assert len(all_rows(store)) == 6
    store.close()


def test_closing_the_worker_ends_its_process(tmp_path: Path) -> None:
    folds = FoldWorker()
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 3)), state(1, p0=3))
    store.start_fold()
    wait_for(lambda: folds.pid is not None)
    pid = folds.pid
    folds.close()
    assert store.finish_fold() == state(1, p0=3), "the fold at hand was let finish"
    assert pid is not None
    assert not alive(pid)
    store.close()


def test_jobs_and_outcomes_are_one_line_each(tmp_path: Path) -> None:
    outcome = FoldOutcome("failed", "two\nlines")
    assert outcome.to_line().count(b"\n") == 1
    assert FoldOutcome.from_line(outcome.to_line()) == outcome
    assert json.loads(outcome.to_line())["error"] == "failed"


def test_opening_takes_the_slice_over(tmp_path: Path, folds: FoldWorker) -> None:
    first = LmdbSliceStore(tmp_path / "slice", state(0, p0=1), SMALL, folds)
    first.close()
    second = LmdbSliceStore(tmp_path / "slice", state(0, p0=9), SMALL, folds)
    assert second.applied == state(0, p0=1), "the initial state is for a new slice only"
    second.close()
