"""The projector's tracker: order of acknowledgement, activation, resets; and a randomised world around it."""

from __future__ import annotations

import random

import pytest

from keytide.errors import InvariantViolationError
from projector.progress.events import (
    AnnounceActivation,
    Assigned,
    Check,
    Checked,
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
    Located,
    PausePartition,
    Polled,
    Reached,
    ReadFrom,
    Refused,
    Revoked,
    Rewound,
    SendFailed,
)
from projector.progress.tracker import Tracker
from tests import share

A, B = Key("orders", 0), Key("orders", 1)


def is_running(tracker: Tracker) -> bool:
    """Whether it reads A."""
    return tracker.partitions.get(A) in tracker.running()


def running(*keys: Key, version: int = 1, offset: int = 100) -> Tracker:
    """A tracker whose partitions run at `version` from `offset`, all committed."""
    tracker = Tracker()
    tracker.handle(KeyspaceChanged("orders", version, 1))
    for key in keys:
        assert ReadFrom(key, offset) in tracker.handle(Assigned(key, offset, version, 0))
    return tracker


def commits(instructions: list[Instruction]) -> list[Commit]:
    return [i for i in instructions if isinstance(i, Commit)]


def test_an_answer_to_a_commit_of_before_a_second_take_over_is_none_to_a_commit_of_ours() -> None:
    """A partition that had no commit when it was taken over must not pass for one that had."""
    tracker = Tracker()
    tracker.handle(KeyspaceChanged("orders", 1, 1))
    assert Locate(A) in tracker.handle(Assigned(A, None, 0, -1))
    tracker.handle(Located(A, 0))
    assert Locate(A) in tracker.handle(Assigned(A, None, 0, -1))
    assert tracker.handle(CommitDone(A, 0, -1, 1)) == []
    assert tracker.partitions[A].committed == -1
    tracker.handle(Located(A, 0))
    assert ReadFrom(A, 0) in tracker.handle(CommitDone(A, 0, -1, 1))
    assert tracker.partitions[A].committed == 0


class TestDoubt:
    def test_a_range_without_a_record_is_passed_when_the_place_was_looked_at_since(self) -> None:
        tracker = Tracker()
        tracker.handle(KeyspaceChanged("orders", 1, 1))
        tracker.handle(Assigned(A, 100, 1, 3, leader_epoch=3))
        state = tracker.partitions[A]
        assert state.strange([3]) is None
        assert state.strange([4]) == 4, "a marker of a later leader"
        assert state.strange([2]) == 2, "a marker of an older one"
        assert not state.unlooked(105, 3)
        assert state.unlooked(105, -1)
        assert tracker.handle(Doubted(A, -1, 105)) == [PausePartition(A), Check(A)]
        assert tracker.handle(Checked(A, 4)) == [ReadFrom(A, 100)]
        assert not state.unlooked(105, -1)
        assert state.unlooked(106, -1), "what came since was not there then"
        tracker.handle(Polled(1, 1, {A: Reached(105, 3, 5)}))
        assert state.unlooked(106, -1)
        tracker.handle(SendFailed(1))
        assert state.unlooked(105, -1), "another place than the one that was looked at"

    def test_what_could_not_be_asked_is_not_asked_again_and_again(self) -> None:
        tracker = running(A)
        assert not tracker.partitions[A].unlooked(105, -1)


class TestAcknowledgement:
    def test_a_poll_counts_when_its_last_message_is_delivered(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 2, {A: Reached(110, 0)}))
        tracker.handle(Delivered(1))
        assert tracker.partitions[A].acked == 100
        tracker.handle(Delivered(1))
        assert tracker.partitions[A].acked == 110
        assert not tracker.outstanding

    def test_polls_that_end_out_of_order_move_partitions_in_order(self) -> None:
        tracker = running(A, B)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0)}))
        tracker.handle(Polled(2, 1, {A: Reached(120, 0), B: Reached(130, 0)}))
        tracker.handle(Delivered(2))
        assert (tracker.partitions[A].acked, tracker.partitions[B].acked) == (100, 130)
        tracker.handle(Delivered(1))
        assert tracker.partitions[A].acked == 120

    def test_a_poll_without_messages_is_acknowledged_at_once(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 0, {A: Reached(110, 0)}))
        assert tracker.partitions[A].acked == 110

    def test_only_what_is_acknowledged_is_committed_and_only_once(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 1, {A: Reached(110, 3)}))
        tracker.handle(Polled(2, 1, {A: Reached(120, 3)}))
        tracker.handle(Delivered(1))
        assert commits(tracker.handle(CommitDue())) == [Commit(A, 110, 3, 1, activation=False)]
        assert commits(tracker.handle(CommitDue())) == []
        tracker.handle(CommitDone(A, 110, 3, 1))
        tracker.handle(Delivered(2))
        assert commits(tracker.handle(CommitDue())) == [Commit(A, 120, 3, 1, activation=False)]

    def test_a_position_never_goes_back(self) -> None:
        tracker = running(A)
        with pytest.raises(InvariantViolationError, match="Contiguous"):
            tracker.handle(Polled(1, 1, {A: Reached(99, 0)}))

    def test_deliveries_of_a_partition_that_is_gone_do_no_harm(self) -> None:
        tracker = running(A, B)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0), B: Reached(110, 0)}))
        tracker.handle(Revoked(A))
        tracker.handle(Delivered(1))
        assert tracker.partitions[B].acked == 110
        assert A not in tracker.partitions


class TestReset:
    def test_a_failed_send_resumes_every_partition_from_what_is_acknowledged(self) -> None:
        tracker = running(A, B)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0)}))
        tracker.handle(Polled(2, 1, {A: Reached(115, 0), B: Reached(120, 0)}))
        tracker.handle(Polled(3, 1, {B: Reached(130, 0)}))
        tracker.handle(Delivered(2))
        assert tracker.handle(SendFailed(1)) == [Rewound(2), ReadFrom(A, 100), ReadFrom(B, 120)]
        assert (tracker.partitions[A].position, tracker.partitions[B].position) == (100, 120)

    def test_news_of_polls_that_were_given_up_is_ignored(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 2, {A: Reached(110, 0)}))
        tracker.handle(Polled(2, 1, {A: Reached(120, 0)}))
        tracker.handle(SendFailed(1))
        assert tracker.handle(SendFailed(2)) == []
        assert tracker.handle(Delivered(2)) == []
        assert tracker.partitions[A].acked == 100

    def test_a_fenced_commit_resets(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0)}))
        tracker.handle(Delivered(1))
        tracker.handle(CommitDue())
        assert ReadFrom(A, 110) in tracker.handle(CommitFailed(A, 1, fenced=True))

    def test_a_commit_that_failed_for_a_while_is_tried_again(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0)}))
        tracker.handle(Delivered(1))
        tracker.handle(CommitDue())
        assert tracker.handle(CommitFailed(A, 1, fenced=False)) == []
        assert commits(tracker.handle(CommitDue())) == [Commit(A, 110, 0, 1, activation=False)]


class TestActivation:
    def test_a_partition_without_a_commit_starts_where_the_shell_finds_it(self) -> None:
        tracker = Tracker()
        tracker.handle(KeyspaceChanged("orders", 3, 3))
        assert tracker.handle(Assigned(A, None, 0, -1)) == [PausePartition(A), Locate(A)]
        assert tracker.handle(Located(A, 500)) == [Commit(A, 500, -1, 3, activation=True)]
        assert not is_running(tracker)
        assert tracker.handle(CommitDone(A, 500, -1, 3)) == [ReadFrom(A, 500), AnnounceActivation(A)]
        assert tracker.partitions[A].activated_at == 500

    def test_a_new_version_waits_until_nothing_is_in_flight(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0)}))
        assert tracker.handle(KeyspaceChanged("orders", 2, 1)) == [PausePartition(A)]
        assert not is_running(tracker)
        assert tracker.handle(Delivered(1)) == [Commit(A, 110, 0, 2, activation=True)]
        assert tracker.handle(CommitDone(A, 110, 0, 2)) == [ReadFrom(A, 110), AnnounceActivation(A)]
        assert tracker.partitions[A].version == 2

    def test_a_send_that_fails_while_draining_activates_where_all_is_acknowledged(self) -> None:
        tracker = running(A)
        tracker.handle(Polled(1, 1, {A: Reached(110, 0)}))
        tracker.handle(Polled(2, 1, {A: Reached(120, 0)}))
        tracker.handle(KeyspaceChanged("orders", 2, 1))
        tracker.handle(Delivered(1))
        assert tracker.handle(SendFailed(2)) == [Rewound(1), Commit(A, 110, 0, 2, activation=True)]
        assert tracker.handle(CommitDone(A, 110, 0, 2)) == [ReadFrom(A, 110), AnnounceActivation(A)]

    def test_an_activation_that_fails_is_tried_again_on_the_next_tick(self) -> None:
        tracker = running(A)
        tracker.handle(KeyspaceChanged("orders", 2, 1))
        assert tracker.handle(CommitFailed(A, 2, fenced=True)) == []
        assert not is_running(tracker)
        assert tracker.handle(CommitDue()) == [Commit(A, 100, 0, 2, activation=True)]

    def test_a_version_that_came_meanwhile_is_activated_too_before_anything_is_sent(self) -> None:
        tracker = running(A)
        tracker.handle(KeyspaceChanged("orders", 2, 1))
        assert tracker.handle(KeyspaceChanged("orders", 3, 1)) == []
        assert tracker.handle(CommitDone(A, 100, 0, 2)) == [Commit(A, 100, 0, 3, activation=True)]
        assert tracker.handle(CommitDone(A, 100, 0, 3)) == [ReadFrom(A, 100), AnnounceActivation(A)]

    def test_a_new_owner_waits_for_the_version_of_the_commit(self) -> None:
        tracker = Tracker()
        tracker.handle(KeyspaceChanged("orders", 4, 1))
        assert tracker.handle(Assigned(A, 100, 5, 0)) == [PausePartition(A)]
        assert not is_running(tracker)
        assert tracker.handle(KeyspaceChanged("orders", 5, 1)) == [ReadFrom(A, 100), AnnounceActivation(A)]

    def test_without_any_index_nothing_is_read_and_the_drop_is_committed(self) -> None:
        tracker = running(A)
        assert tracker.handle(KeyspaceChanged("orders", 1, 0)) == [PausePartition(A)]
        assert tracker.handle(KeyspaceChanged("orders", 2, 0)) == [
            PausePartition(A),
            Commit(A, 100, 0, 2, activation=True),
        ]
        assert tracker.handle(CommitDone(A, 100, 0, 2)) == [PausePartition(A), AnnounceActivation(A)]
        assert tracker.partitions[A].phase == "IDLE"

    def test_after_a_time_without_indexes_live_reading_begins_at_the_end(self) -> None:
        tracker = Tracker()
        tracker.handle(KeyspaceChanged("orders", 2, 0))
        tracker.handle(Assigned(A, 100, 2, 0))
        assert tracker.handle(KeyspaceChanged("orders", 3, 3)) == [PausePartition(A), Locate(A)]
        assert tracker.handle(Located(A, 900)) == [Commit(A, 900, -1, 3, activation=True)]

    def test_an_index_that_emits_already_is_never_skipped_over(self) -> None:
        tracker = running(A)
        assert tracker.handle(KeyspaceChanged("orders", 2, 1)) == [
            PausePartition(A),
            Commit(A, 100, 0, 2, activation=True),
        ]

    def test_a_refused_partition_is_not_read_whatever_the_catalog_says(self) -> None:
        tracker = Tracker()
        tracker.handle(KeyspaceChanged("orders", 1, 1))
        assert tracker.handle(Refused(A, 100, 1, "another topic")) == [PausePartition(A)]
        assert tracker.handle(KeyspaceChanged("orders", 2, 1)) == []
        assert tracker.handle(CommitDue()) == []
        assert tracker.partitions[A].reason == "another topic"


class World:
    """A source partition, its group commit, one slice per index, and two projectors with pipelines that lose,
    repeat and delay.

    A slice obeys R10: it drops what lies beyond its position and cuts off what it has. It starts where its
    index was first activated. The rule under test: nothing below the commit is ever missing in the slice of
    any index that was active then.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.end = 50
        self.version, self.committed, self.committed_version = 1, None, 0  # type: tuple[int, int | None, int]
        self.heard: dict[int, int] = {}
        """Index (named by its version) -> position of its slice."""
        self.owner = 0
        self.trackers = [Tracker(), Tracker()]
        self.flights: list[list[tuple[int, list[tuple[int, int, int]]]]] = [[], []]
        self.polls = 0
        self.assign()

    def assign(self) -> None:
        tracker = self.trackers[self.owner]
        self.run(self.owner, tracker.handle(KeyspaceChanged("orders", self.version, 1)))
        self.run(self.owner, tracker.handle(Assigned(A, self.committed, self.committed_version, 0)))

    def run(self, who: int, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Locate(key):
                    self.run(who, self.trackers[who].handle(Located(key, self.end)))
                case Commit():
                    self.commit(who, instruction)
                case _:
                    pass

    def commit(self, who: int, commit: Commit) -> None:
        if who != self.owner or self.random.random() < 0.1:
            fenced = who != self.owner
            return self.run(who, self.trackers[who].handle(CommitFailed(A, commit.version, fenced)))
        if commit.version > self.committed_version:
            for index in range(self.committed_version + 1, commit.version + 1):
                self.heard[index] = commit.offset  # the low-watermark: a build would bring all below
        self.committed, self.committed_version = commit.offset, commit.version
        for index, position in self.heard.items():
            assert position >= commit.offset, f"index {index} has {position}, commit is {commit.offset}"
        return self.run(
            who, self.trackers[who].handle(CommitDone(A, commit.offset, commit.epoch, commit.version))
        )

    def poll(self, who: int) -> None:
        tracker = self.trackers[who]
        if not is_running(tracker) or len(self.flights[who]) > 3:
            return
        state = tracker.partitions[A]
        end = min(self.end, state.position + self.random.randint(0, 5))
        messages = [(index, state.position, end) for index in range(1, state.version + 1)]
        self.polls += 1
        self.run(who, tracker.handle(Polled(self.polls, len(messages), {A: Reached(end, 0)})))
        self.flights[who].append((self.polls, messages))

    def deliver(self, who: int) -> None:
        if not self.flights[who]:
            return
        poll, messages = self.flights[who].pop(0)
        for index, start, end in messages:
            if self.random.random() < 0.05:
                self.run(who, self.trackers[who].handle(SendFailed(poll)))
                continue
            position = self.heard.get(index)
            if position is not None and start <= position < end:
                self.heard[index] = end
            self.run(who, self.trackers[who].handle(Delivered(poll)))

    def rebalance(self) -> None:
        """The old owner may not hear of it for a while: it stays a zombie whose commits are fenced."""
        self.owner = 1 - self.owner
        self.trackers[self.owner] = Tracker()
        self.flights[self.owner] = []
        self.assign()

    def build(self) -> None:
        self.version += 1
        for who in (0, 1):
            if self.random.random() < 0.8 or who == self.owner:
                self.run(who, self.trackers[who].handle(KeyspaceChanged("orders", self.version, 1)))

    def step(self) -> None:
        who = self.random.choice((0, 1))
        roll = self.random.random()
        if roll < 0.25:
            self.end += self.random.randint(0, 4)
        elif roll < 0.5:
            self.poll(who)
        elif roll < 0.85:
            self.deliver(who)
        elif roll < 0.96:
            self.run(who, self.trackers[who].handle(CommitDue()))
        elif roll < 0.98:
            self.rebalance()
        elif self.version < 5:
            self.build()

    def settle(self) -> None:
        """Quiet weather: everything that is there arrives in the end."""
        self.random.random = lambda: 0.99  # type: ignore[method-assign]
        for _ in range(200):
            self.poll(self.owner)
            self.deliver(self.owner)
            self.run(self.owner, self.trackers[self.owner].handle(CommitDue()))


@pytest.mark.parametrize("seed", share.seeds(1200))
def test_nothing_below_a_commit_is_missing_in_any_slice(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.settle()
    assert world.committed_version == world.version
    assert world.committed == world.end
    assert set(world.heard.values()) == {world.end}
