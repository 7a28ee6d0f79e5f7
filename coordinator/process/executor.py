"""What waits for Kafka or a disk, in order, in a thread of its own.

Theory of operation. Timestamps must not wait for a transaction or for a topic to be made, so the control loop
only hands these things over. One thread carries them out in the order in which they were decided: a `Write`
is committed before what follows from it begins (write first, act after). What goes wrong for a while is tried
again until it works; results return to the loop as events. An answer to an admin request is a job too, so
that it goes out when its write is committed.

Removals of topics alone are set aside when they fail, and tried again later: where Kafka refuses to delete
topics (`delete.topic.enable`), a DROP INDEX must not hold up every write after it. A build whose topics are
still to be removed waits. Ends of rounds of repairs are sent once, and nobody waits until they arrive: a
queue without a leader must not hold everything up for what the next heartbeat asks for again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from coordinator.core.events import (
    BoundWritten,
    BuildPrepared,
    DictionaryWritten,
    Event,
    PrepareFailed,
    RollbackWritten,
    SourceSampled,
    TopicsDeleted,
)
from coordinator.core.instructions import (
    ConfirmBound,
    ConfirmRollback,
    DeleteTopics,
    Instruction,
    PrepareBuild,
    RemoveBuildFolder,
    RemoveJobFolder,
    SampleSource,
    SendEnds,
    StartDriver,
    StopDriver,
    Write,
)
from coordinator.election.claim import MetadataWriter
from coordinator.kafka.admin import KafkaAdminWork
from coordinator.process.driver_supervisor import DriverSupervisor
from keytide.errors import KeytideError, RetryableError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.clients import Producer, try_another
from keytide.kafka.topics import producer
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.process.worker import QueueWorker
from keytide.settings.settings import Settings
from keytide.wire.messages import RepairEnd, encode

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.5
REMOVAL_PAUSE_S = 5.0
ROUND_END_MS = 5_000
"""Before the end of a round of a repair that does not arrive is given up."""
IN_VAIN = 2
"""After so many tries without an answer another client sends (`try_another`)."""


@dataclass(frozen=True, slots=True)
class ReplyWhenDone:
    """Answer a request: everything before it is done."""

    future: Future[Any]
    result: Any


class InstructionExecutor(QueueWorker[Instruction | ReplyWhenDone]):
    """Carries instructions out, one after the other. What waits when it is closed is dropped: the next term
    finds it by the dictionary.

    Args:
        writer: of the metadata topic, under the leader's term.
        post: takes the events that come of it, from its thread.
        failed: told of an error that ends the coordinator.
    """

    def __init__(
        self,
        settings: Settings,
        writer: MetadataWriter,
        supervisor: DriverSupervisor,
        post: Callable[[Event], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__("executor", failed)
        self._writer = writer
        self._settings = settings
        self._work = KafkaAdminWork(settings)
        self._supervisor = supervisor
        self._post = post
        self._producer: Producer = producer(settings)
        self._in_vain = 0
        # One of its own, for `_send` waits until everything of its producer has arrived.
        self._round_ends, self._round_ends_failed = self._make_round_ends(), False
        self._timeout = float(settings.coordinator.request_timeout_s)
        self._removals: list[DeleteTopics] = []
        self._removals_at = 0.0

    def _make_round_ends(self) -> Producer:
        return producer(self._settings, message_timeout_ms=ROUND_END_MS)

    def close(self, limit_s: float | None = None) -> bool:
        self._writer.stop()
        return super().close(limit_s)

    def _patience_s(self) -> float | None:
        return RETRY_PAUSE_S if self._removals else None

    def _look_around(self) -> None:
        if self._removals and time.monotonic() >= self._removals_at:
            removals, self._removals = self._removals, []
            for removal in removals:
                self._carry_out(removal)

    def _end(self) -> None:
        self._work.close()

    def _carry_out(self, job: Instruction | ReplyWhenDone) -> None:
        """Until it is done."""
        if isinstance(job, PrepareBuild) and (left := self._to_be_removed(job)):
            self.stopping.wait(RETRY_PAUSE_S)  # the next tick asks again
            self._post(PrepareFailed(job.build, f"{', '.join(left)} cannot be removed yet", now_ms()))
            return
        while not self.stopping.is_set():
            try:
                self._try(job)
                return
            except RetryableError as error:
                log.warning("%s is tried again: %s", type(job).__name__, error)
                if isinstance(job, DeleteTopics):
                    self._removals.append(job)
                    self._removals_at = time.monotonic() + REMOVAL_PAUSE_S
                    return
                self.stopping.wait(RETRY_PAUSE_S)
                if isinstance(job, PrepareBuild):  # the build may be cancelled while Kafka is away
                    self._post(PrepareFailed(job.build, error.message, now_ms()))
                    return

    def _to_be_removed(self, job: PrepareBuild) -> list[str]:
        """Topics of a build that an earlier one of the same index left, and that are still to go."""
        doomed = {topic for removal in self._removals for topic in removal.topics}
        return [topic for topic, _ in job.topics if topic in doomed]

    def _try(self, job: Instruction | ReplyWhenDone) -> None:
        match job:
            case Write(records):
                reach("coordinator-before-write")
                end = self._writer.write(records)
                reach("coordinator-after-write")
                self._post(DictionaryWritten(end, now_ms()))
            case ReplyWhenDone(future, result):
                future.set_result(result)
            case PrepareBuild(build, keyspace, topics, queues):
                self._work.make_queues(topics)
                ends = {name: self._work.ends(name, partitions) for name, partitions in queues}
                source = self._work.sample_settled(keyspace)
                self._post(BuildPrepared(build, source, now_ms(), ends))
            case SampleSource(keyspace, build, read):
                source, lost = self._work.sample(keyspace), self._work.lost(keyspace, read)
                self._post(SourceSampled(source, build, now_ms(), lost))
            case SendEnds(messages):
                if all(isinstance(message, RepairEnd) for _, _, message in messages):
                    self._send_once(job)
                else:
                    self._send(job)
                reach("coordinator-build-end")
            case DeleteTopics(topics, index):
                self._work.delete(topics)
                if index:
                    self._post(TopicsDeleted(index, now_ms()))
            case ConfirmRollback(keyspace, incarnation):
                self._post(RollbackWritten(keyspace, incarnation, now_ms()))
            case ConfirmBound(keyspace, bound):
                self._post(BoundWritten(keyspace, bound, now_ms()))
            case StopDriver(build):  # once more: its start may have been waiting here
                self._supervisor.stop(build)
            case StartDriver(build, delay_ms, task):
                if task == "backfill":
                    with suppress(KafkaUnavailableError):  # (then the driver waits for it, and says so)
                        self._work.make_journals()
                self._supervisor.start(build, delay_ms, task)
            case RemoveBuildFolder(build, forgotten):
                self._supervisor.remove_folder(build, forgotten=forgotten)
            case RemoveJobFolder(job_id):
                self._supervisor.remove_job(job_id)
            case _:
                raise KeytideError(f"{type(job).__name__} is not for the executor")

    def _send(self, job: SendEnds) -> None:
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None and error.code() not in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_TOPIC,
            ):
                errors.append(error)  # (a queue that is gone: its index was dropped meanwhile)

        try:
            for topic, partition, message in job.messages:
                self._producer.produce(topic, encode(message), partition=partition, on_delivery=delivered)
        except (KafkaException, BufferError) as error:
            raise KafkaUnavailableError(f"the end of a build cannot be sent: {error}") from error
        left = self._producer.flush(self._timeout)
        if errors or left:
            self._in_vain += 1
            if try_another(self._in_vain, IN_VAIN):
                self._producer = producer(self._settings)
            raise KafkaUnavailableError(f"the end of a build is not delivered: {errors or 'no answer'}")
        self._in_vain = 0

    def _send_once(self, job: SendEnds) -> None:
        def delivered(error: KafkaError | None, record: Message) -> None:
            if error is not None:
                log.warning("the end of a repair's round did not reach %s: %s", record.topic(), error)
                self._round_ends_failed |= error.code() == KafkaError._MSG_TIMED_OUT

        if self._round_ends_failed:  # (it may have lost its brokers for good)
            self._round_ends, self._round_ends_failed = self._make_round_ends(), False
        try:
            for topic, partition, message in job.messages:
                self._round_ends.produce(topic, encode(message), partition=partition, on_delivery=delivered)
            self._round_ends.poll(0)  # (tells of earlier ones)
        except (KafkaException, BufferError) as error:
            log.warning("the end of a repair's round cannot be sent: %s", error)
