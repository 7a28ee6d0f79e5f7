"""Whether a reader stands still though there is more to read.

A client of librdkafka can lose all its brokers for good while Kafka is well (2.10 to 2.16; see
`keytide.kafka.admin`), and then says nothing. Of a topic that is quiet most of the time its silence tells
nothing either, so another client is asked where the topic ends.

`keytide.kafka.broker_watch` sees that loss of brokers too, by statistics. This sees more, whatever its cause:
a reader that has its brokers, and whose fetches bring nothing. And it needs nobody who confirms that Kafka
answers: whoever reads the dictionary need not have a `KafkaIdentity`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from keytide.kafka.clients import AdminClient, try_another

ASK_S: Final = 15.0
"""From one answer to the next question."""
TIMEOUT_S: Final = 5.0
IN_VAIN: Final = 2
"""After so many questions without an answer another client asks: this one may be deaf too (`try_another`)."""


class EndWatch:
    """Asks now and then where partition 0 of a topic ends, and waits for no answer. One thread.

    Args:
        make: makes the client that is asked, when it is needed; it is closed with this.
        now: seconds, which never go back.
    """

    def __init__(
        self, make: Callable[[], AdminClient], topic: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._client: AdminClient | None = None
        self._place = TopicPartition(topic, 0)
        self._now = now
        self._due = now() + ASK_S
        self._asked: Future[Any] | None = None
        self._short_at: int | None = None
        self._in_vain = 0

    def stands_still(self, position: int) -> bool:
        """Whether two answers in a row have found the reader at the same place, with more behind it. Cheap.

        Args:
            position: the next offset that it reads.
        """
        if self._asked is None:
            if self._now() >= self._due:
                spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
                if self._client is None:
                    self._client = self._make()
                self._asked = self._client.list_offsets(
                    {self._place: spec},
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    request_timeout=TIMEOUT_S,
                )[self._place]
            return False
        if not self._asked.done():
            return False
        asked, self._asked, self._due = self._asked, None, self._now() + ASK_S
        try:
            more = int(asked.result().offset) > position
        except KafkaException:
            self._failed()
            return False
        self._in_vain = 0
        still = more and position == self._short_at
        self._short_at = position if more and not still else None
        return still

    def _failed(self) -> None:
        self._in_vain += 1
        if try_another(self._in_vain, IN_VAIN):
            self.close()

    def hand_over(self) -> None:
        """Another thread asks from now on."""
        if self._client is not None:
            self._client.hand_over()

    def close(self) -> None:
        """Waits for an answer that is owed, `TIMEOUT_S` at most."""
        if self._client is not None:
            self._client.close()
            self._client = None
