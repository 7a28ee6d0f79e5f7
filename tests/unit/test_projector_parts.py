"""The parts of the projector's shell that decide something: batches, first places, commits, queues that are
stuck."""

from __future__ import annotations

from itertools import pairwise

import pytest
from confluent_kafka import KafkaError

from keytide.catalog import BuildRecord, Catalog, IndexRecord, KeyspaceRecord, encode_record, record_key
from keytide.definition import CreateIndex, parse_statement
from keytide.kafka_admin import TopicInfo
from keytide.messages import QUEUE_UNAVAILABLE, Segment, SegmentBatch, decode
from keytide.settings import load_settings
from keytide.timestamp import Timestamp
from projector.core import SourceBatch
from projector.events import Assigned, Key, Located, Refused
from projector.membership import Membership
from projector.pipeline import Columns, Limits, Pipeline, batches_of
from projector.places import (
    Extent,
    decode_metadata,
    encode_metadata,
    first_place,
    take_over,
)
from projector.sender import Sender
from projector.source import Committed

KEY = Key("orders", 1)


def columns(*offsets: int, epoch: int = 0) -> Columns:
    return Columns(
        epoch,
        list(offsets),
        [b"id-%d" % o for o in offsets],
        [b'{"city": "c"}' for _ in offsets],
        [1_000 + o for o in offsets],
    )


def index(id_: str = "a-1", version: int = 1, state: str = "BUILDING", slices: int = 2) -> IndexRecord:
    name = id_.split("-")[0]
    statement = parse_statement(f"CREATE INDEX {name} ON orders (city) WITH (slices={slices})")
    assert isinstance(statement, CreateIndex)
    return IndexRecord(id_, statement.definition, state, version, [], f"b-{id_}", 0)  # type: ignore[arg-type]


def catalog(*records: IndexRecord | BuildRecord, version: int = 1, topic_id: str = "T") -> Catalog:
    found = Catalog()
    for record in (*records, KeyspaceRecord("orders", topic_id, 2, version)):
        found.apply(record_key(record), encode_record(record), 0)
    return found


class TestBatches:
    def test_a_batch_begins_at_the_position_and_ends_at_the_new_one(self) -> None:
        batches = batches_of(KEY, 10, 30, -1, [columns(12, 15)])
        assert [(b.start, b.end, list(b.offsets)) for b in batches] == [(10, 16, [12, 15]), (16, 30, [])]
        assert [b.epoch for b in batches] == [0, 0]

    def test_without_records_it_is_the_range_alone(self) -> None:
        assert batches_of(KEY, 10, 12, 4, []) == [SourceBatch(1, 4, 10, 12, [], [], [], [])]
        assert batches_of(KEY, 10, 10, 4, []) == [SourceBatch(1, 4, 10, 10, [], [], [], [])]

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
        pipeline = Pipeline("me", Limits(1 << 20, 1 << 20))
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

    def test_a_suspended_index_is_not_sent_for(self) -> None:
        pipeline = Pipeline("me", Limits(1 << 20, 1 << 20))
        pipeline.suspend("a-1")
        found = catalog(index("a-1", 1), index("b-2", 1))
        messages = pipeline.emit(found, "orders", {1: batches_of(KEY, 0, 1, -1, [columns(0)])}, 0)
        assert {message.index_id for message in messages} == {"b-2"}
        assert pipeline.outcomes["a-1"][QUEUE_UNAVAILABLE] == 1
        pipeline.resume("a-1")  # built again: its past is not told of the new build
        assert QUEUE_UNAVAILABLE not in pipeline.outcomes["a-1"]
        assert pipeline.emitting(found, "orders", 1) != []

    def test_messages_are_cut_at_offsets_and_stay_adjacent(self) -> None:
        pipeline = Pipeline("me", Limits(2_000, 1 << 20))
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
        commit = Committed(50, 3, encode_metadata(7, "T", 3))
        got = take_over(KEY, commit, TopicInfo("orders", "T", 2), Extent(0, 60, 60), catalog(index()))
        assert got == Assigned(KEY, 50, 7, 3)

    def test_no_commit_is_no_version(self) -> None:
        got = take_over(
            KEY, Committed(None, -1, ""), TopicInfo("orders", "T", 2), Extent(0, 60, 60), catalog(index())
        )
        assert got == Assigned(KEY, None, 0, -1)

    @pytest.mark.parametrize(
        ("commit_id", "topic_id", "catalog_id"), [("T", "U", "T"), ("T", "U", "U"), ("U", "U", "T")]
    )
    def test_another_topic_of_that_name_is_refused(
        self, commit_id: str, topic_id: str, catalog_id: str
    ) -> None:
        commit = Committed(50, 3, encode_metadata(7, commit_id, 3))
        topic = TopicInfo("orders", topic_id, 2)
        got = take_over(KEY, commit, topic, Extent(0, 60, 60), catalog(index(), topic_id=catalog_id))
        assert isinstance(got, Refused)
        assert "made anew" in got.reason

    def test_a_log_that_ends_below_the_commit_is_refused(self) -> None:
        commit = Committed(50, 3, encode_metadata(7, "T", 3))
        got = take_over(KEY, commit, TopicInfo("orders", "T", 2), Extent(0, 40, 40), catalog(index()))
        assert isinstance(got, Refused)
        assert "were lost" in got.reason

    def test_a_topic_that_is_gone_is_refused(self) -> None:
        got = take_over(KEY, Committed(50, 3, ""), None, None, catalog(index()))
        assert isinstance(got, Refused)


class TestFirstPlace:
    def build(self, load: dict[int, int], low: dict[int, int] | None = None) -> BuildRecord:
        return BuildRecord(
            "b-a-1", "orders", ["a-1"], "BACKFILL", Timestamp.of(load), 0, low_watermark=low or {}
        )

    def test_history_is_the_backfills(self) -> None:
        found = catalog(index(), self.build({0: 10, 1: 20}))
        assert first_place(KEY, Extent(3, 25, 30), found, has_commit=False) == Located(KEY, 25)

    def test_a_partition_that_came_after_the_build_is_read_from_0(self) -> None:
        found = catalog(index(), self.build({0: 10}))
        assert first_place(KEY, Extent(3, 25, 30), found, has_commit=False) == Located(KEY, 0)

    def test_a_lost_commit_goes_on_from_the_first_activation(self) -> None:
        found = catalog(index(), self.build({0: 10, 1: 20}, low={1: 22}))
        assert first_place(KEY, Extent(3, 25, 30), found, has_commit=False) == Located(KEY, 22)

    def test_a_commit_without_indexes_jumps_to_the_end(self) -> None:
        found = catalog(index(), self.build({0: 10, 1: 20}, low={1: 22}))
        assert first_place(KEY, Extent(3, 25, 30), found, has_commit=True) == Located(KEY, 25)


class TestSender:
    """Nothing listens at the address: messages stay outstanding, which is all that these need."""

    def sender(self) -> tuple[Sender, list[tuple[int, int, str | None]], list[float]]:
        told: list[tuple[int, int, str | None]] = []
        now = [100.0]
        settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
        return Sender(settings, lambda *news: told.append(news), lambda: now[0]), told, now

    def test_dropping_an_index_acknowledges_its_messages_and_no_others(self) -> None:
        sender, told, _ = self.sender()
        for poll in (1, 1, 2):
            sender.send(poll, "a-1", 0, b"x")
        sender.send(2, "b-2", 0, b"xyz")
        assert (sender.messages_in_flight, sender.bytes_in_flight) == (4, 6)
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
        assert sender.stuck(alive_at=now[0]) == {"a-1": limit + 1}
        now[0] = 100.0 + limit - 1
        assert sender.stuck(alive_at=now[0]) == {}, "not yet"

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


class _Source:
    """Stands in for the group's member: holds the partitions, and what the group has committed."""

    def __init__(self, commits: dict[Key, Committed]) -> None:
        self.commits = commits
        self.reading: dict[Key, int] = {}

    def subscribe(self, topics: list[str]) -> None: ...

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
        monkeypatch.setattr("projector.membership.look_up", lambda *_: (self.topics, self.extents))
        self.now = 0.0
        self.topics: dict[str, TopicInfo] = {}
        self.extents: dict[Key, Extent] = {}
        self.catalog = catalog(index(state="READY"), version=1)
        return Membership(
            load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0}),
            catalog=lambda: self.catalog,
            wait=lambda _: None,
            clock=lambda: self.now,
            rewound=lambda _: None,
        )

    def there(self, topic_id: str) -> None:
        self.topics, self.extents = {"orders": TopicInfo("orders", topic_id, 2)}, {KEY: Extent(0, 5, 5)}

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

    def test_places_in_the_old_topic_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = self.members(monkeypatch, {KEY: Committed(5, 0, encode_metadata(1, "T", 0))})
        members.learn(self.catalog, set())
        self.there("T")
        members._assigned([KEY])
        assert self.work(members) == "RUNNING"
        members.source.commits.clear()  # type: ignore[attr-defined]  # Kafka forgets them with the topic
        self.topics, self.extents = {"orders": TopicInfo("orders", "U", 2)}, {KEY: Extent(0, 2, 2)}
        self.catalog = catalog(index("b-2", version=2), version=2, topic_id="U")
        members.learn(self.catalog, set())
        self.work(members)
        assert members.tracker.partitions[KEY].position <= 2
