"""What is known of a source topic. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of a producer that has neither been committed nor aborted: nobody who reads committed
    records comes past its first record, though others were acknowledged behind it.

    Attributes:
        offset: of its first record, where reading stands.
        since: ms; when it began, or was first seen to hold the stream up.
        producer_id, producer_epoch: of the producer, -1 while Kafka has not told.
        transactional_id: the producer's, "" while that is not known.
        remedy: how it ends.
    """

    partition: int
    offset: int
    since: int
    remedy: str
    producer_id: int = -1
    producer_epoch: int = -1
    transactional_id: str = ""

    def in_words(self, now: int) -> str:
        """For people."""
        name = f" (transactional.id {self.transactional_id})" if self.transactional_id else ""
        who = f" of producer {self.producer_id}{name}" if self.producer_id >= 0 else ""
        return (
            f"partition {self.partition} from offset {self.offset}: an open transaction{who}, for "
            f"{max(0, now - self.since) / 1000:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class SourceStatus:
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
        open_transactions: transactions that have held the stream up for a while.
        similar_topic: a topic whose name is like that of one that there is not, "" without any.
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
    similar_topic: str = ""
    open_transactions: tuple[OpenTransaction, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.topic_id)

    @property
    def partitions(self) -> int:
        return len(self.high)
