"""Writing as the only one who may, in transactions.

Theory of operation. Who writes under a transactional id shuts out, by `fence`, whoever had it before: from
then on every write of that one fails (Kafka's fencing of zombies, KIP-98). So who fences first and then reads
the topic to its end has read all that the others have written, and ever will. A coordinator keeps the
dictionary so (`coordinator.election.claim`), the driver of a build its journal (`streaming.drivers.journal`).

Being fenced alone does not mean that another one writes: Kafka fences a producer, too, when it has ended a
transaction of its that was open for too long, and brokers that are killed in the middle of one lose it. So
who was shut out looks whether somebody else has written, and may fence again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from keytide.errors import CallerError, KeytideError
from keytide.kafka.admin import ANSWER_MS, KafkaUnavailableError
from keytide.kafka.clients import Producer
from keytide.kafka.topics import producer
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Kafka ends a transaction that is open for longer: readers wait no longer than this for one that its writer
died in."""
IN_VAIN: Final = 12
"""After so many time-outs in a row another client goes on: this one may have lost its brokers for good
(`keytide.kafka.broker_watch`)."""
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)


class TransactionsRefusedError(KeytideError):
    """Kafka does not let this user write under the transactional id."""

    problem_type = "access-refused"
    status = 503


class ShutOutError(CallerError):
    """Kafka does not take what this writer writes any more."""

    problem_type = "writer-shut-out"
    status = 503


class NeverAnsweredError(ShutOutError):
    """Kafka has answered none of many writes."""


class FencedWriter:
    """Writes records to partition 0 of a topic. One thread at a time.

    Args:
        settings: where Kafka is.
        name: the transactional id.
        stopping: set to have a write that waits for Kafka give up.

    Attributes:
        shut_out: nothing can be written before the next `fence`.
    """

    def __init__(self, settings: Settings, topic: str, name: str, stopping: threading.Event) -> None:
        self._settings = settings
        self._topic = topic
        self._name = name
        self._stopping = stopping
        self._end = -1
        self._producer = self._make()
        self._fenced = False
        self._in_vain = 0
        self.shut_out = False

    def _make(self) -> Producer:
        return producer(
            self._settings,
            transactional_id=self._name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            socket_timeout_ms=min(ANSWER_MS, TRANSACTION_TIMEOUT_MS),  # (librdkafka wants no more)
            compression_type="none",
        )

    def fence(self) -> None:
        """Shut everybody else out.

        Raises:
            KafkaUnavailableError: no answer in time.
            TransactionsRefusedError: access is refused.
        """
        if self.shut_out or self._fenced:
            # A producer fences once, and one that was fenced never writes again.
            self._producer, self._fenced = self._make(), False
        try:
            self._producer.init_transactions(float(self._settings.coordinator.request_timeout_s))
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise TransactionsRefusedError(
                    f"Kafka does not let this user write under the transactional id {self._name}",
                    next_step="allow it to WRITE and DESCRIBE that transactional id (docs/secure.md has all)",
                ) from failure
            self.shut_out = self.shut_out or error.fatal()  # (such a producer is of no use any more)
            raise KafkaUnavailableError(f"the transactional id cannot be claimed: {error}") from failure
        self.shut_out, self._fenced = False, True

    def write(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        """Write records (key and value; None: a tombstone) in one transaction.

        Returns:
            The offset behind the last of them, as Kafka has told it; -1 when it has not.

        Raises:
            ShutOutError: nothing was written, or it is not known.
            KafkaUnavailableError: nothing was written; or it gave up, and it is not known.
        """
        self._end = -1
        try:
            self._producer.begin_transaction()
            for key, value in records:
                self._producer.produce(
                    self._topic, key=key, value=value, partition=0, on_delivery=self._delivered
                )
            self._commit()
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in _FENCED or error.fatal():
                self.shut_out = True
                raise ShutOutError(str(error.str())) from failure
            with contextlib.suppress(KafkaException):  # what cannot be aborted now will be by its time-out
                self._producer.abort_transaction(TRANSACTION_TIMEOUT_MS / 1000)
            if error.retriable():
                self._failed()
            raise KafkaUnavailableError(f"{self._topic} is not written yet: {error}") from failure
        return self._end

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        """A record of the transaction is in the topic (committed or not). Called while it is committed."""
        if error is None:
            self._end = max(self._end, (record.offset() or 0) + 1)

    def _commit(self) -> None:
        """Commit; a time-out is followed up until the outcome is known."""
        while True:
            try:
                self._producer.commit_transaction(TRANSACTION_TIMEOUT_MS / 1000)
            except KafkaException as failure:
                error = failure.args[0]
                if not error.retriable() or error.txn_requires_abort() or self._stopping.is_set():
                    raise
                log.warning("the outcome of a transaction is not known yet: %s", error)
                self._failed()
            else:
                self._in_vain = 0
                return

    def _failed(self) -> None:
        """Count what was in vain.

        Raises:
            NeverAnsweredError: it is too much.
        """
        self._in_vain += 1
        if self._in_vain >= IN_VAIN:
            self._in_vain, self.shut_out = 0, True
            raise NeverAnsweredError(
                f"{self._topic} was not written {IN_VAIN} times in a row: a new client goes on"
            )

    def hand_over(self) -> None:
        """Another thread writes from now on."""
        self._producer.hand_over()
