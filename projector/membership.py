"""The partitions of this process: taking them over, activating, committing, giving them back.

Theory of operation: `projector.tracker` decides, this performs. What needs an answer from Kafka's admin API
(taking over, first places) and what must be fenced (activations) is kept in sets and done between reads,
never inside librdkafka's callbacks; what fails is tried again a moment later. Only giving partitions back
happens inside a callback, because the group waits for it: what is in flight is awaited for a short while,
then committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from keytide.catalog import EMITTING, Catalog, KeyspaceRecord
from keytide.kafka import KafkaUnavailableError, admin
from keytide.settings import Settings
from projector.events import (
    Activated,
    Commit,
    CommitDone,
    CommitFailed,
    Event,
    Instruction,
    Key,
    KeyspaceChanged,
    Locate,
    Pause,
    ReadFrom,
    Refused,
    Revoked,
    Rewound,
    Tick,
)
from projector.places import (
    LOOKUP_TIMEOUT_S,
    decode_metadata,
    encode_metadata,
    first_place,
    look_up,
    take_over,
)
from projector.source import Source
from projector.tracker import PartitionState, Tracker

log = logging.getLogger(__name__)

RETRY_S = 0.2
REVOKE_WAIT_S = 3.0
"""How long a rebalance waits for what is in flight; the rest is sent again by the next owner."""

_PASSING = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""Errors of a commit that say nothing of another owner: the next commit tells."""


class Membership:
    """Owns the tracker and the source.

    Args:
        settings: all of them.
        catalog: the catalog as it is now.
        wait: lets the producer's callbacks run, waiting at most so many seconds for the first.
        clock: seconds, monotonic.
        rewound: called when what was in flight is given up.

    Attributes:
        tracker: state of every partition of ours.
        announcements: partitions that became active since `take_announcements`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: Callable[[], Catalog],
        wait: Callable[[float], None],
        clock: Callable[[], float],
        rewound: Callable[[int], None],
    ) -> None:
        self.tracker = Tracker()
        self._settings = settings
        self._catalog, self._wait, self._clock, self._rewound = catalog, wait, clock, rewound
        self._admin = admin(settings)
        self._lows: dict[Key, int] = {}
        """First offset in the log, where it lies past the position: reading begins there, the segment does
        not."""
        self._to_take: set[Key] = set()
        self._to_locate: set[Key] = set()
        self._activations: list[Commit] = []
        self._commits: list[Commit] = []
        self._announcements: list[Key] = []
        self._views: dict[str, KeyspaceChanged] = {}
        self._topic_ids: dict[str, str] = {}
        self._next_try = 0.0
        self.source = self._join()

    def _join(self) -> Source:
        return Source(
            self._settings,
            assigned=self._assigned,
            revoked=self._given_back,
            lost=self._forget,
            committed=self._committed,
        )

    def rejoin(self) -> None:
        """Leave the group and join it again: the way out when a position lies outside of the log, which
        librdkafka answers by never reading that partition again."""
        self.source.close()
        self.source = self._join()
        self.source.subscribe(sorted(self._views))

    # --- events and instructions

    def handle(self, event: Event) -> None:
        """Tell the tracker, and do what it says."""
        for instruction in self.tracker.handle(event):
            self._do(instruction)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Pause(key):
                self.source.pause(key)
            case ReadFrom(key, offset):
                self.read_from(key, offset)
            case Locate(key):
                self._to_locate.add(key)
            case Commit(activation=True):
                self._activations.append(instruction)
            case Commit():
                self._commits.append(instruction)
            case Activated(key):
                self._announcements.append(key)
            case Rewound(polls):
                self._rewound(polls)

    def read_from(self, key: Key, offset: int) -> None:
        self.source.read_from(key, max(offset, self._lows.get(key, 0)))

    def take_announcements(self) -> list[Key]:
        keys, self._announcements = self._announcements, []
        return [key for key in dict.fromkeys(keys) if key in self.tracker.partitions]

    # --- the catalog

    def learn(self, catalog: Catalog, suspended: set[str]) -> None:
        """Take in the catalog: which topics to read, which versions to activate."""
        views: dict[str, KeyspaceChanged] = {}
        for record in catalog.keyspaces():
            self._made_anew(record)
            if record.version > 0:
                emitting = [
                    index.version
                    for index in catalog.indexes(record.name)
                    if index.state in EMITTING and index.version > 0 and index.id not in suspended
                ]
                views[record.name] = KeyspaceChanged(record.name, record.version, min(emitting, default=0))
        changed = [view for name, view in sorted(views.items()) if self._views.get(name) != view]
        self._views = views
        for view in changed:
            log.info("keyspace %s: version %d, indexes emit from %d", *view)
            self.handle(view)
        self.source.subscribe(sorted(views))

    def _made_anew(self, record: KeyspaceRecord) -> None:
        """The keyspace is another topic of the same name by now: places in the old one mean nothing in it,
        and what was refused of it may be right, so its partitions are taken over once more (R15)."""
        known = self._topic_ids.get(record.name, record.topic_id)
        self._topic_ids[record.name] = record.topic_id
        if known == record.topic_id:
            return
        keys = [key for key in self.tracker.partitions if key.keyspace == record.name]
        log.warning("%s was made anew; its partitions are taken over again", record.name)
        for key in keys:
            self.source.pause(key)
        self._forget(keys)
        self._assigned(keys)

    # --- work between reads

    def work(self) -> None:
        """Perform what waits for Kafka's answer. Cheap when nothing does."""
        now = self._clock()
        if self._activations:
            self._activate()
        if (self._to_take or self._to_locate) and now >= self._next_try:
            self._next_try = now + RETRY_S
            try:
                self._take_over()
                self._locate()
            except (KafkaException, KafkaUnavailableError) as error:
                log.warning("where to begin cannot be looked up now: %s", error)

    def _take_over(self) -> None:
        keys = sorted(self._to_take)
        if not keys:
            return
        commits = self.source.committed(keys, LOOKUP_TIMEOUT_S)
        topics, extents = look_up(self._admin, keys)
        for key in keys:
            event = take_over(key, commits[key], topics.get(key.keyspace), extents.get(key), self._catalog())
            if key in extents:  # (else the topic is gone, or not known yet to the broker that answered)
                self._to_take.discard(key)
            if isinstance(event, Refused):
                if key in self.tracker.partitions:
                    continue  # said already
                log.error("%s is not read: %s", key, event.reason)
            else:
                self._lows[key] = extents[key].low
                log.info("%s taken over at %s, version %d", key, event.offset, event.version)
            self.handle(event)

    def _locate(self) -> None:
        keys = sorted(self._to_locate)
        if not keys:
            return
        _, extents = look_up(self._admin, keys)
        for key in keys:
            self._to_locate.discard(key)
            state = self.tracker.partitions.get(key)
            if state is not None and key in extents:
                self._lows[key] = extents[key].low
                self.handle(first_place(key, extents[key], self._catalog(), has_commit=state.committed >= 0))

    def _activate(self) -> None:
        """Fenced commits that carry the new version (R13), of all partitions that are ready, and their
        answers."""
        activations, self._activations = self._activations, []
        if activations:
            self.source.commit([self._place(commit) for commit in activations], wait=True)

    # --- commits

    def tick(self) -> None:
        """Commit what is acknowledged, and try again what was refused."""
        self.handle(Tick())
        commits, self._commits = self._commits, []
        if commits:
            self.source.commit([self._place(commit) for commit in commits], wait=False)

    def _place(self, commit: Commit) -> tuple[Key, int, int, str]:
        record = self._catalog().keyspace(commit.key.keyspace)
        text = encode_metadata(commit.version, record.topic_id if record else "", commit.epoch)
        return commit.key, commit.offset, commit.epoch, text

    def _committed(self, key: Key, offset: int, epoch: int, metadata: str, error: KafkaError | None) -> None:
        version = decode_metadata(metadata).v
        if error is None:
            self.handle(CommitDone(key, offset, epoch, version))
            return
        fenced = error.code() not in _PASSING and not error.retriable()
        log.warning("commit of %s at %d was refused: %s", key, offset, error)
        self.handle(CommitFailed(key, version, fenced))

    # --- rebalances (within librdkafka's callbacks)

    def _assigned(self, keys: list[Key]) -> None:
        log.info("given %s", ", ".join(map(str, keys)))
        self._to_take.update(keys)
        self._next_try = 0.0

    def _given_back(self, keys: list[Key]) -> None:
        log.info("giving back %s", ", ".join(map(str, keys)))
        deadline = self._clock() + REVOKE_WAIT_S
        while not self.tracker.settled(keys) and self._clock() < deadline:
            self._wait(0.02)
        states = [self.tracker.partitions[key] for key in keys if key in self.tracker.partitions]
        last = [
            self._place(Commit(state.key, state.acked, state.acked_epoch, state.version, activation=False))
            for state in states
            if state.acked > state.committed >= 0
        ]
        if last:
            self.source.commit(last, wait=True)
        self._forget(keys)

    def _forget(self, keys: list[Key]) -> None:
        for key in keys:
            self.handle(Revoked(key))
            self._to_take.discard(key)
            self._to_locate.discard(key)
            self._lows.pop(key, None)
        self._activations = [commit for commit in self._activations if commit.key not in keys]
        self._commits = [commit for commit in self._commits if commit.key not in keys]

    def states(self, keyspace: str) -> list[PartitionState]:
        """Partitions of a keyspace whose place is known, in order."""
        return [
            state
            for key, state in sorted(self.tracker.partitions.items())
            if key.keyspace == keyspace and state.acked >= 0
        ]
