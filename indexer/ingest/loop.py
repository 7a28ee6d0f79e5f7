"""The ingest loop of a node: reads queues, control and metadata, and drives the slices. One thread.

Theory of operation
===================
Each pass waits for records (not longer than IDLE_S), hands queue records to their slices, then stability
timestamps to all slices of their keyspace, and then lets every slice decide: so a timestamp that has come is
committed by all slices in a row, and acknowledged in one message. Whatever is due by time (metadata,
heartbeats, folds, other tries) is looked at every UPKEEP_MS. Nothing else waits: a timestamp is committed as
soon as it and what lies below it are here.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import psutil

from indexer.hosting.hosting import Hosting, SliceChange
from indexer.hosting.metrics import NodeMetrics, shown_names
from indexer.hosting.node import ServingNode
from indexer.hosting.node_folder import NodeFolder
from indexer.ingest.consumer import ConsumerRecord, Lost, NodeConsumer, TopicKind
from indexer.ingest.copy_worker import CopyWorker
from indexer.ingest.metadata import MetadataFeed, TellsOn
from indexer.ingest.reports import NodeReporter
from indexer.slice.events import BackfillData, CaughtUp, Decide, MutationData, Stamped
from indexer.store.fold.worker import FoldWorker
from indexer.store.lmdb.copying import LmdbSliceFilling
from indexer.store.settings import StoreSettings
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.topics import CatalogReader
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings
from keytide.wire.messages import SliceStatus, StabilityTimestamp

IDLE_S: Final = 0.02
"""Longest wait for records in one pass."""
UPKEEP_MS: Final = 40
NEWS_HEARTBEAT_MS: Final = 100
"""Between heartbeats when the state of a slice has changed."""
OPEN_AGAIN_MS: Final = 2_000
STOP_S: Final = 5.0
"""What is at hand of a copy when the node stops: it asks, or puts, a chunk. The next process goes on."""


class Ingest:
    """Everything that the ingest thread owns.

    Args:
        url: where the node serves scans.
        telling: to scan processes, if there are any.
    """

    def __init__(
        self,
        settings: Settings,
        folder: NodeFolder,
        node: ServingNode,
        metrics: NodeMetrics,
        url: str,
        telling: TellsOn | None = None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._node = node
        self._hearing = MetadataFeed(node, telling)
        self._metrics = metrics
        self._catalog = CatalogReader(settings)
        self._identity = KafkaIdentity(settings)
        self._consumer = NodeConsumer(settings, self._identity.confirmed)
        self._reporter = NodeReporter(settings, folder.node_id, url, now_ms(), self._identity.confirmed)
        self._folds = FoldWorker(settings.indexer.stall_s)
        self._copies = copy_worker(settings, node, metrics)
        self._hosting = Hosting(
            folder,
            node,
            settings.indexer,
            self._consumer,
            self._reporter.acknowledge,
            metrics,
            self._folds,
            self._copies,
        )
        self._process = psutil.Process()
        self._upkeep_at = 0
        self._heartbeat_at = 0
        self._open_again_at = 0
        self._told: list[SliceChange] = []

    def run(self, stop: threading.Event, started: threading.Event) -> None:
        """Work until `stop` is set.

        Args:
            started: set once the dictionary was read and the slices that are placed here are open.

        Raises:
            KafkaUnavailableError: Kafka or Keytide's topics are not there.
            ConfigurationError: the folder's data is another cluster's, or another Kafka answers.
        """
        try:
            self._identity.look()
            self._identity.open()
            self._catalog.start()
            self._consumer.start()
            self._catalog_changed(now_ms())
            started.set()
            while not stop.is_set():
                self._pass()
        finally:
            self._close()

    def _pass(self) -> None:
        records = self._consumer.poll(IDLE_S, now_ms())
        self._identity.check()
        now = now_ms()
        control = [record for record in records if isinstance(record, ConsumerRecord) and record.key is None]
        for record in records:
            if isinstance(record, Lost) or record.key is not None:
                self._queue_record(record, now)
        for record in control:
            self._control_record(record, now)
        for runner in self._hosting.runners.values():
            runner.feed(Decide(now), now)
        self._reporter.flush_acks()
        self._reporter.poll()
        if now >= self._upkeep_at:
            self._upkeep(now)
        self._node.passed(time.monotonic())

    # --- records --------------------------------------------------------------------------------------

    def _queue_record(self, record: ConsumerRecord | Lost, now: int) -> None:
        runner = self._hosting.runners.get(record.key) if record.key is not None else None
        if runner is None:
            return
        match record:
            case Lost(reason=reason):
                runner.lose(reason, now)
            case ConsumerRecord(data=None):
                runner.feed(CaughtUp(now), now)
            case ConsumerRecord(kind=TopicKind.BACKFILL, data=bytes() as data):
                runner.feed(BackfillData(data, record.position), now)
            case ConsumerRecord(data=bytes() as data):
                runner.feed(MutationData(data, record.position), now)

    def _control_record(self, record: ConsumerRecord, now: int) -> None:
        heard = self._hearing.control(record.position, record.data)
        if isinstance(heard, StabilityTimestamp):
            for runner in self._hosting.runners.values():
                if runner.keyspace == heard.keyspace:
                    runner.feed(Stamped(record.position, heard), now)
        elif heard is not None:
            for (index, _), runner in self._hosting.runners.items():
                if index in heard:
                    runner.published(heard[index], now)

    # --- what is due by time --------------------------------------------------------------------------

    def _upkeep(self, now: int) -> None:
        self._upkeep_at = now + UPKEEP_MS
        self._copies.check()
        if self._catalog.poll():
            self._catalog_changed(now)
        elif now >= self._open_again_at:
            self._open_again_at = now + OPEN_AGAIN_MS
            self._hosting.try_again(self._catalog.catalog, now)
        self._hosting.look_after(now)
        self._heartbeat(now)

    def _catalog_changed(self, now: int) -> None:
        catalog = self._catalog.snapshot()
        if catalog.cluster is not None:
            self._folder.check_cluster(catalog.cluster.id)
        if self._hearing.dictionary(catalog):
            self._hosting.reconcile(catalog, now)

    def _heartbeat(self, now: int) -> None:
        """At the interval; earlier when a slice's state or a micro-batch has changed."""
        told = self._hosting.slice_changes()
        due = self._heartbeat_at + self._settings.indexer.heartbeat_ms
        if now < due and (told == self._told or now < self._heartbeat_at + NEWS_HEARTBEAT_MS):
            return
        self._told, self._heartbeat_at = told, now
        statuses: list[SliceStatus] = self._hosting.statuses(now)
        self._node.show_states(statuses)
        self._node.show_violations(self._hosting.violations())
        self._metrics.show(statuses, shown_names(self._catalog.catalog))
        memory = self._process.memory_info()
        self._reporter.heartbeat(
            statuses,
            now,
            memory.rss - memory.shared,
            self._folder.disk_free(),
            self._catalog.catalog.offset,
            self._catalog.catalog.term,
            self._catalog.catalog.leader_protocol,
        )

    def _close(self) -> None:
        self._copies.close(STOP_S)
        self._folds.close()  # before the slices, which would end a fold at work
        self._hosting.close()
        self._reporter.close()
        self._consumer.close()
        self._catalog.close()
        self._identity.close()


def copy_worker(settings: Settings, node: ServingNode, metrics: NodeMetrics) -> CopyWorker:
    """What fills copies of slices on this node."""
    own = settings.indexer
    store = StoreSettings(base_map_bytes=own.base_map_bytes, fold_entries=own.delta_entries)
    return CopyWorker(
        node.catalog,
        node.node_url,
        BlockingNodeClient(settings.security.tls_authority),
        lambda folder: LmdbSliceFilling(folder, store),
        own.copy_rate,
        metrics.copied.inc,
    )
