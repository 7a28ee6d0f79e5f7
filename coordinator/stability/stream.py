"""The stability timestamps of one keyspace: where they stand. Plain data; `coordinator.stability.issuer`
decides."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinator.core.nodes import Replica
from coordinator.stability.progress import Content, KeyspaceProgress
from coordinator.unique.settlement import Settling
from keytide.catalog.history import History
from keytide.catalog.records import IndexRecord, KeyspaceRecord, RollbackRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import StabilityTimestamp

STAMPS_KEPT = 4096
"""Numbers whose timestamp is remembered, per keyspace: a slice that acknowledges an older one is not waited
for."""


@dataclass(slots=True)
class StabilityStream:
    """The stability timestamps of one keyspace.

    Attributes:
        content: the newest timestamp issued; None before the first.
        content_number: the first number that has this content; None until it is delivered.
        content_since: when this content was first issued.
        issued_at: when the last timestamp was issued.
        in_flight: what is being sent.
        first: number of the first one that this leader has issued here; -1 before. Whatever other leaders may
            have published, as far as it holds, is older (R37).
        stamps: number -> timestamp of the newest numbers.
        published: index id -> newest common number.
        hold: no new content until this is acknowledged: what lies before it was read late (R27).
        bound: no content passes this: it is written in the dictionary (`coordinator.stability.bounds`).
        floor: no content until this is acknowledged: terms before may have issued it, and nobody knows.
        history: which numbers of the past hold.
        marks: when which numbers were issued, now and then.
        lagging: replicas that no timestamp waits for, until they have caught up.
        halted: nothing is issued or published: its history is being examined, or a rollback is being written.
        asked: what was acknowledged when Kafka was asked which topic this is; None while it is not asked.
        ask: the number of that question.
        asked_at: when it was asked.
        ask_at: no question before this.
        confirmed: what was acknowledged when that question was asked; None when all of it is issued.
        settling: what its timestamps settle of suspicions against UNIQUE indexes (R35).
    """

    progress: KeyspaceProgress
    history: History = field(default_factory=History)
    halted: bool = False
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    lagging: set[Replica] = field(default_factory=set)
    content: Timestamp | None = None
    content_number: int | None = None
    content_since: int = 0
    issued_at: int = 0
    in_flight: StabilityTimestamp | None = None
    number: int = -1
    first: int = -1
    stamps: dict[int, Timestamp] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    hold: Timestamp | None = None
    bound: Timestamp = field(default_factory=Timestamp)
    floor: Timestamp | None = None
    asked: Content | None = None
    ask: int = 0
    asked_at: int = 0
    ask_at: int = 0
    confirmed: Content | None = None
    published_at: int = 0
    emitting: list[IndexRecord] = field(default_factory=list)
    ready: list[IndexRecord] = field(default_factory=list)
    settling: Settling = field(default_factory=Settling)

    @property
    def may_issue(self) -> bool:
        """Whether a timestamp may be issued at all now."""
        free = self.in_flight is None and not self.halted
        return free and bool(self.emitting) and self.progress.complete

    @property
    def issuable(self) -> bool:
        """Whether there is something to issue, once it is confirmed, that may be issued."""
        return self.progress.unissued and self.open

    @property
    def open(self) -> bool:
        """Whether some content may be issued now, once it is confirmed."""
        return self.ripe is not None or self._within(self.progress.timestamp())

    @property
    def ripe(self) -> Content | None:
        """What is confirmed and may be issued."""
        return self.confirmed if self.confirmed and self._within(self.confirmed.timestamp) else None

    def _within(self, content: Timestamp) -> bool:
        """Whether some content lies where timestamps may."""
        if self.hold is not None and not content.covers(self.hold):
            return False
        return self.bound.covers(content) and (self.floor is None or content.covers(self.floor))


def begin(
    keyspace: KeyspaceRecord, rollbacks: list[RollbackRecord], before: StabilityStream | None
) -> StabilityStream:
    """The stream of a keyspace, or of its present incarnation: after a rollback it goes on at the timestamp
    that was gone back to, and nothing after its number is remembered.

    Args:
        rollbacks: of the keyspace.
        before: the stream of the incarnation before, if it was this leader's.
    """
    stream = StabilityStream(KeyspaceProgress(keyspace))
    if before is not None:  # (a late answer to a question of before is none to a question of now)
        stream.number, stream.ask = before.number, before.ask
    stream.history = History(rollbacks, keyspace.topic_id, keyspace.incarnation)
    stream.bound = Timestamp.of(keyspace.bound)
    last = next((one for one in rollbacks if one.incarnation == keyspace.incarnation), None)
    if last is None or (last.topic_id and keyspace.topic_id and last.topic_id != keyspace.topic_id):
        return stream  # (no index was left when its topic was made anew: nothing was rolled back)
    stream.progress.begin(last.timestamp, before.progress if before else None)
    stream.content = Timestamp(last.timestamp.places, keyspace.topic_id)
    if before is not None:
        stream.stamps = {number: stamp for number, stamp in before.stamps.items() if number <= last.number}
        stream.published = {
            index: number for index, number in before.published.items() if number <= last.number
        }
        stream.halted = True  # until it is written
    if last.number >= 0:
        stream.stamps.setdefault(last.number, last.timestamp)
    return stream
