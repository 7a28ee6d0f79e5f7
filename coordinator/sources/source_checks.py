"""What a source topic allows a build: pure judgements over `SourceStatus`.

What the source no longer holds cannot be indexed and must never be guessed: each of these ends a build, with
the reason.
"""

from __future__ import annotations

from coordinator.core.source_status import SourceStatus
from coordinator.sources.table_origins import lost_tombstones
from keytide.catalog.records import BuildRecord
from keytide.model.timestamp import Timestamp


def target(build: BuildRecord) -> Timestamp:
    """What the backfill must reach: load timestamp and low-watermark timestamp, as far as that is known."""
    return build.load_timestamp.merge_max(Timestamp.of(build.low_watermark))


def reached(build: BuildRecord) -> bool:
    """Whether the backfill timestamp covers what it must, and every partition has its low-watermark (R23)."""
    activated = all(partition in build.low_watermark for partition in build.load_timestamp.places)
    return activated and build.backfill_timestamp.covers(target(build))


def finished(build: BuildRecord, reached: Timestamp) -> int:
    """Documents of the micro-batches that end at `reached`, a table that the build begins with included; rows
    of the layout whose entries it begins with."""
    table = build.table_documents if build.batches else 0
    return table if build.seed else build.earliest.documents_to(reached) + table


def unbuildable(build: BuildRecord, source: SourceStatus) -> str:
    """Why this build can never be right any more, "" when it still can."""
    if not source.exists:
        return f"topic {build.keyspace} does not exist any more; make it, and build again"
    topic_id = build.load_timestamp.topic_id
    if topic_id and topic_id != source.topic_id:
        return f"topic {build.keyspace} was deleted and made anew during the build; build again"
    partitions = len(build.load_timestamp.places)
    if source.partitions != partitions:
        return (
            f"topic {build.keyspace} had {partitions} partitions at the start of the build and has "
            f"{source.partitions} now; build again to take them in"
        )
    if build.seed:
        return ""  # it does not read it
    return _lost_offsets(build, source) or _lost_tombstones(build, source)


def _lost_offsets(build: BuildRecord, source: SourceStatus) -> str:
    """Whether offsets are gone that the backfill has not read and needs."""
    wanted = target(build)
    for partition, earliest in sorted(source.earliest.items()):
        needed = max(build.backfill_timestamp.offset(partition), build.earliest.offset(partition))
        if needed < wanted.offset(partition) and earliest > needed:
            return (
                f"offsets {needed} to {earliest - 1} of partition {partition} were deleted before the build "
                "had read them; raise the topic's retention and build again"
            )
    return ""


def _lost_tombstones(build: BuildRecord, source: SourceStatus) -> str:
    """Whether a tombstone may have been cleaned away between the read of the old version and its own place
    (R26)."""
    if not source.compacted or build.backfill_timestamp.covers(build.load_timestamp):
        return ""
    if build.origin is not None:
        return lost_tombstones(build.origin, source)
    if not build.first_read_at:
        return ""
    took = source.sampled_at - build.first_read_at
    if took <= source.delete_retention_ms:
        return ""
    return (
        f"the build has read for {took // 1000} s without reaching its load timestamp, longer than the "
        f"{source.delete_retention_ms // 1000} s for which topic {build.keyspace} keeps tombstones: "
        "deletions may have been missed; raise its delete.retention.ms and build again"
    )


def open_transactions(load: Timestamp, source: SourceStatus) -> list[tuple[int, int]]:
    """Partitions whose stable end lies below the load timestamp, with that end: an open transaction begins
    there (R24)."""
    return [
        (partition, stable)
        for partition, stable in sorted(source.stable.items())
        if stable < min(load.offset(partition), source.high.get(partition, 0))
    ]


def waiting_words(waits: list[tuple[int, int]]) -> str:
    """`open_transactions` in words; "" for none."""
    places = ", ".join(f"partition {partition} from offset {offset}" for partition, offset in waits)
    return f"open transactions of producers: {places}" if waits else ""
