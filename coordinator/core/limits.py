"""What the pure core obeys. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """What the core obeys: settings (`coordinator.process.limits`), and constants that tests shorten. Times
    are `_ms`.

    Attributes:
        reserve: how far a bound is set ahead of what is acknowledged, in offsets of each partition.
        newest_held: how many of its newest numbers a slice keeps for certain.
        landmarks_held: how many of those before, by rank.
        copies_per_node: copies of slices that are filled at once from or on one node.
        copy_after_ms: a node that has been silent for longer is not expected back: what it has of slices is
            filled elsewhere.
        leave_after_ms: a copy that others have taken the place of is gone after so long at the latest.
        copy_check_ms: between looks at all copies.
        copy_pause_ms: before a copy is begun in place of one that came to nothing; doubles with each time.
        examine_retry_ms: between examinations of a history that came to nothing.
        examine_pause_ms: between a rollback and the next examination of the same keyspace.
        queue_max_bytes: that a copy may hold back of its slice's queue beyond another one; 0: no limit.
        kafka_disk_bytes: that are to be free on each disk of Kafka.
        queue_sizes: whether Kafka is asked for the sizes of queues.
        queue_settling_ms: nothing of a queue is deleted until its index has been READY for as long.
    """

    interval_ms: int = 10
    heartbeat_ms: int = 200
    pacing_limit_ms: int = 2_000
    node_timeout_ms: int = 3_000
    suspect_ms: int = 2_000
    stale_limit_ms: int = 10_000
    lag_limit_ms: int = 5_000
    trim_interval_ms: int = 10_000
    queue_retention_ms: int = 86_400_000
    newest_held: int = 8
    landmarks_held: int = 32
    reserve: int = 262_144
    copies_per_node: int = 2
    copy_after_ms: int = 300_000
    leave_after_ms: int = 900_000
    copy_check_ms: int = 200
    copy_pause_ms: int = 5_000
    examine_retry_ms: int = 1_000
    examine_pause_ms: int = 1_000
    queue_max_bytes: int = 0
    kafka_disk_bytes: int = 0
    queue_sizes: bool = False
    queue_settling_ms: int = 10_000
