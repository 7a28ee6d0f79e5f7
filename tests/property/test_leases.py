"""Leases of many clients: whatever one does, another's first page has room."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.scan.peer.messages import LeaseRequest
from indexer.scan.plan.leases import TAIL, LeaseRegistry, TooManyLeasesError
from keytide.process.clock import now_ms
from tests import share
from tests.unit.scan_world import FakeSnapshot, FakeView, World

INDEX = "i-1"
LEASE_MS = 10_000
CLIENTS = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(["", "hold-", TAIL])


@dataclass
class Books:
    """A book of leases, a clock, and a slice that holds every snapshot that was asked for."""

    limit: int = 12
    per_client: int = 4
    now: int = field(default_factory=lambda: now_ms() + 3_600_000)
    newest: int = 0
    view: FakeView = field(init=False)
    book: LeaseRegistry = field(init=False)

    def __post_init__(self) -> None:
        world = World("CREATE INDEX i ON users (a) WITH (slices=1)", node_count=1)
        self.view = world.views["n0"]
        self.book = LeaseRegistry(self.view, self.limit, per_client=self.per_client)

    def snapshot(self) -> int:
        """The number of a new one."""
        self.newest += 1
        like = World("CREATE INDEX i ON users (a) WITH (slices=1)", node_count=1)
        like.commit(self.newest, {"i": []})
        made: FakeSnapshot = like.views["n0"].slices[INDEX, 0].snapshots[self.newest]
        self.view.slices[INDEX, 0].add(made, -1)
        return self.newest

    def keep(self, number: int, client: str, hold: str = "", *, in_use: bool = False) -> None:
        asked = LeaseRequest(INDEX, number, 0, [0], LEASE_MS, in_use, hold, client)
        assert self.book.keep(asked, self.now) == []

    def leave(self, number: int, hold: str) -> None:
        """Whoever had a hold is gone, and may come again."""
        self.book.keep(LeaseRequest(INDEX, number, 0, [0], LEASE_MS, True, hold, idle=True), self.now)

    def first_page(self, client: str) -> int:
        number = self.snapshot()
        self.keep(number, client)
        return number

    def kept(self) -> set[int]:
        slices = self.view.slices[INDEX, 0].snapshots
        return {n for n, one in slices.items() if any(until > self.now for until in one.leases.values())}


class Readers(RuleBasedStateMachine):
    """Clients that page, hold, tail, end and go away, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.firm: dict[tuple[str, str], set[int]] = {}
        self.holds: list[tuple[int, str, str]] = []

    @rule(client=CLIENTS, passed=st.sampled_from([0, 50, 5_000]))
    def a_first_page_always_has_room(self, client: str, passed: int) -> None:
        self.books.now += passed
        number = self.books.first_page(client)
        assert number in self.books.kept()

    @rule(client=CLIENTS, kind=KINDS, again=st.booleans())
    def something_firm(self, client: str, kind: str, again: bool) -> None:
        books = self.books
        number = books.newest if again and books.newest else books.snapshot()
        hold = f"{kind}{client}{number}" if kind else ""
        try:
            books.keep(number, client, hold, in_use=True)
        except TooManyLeasesError:
            return
        if hold:
            self.holds.append((number, hold, client))

    @rule(data=st.data(), ends=st.booleans())
    def something_ends(self, data: st.DataObject, ends: bool) -> None:
        if not self.holds:
            return
        number, hold, _ = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        if ends:
            self.books.book.give_back(INDEX, number, hold, self.books.now)
        else:
            self.books.leave(number, hold)

    @invariant()
    def no_more_is_kept_than_may_be(self) -> None:
        assert len(self.books.kept()) <= self.books.limit


TestReaders = Readers.TestCase
TestReaders.settings = settings(max_examples=share.examples(100), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("kind", ["", "hold-", TAIL])
def test_one_client_is_refused_and_others_are_not(kind: str) -> None:
    """400 holds, or 400 tails opened and ended, made every paged scan of the index answer 503."""
    books = Books(limit=400, per_client=100)
    refused: list[tuple[int, object]] = []
    for at in range(500):
        try:
            books.keep(books.snapshot(), "greedy", f"{kind}{at}" if kind else "", in_use=True)
        except TooManyLeasesError as error:
            refused.append((error.status, error.extra["retry_after_s"]))
    assert refused == [(429, 11)] * 400
    number = books.first_page("modest")
    books.keep(number, "modest", in_use=True)
    books.keep(books.snapshot(), "modest", "hold-x")
    assert number in books.kept()


def test_tails_that_ended_make_room() -> None:
    books = Books(limit=400, per_client=100)
    told: list[int] = []
    for at in range(500):
        told.append(books.snapshot())
        books.keep(told[-1], "one", f"{TAIL}{at}", in_use=True)
        books.leave(told[-1], f"{TAIL}{at}")
    assert books.first_page("other") in books.kept()
    assert set(told[-300:]) <= books.kept()  # they can be gone on from while there is room
    assert 0 in books.book.lasting(INDEX, told[-1], f"{TAIL}499", books.now)


def test_many_references_to_one_snapshot_count_once() -> None:
    books = Books(limit=8, per_client=2)
    number = books.snapshot()
    for at in range(30):
        books.keep(number, "one", f"hold-{at}")
    books.keep(books.snapshot(), "one", "hold-x")
    with pytest.raises(TooManyLeasesError) as caught:
        books.keep(books.snapshot(), "one", "hold-y")
    assert caught.value.status == 429
    for at in range(30):
        books.book.give_back(INDEX, number, f"hold-{at}", books.now)
        assert (number in books.kept()) is (at < 29)


def test_who_has_most_gives_way_to_who_has_fewer() -> None:
    books = Books(limit=8, per_client=6)
    first: list[int] = []
    for at in range(6):
        first.append(books.snapshot())
        books.keep(first[-1], "greedy", f"hold-{at}")
    for at in range(3):
        number = books.snapshot()
        books.keep(number, "modest", f"hold-m{at}")
        assert number in books.kept()
    assert books.kept().isdisjoint(first[:3])
    with pytest.raises(TooManyLeasesError) as caught:
        books.keep(books.snapshot(), "modest", "hold-more")
    assert caught.value.status == 503
