"""What waits for Kafka and nothing else waits for: examinations of histories, trimming of queues.

A thread of its own beside the executor, so that a source partition without a leader holds up no write. A job
that fails is not tried again here: its event says so, and the leader asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from coordinator.core.events import Event, HistoryExamined, QueuesTrimmed
from coordinator.core.instructions import ExamineHistory, TrimQueues
from coordinator.kafka.log_examination import examine
from coordinator.kafka.queue_trimming import QueueWork
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.process.worker import QueueWorker
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)


class Maintenance(QueueWorker[ExamineHistory | TrimQueues]):
    """Carries jobs out, one after the other.

    Args:
        post: takes the events that come of it, from this thread.
        failed: told of an error that ends the coordinator.
    """

    def __init__(
        self, settings: Settings, post: Callable[[Event], None], failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__("maintenance", failed)
        self._settings = settings
        self._post = post
        self._queues = QueueWork(settings)

    def _end(self) -> None:
        self._queues.close()

    def _carry_out(self, job: ExamineHistory | TrimQueues) -> None:
        self._post(self._event(job))

    def _event(self, job: ExamineHistory | TrimQueues) -> Event:
        match job:
            case ExamineHistory():
                try:
                    return examine(self._settings, job)
                except RetryableError as error:
                    return HistoryExamined(job.keyspace, "", 0, -1, Timestamp(), {}, error.message, now_ms())
            case TrimQueues(limits, measured):
                try:
                    return self._queues.trim(limits, measured)
                except RetryableError as error:
                    log.warning("queues are not trimmed now: %s", error)
                    return QueuesTrimmed({}, 0, (), now_ms())
