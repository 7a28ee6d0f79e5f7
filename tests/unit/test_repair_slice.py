"""A slice and the messages of a repair: when corrections count, what is spared, where a restart begins."""

from __future__ import annotations

import copy

import pytest
from msgspec import structs

from indexer.slice import corrections as correcting
from indexer.slice.core import SliceCore
from indexer.slice.events import (
    Apply,
    CaughtUp,
    Correct,
    Decide,
    Done,
    Event,
    Instruction,
    MutationData,
    ReadMutations,
    RolledBack,
    Stamped,
    SteppedBack,
)
from indexer.slice.limits import SliceLimits
from indexer.store.interface import UNNUMBERED, Applied
from keytide.catalog.history import History
from keytide.catalog.records import RollbackRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.corrections import Correction, Round, pack_corrections, pack_watch
from keytide.wire.messages import Message, RepairEnd, RepairStatus, Segment, StabilityTimestamp, encode
from tests.simulation.wire import TOPIC_ID, Version, batch, segment

LIMITS = SliceLimits(documents=100, bytes=1 << 20, gap_ms=1_000)
IDS = [b"d%d" % number for number in range(4)]


def at(*offsets: int) -> Timestamp:
    return Timestamp.of(dict(enumerate(offsets)), TOPIC_ID)


def seg(start: int, end: int, *ids: bytes) -> Segment:
    """Documents at the offsets from `start` on."""
    return segment(0, start, end, [Version(0, start + n, one, (b"k",)) for n, one in enumerate(ids)])


class Slice:
    """A slice whose commits go through at once.

    Attributes:
        made: corrections so far, as (offsets of the state, spared ordinals).
    """

    def __init__(self, applied: Applied | None = None, history: History | None = None) -> None:
        self.core = SliceCore("i", 0, applied or Applied(timestamp=at(0)), LIMITS, 0, history)
        self.core.start()
        self.made: list[tuple[dict[int, int], set[int]]] = []
        self.durable = self.core.applied
        self.position = self.core.applied.queue_position
        self.number = 0

    def feed(self, *events: Event) -> list[Instruction]:
        done: list[Instruction] = []
        for event in events:
            todo = self.core.handle(event)
            while todo:
                instruction = todo.pop(0)
                done.append(instruction)
                if isinstance(instruction, Correct):
                    assert instruction.applied.number == UNNUMBERED
                    state = instruction.applied.timestamp.offsets()
                    self.made.append((state, set(instruction.spared)))
                    todo += self.core.handle(Done(instruction.applied, corrected=1))
                elif isinstance(instruction, Apply):
                    todo += self.core.handle(Done(instruction.applied))
        return done

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.feed(MutationData(encode(message), self.position))
            self.position += 1
        self.feed(Decide(0))

    def hear(self, *segments: Segment, incarnation: int = 0) -> None:
        self.send(batch(segments, incarnation=incarnation))

    def stamp(self, *offsets: int, incarnation: int = 0) -> None:
        self.number += 1
        stamp = StabilityTimestamp("ks", 1, incarnation, at(*offsets), 0, 0)
        self.feed(Stamped(self.number, stamp), Decide(0))

    def status(self) -> RepairStatus:
        told = self.core.repair(self.durable)
        assert told is not None
        return told


def to(number: int = 0, incarnation: int = 0, job: str = "r") -> Round:
    return Round("i", 0, job, number, incarnation)


def watch(*ids: bytes, number: int = 0, job: str = "r") -> Message:
    return pack_watch(to(number, job=job), ids)


def corrections(
    offset: int, *ids: bytes, sequence: int = 0, number: int = 0, incarnation: int = 0
) -> Message:
    some = [Correction(one, 0, 0, 0, False, {b"k": b""}) for one in ids]
    return pack_corrections(to(number, incarnation), sequence, at(offset), some)


def end(number: int = 0) -> Message:
    return RepairEnd("i", 0, "r", number, 0)


def test_corrections_wait_until_their_timestamp_is_applied() -> None:
    one = Slice()
    one.send(watch(*IDS))
    one.hear(seg(0, 5))
    one.send(corrections(3, *IDS))
    assert one.made == []
    one.stamp(2)
    assert one.made == []
    one.stamp(5)
    assert one.made == [({0: 5}, set())]
    assert one.status() == RepairStatus("r", 0, True, sequences=1, corrected=1, durable=False)


def test_what_was_heard_since_is_spared_and_what_was_heard_before_is_not() -> None:
    one = Slice()
    one.send(watch(*IDS))
    one.hear(seg(0, 4, IDS[0], IDS[1]), seg(4, 6, IDS[2]))
    one.stamp(6)
    one.send(corrections(1, *IDS))
    assert one.made == [({0: 6}, {1, 2})]
    assert one.status().spared == 2


def test_a_restart_with_later_changes_reads_them_again_before_it_judges() -> None:
    one = Slice(Applied(timestamp=at(6)))  # its base has them; its queue position stayed at the watch
    one.send(watch(*IDS), corrections(1, *IDS))
    assert one.made == []
    one.hear(seg(3, 6, IDS[2]))  # came before its time then, and once more behind the next
    assert one.made == []
    one.hear(seg(0, 3, IDS[3], IDS[0]))
    assert one.made == [({0: 6}, {0, 2})]


def test_a_base_from_before_the_restart_does_not_make_corrections_durable() -> None:
    one = Slice(Applied(timestamp=at(1), number=7))
    one.send(watch(*IDS), corrections(1, *IDS))
    assert one.made == [({0: 1}, set())]
    assert not one.status().durable
    one.durable = Applied(timestamp=at(1), number=8)
    assert one.status().durable


def test_what_is_heard_and_not_applied_yet_comes_later_anyway() -> None:
    one = Slice()
    one.send(watch(*IDS))
    one.hear(seg(0, 3), seg(3, 5, IDS[0]))
    one.stamp(3)
    one.send(corrections(3, IDS[0]))
    assert one.made == [({0: 3}, set())]


def test_a_document_that_is_not_watched_is_spared() -> None:
    one = Slice()
    one.send(watch(IDS[0]), corrections(0, IDS[0], IDS[1]))
    assert one.made == [({0: 0}, {1})]


def test_without_a_watch_nothing_is_corrected() -> None:
    one = Slice()
    one.send(corrections(0, *IDS))
    assert one.made == []
    assert one.status() == RepairStatus("r", 0, False, sequences=1, void=4)


def test_corrections_of_another_round_are_void() -> None:
    one = Slice()
    one.send(watch(*IDS, number=1), corrections(0, *IDS, number=0))
    assert one.made == []
    one.send(corrections(0, *IDS, number=1))
    assert one.made == [({0: 0}, set())]


def test_several_messages_and_copies_of_them() -> None:
    one = Slice()
    one.send(watch(*IDS), corrections(0, IDS[0]), corrections(0, IDS[0]), corrections(0, IDS[1], sequence=1))
    assert one.status().sequences == 2
    assert len(one.made) == 2


def test_the_position_stays_at_the_watch_until_the_round_is_over() -> None:
    one = Slice()
    one.hear(seg(0, 2))
    one.send(watch(*IDS))
    one.hear(seg(2, 4))
    one.stamp(4)
    assert one.core.applied.queue_position == 1
    one.send(corrections(4, *IDS))
    assert one.core.applied.queue_position == 1
    one.send(end())
    one.stamp(4)
    assert one.core.applied.queue_position == 5
    assert not one.status().watching


def test_an_end_waits_for_corrections_that_are_still_to_be_made() -> None:
    one = Slice()
    one.send(watch(*IDS))
    one.hear(seg(0, 4))
    one.send(corrections(4, *IDS), end())
    one.stamp(2)
    assert one.core.applied.queue_position == 0
    one.stamp(4)
    assert one.made == [({0: 4}, set())]
    one.stamp(4)
    assert one.core.applied.queue_position == 4


def test_corrections_do_not_become_durable_by_reading_the_queue_again() -> None:
    """They are made again, and change nothing, for they are in the state."""
    one = Slice()
    one.send(watch(*IDS))
    one.hear(seg(0, 2, IDS[0]))
    one.stamp(2)
    one.send(corrections(2, IDS[1]))
    assert (one.status().corrected, one.status().durable) == (1, False)
    one.hear(seg(5, 6))
    one.feed(CaughtUp(0))
    assert one.feed(Decide(LIMITS.gap_ms * 2)) == [ReadMutations(0)]  # for [2, 5)
    one.send(watch(*IDS))
    one.hear(seg(0, 2, IDS[0]))
    one.core.handle(MutationData(encode(corrections(2, IDS[1])), one.position))
    [again] = one.core.handle(Decide(0))
    assert isinstance(again, Correct)
    one.core.handle(Done(again.applied, corrected=0))
    assert (one.status().sequences, one.status().durable) == (1, False)


def test_corrections_are_durable_with_any_state_behind_them() -> None:
    one = Slice()
    one.hear(seg(0, 4))
    one.stamp(4)
    one.durable = one.core.applied
    one.send(watch(*IDS), corrections(4, *IDS))
    one.durable = one.core.applied  # one that made room just before looks the same
    assert not one.status().durable
    one.stamp(4)
    assert not one.status().durable
    numbered = one.core.applied
    one.hear(seg(4, 6))
    one.stamp(6)
    for durable in (numbered, one.core.applied, structs.replace(one.core.applied, number=-1)):
        again = Slice()
        again.core = copy.deepcopy(one.core)
        again.durable = durable
        assert again.status().durable, durable


def test_a_restart_comes_to_the_same_end() -> None:
    """The base has applied what the queue brings again: that counts as heard all the same."""
    messages = [watch(*IDS), batch([seg(0, 3, IDS[0])]), batch([seg(3, 6, IDS[1])]), corrections(2, *IDS)]
    first = Slice()
    first.send(*messages[:3])
    first.stamp(6)
    first.send(messages[3])
    again = Slice(Applied(timestamp=at(6)))
    again.send(*messages)
    assert again.made == first.made == [({0: 6}, {1})]


def test_a_rollback_voids_corrections_past_its_cut() -> None:
    record = RollbackRecord("ks", 1, 7, at(4), TOPIC_ID, "truncated", 0)
    one = Slice(Applied(timestamp=at(4)), History([record], TOPIC_ID))
    one.send(watch(*IDS))
    one.hear(seg(4, 8, IDS[0]), incarnation=0)  # lost
    one.hear(seg(4, 8, IDS[1]), incarnation=1)
    one.stamp(8, incarnation=1)
    one.send(corrections(5, *IDS))
    assert one.made == []
    one.send(corrections(4, *IDS, sequence=1))
    assert one.made == [({0: 8}, {1})]
    assert one.status().void == 4


def test_a_message_of_a_later_history_waits_for_the_dictionary() -> None:
    one = Slice()
    one.hear(seg(0, 4))
    one.stamp(4)
    one.send(pack_watch(to(incarnation=1), IDS))
    assert one.core.following is not None
    assert one.core.following.deaf == 1
    history = History([RollbackRecord("ks", 1, 1, at(4), TOPIC_ID, "truncated", 0)], TOPIC_ID)
    one.feed(RolledBack(history), SteppedBack(one.core.applied))
    one.position = 1
    one.send(pack_watch(to(incarnation=1), IDS))
    assert one.status().watching


def test_a_round_that_hears_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correcting, "HEARD_LIMIT", 2)
    one = Slice()
    one.send(watch(*IDS))
    one.hear(seg(0, 3, *IDS[:3]))
    one.stamp(3)
    one.send(corrections(0, *IDS))
    assert one.made == []
    assert one.status() == RepairStatus("r", 0, False, sequences=1, void=4)
    assert one.core.applied.queue_position > 0


def test_a_round_that_takes_too_long_is_given_up() -> None:
    one = Slice()
    one.send(watch(*IDS), corrections(4, *IDS))
    one.feed(Decide(0), Decide(correcting.WATCH_LIMIT_MS + 1))
    assert one.status() == RepairStatus("r", 0, False, sequences=1, void=4)


def test_a_new_round_takes_the_place_of_one_whose_corrections_are_being_made() -> None:
    core = SliceCore("i", 0, Applied(timestamp=at(0)), LIMITS)
    core.start()
    for position, message in enumerate([watch(*IDS), corrections(0, *IDS)]):
        core.handle(MutationData(encode(message), position))
    [making] = core.handle(Decide(0))
    assert isinstance(making, Correct)
    core.handle(MutationData(encode(watch(*IDS, number=1)), 2))
    core.handle(Done(making.applied, corrected=4))
    assert core.repair(structs.replace(making.applied, number=1)) == RepairStatus("r", 1, True)


def test_corrections_of_a_round_that_begins_while_those_of_another_are_made() -> None:
    one = Slice()
    one.send(watch(b"d0"))
    event = MutationData(encode(corrections(0, b"d0")), one.position)
    (making,) = one.core.handle(event) + one.core.handle(Decide(0))
    assert isinstance(making, Correct)  # and is not done yet
    one.position += 1
    one.send(watch(b"d1", number=1), corrections(0, b"d1", number=1))
    for made in one.core.handle(Done(making.applied, corrected=1)):
        assert isinstance(made, Correct)
        one.core.handle(Done(made.applied, corrected=1))
    one.feed(Decide(0))
    assert (one.status().round, one.status().sequences, one.status().corrected) == (1, 1, 1)
