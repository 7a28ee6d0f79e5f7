"""What a projector tells the coordinators (topic `reports`) and Prometheus.

Theory of operation: progress is told when it changed, at most every few milliseconds, and on every heartbeat;
it names every partition that is ours (R14). It goes out by a producer of its own, so that it never waits
behind megabytes of segments. A report that is lost is repeated by the next heartbeat, so nobody waits for its
delivery.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, Message
from prometheus_client import Counter as Metric
from prometheus_client import Gauge

from keytide.catalog.catalog import Catalog
from keytide.kafka.broker_watch import BrokerWatch
from keytide.kafka.lasting_producer import LastingProducer
from keytide.model.protocol import SPOKEN
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from keytide.wire.messages import Activated, HistoryLost, PartitionProgress, Progress, encode
from projector.core.pipeline import Pipeline
from projector.progress.events import Key
from projector.progress.partition import PartitionState
from projector.progress.tracker import Tracker
from projector.service.membership import Membership
from projector.service.source import GroupMember
from projector.service.transport import Transport

log = logging.getLogger(__name__)

DOCUMENTS = Metric("keytide_projector_documents", "documents projected", ["keyspace"])
SKIPPED = Metric(
    "keytide_skipped_documents", "documents skipped or left out, resends included", ["index", "reason"]
)
HEARD = Metric(
    "keytide_heard_documents",
    "documents that slices were told of (told=yes), or not, as they cannot hold them (no); once for each "
    "slice, resends included",
    ["index", "told"],
)
LAG = Gauge("keytide_projector_lag_documents", "offsets not yet acknowledged", ["keyspace"])
PARTITIONS = Gauge("keytide_projector_partitions", "source partitions owned", ["keyspace", "phase"])
RESETS = Metric("keytide_projector_resets", "times that a failed send or commit made it send again")
SUSPENDED = Gauge("keytide_projector_suspended_indexes", "indexes with a queue that takes nothing (R18)")

Report = Progress | Activated | HistoryLost

PROGRESS_INTERVAL_S = 0.002
POLL_S = 1.0
"""At least so often delivery reports are heard."""
FINAL_BUILD_STATES = frozenset({"READY", "FAILED", "CANCELLED"})


class ProjectorReporter:
    """Sends reports and keeps the metrics.

    Args:
        settings: which cluster's topics.
        transport: makes the producer.
        projector: this projector's name, unique per process start.
        watch: makes the watch of its client.
        clock: seconds, monotonic.
        now_ms: milliseconds since the epoch.

    Attributes:
        alive_at: when Kafka last took a report.
        due: from when on progress may be told again.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        projector: str,
        watch: Callable[[], BrokerWatch],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self.alive_at = 0.0
        self.due = 0.0
        self._projector = projector
        self._clock, self._now_ms = clock, now_ms
        self._topic = Topics(settings.cluster).reports
        self._producer = LastingProducer(
            lambda: transport.producer(queue_buffering_max_messages=10_000), self._topic, watch()
        )
        self._producer.begin()
        self._polled_at = clock()
        self._ends: dict[Key, int] = {}
        """Ends that were met and not passed since."""
        self._fresh_at: dict[Key, int] = {}
        self._lives: dict[Key, int] = {}
        """Incarnation under which both were noted: after a rollback they mean nothing."""
        self._told: dict[str, list[tuple[int, int, int]]] = {}
        self._told_documents: Counter[str] = Counter()
        self._told_outcomes: dict[str, Counter[str]] = {}
        self._shown_heard: dict[str, Counter[str]] = {}

    def poll(self) -> None:
        """Let delivery reports and statistics be heard, which sending does too. To be called all the time:
        who has no partitions sends nothing."""
        now = self._clock()
        if now - self._polled_at >= POLL_S:
            self._polled_at = now
            self._producer.poll()

    def _send(self, message: Report) -> None:
        value = encode(message)
        try:
            self._producer.produce(self._topic, value, key=self._projector, on_delivery=self._delivered)
        except BufferError:
            log.warning("a report was not sent: Kafka takes none at present")
        self._polled_at = self._clock()
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.alive_at = self._clock()

    # --- progress

    def met_end(self, key: Key, end: int | None) -> None:
        """The partition's end was met at `end`; None: records came past the end that was met before."""
        if end is None:
            self._ends.pop(key, None)
        else:
            self._ends[key] = end

    def progress(self, catalog: Catalog, members: Membership, pipeline: Pipeline, *, force: bool) -> bool:
        """Tell how far the partitions are, of every keyspace where that changed, or of all; whether it was
        due (not so soon after the last time)."""
        partitions = members.tracker.partitions
        self._forget(partitions)
        now = self._clock()
        if now < self.due and not force:
            return False
        for keyspace in sorted({key.keyspace for key in partitions}):
            record = catalog.keyspace(keyspace)
            if record is None:
                continue
            states = members.states(keyspace, record.incarnation)
            lines = [self._line(state, members.source) for state in states]
            places = [(line.partition, line.acked, line.version) for line in lines]
            if places == self._told.get(keyspace) and not force:
                continue
            self._told[keyspace] = places
            self.due = now + PROGRESS_INTERVAL_S
            skipped = {index.id: dict(pipeline.outcomes[index.id]) for index in catalog.indexes(keyspace)}
            self._send(
                Progress(
                    keyspace,
                    self._projector,
                    record.topic_id,
                    record.incarnation,
                    lines,
                    pipeline.documents[keyspace],
                    skipped,
                    SPOKEN,
                )
            )
            LAG.labels(keyspace).set(sum(max(0, line.end - line.acked) for line in lines))
        return True

    def _forget(self, partitions: Mapping[Key, PartitionState]) -> None:
        """Forget what was noted of partitions that are no longer ours, or were taken over again since: that
        an end was met then says nothing of the place where reading has begun again."""
        lives = {key: state.incarnation for key, state in partitions.items()}
        if lives == self._lives:
            return
        for book in (self._ends, self._fresh_at):
            for key in [key for key in book if lives.get(key, -1) != self._lives.get(key, lives.get(key))]:
                del book[key]
        self._lives = lives

    def _line(self, state: PartitionState, source: GroupMember) -> PartitionProgress:
        """R14's line for one partition. The end that was seen: where the log ended for a reader of committed
        records when that was met, or what the last fetch said, which lies past that while a transaction is
        open: what waits behind it is there, and acknowledged to whoever wrote it."""
        key = state.key
        end = max(self._ends.get(key, state.position), source.high_watermark(key))
        if state.acked >= end and state.phase == "RUNNING":
            self._fresh_at[key] = self._now_ms()
        fresh_at = self._fresh_at.get(key, 0)
        return PartitionProgress(
            key.partition, state.acked, state.acked_epoch, end, fresh_at, state.version, state.acked_tail
        )

    # --- the rest

    def activated(self, state: PartitionState) -> None:
        """Tell that a partition works under its version (R13)."""
        self._send(
            Activated(
                state.key.keyspace,
                self._projector,
                state.key.partition,
                state.version,
                state.activated_at,
                state.acked_epoch,
            )
        )

    def history_lost(self, state: PartitionState) -> None:
        """Tell that what was read of a partition is no longer on the log (R15)."""
        self._send(
            HistoryLost(
                state.key.keyspace,
                self._projector,
                state.key.partition,
                state.incarnation,
                state.topic_id,
                state.position,
                state.position_epoch,
                state.reason,
            )
        )

    def metrics(self, catalog: Catalog, pipeline: Pipeline, tracker: Tracker) -> None:
        """Bring Prometheus up to date."""
        for keyspace, number in pipeline.documents.items():
            DOCUMENTS.labels(keyspace).inc(number - self._told_documents[keyspace])
        self._told_documents = Counter(pipeline.documents)
        for index, reasons in pipeline.outcomes.items():
            told = self._told_outcomes.setdefault(index, Counter())
            known = catalog.index(index)
            if known is None:
                continue  # it was dropped meanwhile
            for reason, number in reasons.items():
                SKIPPED.labels(known.name, reason).inc(number - told[reason])
            self._told_outcomes[index] = Counter(reasons)
        self._show_heard(catalog, "yes", pipeline.heard)
        self._show_heard(catalog, "no", pipeline.spared)
        PARTITIONS.clear()
        for key, state in tracker.partitions.items():
            PARTITIONS.labels(key.keyspace, state.phase).inc()
        SUSPENDED.set(len(pipeline.suspended))

    def _show_heard(self, catalog: Catalog, told: str, documents: Counter[str]) -> None:
        shown = self._shown_heard.setdefault(told, Counter())
        for index, number in documents.items():
            known = catalog.index(index)
            if known is not None:
                HEARD.labels(known.name, told).inc(number - shown[index])
                shown[index] = number

    def close(self, timeout: float) -> None:
        self._producer.flush(timeout)


def awaited_by_a_build(catalog: Catalog, state: PartitionState) -> bool:
    """Whether a build has not recorded yet that this partition emits for its indexes (R13: told until it
    has)."""
    for build in catalog.builds():
        if build.keyspace != state.key.keyspace or build.state in FINAL_BUILD_STATES:
            continue
        versions = [index.version for index in map(catalog.index, build.indexes) if index is not None]
        if state.key.partition not in build.low_watermark and any(0 < v <= state.version for v in versions):
            return True
    return False
