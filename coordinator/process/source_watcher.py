"""The thread that looks at sources: what Kafka says of every keyspace's topic, each second or when timestamps
wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from coordinator.core.events import Event, RoomSeen, SourceAway, SourceSampled
from coordinator.kafka.admin import KafkaAdminWork
from coordinator.kafka.pending_transactions import TransactionWatch
from coordinator.process.driver_supervisor import DriverSupervisor
from keytide.errors import RetryableError
from keytide.process.clock import now_ms
from keytide.process.worker import Worker
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_S = 1.0
SOON_S = 0.1
"""Between samples that timestamps wait for."""


class SourceWatcher(Worker):
    """Samples until it is closed.

    Args:
        supervisor: knows the room on its disk.
        post: takes what is seen, from this thread.
        failed: told of an error that ends the coordinator.
    """

    def __init__(
        self,
        settings: Settings,
        supervisor: DriverSupervisor,
        post: Callable[[Event], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__("sources", failed, self._watch)
        self._settings = settings
        self._supervisor = supervisor
        self._post = post
        self._transactions = TransactionWatch(settings)
        self._wanted: tuple[Sequence[str], bool] = ((), False)

    def watch(self, keyspaces: Sequence[str], *, soon: bool) -> None:
        """Look at these from now on; `soon`: timestamps wait for it."""
        self._wanted = (keyspaces, soon)

    def _watch(self) -> None:
        with KafkaAdminWork(self._settings) as work:
            sampled = 0.0
            while not self.stopping.wait(SOON_S):
                keyspaces, soon = self._wanted
                if soon or time.monotonic() - sampled >= SAMPLE_INTERVAL_S:
                    sampled = time.monotonic()
                    self._sample(work, keyspaces)

    def _sample(self, work: KafkaAdminWork, keyspaces: Sequence[str]) -> None:
        if (free := self._supervisor.free()) is not None:
            self._post(RoomSeen(*free, now_ms()))
        for keyspace in keyspaces:
            began = now_ms()
            try:
                source = self._transactions.look(work.sample(keyspace))
            except RetryableError as error:
                log.warning("%s is not sampled: %s", keyspace, error)
                self._post(SourceAway(keyspace, error.message, began, now_ms()))
                continue
            self._post(SourceSampled(source, "", now_ms()))
