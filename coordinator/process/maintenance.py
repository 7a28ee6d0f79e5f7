"""What waits for Kafka and nothing else waits for: examinations of histories, trimming of queues.

A thread of its own beside the executor, so that a source partition without a leader holds up no write. A job
that fails is not tried again here: its event says so, and the leader asks again.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from coordinator.core.events import Event, ExamineHistory, HistoryExamined, QueuesTrimmed, TrimQueues
from coordinator.kafka.log_examination import examine
from coordinator.kafka.queue_trimming import QueueWork
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

Job = ExamineHistory | TrimQueues


class Maintenance:
    """Carries jobs out, one after the other.

    Args:
        post: takes the events that come of it, from this thread.
        failed: told of an error that ends the coordinator.
    """

    def __init__(
        self, settings: Settings, post: Callable[[Event], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._settings = settings
        self._post = post
        self._failed = failed
        self._queues = QueueWork(settings)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def open(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, job: Job) -> None:
        """Carry this out after what was put before it."""
        self._jobs.put(job)

    def close(self) -> None:
        """Finish the job at hand and stop."""
        self._stopping.set()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._stopping.is_set():
                self._post(self._carry_out(job))
            self._queues.close()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which ends the process with it
            self._failed(error)

    def _carry_out(self, job: Job) -> Event:
        match job:
            case ExamineHistory():
                try:
                    return examine(self._settings, job)
                except RetryableError as error:
                    return HistoryExamined(job.keyspace, "", 0, -1, Timestamp(), {}, error.message, now_ms())
            case TrimQueues(limits):
                try:
                    return self._queues.trim(limits)
                except RetryableError as error:
                    log.warning("queues are not trimmed now: %s", error)
                    return QueuesTrimmed({}, 0, (), now_ms())
