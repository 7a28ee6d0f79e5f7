"""The fold worker: one small process beside the indexer that runs folds, one after the other.

A process of its own, not a thread: a fold shares neither the interpreter lock with ingest and scans nor its
memory, and a disk that fills up under the memory map ends only the worker (LMDB's base stays as it was).

The worker reads jobs from its standard input, one JSON object a line, and answers each on its standard
output. When its input ends, also by a kill -9 of the parent, it exits at once, whatever it is doing. Should
it still commit in that last moment, the owner number in the base tells (see `fold`).
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Protocol

from indexer.store.fold import FoldJob, FoldOutcome, run_fold

WORKER_DIED: Final = "fold-worker-died"
DISK_FULL: Final = "disk-full"
_CLOSE_WAIT_S: Final = 10.0


class FoldTicket(Protocol):
    """A fold that was handed over."""

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        """How it ended, None while it has not; waits for up to so long."""
        ...


class Folder(Protocol):
    """Something that folds."""

    def submit(self, job: FoldJob) -> FoldTicket: ...


class FoldWorker:
    """The handle on the worker process, shared by all slices of a node. It is started when first needed, and
    again after it died. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: deque[_Ticket] = deque()

    @property
    def pid(self) -> int | None:
        """Of the process at work, if any."""
        return None if self._process is None else self._process.pid

    def submit(self, job: FoldJob) -> FoldTicket:
        """Hand over a fold; it begins when those before it have ended."""
        ticket = _Ticket()
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            self._waiting.append(ticket)
            pipe = None if self._process is None else self._process.stdin
            with suppress(OSError, ValueError):  # it died just now: the reader thread settles all its tickets
                if pipe is not None:
                    pipe.write(job.to_line())
                    pipe.flush()
        return ticket

    def close(self) -> None:
        """Let it finish the fold at hand, up to a limit, then end it."""
        with self._lock:
            process, self._process = self._process, None
            waiting = list(self._waiting)
        if process is None:
            return
        deadline = time.monotonic() + _CLOSE_WAIT_S
        for ticket in waiting:
            ticket.outcome(max(0.0, deadline - time.monotonic()))
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "indexer.store.fold_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._waiting = deque()
        reader = threading.Thread(
            target=self._read, args=(self._process, self._waiting), name="fold-worker-answers", daemon=True
        )
        reader.start()

    def _read(self, process: subprocess.Popen[bytes], waiting: deque[_Ticket]) -> None:
        """Settle tickets as answers come; at the end of the process, all that are left."""
        answers: IO[bytes] | None = process.stdout
        if answers is not None:
            for line in answers:
                waiting.popleft().settle(FoldOutcome.from_line(line))
            answers.close()
        code = process.wait()
        if process.stdin is not None:
            with suppress(OSError):  # what it had not read is lost with it
                process.stdin.close()
        with self._lock:
            left = list(waiting)
            waiting.clear()
        # A page of a memory map for which the disk has no room is a SIGBUS; so is a broken disk.
        error = DISK_FULL if code == -signal.SIGBUS else WORKER_DIED
        for ticket in left:
            ticket.settle(FoldOutcome(error, f"the fold worker ended with status {code}"))


class _Ticket:
    def __init__(self) -> None:
        self._outcome: FoldOutcome | None = None
        self._settled = threading.Event()

    def settle(self, outcome: FoldOutcome) -> None:
        self._outcome = outcome
        self._settled.set()

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        if wait_s > 0:
            self._settled.wait(wait_s)
        return self._outcome


def main() -> None:
    """The worker's process: folds jobs from standard input until it ends."""
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            jobs.put(line)
        os._exit(0)  # the parent is gone or has closed us: nothing that is at work may go on

    threading.Thread(target=read, name="jobs", daemon=True).start()
    while True:
        outcome = run_fold(FoldJob.from_line(jobs.get()))
        sys.stdout.buffer.write(outcome.to_line())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
