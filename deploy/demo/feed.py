"""Writing the flights with kafka-python, as an ordinary application would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from kafka import KafkaProducer

from deploy.demo.airports import Change
from keytide.process.worker import Worker

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


class TimeLapse(Worker):
    """Writes changes in their order, in a thread, over a given time; `check` raises what the producer raised.

    Args:
        seconds: how long the whole stream takes; when the machine cannot keep up it takes longer.
    """

    def __init__(self, bootstrap: str, topic: str, changes: list[Change], seconds: float) -> None:
        super().__init__("time-lapse", None, self._write)
        self._bootstrap, self._topic, self._changes, self._seconds = bootstrap, topic, changes, seconds
        self.sent = 0

    @property
    def now(self) -> int:
        """The moment of the year that has been reached, in minutes."""
        return self._changes[min(self.sent, len(self._changes) - 1)].at

    def _write(self) -> None:
        writer = producer(self._bootstrap)
        began = time.monotonic()
        per_second = len(self._changes) / self._seconds
        for change in self._changes:
            writer.send(self._topic, key=change.id.encode(), value=change.value)
            self.sent += 1
            if self.sent % _CHECK_EVERY == 0:
                ahead = self.sent / per_second - (time.monotonic() - began)
                if self.stopping.wait(max(0.0, ahead)):
                    break
        writer.flush()
        writer.close()
