"""Builds that begin with a table (`keytide.catalog.table_origin`): may this one be right? Pure.

Theory of operation. The table stands for the log's beginning: it holds the newest version of every document
below `offsets`. So the log must still have everything from there on, must have got that far already, and must
be the log that the table was taken of. Three things can be wrong that an ordinary build cannot meet:

* The table is older than deletions that the cleaner has removed since: on a compacted topic a tombstone
  lives for `delete.retention.ms`; that time counts from when the table was taken, not from the first read
  (R26).
* The source was rolled back since: the table may hold what was lost. That is told by the rollbacks of later
  incarnations than the one in which the offsets were given.
  Where nobody but the table had read of what was lost, the driver finds it by leader epochs
  (`Batches.run_table`).
* The table changes between two reads of it. Nobody can see that here; docs/initial-state.md says so.

Slices of an index that began with a table are rebuilt from the same table, by the same rules: when they do
not hold any more, the rebuild fails and says why.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.source_status import SourceStatus
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord, RollbackRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.model.timestamp import Timestamp
from keytide.model.words import few

_MORE = 3
"""So many partitions are named in a message."""


def refused(origin: TableOrigin, source: SourceStatus, rollbacks: Iterable[RollbackRecord] = ()) -> str:
    """Why a build cannot begin with this table now, "" when it can.

    Args:
        source: of the source; its ends are, or will be, the load timestamp.
        rollbacks: of the keyspace.
    """
    if origin.topic_id and origin.topic_id != source.topic_id:
        return f"the offsets of the table are of a topic {source.keyspace} that was deleted and made anew"
    return (
        _wrong_partitions(origin, source)
        or _wrong_offsets(origin, source)
        or _void(origin, rollbacks)
        or lost_tombstones(origin, source)
    )


def _wrong_partitions(origin: TableOrigin, source: SourceStatus) -> str:
    missing = sorted(source.high.keys() - origin.offsets.keys())
    unknown = sorted(origin.offsets.keys() - source.high.keys())
    if missing:
        of = source.keyspace
        return f"the table needs an offset for every partition of {of}: {few(missing, _MORE)} have none"
    if unknown:
        return (
            f"topic {source.keyspace} has {source.partitions} partitions: there is no {few(unknown, _MORE)}"
        )
    return ""


def _wrong_offsets(origin: TableOrigin, source: SourceStatus) -> str:
    for partition, offset in sorted(origin.offsets.items()):
        if offset > source.high[partition]:
            return (
                f"the table was taken at offset {offset} of partition {partition}, which ends at "
                f"{source.high[partition]}: it is of another topic, or of records that were lost"
            )
        if offset < source.earliest[partition]:
            return (
                f"offsets {offset} to {source.earliest[partition] - 1} of partition {partition}, which "
                "follow the table, were deleted; take a newer table, or raise the topic's retention before"
            )
    return ""


def _void(origin: TableOrigin, rollbacks: Iterable[RollbackRecord]) -> str:
    """Whether records that the table may hold were lost since its offsets were given."""
    for rollback in rollbacks:
        if rollback.incarnation <= origin.incarnation:
            continue
        kept = Timestamp(rollback.lost) if rollback.lost else rollback.timestamp
        past = [
            partition
            for partition, offset in sorted(origin.offsets.items())
            if (partition in kept.places or not rollback.lost) and offset > kept.offset(partition)
        ]
        if rollback.cause == "recreated" or past:
            where = f" of partition {few(past, _MORE)}" if past else ""
            return f"the source has lost records{where} that the table may hold; take a newer table"
    return ""


def lost_tombstones(origin: TableOrigin, source: SourceStatus) -> str:
    """Whether a deletion after the table was taken may have been cleaned away (R26), "" when not.

    The reader is at the table until the load timestamp is reached, so the judgement repeats while a build
    runs.
    """
    if not source.compacted:
        return ""
    if not origin.taken_at:
        return (
            f"topic {source.keyspace} is compacted: a deletion may have been cleaned away since the table "
            "was taken; say when that was (`taken_at`)"
        )
    age = source.sampled_at - origin.taken_at
    if age <= source.delete_retention_ms:
        return ""
    return (
        f"the table was taken {age // 1000} s ago, and topic {source.keyspace} keeps tombstones for "
        f"{source.delete_retention_ms // 1000} s only: deletions may be missed; take a newer table, or raise "
        "the topic's delete.retention.ms before"
    )


def origin_of(catalog: Catalog, index: IndexRecord) -> TableOrigin | None:
    """The table that the data of an index began with; None when that was the log's beginning (also when its
    topic was made anew since: then the index began from nothing, with the new one)."""
    build, keyspace = catalog.build(index.build or ""), catalog.keyspace(index.keyspace)
    origin = build.origin if build else None
    return origin if origin and keyspace and origin.topic_id == keyspace.topic_id else None
