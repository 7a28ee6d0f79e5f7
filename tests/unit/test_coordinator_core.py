"""The coordinator's stability core: when which timestamp is issued, what is published, by instruction
lists."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from coordinator.core.events import (
    CommonSnapshot,
    ControlTail,
    Event,
    Issued,
    IssueFailed,
    Reported,
    Tick,
    TopicSeen,
)
from coordinator.core.instructions import Broadcast, ConfirmTopic, Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.stability.acknowledgements import AcknowledgedNumbers
from coordinator.stability.issuer import TimestampIssuer
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord, KeyspaceRecord, Record, record_key
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model import landmarks
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import (
    Acknowledged,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    Published,
    SliceStatus,
    StabilityTimestamp,
)
from tests import share

LIMITS = CoreLimits(interval_ms=10, heartbeat_ms=200, pacing_limit_ms=2_000, node_timeout_ms=3_000)
TERM = 3


def index_record(
    id_: str = "by_city-1", state: str = "READY", placement: list[list[str]] | None = None
) -> IndexRecord:
    statement = parse_statement(f"CREATE INDEX {id_.split('-')[0]} ON people (city) WITH (slices=2)")
    assert isinstance(statement, CreateIndex)
    return IndexRecord(
        id=id_,
        definition=statement.definition,
        state=state,  # type: ignore[arg-type]
        version=1,
        placement=placement if placement is not None else [["a"], ["b"]],
        build="b2",
        created_at=0,
    )


def catalog(*indexes: IndexRecord, partitions: int = 2, incarnation: int = 0) -> Catalog:
    result = Catalog()
    bound = dict.fromkeys(range(partitions), 1 << 40)
    keyspace = KeyspaceRecord("people", "topic-1", partitions, 1, incarnation, bound)
    records: list[Record] = [keyspace, *indexes]
    for record in records:
        result.put(record_key(record), record)
    return result


class Core(TimestampIssuer):
    """A core beside a Kafka that answers at once which topic a keyspace is: the one that it is known as."""

    def handle(self, event: Event) -> list[Instruction | CommonSnapshot]:
        out: list[Instruction | CommonSnapshot] = []
        for one in super().handle(event):
            if isinstance(one, ConfirmTopic):
                known = self.streams[one.keyspace].progress.keyspace.topic_id
                out += super().handle(TopicSeen(one.keyspace, one.ask, known, "", event.now))
            else:
                out.append(one)
        return out


def core_with(*indexes: IndexRecord, partitions: int = 2) -> TimestampIssuer:
    core = Core(LIMITS, TERM)
    core.catalog_changed(catalog(*indexes, partitions=partitions), 0)
    return core


def progress(now: int, *acked: int, projector: str = "p1", **other: object) -> Reported:
    partitions = [PartitionProgress(number, offset, 0, offset, now, 1) for number, offset in enumerate(acked)]
    message = Progress("people", projector, "topic-1", 0, partitions, sum(acked), {})
    return Reported(replace(message, **other), now)


def heartbeat(
    now: int, node: str, *slices: tuple[str, int, int], state: str = "LIVE", started_at: int = 1
) -> Reported:
    statuses = [
        SliceStatus(index, number, state, "", Timestamp(), snapshot, -1, 0, 0, 0, 0, 0, 0, 0)
        for index, number, snapshot in slices
    ]
    return Reported(NodeHeartbeat(node, f"http://{node}", started_at, now, statuses, 0, 0, 0), now)


def ack(now: int, node: str, number: int, *slices: tuple[str, int]) -> Reported:
    return Reported(Acknowledged(node, "people", 0, number, list(slices)), now)


def stamps(instructions: list[Instruction | CommonSnapshot]) -> list[StabilityTimestamp]:
    return [
        one.message
        for one in instructions
        if isinstance(one, Broadcast) and isinstance(one.message, StabilityTimestamp)
    ]


def published(instructions: list[Instruction | CommonSnapshot]) -> list[Published]:
    return [
        one.message
        for one in instructions
        if isinstance(one, Broadcast) and isinstance(one.message, Published)
    ]


def issue(core: TimestampIssuer, event: Reported | Tick, number: int) -> StabilityTimestamp:
    """Hand in an event that must lead to exactly one timestamp; deliver that under `number`."""
    (stamp,) = stamps(core.handle(event))
    core.handle(Issued(stamp, number, event.now))
    return stamp


def serving(core: TimestampIssuer, number: int = 1) -> StabilityTimestamp:
    """Two live nodes that hold the first timestamp, number 1."""
    stamp = issue(core, progress(1_000, 5, 7), number)
    core.handle(heartbeat(1_000, "a", ("by_city-1", 0, number)))
    core.handle(heartbeat(1_000, "b", ("by_city-1", 1, number)))
    return stamp


def test_the_first_timestamp_waits_for_every_partition() -> None:
    core = core_with(index_record())
    assert core.handle(progress(1_000, 5)) == []
    assert core.handle(Tick(1_300)) == []
    (stamp,) = stamps(core.handle(progress(1_400, 5, 7)))
    assert stamp == StabilityTimestamp(
        "people", TERM, 0, Timestamp({0: Place(5, 0), 1: Place(7, 0)}, "topic-1"), 1_400, 1_400
    )


def test_no_timestamps_without_an_index_that_is_emitted_for() -> None:
    core = core_with(index_record(state="FAILED"))
    assert core.handle(progress(1_000, 5, 7)) == []
    assert core.handle(Tick(2_000)) == []


def test_news_is_issued_at_once_when_all_hold_the_last_one() -> None:
    core = core_with(index_record())
    serving(core)
    (stamp,) = stamps(core.handle(progress(1_011, 6, 7)))
    assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_not_before_the_interval_has_passed() -> None:
    core = core_with(index_record())
    serving(core)
    assert core.handle(progress(1_009, 6, 7)) == []
    assert core.next_due(1_009) == 1
    (stamp,) = stamps(core.handle(Tick(1_010)))
    assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_news_right_after_a_heartbeat_does_not_wait_for_the_interval() -> None:
    """The interval spares slices commits; a repetition of what they hold costs them none."""
    core = core_with(index_record())
    serving(core)
    issue(core, Tick(1_200), 2)
    assert core.next_due(1_201) == 199
    (stamp,) = stamps(core.handle(progress(1_202, 6, 7)))
    assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_one_is_on_its_way_at_a_time() -> None:
    core = core_with(index_record())
    serving(core)
    (stamp,) = stamps(core.handle(progress(1_020, 6, 7)))
    assert core.handle(progress(1_040, 8, 9)) == []
    core.handle(Issued(stamp, 2, 1_041))
    core.handle(ack(1_042, "a", 2, ("by_city-1", 0)))
    following = core.handle(ack(1_043, "b", 2, ("by_city-1", 1)))
    assert [one.timestamp.offsets() for one in stamps(following)] == [{0: 8, 1: 9}]


def test_a_slow_live_slice_holds_new_content_back_until_the_limit() -> None:
    core = core_with(index_record())
    serving(core)
    issue(core, progress(1_020, 6, 7), 2)
    core.handle(ack(1_021, "a", 2, ("by_city-1", 0)))
    assert core.handle(progress(1_040, 8, 9)) == []
    # The heartbeat goes on, with the content that is being waited for (R7).
    repeated = issue(core, Tick(1_220), 3)
    assert repeated.timestamp.offsets() == {0: 6, 1: 7}
    for beat, number in ((1_420, 4), (1_620, 5), (2_999, 6)):
        repeated = issue(core, Tick(beat), number)
        assert repeated.timestamp.offsets() == {0: 6, 1: 7}
    assert core.next_due(2_999) == 21
    (late,) = stamps(core.handle(Tick(3_020)))
    assert late.timestamp.offsets() == {0: 8, 1: 9}


def test_holding_a_repeat_of_the_content_is_enough() -> None:
    core = core_with(index_record())
    serving(core)
    issue(core, progress(1_020, 6, 7), 2)
    issue(core, Tick(1_220), 3)
    core.handle(ack(1_230, "a", 3, ("by_city-1", 0)))
    core.handle(ack(1_231, "b", 3, ("by_city-1", 1)))
    assert stamps(core.handle(progress(1_240, 8, 9)))


def test_a_dead_node_leaves_pacing_at_once() -> None:
    core = core_with(index_record())
    serving(core)
    for now in range(1_000, 4_000, 100):
        core.failure_detector.tick(min(now, 3_900))
    issue(core, progress(3_900, 6, 7), 2)
    core.handle(ack(3_901, "a", 2, ("by_city-1", 0)))
    core.handle(heartbeat(3_902, "a", ("by_city-1", 0, 2)))
    assert core.handle(progress(3_950, 8, 9)) == []
    assert core.nodes.live() == ["a", "b"]
    out = core.handle(Tick(4_001))
    assert [one.kind for one in out if isinstance(one, Note)] == ["node-lost"]
    assert core.nodes.live() == ["a"]
    assert [one.timestamp.offsets() for one in stamps(out)] == [{0: 8, 1: 9}]


@pytest.mark.parametrize(("state", "number"), [("CATCHUP", 1), ("STOPPED", 1), ("LIVE", -1)])
def test_slices_without_a_snapshot_do_not_hold_others_back(state: str, number: int) -> None:
    core = core_with(index_record())
    serving(core)
    core.handle(heartbeat(1_010, "b", ("by_city-1", 1, number), state=state, started_at=2))
    issue(core, progress(1_020, 6, 7), 2)
    core.handle(ack(1_021, "a", 2, ("by_city-1", 0)))
    assert stamps(core.handle(progress(1_040, 8, 9)))


def test_a_quiet_stream_has_heartbeats_with_growing_freshness() -> None:
    core = core_with(index_record())
    serving(core)
    core.handle(progress(1_150, 5, 7))
    (stamp,) = stamps(core.handle(Tick(1_200)))
    assert (stamp.timestamp.offsets(), stamp.fresh_at) == ({0: 5, 1: 7}, 1_150)


def test_freshness_belongs_to_the_issued_content() -> None:
    core = core_with(index_record())
    serving(core)
    issue(core, progress(1_020, 6, 7), 2)  # from now on held back by both slices
    core.handle(progress(1_100, 9, 9))
    (stamp,) = stamps(core.handle(Tick(1_220)))
    assert (stamp.timestamp.offsets(), stamp.fresh_at) == ({0: 6, 1: 7}, 1_020)


def test_older_and_foreign_progress_changes_nothing() -> None:
    core = core_with(index_record())
    serving(core)
    assert core.handle(progress(1_100, 3, 2, projector="p2")) == []
    assert core.handle(progress(1_100, 50, 70, incarnation=1)) == []
    assert core.handle(progress(1_100, 50, 70, topic_id="topic-2")) == []
    (stamp,) = stamps(core.handle(Tick(1_200)))
    assert stamp.timestamp.offsets() == {0: 5, 1: 7}


def test_a_topic_that_was_made_anew_begins_at_its_own_offsets() -> None:
    core = core_with(index_record())
    core.handle(progress(1, 1_000, 2_000))
    stream = core.streams["people"]
    assert stream.in_flight is not None
    core.handle(Issued(stream.in_flight, 5, 2))
    anew = catalog(index_record("by_city-9", state="BUILDING"))
    anew.put(
        "keyspace/people", KeyspaceRecord("people", "topic-2", 2, version=2, bound={0: 1 << 40, 1: 1 << 40})
    )
    core.catalog_changed(anew, 3)
    core.handle(progress(1_000, 3, 4, topic_id="topic-2"))
    stream = core.streams["people"]
    assert stream.in_flight is not None
    assert stream.in_flight.timestamp.offsets() == {0: 3, 1: 4}
    assert stream.in_flight.timestamp.topic_id == "topic-2"
    core.handle(Issued(stream.in_flight, 6, 1_001))
    assert stream.number == 6


def test_published_when_every_slice_holds_it_and_only_on_change() -> None:
    core = core_with(index_record())
    issue(core, progress(1_000, 5, 7), 4)
    core.handle(heartbeat(1_000, "a", ("by_city-1", 0, -1)))
    core.handle(heartbeat(1_000, "b", ("by_city-1", 1, -1)))
    assert published(core.handle(ack(1_001, "a", 4, ("by_city-1", 0)))) == []
    assert published(core.handle(ack(1_002, "b", 4, ("by_city-1", 1)))) == [
        Published("people", TERM, 0, {"by_city-1": 4})
    ]
    assert published(core.handle(ack(1_003, "b", 4, ("by_city-1", 1)))) == []


def test_acknowledgements_may_overtake_the_delivery_report() -> None:
    core = core_with(index_record())
    core.handle(heartbeat(900, "a", ("by_city-1", 0, -1)))
    core.handle(heartbeat(900, "b", ("by_city-1", 1, -1)))
    (stamp,) = stamps(core.handle(progress(1_000, 5, 7)))
    assert published(core.handle(ack(1_001, "a", 4, ("by_city-1", 0)))) == []
    assert published(core.handle(ack(1_001, "b", 4, ("by_city-1", 1)))) == []
    assert published(core.handle(Issued(stamp, 4, 1_002))) == [Published("people", TERM, 0, {"by_city-1": 4})]


def test_the_common_number_is_one_that_all_hold_not_the_smallest_of_the_newest() -> None:
    core = core_with(index_record())
    serving(core)
    for number, now in ((2, 1_220), (3, 1_440), (4, 1_660)):
        issue(core, Tick(now), number)
    core.handle(ack(1_700, "a", 2, ("by_city-1", 0)))
    assert published(core.handle(ack(1_701, "a", 4, ("by_city-1", 0)))) == []
    assert published(core.handle(ack(1_702, "b", 3, ("by_city-1", 1)))) == []
    (late,) = published(core.handle(ack(1_703, "b", 4, ("by_city-1", 1))))
    assert late.numbers == {"by_city-1": 4}


def test_a_restarted_node_holds_nothing() -> None:
    core = core_with(index_record())
    serving(core)
    issue(core, Tick(1_300), 2)
    core.handle(ack(1_301, "a", 2, ("by_city-1", 0)))
    out = core.handle(heartbeat(1_302, "a", ("by_city-1", 0, -1), started_at=99))
    assert [one.kind for one in out if isinstance(one, Note)] == ["node-restarted"]
    assert published(core.handle(ack(1_303, "b", 2, ("by_city-1", 1)))) == []
    (again,) = published(core.handle(ack(1_304, "a", 2, ("by_city-1", 0))))
    assert again.numbers == {"by_city-1": 2}


def test_a_node_that_starts_again_on_a_clock_set_back_is_heard_when_its_last_start_is_silent() -> None:
    core = core_with(index_record())
    serving(core)
    core.handle(heartbeat(1_050, "a", ("by_city-1", 0, 1), started_at=5_000))
    core.handle(heartbeat(1_060, "a", ("by_city-1", 0, -1), started_at=99))
    assert core.nodes.by_id["a"].heartbeat.started_at == 5_000, "it may be late, of before a restart"
    for now in range(1_100, 4_000, 100):
        core.failure_detector.tick(now)
    issue(core, progress(3_900, 6, 7), 2)
    core.handle(Tick(4_201))
    assert core.nodes.live() == []
    out = core.handle(heartbeat(4_300, "a", ("by_city-1", 0, -1), started_at=99))
    assert [one.kind for one in out if isinstance(one, Note)] == ["node-live"]
    assert core.nodes.by_id["a"].heartbeat.started_at == 99


TWO_COPIES = [["a", "c"], ["b", "c"]]


def two_copies(core: TimestampIssuer, *nodes: str, now: int = 1_000) -> None:
    """Heartbeats of nodes that hold snapshot 1 in all they have of the index."""
    for node in nodes:
        mine = [number for number, placed in enumerate(TWO_COPIES) if node in placed]
        core.handle(heartbeat(now, node, *(("by_city-1", number, 1) for number in mine)))


def test_every_copy_that_serves_must_hold_what_is_published() -> None:
    """Else the death of the one that does takes it from readers that have seen it (R37)."""
    core = core_with(index_record(placement=TWO_COPIES))
    issue(core, progress(1_000, 5, 7), 1)
    two_copies(core, "a", "b", "c")
    issue(core, progress(1_020, 6, 7), 2)
    assert published(core.handle(ack(1_021, "a", 2, ("by_city-1", 0)))) == []
    assert published(core.handle(ack(1_022, "b", 2, ("by_city-1", 1)))) == []
    assert published(core.handle(ack(1_023, "c", 2, ("by_city-1", 0)))) == []
    (common,) = published(core.handle(ack(1_024, "c", 2, ("by_city-1", 1))))
    assert common.numbers == {"by_city-1": 2}


def test_a_new_leader_waits_for_copies_that_it_has_not_heard_until_they_are_silent() -> None:
    core = core_with(index_record(placement=TWO_COPIES))
    issue(core, progress(1_000, 5, 7), 1)
    two_copies(core, "a", "b")
    assert core.streams["people"].published == {}
    for now in range(1_100, 4_400, 100):
        if now % 500 == 0:
            two_copies(core, "a", "b", now=now)
        core.handle(Tick(now))
        assert core.streams["people"].published == {} or now > LIMITS.node_timeout_ms
    assert core.streams["people"].published == {"by_city-1": 1}


def test_a_copy_that_catches_up_or_is_dead_is_not_waited_for() -> None:
    core = core_with(index_record(placement=TWO_COPIES))
    issue(core, progress(1_000, 5, 7), 1)
    two_copies(core, "a", "b")
    (common,) = published(core.handle(heartbeat(1_001, "c", state="CATCHUP")))
    assert common.numbers == {"by_city-1": 1}
    two_copies(core, "c", now=1_002)  # it serves from now on
    issue(core, progress(1_020, 6, 7), 2)
    core.handle(ack(1_021, "a", 2, ("by_city-1", 0)))
    assert published(core.handle(ack(1_022, "b", 2, ("by_city-1", 1)))) == []
    for now in range(1_100, 4_600, 100):
        if now % 500 == 0:
            two_copies(core, "a", "b", now=now)
        core.handle(Tick(now))
    assert core.streams["people"].published == {"by_city-1": 2}


def test_a_copy_that_lags_is_not_waited_for() -> None:
    core = core_with(index_record(placement=TWO_COPIES))
    issue(core, progress(1_000, 5, 7), 1)
    two_copies(core, "a", "b", "c")
    issue(core, progress(1_020, 6, 7), 2)
    core.handle(ack(1_021, "a", 2, ("by_city-1", 0)))
    core.handle(ack(1_022, "b", 2, ("by_city-1", 1)))
    number = 3
    told: list[Published] = []
    for now in range(1_100, 12_000, 100):
        if now % 500 == 0:
            two_copies(core, "a", "b", "c", now=now)
        out = core.handle(Tick(now))
        for stamp in stamps(out):
            out += core.handle(Issued(stamp, number, now))
            out += core.handle(ack(now, "a", number, ("by_city-1", 0)))
            out += core.handle(ack(now, "b", number, ("by_city-1", 1)))
            number += 1
        told += published(out)
    late = {("c", "by_city-1", 0), ("c", "by_city-1", 1)}
    assert core.streams["people"].lagging == late
    assert core.streams["people"].published["by_city-1"] > 2
    assert told[-1].behind == {"c": {"by_city-1": [0, 1]}}, "readers ask the others"
    assert told[0].behind == {}, "it was waited for"


def test_where_no_copy_serves_one_that_holds_it_is_enough() -> None:
    core = core_with(index_record(placement=TWO_COPIES))
    issue(core, progress(1_000, 5, 7), 1)
    for node in "abc":
        core.handle(heartbeat(1_001, node, state="CATCHUP"))
    assert published(core.handle(ack(1_002, "a", 1, ("by_city-1", 0)))) == []
    (common,) = published(core.handle(ack(1_003, "c", 1, ("by_city-1", 1))))
    assert common.numbers == {"by_city-1": 1}


def test_nodes_that_hold_no_slice_of_it_do_not_count() -> None:
    core = core_with(index_record())
    issue(core, progress(1_000, 5, 7), 1)
    core.handle(ack(1_001, "a", 1, ("by_city-1", 0)))
    assert published(core.handle(ack(1_002, "stranger", 1, ("by_city-1", 1)))) == []


def test_an_index_under_build_tells_its_build_instead() -> None:
    core = core_with(index_record(state="BUILDING"))
    stamp = issue(core, progress(1_000, 5, 7), 1)
    core.handle(ack(1_001, "a", 1, ("by_city-1", 0)))
    out = core.handle(ack(1_002, "b", 1, ("by_city-1", 1)))
    assert out == [CommonSnapshot("by_city-1", 1, stamp.timestamp, 1_002)]
    ready = core.catalog_changed(catalog(index_record()), 1_003)
    assert published(ready) == [Published("people", TERM, 0, {"by_city-1": 1})]


def test_without_a_ready_index_timestamps_come_with_the_heartbeat_only() -> None:
    core = core_with(index_record(state="BUILDING"))
    issue(core, progress(1_000, 5, 7), 1)
    assert core.handle(progress(1_100, 6, 7)) == []
    (stamp,) = stamps(core.handle(Tick(1_200)))
    assert stamp.timestamp.offsets() == {0: 6, 1: 7}


def test_what_is_published_is_repeated_for_late_readers() -> None:
    core = core_with(index_record())
    serving(core)
    (again,) = published(core.handle(Tick(1_400)))
    assert again.numbers == {"by_city-1": 1}
    assert published(core.handle(Tick(1_500))) == []


def test_a_timestamp_that_was_not_sent_is_sent_again() -> None:
    core = core_with(index_record())
    serving(core)
    (stamp,) = stamps(core.handle(progress(1_020, 6, 7)))
    out = core.handle(IssueFailed(stamp, "timed out", 1_100))
    assert [one.kind for one in out if isinstance(one, Note)] == ["timestamp-not-sent"]
    (again,) = stamps(core.handle(Tick(1_220)))
    assert again.timestamp == stamp.timestamp


def test_a_new_leader_goes_on_where_the_last_one_was() -> None:
    core = core_with(index_record())
    old = StabilityTimestamp("people", 2, 0, Timestamp.of({0: 50, 1: 60}, "topic-1"), 900, 950)
    stranger = StabilityTimestamp("people", 2, 0, Timestamp.of({0: 999}, "topic-0"), 900, 950)
    common = Published("people", 2, 0, {"by_city-1": 31, "gone-7": 30})
    core.handle(ControlTail(((30, stranger), (31, old)), (common,), 1_000))
    # A projector that took over sends again from its last commit: its progress is behind.
    (stamp,) = stamps(core.handle(progress(1_001, 40, 61)))
    assert stamp.timestamp.offsets() == {0: 50, 1: 61}
    assert stamp.term == TERM
    core.handle(Issued(stamp, 40, 1_002))
    core.handle(ack(1_003, "a", 31, ("by_city-1", 0)))
    assert published(core.handle(ack(1_003, "b", 31, ("by_city-1", 1)))) == []
    core.handle(ack(1_004, "a", 40, ("by_city-1", 0)))
    assert published(core.handle(ack(1_005, "b", 40, ("by_city-1", 1))))[0].numbers == {"by_city-1": 40}


def test_histories_at_random_keep_the_invariants() -> None:
    """Random reports, losses and restarts: contents and numbers only grow, what is published is held by all,
    it never goes back."""
    for seed in share.seeds(600):
        random_history(random.Random(seed))


def random_history(rng: random.Random) -> None:
    core = core_with(index_record())
    held: dict[str, set[int]] = {"a": set(), "b": set()}
    slices = {"a": 0, "b": 1}
    started = {"a": 1, "b": 1}
    acked = [0, 0]
    number, now = 10, 1_000
    last, last_published = Timestamp(), -1
    waiting: list[StabilityTimestamp] = []
    known: list[int] = []

    def take(out: list[Instruction | CommonSnapshot]) -> None:
        nonlocal last, last_published
        for stamp in stamps(out):
            assert stamp.timestamp.covers(last)
            last = stamp.timestamp
            waiting.append(stamp)
        for message in published(out):
            common = message.numbers["by_city-1"]
            assert common >= last_published
            assert common == last_published or (common in held["a"] and common in held["b"])
            last_published = common

    for _ in range(120):
        now += rng.choice((0, 1, 5, 30, 150))
        node = rng.choice(("a", "b"))
        match rng.randrange(6):
            case 0:
                behind = rng.choice((0, 0, 3))
                acked = [offset + rng.randrange(4) for offset in acked]
                take(core.handle(progress(now, *(max(0, offset - behind) for offset in acked))))
            case 1 if waiting:
                stamp, number = waiting.pop(), number + rng.randrange(1, 4)
                if rng.random() < 0.1:
                    take(core.handle(IssueFailed(stamp, "lost", now)))
                else:
                    known.append(number)
                    take(core.handle(Issued(stamp, number, now)))
            case 2 | 3 if known:
                mine = rng.choice(known[-4:])
                if mine > max(held[node], default=-1):
                    held[node].add(mine)
                    take(core.handle(ack(now, node, mine, ("by_city-1", slices[node]))))
            case 4:
                if rng.random() < 0.1:
                    started[node] += 1
                    held[node].clear()
                newest = max(held[node], default=-1)
                beat = heartbeat(now, node, ("by_city-1", slices[node], newest), started_at=started[node])
                take(core.handle(beat))
            case _:
                take(core.handle(Tick(now)))
    assert len(waiting) <= 1


def test_a_replicas_oldest_numbers_are_forgotten_but_for_landmarks() -> None:
    acknowledged = AcknowledgedNumbers(newest=4, landmarks=4)
    for number in range(1_000):
        acknowledged.acknowledge("a", "x", [0], number)
        if number % 7 == 0:
            acknowledged.acknowledge("b", "x", [1], number)
    one, both = (acknowledged.required("x", copies, []) for copies in ([(0, "a")], [(0, "a"), (1, "b")]))
    kept = [number for number in range(1_000) if not acknowledged.lacking("x", number, one)]
    assert set(range(996, 1_000)) <= set(kept)
    assert len(kept) <= 3 * 8
    best = max(range(900), key=lambda number: (landmarks.rank(number), number))
    assert best in kept
    common = acknowledged.newest_common("x", both)
    assert common == -1 or (common in kept and common % 7 == 0)
    acknowledged.reset("a")
    assert acknowledged.newest_common("x", both) == -1
