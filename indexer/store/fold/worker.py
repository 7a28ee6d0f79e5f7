"""The handle on the fold worker: one small process beside the indexer that runs folds, one after the other.

A process of its own, not a thread: a fold shares neither the interpreter lock with ingest and scans nor its
memory, and a disk that fills up under the memory map ends only the worker (LMDB's base stays as it was).

The process itself is `fold_process`. It is watched: while it comes further it may take what time it needs,
when it stands still it is ended and another takes its place (`watched`). Should it still commit in its last
moment, the owner number in the base tells (see `fold`).

Jobs wait on this side and are handed over one by one, by a thread that speaks with the process. So nobody who
submits a fold ever waits for the worker; of a worker that dies, or is ended because it stands still, only the
fold at work fails; and a fold that nobody wants any more is taken back (`FoldTicket.cancel`).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Final, Protocol

from indexer.store.fold.fold import FoldJob, FoldOutcome, failed_by
from indexer.store.fold.watched_process import StalledError, WatchedProcess
from keytide.process.worker import QueueWorker

WORKER_DIED: Final = "fold-worker-died"
WORKER_STALLED: Final = "fold-worker-stalled"
DISK_FULL: Final = "disk-full"
STALL_S: Final = 60.0
"""See `IndexerSettings.stall_s`."""
_CLOSE_WAIT_S: Final = 10.0
"""For the end of a fold, or of a killed process."""

log = logging.getLogger(__name__)


class FoldTicket(Protocol):
    """A fold that was handed over."""

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        """How it ended, None while it has not; waits for up to so long."""
        ...

    def cancel(self) -> None:
        """It is not wanted any more. On return it is not at work, and never will be; what it had begun
        may be done or not."""
        ...


class Folder(Protocol):
    """Something that folds."""

    def submit(self, job: FoldJob, prepare: Callable[[], None]) -> FoldTicket:
        """Hand over a fold. `prepare` is what must be done right before it, on another thread than the
        caller's; it may raise OSError, by which the fold fails."""
        ...


class FoldWorker(QueueWorker["_Ticket"]):
    """The handle on the worker process, shared by all slices of a node. It is started when first needed, and
    again after it died or stood still. Safe to use from several threads.

    Args:
        stall_s: how long a fold may show no progress before the worker is replaced.
    """

    def __init__(self, stall_s: float = STALL_S) -> None:
        super().__init__("folds", None)
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._unsettled: set[_Ticket] = set()
        self._at_work: _Ticket | None = None
        self._process: WatchedProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the process at work, if any."""
        process = self._process
        return None if process is None else process.pid

    def submit(self, job: FoldJob, prepare: Callable[[], None]) -> FoldTicket:
        """`Folder.submit`; it begins when those before it have ended.

        Raises:
            Exception: a bug, by which the thread that speaks with the process has ended.
        """
        ticket = _Ticket(self, job, prepare)
        with self._lock:
            self.check()
            if self.stopping.is_set():
                ticket.settle(FoldOutcome(WORKER_DIED, "the fold worker is closed"))
                return ticket
            self._unsettled.add(ticket)
            self.put(ticket)
            if not self.running:
                # It lives as long as the process may, which dies with the thread that starts it.
                self.open()
        return ticket

    def cancel(self, ticket: _Ticket) -> None:
        """`FoldTicket.cancel`."""
        with self._lock:
            if ticket is self._at_work:
                ticket.cancelled = True  # (its process may be starting)
                if self._process is not None:
                    self._process.kill()
            else:
                self._settle(ticket, FoldOutcome(WORKER_DIED, "the fold was taken back"))
        if ticket.outcome(_CLOSE_WAIT_S) is None:  # only a disk that does not answer holds a killed process
            log.error("fold worker %s does not end, %s s after it was killed", self.pid, _CLOSE_WAIT_S)

    def close(self, limit_s: float | None = _CLOSE_WAIT_S) -> bool:
        """Let it finish the fold at hand, up to a limit, then end it."""
        if not super().close(limit_s) and (at_work := self._at_work) is not None:
            self.cancel(at_work)
        return self.wait(limit_s)

    def _settle(self, ticket: _Ticket, outcome: FoldOutcome) -> None:
        """Under the lock. The first outcome of a ticket counts."""
        if ticket in self._unsettled:
            self._unsettled.remove(ticket)
            ticket.settle(outcome)

    def _carry_out(self, job: _Ticket) -> None:
        with self._lock:
            if job not in self._unsettled:
                return  # taken back
            self._at_work = job
        outcome = self._fold(job)
        with self._lock:
            self._at_work = None
            self._settle(job, outcome)

    def _end(self) -> None:
        with self._lock:
            self.stopping.set()  # (it may have failed)
            self._at_work = None
            for ticket in list(self._unsettled):
                self._settle(ticket, FoldOutcome(WORKER_DIED, "the fold worker was closed"))
        if self._process is not None:
            self._process.close()
            self._process = None

    def _ready(self) -> WatchedProcess:
        """The process, started if there is none. Not under the lock, which callers wait for.

        Raises:
            OSError: it cannot be started.
        """
        process = self._process
        if process is not None and not process.alive():
            process.close()  # it died with nothing to do
            process = None
        return process or WatchedProcess("indexer.store.fold.process", (), self._stall_s)

    def _fold(self, ticket: _Ticket) -> FoldOutcome:
        """Have the process do one job."""
        job, stalled = ticket.job, ""
        try:
            process = self._ready()
        except OSError as error:
            log.error("no fold worker can be started: %s", error)
            return FoldOutcome(WORKER_DIED, f"no fold worker could be started: {error}")
        with self._lock:
            self._process = process
            if ticket.cancelled:
                return FoldOutcome(WORKER_DIED, "the fold was taken back")
        try:
            ticket.prepare()
        except OSError as error:
            return failed_by(error)
        try:
            for line in process.lines(job.to_line()):
                return FoldOutcome.from_line(line)
        except StalledError as error:
            stalled = str(error)
        status = process.close()
        with self._lock:
            self._process = None
        if stalled:
            log.error("the fold of %s: %s, and is replaced", job.slice_folder, stalled)
            return FoldOutcome(WORKER_STALLED, f"the fold worker was ended: {stalled}")
        # A page of a memory map for which the disk has no room is a SIGBUS; so is a broken disk.
        how = DISK_FULL if status == -signal.SIGBUS else WORKER_DIED
        return FoldOutcome(how, f"the fold worker ended with status {status}")


class _Ticket:
    def __init__(self, worker: FoldWorker, job: FoldJob, prepare: Callable[[], None]) -> None:
        self.job = job
        self.prepare = prepare
        self.cancelled = False
        self._worker = worker
        self._outcome: FoldOutcome | None = None
        self._settled = threading.Event()

    def settle(self, outcome: FoldOutcome) -> None:
        self._outcome = outcome
        self._settled.set()

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        if wait_s > 0:
            self._settled.wait(wait_s)
        return self._outcome

    def cancel(self) -> None:
        if self._outcome is None:
            self._worker.cancel(self)
