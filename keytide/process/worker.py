"""One way that a thread of the process begins, fails, is asked to stop and ends."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

_Job = TypeVar("_Job")

FailureCallback = Callable[[BaseException], None]
"""Told, in the thread, of the error that its work ends with."""


def logged(error: BaseException) -> None:
    """For `failed`: tells the story, and the process goes on without the thread."""
    log.error("the thread %s has failed", threading.current_thread().name, exc_info=error)


class Worker:
    """A thread that works until it is closed.

    Args:
        name: of the thread.
        failed: None when whoever opens it asks `check`.
        work: runs in it, and returns soon after `stopping` is set.
        daemon: the process may end while it works.

    Attributes:
        stopping: set when it is to end.
    """

    def __init__(
        self,
        name: str,
        failed: FailureCallback | None,
        work: Callable[[], None],
        *,
        daemon: bool = True,
    ) -> None:
        self.stopping = threading.Event()
        self._failed = failed
        self._failure: BaseException | None = None
        self._target = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)

    def open(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise what its work has ended with, if that is an error."""
        if self._failure is not None:
            raise self._failure

    def wait(self, limit_s: float | None = None) -> bool:
        """Whether it has ended, or does so within `limit_s`; None: for ever."""
        if self.running:
            self._thread.join(limit_s)
        return not self.running

    def close(self, limit_s: float | None = None) -> bool:
        """Finish what is at hand and stop; what waits is dropped.

        Args:
            limit_s: waits no longer than this.

        Returns:
            Whether it has ended.
        """
        self.stopping.set()
        return self.wait(limit_s)

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # noqa: BLE001 - handed to another thread, which ends the process with it
            self._failure = error
            if self._failed is not None:
                self._failed(error)


class QueueWorker(Worker, ABC, Generic[_Job]):
    """A worker that carries out jobs, in the order in which they are put."""

    def __init__(self, name: str, failed: FailureCallback | None) -> None:
        super().__init__(name, failed, self._serve)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    def put(self, job: _Job) -> None:
        """Carry this out after everything before it; returns at once."""
        self._jobs.put(job)

    def close(self, limit_s: float | None = None) -> bool:
        self.stopping.set()
        self._jobs.put(None)
        return super().close(limit_s)

    def _serve(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    job = self._jobs.get(timeout=self._patience_s())
                except queue.Empty:
                    job = None
                if job is not None and not self.stopping.is_set():
                    self._carry_out(job)
                if not self.stopping.is_set():
                    self._look_around()
        finally:
            self._end()

    @abstractmethod
    def _carry_out(self, job: _Job) -> None:
        """Do a job."""

    def _patience_s(self) -> float | None:
        """How long to wait for a job before looking around; None for ever."""
        return None

    def _look_around(self) -> None:
        """Do what is due beside jobs."""

    def _end(self) -> None:
        """Leave nothing behind."""
