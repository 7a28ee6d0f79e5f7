"""The coordinator's shell: a control loop around the pure `Leader`.

Theory of operation. One thread, the control loop, owns the leader. It waits for reports (or until something
is due), hands each to the leader with the time, and carries out what comes back: timestamps go to the control
topic at once, everything that takes time goes to the executor, whose results return through an inbox, as do
delivery reports, samples of sources and the ends of drivers. Admin requests are functions that the loop calls
between two events, so they see one state and need no locks.

From a projector's report to the broadcast that it allows there are: one wake-up, one decode, one produce
without linger.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from coordinator.core.events import Event, Issued, IssueFailed, KafkaAnswered, Reported, Tick
from coordinator.core.instructions import (
    AskWritten,
    Broadcast,
    ConfirmTopic,
    ExamineHistory,
    Instruction,
    Note,
    StopDriver,
    TrimQueues,
    Write,
)
from coordinator.core.source_status import SourceStatus
from coordinator.election.claim import FencedError, MetadataWriter, claim_term
from coordinator.election.standby import SAY_MS, Standby, this_process
from coordinator.kafka.admin import KafkaAdminWork
from coordinator.kafka.control_topic import read_control_tail
from coordinator.kafka.heard_topics import HeardTopics
from coordinator.leader import Leader
from coordinator.process.driver_supervisor import DriverSupervisor
from coordinator.process.event_log import EventRing
from coordinator.process.executor import InstructionExecutor, ReplyWhenDone
from coordinator.process.limits import limits_of
from coordinator.process.load_requests import LoadRequests
from coordinator.process.maintenance import Maintenance
from coordinator.process.source_watcher import SourceWatcher
from coordinator.process.topic_ids import TopicIds
from coordinator.queues.orphaned_topics import foreign_note, orphans
from coordinator.statements.commands import CommandResult, Commands
from keytide.catalog.records import RollbackRecord, TermRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import KeytideError, RetryableError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.topics import lasting_producer
from keytide.model.health import Verdict
from keytide.model.topics import Topics
from keytide.process.clock import now_ms, wall_ms
from keytide.process.sync_points import reach
from keytide.process.worker import Worker
from keytide.settings.settings import Settings
from keytide.wire.messages import Leading, StabilityTimestamp, decode, encode

log = logging.getLogger(__name__)
_T = TypeVar("_T")

LONGEST_POLL_MS = 10
"""A request, or a result of the executor, waits no longer than this for a loop that hears nothing."""
TICK_MS = 20
REPORTS_PER_TURN = 500


class CoordinatorService:
    """One coordinator.

    Args:
        settings: all settings.
        failed: told (from any thread) of the error that ends this coordinator: it was fenced, or has a bug.
        driver_command: what runs a Spark driver (tests run something lighter).
        url: where it answers, for those that stand by.

    Attributes:
        standby: who leads while this one does not.
    """

    def __init__(
        self,
        settings: Settings,
        failed: Callable[[BaseException], None],
        driver_command: list[str] | None = None,
        url: str = "",
    ) -> None:
        self.settings = settings
        self._url = url
        self.topics = Topics(settings.cluster)
        self.events = EventRing()
        self.started_at = now_ms()
        self._holder = this_process()
        self._inbox: deque[Event | Callable[[], None]] = deque()
        self._writer = MetadataWriter(settings)
        self._supervisor = DriverSupervisor(settings, self._inbox.append, failed, driver_command)
        self._executor = InstructionExecutor(
            settings, self._writer, self._supervisor, self._inbox.append, failed
        )
        self._maintenance = Maintenance(settings, self._inbox.append, failed)
        self._topic_ids = TopicIds(settings, self._inbox.append, failed)
        self._load_requests = LoadRequests(settings, self._inbox.append, failed)
        self._reports = HeardTopics(settings)
        self._loop = Worker("control", failed, self._run)
        self._stopping = self._loop.stopping
        self._sources = SourceWatcher(settings, self._supervisor, self._inbox.append, failed)
        self._identity = KafkaIdentity(settings)
        confirmed = self._identity.confirmed
        self._control = lasting_producer(settings, self.topics.control, confirmed, message_timeout_ms=5_000)
        self.standby = Standby(settings, self._stopping, self._identity.check)
        self._leader: Leader | None = None
        self._has_stood_by = False

    @property
    def leads(self) -> bool:
        """Whether it is the leader, and not standing by."""
        return self._leader is not None

    @property
    def term(self) -> int:
        return self._leader.term if self._leader else 0

    def verdict_of_standby(self) -> Verdict:
        """What a coordinator that does not lead can say of the cluster."""
        return self.standby.verdict(self.settings.cluster)

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Stand by while another coordinator leads, then become the leader and begin. Waits for Kafka: for
        the request time-out at first, and for as long as it takes once it has stood by (who ends then is not
        there when Kafka is back). Returns without having begun when `give_up` was called meanwhile.

        Raises:
            KafkaUnavailableError: Kafka stayed away from the beginning.
            WrongKafkaError: another Kafka answers than the one that the data folder belongs to.
        """
        self._identity.open()
        bootstrap = self.settings.kafka.bootstrap
        limit = time.monotonic() + self.settings.coordinator.request_timeout_s
        while not self._stopping.is_set():
            try:
                self._begin()
                return
            except RetryableError as error:
                if not self._has_stood_by and time.monotonic() > limit:
                    raise KafkaUnavailableError(
                        f"Kafka at {bootstrap} stayed away: {error.message}",
                        next_step="start Kafka, or say where it is with KEYTIDE_KAFKA__BOOTSTRAP",
                    ) from error
                log.warning("waiting for Kafka at %s: %s", bootstrap, error)
                self._stopping.wait(0.5)

    def _begin(self) -> None:
        self._identity.look()
        with KafkaAdminWork(self.settings) as work:
            work.make_own_topics()
        self.standby.wait()
        self._has_stood_by = True
        if not self._stopping.is_set():
            try:
                with KafkaAdminWork(self.settings) as work:
                    self._lead(work)
            except FencedError as error:
                log.info("another coordinator claimed the cluster at the same time: %s", error.message)
                self._begin()

    def _lead(self, work: KafkaAdminWork) -> None:
        # Fixed offsets: OFFSET_END would be looked up some time later, and what comes until then be lost.
        starts = {topic: work.end(topic) for topic in (self.topics.reports, self.topics.metadata)}
        term, catalog = claim_term(self.settings, self._writer, self._holder, self.standby.ended)
        recovered = read_control_tail(self.settings)
        left, foreign = orphans(catalog, self.settings.cluster, work.all_topics())
        if left:
            log.info("removing topics that nobody needs: %s", ", ".join(left))
            work.delete(left)
        if foreign:
            self.events.add(foreign_note(self.settings.cluster, foreign), now_ms())
        self._control.begin()
        self._leader = Leader(catalog, self.settings.cluster, term, *limits_of(self.settings))
        self._leader.foreign = foreign
        self._reports.assign(starts)
        self._writer.hand_over()
        self._supervisor.term = term
        self._supervisor.open()
        self._supervisor.clean(catalog)
        self._executor.open()
        self._maintenance.open()
        self._topic_ids.open()
        self._load_requests.open()
        self.events.add(
            Note("info", "term-claimed", self.settings.cluster, f"this coordinator leads term {term}"),
            now_ms(),
        )
        self._carry_out(self._leader.handle(recovered))
        self._control.poll()
        for client in (self._reports, self._control):
            client.hand_over()
        self._loop.open()
        self._sources.open()

    def give_up(self) -> None:
        """Stop standing by, and whatever else takes time; `stop` follows."""
        self._stopping.set()
        self._writer.stop()

    def stop(self) -> None:
        """Stop the loop, drivers and threads, and say so. Builds go on where they were when a
        coordinator starts again."""
        self._loop.close()
        self._supervisor.end()  # at once: where another one leads, two drivers would work on a build
        self._sources.close()
        self._executor.close()
        self._maintenance.close()
        self._topic_ids.close()
        self._load_requests.close()
        self.standby.close()
        self._identity.close()
        if self._leader is not None:
            self._say(self._leader, leaving=True)
        self._supervisor.close()
        self._control.flush(2)
        self._reports.close()

    # --- requests -------------------------------------------------------------------------------------------

    def ask(self, look: Callable[[Leader, int], _T]) -> Future[_T]:
        """Call `look` in the control loop, between two events: it sees one state and must not change it."""
        future: Future[_T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has given up
            try:
                leader, now = self._owned(), now_ms()
                leader.clock_ahead_ms = max(0, now - wall_ms())
                future.set_result(look(leader, now))
            except Exception as error:  # noqa: BLE001 - belongs to whoever asked
                future.set_exception(error)

        self._put(work, future)
        return future

    def _put(self, work: Callable[[], None], future: Future[Any]) -> None:
        """Have the control loop do something, if there is one."""
        if self._leader is not None:
            self._inbox.append(work)
            return
        future.set_exception(self.standby.refusal())

    def change(self, command: Callable[[Commands, int], CommandResult]) -> Future[CommandResult]:
        """Call `command` in the control loop; the future has its outcome when what it wrote is committed."""
        future: Future[CommandResult] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                answer = command(self._owned().commands, now_ms())
            except KeytideError as error:
                future.set_exception(error)
                return
            self._carry_out(answer.instructions)
            self._executor.put(ReplyWhenDone(future, answer))

        self._put(work, future)
        return future

    def sample(self, keyspace: str) -> SourceStatus:
        """Facts about a topic, now, also of one made a moment ago; blocks.

        Raises:
            KafkaUnavailableError: Kafka is away.
        """
        with KafkaAdminWork(self.settings) as work:  # (any thread asks)
            return work.sample_settled(keyspace)

    def with_epochs(self, origin: TableOrigin, keyspace: str) -> TableOrigin:
        """`KafkaAdminWork.with_epochs`; blocks."""
        with KafkaAdminWork(self.settings) as work:
            return work.with_epochs(origin, keyspace)

    # --- the control loop -----------------------------------------------------------------------------------

    def _owned(self) -> Leader:
        if self._leader is None:
            raise RetryableError("the coordinator is starting", next_step="try again in a moment")
        return self._leader

    def _run(self) -> None:
        leader = self._owned()
        ticked = said = 0
        while not self._stopping.is_set():
            self._identity.check()
            wait = 0 if self._inbox else min(leader.stability.next_due(now_ms()), LONGEST_POLL_MS)
            if wait and leader.stability.asks:
                wait = 0 if self._topic_ids.wait_for_answer() else wait - 1
            for message in self._reports.poll(REPORTS_PER_TURN, wait / 1000):
                self._hear(leader, message)
            self._control.poll()
            while self._inbox:
                self._take(leader, self._inbox.popleft())
            now = now_ms()
            if now - ticked >= TICK_MS or leader.stability.next_due(now) == 0:
                ticked = now
                self._sources.watch(leader.keyspaces(), soon=leader.looks_soon)
                self._carry_out(leader.handle(Tick(now)))
            if now - said >= SAY_MS:
                said = now
                self._say(leader)

    def _hear(self, leader: Leader, message: Message) -> None:
        error = message.error()
        if error is not None:
            log.warning("%s cannot be read: %s", message.topic(), error)
            return
        value = message.value()
        if message.topic() == self.topics.metadata:
            if message.key() == b"term" and value is not None:
                self._see_term(leader, value)
            return
        try:
            report = decode(value or b"")
        except KeytideError as problem:
            log.error("%s offset %s is left out: %s", message.topic(), message.offset(), problem)
            return
        self._carry_out(leader.handle(Reported(report, now_ms())))
        self._control.poll()

    def _see_term(self, leader: Leader, value: bytes) -> None:
        record = msgspec.json.decode(value, type=TermRecord)
        if record.term > leader.term:
            raise FencedError(self.settings.cluster, f"term {record.term} of {record.holder}")

    def _take(self, leader: Leader, item: Event | Callable[[], None]) -> None:
        if callable(item):
            item()
        else:
            self._carry_out(leader.handle(item))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Broadcast(message):
                    self._broadcast(message)
                case ConfirmTopic():
                    self._topic_ids.put(instruction)
                case Note():
                    self.events.add(instruction, now_ms())
                case StopDriver(build):
                    self._supervisor.stop(build)
                    self._executor.put(instruction)
                case ExamineHistory() | TrimQueues():
                    self._maintenance.put(instruction)
                case AskWritten():
                    self._load_requests.put(instruction)
                case _:
                    if isinstance(instruction, Write) and any(
                        isinstance(record, RollbackRecord) for _, record in instruction.records
                    ):
                        reach("coordinator-rollback-decided")
                    self._executor.put(instruction)

    def _say(self, leader: Leader, *, leaving: bool = False) -> None:
        """Tell coordinators that stand by that this one lives."""
        message = Leading(leader.term, self._holder, now_ms(), leaving, self._url)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._inbox.append(KafkaAnswered(now_ms()))

        with contextlib.suppress(KafkaException, BufferError):  # the next one is due soon
            self._control.produce(self.topics.control, encode(message), partition=0, on_delivery=delivered)

    def _broadcast(self, message: Any) -> None:
        def delivered(error: KafkaError | None, record: Message) -> None:
            if isinstance(message, StabilityTimestamp):
                if error is None:
                    self._inbox.append(Issued(message, record.offset() or 0, now_ms()))
                else:
                    self._inbox.append(IssueFailed(message, str(error), now_ms()))

        try:
            self._control.produce(self.topics.control, encode(message), partition=0, on_delivery=delivered)
            reach(
                "coordinator-stamped" if isinstance(message, StabilityTimestamp) else "coordinator-published"
            )
        except (KafkaException, BufferError) as error:
            if isinstance(message, StabilityTimestamp):
                self._inbox.append(IssueFailed(message, str(error), now_ms()))
