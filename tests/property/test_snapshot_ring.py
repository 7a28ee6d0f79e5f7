"""What a ring keeps, against a model that looks through everything after each step."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indexer.hosting import snapshots
from indexer.hosting.snapshot_reader import SnapshotReader
from indexer.hosting.snapshots import SnapshotRing
from indexer.store.interface import UNNUMBERED, Applied, StoreSnapshot
from keytide.catalog.history import History
from keytide.catalog.records import RollbackRecord
from keytide.errors import RetryableError
from keytide.model.landmarks import rank
from keytide.model.timestamp import Timestamp
from tests import share
from tests.memory_store.store import MemorySliceStore

KEPT, AHEAD, LEASED = 2, 3, 4
NOW_TO_UNTIL = st.sampled_from([-3, 0, 2, 20, 60])


class Model:
    """The rules as they are told, by numbers alone."""

    def __init__(self) -> None:
        self.held: dict[int, dict[str, int]] = {}
        self.published = UNNUMBERED

    def trim(self, now: int) -> None:
        for leases in self.held.values():
            for holder in [holder for holder, until in leases.items() if until <= now]:
                del leases[holder]
        newest = sorted(self.held)[-KEPT:]
        ahead = [number for number in self.held if number > self.published and number not in newest]
        best = sorted(ahead, key=lambda number: (rank(number), number))[-(AHEAD + KEPT) :]
        for number in list(self.held):
            kept = number in newest or number in best or number == self.published
            if not kept and not self.held[number]:
                del self.held[number]

    def lease(self, number: int, holder: str, until: int) -> bool:
        leased = sum(1 for leases in self.held.values() if leases)
        if number not in self.held or (not self.held[number] and leased >= LEASED):
            return False
        self.held[number][holder] = until
        return True

    def roll_back(self, to: int) -> None:
        self.held = {number: leases for number, leases in self.held.items() if number <= to}
        if self.published not in self.held:
            self.published = max(self.held, default=UNNUMBERED)


class RingMachine(RuleBasedStateMachine):
    """A ring, its model, and every snapshot that was put into it."""

    def __init__(self) -> None:
        super().__init__()
        with patch.object(snapshots, "AHEAD_LIMIT", AHEAD):
            self.ring = SnapshotRing(KEPT)
        self.model = Model()
        self.store = MemorySliceStore(Applied())
        self.made: list[tuple[int, StoreSnapshot]] = []
        self.readers: list[tuple[SnapshotReader, StoreSnapshot]] = []
        self.newest, self.now = 0, 0

    @rule(step=st.sampled_from([1, 1, 1, 2]), by=st.integers(0, 5))
    def commit(self, step: int, by: int) -> None:
        self.newest += step
        self.now += by
        self._add(self.newest)

    @rule(back=st.integers(0, 8))
    def commit_once_more(self, back: int) -> None:
        self._add(max(0, self.newest - back))

    @rule()
    def commit_without_a_number(self) -> None:
        self._add(UNNUMBERED)

    def _add(self, number: int) -> None:
        snapshot = self.store.snapshot()
        self.made.append((number, snapshot))
        self.ring.add(snapshot, number, self.now)
        if number != UNNUMBERED:
            self.model.held[number] = {}
        self.model.trim(self.now)

    @rule(back=st.integers(-2, 12))
    def publish(self, back: int) -> None:
        number = self.newest - back
        self.ring.publish(number, self.now)
        if number > self.model.published:
            self.model.published = number
            self.model.trim(self.now)

    @rule(data=st.data(), holder=st.sampled_from("abc"), more=NOW_TO_UNTIL)
    def lease(self, data: st.DataObject, holder: str, more: int) -> None:
        number = data.draw(st.sampled_from([*sorted(self.model.held), 99_999]))
        with patch.object(snapshots, "LEASED_LIMIT", LEASED):
            given = self.ring.lease(number, holder, self.now + more)
        assert given == self.model.lease(number, holder, self.now + more)

    @rule(by=st.integers(0, 30))
    def expire(self, by: int) -> None:
        self.now += by
        self.ring.expire(self.now)
        self.model.trim(self.now)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*sorted(self.model.held), 99_999]))
        reader = self.ring.acquire(number)
        assert (reader is not None) == (number in self.model.held)
        if reader is not None:
            self.readers.append((reader, next(one for n, one in reversed(self.made) if n == number)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))[0].release()

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.newest = data.draw(st.sampled_from(sorted(self.model.held)))
        record = RollbackRecord("users", 1, self.newest, Timestamp(), "", "truncated", at=0)
        self.ring.roll_back(History([record], "", 1))
        self.model.roll_back(self.newest)
        self._add(UNNUMBERED)

    @invariant()
    def the_same_is_held(self) -> None:
        assert self.ring.numbers() == sorted(self.model.held)
        assert self.ring.newest() == max(self.model.held, default=UNNUMBERED)
        leased = {n for n, leases in self.model.held.items() if max(leases.values(), default=0) > self.now}
        assert self.ring.in_use(self.now) >= len(leased)

    @invariant()
    def what_is_held_or_read_is_open_and_nothing_else(self) -> None:
        newest_of = dict(self.made)
        tip = self.made[-1:]
        needed = [one for number, one in newest_of.items() if number in self.model.held]
        needed += [one for _, one in tip] + [one for _, one in self.readers]
        for _, snapshot in self.made:
            assert _open(snapshot) == any(snapshot is one for one in needed)


def _open(snapshot: StoreSnapshot) -> bool:
    try:
        list(snapshot.rows())
    except RetryableError:
        return False
    return True


RingMachine.TestCase.settings = settings(
    max_examples=share.examples(400), stateful_step_count=60, deadline=None
)
test_a_ring_keeps_what_its_model_keeps = RingMachine.TestCase
