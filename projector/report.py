"""What a projector tells the coordinators (topic `reports`) and Prometheus.

Theory of operation: progress is told when it changed, at most every few milliseconds, and on every heartbeat;
it names every partition that is ours (R14). It goes out by a producer of its own, so that it never waits
behind megabytes of segments. A report that is lost is repeated by the next heartbeat, so nobody waits for its
delivery.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from prometheus_client import Counter as Metric
from prometheus_client import Gauge

from keytide.catalog import Catalog
from keytide.kafka import producer
from keytide.messages import Activated, PartitionProgress, Progress, encode
from keytide.settings import Settings
from keytide.topics import Topics
from projector.pipeline import Pipeline
from projector.tracker import PartitionState, Tracker

log = logging.getLogger(__name__)

DOCUMENTS = Metric("keytide_projector_documents", "documents projected", ["keyspace"])
SKIPPED = Metric(
    "keytide_skipped_documents", "documents skipped or left out, resends included", ["index", "reason"]
)
LAG = Gauge("keytide_projector_lag_documents", "offsets not yet acknowledged", ["keyspace"])
PARTITIONS = Gauge("keytide_projector_partitions", "source partitions owned", ["keyspace", "phase"])
RESETS = Metric("keytide_projector_resets", "times that a failed send or commit made it send again")
SUSPENDED = Gauge("keytide_projector_suspended_indexes", "indexes with a queue that takes nothing (R18)")

FINAL_BUILD_STATES = frozenset({"READY", "FAILED", "CANCELLED"})


class Reporter:
    """Sends reports and keeps the metrics.

    Args:
        settings: where Kafka is.
        projector: this projector's name, unique per process start.
    """

    def __init__(self, settings: Settings, projector: str) -> None:
        self._projector = projector
        self._topic = Topics(settings.cluster).reports
        self._producer = producer(settings, queue_buffering_max_messages=10_000)
        self._told_documents: Counter[str] = Counter()
        self._told_outcomes: dict[str, Counter[str]] = {}

    def _send(self, value: bytes) -> None:
        try:
            self._producer.produce(self._topic, value, key=self._projector)
        except BufferError:
            log.warning("a report was not sent: Kafka takes none at present")
        self._producer.poll(0)

    def progress(
        self,
        catalog: Catalog,
        keyspace: str,
        partitions: list[PartitionProgress],
        documents: int,
        outcomes: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Tell how far the partitions of one keyspace are."""
        record = catalog.keyspace(keyspace)
        if record is None:
            return
        skipped = {index: dict(reasons) for index, reasons in outcomes.items()}
        self._send(
            encode(
                Progress(
                    keyspace,
                    self._projector,
                    record.topic_id,
                    record.incarnation,
                    partitions,
                    documents,
                    skipped,
                )
            )
        )
        LAG.labels(keyspace).set(sum(max(0, p.end - p.acked) for p in partitions))

    def activated(self, state: PartitionState) -> None:
        """Tell that a partition works under its version (R13)."""
        self._send(
            encode(
                Activated(
                    state.key.keyspace,
                    self._projector,
                    state.key.partition,
                    state.version,
                    state.activated_at,
                    state.acked_epoch,
                )
            )
        )

    def metrics(self, pipeline: Pipeline, tracker: Tracker) -> None:
        """Bring Prometheus up to date."""
        for keyspace, number in pipeline.documents.items():
            DOCUMENTS.labels(keyspace).inc(number - self._told_documents[keyspace])
        self._told_documents = Counter(pipeline.documents)
        for index, reasons in pipeline.outcomes.items():
            told = self._told_outcomes.setdefault(index, Counter())
            for reason, number in reasons.items():
                SKIPPED.labels(index, reason).inc(number - told[reason])
            self._told_outcomes[index] = Counter(reasons)
        PARTITIONS.clear()
        for key, state in tracker.partitions.items():
            PARTITIONS.labels(key.keyspace, state.phase).inc()
        SUSPENDED.set(len(pipeline.suspended))

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
