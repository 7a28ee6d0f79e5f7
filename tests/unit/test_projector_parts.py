"""The parts of the projector's shell that decide something: batches, first places, commits, queues that are
stuck."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pytest
from confluent_kafka import KafkaError
from msgspec.structs import replace
from prometheus_client import REGISTRY

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    KeyspaceRecord,
    RollbackRecord,
    encode_record,
    record_key,
)
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.kafka.broker_watch import BrokerWatch
from keytide.kafka.lasting_producer import LastingProducer
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place, Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import load_settings
from keytide.wire.messages import QUEUE_UNAVAILABLE, Segment, SegmentBatch, decode
from projector.core.pipeline import Columns, MessageLimits, Pipeline, batches_of, reached_by
from projector.core.projection import SourceBatch
from projector.progress.commits import (
    Committed,
    beginning,
    check,
    decode_metadata,
    encode_metadata,
    first_place,
    take_over,
)
from projector.progress.events import Assigned, Checked, CommitDone, Key, Located, Reached, Refused
from projector.progress.partition import PartitionState
from projector.service import reports as report
from projector.service.membership import Membership
from projector.service.sender import QueueSender
from projector.service.source import GroupMember
from projector.service.transport import KafkaTransport
from tests.simulation.chance import plan
from tests.simulation.world import World

KEY = Key("orders", 1)


def columns(*offsets: int, epoch: int = 0) -> Columns:
    return Columns(
        epoch,
        list(offsets),
        [b"id-%d" % o for o in offsets],
        [b'{"city": "c"}' for _ in offsets],
        [1_000 + o for o in offsets],
    )


def index(
    id_: str = "a-1", version: int = 1, state: str = "BUILDING", slices: int = 2, by: str = ""
) -> IndexRecord:
    name = id_.split("-")[0]
    options = f"WITH (slices={slices})" if slices else ""
    statement = parse_statement(f"CREATE INDEX {name} ON orders (city) {by} {options}")
    assert isinstance(statement, CreateIndex)
    return IndexRecord(id_, statement.definition, state, version, [], f"b-{id_}", 0)  # type: ignore[arg-type]


def catalog(
    *records: IndexRecord | BuildRecord | RollbackRecord,
    version: int = 1,
    topic_id: str = "T",
    incarnation: int = 0,
) -> Catalog:
    found = Catalog()
    for record in (*records, KeyspaceRecord("orders", topic_id, 2, version, incarnation)):
        found.apply(record_key(record), encode_record(record), 0)
    return found


class TestBatches:
    def test_a_batch_begins_at_the_position_and_ends_at_the_new_one(self) -> None:
        batches = batches_of(KEY, 10, 30, -1, [columns(12, 15)])
        assert [(b.start, b.end, list(b.offsets)) for b in batches] == [(10, 16, [12, 15]), (16, 30, [])]
        assert [b.epoch for b in batches] == [0, 0]

    def test_without_records_it_is_the_range_alone(self) -> None:
        assert batches_of(KEY, 10, 12, 4, []) == [SourceBatch(1, 4, 10, 12, [], [], [], [], 4)]
        assert batches_of(KEY, 10, 10, 4, []) == [SourceBatch(1, 4, 10, 10, [], [], [], [], 4)]

    def test_each_batch_says_which_leader_was_read_below_it(self) -> None:
        runs = [columns(10, 11, epoch=4), columns(12, 13, epoch=6)]
        batches = batches_of(KEY, 10, 16, 3, runs)
        assert [(b.start, b.epoch, b.below) for b in batches] == [(10, 4, 3), (12, 6, 4), (14, 6, 6)]

    def test_a_range_above_a_marker_is_of_the_markers_leader(self) -> None:
        batches = batches_of(KEY, 10, 14, 4, [columns(10, 11, epoch=5)], 6)
        assert [(b.start, b.end, b.epoch) for b in batches] == [(10, 12, 5), (12, 14, 6)]
        assert reached_by(batches, 3, 6) == Reached(14, 6), "nothing lies between the marker and the end"
        (batch,) = batches_of(KEY, 10, 12, 4, [], 6)
        assert (batch.start, batch.end, batch.epoch) == (10, 12, 6)

    def test_a_range_that_shows_no_leader_is_counted(self) -> None:
        assert reached_by(batches_of(KEY, 10, 12, 4, []), 3) == Reached(12, 4, 5)
        assert reached_by(batches_of(KEY, 10, 14, 4, [columns(10, 11, epoch=5)]), 3) == Reached(14, 5, 2)
        assert reached_by(batches_of(KEY, 12, 12, 4, []), 3) == Reached(12, 4, 3), "a heartbeat"

    def test_records_below_the_position_were_sent_before(self) -> None:
        (batch,) = batches_of(KEY, 10, 12, -1, [columns(8, 9, 10, 11)])
        assert (batch.start, batch.end, list(batch.offsets)) == (10, 12, [10, 11])
        assert batch.ids == [b"id-10", b"id-11"]
        assert list(batch.times) == [1_010, 1_011]

    def test_a_change_of_the_leader_cuts(self) -> None:
        batches = batches_of(KEY, 0, 5, -1, [columns(0, 1, epoch=3), columns(3, 4, epoch=4)])
        assert [(b.start, b.end, b.epoch) for b in batches] == [(0, 2, 3), (2, 5, 4)]

    def test_a_hole_that_no_segment_can_count_over_is_one_of_its_own(self) -> None:
        far = 5_000_000_000
        batches = batches_of(KEY, 0, far + 1, -1, [columns(far)])
        assert [(b.start, b.end) for b in batches] == [(0, far), (far, far + 1)]


class TestPipeline:
    def test_partitions_at_different_versions_send_for_their_own_indexes(self) -> None:
        found = catalog(index("a-1", 1), index("b-2", 2), version=2)
        pipeline = Pipeline("me", MessageLimits(1 << 20, 1 << 20))
        old = batches_of(Key("orders", 0), 0, 1, -1, [columns(0)])
        new = batches_of(Key("orders", 1), 5, 6, -1, [columns(5)])
        sent = [decode(m.value) for m in pipeline.emit(found, "orders", {1: old, 2: new}, 77)]
        assert all(isinstance(message, SegmentBatch) for message in sent)
        said = sorted(
            (m.index, m.slice, m.version, [(s.partition, s.start, s.end) for s in m.segments])
            for m in sent
            if isinstance(m, SegmentBatch)
        )
        assert said == [
            ("a-1", 0, 1, [(0, 0, 1)]),
            ("a-1", 0, 2, [(1, 5, 6)]),
            ("a-1", 1, 1, [(0, 0, 1)]),
            ("a-1", 1, 2, [(1, 5, 6)]),
            ("b-2", 0, 2, [(1, 5, 6)]),
            ("b-2", 1, 2, [(1, 5, 6)]),
        ]
        assert pipeline.documents["orders"] == 2

    def test_bytes_do_not_grow_with_the_slices_of_an_index_by_id(self) -> None:
        batches = batches_of(KEY, 0, 5_000, -1, [columns(*range(5_000))])
        sizes: dict[tuple[bool, int], float] = {}
        for by_id, slices in product((True, False), (4, 64)):
            pipeline = Pipeline("me", MessageLimits(1 << 20, 1 << 20))
            by = "PARTITION BY HASH(id)" if by_id else ""
            found = catalog(replace(index("a-1", 1, slices=slices, by=by), hears_by_id=by_id))
            messages = pipeline.emit(found, "orders", {1: batches}, 0)
            assert len({message.slice for message in messages}) == slices
            sizes[by_id, slices] = sum(len(message.value) for message in messages) / 5_000
            assert pipeline.heard["a-1"] == (5_000 if by_id else 5_000 * slices)
            assert pipeline.spared["a-1"] == 5_000 * slices - pipeline.heard["a-1"]
        assert sizes[True, 64] < 1.1 * sizes[True, 4], sizes
        assert sizes[False, 64] > 10 * sizes[False, 4], sizes

    @pytest.mark.parametrize("every", [2, 1_000])
    def test_nor_do_they_much_where_offsets_have_holes(self, every: int) -> None:
        """Transactions of one record, a compacted topic: every slice is told where documents are."""
        offsets = range(0, 3_000 * every, every)
        batches = batches_of(KEY, 0, offsets[-1] + 1, -1, [columns(*offsets)])
        sizes: dict[int, float] = {}
        for slices in (4, 64):
            found = catalog(replace(index(slices=slices, by="PARTITION BY HASH(id)"), hears_by_id=True))
            pipeline = Pipeline("me", MessageLimits(1 << 20, 1 << 20))
            messages = pipeline.emit(found, "orders", {1: batches}, 0)
            sizes[slices] = sum(len(zlib.compress(message.value, 1)) for message in messages) / 3_000
        assert sizes[64] < sizes[4] + 64 / 4, "two bits to each slice, and what a message takes"

    def test_an_index_that_was_altered_before_it_was_built_is_projected_as_it_is_now(self) -> None:
        """Under its id: its build was cancelled, and it is partitioned otherwise now."""
        pipeline, other = (Pipeline("me", MessageLimits(1 << 20, 1 << 20)) for _ in range(2))
        batches = {1: batches_of(KEY, 0, 40, -1, [columns(*range(40))])}
        spread = "PARTITION BY HASH(city) SUBPARTITION BY HASH(id) SLICES 2"
        before = catalog(replace(index(by=spread, slices=0), hears_by_id=True))
        pipeline.emit(before, "orders", batches, 0)
        altered = catalog(replace(index(by="PARTITION BY HASH(id)", slices=8), hears_by_id=True))
        assert pipeline.emit(altered, "orders", batches, 0) == other.emit(altered, "orders", batches, 0)

    def test_a_suspended_index_is_not_sent_for(self) -> None:
        pipeline = Pipeline("me", MessageLimits(1 << 20, 1 << 20))
        pipeline.suspend("a-1")
        found = catalog(index("a-1", 1), index("b-2", 1))
        messages = pipeline.emit(found, "orders", {1: batches_of(KEY, 0, 1, -1, [columns(0)])}, 0)
        assert {message.index_id for message in messages} == {"b-2"}
        assert pipeline.outcomes["a-1"][QUEUE_UNAVAILABLE] == 1
        pipeline.resume("a-1")  # built again: its past is not told of the new build
        assert QUEUE_UNAVAILABLE not in pipeline.outcomes["a-1"]
        assert pipeline.emitting(found, "orders", 1) != []

    def test_messages_are_cut_at_offsets_and_stay_adjacent(self) -> None:
        pipeline = Pipeline("me", MessageLimits(2_000, 1 << 20))
        found = catalog(index("a-1", 1, slices=1))
        batches = batches_of(KEY, 0, 500, -1, [columns(*range(500))])
        messages = pipeline.emit(found, "orders", {1: batches}, 0)
        assert len(messages) > 5
        segments: list[Segment] = []
        for message in messages:
            batch = decode(message.value)
            assert isinstance(batch, SegmentBatch)
            segments += batch.segments
        assert segments[0].start == 0
        assert segments[-1].end == 500
        assert all(one.end == two.start for one, two in pairwise(segments))
        assert max(len(message.value) for message in messages) < 2_500


class TestCommits:
    def test_metadata_is_read_back(self) -> None:
        said = decode_metadata(encode_metadata(7, "T", 3))
        assert (said.v, said.topic_id, said.epoch) == (7, "T", 3)

    @pytest.mark.parametrize("text", ["", "NONE", "{}", '{"v": "x"}', "[1]"])
    def test_a_commit_that_is_not_ours_has_version_0(self, text: str) -> None:
        assert decode_metadata(text).v == 0

    def test_a_commit_of_this_topic_is_taken_over(self) -> None:
        assert taken(25, 3, encode_metadata(7, "T", 3)) == Assigned(KEY, 25, 7, 3, leader_epoch=5)

    def test_no_commit_is_no_version(self) -> None:
        assert taken(None, -1, "") == Assigned(KEY, None, 0, -1, leader_epoch=5)

    @pytest.mark.parametrize(("commit_id", "catalog_id"), [("T", "T"), ("U", "T")])
    def test_another_topic_of_that_name_is_refused(self, commit_id: str, catalog_id: str) -> None:
        text = encode_metadata(7, commit_id, 3)
        got = taken(50, 3, text, catalog(index(), topic_id=catalog_id), topic_id="U")
        assert isinstance(got, Refused)
        assert got.lost
        assert got.topic_id == "U"
        assert "made anew" in got.reason

    def test_a_commit_of_a_topic_that_the_dictionary_has_forgotten_means_nothing(self) -> None:
        text = encode_metadata(7, "T", 3)
        got = taken(50, 3, text, catalog(index(), topic_id="U"), topic_id="U")
        assert got == Assigned(KEY, None, 0, -1, leader_epoch=5)

    @pytest.mark.parametrize(("offset", "epoch"), [(61, 5), (35, 3), (61, -1), (20, 2)])
    def test_a_place_that_is_not_on_the_log_is_lost(self, offset: int, epoch: int) -> None:
        got = taken(offset, epoch, encode_metadata(7, "T", epoch))
        assert isinstance(got, Refused)
        assert got.lost
        assert (got.offset, got.epoch) == (offset, epoch)
        assert "no longer on the log" in got.reason

    def test_a_topic_that_is_gone_is_refused_and_not_lost(self) -> None:
        got = take_over(
            KEY, beginning(KEY, Committed(50, 3, ""), catalog()), LogHistory(), Place(0), catalog(index())
        )
        assert isinstance(got, Refused)
        assert not got.lost

    def test_a_partition_that_the_broker_does_not_know_yet_is_not_lost(self) -> None:
        begin = beginning(KEY, Committed(None, -1, ""), catalog())
        got = take_over(KEY, begin, LogHistory("T", {}), None, catalog(index()))
        assert isinstance(got, Refused)
        assert not got.lost

    def test_a_place_behind_markers_of_a_later_epoch_says_how_many_they_are(self) -> None:
        got = taken(32, 3, encode_metadata(7, "T", 3, tail=2), parted=False)
        assert got == Assigned(KEY, 32, 7, 3, tail=2, leader_epoch=5)


LOG = PartitionHistory(low=0, high=60, leader_epoch=5, branches=((1, 10), (3, 30), (5, 60)))


def taken(
    offset: int | None,
    epoch: int,
    metadata: str,
    known: Catalog | None = None,
    *,
    topic_id: str = "T",
    log: PartitionHistory = LOG,
    parted: bool = True,
) -> Assigned | Refused:
    """What becomes of a commit on a log."""
    known = known or catalog(index(version=7), version=7)
    begin = beginning(KEY, Committed(offset, epoch, metadata), known)
    history = LogHistory(topic_id, {KEY.partition: log})
    parting = history.parting(KEY.partition, begin.place or Place(0)) if parted else None
    return take_over(KEY, begin, history, parting, known)


def rollback(incarnation: int, offset: int, epoch: int = 1, cause: str = "truncated") -> RollbackRecord:
    timestamp = Timestamp({1: Place(offset, epoch)} if offset else {}, "T")
    return RollbackRecord("orders", incarnation, 5, timestamp, "T", cause, 0)  # type: ignore[arg-type]


class TestRollback:
    """Where reading goes on after rollbacks, whatever commit is there (R30)."""

    def known(self, *rollbacks: RollbackRecord, topic_id: str = "T") -> Catalog:
        newest = max((record.incarnation for record in rollbacks), default=0)
        return catalog(index(version=7), *rollbacks, version=7, topic_id=topic_id, incarnation=newest)

    def test_a_commit_past_the_cut_begins_at_the_cut(self) -> None:
        got = taken(50, 4, encode_metadata(7, "T", 4, 0), self.known(rollback(1, 8)))
        assert got == Assigned(KEY, 8, 7, 1, incarnation=1, leader_epoch=5)

    def test_a_commit_below_the_cut_stays(self) -> None:
        got = taken(25, 3, encode_metadata(7, "T", 3, 0), self.known(rollback(1, 28, 3)))
        assert got == Assigned(KEY, 25, 7, 3, incarnation=1, leader_epoch=5)

    def test_of_two_rollbacks_the_deeper_cut_counts(self) -> None:
        known = self.known(rollback(1, 8), rollback(2, 40, 5))
        assert taken(50, 4, encode_metadata(7, "T", 4, 0), known) == Assigned(KEY, 8, 7, 1, 2, 0, 5)
        assert taken(50, 5, encode_metadata(7, "T", 5, 1), known) == Assigned(KEY, 40, 7, 5, 2, 0, 5)
        assert taken(50, 5, encode_metadata(7, "T", 5, 2), known) == Assigned(KEY, 50, 7, 5, 2, 0, 5)

    def test_a_commit_of_a_later_incarnation_waits_for_the_catalog(self) -> None:
        got = taken(99, 9, encode_metadata(7, "U", 9, 2), self.known(rollback(1, 8)))
        assert got == Assigned(KEY, 99, 7, 9, incarnation=2)

    def test_a_zombie_commit_that_was_answered_last_is_worth_what_lies_below_the_cut(self) -> None:
        """The group keeps whichever commit came last; neither loses anything."""
        known = self.known(rollback(1, 8))
        zombie = taken(55, 4, encode_metadata(7, "T", 4, 0), known)
        assert isinstance(zombie, Assigned)
        assert zombie.offset == 8
        assert zombie.incarnation == 1

    def test_a_topic_made_anew_is_read_from_its_beginning(self) -> None:
        known = self.known(rollback(1, 0, cause="recreated"), topic_id="U")
        got = taken(50, 3, encode_metadata(7, "T", 3, 0), known, topic_id="U")
        assert got == Assigned(KEY, 0, 7, -1, incarnation=1, leader_epoch=5)

    def test_without_a_commit_a_ready_index_is_fed_from_the_cut(self) -> None:
        build = BuildRecord(
            "b-a-1", "orders", ["a-1"], "READY", Timestamp.of({0: 10, 1: 20}), 0, low_watermark={1: 22}
        )
        for cut, start in ((0, 0), (15, 15), (40, 22)):
            known = catalog(index(state="READY"), build, rollback(1, cut), incarnation=1)
            assert first_place(KEY, LOG, known, has_commit=False) == Located(KEY, start)
        again = replace(build, incarnation=1, low_watermark={1: 30})
        known = catalog(index(state="READY"), again, rollback(1, 15), incarnation=1)
        assert first_place(KEY, LOG, known, has_commit=False) == Located(KEY, 30)


class TestCheck:
    """After a change of leader."""

    def check(self, place: Place, topic_id: str = "T", log: PartitionHistory = LOG) -> Checked | Refused:
        history = LogHistory(topic_id, {KEY.partition: log})
        parting = history.parting(KEY.partition, place)
        return check(KEY, place, 3, history, parting, catalog(index()))

    def test_a_place_on_the_log_goes_on(self) -> None:
        assert self.check(Place(30, 3)) == Checked(KEY, 5)

    def test_a_place_off_the_log_is_lost(self) -> None:
        got = self.check(Place(31, 3))
        assert isinstance(got, Refused)
        assert (got.lost, got.incarnation, got.offset, got.epoch) == (True, 3, 31, 3)

    def test_another_topic_is_lost(self) -> None:
        got = self.check(Place(30, 3), topic_id="U")
        assert isinstance(got, Refused)
        assert (got.lost, got.topic_id) == (True, "U")


ENDS = PartitionHistory(low=3, high=30, stable=25)


class TestFirstPlace:
    def build(self, load: dict[int, int], low: dict[int, int] | None = None) -> BuildRecord:
        return BuildRecord(
            "b-a-1", "orders", ["a-1"], "BACKFILL", Timestamp.of(load), 0, low_watermark=low or {}
        )

    def test_history_is_the_backfills(self) -> None:
        found = catalog(index(), self.build({0: 10, 1: 20}))
        assert first_place(KEY, ENDS, found, has_commit=False) == Located(KEY, 25)

    def test_a_partition_that_came_after_the_build_is_read_from_0(self) -> None:
        found = catalog(index(), self.build({0: 10}))
        assert first_place(KEY, ENDS, found, has_commit=False) == Located(KEY, 0)

    def test_a_lost_commit_goes_on_from_the_first_activation(self) -> None:
        found = catalog(index(), self.build({0: 10, 1: 20}, low={1: 22}))
        assert first_place(KEY, ENDS, found, has_commit=False) == Located(KEY, 22)

    def test_a_commit_without_indexes_jumps_to_the_end(self) -> None:
        found = catalog(index(), self.build({0: 10, 1: 20}, low={1: 22}))
        assert first_place(KEY, ENDS, found, has_commit=True) == Located(KEY, 25)


class TestSender:
    """Nothing listens at the address: messages stay outstanding, which is all that these need."""

    def sender(self) -> tuple[QueueSender, list[tuple[int, int, str | None]], list[float]]:
        told: list[tuple[int, int, str | None]] = []
        now = [100.0]
        settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
        transport = KafkaTransport(settings)
        sender = QueueSender(
            settings, transport, lambda *news: told.append(news), partial(BrokerWatch, bool), lambda: now[0]
        )
        return sender, told, now

    def test_dropping_an_index_acknowledges_its_messages_and_no_others(self) -> None:
        sender, told, _ = self.sender()
        for poll in (1, 1, 2):
            sender.send(poll, "a-1", 0, b"x")
        sender.send(2, "b-2", 0, b"xyz")
        assert sender.bytes_in_flight == 6
        sender.drop("a-1")
        assert told == [(1, 2, None), (2, 1, None)]
        sender.drop("a-1")
        assert len(told) == 2

    def test_a_queue_is_to_blame_only_when_kafka_takes_other_things(self) -> None:
        sender, _, now = self.sender()
        limit = load_settings().projector.queue_unavailable_s
        sender.send(1, "a-1", 0, b"x")
        now[0] += limit + 1
        assert sender.stuck(alive_at=100.0) == {}, "all of Kafka is away"
        now[0] = 100.0
        for _ in range(limit):
            now[0] += 1
            assert sender.stuck(alive_at=now[0]) == {}, "not yet"
        now[0] += 1
        assert sender.stuck(alive_at=now[0]) == {"a-1": limit + 1}

    def test_the_time_in_which_kafka_was_away_is_not_counted(self) -> None:
        """Kafka comes back, the first queue takes at once, the others a moment later."""
        sender, _, now = self.sender()
        limit = load_settings().projector.queue_unavailable_s
        sender.send(1, "a-1", 0, b"x")
        sender.send(1, "b-2", 0, b"x")
        now[0] += limit + 12
        sender._delivered(0, 1, "b-2", 0, 1, None, None)
        assert sender.stuck(alive_at=now[0]) == {}
        back = now[0]
        while now[0] < back + limit:
            now[0] += 1
            assert sender.stuck(alive_at=now[0]) == {}
        now[0] += 1
        assert sender.stuck(alive_at=now[0]) == {"a-1": limit + 1}, "from here on it is the queue's fault"

    def test_the_time_in_which_this_process_stood_still_is_not_counted(self) -> None:
        sender, _, now = self.sender()
        limit = load_settings().projector.queue_unavailable_s
        sender.send(1, "a-1", 0, b"x")
        sender.stuck(alive_at=now[0])
        now[0] += 3 * limit
        assert sender.stuck(alive_at=now[0]) == {}

    def test_no_queue_is_to_blame_while_their_client_is_without_brokers(self) -> None:
        sender, _, now = self.sender()
        limit = load_settings().projector.queue_unavailable_s
        sender.send(1, "a-1", 0, b"x")
        with mock.patch.object(LastingProducer, "has_broker", False):
            for _ in range(5 * limit):
                now[0] += 1
                assert sender.stuck(alive_at=now[0]) == {}
        for _ in range(limit + 2):
            now[0] += 1
            stuck = sender.stuck(alive_at=now[0])
        assert stuck, "its time begins when it has one again"

    def test_a_queue_that_is_sent_nothing_more_is_not_to_blame(self) -> None:
        sender, _, now = self.sender()
        limit = load_settings().projector.queue_unavailable_s
        sender.send(1, "a-1", 0, b"x")
        sender._delivered(0, 1, "a-1", 0, 1, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), None)
        now[0] += limit + 1  # its partitions went to another projector meanwhile
        assert sender.stuck(alive_at=now[0]) == {}

    def test_a_queue_that_refuses_every_message_is_to_blame(self) -> None:
        sender, _, now = self.sender()
        limit = load_settings().projector.queue_unavailable_s
        for poll in range(limit + 2):
            now[0] += 1
            sender.send(poll, "a-1", 0, b"x")
            sender._delivered(0, poll, "a-1", 0, 1, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), None)
            found = sender.stuck(alive_at=now[0])
        assert set(found) == {"a-1"}


class _Marks:
    """Stands in for the group's member: what the last fetch saw."""

    def high_watermark(self, key: Key) -> int:
        return 9


def reporter_without_kafka() -> report.ProjectorReporter:
    settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
    return report.ProjectorReporter(
        settings, KafkaTransport(settings), "p1", partial(BrokerWatch, bool), lambda: 0.0, now_ms
    )


def test_an_end_that_was_met_before_a_rollback_makes_nothing_fresh_after_it() -> None:
    # Else a scan with `max_staleness_ms` would be answered from the timestamp that was gone back to.
    reporter, marks = reporter_without_kafka(), cast(GroupMember, _Marks())
    before = PartitionState(KEY, "RUNNING", 1, 9, 9, 9)
    reporter._forget({KEY: before})
    reporter.met_end(KEY, 9)
    assert reporter._line(before, marks).fresh_at > 0
    after = PartitionState(KEY, "RUNNING", 1, 5, 5, 5, incarnation=1)
    reporter._forget({KEY: after})
    assert reporter._line(after, marks).fresh_at == 0
    after.position = after.acked = 9
    assert reporter._line(after, marks).fresh_at > 0


def test_records_behind_an_open_transaction_are_lag() -> None:
    """The end that a reader of committed records meets is not the end: acknowledged records lie behind it."""
    reporter, marks = reporter_without_kafka(), cast(GroupMember, _Marks())
    state = PartitionState(KEY, "RUNNING", 1, 7, 7, 7)
    reporter._forget({KEY: state})
    reporter.met_end(KEY, 7)
    line = reporter._line(state, marks)
    assert (line.acked, line.end, line.fresh_at) == (7, 9, 0)
    state.position = state.acked = 9
    reporter.met_end(KEY, 9)
    line = reporter._line(state, marks)
    assert (line.end, line.fresh_at > 0) == (9, True)


class _Source:
    """Stands in for the group's member: holds the partitions, and what the group has committed."""

    def __init__(self, commits: dict[Key, Committed]) -> None:
        self.commits = commits
        self.reading: dict[Key, int] = {}

    def subscribe(self, topics: list[str]) -> None: ...

    def close(self) -> None: ...

    def committed(self, keys: list[Key], timeout: float) -> dict[Key, Committed]:
        return {key: self.commits.get(key, Committed(None, -1, "")) for key in keys}

    def pause(self, key: Key) -> None:
        self.reading.pop(key, None)

    def read_from(self, key: Key, offset: int) -> None:
        self.reading[key] = offset


class TestMembership:
    """Taking over again what could not be taken over at first."""

    def members(self, monkeypatch: pytest.MonkeyPatch, commits: dict[Key, Committed]) -> Membership:
        source = _Source(commits)
        monkeypatch.setattr(Membership, "_join", lambda _: source)
        self.history = LogHistory()
        settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
        transport = KafkaTransport(settings)
        monkeypatch.setattr(transport, "log_history", lambda *_, **__: self.history)
        monkeypatch.setattr(transport, "partings", self.partings)
        self.now = 0.0
        self.catalog = catalog(index(state="READY"), version=1)
        return Membership(
            settings,
            transport,
            catalog=lambda: self.catalog,
            wait=lambda _: None,
            clock=lambda: self.now,
            rewound=lambda _: None,
        )

    def partings(self, _topic: str, history: LogHistory, places: dict[int, Place], _: float) -> object:
        return history.diverging(places)

    def there(self, topic_id: str, *branches: tuple[int, int]) -> None:
        branches = branches or ((0, 5),)
        epoch, end = branches[-1]
        self.history = LogHistory(topic_id, {KEY.partition: PartitionHistory(0, end, epoch, branches, 5)})

    def work(self, members: Membership) -> str:
        self.now += 1
        members.work()
        return members.tracker.partitions[KEY].phase

    def test_a_topic_that_the_broker_does_not_know_yet_is_asked_for_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        members = self.members(monkeypatch, {KEY: Committed(3, 0, encode_metadata(1, "T", 0))})
        members.learn(self.catalog, set())
        members._assigned([KEY])
        assert self.work(members) == "STOPPED"
        self.there("T")
        assert self.work(members) == "RUNNING"
        assert members.tracker.partitions[KEY].position == 3

    def test_partitions_of_a_topic_that_was_made_anew_are_taken_over_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        members = self.members(monkeypatch, {})
        members.learn(self.catalog, set())
        self.there("U")
        members._assigned([KEY])
        assert self.work(members) == "STOPPED", "the dictionary still names the old topic"
        self.catalog = catalog(index("b-2", version=2), version=2, topic_id="U")
        members.learn(self.catalog, set())
        assert self.work(members) in ("LOCATING", "COMMITTING")

    def running(self, monkeypatch: pytest.MonkeyPatch, *branches: tuple[int, int]) -> Membership:
        """Running at offset 5, epoch 0, of topic T."""
        members = self.members(monkeypatch, {KEY: Committed(5, 0, encode_metadata(1, "T", 0))})
        members.learn(self.catalog, set())
        self.there("T", *branches)
        members._assigned([KEY])
        assert self.work(members) == "RUNNING"
        return members

    def place(self, members: Membership) -> tuple[str, int, int]:
        state = members.tracker.partitions[KEY]
        return state.phase, state.position, state.incarnation

    def test_places_in_the_old_topic_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = self.running(monkeypatch)
        members.source.commits.clear()  # type: ignore[attr-defined]  # Kafka forgets them with the topic
        self.there("U", (0, 2))
        self.catalog = catalog(index("b-2", version=2), version=2, topic_id="U")
        members.learn(self.catalog, set())
        self.work(members)
        assert members.tracker.partitions[KEY].position <= 5

    def test_a_new_leader_is_asked_before_its_records_are_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        members = self.running(monkeypatch)
        members.doubt(KEY, 2, "records of leader epoch 2 came")
        assert members.tracker.partitions[KEY].phase == "CHECKING"
        assert KEY not in members.source.reading  # type: ignore[attr-defined]
        assert self.work(members) == "CHECKING", "the leader that answered is older than the records"
        self.there("T", (0, 5), (2, 8))
        assert self.work(members) == "RUNNING"
        assert members.tracker.partitions[KEY].checked_epoch == 2

    def test_lost_records_stop_it_until_the_rollback_and_it_goes_on_at_the_cut(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        members = self.running(monkeypatch)
        members.doubt(KEY, 2, "records of leader epoch 2 came")
        self.there("T", (0, 3), (2, 8))
        assert self.work(members) == "STOPPED"
        state = members.tracker.partitions[KEY]
        assert (state.lost, state.position, state.position_epoch) == (True, 5, 0)
        members.tick()
        self.catalog = catalog(index(state="READY"), rollback(1, 3, 0), incarnation=1)
        members.learn(self.catalog, set())
        assert KEY not in members.tracker.partitions
        assert self.work(members) == "RUNNING"
        assert self.place(members) == ("RUNNING", 3, 1)
        assert members.source.reading == {KEY: 3}  # type: ignore[attr-defined]

    def test_a_rollback_finds_it_activating(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = self.running(monkeypatch)
        self.catalog = catalog(index(state="READY"), version=2)
        members.learn(self.catalog, set())
        assert members.tracker.partitions[KEY].phase == "COMMITTING"
        self.catalog = catalog(index(state="READY"), rollback(1, 3, 0), version=2, incarnation=1)
        members.learn(self.catalog, set())
        assert members._activations == []
        members.handle(CommitDone(KEY, 5, 0, 2))  # of the old life
        assert self.work(members) == "COMMITTING"
        (commit,) = members._activations
        assert (commit.offset, commit.version, commit.incarnation) == (3, 2, 1)
        members.handle(CommitDone(KEY, 5, 0, 2))
        assert self.place(members) == ("COMMITTING", 3, 1)
        members.handle(CommitDone(KEY, 3, 0, 2, 1))
        assert self.place(members) == ("RUNNING", 3, 1)

    def test_a_rollback_finds_it_locating(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = self.members(monkeypatch, {})
        members.learn(self.catalog, set())
        self.there("T")
        members._assigned([KEY])
        members.look_ups._take_over()
        assert members.tracker.partitions[KEY].phase == "LOCATING"
        self.catalog = catalog(index(), rollback(1, 3, 0), incarnation=1)
        members.learn(self.catalog, set())
        self.there("T", (0, 3), (2, 5))
        assert self.work(members) == "COMMITTING"
        assert self.place(members) == ("COMMITTING", 5, 1)
        assert members.tracker.partitions[KEY].position_epoch == 2

    def test_a_commit_of_a_later_incarnation_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = self.members(monkeypatch, {KEY: Committed(4, 2, encode_metadata(1, "T", 2, 1))})
        members.learn(self.catalog, set())
        self.there("T", (0, 3), (2, 8))
        members._assigned([KEY])
        assert self.work(members) == "WAITING"
        self.catalog = catalog(index(state="READY"), rollback(1, 3, 0), incarnation=1)
        members.learn(self.catalog, set())
        assert self.work(members) == "RUNNING"
        assert self.place(members) == ("RUNNING", 4, 1)


def test_what_is_acknowledged_is_told_before_the_source_is_waited_for() -> None:
    """Reading waits for as long as nothing comes; a timestamp must not wait with it."""
    shell = World(plan(1, ())).projectors[0].shell
    waits: list[float] = []

    def read(_self: object, _most: int, timeout: float, _until: float) -> None:
        waits.append(timeout)

    with mock.patch.object(type(shell._members.source), "read", read):
        shell.turn()
        shell.turn()
        assert waits[-1] > 0, "nothing was acknowledged since"
        shell._delivered(0, 1, None)
        shell.turn()
        assert waits[-1] == 0
        shell.turn()
        assert waits[-1] > 0, "it is told"


def test_while_a_batch_fills_acknowledgements_are_waited_for() -> None:
    """The source's client fills it anyhow; what is acknowledged meanwhile is told at once."""
    shell = World(plan(1, ())).projectors[0].shell
    shell._limits = shell._limits.model_copy(update={"linger_ms": 5})
    done: list[str] = []
    waits: list[float] = []

    def acknowledge(_self: object, timeout: float = 0.0) -> None:
        if timeout:
            done.append("heard")
            waits.append(timeout)
            shell._delivered(0, 1, None)

    def note(name: str, answer: object = None) -> Callable[..., object]:
        def called(*_: object, **__: object) -> object:
            done.append(name)
            return answer

        return called

    with (
        mock.patch.object(type(shell._members.source), "read", note("read")),
        mock.patch.object(QueueSender, "poll", acknowledge),
        mock.patch.object(report.ProjectorReporter, "progress", note("told", True)),
    ):
        shell._last_batch, shell._next_beat = shell._clock(), shell._clock() + 1
        shell._tracker.outstanding[0] = 2
        shell.turn()
        assert done == ["heard", "told"]
        assert 0 < waits[0] <= 0.005
        del shell._tracker.outstanding[0]
        shell.turn()
        assert done == ["heard", "told", "read", "told"], "nothing is outstanding: the next is waited for"


def test_progress_so_soon_after_the_last_is_told_in_a_moment() -> None:
    now = [10.0]
    settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
    transport = KafkaTransport(settings)
    reporter = report.ProjectorReporter(
        settings, transport, "p1", partial(BrokerWatch, bool), lambda: now[0], now_ms
    )
    sent: list[bytes] = []
    state = PartitionState(KEY, "RUNNING", 1, 7, 7, 7)

    class Members:
        tracker = SimpleNamespace(partitions={KEY: state})
        source = _Marks()

        def states(self, keyspace: str, incarnation: int) -> list[PartitionState]:
            return [state]

    members, pipeline = cast(Membership, Members()), Pipeline("p1", MessageLimits(1_000, 1_000))

    def told() -> tuple[bool, int]:
        return reporter.progress(catalog(), members, pipeline, force=False), len(sent)

    with mock.patch.object(reporter, "_send", sent.append):
        assert told() == (True, 1)
        state.acked = 8
        now[0] += report.PROGRESS_INTERVAL_S / 4
        assert told() == (False, 1)
        assert now[0] < reporter.due <= now[0] + report.PROGRESS_INTERVAL_S
        now[0] = reporter.due
        assert told() == (True, 2)
        now[0] += 1
        assert told() == (True, 2), "nothing is new"


def test_who_has_nothing_to_report_lets_its_client_speak_all_the_same() -> None:
    """librdkafka keeps what nobody takes."""
    now, client = [10.0], mock.Mock(has_broker=True, poll=mock.Mock(return_value=0))
    transport = cast(KafkaTransport, mock.Mock(producer=lambda **_: client))
    watch = partial(BrokerWatch, bool)
    reporter = report.ProjectorReporter(load_settings(), transport, "p1", watch, lambda: now[0], now_ms)
    for _ in range(100):
        now[0] += 0.1
        reporter.poll()
    assert 9 <= client.poll.call_count <= 11


def test_metrics_count_once_what_slices_are_told_of_and_what_not() -> None:
    def shown(told: str) -> float | None:
        return REGISTRY.get_sample_value("keytide_heard_documents_total", {"index": "counted", "told": told})

    reporter = report.ProjectorReporter(
        load_settings(), cast(KafkaTransport, mock.Mock()), "p1", partial(BrokerWatch, bool), float, int
    )
    pipeline, tracker = Pipeline("me", MessageLimits(1 << 20, 1 << 20)), mock.Mock(partitions={})
    record = replace(index("counted-1", slices=3, by="PARTITION BY HASH(id)"), hears_by_id=True)
    found = catalog(record)
    for start in (0, 10):
        batches = batches_of(KEY, start, start + 10, -1, [columns(*range(start, start + 10))])
        pipeline.emit(found, "orders", {1: batches}, 0)
        for _ in range(2):
            reporter.metrics(found, pipeline, tracker)
            assert (shown("yes"), shown("no")) == (start + 10, 2 * (start + 10))
