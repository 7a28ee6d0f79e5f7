"""What is known of a source topic. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What Kafka says of a source topic at one moment.

    Attributes:
        topic_id: "" when the topic does not exist (then everything else is empty).
        earliest: first offset that is still there, by partition.
        stable: end for a read_committed reader (last stable offset), by partition.
        high: high watermark, by partition; above `stable` while a transaction is open.
        compacted: `cleanup.policy` has compact.
        delete_retention_ms: how long tombstones are kept, at least, on a compacted topic.
        min_compaction_lag_ms: how long a record is safe from compaction.
        sampled_at: ms; taken before the offsets were asked for.
        meant: a topic whose name is like that of one that there is not, "" without any.
    """

    keyspace: str
    topic_id: str
    earliest: dict[int, int]
    stable: dict[int, int]
    high: dict[int, int]
    compacted: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    sampled_at: int
    meant: str = ""

    @property
    def exists(self) -> bool:
        return bool(self.topic_id)

    @property
    def partitions(self) -> int:
        return len(self.high)
