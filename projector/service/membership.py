"""The partitions of this process: taking them over, activating, committing, giving them back.

Theory of operation: `projector.progress.tracker` decides, this performs. What needs an answer from Kafka's
admin API (taking over, checking after a change of leader, first places) and what must be fenced
(activations) is kept in sets and done between reads, never inside librdkafka's callbacks; what fails is
tried again a moment later. Only giving partitions back
happens inside a callback, because the group waits for it: what is in flight is awaited for a short while,
then committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaError

from keytide.catalog.catalog import EMITTING, Catalog
from keytide.process.sync_points import reach
from keytide.settings.settings import Settings
from projector.progress.commits import decode_metadata, encode_metadata
from projector.progress.events import (
    AnnounceActivation,
    Check,
    Commit,
    CommitDone,
    CommitDue,
    CommitFailed,
    Doubted,
    Event,
    Instruction,
    Key,
    KeyspaceChanged,
    Locate,
    PausePartition,
    ReadFrom,
    Revoked,
    Rewound,
    TakeOver,
)
from projector.progress.partition import PartitionState
from projector.progress.tracker import Tracker
from projector.service.lookups import LOOKUP_TIMEOUT_S, LookUps
from projector.service.source import GroupMember
from projector.service.transport import Transport
from projector.service.waits import Waits

log = logging.getLogger(__name__)

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
        transport: makes the consumer, and asks for the past of topics.
        catalog: the catalog as it is now.
        wait: lets the producer's callbacks run, waiting at most so many seconds for the first.
        clock: seconds, monotonic.
        rewound: called when what was in flight is given up.
        waits: how long it waits for what.

    Attributes:
        tracker: state of every partition of ours.
        look_ups: what is asked of Kafka before they are read.
        announcements: partitions that became active since `take_announcements`.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        *,
        catalog: Callable[[], Catalog],
        wait: Callable[[float], None],
        clock: Callable[[], float],
        rewound: Callable[[int], None],
        waits: Waits = Waits(),
    ) -> None:
        self.tracker = Tracker()
        self._settings, self._transport, self._waits = settings, transport, waits
        self._catalog, self._wait, self._clock, self._rewound = catalog, wait, clock, rewound
        self._activations: list[Commit] = []
        self._commits: list[Commit] = []
        self._announcements: list[Key] = []
        self._views: dict[str, KeyspaceChanged] = {}
        self.look_ups = LookUps(
            transport,
            self.tracker,
            catalog=catalog,
            committed=lambda keys: self.source.committed(keys, LOOKUP_TIMEOUT_S),
            handle=self.handle,
            clock=clock,
            again_s=waits.look_up_again,
        )
        self.source = self._join()

    def _join(self) -> GroupMember:
        return GroupMember(
            self._settings,
            self._transport,
            clock=self._clock,
            assigned=self._assigned,
            revoked=self._given_back,
            lost=self._forget,
            committed=self._committed,
        )

    def rejoin(self) -> None:
        """Leave the group and join it again: the way out when librdkafka cannot bring a partition to its
        place."""
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
            case PausePartition(key):
                self.source.pause(key)
            case ReadFrom(key, offset):
                self.read_from(key, offset)
            case TakeOver(key):
                self._drop([key])
                self.look_ups.take([key], rolled_back=True)
            case Check(key):
                self.look_ups.check(key)
            case Locate(key):
                self.look_ups.locate(key)
            case Commit(activation=True):
                self._activations.append(instruction)
            case Commit():
                self._commits.append(instruction)
            case AnnounceActivation(key):
                self._announcements.append(key)
            case Rewound(polls):
                self._rewound(polls)

    def read_from(self, key: Key, offset: int) -> None:
        self.source.read_from(key, max(offset, self.look_ups.lows.get(key, 0)))

    def take_announcements(self) -> list[Key]:
        keys, self._announcements = self._announcements, []
        return [key for key in dict.fromkeys(keys) if key in self.tracker.partitions]

    # --- the catalog

    def learn(self, catalog: Catalog, suspended: set[str]) -> None:
        """Take in the catalog: which topics to read, which versions to activate."""
        views: dict[str, KeyspaceChanged] = {}
        for record in catalog.keyspaces():
            if record.version > 0:
                emitting = [
                    index.version
                    for index in catalog.indexes(record.name)
                    if index.state in EMITTING and index.version > 0 and index.id not in suspended
                ]
                views[record.name] = KeyspaceChanged(
                    record.name,
                    record.version,
                    min(emitting, default=0),
                    record.incarnation,
                    record.topic_id,
                )
        old, self._views = self._views, views
        changed = [view for name, view in sorted(views.items()) if old.get(name) != view]
        for view in changed:
            log.info("keyspace %s: version %d, indexes emit from %d, incarnation %d, topic %s", *view)
            self.handle(view)
        if any(view.topic_id != old[view.keyspace].topic_id for view in changed if view.keyspace in old):
            # librdkafka goes by the leader epochs of the topic that is gone: it may not read the new one's
            # partitions, whose epochs are smaller, for as long as it lives.
            self.rejoin()
        self.source.subscribe(sorted(views))

    # --- work between reads

    def work(self) -> None:
        """Perform what waits for Kafka's answer: fenced commits that carry the new version (R13), of all
        partitions that are ready, and look-ups. Cheap when nothing does."""
        activations, self._activations = self._activations, []
        if activations:
            reach("projector-before-commit")
            self.source.commit([self._place(commit) for commit in activations], wait=True)
        self.look_ups.work()

    def doubt(self, key: Key, epoch: int, why: str, bare: int = -1) -> None:
        """Read nothing more of a partition until its place is found to be on the log (`Doubted`)."""
        log.info("%s is looked at before it is read on: %s", key, why)
        self.handle(Doubted(key, epoch, bare))

    # --- commits

    def tick(self) -> None:
        """Commit what is acknowledged, and try again what was refused."""
        self.handle(CommitDue())
        commits, self._commits = self._commits, []
        if commits:
            reach("projector-before-commit")
            self.source.commit([self._place(commit) for commit in commits], wait=False)

    def _place(self, commit: Commit) -> tuple[Key, int, int, str]:
        record = self._catalog().keyspace(commit.key.keyspace)
        text = encode_metadata(
            commit.version,
            record.topic_id if record else "",
            commit.epoch,
            commit.incarnation,
            commit.tail,
        )
        return commit.key, commit.offset, commit.epoch, text

    def _committed(self, key: Key, offset: int, epoch: int, metadata: str, error: KafkaError | None) -> None:
        said = decode_metadata(metadata)
        if error is None:
            reach("projector-after-commit")
            self.handle(CommitDone(key, offset, epoch, said.v, said.i))
            return
        fenced = error.code() not in _PASSING and not error.retriable()
        log.warning("commit of %s at %d was refused: %s", key, offset, error)
        self.handle(CommitFailed(key, said.v, fenced, said.i))

    # --- rebalances (within librdkafka's callbacks)

    def _assigned(self, keys: list[Key]) -> None:
        log.info("given %s", ", ".join(map(str, keys)))
        self.look_ups.take(keys)

    def _given_back(self, keys: list[Key]) -> None:
        log.info("giving back %s", ", ".join(map(str, keys)))
        deadline = self._clock() + self._waits.revoke
        while not self.tracker.settled(keys) and self._clock() < deadline:
            self._wait(0.02)
        states = [self.tracker.partitions[key] for key in keys if key in self.tracker.partitions]
        last = [
            self._place(state.commit())
            for state in states
            if state.acked > state.committed >= 0 and state.phase != "STOPPED"
        ]
        if last and self.source.has_broker:  # (else it would wait for nobody)
            self.source.commit(last, wait=True)
        self._forget(keys)

    def _forget(self, keys: list[Key]) -> None:
        for key in keys:
            self.handle(Revoked(key))
        self.look_ups.forget(keys)
        self._drop(keys)

    def _drop(self, keys: list[Key]) -> None:
        """Nothing that is under way for these partitions counts any more."""
        self.look_ups.drop(keys)
        self._activations = [commit for commit in self._activations if commit.key not in keys]
        self._commits = [commit for commit in self._commits if commit.key not in keys]

    def states(self, keyspace: str, incarnation: int) -> list[PartitionState]:
        """Partitions of a keyspace whose place in this incarnation is known, in order."""
        return [
            state
            for key, state in sorted(self.tracker.partitions.items())
            if key.keyspace == keyspace and state.acked >= 0 and state.incarnation == incarnation
        ]
