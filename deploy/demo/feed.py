"""Writing the flights with kafka-python, as an ordinary application would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from kafka import KafkaProducer

from deploy.demo.flights import Change

_CHECK_EVERY = 500


def producer(bootstrap: str) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=10, batch_size=256 * 1024, compression_type=None
    )


def send_all(bootstrap: str, topic: str, changes: Iterable[Change], tell: Callable[[int], None]) -> int:
    """Write all changes as fast as they go. Returns how many; every one is acknowledged when this returns."""
    writer = producer(bootstrap)
    sent = 0
    for change in changes:
        writer.send(topic, key=change.id.encode(), value=change.value)
        sent += 1
        if sent % _CHECK_EVERY == 0:
            tell(sent)
    writer.flush()
    writer.close()
    tell(sent)
    return sent


class TimeLapse:
    """Writes changes in their order, in a thread, over a given time.

    Args:
        seconds: how long the whole stream takes; when the machine cannot keep up it takes longer.
    """

    def __init__(self, bootstrap: str, topic: str, changes: list[Change], seconds: float) -> None:
        self._bootstrap, self._topic, self._changes, self._seconds = bootstrap, topic, changes, seconds
        self._stop = threading.Event()
        self._running: Future[None] = Future()
        self.sent = 0

    def start(self) -> None:
        executor = ThreadPoolExecutor(1, "time-lapse")
        self._running = executor.submit(self._run)
        executor.shutdown(wait=False)

    @property
    def running(self) -> bool:
        return not self._running.done()

    @property
    def now(self) -> int:
        """The moment of the year that has been reached, in minutes."""
        return self._changes[min(self.sent, len(self._changes) - 1)].at

    def stop(self) -> None:
        self._stop.set()
        wait([self._running])

    def join(self) -> None:
        """Wait for the end of the year.

        Raises:
            Whatever the producer raised.
        """
        self._running.result()

    def _run(self) -> None:
        writer = producer(self._bootstrap)
        began = time.monotonic()
        per_second = len(self._changes) / self._seconds
        for change in self._changes:
            writer.send(self._topic, key=change.id.encode(), value=change.value)
            self.sent += 1
            if self.sent % _CHECK_EVERY == 0:
                ahead = self.sent / per_second - (time.monotonic() - began)
                if self._stop.wait(max(0.0, ahead)):
                    break
        writer.flush()
        writer.close()
