"""Prometheus metrics of the coordinator (docs/reference/metrics.md), computed when they are asked for."""

from __future__ import annotations

from collections import Counter
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from coordinator.leader import Leader
from coordinator.views import health, loads, views
from coordinator.views.slices import lost_slices, slice_statuses
from keytide.model.health import KINDS, LEVELS, Verdict
from keytide.process.metrics import build_info

Family = GaugeMetricFamily | CounterMetricFamily
COPIES: Final = {
    "wanted": "that there are to be: (replicas + 1) of each slice",
    "counted": "that the dictionary counts",
    "serving": "that have a snapshot, on a live node",
    "filling": "that are being filled from other ones",
    "lost": "that count, and whose data is lost",
    "leaving": "that count no longer, and still answer pages that name them",
}
"""What is told of copies; keys of `views.slices.copy_counts`."""


class _Families:
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def render(leader: Leader, now: int) -> bytes:
    """The metrics page, from the leader at one moment."""
    return generate_latest(collected(leader, now))


def collected(leader: Leader, now: int) -> CollectorRegistry:
    """Everything that the page shows of a leader at one moment."""
    registry = CollectorRegistry()
    build_info("coordinator", registry)
    registry.register(
        _Families(
            [
                *_families(leader, now),
                *_states(leader, now),
                *_queues(leader),
                *_loads(leader),
                *health_families(health.of(leader, now)),
            ]
        )
    )
    return registry


def standing_by(verdict: Verdict) -> bytes:
    """The metrics page of a coordinator that does not lead."""
    registry = CollectorRegistry()
    build_info("coordinator", registry)
    leads = GaugeMetricFamily("keytide_coordinator_is_leader", "Whether this coordinator leads", value=0)
    registry.register(_Families([leads, *health_families(verdict)]))
    return generate_latest(registry)


def health_families(verdict: Verdict) -> list[Family]:
    """The verdict as numbers: of each kind of subject the worst."""
    status = GaugeMetricFamily(
        "keytide_health_status",
        "Worst status of all subjects of a kind: 0 ok, 1 degraded, 2 failing; GET /v1/health says why",
        labels=["subject_kind"],
    )
    for kind in KINDS:
        status.add_metric([kind], LEVELS[verdict.worst_of(kind)])
    return [status]


def _states(leader: Leader, now: int) -> list[Family]:
    """How keyspaces, indexes, their slices and nodes are."""
    staleness = GaugeMetricFamily(
        "keytide_staleness_seconds", "How far snapshots are behind their source", labels=["keyspace"]
    )
    indexes = GaugeMetricFamily(
        "keytide_index_state", "1 for the state of an index", labels=["index", "state"]
    )
    slices = GaugeMetricFamily(
        "keytide_index_slices",
        "Slices of an index by the state that nodes tell, of the best of their copies; UNHEARD: none does",
        labels=["index", "state"],
    )
    skipped = GaugeMetricFamily(
        "keytide_index_skipped_documents", "Lines in the skip ledger of an index", labels=["index"]
    )
    violations = GaugeMetricFamily(
        "keytide_index_violations", "Keys of a UNIQUE index that several documents have", labels=["index"]
    )
    copies = {
        kind: GaugeMetricFamily(
            f"keytide_copies_{kind}", f"Copies of slices of an index {words}", labels=["index"]
        )
        for kind, words in COPIES.items()
    }
    free = GaugeMetricFamily("keytide_node_disk_free_bytes", "Free on the disk of a node", labels=["node"])
    for name, document in views.stability(leader, now)["keyspaces"].items():
        if document["issuing"] and document["staleness_ms"] is not None:
            staleness.add_metric([name], document["staleness_ms"] / 1000)
    names = leader.dictionary.catalog.shown_names()
    for record in leader.dictionary.catalog.indexes():
        document = views.index(leader, record, now)
        indexes.add_metric([names[record.id], document["state"]], 1)
        skipped.add_metric([names[record.id]], document["skipped"])
        if document["unique"]:
            violations.add_metric([names[record.id]], document["violations"])
        states = Counter(status.state if status else "UNHEARD" for status in slice_statuses(leader, record))
        for state, count in sorted(states.items()):
            slices.add_metric([names[record.id], state], count)
        for kind, family in copies.items():
            family.add_metric([names[record.id]], document["copies"][kind])
    for node in views.nodes(leader, now):
        if node["disk_free"] is not None:
            free.add_metric([node["id"]], node["disk_free"])
    return [staleness, indexes, slices, skipped, violations, *copies.values(), free]


def _queues(leader: Leader) -> list[Family]:
    """What mutation queues take in Kafka, and what is free there; nothing of what it has not told of."""
    size = GaugeMetricFamily(
        "keytide_queue_bytes",
        "What the mutation queue of a slice takes in Kafka, one replica of it",
        labels=["index", "slice"],
    )
    held = GaugeMetricFamily(
        "keytide_queue_held_bytes",
        "How much of it the slowest copy of the slice has still to read durably, about",
        labels=["index", "slice"],
    )
    names = leader.dictionary.catalog.shown_names()
    for record in leader.dictionary.catalog.indexes():
        topic = leader.dictionary.topics.mutations(record.id)
        for number, nodes in enumerate(record.placement if record.state == "READY" else ()):
            known = leader.queue_sizes.by_partition.get((topic, number))
            if known is not None:
                size.add_metric([names[record.id], str(number)], known.bytes)
                kept = (leader.copies.held_back.of(record, number, node) for node in nodes)
                held.add_metric([names[record.id], str(number)], max(kept, default=0))
    free = GaugeMetricFamily(
        "keytide_kafka_disk_free_bytes",
        "Free on a disk of Kafka that has topics of the cluster",
        labels=["broker", "folder"],
    )
    for disk in leader.queue_sizes.disks:
        free.add_metric([str(disk.broker), disk.folder], disk.free)
    return [size, held, free]


def _loads(leader: Leader) -> list[Family]:
    """What slices get, as last looked at; nothing of those of which that is not known."""
    writes = GaugeMetricFamily(
        "keytide_slice_writes_per_second",
        "Entries that are put into a slice and removed from it, of one copy",
        labels=["index", "slice"],
    )
    reads = GaugeMetricFamily(
        "keytide_slice_reads_per_second",
        "How often scans read a slice, of all its copies",
        labels=["index", "slice"],
    )
    hot = GaugeMetricFamily(
        "keytide_index_hot_slices",
        "Slices that get much more than the others of their index, or hold much more",
        labels=["index"],
    )
    names = leader.dictionary.catalog.shown_names()
    for record in leader.dictionary.catalog.indexes():
        if record.state != "READY" or record.replaced_by:
            continue
        hot.add_metric([names[record.id]], len({one.slice for one in leader.loads.hot(record)}))
        for load in loads.rates(leader, record):
            for family, rate in ((writes, load["writes_per_s"]), (reads, load["reads_per_s"])):
                if rate is not None:
                    family.add_metric([names[record.id], str(load["slice"])], rate)
    return [writes, reads, hot]


def _families(leader: Leader, now: int) -> list[Family]:
    percent = GaugeMetricFamily(
        "keytide_build_percent",
        "How far a build is, with its verification; 100: READY",
        labels=["build"],
    )
    documents = CounterMetricFamily(
        "keytide_build_documents",
        "Documents that a build has read (not again those that it reads anew after a pause)",
        labels=["build"],
    )
    paused = GaugeMetricFamily(
        "keytide_build_paused", "Builds that pause, by whom (operator, system)", labels=["build", "by"]
    )
    published = GaugeMetricFamily(
        "keytide_snapshot_number", "Newest snapshot that all slices of an index hold", labels=["index"]
    )
    lag = GaugeMetricFamily(
        "keytide_projector_lag_documents",
        "Documents that projectors have still to bring",
        labels=["keyspace"],
    )
    live = GaugeMetricFamily("keytide_node_live", "Whether an indexer node is live", labels=["node"])
    lost = GaugeMetricFamily(
        "keytide_slices_lost", "Slices of an index whose data is lost or being rebuilt", labels=["index"]
    )
    differences = GaugeMetricFamily(
        "keytide_verify_differences",
        "What an index's last verification found, of all indexes that it verified with it",
        labels=["index", "class"],
    )
    verified = GaugeMetricFamily(
        "keytide_verify_finished_timestamp_seconds",
        "When an index's last verification ended",
        labels=["index"],
    )
    catalog = leader.dictionary.catalog
    moves = sum(len(one.left) for one in catalog.rebalances() if one.state == "RUNNING")
    rollbacks = sum(len(catalog.rollbacks(keyspace.name)) for keyspace in catalog.keyspaces())
    names = catalog.shown_names()
    for record in catalog.indexes():
        if record.state != "READY":
            continue
        lost.add_metric([names[record.id]], len(lost_slices(leader, record)))
        if record.verification:
            verified.add_metric([names[record.id]], record.verified_at / 1000)
            job = leader.jobs.find(record.verification)
            for kind, count in sorted(job.counts.items()) if job is not None else ():
                differences.add_metric([names[record.id], kind], count)
    for build in leader.builds.registry.all():
        document = views.build(leader, build, now)
        percent.add_metric([build.id], document["percent"])
        if build.paused:
            paused.add_metric([build.id, build.paused_by], 1)
        documents.add_metric(
            [build.id], leader.builds.registry.most_done(build), created=build.started_at / 1000
        )
    for keyspace, document in views.stability(leader, now)["keyspaces"].items():
        lag.add_metric([keyspace], document["lag_documents"])
        for name, number in document["published"].items():
            published.add_metric([name], number)
    for document in views.nodes(leader, now):
        live.add_metric([document["id"]], float(document["live"]))
    return [
        GaugeMetricFamily("keytide_coordinator_term", "Term of this coordinator", value=leader.term),
        GaugeMetricFamily("keytide_coordinator_is_leader", "Whether this coordinator leads", value=1),
        GaugeMetricFamily(
            "keytide_rebalance_moves_left", "Moves of a running rebalance that are not done", value=moves
        ),
        CounterMetricFamily("keytide_rollbacks", "Rollbacks of all keyspaces", value=rollbacks),
        CounterMetricFamily(
            "keytide_rebuilds", "Rebuilds of single slices that were ended well", value=leader.rebuilds.ended
        ),
        CounterMetricFamily(
            "keytide_trimmed_queue_records",
            "Records that were deleted from mutation queues, for no slice needs them any more",
            value=leader.trimmer.removed,
        ),
        lost,
        percent,
        documents,
        paused,
        published,
        lag,
        live,
        differences,
        verified,
    ]
