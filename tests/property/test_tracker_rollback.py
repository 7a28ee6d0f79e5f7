"""Projectors, a group, slices and a coordinator around a source that loses records, in random order.

The source is two logs of records with leader epochs. An unclean election cuts a log and goes on with other
records. Two projectors (real trackers, real places; one is a zombie at times, and hears of rollbacks late)
read, send, commit and take over. Slices obey R10 and R30, and let go of what an election has lost. The
coordinator rolls back to a stamp that is on the logs, in every partition.

What must hold, always: a slice takes a segment only behind the very records that the segment's reader read
before it; nothing below a commit, cut by later rollbacks, is missing in any slice. In the end every slice is
the source.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    KeyspaceRecord,
    Record,
    RollbackRecord,
    encode_record,
    record_key,
)
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import KeytideError
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place, Timestamp
from projector.progress import commits as places
from projector.progress.commits import (
    Committed,
    beginning,
    check,
    decode_metadata,
    encode_metadata,
    first_place,
    take_over,
)
from projector.progress.events import (
    Check,
    Commit,
    CommitDone,
    CommitDue,
    CommitFailed,
    Delivered,
    Doubted,
    Instruction,
    Key,
    KeyspaceChanged,
    Locate,
    PausePartition,
    Polled,
    Reached,
    ReadFrom,
    Revoked,
    SendFailed,
    TakeOver,
)
from projector.progress.partition import PartitionState
from projector.progress.tracker import Tracker
from tests import share

KEYSPACE = "orders"
KEYS = (Key(KEYSPACE, 0), Key(KEYSPACE, 1))
Entry = tuple[int, int]
"""(leader epoch, number of the record): no two records are alike."""


class Sent(NamedTuple):
    """A segment for the index `of`: `before` is everything that its reader's log held below `start`."""

    of: int
    incarnation: int
    key: Key
    start: int
    before: tuple[Entry, ...]
    entries: tuple[Entry, ...]


class Log:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.epoch = 0

    def history(self) -> PartitionHistory:
        ends = {epoch: at + 1 for at, (epoch, _) in enumerate(self.entries)}
        ends.setdefault(self.epoch, len(self.entries))
        size = len(self.entries)
        return PartitionHistory(0, size, self.epoch, tuple(sorted(ends.items())), size)


class World:
    settles = True
    """Whether slices let go of what an election has lost."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.logs = {key: Log() for key in KEYS}
        self.numbers = 0
        self.topic_id = "T0"
        self.catalog = Catalog()
        self.known = [Catalog(), Catalog()]
        """The catalog as each projector has read it."""
        self.incarnation = 0
        self.version = 1
        self.slices: dict[int, dict[Key, list[Entry]]] = {}
        """Index (named by its version) -> what it has heard; a build brings what lies below its start."""
        self.stamps: list[tuple[int, Timestamp]] = []
        self.commits: dict[Key, Committed] = {}
        self.owner = 0
        self.trackers = [Tracker(), Tracker()]
        self.flights: list[list[tuple[int, list[Sent]]]] = [[], []]
        self.reading: list[set[Key]] = [set(), set()]
        self.polls = 0
        self.rollbacks = self.losses = 0
        for _ in range(10):
            self.write()
        self.put(self.index(1), self.build_record(1), self.keyspace())
        self.learn(0)
        self.assign()

    # --- the dictionary

    def put(self, *records: Record) -> None:
        for record in records:
            self.catalog.apply(record_key(record), encode_record(record), 0)

    def index(self, version: int) -> IndexRecord:
        parsed = parse_statement(f"CREATE INDEX i{version} ON {KEYSPACE} (city) WITH (slices=1)")
        assert isinstance(parsed, CreateIndex)
        id_ = f"i{version}"
        return IndexRecord(id_, parsed.definition, "READY", version, [], f"b{version}", 0)

    def build_record(self, version: int, low: dict[int, int] | None = None) -> BuildRecord:
        load = Timestamp({key.partition: Place(len(log.entries)) for key, log in self.logs.items()})
        return BuildRecord(
            f"b{version}",
            KEYSPACE,
            [f"i{version}"],
            "READY",
            load,
            0,
            low_watermark=low or {},
            incarnation=self.incarnation,
        )

    def keyspace(self) -> KeyspaceRecord:
        return KeyspaceRecord(KEYSPACE, self.topic_id, len(KEYS), self.version, self.incarnation)

    def learn(self, who: int) -> None:
        self.known[who] = self.catalog.copy()
        record = self.catalog.keyspace(KEYSPACE)
        assert record is not None
        view = KeyspaceChanged(KEYSPACE, record.version, 1, record.incarnation, record.topic_id)
        self.run(who, self.trackers[who].handle(view))

    # --- the projectors' shells

    def assign(self) -> None:
        for key in KEYS:
            self.take_over(self.owner, key)

    def history(self) -> LogHistory:
        return LogHistory(self.topic_id, {key.partition: log.history() for key, log in self.logs.items()})

    def take_over(self, who: int, key: Key) -> None:
        if who != self.owner:
            return  # the group tells it nothing
        begin = beginning(key, self.commits.get(key, Committed(None, -1, "")), self.known[who])
        history = self.history()
        parting = history.parting(key.partition, begin.place or Place(0))
        event = take_over(key, begin, history, parting, self.known[who])
        self.run(who, self.trackers[who].handle(event))

    def run(self, who: int, instructions: Iterable[Instruction]) -> None:
        tracker = self.trackers[who]
        for instruction in instructions:
            match instruction:
                case PausePartition(key):
                    self.reading[who].discard(key)
                case ReadFrom(key, _):
                    self.reading[who].add(key)
                case TakeOver(key):
                    self.take_over(who, key)
                case Check(key):
                    state, history = tracker.partitions[key], self.history()
                    place = Place(state.position, state.position_epoch)
                    parting = history.parting(key.partition, place)
                    answer = check(key, place, state.incarnation, history, parting, self.known[who])
                    self.run(who, tracker.handle(answer))
                case Locate(key):
                    has_commit = tracker.partitions[key].committed >= 0
                    known = self.logs[key].history()
                    place_event = first_place(key, known, self.known[who], has_commit=has_commit)
                    self.run(who, tracker.handle(place_event))
                case Commit():
                    self.commit(who, instruction)
                case _:
                    pass

    def commit(self, who: int, commit: Commit) -> None:
        key, tracker = commit.key, self.trackers[who]
        record = self.known[who].keyspace(KEYSPACE)
        if who != self.owner or record is None or self.random.random() < 0.1:
            fenced = who != self.owner
            failed = CommitFailed(key, commit.version, fenced, commit.incarnation)
            return self.run(who, tracker.handle(failed))
        text = encode_metadata(commit.version, record.topic_id, commit.epoch, commit.incarnation, commit.tail)
        self.commits[key] = Committed(commit.offset, commit.epoch, text)
        for index in range(1, commit.version + 1):
            if index not in self.slices or key not in self.slices[index]:
                below = self.logs[key].entries[: commit.offset]  # a build would bring these,
                while len(below) < commit.offset:  # or what it had read before it was lost
                    below.append((commit.epoch, -len(below)))
                self.slices.setdefault(index, {})[key] = below
                low = dict(self.low(index))
                low[key.partition] = commit.offset
                self.put(self.build_record(index, low))
        self.check_commit(key)
        done = CommitDone(key, commit.offset, commit.epoch, commit.version, commit.incarnation)
        return self.run(who, tracker.handle(done))

    def low(self, index: int) -> dict[int, int]:
        build = self.catalog.build(f"b{index}")
        return build.low_watermark if build else {}

    def check_commit(self, key: Key) -> None:
        """Nothing below the commit is missing in the slices of indexes that were active then."""
        commit = self.commits[key]
        said = decode_metadata(commit.metadata)
        limit = History.of(self.catalog, KEYSPACE).limit(said.i)
        assert commit.offset is not None
        offset = commit.offset if limit is None else min(commit.offset, limit.offset(key.partition))
        for index, heard in self.slices.items():
            if index <= said.v and key in heard:
                assert len(heard[key]) >= offset, f"index {index} of {key} at {len(heard[key])}, {commit}"

    def poll(self, who: int) -> None:
        tracker = self.trackers[who]
        if len(self.flights[who]) > 3:
            return
        reached: dict[Key, Reached] = {}
        sent: list[Sent] = []
        for state in tracker.running():
            key, log = state.key, self.logs[state.key]
            if key not in self.reading[who] or self.random.random() < 0.3:
                continue
            if state.position > len(log.entries):
                self.run(who, tracker.handle(Doubted(key)))  # librdkafka: out of range
                continue
            end = min(len(log.entries), state.position + self.random.randint(0, 5))
            entries = tuple(log.entries[state.position : end])
            strange = state.strange(epoch for epoch, _ in entries)
            if strange is not None:
                self.run(who, tracker.handle(Doubted(key, strange)))
                continue
            before = tuple(log.entries[: state.position])
            reached[key] = Reached(end, entries[-1][0] if entries else state.position_epoch)
            sent += [
                Sent(index, state.incarnation, key, state.position, before, entries)
                for index in range(1, state.version + 1)
            ]
        if reached:
            self.polls += 1
            self.run(who, tracker.handle(Polled(self.polls, len(sent), reached)))
            self.flights[who].append((self.polls, sent))

    # --- slices

    def deliver(self, who: int) -> None:
        if not self.flights[who]:
            return
        poll, sent = self.flights[who].pop(0)
        lost: set[int] = set()
        for segment in sent:
            if segment.of in lost:
                continue
            outstanding = poll in self.trackers[who].outstanding
            if outstanding and self.random.random() < 0.05:  # and what the producer holds behind it
                lost.add(segment.of)
                self.flights[who] = [
                    (later, [one for one in some if one.of != segment.of])
                    for later, some in self.flights[who]
                ]
                self.run(who, self.trackers[who].handle(SendFailed(poll)))
                continue
            self.hear(segment)
            self.run(who, self.trackers[who].handle(Delivered(poll)))

    def hear(self, segment: Sent) -> None:
        heard = self.slices.get(segment.of, {}).get(segment.key)
        if heard is None:
            return  # the activation of that index did not come through: nobody waits for it
        entries, at = list(segment.entries), len(heard)
        limit = History.of(self.catalog, KEYSPACE).limit(segment.incarnation)
        if limit is not None:  # before every other test (R30)
            entries = entries[: max(0, limit.offset(segment.key.partition) - segment.start)]
        if (
            self.settles
        ):  # what an election has lost, whose sender died before it told (indexer.slice.mutation_queue)
            overlap = zip(range(segment.start, at), entries, strict=False)
            lost = next((offset for offset, entry in overlap if entry[0] > heard[offset][0]), at)
            del heard[lost:]
            at = len(heard)
        if not segment.start <= at < segment.start + len(entries):
            return
        if self.settles and heard and entries[at - segment.start][0] < heard[-1][0]:
            return  # of a log that is gone
        before = [*segment.before, *entries[: at - segment.start]]
        assert heard == before, f"{segment} is heard behind other records: {heard}"
        heard += entries[at - segment.start :]

    # --- the coordinator

    def stamp(self) -> None:
        """Of what the owner has acknowledged in this incarnation."""
        tracker = self.trackers[self.owner]
        states = [tracker.partitions.get(key) for key in KEYS]
        if any(s is None or s.acked < 0 or s.incarnation != self.incarnation for s in states):
            return
        acked = {s.key.partition: Place(s.acked, s.acked_epoch) for s in states if s is not None}
        stamp = Timestamp(acked, self.topic_id)
        if self.stamps:
            newest = self.stamps[-1][1]
            later = {p: newest.place(p) for p, at in acked.items() if at.epoch != newest.place(p).epoch >= 0}
            if self.history().diverging(later):
                self.roll_back(certain=True)
                return
        if not self.stamps or stamp.covers(self.stamps[-1][1]):
            self.stamps.append((len(self.stamps), stamp))

    def roll_back(self, *, certain: bool = False) -> None:
        """When a projector says that something is lost (a zombie's word of an older time does not count)."""
        history = self.history()
        if not certain and not any(
            state.lost and state.incarnation == self.incarnation
            for tracker in self.trackers
            for state in tracker.partitions.values()
        ):
            return
        cut = (-1, Timestamp())
        while self.stamps and cut[0] < 0:
            number, stamp = self.stamps[-1]
            if history.diverging(stamp.places):
                self.stamps.pop()
            else:
                cut = (number, stamp)
        self.incarnation += 1
        self.rollbacks += 1
        rollback = RollbackRecord(KEYSPACE, self.incarnation, cut[0], cut[1], self.topic_id, "truncated", 0)
        self.put(rollback, self.keyspace())
        for heard in self.slices.values():
            for key, entries in heard.items():
                del entries[cut[1].offset(key.partition) :]

    # --- what happens

    def write(self) -> None:
        log = self.logs[self.random.choice(KEYS)]
        for _ in range(self.random.randint(0, 4)):
            self.numbers += 1
            log.entries.append((log.epoch, self.numbers))

    def elect(self) -> None:
        log = self.logs[self.random.choice(KEYS)]
        log.epoch += self.random.randint(1, 2)
        if self.random.random() < 0.7:
            lost = self.random.randint(0, 6)
            self.losses += bool(log.entries and lost)
            del log.entries[max(0, len(log.entries) - lost) :]

    def rebalance(self) -> None:
        """The old owner may not hear of it for a while: a zombie, whose commits are fenced."""
        if self.random.random() < 0.5:
            for key in KEYS:
                self.run(self.owner, self.trackers[self.owner].handle(Revoked(key)))
        self.owner = 1 - self.owner
        if self.random.random() < 0.5:
            self.trackers[self.owner] = Tracker()
            self.flights[self.owner] = []
        for key in KEYS:
            self.run(self.owner, self.trackers[self.owner].handle(Revoked(key)))
        self.reading[self.owner] = set()
        self.learn(self.owner)
        self.assign()

    def build(self) -> None:
        self.version += 1
        self.put(self.index(self.version), self.build_record(self.version), self.keyspace())

    def step(self) -> None:
        who = self.random.choice((0, 1))
        roll = self.random.random()
        if roll < 0.15:
            self.write()
        elif roll < 0.40:
            self.poll(who)
        elif roll < 0.66:
            self.deliver(who)
        elif roll < 0.78:
            self.run(who, self.trackers[who].handle(CommitDue()))
        elif roll < 0.83:
            self.stamp()
        elif roll < 0.87:
            self.learn(who)
        elif roll < 0.92:
            self.roll_back()
        elif roll < 0.955:
            self.elect()
        elif roll < 0.98:
            self.rebalance()
        elif self.version < 4 and roll < 0.985:
            self.build()

    def settle(self) -> None:
        """Quiet weather: everything that is there arrives in the end."""
        for log in self.logs.values():  # a write by the newest leader, so that its epoch is seen
            self.numbers += 1
            log.entries.append((log.epoch, self.numbers))
        self.random.random = lambda: 0.99  # type: ignore[method-assign]
        for _ in range(120):
            for who in (0, 1):
                self.deliver(who)
            self.stamp()
            self.roll_back()
            self.learn(self.owner)
            self.poll(self.owner)
            self.run(self.owner, self.trackers[self.owner].handle(CommitDue()))


@pytest.mark.parametrize("seed", share.seeds(320))
def test_slices_are_the_source_whatever_was_lost(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.settle()
    assert set(world.slices) == set(range(1, world.version + 1))
    for heard in world.slices.values():
        assert heard == {key: log.entries for key, log in world.logs.items()}
    for key, log in world.logs.items():
        assert world.commits[key].offset == len(log.entries)


def test_the_weather_is_bad_enough() -> None:
    """The histories above have rollbacks, and several of them."""
    rollbacks = []
    for seed in range(30):
        world = World(seed)
        for _ in range(400):
            world.step()
        rollbacks.append(world.rollbacks)
    assert sum(1 for count in rollbacks if count >= 2) > 5, rollbacks


class _NoHistory(History):
    """Knows of no rollback."""

    @classmethod
    def of(cls, catalog: Catalog, keyspace: str) -> History:
        return History(incarnation=History.of(catalog, keyspace).incarnation)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a new leader is not asked": (PartitionState, "strange", lambda *_: None),
    "a commit counts past the cut": (places, "History", _NoHistory),
    "slices keep what was lost": (World, "settles", False),
    "a rollback is not taken up": (
        Tracker,
        "_changed",
        lambda self, event, whole=Tracker._changed: whole(self, event._replace(incarnation=0)),
    ),
    "commits do not name their incarnation": (
        PartitionState,
        "commit",
        lambda self, whole=PartitionState.commit: whole(self)._replace(incarnation=9),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_rule_is_needed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any of the rules switched off, some history goes wrong."""
    monkeypatch.setattr(*MUTANTS[mutant])
    assert any(_wrong(seed) for seed in range(300))


def _wrong(seed: int) -> bool:
    try:
        test_slices_are_the_source_whatever_was_lost(seed)
    except (AssertionError, KeytideError):
        return True
    return False
