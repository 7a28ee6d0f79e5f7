"""Live indexes on compacted topics whose projectors are late. Pure.

Kafka's cleaner takes older versions away after `min.compaction.lag.ms`, and tombstones after
`delete.retention.ms`. A projector that comes that late reads a history with holes:

* Where an older version is gone, a timestamp between the two would show the document missing. So no timestamp
  falls inside the range that was read late, up to the end of the source when reading went on (R27).
* Where a tombstone is gone, the deletion is never seen, and the index keeps a ghost for ever. So it becomes
  FAILED, for rebuild (R26).

After a rollback the source is read a second time from a timestamp that may be old, in partitions that lost
nothing too. That is late at once: the first timestamp past it is one of the end as it was after the rollback.

How late: one sample of the topic's end is kept until a timestamp covers it; then everything up to the time of
that sample has been read, and the newest sample takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.source_status import SourceStatus
from keytide.model.timestamp import Timestamp

CLEANER_PAUSE_MS = 5_000
"""Later than this counts as late even where `min.compaction.lag.ms` is 0: only closed segments are cleaned,
and Kafka's cleaner pauses 15 s (`log.cleaner.backoff.ms`) after it found nothing to do."""
UNTIL_JUDGED = Timestamp.of({0: 1 << 62})
"""A hold that only the next look at the source replaces."""


@dataclass(slots=True)
class _LagWatch:
    topic_id: str
    covered_at: int
    pending_at: int
    pending: Timestamp
    read: Timestamp
    hold: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class Lateness:
    """What follows from how late the projectors of a keyspace are.

    Attributes:
        hold: no new timestamp until everything below this is acknowledged; None for no such limit.
        failure: why its live indexes are not to be trusted any more, "" while they are.
    """

    hold: Timestamp | None = None
    failure: str = ""


class LatenessWatch:
    """Follows the timestamps of keyspaces with READY indexes."""

    def __init__(self) -> None:
        self._watches: dict[str, _LagWatch] = {}

    def judge(
        self, source: SourceStatus, content: Timestamp, read: Timestamp, fresh_at: int, *, again: bool = False
    ) -> Lateness:
        """Take in a sample of the source.

        Args:
            content: the newest stability timestamp.
            read: what is acknowledged.
            fresh_at: when `content` covered the end, as its message says (known across coordinators); 0 when
                unknown.
            again: the keyspace was rolled back, and no timestamp has covered the end since.
        """
        end = Timestamp.of(source.stable)
        watch = self._watches.get(source.keyspace)
        if watch is None or watch.topic_id != source.topic_id:
            began = fresh_at or source.sampled_at
            watch = _LagWatch(source.topic_id, began, source.sampled_at, end, read, end if again else None)
            self._watches[source.keyspace] = watch
        if content.covers(watch.pending):
            watch.covered_at = max(watch.covered_at, watch.pending_at)
            watch.pending_at, watch.pending = source.sampled_at, end
        if not source.compacted:
            return Lateness()
        late = source.sampled_at - max(watch.covered_at, fresh_at)
        self._hold(watch, late > max(source.min_compaction_lag_ms, CLEANER_PAUSE_MS), end, read)
        if late <= source.delete_retention_ms:
            return Lateness(watch.hold)
        return Lateness(
            watch.hold,
            f"projectors have been behind for {late // 1000} s, longer than topic {source.keyspace} keeps "
            f"tombstones ({source.delete_retention_ms // 1000} s): deletions may have been missed; "
            "build it again",
        )

    def _hold(self, watch: _LagWatch, late: bool, end: Timestamp, read: Timestamp) -> None:
        """Hold timestamps back from the moment of being late until what was there when reading went on is
        read."""
        goes_on = read != watch.read
        watch.read = read
        if watch.hold is not None and read.covers(watch.hold):
            watch.hold = None
        elif late and (watch.hold is None or not goes_on):
            watch.hold = end

    def forget(self, keyspace: str) -> None:
        """There is no READY index any more: what comes next begins anew."""
        self._watches.pop(keyspace, None)
