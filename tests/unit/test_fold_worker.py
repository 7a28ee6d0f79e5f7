"""The fold worker's handle: a process that stands still is replaced, nobody waits for it, and a fold that is
taken back leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from indexer.store.fold.fold import FoldJob
from indexer.store.fold.process import NICE
from indexer.store.fold.watched_process import StalledError, WatchedProcess
from indexer.store.fold.worker import WORKER_DIED, WORKER_STALLED, FoldWorker, _Ticket
from indexer.store.interface import Applied
from keytide.errors import RetryableError
from tests.store_kit import SMALL, all_rows, lmdb_store, segments, state
from tests.unit.test_store_fold import alive, documents
from tests.waiting import crowding, wait_for

PATIENT_S, IMPATIENT_S = 20.0, 1.0
"""A process that is just starting may be silent for seconds where the tests have a busy machine."""


def hurry(folds: FoldWorker) -> None:
    """From now on the worker of now may stand still for a short time only."""
    assert folds._process is not None
    folds._process._stall_s = 0.2


@pytest.fixture
def folds() -> Iterator[FoldWorker]:
    with closing(FoldWorker(PATIENT_S)) as worker:
        yield worker


def pid_of(folds: FoldWorker) -> int:
    wait_for(lambda: folds.pid is not None)
    assert folds.pid is not None
    return folds.pid


def held(monkeypatch: pytest.MonkeyPatch, folder: Path, point: str = "fold-before-commit") -> None:
    """Have the first worker stop at a place: it makes `held.held` there."""
    monkeypatch.setenv("KEYTIDE_SYNC_POINT", f"{point}:hold={folder / 'held'}")


@pytest.mark.fault
def test_a_worker_that_stands_still_is_replaced_and_nobody_waits_for_it(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = replace(SMALL, delta_hard_bytes=1 << 16, check_mirror_s=None)
    store = lmdb_store(tmp_path / "slice", folds, tight)
    store.apply(segments(documents(0, 900)), state(1, p0=900))
    store.start_fold()
    assert store.finish_fold(30) is not None
    stopped = pid_of(folds)
    os.kill(stopped, signal.SIGSTOP)
    store.apply(segments(documents(900, 900)), state(2, p0=1_800))
    store.start_fold()
    store.apply(segments(documents(1_800, 900)), state(3, p0=2_700))
    waits: list[float] = []
    with monkeypatch.context() as patched:
        patched.setattr(_Ticket, "outcome", lambda _, wait_s=0.0: waits.append(wait_s))
        # What all slices of a node do in one thread
        for what in (
            lambda: store.apply(segments(documents(2_700, 9)), state(4, p0=2_709)),
            lambda: store.step_back(lambda applied: applied.number <= 1),
        ):
            with pytest.raises(RetryableError) as caught:
                what()
            assert caught.value.problem_type == "fold-behind"
        assert store.finish_fold() is None
    assert set(waits) == {0.0}
    hurry(folds)
    with pytest.raises(RetryableError) as caught:
        store.finish_fold(30)
    assert caught.value.problem_type == WORKER_STALLED
    wait_for(lambda: not alive(stopped))
    assert store.start_fold()
    assert store.finish_fold(30) == state(2, p0=1_800)
    assert folds.pid != stopped
    store.apply(segments(documents(2_700, 9)), state(4, p0=2_709))
    assert len(all_rows(store)) == 2_709
    store.close()


@pytest.mark.fault
def test_a_worker_that_hangs_with_the_write_lock_is_replaced(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never moves the base afterwards: it is gone before another begins."""
    held(monkeypatch, tmp_path)
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 9)), state(1, p0=9))
    store.start_fold()
    wait_for(lambda: (tmp_path / "held.held").exists())
    hurry(folds)
    with pytest.raises(RetryableError) as caught:
        store.finish_fold(30)
    assert caught.value.problem_type == WORKER_STALLED
    monkeypatch.delenv("KEYTIDE_SYNC_POINT")
    assert store.start_fold()
    assert store.finish_fold(30) == state(1, p0=9)
    store.close()


@pytest.mark.fault
@pytest.mark.parametrize("end", ["destroy", "close"])
def test_a_fold_at_work_ends_with_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Neither does the folder come back, nor does the fold write into a slice that begins anew there."""
    held(monkeypatch, tmp_path, "fold-undo-written")
    with closing(FoldWorker()) as folds:
        store = lmdb_store(tmp_path / "slice", folds)
        store.apply(segments(documents(0, 9)), state(1, p0=9))
        store.start_fold()
        wait_for(lambda: (tmp_path / "held.held").exists())
        worker = pid_of(folds)
        getattr(store, end)()
        assert not alive(worker)
        (tmp_path / "held").touch()
        assert (tmp_path / "slice").exists() == (end == "close")
        monkeypatch.delenv("KEYTIDE_SYNC_POINT")
        again = lmdb_store(tmp_path / "slice", folds)
        assert again.applied == Applied()
        again.apply(segments(documents(0, 9)), state(1, p0=9))
        again.start_fold()
        assert again.finish_fold(30) == state(1, p0=9)
        again.verify()
        again.destroy()


@pytest.mark.fault
def test_only_the_fold_at_work_fails_with_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a slice whose fold ends the worker each time would have no other slice fold."""
    held(monkeypatch, tmp_path)
    with closing(FoldWorker()) as folds:
        stores = [lmdb_store(tmp_path / name, folds) for name in ("first", "second", "third")]
        for store in stores:
            store.apply(segments(documents(0, 9)), state(1, p0=9))
            store.start_fold()
        wait_for(lambda: (tmp_path / "held.held").exists())
        monkeypatch.delenv("KEYTIDE_SYNC_POINT")
        stores[1].close()  # taken back before it was begun: the worker is left alone
        assert folds.pid is not None
        os.kill(folds.pid, signal.SIGKILL)
        assert stores[2].finish_fold(30) == state(1, p0=9)
        with pytest.raises(RetryableError) as caught:
            stores[0].finish_fold(30)
        assert caught.value.problem_type == WORKER_DIED
        for store in (stores[0], stores[2]):
            store.close()


def job(folder: Path, state_bytes: int = 0) -> FoldJob:
    hexadecimal = "00" * state_bytes
    return FoldJob(
        str(folder), str(folder / "no"), 1 << 20, 1 << 20, 1, 1, hexadecimal, "", 0, 0, 0, 0, False, 0
    )


def ready() -> None:
    """Nothing is to be done before the fold."""


def test_a_large_job_for_a_stopped_worker_holds_nobody(tmp_path: Path, folds: FoldWorker) -> None:
    """The state of a slice of many partitions is larger than a pipe takes at once."""
    assert folds.submit(job(tmp_path), ready).outcome(30) is not None
    os.kill(pid_of(folds), signal.SIGSTOP)
    ticket = folds.submit(job(tmp_path, 1 << 20), ready)
    began = time.monotonic()
    other = folds.submit(job(tmp_path), ready)
    assert time.monotonic() - began < PATIENT_S / 2
    hurry(folds)
    ended = ticket.outcome(30)
    assert ended is not None
    assert ended.error == WORKER_STALLED
    after = other.outcome(30)
    assert after is not None
    assert after.error == "failed", "it was done, by another worker: there is no such base"


def test_a_worker_that_cannot_be_started_is_an_outcome(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    ended = folds.submit(job(tmp_path), ready).outcome(30)
    assert ended is not None
    assert ended.error == WORKER_DIED


def test_the_worker_stands_back_for_everybody_else(tmp_path: Path, folds: FoldWorker) -> None:
    assert folds.submit(job(tmp_path), ready).outcome(30) is not None
    assert psutil.Process(folds.pid).nice() == min(19, psutil.Process().nice() + NICE)


def test_a_closed_worker_takes_nothing_more(tmp_path: Path) -> None:
    folds = FoldWorker()
    folds.close()
    ended = folds.submit(job(tmp_path), ready).outcome(30)
    assert ended is not None
    assert ended.error == WORKER_DIED


def test_a_bug_in_its_thread_is_told_to_whoever_comes_next(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else folds would wait for ever, and deltas grow."""
    begun = threading.Event()

    def broken(*_: object) -> None:
        assert begun.wait(PATIENT_S)
        raise ValueError("a bug")

    monkeypatch.setattr(FoldWorker, "_fold", broken)
    tickets = [folds.submit(job(tmp_path), ready) for _ in range(2)]
    begun.set()
    for ticket in tickets:
        ended = ticket.outcome(30)
        assert ended is not None
        assert ended.error == WORKER_DIED
    assert folds.wait(PATIENT_S)
    with pytest.raises(ValueError, match="a bug"):
        folds.submit(job(tmp_path), ready)


TALKS = """
import sys, time
print("begun", flush=True)
for turn in range(int(sys.argv[1])):
    print(flush=True)
    time.sleep(0.05)
print("done", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "talks.py").write_text(TALKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "talks"


def test_a_slow_child_that_comes_further_is_left_alone(talks: str) -> None:
    longer = crowding()
    child = WatchedProcess(talks, (str(round(60 * longer)), "0"), PATIENT_S)
    lines = child.lines()
    assert next(lines) == b"begun"
    child._stall_s = longer * IMPATIENT_S
    assert list(lines) == [b"done"], "after three times as long as it may stand still"
    child.close()


def test_a_silent_child_is_ended(talks: str) -> None:
    child = WatchedProcess(talks, ("1", "600"), PATIENT_S)
    lines = child.lines()
    assert [next(lines), next(lines)] == [b"begun", b"done"]
    child._stall_s = 0.2
    with pytest.raises(StalledError):
        next(lines)
    assert not child.alive()
    assert child.close() == -signal.SIGKILL


def test_a_stopped_worker_dies_with_its_node(tmp_path: Path) -> None:
    """It may hold the write lock of a base, which the next node needs to open it."""
    code = (
        "import os, sys, signal\n"
        "from pathlib import Path\n"
        "from indexer.store.fold.worker import FoldWorker\n"
        "from tests.unit.test_fold_worker import job, ready\n"
        "folds = FoldWorker()\n"
        "folds.submit(job(Path(sys.argv[1])), ready).outcome(30)\n"
        "os.kill(folds.pid, signal.SIGSTOP)\n"
        "print(folds.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "node.py").write_text(code)
    root = str(Path(__file__).resolve().parents[2])
    read, write = os.pipe()
    environment = {**os.environ, "PYTHONPATH": root}
    node = os.posix_spawn(
        sys.executable,
        [sys.executable, str(tmp_path / "node.py"), str(tmp_path)],
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    os.close(write)
    with os.fdopen(read) as said:
        worker = int(said.readline())
    assert os.waitstatus_to_exitcode(os.waitpid(node, 0)[1]) == -signal.SIGKILL
    wait_for(lambda: not alive(worker))


def test_a_worker_that_cannot_read_its_jobs_says_so_and_ends() -> None:
    """It would wait for ever for a job that nobody can give it."""
    with Path(os.devnull).open("wb") as unreadable:
        told = subprocess.run(
            [sys.executable, "-m", "indexer.store.fold.process"],
            stdin=unreadable,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert told.returncode == 1
    assert "the thread jobs has failed" in told.stderr
