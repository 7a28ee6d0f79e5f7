"""Whether a client has lost all its brokers for good.

librdkafka (2.10 to 2.16) forgets the brokers that are not in the newest list of them. A list can be empty
while Kafka is well: a broker that stood still is fenced until the controller hears of it again, and names
nobody, not even itself. The client is without any broker then, and asks nobody ever again (its issue 5301): a
consumer is in no group, what a producer is given times out. Whoever uses a client for as long as the process
lives asks here, and goes on with another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from keytide.process.clock import now_ms

LOST_S: Final = 20.0
"""Without a broker, while Kafka answers another client all the time: statistics come every five seconds, and
a client that can does connect again within two."""
LONGEST_S: Final = 1.0
"""That counts between two looks: a process that stood still has seen nothing."""
ANSWERED_MS: Final = 10_000
"""How lately Kafka must have answered the other one."""


class TellsOfBrokers(Protocol):
    """`Consumer` and `Producer` of `keytide.kafka.clients`."""

    @property
    def has_broker(self) -> bool: ...


class BrokerWatch:
    """Watches one client after the other of one use.

    Args:
        confirmed: whether Kafka has answered another client since then (ms, `KafkaIdentity.confirmed`).
        clock: seconds, monotonic.
        now: milliseconds since the epoch.
        limit_s: after how long without a broker.
    """

    def __init__(
        self,
        confirmed: Callable[[int], bool],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = now_ms,
        limit_s: float = LOST_S,
    ) -> None:
        self._confirmed, self._clock, self._now = confirmed, clock, now
        self._limit_s = limit_s
        self._looked_at = clock()
        self._without_s = 0.0

    def is_lost(self, client: TellsOfBrokers) -> bool:
        """Whether to go on with another client. Cheap; to be asked all the time. True once: what comes next
        is taken for another client."""
        now = self._clock()
        passed, self._looked_at = min(now - self._looked_at, LONGEST_S), now
        if client.has_broker:
            self._without_s = 0.0
        elif self._confirmed(self._now() - ANSWERED_MS):
            self._without_s += passed
        if self._without_s < self._limit_s:
            return False
        self._without_s = 0.0
        return True
