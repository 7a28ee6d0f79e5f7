"""Metrics of an indexer node's slices (docs/reference/metrics.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from indexer.slice.core import SliceCore
from keytide.catalog.catalog import Catalog
from keytide.wire.messages import SliceStatus

log = logging.getLogger(__name__)

EVICTIONS_TOLD_MS: Final = 10_000
"""Between lines of the log, of one slice."""
_COMMIT_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_FRESHNESS_BUCKETS: Final = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 10, 30, 60, 300)


def shown_names(catalog: Catalog) -> dict[str, str]:
    """Index id -> what to call it, of all indexes but those that are being dropped."""
    dropped = {record.id for record in catalog.indexes() if record.state == "DROPPING"}
    return {id_: name for id_, name in catalog.shown_names().items() if id_ not in dropped}


class NodeMetrics:
    """Gauges per slice, and histograms of the node.

    Attributes:
        commit: seconds that a commit of the mutation queue took, snapshot included.
        freshness: seconds from a record's timestamp until stable scans show it; of sampled records.
        evicted: documents that full slices have let go of (R4).
        copied: bytes that copies on this node were filled with from other nodes.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["index", "slice"]
        self.commit = Histogram(
            "keytide_snapshot_commit_seconds",
            "Time of one commit of a slice",
            buckets=_COMMIT_BUCKETS,
            registry=registry,
        )
        self.freshness = Histogram(
            "keytide_freshness_seconds",
            "From a record's timestamp until stable scans show it",
            buckets=_FRESHNESS_BUCKETS,
            registry=registry,
        )
        self.evicted = Counter(
            "keytide_slice_evicted_documents",
            "Documents that full slices have let go of, for no timestamp reaches them",
            registry=registry,
        )
        self.copied = Counter(
            "keytide_node_copied_bytes",
            "Bytes that copies of slices on this node were filled with from other nodes",
            registry=registry,
        )
        self._entries = Gauge("keytide_slice_entries", "Entries of a slice", labels, registry=registry)
        self._bytes = Gauge("keytide_slice_bytes", "Bytes of a slice on disk", labels, registry=registry)
        self._queue = Gauge(
            "keytide_slice_queue_documents", "Documents heard and not yet applied", labels, registry=registry
        )
        self._number = Gauge(
            "keytide_snapshot_number", "Newest snapshot of a slice, -1 for none", labels, registry=registry
        )
        self._position = Gauge(
            "keytide_slice_queue_position",
            "Offset of its mutation queue from which a slice would read on after a restart",
            labels,
            registry=registry,
        )
        self._horizon = Gauge(
            "keytide_slice_queue_horizon",
            "First offset of its mutation queue that a slice may ever need again, -1 when it cannot say",
            labels,
            registry=registry,
        )
        self._violations = Gauge(
            "keytide_unique_violations",
            "Keys of a UNIQUE index that several documents have",
            labels,
            registry=registry,
        )
        self._shown: set[tuple[str, str]] = set()

    def show(self, statuses: Iterable[SliceStatus], names: Mapping[str, str]) -> None:
        """Set the gauges to the node's slices, and drop those of slices that are gone.

        Args:
            names: of the indexes that are shown, by id.
        """
        shown = set()
        for status in statuses:
            if status.index not in names:
                continue
            place = (names[status.index], str(status.slice))
            shown.add(place)
            self._entries.labels(*place).set(status.entries)
            self._bytes.labels(*place).set(status.bytes)
            self._queue.labels(*place).set(status.queue_documents)
            self._number.labels(*place).set(status.number)
            self._position.labels(*place).set(status.queue_position)
            self._horizon.labels(*place).set(status.queue_horizon)
            self._violations.labels(*place).set(status.violations)
        gauges = (self._entries, self._bytes, self._queue, self._number, self._position, self._horizon)
        for place in sorted(self._shown - shown):
            for gauge in (*gauges, self._violations):
                gauge.remove(*place)
        self._shown = shown


class Evictions:
    """What a full slice has let go of: nothing else shows that a queue is kept for it (R4).

    Args:
        metrics: has the counter.
    """

    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics
        self._counted = self._told = self._told_at = 0

    def look(self, core: SliceCore, now: int) -> None:
        """Count what is new, and write a line of the log when the last one is old enough."""
        self._metrics.evicted.inc(core.evicted - self._counted)
        self._counted = core.evicted
        if core.evicted > self._told and now - self._told_at >= EVICTIONS_TOLD_MS:
            words = (
                "slice %s/%d was full, and let go of %d documents that no timestamp reaches; its queue is "
                "kept from offset %d on until they come again"
            )
            count = core.evicted - self._told
            log.warning(words, core.index, core.slice, count, core.applied.queue_position)
            self._told, self._told_at = core.evicted, now
