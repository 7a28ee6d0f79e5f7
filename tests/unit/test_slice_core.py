"""The slice's core, rule by rule: events in, instructions compared as lists."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from indexer.slice.core import SliceCore
from indexer.slice.events import (
    Acknowledge,
    Apply,
    BackfillData,
    CaughtUp,
    ChunkKey,
    DataLost,
    Decide,
    Done,
    DropChunks,
    Event,
    Failed,
    Instruction,
    KeepChunk,
    LoadBatch,
    Lose,
    MutationData,
    PauseReading,
    ReadBackfill,
    ReadMutations,
    Resume,
    RetrySucceeded,
    RolledBack,
    Stamped,
    StepBack,
    SteppedBack,
    Stop,
    SwitchOver,
)
from indexer.slice.limits import WAIT_LIMIT, SliceLimits
from indexer.store.formats.state_bytes import decode_applied, encode_state
from indexer.store.interface import UNNUMBERED, Applied
from keytide.catalog.history import History
from keytide.catalog.records import RollbackRecord
from keytide.errors import InvariantViolationError
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.columns import heard_offsets
from keytide.wire.messages import (
    BatchEnd,
    BuildEnd,
    Message,
    Segment,
    SegmentBatch,
    StabilityTimestamp,
    encode,
)
from keytide.wire.parts import split
from keytide.wire.presence import presence
from tests.simulation.wire import TOPIC_ID, Version, batch, put_chunk, removal_chunk, segment

LIMITS = SliceLimits(documents=10, bytes=1 << 20, gap_ms=1_000, part_ms=5_000)


def at(*offsets: int) -> Timestamp:
    return Timestamp.of(dict(enumerate(offsets)), TOPIC_ID)


def versions(start: int, end: int, partition: int = 0) -> list[Version]:
    return [Version(partition, o, b"d%d" % o, (b"k%d" % o,)) for o in range(start, end)]


def seg(start: int, end: int, partition: int = 0) -> Segment:
    return segment(partition, start, end, versions(start, end, partition))


def live(applied: Applied | None = None, **limits: int) -> SliceCore:
    core = SliceCore("i", 0, applied or Applied(timestamp=at()), replace(LIMITS, **limits))
    core.start()
    return core


def hear(core: SliceCore, position: int, *segments: Segment) -> list[Instruction]:
    return core.handle(MutationData(encode(batch(segments)), position))


def test_what_was_sent_before_the_index_was_built_anew_is_not_heard() -> None:
    """The queue of before had the same name: a projector that stood still sends into the new one (R19), and
    by RANGE other splits may have chosen the slice."""
    core = SliceCore("i", 0, Applied(timestamp=at()), LIMITS, version=3)
    core.start()
    for position, version in enumerate((2, 3)):
        message = SegmentBatch("i", 0, "p", TOPIC_ID, 0, version, [seg(0, 2 + version)], 0)
        core.handle(MutationData(encode(message), position))
        assert core.heard().offsets() == ({} if version == 2 else {0: 5})
    stamp(core, 1, 5)
    assert commits(decide(core)) == [(1, {0: 5}, [(0, 5)])]
    again = core.anew(core.applied)
    again.start()
    message = SegmentBatch("i", 0, "p", TOPIC_ID, 0, 2, [seg(5, 9)], 0)
    again.handle(MutationData(encode(message), 2))
    assert again.heard().offsets() == {0: 5}


def stamp(
    core: SliceCore, number: int, *offsets: int, term: int = 1, incarnation: int = 0
) -> list[Instruction]:
    message = StabilityTimestamp("ks", term, incarnation, at(*offsets), 0, 0)
    return core.handle(Stamped(number, message))


def decide(core: SliceCore, now: int = 0) -> list[Instruction]:
    """A turn; commits go through at once. All instructions, in order."""
    out: list[Instruction] = []
    todo = core.handle(Decide(now))
    while todo:
        one = todo.pop(0)
        out.append(one)
        if isinstance(one, Apply | LoadBatch | SwitchOver):
            todo = core.handle(Done(one.applied)) + todo
    return out


def commits(instructions: list[Instruction]) -> list[tuple[int, dict[int, int], list[tuple[int, int]]]]:
    """(number, offsets, [(start, end) of each segment]) of the commits among instructions."""
    return [
        (one.applied.number, one.applied.timestamp.offsets(), [(s.start, s.end) for s in one.segments])
        for one in instructions
        if isinstance(one, Apply)
    ]


def applied_segments(instructions: list[Instruction]) -> list[Segment]:
    """What commits take in, in order."""
    return [segment for one in instructions if isinstance(one, Apply) for segment in one.segments]


def state(core: SliceCore) -> str:
    return core.state


# --- snapshots ------------------------------------------------------------------------------------------


def test_a_number_is_committed_exactly_at_its_timestamp_once_all_is_heard() -> None:
    core = live()
    assert state(core) == "CATCHUP"
    hear(core, 0, seg(0, 5))
    stamp(core, 7, 4, 2)
    assert decide(core) == []  # partition 1 is not heard (R1)
    hear(core, 1, seg(0, 2, 1))
    out = decide(core)
    assert commits(out) == [(7, {0: 4, 1: 2}, [(0, 4), (0, 2)])]
    assert out[-1] == Acknowledge(7, 0)
    assert state(core) == "LIVE"
    assert core.number == 7
    assert core.queue_documents == 5  # the message with what is above T is held


def test_a_segment_is_split_at_the_timestamp_and_the_rest_comes_with_the_next() -> None:
    core = live()
    hear(core, 0, seg(0, 6))
    stamp(core, 1, 2)
    stamp_out = decide(core)
    stamp(core, 2, 5)
    both = stamp_out + decide(core)
    applied = [one for one in both if isinstance(one, Apply)]
    heard = [
        heard_offsets(s.heard, s.start).tolist()
        for one in applied
        for s in one.segments
        if s.heard is not None
    ]
    assert heard == [[0, 1], [2, 3, 4]]


def test_a_timestamp_below_the_position_is_never_joined() -> None:
    core = live(Applied(timestamp=at(5, 5)))
    stamp(core, 1, 4, 9)
    hear(core, 0, seg(5, 9), seg(5, 9, 1))
    assert decide(core) == []
    stamp(core, 2, 5, 9)
    assert commits(decide(core)) == [(2, {0: 5, 1: 9}, [(5, 9)])]


def test_of_several_numbers_the_newest_is_committed_and_few_before_it() -> None:
    core = live(documents=1_000)
    hear(core, 0, seg(0, 100))
    for number in range(100):
        stamp(core, number, number + 1)
    numbers = [number for number, _, _ in commits(decide(core))]
    assert numbers[-1] == 99
    assert len(numbers) < 12
    other = live(documents=1_000)
    hear(other, 0, seg(0, 100))
    for number in range(60):
        stamp(other, number, number + 1)
    others = [number for number, _, _ in commits(decide(other))]
    assert set(numbers) & set(others), "slices that lag differently meet at landmarks"


def test_lower_terms_and_other_incarnations_are_ignored() -> None:
    core = live()
    stamp(core, 1, 0, term=5)
    assert [one for one in decide(core) if isinstance(one, Acknowledge)] == [Acknowledge(1, 0)]
    stamp(core, 2, 0, term=4)
    assert decide(core) == []
    stamp(core, 3, 0, term=5, incarnation=1)
    assert decide(core) == []
    old = live(Applied(timestamp=at(), incarnation=2))
    stamp(old, 1, 0, incarnation=1)
    assert decide(old) == []
    assert state(old) == "CATCHUP"


def test_a_term_known_from_the_metadata_counts() -> None:
    core = SliceCore("i", 0, Applied(timestamp=at()), LIMITS, term=3)
    stamp(core, 1, 0, term=2)
    assert decide(core) == []


def test_a_full_slice_makes_room_below_a_timestamp_without_a_number() -> None:
    core = live()
    hear(core, 0, seg(0, 12))
    assert decide(core) == [PauseReading()]  # no timestamp is known
    stamp(core, 1, 20)
    out = decide(core)
    assert commits(out) == [(UNNUMBERED, {0: 12}, [(0, 12)])]
    assert out[-1] == Resume()
    assert state(core) == "CATCHUP"
    hear(core, 1, seg(12, 20))
    assert commits(decide(core)) == [(1, {0: 20}, [(12, 20)])]


def test_a_full_slice_goes_no_further_than_a_timestamp_that_frees_enough() -> None:
    core = live()
    hear(core, 0, seg(0, 6), seg(0, 5, 1))
    stamp(core, 1, 6, 9)
    stamp(core, 2, 99, 99)
    assert commits(decide(core))[0][:2] == (UNNUMBERED, {0: 6, 1: 5})
    hear(core, 1, seg(5, 9, 1))
    assert commits(decide(core))[0][:2] == (1, {0: 6, 1: 9})  # it could still be joined


def test_a_full_slice_that_no_timestamp_helps_waits() -> None:
    core = live()
    stamp(core, 1, 0, 5)
    hear(core, 0, seg(0, 12))
    assert decide(core) == [PauseReading()]
    assert core.paused
    assert decide(core) == []


def full_in_vain(number: int = 1, epoch: int = 0) -> SliceCore:
    """[0, 12) of partition 0 has come, and timestamps go on without it: they wait for partition 1."""
    core = live(Applied(timestamp=at(0, 0), queue_position=0))
    hear(core, 0, segment(0, 0, 12, versions(0, 12), epoch=epoch))
    assert decide(core) == [PauseReading()]
    for more in range(WAIT_LIMIT):
        assert core.paused
        stamp(core, number + more, 0, 1)
        out = decide(core)
    assert out == [Resume()]
    return core


def test_a_full_slice_lets_go_of_what_no_timestamp_reaches() -> None:
    """An election has lost it, and nothing has come in its place: other partitions go on."""
    core = full_in_vain()
    hear(core, 1, seg(0, 1, 1))
    assert commits(decide(core)) == [(WAIT_LIMIT, {0: 0, 1: 1}, [(0, 1)])]
    assert core.applied.queue_position == 0  # from where it is read again after a restart
    hear(core, 2, seg(0, 3, 0))
    stamp(core, 50, 3, 1)
    assert commits(decide(core)) == [(50, {0: 3, 1: 1}, [(0, 3)])]
    assert core.applied.queue_position == 0


def test_what_was_let_go_of_is_read_again_once_a_timestamp_reaches_it() -> None:
    core = full_in_vain()
    assert core.evicted == 12
    hear(core, 1, seg(0, 1, 1), seg(12, 14))
    assert commits(decide(core)) == [(WAIT_LIMIT, {0: 0, 1: 1}, [(0, 1)])]
    core.handle(CaughtUp(0))
    assert decide(core, LIMITS.gap_ms * 9) == []  # no gap: it knows where that is
    stamp(core, 50, 14, 1)
    assert decide(core) == [ReadMutations(0)]
    stamp(core, 51, 14, 1)
    hear(core, 0, seg(0, 12))
    assert commits(decide(core)) == [(UNNUMBERED, {0: 12, 1: 1}, [(0, 12)])]
    hear(core, 1, seg(0, 1, 1), seg(12, 14))
    assert commits(decide(core)) == [(51, {0: 14, 1: 1}, [(12, 14)])]
    assert core.applied.queue_position == 2
    assert decide(core) == []
    assert (core.evicted, core.anew(core.applied).evicted) == (12, 12)


@pytest.mark.parametrize("later", [True, False])
def test_what_was_let_go_of_may_come_another_time(later: bool) -> None:
    """Sent again, or replaced by a later leader's: then its first place in the queue does not count."""
    core = full_in_vain()
    again = segment(0, 0, 3, versions(0, 3), epoch=1) if later else seg(0, 12)
    hear(core, 1, again, seg(0, 1, 1))
    end = again.end
    core.handle(
        Stamped(
            50,
            StabilityTimestamp(
                "ks", 1, 0, Timestamp({0: Place(end, again.epoch), 1: Place(1, 0)}, TOPIC_ID), 0, 0
            ),
        )
    )
    assert commits(decide(core))[-1][:2] == (50, {0: end, 1: 1})
    assert core.applied.queue_position == 2


def stamp_places(core: SliceCore, number: int, *places: Place) -> None:
    timestamp = Timestamp(dict(enumerate(places)), TOPIC_ID)
    core.handle(Stamped(number, StabilityTimestamp("ks", 1, 0, timestamp, 0, 0)))


def test_a_part_of_what_was_let_go_of_that_is_let_go_of_again_does_not_stand_for_all_of_it() -> None:
    core = full_in_vain()
    hear(core, 1, seg(0, 10))
    assert decide(core) == [PauseReading()]
    for more in range(WAIT_LIMIT):
        stamp(core, 100 + more, 0, 1)
        out = decide(core)
    assert out == [Resume()]
    hear(core, 2, seg(0, 10), seg(0, 1, 1))
    stamp(core, 200, 10, 1)
    assert commits(decide(core))[-1][:2] == (200, {0: 10, 1: 1})
    assert core.applied.queue_position == 0  # [10, 12) is only there
    stamp(core, 201, 12, 1)
    assert decide(core) == [ReadMutations(0)]


def test_what_continued_what_was_let_go_of_is_not_passed_when_that_has_come_another_time() -> None:
    """The copy was under way since before its owner was fenced off: what is behind it is not sent again."""
    core = full_in_vain()
    hear(core, 1, seg(12, 14), seg(0, 1, 1))
    hear(core, 2, seg(0, 12))
    stamp(core, 50, 12, 1)
    assert commits(decide(core))[-1][:2] == (50, {0: 12, 1: 1})
    assert core.applied.queue_position <= 1
    stamp(core, 51, 14, 1)
    [again] = decide(core)
    assert isinstance(again, ReadMutations)
    assert again.position <= 1


@pytest.mark.parametrize("committing", [False, True])
def test_a_lost_copy_does_not_take_the_place_of_what_was_let_go_of(committing: bool) -> None:
    """[6, 12) is another leader's by now, and the slice has let go of that. What was sent of it before comes
    late: were it applied to make room, nothing in the queue behind would contradict it."""
    core = live(Applied(timestamp=at(0, 0), queue_position=0))
    hear(core, 0, segment(0, 0, 6, versions(0, 6)))
    hear(core, 1, segment(0, 6, 12, versions(6, 12), epoch=1))
    assert decide(core) == [PauseReading()]
    for more in range(WAIT_LIMIT):
        stamp(core, 1 + more, 0, 1)
        out = decide(core)
    assert out == [Resume()]
    under_way: list[Instruction] = []
    if committing:
        hear(core, 2, seg(0, 2, 1))
        under_way = core.handle(Decide(0))
        assert [one.number for one in map(_applied, under_way)] == [WAIT_LIMIT]
    hear(core, 3, segment(0, 0, 12, versions(0, 12), epoch=0))
    stamp_places(core, 50, Place(20, 1), Place(1, 0))
    for one in under_way:
        after = core.handle(Done(_applied(one)))
        assert commits(after) == []
    assert [one for one in decide(core) if not isinstance(one, PauseReading)] == [ReadMutations(0)]


def _applied(instruction: Instruction) -> Applied:
    assert isinstance(instruction, Apply)
    return instruction.applied


def test_reading_again_does_not_forget_what_was_applied_in_doubt() -> None:
    """To make room [0, 4) was applied, and a timestamp says that another leader's follows."""
    core = live(Applied(timestamp=at(0, 0), queue_position=0))
    hear(core, 0, seg(0, 4))
    hear(core, 1, seg(0, 12, 1))
    stamp_places(core, 1, Place(20, 1), Place(0, 0))
    assert commits(decide(core)) == [(UNNUMBERED, {0: 4, 1: 0}, [(0, 4)])]
    for more in range(WAIT_LIMIT):
        stamp_places(core, 2 + more, Place(20, 1), Place(0, 0))
        out = decide(core)
    assert out == [Resume()]
    stamp_places(core, 50, Place(20, 1), Place(12, 0))
    assert decide(core) == [ReadMutations(1)]
    hear(core, 1, seg(0, 12, 1))
    [lost] = hear(core, 2, segment(0, 2, 20, versions(2, 20), epoch=1))
    assert isinstance(lost, Lose)
    assert "an election has lost records below 4" in lost.reason


def test_a_restart_does_not_forget_what_was_applied_in_doubt() -> None:
    """As before, and the process is killed when that lies on its disk."""
    core = live(Applied(timestamp=at(0, 0), queue_position=0))
    hear(core, 0, seg(0, 4))
    hear(core, 1, seg(0, 12, 1))
    stamp_places(core, 1, Place(20, 1), Place(0, 0))
    [made_room, *_] = decide(core)
    kept = encode_state(_applied(made_room))
    core = live(decode_applied(kept))
    hear(core, 2, segment(0, 2, 20, versions(2, 20), epoch=1))
    assert state(core) == "LOST"
    assert "an election has lost records below 4" in core.reason


def test_what_was_applied_in_doubt_is_settled_by_a_number() -> None:
    core = live(Applied(timestamp=at(4, 0), queue_position=0, doubted={0: Place(4, 0)}))
    stamp_places(core, 1, Place(4, 0), Place(0, 0))
    [commit, *_] = decide(core)
    assert _applied(commit).number == 1
    assert _applied(commit).doubted == {}


def test_a_state_of_before_there_was_doubt_is_read() -> None:
    """What releases wrote that kept none."""
    old = Applied(timestamp=at(3, 1), number=7, queue_position=5, control=b"c")
    written = msgspec.msgpack.encode(msgspec.msgpack.decode(encode_state(old))[:-1])
    assert decode_applied(written) == old


def test_a_full_slice_lets_go_of_nothing_while_timestamps_make_room_bit_by_bit() -> None:
    core = live(Applied(timestamp=at(0, 0), queue_position=0))
    hear(core, 0, seg(0, 4 * WAIT_LIMIT))
    assert decide(core) == [PauseReading()]
    for number in range(2 * WAIT_LIMIT):
        stamp(core, number, number + 1, 1)
        assert [number for number, _, _ in commits(decide(core))] == [UNNUMBERED]
        assert core.paused


def test_a_gap_behind_what_was_let_go_of_is_none_while_that_is_not_read_again() -> None:
    core = live(Applied(timestamp=at(0, 0), queue_position=0))
    hear(core, 5, seg(0, 12), seg(14, 16))
    assert decide(core) == [PauseReading()]
    for more in range(WAIT_LIMIT):
        stamp(core, more, 0, 1)
        decide(core)
    core.handle(CaughtUp(0))
    assert decide(core, LIMITS.gap_ms * 2) == []
    assert decide(core, LIMITS.gap_ms * 4) == []
    assert state(core) == "CATCHUP"


def test_what_comes_late_of_an_earlier_leader_does_not_take_the_place_of_what_was_let_go_of() -> None:
    core = full_in_vain(epoch=1)
    hear(core, 1, segment(0, 0, 2, versions(0, 2), epoch=0), seg(0, 1, 1))
    decide(core)
    stamped = Timestamp({0: Place(12, 1), 1: Place(1, 0)}, TOPIC_ID)
    core.handle(Stamped(50, StabilityTimestamp("ks", 1, 0, stamped, 0, 0)))
    assert decide(core) == [ReadMutations(0)]


# --- segments -------------------------------------------------------------------------------------------


def test_duplicates_are_skipped_and_overlaps_cut() -> None:
    core = live()
    hear(core, 0, seg(0, 4))
    hear(core, 1, seg(0, 4))
    hear(core, 2, seg(2, 7))
    stamp(core, 1, 7)
    assert commits(decide(core)) == [(1, {0: 7}, [(0, 4), (4, 7)])]
    hear(core, 3, seg(0, 7))
    stamp(core, 2, 7)
    assert commits(decide(core)) == [(2, {0: 7}, [])]


def test_a_gap_is_dropped_counted_and_filled_by_the_resend() -> None:
    core = live()
    hear(core, 0, seg(3, 5))
    assert core.gap_drops == 1
    stamp(core, 1, 5)
    assert decide(core) == []
    hear(core, 1, seg(0, 3))
    hear(core, 2, seg(3, 5))
    assert commits(decide(core)) == [(1, {0: 5}, [(0, 3), (3, 5)])]


def test_a_gap_stops_the_slice_only_when_the_queue_has_no_more_for_the_limit() -> None:
    core = live()
    hear(core, 0, seg(3, 5))
    assert decide(core, 10_000) == []  # there may be more to read
    core.handle(CaughtUp(10_000))
    assert decide(core, 11_000) == []
    assert decide(core, 11_001) == [ReadMutations(0)]  # what is missing may have been lost on its way here
    hear(core, 0, seg(3, 5))
    assert decide(core, 19_000) == []  # it has not been read to its end yet
    core.handle(CaughtUp(20_000))
    assert decide(core, 21_000) == []
    out = decide(core, 21_001)
    assert isinstance(out[0], Stop)
    assert "partition 0 from 0 (leader epoch -1), while 3 (leader epoch 0) is there" in out[0].reason
    assert state(core) == "STOPPED"
    assert hear(core, 1, seg(0, 3)) == []


def test_a_gap_that_was_lost_on_its_way_is_filled_by_reading_again() -> None:
    core = live()
    hear(core, 1, seg(3, 5))
    core.handle(CaughtUp(0))
    assert decide(core, 1_001) == [ReadMutations(0)]
    hear(core, 0, seg(0, 3))
    hear(core, 1, seg(3, 5))
    stamp(core, 1, 5)
    assert commits(decide(core, 1_100)) == [(1, {0: 5}, [(0, 3), (3, 5)])]
    assert decide(core, 90_000) == []


def test_a_gap_that_is_being_filled_has_time() -> None:
    core = live()
    hear(core, 0, seg(5, 6))
    core.handle(CaughtUp(0))
    hear(core, 1, seg(0, 2))
    assert decide(core, 5_000) == []
    core.handle(CaughtUp(5_000))
    hear(core, 2, seg(2, 6))
    assert decide(core, 9_000) == []


def test_a_new_partition_starts_at_zero() -> None:
    core = live(Applied(timestamp=at(3)))
    hear(core, 0, seg(3, 4), seg(0, 2, 1))
    stamp(core, 1, 4, 2)
    assert commits(decide(core)) == [(1, {0: 4, 1: 2}, [(3, 4), (0, 2)])]


def test_another_topic_under_the_same_name_stops() -> None:
    core = live()
    message = SegmentBatch("i", 0, "p", "another", 0, 1, [seg(0, 1)], 0)
    out = core.handle(MutationData(encode(message), 0))
    assert isinstance(out[0], Stop)
    assert "made anew" in out[0].reason


@pytest.mark.parametrize(
    "data", [b"\x02future", encode(BuildEnd("b", "i", 0, 1, 0)), encode(batch([], index="other"))]
)
def test_what_does_not_belong_in_the_queue_stops(data: bytes) -> None:
    assert isinstance(live().handle(MutationData(data, 0))[0], Stop)


def test_a_slice_whose_queue_is_gone_is_lost_for_good() -> None:
    core = live()
    assert core.handle(DataLost("gone")) == [Lose("gone")]
    assert (state(core), core.reason) == ("LOST", "gone")
    assert core.handle(RolledBack(History(incarnation=1))) == []
    assert hear(core, 0, seg(0, 1)) == []


def test_what_was_deleted_from_the_beginning_of_the_queue_makes_the_slice_lost() -> None:
    core = live()
    hear(core, 700, seg(9, 12))
    core.handle(CaughtUp(0))
    assert decide(core, 1_001) == [ReadMutations(0)]
    hear(core, 700, seg(9, 12))
    core.handle(CaughtUp(2_000))
    assert decide(core, 3_000) == []
    (lose,) = decide(core, 3_001)
    assert isinstance(lose, Lose)
    assert "partition 0 from 0" in lose.reason


# --- the queue position ---------------------------------------------------------------------------------


def test_the_position_is_the_first_message_with_anything_unapplied() -> None:
    core = live()
    hear(core, 0, seg(0, 2))
    hear(core, 1, seg(2, 6))
    hear(core, 2, seg(0, 1, 1))
    stamp(core, 1, 3, 0)
    decide(core)
    assert core.applied.queue_position == 1
    stamp(core, 2, 6, 1)
    decide(core)
    assert core.applied.queue_position == 3


def test_parts_hold_the_position_until_all_are_there() -> None:
    core = live()
    hear(core, 0, seg(0, 1))
    parts = split(encode(batch([seg(1, 30)])), 200, "p", 1)
    assert len(parts) > 2
    core.handle(MutationData(parts[0], 1))
    hear(core, 2, seg(0, 1, 1))
    stamp(core, 1, 1, 1)
    decide(core)
    assert core.applied.queue_position == 1
    for number, part in enumerate(parts[1:], 3):
        core.handle(MutationData(part, number))
    stamp(core, 2, 30, 1)
    assert commits(decide(core))[0][1] == {0: 30, 1: 1}
    assert core.applied.queue_position == 2 + len(parts)


def test_a_dead_senders_parts_hold_the_position_for_a_time_only() -> None:
    core = live()
    part = split(encode(batch([seg(0, 30)])), 200, "dead", 1)[0]
    core.handle(MutationData(part, 0))
    decide(core, 1_000_000)
    core.handle(CaughtUp(1_000_000))
    decide(core, 1_005_000)
    hear(core, 1, seg(0, 2))
    stamp(core, 1, 2)
    decide(core, 1_005_000)
    assert core.applied.queue_position == 0
    decide(core, 1_005_001)
    core.handle(CaughtUp(1_005_001))
    stamp(core, 2, 2)
    decide(core, 1_005_002)
    assert core.applied.queue_position == 2


def test_parts_that_are_still_to_be_read_are_not_given_up() -> None:
    """A node that was held up within a message, for longer than the limit, reads the rest of it."""
    core = live()
    parts = split(encode(batch([seg(0, 30)])), 200, "p", 1)
    core.handle(MutationData(parts[0], 0))
    core.handle(CaughtUp(1_000_000))
    decide(core, 2_000_000)
    for number, part in enumerate(parts[1:], 1):
        core.handle(MutationData(part, number))
    stamp(core, 1, 30)
    assert commits(decide(core, 2_000_001))[0][1] == {0: 30}


def test_a_record_that_comes_twice_counts_once() -> None:
    core = live()
    data = encode(batch([seg(0, 2)]))
    core.handle(MutationData(data, 5))
    core.handle(MutationData(data, 5))
    core.handle(MutationData(encode(batch([seg(2, 3)])), 4))
    assert core.heard().offsets() == {0: 2}


def test_a_restart_reads_from_the_position() -> None:
    applied = Applied(timestamp=at(3), queue_position=17)
    assert SliceCore("i", 0, applied, LIMITS).start() == [ReadMutations(17)]


# --- commits that fail ----------------------------------------------------------------------------------


def test_a_commit_that_fails_is_shown_and_nothing_else_is_committed_meanwhile() -> None:
    core = live()
    hear(core, 0, seg(0, 5))
    stamp(core, 1, 5)
    (apply,) = core.handle(Decide(0))
    assert isinstance(apply, Apply)
    assert core.handle(Failed("disk full")) == []
    assert core.reason == "disk full"
    hear(core, 1, seg(5, 20))
    stamp(core, 2, 20)
    assert core.handle(Decide(1)) == [PauseReading()]
    out = core.handle(Done(apply.applied))
    assert core.reason == ""
    assert out[0] == Acknowledge(1, 0)
    assert commits(out) == [(2, {0: 20}, [(5, 20)])]


def test_a_result_that_goes_backwards_is_our_bug() -> None:
    core = live(Applied(timestamp=at(5)))
    hear(core, 0, seg(5, 6))
    stamp(core, 1, 6)
    core.handle(Decide(0))
    with pytest.raises(InvariantViolationError, match="Contiguous"):
        core.handle(Done(Applied(timestamp=at(4), number=1)))


# --- builds ---------------------------------------------------------------------------------------------


class Build:
    """A core under build, and its backfill queue."""

    def __init__(self, applied: Applied | None = None) -> None:
        start = Applied(timestamp=at(), build="b", building=True)
        self.core = SliceCore("i", 0, applied or start, LIMITS)
        self.position = (applied or start).backfill_position

    def say(self, message: Message) -> list[Instruction]:
        return self.event(BackfillData(encode(message), self._next()))

    def event(self, event: Event) -> list[Instruction]:
        return self.core.handle(event)

    def done(self, instructions: list[Instruction]) -> list[Instruction]:
        """The commit among `instructions` went through."""
        (commit,) = [one for one in instructions if isinstance(one, LoadBatch | SwitchOver)]
        return self.core.handle(Done(commit.applied))

    def puts(self, number: int, attempt: str, sequence: int, run: str = "r", build: str = "b") -> Message:
        entries = [(b"k", version) for version in versions(number * 10, number * 10 + 1)]
        return put_chunk(
            entries,
            build=build,
            index="i",
            slice_number=0,
            run=run,
            number=number,
            attempt=attempt,
            sequence=sequence,
        )

    def removals(self, number: int, attempt: str, sequence: int) -> Message:
        return removal_chunk(
            versions(number * 10, number * 10 + 1),
            build="b",
            index="i",
            slice_number=0,
            slices=1,
            run="r",
            number=number,
            attempt=attempt,
            sequence=sequence,
            partition=0,
        )

    def end(self, number: int, winners: dict[str, int], run: str = "r") -> Message:
        return BatchEnd("b", "i", 0, run, number, at(number * 10), at(number * 10 + 10), winners)

    def _next(self) -> int:
        self.position += 1
        return self.position - 1


def key(number: int, attempt: str, sequence: int, removal: bool = False, run: str = "r") -> ChunkKey:
    return ChunkKey(number, run, attempt, sequence, removal)


def test_a_batch_loads_its_winners_by_attempt_and_sequence() -> None:
    build = Build()
    assert build.core.start() == [ReadBackfill("b", 0)]
    for message in (
        build.puts(0, "w2", 1),
        build.puts(0, "loser", 0),
        build.removals(0, "w1", 0),
        build.puts(0, "w1", 1),
        build.puts(0, "w2", 0),
    ):
        (kept,) = build.say(message)
        assert isinstance(kept, KeepChunk)
    assert build.say(build.puts(0, "w2", 0)) == []  # once more
    (load,) = build.say(build.end(0, {"w1": 2, "w2": 2}))
    assert isinstance(load, LoadBatch)
    assert load.puts == [key(0, "w1", 1), key(0, "w2", 0), key(0, "w2", 1)]
    assert load.removals == [key(0, "w1", 0, removal=True)]
    assert load.applied.timestamp == at(10)
    assert load.applied.building
    assert load.applied.backfill_position == 7
    (dropped,) = build.done([load])
    assert isinstance(dropped, DropChunks)
    assert key(0, "loser", 0) in dropped.keys
    assert build.core.applied.batch == 0


def test_missing_chunks_are_waited_for() -> None:
    build = Build()
    build.say(build.puts(0, "w", 0))
    assert build.say(build.end(0, {"w": 2})) == []
    build.say(build.puts(0, "w", 0, run="r2"))
    build.say(build.puts(0, "w", 1, run="r2"))
    (load,) = build.say(build.end(0, {"w": 2}, run="r2"))
    assert isinstance(load, LoadBatch)
    assert [one.run for one in load.puts] == ["r2", "r2"]


def test_committed_batches_other_builds_and_later_batches_do_not_count() -> None:
    build = Build()
    build.done(build.say(build.end(0, {})))
    assert build.say(build.puts(0, "zombie", 0)) == []
    assert build.say(build.end(0, {})) == []
    assert build.say(build.puts(1, "w", 0, build="other")) == []
    assert build.say(build.end(2, {})) == []
    (load,) = build.say(build.end(1, {}))
    assert isinstance(load, LoadBatch)
    assert load.applied.batch == 1


def test_the_position_keeps_chunks_of_the_next_batch() -> None:
    build = Build()
    build.say(build.puts(0, "w", 0))
    build.say(build.puts(1, "early", 0))
    (load,) = build.say(build.end(0, {"w": 1}))
    assert isinstance(load, LoadBatch)
    assert load.applied.backfill_position == 1


def test_the_end_of_the_build_waits_for_the_last_batch_and_switches() -> None:
    build = Build()
    assert build.say(BuildEnd("b", "i", 0, 1, 1)) == []
    (load,) = build.say(build.end(0, {}))
    assert isinstance(load, LoadBatch)
    assert load.applied.backfill_position == 0  # a restart must hear of the end again
    _, switch = build.done([load])
    assert isinstance(switch, SwitchOver)
    assert not switch.applied.building
    assert switch.applied.timestamp == at(10)
    out = build.done([switch])
    assert out == [DropChunks([]), ReadMutations(0)]  # the beginning of what the queue holds
    assert state(build.core) == "CATCHUP"
    hear(build.core, 0, seg(4, 14))
    stamp(build.core, 1, 14)
    assert commits(decide(build.core)) == [(1, {0: 14}, [(10, 14)])]  # cut by the backfill


def test_timestamps_pass_a_slice_under_build_by() -> None:
    build = Build()
    stamp(build.core, 1, 0)
    assert decide(build.core) == []
    assert build.core.number == UNNUMBERED


def test_an_empty_build_ends_at_once() -> None:
    build = Build()
    (switch,) = build.say(BuildEnd("b", "i", 0, 1, 0))
    assert isinstance(switch, SwitchOver)
    assert build.say(BuildEnd("b", "i", 0, 1, 0)) == []


def test_a_batch_that_leaves_a_hole_stops() -> None:
    build = Build(Applied(timestamp=at(10), build="b", batch=0, building=True))
    out = build.say(BatchEnd("b", "i", 0, "r", 1, at(12), at(20), {}))
    assert isinstance(out[0], Stop)
    assert "begins at {0: 12}" in out[0].reason


def test_a_batch_that_ends_before_what_is_reached_stops_the_slice_and_not_the_node() -> None:
    build = Build(Applied(timestamp=at(30), build="b", batch=0, building=True))
    out = build.say(BatchEnd("b", "i", 0, "r", 1, at(10), at(20), {}))
    assert isinstance(out[0], Stop)
    assert "journal was lost" in out[0].reason


def test_while_a_load_is_tried_again_nothing_is_lost() -> None:
    build = Build()
    (load,) = build.say(build.end(0, {}))
    assert build.event(Failed("disk full")) == [PauseReading()]
    assert build.say(build.puts(1, "w", 0)) == []
    assert build.say(build.end(1, {"w": 1})) == []
    dropped, kept, second = build.done([load])
    assert isinstance(dropped, DropChunks)
    assert isinstance(kept, KeepChunk)
    assert isinstance(second, LoadBatch)
    assert build.core.paused
    assert build.done([second])[-1] == Resume()


def test_a_chunk_that_cannot_be_kept_pauses_until_it_can() -> None:
    build = Build()
    build.say(build.puts(0, "w", 0))
    assert build.event(Failed("disk full")) == [PauseReading()]
    assert build.core.reason == "disk full"
    assert build.event(RetrySucceeded()) == [Resume()]
    assert build.core.reason == ""


def test_a_restart_under_build_reads_the_backfill_queue_from_its_position() -> None:
    applied = Applied(timestamp=at(10), build="b", batch=0, backfill_position=9, building=True)
    core = SliceCore("i", 0, applied, LIMITS)
    assert core.start() == [ReadBackfill("b", 9)]
    assert state(core) == "BUILDING"


def test_a_rebuilt_slice_goes_on_where_its_end_says() -> None:
    build = Build()
    (switch,) = build.say(BuildEnd("b", "i", 0, 1, 0, queue_position=41))
    assert isinstance(switch, SwitchOver)
    assert switch.applied.queue_position == 41
    assert build.done([switch])[-1] == ReadMutations(41)


# --- rollback -------------------------------------------------------------------------------------------


def history(*cuts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> History:
    """One rollback per cut, each to that timestamp (epoch 7 below it)."""
    records = [
        RollbackRecord(
            "ks",
            incarnation,
            numbers[incarnation - 1] if numbers else 0,
            Timestamp({p: Place(o, 7) for p, o in enumerate(cut)}, TOPIC_ID),
            TOPIC_ID,
            "truncated",
            0,
        )
        for incarnation, cut in enumerate(cuts, 1)
    ]
    return History(records, TOPIC_ID)


def hear_under(core: SliceCore, incarnation: int, position: int, *segments: Segment) -> list[Instruction]:
    """Segments that were read after rollbacks are of a later leader than what lies below the cuts."""
    of_leader = [structs.replace(one, epoch=8 if incarnation else 0) for one in segments]
    return core.handle(MutationData(encode(batch(of_leader, incarnation=incarnation)), position))


def rolled(applied: Applied, past: History) -> SliceCore:
    """A slice that follows its queue in a history."""
    core = SliceCore("i", 0, applied, LIMITS, history=past)
    assert core.start() == [ReadMutations(applied.queue_position)]
    return core


def test_of_a_lost_branch_only_what_lies_below_the_cut_is_heard() -> None:
    core = rolled(Applied(timestamp=at(2, 0)), history((5, 3)))
    hear_under(core, 0, 0, seg(2, 8), seg(0, 4, 1))
    assert core.heard().offsets() == {0: 5, 1: 3}
    assert core.heard().place(0) == Place(5, 7)  # its epoch is that of the record below the cut
    hear_under(core, 1, 1, seg(5, 9), seg(3, 6, 1))
    stamp(core, 9, 9, 6, incarnation=1)
    out = decide(core)
    assert commits(out) == [(9, {0: 9, 1: 6}, [(2, 5), (5, 9), (0, 3), (3, 6)])]
    assert out[-1] == Acknowledge(9, 1)
    assert core.applied.incarnation == 1


def test_the_cut_comes_before_the_tests_for_duplicates_overlaps_and_gaps() -> None:
    core = rolled(Applied(timestamp=at(3)), history((5,)))
    hear_under(core, 0, 0, seg(6, 9))  # no gap: nothing of it is there
    hear_under(core, 0, 1, seg(5, 9))
    assert core.gap_drops == 0
    assert core.following is not None
    assert core.following.stale == 2
    hear_under(core, 0, 2, seg(4, 9))  # a gap, up to the cut only
    assert core.gap_drops == 1
    hear_under(core, 1, 3, seg(3, 5))
    core.handle(CaughtUp(0))
    assert decide(core, 100_000) == []  # it is filled
    hear_under(core, 0, 4, seg(3, 9))  # a duplicate, though its end lies further on
    hear_under(core, 1, 5, seg(5, 6))
    assert core.heard().offsets() == {0: 6}


def test_each_incarnation_is_cut_where_its_own_branch_ends() -> None:
    core = rolled(Applied(timestamp=at(0)), history((6,), (4,), (8,)))
    hear_under(core, 0, 0, seg(0, 9))
    assert core.heard().offsets() == {0: 4}  # the later rollback went further back
    hear_under(core, 2, 1, seg(4, 9))
    assert core.heard().offsets() == {0: 8}
    hear_under(core, 3, 2, seg(8, 9))
    assert core.heard().offsets() == {0: 9}


def test_what_an_election_has_lost_is_let_go_of() -> None:
    """Its sender may have died before it committed or reported it: then no rollback cuts it."""
    core = live(Applied(timestamp=at(1)))
    hear(core, 0, segment(0, 1, 3, versions(1, 3), epoch=0), segment(0, 3, 6, versions(3, 6), epoch=0))
    hear(core, 1, segment(0, 2, 4, versions(2, 4), epoch=1))
    assert core.heard().offsets() == {0: 4}
    hear(core, 2, segment(0, 4, 9, versions(4, 9), epoch=0))  # late, of the leader that was replaced
    assert core.heard().offsets() == {0: 4}
    assert core.following is not None
    assert core.following.stale == 1
    hear(core, 3, segment(0, 4, 5, versions(4, 5), epoch=2))
    stamp(core, 1, 5)
    out = decide(core)
    assert commits(out) == [(1, {0: 5}, [(1, 2), (2, 4), (4, 5)])]
    assert core.queue_documents == 0


def test_a_timestamp_of_what_an_election_has_lost_is_not_committed() -> None:
    core = live()
    hear(core, 0, segment(0, 0, 3, versions(0, 3), epoch=0))
    hear(core, 1, segment(0, 1, 3, versions(1, 3), epoch=1))
    lost = Timestamp({0: Place(3, 0)}, TOPIC_ID)
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, lost, 0, 0)))
    assert decide(core) == []
    stamp(core, 2, 1)
    assert commits(decide(core)) == [(2, {0: 1}, [(0, 1)])]


def test_a_timestamp_of_what_replaced_the_held_waits_for_it() -> None:
    core = live(documents=2)
    hear(core, 0, segment(0, 0, 3, versions(0, 3), epoch=0))
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(3, 1)}, TOPIC_ID), 0, 0)))
    assert decide(core) == []  # it is full, and reads on all the same
    hear(core, 1, segment(0, 2, 3, versions(2, 3), epoch=1))
    assert commits(decide(core)) == [(1, {0: 3}, [(0, 2), (2, 3)])]


@pytest.mark.parametrize("lost", [False, True])
def test_a_timestamp_of_a_later_leader_waits_until_that_was_heard_of(lost: bool) -> None:
    """Timestamps come another way than segments, and may come first. What is held ends without a document:
    whether the later leader has one there, only its own segments tell; a heartbeat when nothing was lost."""
    core = live(Applied(timestamp=at(1)), documents=1)
    hear(core, 0, Segment(0, 1, 1, 1))  # of the later leader, but from before what is held
    hear(core, 1, segment(0, 1, 2, versions(1, 2), epoch=0), Segment(0, 0, 2, 4))
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(4, 1)}, TOPIC_ID), 0, 0)))
    assert decide(core) == []  # it is full, and reads on all the same
    replaced = segment(0, 2, 4, versions(2, 4), epoch=1)
    hear(core, 2, replaced if lost else Segment(0, 1, 4, 4))
    assert commits(decide(core)) == [(1, {0: 4}, [(1, 2), (2, 4)] if lost else [(1, 2)])]
    assert core.heard().place(0) == Place(4, 1 if lost else 0)


def test_what_continues_another_branch_than_its_sender_has_read_is_not_taken() -> None:
    """The later leader's [2, 4) was not delivered, [4, 6) was; a timestamp overtakes what is sent again."""
    core = live(Applied(timestamp=at(1)))
    hear(core, 0, segment(0, 1, 4, versions(1, 4), epoch=0))
    continues = structs.replace(segment(0, 4, 6, versions(4, 6), epoch=1), below=1)
    hear(core, 1, continues, Segment(0, 1, 4, 4, below=1))
    assert core.heard().offsets() == {0: 4}
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(6, 1)}, TOPIC_ID), 0, 0)))
    assert decide(core) == []
    hear(core, 2, structs.replace(segment(0, 2, 6, versions(2, 6), epoch=1), below=0))
    assert commits(decide(core)) == [(1, {0: 6}, [(1, 2), (2, 6)])]


@pytest.mark.parametrize(("tail", "number"), [(0, 2), (1, 1)])
def test_a_timestamp_of_an_earlier_leader_than_the_position_is_not_committed(tail: int, number: int) -> None:
    """A build has read what the log has since an election; the timestamp is of what it had before. Where that
    ends with a marker of an unknown leader, it may be of the same log."""
    core = live(Applied(timestamp=Timestamp({0: Place(4, 1)}, TOPIC_ID)))
    for issued, place in enumerate((Place(4, 0, tail), Place(4, 1)), 1):
        timestamp = Timestamp({0: place}, TOPIC_ID)
        core.handle(Stamped(issued, StabilityTimestamp("ks", 1, 0, timestamp, 0, 0)))
        assert [one for one, _, _ in commits(decide(core))] == ([issued] if issued == number else [])
        if issued == number:
            break


def test_what_the_later_leader_has_there_too_is_continued() -> None:
    """What is held ends with a marker of the later leader, whose epoch its sender did not know."""
    core = live(Applied(timestamp=at(1)))
    hear(core, 0, segment(0, 1, 2, versions(1, 2), epoch=0), Segment(0, 0, 2, 4))
    continues = structs.replace(segment(0, 4, 6, versions(4, 6), epoch=1), below=1)
    hear(core, 1, Segment(0, 1, 2, 4, below=0), continues)
    assert core.heard().place(0) == Place(6, 1)


@pytest.mark.parametrize(
    "heard",
    [
        [(0, 1, 2, 2)],  # it does not reach as far as the timestamp
        [(0, 1, 5, 7)],  # beyond what was heard: it is dropped
        [(0, 0, 4, 4)],  # of the earlier leader
    ],
)
def test_what_does_not_tell_what_the_later_leader_has_there(heard: list[tuple[int, int, int, int]]) -> None:
    core = live(Applied(timestamp=at(1)))
    hear(core, 0, segment(0, 1, 2, versions(1, 2), epoch=0), Segment(0, 0, 2, 4))
    hear(core, 1, *(Segment(*one) for one in heard))
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(4, 1)}, TOPIC_ID), 0, 0)))
    assert decide(core) == []
    hear(core, 2, segment(0, 2, 4, versions(2, 4), epoch=1))
    assert commits(decide(core)) == [(1, {0: 4}, [(1, 2), (2, 4)])]


def test_a_message_in_parts_is_heard_when_it_is_whole() -> None:
    """Its first part comes before the later leader's word, and so it is no word on what it brings."""
    core = live(Applied(timestamp=at(1)))
    long = segment(0, 1, 40, versions(1, 40), epoch=0)
    parts = split(encode(batch([long, Segment(0, 0, 40, 41)])), 200, "p", 1)
    core.handle(MutationData(parts[0], 0))
    hear(core, 1, Segment(0, 1, 1, 1), Segment(0, 1, 1, 1))
    for position, part in enumerate(parts[1:], 2):
        core.handle(MutationData(part, position))
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(41, 1)}, TOPIC_ID), 0, 0)))
    assert decide(core) == []
    hear(core, 90, Segment(0, 1, 41, 41))
    assert [number for number, _, _ in commits(decide(core))] == [1]


def test_what_made_room_and_an_election_has_lost_makes_the_slice_lost() -> None:
    """Its sender died before it reported it, so that no rollback cuts it; and it is applied."""
    core = live(documents=2)
    hear(core, 0, segment(0, 0, 3, versions(0, 3), epoch=0))
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(5, 1)}, TOPIC_ID), 0, 0)))
    assert commits(decide(core)) == [(-1, {0: 3}, [(0, 3)])]
    out = hear(core, 1, segment(0, 2, 3, versions(2, 3), epoch=1))
    assert [type(one) for one in out] == [Lose]
    assert "an election has lost records below 3" in core.reason


@pytest.mark.parametrize("vouched", [False, True])
def test_what_made_room_before_an_election_that_lost_nothing_stays(vouched: bool) -> None:
    core = live(documents=2)
    hear(core, 0, segment(0, 0, 3, versions(0, 3), epoch=0))
    if vouched:
        core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(4, 0)}, TOPIC_ID), 0, 0)))
    core.handle(Stamped(2, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(5, 1)}, TOPIC_ID), 0, 0)))
    assert commits(decide(core)) == [(-1, {0: 3}, [(0, 3)])]
    if vouched:  # then its loss is for others to find
        hear(core, 1, segment(0, 2, 3, versions(2, 3), epoch=1))
    hear(core, 2, segment(0, 2, 3, versions(2, 3), epoch=0), segment(0, 3, 5, versions(3, 5), epoch=1))
    assert commits(decide(core)) == [(2, {0: 5}, [(3, 5)])]


def test_an_election_that_lost_nothing_takes_nothing_back() -> None:
    core = live()
    hear(core, 0, segment(0, 0, 3, versions(0, 3), epoch=0))
    hear(core, 1, segment(0, 3, 3, [], epoch=1), segment(0, 0, 3, versions(0, 3), epoch=0))
    hear(core, 2, segment(0, 3, 5, versions(3, 5), epoch=1))
    hear(core, 3, segment(0, 5, 6, [], epoch=0))  # it does not know of the marker there, of a later leader
    hear(core, 4, segment(0, 5, 6, [], epoch=2))  # one that does
    assert core.heard().offsets() == {0: 6}
    assert core.queue_documents == 5


def test_a_marker_in_the_place_of_what_is_held_shows_that_it_is_lost() -> None:
    """Its sender died before it committed; the new log has nothing there that can be read."""
    core = live()
    hear(core, 0, segment(0, 0, 2, versions(0, 2), epoch=0), segment(0, 2, 3, versions(2, 3), epoch=1))
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(4, 2)}, TOPIC_ID), 0, 0)))
    hear(core, 1, segment(0, 2, 4, [], epoch=2))  # two markers of the new leader
    hear(core, 2, segment(0, 2, 5, versions(2, 5), epoch=1))  # late, of the leader that was replaced
    assert core.heard().offsets() == {0: 4}
    out = decide(core)
    assert commits(out) == [(1, {0: 4}, [(0, 2)])]
    assert [len(heard_offsets(s.heard, s.start)) for s in applied_segments(out) if s.heard] == [2]
    assert core.queue_documents == 0


def test_a_record_past_a_marker_shows_that_what_is_held_below_it_is_lost() -> None:
    core = live()
    hear(core, 0, segment(0, 0, 2, versions(0, 2), epoch=0))
    hear(core, 1, segment(0, 1, 3, versions(2, 3), epoch=1))  # at 1, a marker of the new leader
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(3, 1)}, TOPIC_ID), 0, 0)))
    out = decide(core)
    assert commits(out) == [(1, {0: 3}, [(0, 1), (1, 3)])]
    assert [list(heard_offsets(s.heard, s.start)) for s in applied_segments(out) if s.heard] == [[0], [2]]


def unheard(one: Segment) -> Segment:
    """A segment as a slice gets it that need not hear its documents (R16)."""
    there = b"" if one.heard is None else presence(heard_offsets(one.heard, 0))
    return structs.replace(one, heard=None, present=there)


def test_what_a_slice_does_not_hear_shows_what_is_lost_as_well() -> None:
    core = live()
    hear(
        core, 0, segment(0, 0, 2, versions(0, 2), epoch=0), unheard(segment(0, 2, 3, versions(2, 3), epoch=1))
    )
    core.handle(Stamped(1, StabilityTimestamp("ks", 1, 0, Timestamp({0: Place(4, 2)}, TOPIC_ID), 0, 0)))
    hear(core, 2, segment(0, 2, 4, [], epoch=2))  # two markers of the new leader
    hear(core, 3, unheard(segment(0, 2, 5, versions(2, 5), epoch=1)))  # late, of the one that was replaced
    assert core.heard().offsets() == {0: 4}
    assert commits(decide(core)) == [(1, {0: 4}, [(0, 2)])]


def test_of_a_topic_made_anew_the_old_counts_for_nothing_whatever_its_id() -> None:
    record = RollbackRecord("ks", 1, -1, Timestamp({}, "new"), "new", "recreated", 0)
    initial = Applied(timestamp=Timestamp({}, "new"), incarnation=1)
    core = SliceCore("i", 0, initial, LIMITS, history=History([record], "new"))
    assert core.start() == [ReadMutations(0)]
    assert hear_under(core, 0, 3, seg(0, 9)) == []
    assert core.heard().offsets() == {}
    message = SegmentBatch("i", 0, "p", "new", 1, 1, [seg(0, 2)], 0)
    core.handle(MutationData(encode(message), 4))
    assert core.heard().offsets() == {0: 2}


def test_a_later_history_makes_deaf_until_the_dictionary_tells() -> None:
    core = live()
    hear(core, 0, seg(0, 3))
    stamp(core, 1, 3)
    assert hear_under(core, 1, 1, seg(2, 9)) == []
    hear(core, 2, seg(3, 7))  # an old projector's, behind it
    assert core.heard().offsets() == {0: 3}
    out = decide(core)
    assert [number for number, _, _ in commits(out)] == [1]  # what was heard before still counts
    assert out[-1] == PauseReading()
    assert core.applied.queue_position == 1  # and the position does not pass it
    stamp(core, 5, 9, incarnation=1)
    assert decide(core) == []
    assert core.handle(RolledBack(history((2,)))) == [StepBack(history((2,)))]


def test_a_later_history_in_parts_holds_the_position_at_its_first() -> None:
    core = live()
    hear(core, 0, seg(0, 1))
    parts = split(encode(batch([seg(0, 30)], incarnation=1)), 200, "p", 1)
    for position, part in enumerate(parts, 1):
        core.handle(MutationData(part, position))
    stamp(core, 1, 1)
    decide(core)
    assert core.applied.queue_position == 1


def test_a_rollback_that_is_never_told_stops_the_slice_and_is_still_obeyed() -> None:
    core = live()
    hear_under(core, 3, 0, seg(0, 1))
    assert decide(core, 5_000) == [PauseReading()]
    (stop,) = decide(core, 6_001)
    assert isinstance(stop, Stop)
    assert "incarnation 3" in stop.reason
    assert core.handle(RolledBack(history((2,)))) == [StepBack(history((2,)))]


def test_a_rollback_voids_what_is_heard_and_under_way_and_begins_again_from_the_state_given() -> None:
    core = live()
    hear(core, 0, seg(0, 5))
    stamp(core, 1, 4)
    decide(core)
    stamp(core, 2, 5)
    (apply,) = core.handle(Decide(0))
    assert isinstance(apply, Apply)
    core.handle(Failed("disk full"))
    past = history((4,), numbers=(1,))
    assert core.handle(RolledBack(past)) == [StepBack(past)]
    assert (state(core), core.reason, core.incarnation) == ("CATCHUP", "", 0)
    assert core.handle(Decide(0)) == []
    assert hear(core, 1, seg(5, 6)) == []
    assert core.handle(RolledBack(past)) == []  # told again
    core.handle(Failed("disk full"))
    assert core.reason == "disk full"
    stepped = Applied(timestamp=at(4), number=1, queue_position=0)
    assert core.handle(SteppedBack(stepped, 1)) == [ReadMutations(0)]
    assert (core.number, core.incarnation, core.reason) == (1, 1, "")
    hear(core, 0, seg(0, 5))  # the lost branch is still in the queue
    hear_under(core, 1, 1, seg(4, 6))
    stamp(core, 2, 5)  # void
    stamp(core, 3, 6, incarnation=1)
    out = decide(core)
    assert commits(out) == [(3, {0: 6}, [(4, 6)])]
    assert state(core) == "LIVE"


def test_two_rollbacks_in_a_row_step_back_by_the_second() -> None:
    core = live(Applied(timestamp=at(9), number=9))
    first, both = history((8,)), history((8,), (5,))
    assert core.handle(RolledBack(first)) == [StepBack(first)]
    assert core.handle(RolledBack(both)) == [StepBack(both)]
    assert core.handle(SteppedBack(Applied(timestamp=at(5)))) == [ReadMutations(0)]
    hear_under(core, 1, 0, seg(5, 7))
    assert core.heard().offsets() == {0: 5}
    hear_under(core, 2, 1, seg(5, 7))
    assert core.heard().offsets() == {0: 7}


def test_a_state_that_is_void_is_never_taken_for_a_step_back() -> None:
    core = live(Applied(timestamp=at(9)))
    core.handle(RolledBack(history((8,))))
    with pytest.raises(InvariantViolationError, match="Untorn"):
        core.handle(SteppedBack(Applied(timestamp=at(9))))


def test_a_rollback_that_happened_while_the_slice_was_away_comes_first_at_its_start() -> None:
    past = history((4,))
    core = SliceCore("i", 0, Applied(timestamp=at(9), queue_position=8), LIMITS, history=past)
    assert core.start() == [StepBack(past)]
    assert hear(core, 8, seg(9, 10)) == []
    assert core.handle(SteppedBack(Applied(timestamp=at(3), queue_position=2))) == [ReadMutations(2)]


def test_a_state_that_holds_needs_no_step_back() -> None:
    core = rolled(Applied(timestamp=at(4), queue_position=8), history((4,)))
    assert core.incarnation == 1


def test_a_store_that_is_ahead_of_the_dictionary_waits_for_it() -> None:
    core = SliceCore("i", 0, Applied(timestamp=at(4), incarnation=2), LIMITS, history=history((4,)))
    (stop,) = core.start()
    assert isinstance(stop, Stop)
    both = history((4,), (9,))
    assert core.handle(RolledBack(both)) == [StepBack(both)]


def test_a_full_slice_that_is_paused_rolls_back_and_reads_on() -> None:
    core = live()
    hear(core, 0, seg(0, 12))
    assert decide(core) == [PauseReading()]
    core.handle(RolledBack(history((3,))))
    core.handle(SteppedBack(Applied(timestamp=at(0))))
    assert not core.paused
    hear(core, 0, seg(0, 12))
    assert core.heard().offsets() == {0: 3}


def test_a_slice_that_is_stopped_by_a_gap_rolls_back() -> None:
    core = live()
    hear(core, 0, seg(3, 5))
    core.handle(CaughtUp(0))
    assert decide(core, 2_000) == [ReadMutations(0)]
    hear(core, 0, seg(3, 5))
    core.handle(CaughtUp(2_000))
    assert isinstance(decide(core, 4_000)[0], Stop)
    assert core.handle(RolledBack(history((3,)))) == [StepBack(history((3,)))]
    core.handle(SteppedBack(Applied(timestamp=at(0))))
    assert (state(core), core.reason) == ("CATCHUP", "")


def test_a_slice_that_cannot_step_back_is_lost() -> None:
    core = live(Applied(timestamp=at(9)))
    core.handle(RolledBack(history((3,))))
    assert core.handle(DataLost("no state is left")) == [Lose("no state is left")]
    assert state(core) == "LOST"


def test_a_build_goes_on_and_does_not_switch_from_a_void_state() -> None:
    build = Build()
    build.done(build.say(build.end(0, {})))
    assert build.event(RolledBack(history((5,)))) == []
    assert state(build.core) == "BUILDING"
    (switch,) = build.say(BuildEnd("b", "i", 0, 1, 1))
    assert isinstance(switch, SwitchOver)
    (stop,) = build.done([switch])
    assert isinstance(stop, Stop)
    assert "begins again" in stop.reason


def test_a_build_whose_state_holds_switches_into_the_new_history() -> None:
    build = Build()
    build.done(build.say(build.end(0, {})))
    build.event(RolledBack(history((10,))))
    build.done(build.say(BuildEnd("b", "i", 0, 1, 1)))
    assert (state(build.core), build.core.incarnation) == ("CATCHUP", 1)
    hear_under(build.core, 1, 0, seg(10, 12))
    stamp(build.core, 1, 12, incarnation=1)
    assert commits(decide(build.core)) == [(1, {0: 12}, [(10, 12)])]
