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
        self._lost_since: float | None = None

    def is_lost(self, client: TellsOfBrokers) -> bool:
        """Whether to go on with another client. Cheap; to be asked all the time. True once: what comes next
        is taken for another client."""
        if client.has_broker or not self._confirmed(self._now() - ANSWERED_MS):
            self._lost_since = None
            return False
        now = self._clock()
        if self._lost_since is None:
            self._lost_since = now
        if now - self._lost_since < self._limit_s:
            return False
        self._lost_since = None
        return True
