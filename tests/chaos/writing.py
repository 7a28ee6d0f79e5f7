"""Writers: one thread per keyspace that changes documents, alone or in transactions that may be aborted."""

from __future__ import annotations

import random
from contextlib import suppress

from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.chaos.run import Run, StoppedError
from tests.chaos.shapes import Changes

BURST = 20
GIVES_UP = (KafkaError, AssertionError, OSError)
"""What a producer may raise while the broker is away; kafka-python asserts its own states."""


class Writer:
    """Changes the documents of one keyspace until the run is over.

    What the broker refuses or loses while it is away is no matter: the oracle reads what the log has.

    Args:
        per_second: pace.
        ids: documents at most.
    """

    def __init__(self, run: Run, topic: str, seed: int, per_second: float, ids: int) -> None:
        self._run = run
        self._topic = topic
        self._chance = random.Random(seed)
        self._changes = Changes(self._chance, ids)
        self._per_second = per_second
        self._transactional: KafkaProducer | None = None
        self._producer: KafkaProducer | None = None

    def fill(self, count: int) -> None:
        """Write some changes at once; all are acknowledged when it returns."""
        producer = self._plain()
        for _ in range(count):
            self._send(producer)
        producer.flush(60)

    def work(self) -> None:
        """The thread."""
        try:
            while not self._run.stopping.is_set():
                try:
                    self._round()
                except GIVES_UP as error:
                    self._run.count(**{f"writer_{type(error).__name__}": 1})
                    self._give_up()
                    self._run.pause(0.5)
        except StoppedError:
            pass
        finally:
            self._give_up()

    def _round(self) -> None:
        chance = self._chance
        if chance.random() < 0.06:
            self._transaction(chance.randrange(1, 3 * BURST), chance.random() < 0.75)
            return
        producer = self._plain()
        count = 40 * BURST if chance.random() < 0.004 else BURST
        for _ in range(count):
            self._send(producer)
        self._run.pause(count / self._per_second * chance.uniform(0.5, 1.5))

    def _transaction(self, count: int, commit: bool) -> None:
        if self._transactional is None:
            self._transactional = KafkaProducer(
                bootstrap_servers=self._run.bootstrap,
                transactional_id=f"{self._topic}-writer",
                transaction_timeout_ms=5_000,
                max_block_ms=15_000,
                delivery_timeout_ms=15_000,
                request_timeout_ms=10_000,
            )
            self._transactional.init_transactions()
        self._transactional.begin_transaction()
        for _ in range(count):
            self._send(self._transactional)
        self._transactional.flush(20)
        if commit:
            self._transactional.commit_transaction()
        else:
            self._transactional.abort_transaction()
        self._run.count(transactions=1)

    def _send(self, producer: KafkaProducer) -> None:
        key, value = self._changes.next()
        producer.send(self._topic, key=key, value=value)
        self._run.count(written=1)

    def _plain(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = KafkaProducer(
                bootstrap_servers=self._run.bootstrap, acks="all", linger_ms=5, max_block_ms=15_000
            )
        return self._producer

    def _give_up(self) -> None:
        for producer in (self._producer, self._transactional):
            if producer is not None:
                with suppress(*GIVES_UP):
                    producer.close(timeout=2)
        self._producer = self._transactional = None
