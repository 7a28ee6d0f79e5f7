"""Live indexes on compacted topics: has a tombstone been cleaned away unread? Pure.

Kafka keeps a tombstone of a compacted topic for `delete.retention.ms`; a projector that was behind for longer
may never see a deletion, and the index would keep a ghost for ever. So (R26) an index whose timestamps have
not covered some end of its topic for longer than that becomes FAILED, for rebuild.

How far behind: one sample of the topic's end is kept until a timestamp covers it; then everything up to the
time of that sample has been read, and the newest sample takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.events import SourceFacts
from keytide.timestamp import Timestamp


@dataclass(slots=True)
class _Watch:
    topic_id: str
    covered_at: int
    pending_at: int
    pending: Timestamp


class TombstoneWatch:
    """Follows the timestamps of keyspaces with READY indexes."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}

    def behind(self, facts: SourceFacts, content: Timestamp | None, fresh_at: int) -> str:
        """Why live indexes of a keyspace are not to be trusted any more, "" while they are.

        Args:
            content: the newest stability timestamp.
            fresh_at: when that covered the end, as its message says (known across coordinators); 0 when
                unknown.
        """
        if not facts.exists or content is None:
            return ""
        end = Timestamp.of(facts.stable)
        watch = self._watches.get(facts.keyspace)
        if watch is None or watch.topic_id != facts.topic_id:
            began = fresh_at or facts.sampled_at
            watch = _Watch(facts.topic_id, began, facts.sampled_at, end)
            self._watches[facts.keyspace] = watch
        if content.covers(watch.pending):
            watch.covered_at = max(watch.covered_at, watch.pending_at)
            watch.pending_at, watch.pending = facts.sampled_at, end
        late = facts.sampled_at - max(watch.covered_at, fresh_at)
        if not facts.compacted or late <= facts.delete_retention_ms:
            return ""
        return (
            f"projectors have been behind for {late // 1000} s, longer than topic {facts.keyspace} keeps "
            f"tombstones ({facts.delete_retention_ms // 1000} s): deletions may have been missed; build it again"
        )

    def forget(self, keyspace: str) -> None:
        """There is no READY index any more: what comes next begins anew."""
        self._watches.pop(keyspace, None)
