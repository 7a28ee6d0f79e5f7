"""What the admin API shows, as JSON documents (docs/reference). Pure: a look at the leader at one moment.

Times are milliseconds since the epoch, sizes bytes. Where something is not known, null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.builds.phases import percent_done
from coordinator.builds.registry import FINAL
from coordinator.leader import Leader
from coordinator.rollback.rollback import in_words
from coordinator.sources.source_checks import target
from coordinator.stability.stream import StabilityStream
from coordinator.views import absent_nodes, loads
from coordinator.views.copies import drain_state
from coordinator.views.jobs import verification
from coordinator.views.slices import copy_counts, index_slices, lost_slices, slice_statuses
from keytide.catalog.auto_split import AutoSplit
from keytide.catalog.partitioning import readable_splits
from keytide.catalog.records import BuildRecord, IndexRecord, NodeRecord
from keytide.definition.render import render_expression
from keytide.model.protocol import SPOKEN
from keytide.model.roles import ROLES
from keytide.model.timestamp import Timestamp, smallest
from keytide.wire.messages import SliceStatus

Document = dict[str, Any]


def index(leader: Leader, record: IndexRecord, now: int) -> Document:
    """One index."""
    stream = leader.stability.streams.get(record.keyspace)
    slices = slice_statuses(leader, record)
    known = [status for status in slices if status is not None]
    active = leader.builds.registry.active(record)
    state = "BUILDING" if active is not None and record.state in ("DEFERRED", "FAILED") else record.state
    definition = record.definition
    return {
        "id": record.id,
        "name": record.name,
        "keyspace": record.keyspace,
        "statement": definition.statement,
        "state": state,
        "reason": record.reason,
        "slices": record.slices,
        "replicas": definition.replicas,
        "unique": definition.unique,
        "structure": definition.using,
        "srid": definition.system if definition.structure_type.has_places else None,
        "partition_by": f"{definition.partition_kind.upper()}({render_expression(definition.partition)})",
        "splits": readable_splits(record.splits or definition.encoded_splits) or None,
        "partition_slices": list(definition.spread) or None,
        "hears": "by-id" if record.hears_by_id else "all",
        "entries": sum(status.entries for status in known),
        "entries_by_slice": [status.entries if status else None for status in slices],
        "bytes": sum(status.bytes for status in known),
        "skipped": sum(status.skipped for status in known),
        "violations": _violations(record, known),
        "left_out": _left_out(stream, record.id),
        "left_out_by_build": _without_entries(leader, record),
        "build": record.build,
        "lag_documents": _lag(leader, stream, record, slices),
        "snapshot": stream.published.get(record.id) if stream else None,
        "timestamp": _timestamp(_published_timestamp(stream, record.id)),
        "foreign_partition_ids": sum(status.foreign_partition_ids for status in known),
        "placement": [list(nodes) for nodes in record.placement],
        "slices_reporting": len(known),
        "copies": copy_counts(leader, record),
        "lost": lost_slices(leader, record),
        "hot": loads.hot(leader, record),
        "rebuilds": [build.id for build in leader.builds.registry.rebuilds(record.id)],
        "verification": verification(leader, record),
        "created_at": record.created_at,
        "layouts": layouts(leader, record),
        "auto_split": definition.splits_itself,
        "auto_split_at": record.auto_split.at if isinstance(record.auto_split, AutoSplit) else None,
        "auto_split_does": leader.auto_splits.waiting.get(record.id),
    }


def layouts(leader: Leader, record: IndexRecord) -> list[Document]:
    """The others with the name of an index: the one that is to replace it, those that it has replaced and
    that still serve who reads from them."""
    return [
        {
            "id": one.id,
            "replaced": bool(one.replaced_by),
            "state": one.state,
            "reason": one.reason,
            "slices": one.slices,
            "build": one.build,
            "waits_for": leader.layouts.waiting.get(one.id),
        }
        for one in leader.dictionary.catalog.layouts(record.name)
        if one.id != record.id
    ]


def slices(leader: Leader, record: IndexRecord, now: int) -> list[Document]:
    """The slices of an index, each copy."""
    ends = source_ends(leader, record.keyspace, leader.stability.streams.get(record.keyspace))
    return index_slices(leader, record, ends, now)


def _violations(record: IndexRecord, known: list[SliceStatus]) -> int:
    """Keys that several documents have; of an index that failed for them, those that were counted then."""
    if record.violated is not None and not known:
        return record.violated.count
    return sum(status.violations for status in known)


def source_ends(leader: Leader, keyspace: str, stream: StabilityStream | None) -> Timestamp:
    """Ends of the source as last seen, by projectors or by the coordinator's own look."""
    source = leader.sources.get(keyspace)
    ends = dict(source.high) if source else {}
    if stream is not None:
        for partition, state in stream.progress.partitions.items():
            ends[partition] = max(ends.get(partition, 0), state.end)
    return Timestamp.of(ends)


def _lag(
    leader: Leader, stream: StabilityStream | None, record: IndexRecord, slices: list[SliceStatus | None]
) -> int | None:
    """Documents (offsets) between what the slowest slice has applied and the source's end; null when a slice
    is not heard."""
    if not slices or any(status is None for status in slices):
        return None
    applied = smallest(status.timestamp for status in slices if status is not None)
    return applied.documents_to(source_ends(leader, record.keyspace, stream))


def _left_out(stream: StabilityStream | None, index_id: str) -> dict[str, int]:
    """Versions that were not indexed, by reason, since the projectors' start."""
    total: dict[str, int] = {}
    for projector in stream.progress.projectors.values() if stream else ():
        for reason, count in projector.skipped.get(index_id, {}).items():
            total[reason] = total.get(reason, 0) + count
    return dict(sorted(total.items()))


def _without_entries(leader: Leader, record: IndexRecord) -> dict[str, int]:
    """Documents that the last build of an index read and has no entries of, by reason."""
    build = next((one for one in leader.builds.registry.all() if one.id == record.build), None)
    if build is None:
        return {}
    return {**build.left_out.get(record.id, {}), **build.skipped.get(record.id, {})}


def _by_name(
    leader: Leader, record: BuildRecord, counts: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Counts of a build by the names of its indexes."""
    names = dict(zip(record.indexes, leader.builds.registry.names(record), strict=True))
    return {names[id_]: dict(sorted(found.items())) for id_, found in counts.items() if id_ in names}


def _published_timestamp(stream: StabilityStream | None, index_id: str) -> Timestamp | None:
    number = stream.published.get(index_id) if stream else None
    return stream.stamps.get(number) if stream and number is not None else None


def _timestamp(timestamp: Timestamp | None) -> Document | None:
    return None if timestamp is None else timestamp.as_json()


def build(leader: Leader, record: BuildRecord, now: int) -> Document:
    """One build. `documents_total` counts offsets from the earliest that there was to what the backfill must
    reach; `percent` and `eta_s` are of the way to READY, its verification included."""
    run = leader.builds.registry.run(record.id) if record.state not in FINAL else None
    total, done = record.documents_total, record.documents_done
    job = leader.jobs.find(record.verification) if record.phase == "verifying" else None
    rate = run.rate() if run and record.state == "BACKFILL" else 0.0
    if record.state == "READY" and record.finished_at > record.started_at:
        rate = total * 1000 / (record.finished_at - record.started_at)
    eta = leader.jobs.left_ms(job, now) if job else leader.builds.phases.eta_ms(record, now) if run else None
    return {
        "id": record.id,
        "keyspace": record.keyspace,
        "indexes": leader.builds.registry.names(record),
        "slices": _rebuilt_slices(leader, record),
        "attempt": record.attempt,
        "state": record.state,
        "phase": record.phase or None,
        "paused": record.paused or None,
        "paused_by": record.paused_by or None,
        "documents_done": done,
        "documents_total": total,
        "bytes_done": record.bytes_done,
        "bytes_total": record.bytes_total,
        "percent": round(percent_done(record, job.percent if job else 0.0), 1),
        "rate": round(rate, 1),
        "rate_limit": record.rate_limit or None,
        "eta_s": None if eta is None else round(eta / 1000, 1),
        "waiting_for": "" if record.state in FINAL else absent_nodes.of_build(leader, record, now),
        "batches": record.batches,
        "load_timestamp": _timestamp(record.load_timestamp),
        "low_watermark": {str(partition): offset for partition, offset in record.low_watermark.items()},
        "target_timestamp": _timestamp(target(record)),
        "backfill_timestamp": _timestamp(record.backfill_timestamp),
        "final_timestamp": _timestamp(record.final_timestamp),
        "earliest": _timestamp(record.earliest),
        "left_out": _by_name(leader, record, record.left_out),
        "skipped": _by_name(leader, record, record.skipped),
        "origin": msgspec.to_builtins(record.origin, str_keys=True),
        "seed": record.seed or None,
        "engine": record.engine or None,
        "verify": "full" if record.verify_full else record.verify,
        "compared": record.compared or None,
        "verification": record.verification or None,
        "error": record.error or None,
        "current": _concerns(leader, record),
        "started_at": record.started_at,
        "first_read_at": record.first_read_at or None,
        "finished_at": record.finished_at or None,
    }


def _concerns(leader: Leader, record: BuildRecord) -> bool:
    """Whether an index that there is still is as this build has made it, or will be."""
    if record.state not in FINAL:
        return True
    indexes = leader.builds.registry.indexes(record)
    return any(index.state != "DROPPING" and index.build == record.id for index in indexes)


def _rebuilt_slices(leader: Leader, record: BuildRecord) -> dict[str, list[int]] | None:
    """Index name -> slices that a rebuild fills; null for a build of whole indexes."""
    if not record.rebuild:
        return None
    return {index.name: record.slices_of(index) for index in leader.builds.registry.indexes(record)}


def node(leader: Leader, record: NodeRecord, now: int) -> Document:
    """One indexer node, also one that has not been heard in this term."""
    name, indexes = record.id, leader.dictionary.catalog.indexes()
    known = leader.stability.nodes.by_id.get(name)
    heartbeat = known.heartbeat if known else None
    statuses = heartbeat.slices if heartbeat else []
    return {
        "id": name,
        "url": record.url,
        "zone": record.zone or None,
        "roles": [role for role in ROLES if record.has(role)],
        "protocol": record.protocol,
        "live": bool(known and known.live),
        "drain": drain_state(leader, record),
        "counted": sum(name in nodes for index in indexes for nodes in index.placement),
        "leaving": sum(name in nodes for index in indexes for nodes in index.leaving.values()),
        "slices": len(statuses),
        "entries": sum(status.entries for status in statuses),
        "bytes": sum(status.bytes for status in statuses),
        "stopped": sum(status.state == "STOPPED" for status in statuses),
        "lost": sum(status.state == "LOST" for status in statuses),
        "queue_documents": sum(status.queue_documents for status in statuses),
        "memory": heartbeat.memory if heartbeat else None,
        "disk_free": heartbeat.disk_free if heartbeat else None,
        "started_at": heartbeat.started_at if heartbeat else None,
        "heard_ms_ago": now - known.heard_at if known else None,
    }


def nodes(leader: Leader, now: int) -> list[Document]:
    return [node(leader, record, now) for record in leader.dictionary.catalog.nodes()]


def topology(leader: Leader, now: int) -> Document:
    """Who holds what."""
    names = leader.dictionary.catalog.shown_names()
    return {
        "nodes": nodes(leader, now),
        "indexes": [
            {
                "id": record.id,
                "name": names[record.id],
                "state": record.state,
                "slices": slices(leader, record, now),
            }
            for record in leader.dictionary.catalog.indexes()
        ],
    }


def stability(leader: Leader, now: int) -> Document:
    """The stability timestamps of each keyspace."""
    keyspaces = {}
    names = leader.dictionary.catalog.shown_names()
    for name, stream in sorted(leader.stability.streams.items()):
        published = stream.published.values()
        keyspaces[name] = {
            "snapshot": stream.number if stream.number >= 0 else None,
            "timestamp": _timestamp(stream.content),
            "issued_ms_ago": max(0, now - stream.issued_at) if stream.issued_at else None,
            "staleness_ms": leader.staleness_ms(stream, now),
            "published": {
                names[record.id]: stream.published[record.id]
                for record in stream.ready
                if record.id in stream.published
            },
            "newest_common": min(published) if published else None,
            "lag_documents": projector_lag(leader, name, stream),
            "partitions": stream.progress.keyspace.partitions,
            "partitions_reported": sum(state.heard_at > 0 for state in stream.progress.partitions.values()),
            "incarnation": stream.progress.keyspace.incarnation,
            "rollbacks": len(leader.dictionary.catalog.rollbacks(name)),
            "last_rollback": _last_rollback(leader, name),
            "examining": leader.rollbacks.examining(name) or None,
            "version": stream.progress.keyspace.version,
            "lagging": [
                {"node": node, "index": index_id, "slice": number}
                for node, index_id, number in sorted(stream.lagging)
            ],
            "issuing": bool(stream.emitting) and not stream.halted,
            "waiting_for": _open_transactions(leader, name, now),
        }
    return {"term": leader.term, "keyspaces": keyspaces}


def _open_transactions(leader: Leader, keyspace: str, now: int) -> list[Document]:
    """What holds the source up."""
    source = leader.sources.get(keyspace)
    return [
        {
            "partition": one.partition,
            "offset": one.offset,
            "since": one.since,
            "producer_id": one.producer_id if one.producer_id >= 0 else None,
            "producer_epoch": one.producer_epoch if one.producer_id >= 0 else None,
            "transactional_id": one.transactional_id or None,
            "text": one.in_words(now),
            "next_step": one.remedy,
        }
        for one in (source.open_transactions if source else ())
    ]


def _last_rollback(leader: Leader, keyspace: str) -> Document | None:
    """The newest rollback of a keyspace."""
    known = leader.dictionary.catalog.rollbacks(keyspace)
    if not known:
        return None
    last = known[-1]
    return {
        "incarnation": last.incarnation,
        "snapshot": last.number if last.number >= 0 else None,
        "timestamp": _timestamp(last.timestamp),
        "cause": last.cause,
        "at": last.at,
        "lost": _timestamp(Timestamp(last.lost)),
        "detail": last.detail,
        "text": in_words(last),
    }


def projector_lag(leader: Leader, name: str, stream: StabilityStream) -> int:
    """Documents that projectors have still to bring to the queues."""
    return stream.progress.timestamp().documents_to(source_ends(leader, name, stream))


def protocol(leader: Leader) -> Document:
    """The version of the protocol that the cluster uses, and up to which one this coordinator speaks."""
    return {"used": leader.dictionary.catalog.protocol, "spoken": SPOKEN}


def cluster(leader: Leader, bootstrap: str, url: str, now: int) -> Document:
    """What a client needs to find its way."""
    record = leader.dictionary.catalog.cluster
    return {
        "cluster": leader.dictionary.topics.cluster,
        "id": record.id if record else None,
        "term": leader.term,
        "coordinator": url,
        "now": now,
        "kafka": bootstrap,
        "protocol": protocol(leader),
        "nodes": [{"id": one["id"], "url": one["url"], "live": one["live"]} for one in nodes(leader, now)],
    }
