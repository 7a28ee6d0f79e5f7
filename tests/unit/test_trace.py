"""The hops of a record, found in messages that are made here: each hop that is missing, records that are
skipped, deleted or sent twice, several indexes, and what rollbacks have made void."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import BuildRecord, BuildState, IndexRecord, RollbackRecord
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.timestamp import Place, Timestamp
from keytide.trace.changes import RecordChange, change_of
from keytide.trace.hops import TraceInput, trace
from keytide.trace.logs import ControlLog, QueueLog, ReportLog, Rises
from keytide.trace.records import (
    DocumentTrace,
    RecordOutcome,
    SourceRecord,
    TracedHop,
    TracedIndex,
    traced_index,
)
from keytide.wire.columns import hashes_of, pack_heard, pack_puts
from keytide.wire.messages import (
    QUEUE_UNAVAILABLE,
    Acknowledged,
    Message,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    Published,
    Segment,
    SegmentBatch,
    Skip,
    SliceStatus,
    StabilityTimestamp,
)

KEYSPACE = "people"
RECORD = SourceRecord(0, 41, 1_000, "create", False, 20)
INDEX = TracedIndex("by_city-1", "by_city", "READY", "", 1, True, [["n1"], ["n2"]])
OTHER = TracedIndex("by_name-2", "by_name", "READY", "", 1, True, [["n1"]])
NAMES = ("projected", "reported", "stamped", "committed", "published")
OTHERS = 10
"""Documents of a segment beside the one that is looked for."""


def segment(
    offset: int = 41, keys: Sequence[bytes] = (), skip: str = "", epoch: int = 0, partition: int = 0
) -> Segment:
    """One that spans a record, `OTHERS` before it and one behind it; the record brings `keys`."""
    start = offset - OTHERS
    offsets = np.arange(start, offset + 2, dtype=np.int64)
    ids = [f"u{one}".encode() for one in offsets]
    heard = pack_heard(offsets, start, ids, np.full(len(ids), 1_000, np.int64), hashes_of(ids, len(ids)))
    ordinals = np.array([0, *[OTHERS] * len(keys), OTHERS + 1], np.uint32)
    puts = pack_puts(ordinals, [b"before", *keys, b"behind"], None)
    skips = [Skip(OTHERS, offset, ids[OTHERS], skip, "because")] if skip else []
    return Segment(partition, epoch, start, offset + 2, heard, puts, skips)


def batch(
    one: Segment, index: TracedIndex = INDEX, number: int = 0, sender: str = "p1", **of: int
) -> SegmentBatch:
    said = {"incarnation": 0, "version": 1, **of}
    return SegmentBatch(
        index.id, number, sender, "T", said["incarnation"], said["version"], [one], said.get("sent_at", 0)
    )


def progress(acked: int, incarnation: int = 0, version: int = 1, suspended: str = "") -> Progress:
    line = PartitionProgress(0, acked, 0, 60, 0, version)
    skipped = {suspended: {QUEUE_UNAVAILABLE: 1}} if suspended else {}
    return Progress(KEYSPACE, "p1", "T", incarnation, [line], 0, skipped)


def stamp(offset: int, incarnation: int = 0, term: int = 1, keyspace: str = KEYSPACE) -> StabilityTimestamp:
    return StabilityTimestamp(keyspace, term, incarnation, Timestamp.of({0: offset, 1: 99}), 0, 0)


def published(numbers: dict[str, int], incarnation: int = 0, term: int = 1) -> Published:
    return Published(KEYSPACE, term, incarnation, numbers)


def status(index: TracedIndex, number: int, state: str, at: int, reason: str = "") -> SliceStatus:
    return SliceStatus(index.id, number, state, reason, Timestamp(), at, -1, 0, 0, 0, 0, 0, 0, 0)


class Told:
    """What topics say. Each part may be left out or given another way."""

    def __init__(self, history: History | None = None, *, whole: bool = True) -> None:
        history = history or History()
        self.history = history
        self.record = RECORD
        self.indexes = [INDEX]
        self.control = ControlLog(KEYSPACE, history, whole=whole)
        self.reports = ReportLog(KEYSPACE, history, since=0 if whole else 900)
        self.queues: dict[tuple[str, int], QueueLog] = {}
        self.outcomes: dict[str, RecordOutcome] = {}
        self.now = 2_000

    def send(self, at: int = 1_010, index: TracedIndex = INDEX, **of: Segment) -> None:
        """Segments to all slices of an index: of `s0`, `s1`, or one that is heard."""
        for number in range(index.slices):
            self.queue(at, batch(of.get(f"s{number}", segment()), index, number))

    def queue(self, at: int, message: SegmentBatch) -> None:
        target = (self.record.partition, self.record.offset)
        key = (message.index, message.slice)
        self.queues.setdefault(key, QueueLog(self.history, 1, target)).read(at, message)

    def report(self, at: int, *messages: Message) -> None:
        for one in messages:
            self.reports.read(at, one)

    def say(self, number: int, at: int, message: Message) -> None:
        self.control.read(number, at, message)

    def acknowledge(self, at: int, number: int, *copies: tuple[TracedIndex, int, str]) -> None:
        for index, slice_number, node in copies:
            self.report(at, Acknowledged(node, KEYSPACE, 0, number, [(index.id, slice_number)]))

    def all_said(self) -> Told:
        """Every hop of INDEX, and what came before and behind it."""
        self.send(s0=segment(keys=[b"Boston"]))
        self.report(900, progress(30))
        self.report(1_020, progress(43))
        self.say(500, 900, stamp(30))
        self.say(501, 1_025, stamp(43))
        self.say(502, 1_500, stamp(43))
        self.acknowledge(1_030, 501, (INDEX, 0, "n1"))
        self.acknowledge(1_040, 501, (INDEX, 1, "n2"))
        self.say(503, 1_050, published({INDEX.id: 501}))
        self.say(504, 1_600, published({INDEX.id: 502}))
        return self

    def trace(self) -> DocumentTrace:
        known = TraceInput(
            self.record, self.indexes, self.control, self.reports, self.queues, self.outcomes, self.now
        )
        return trace(KEYSPACE, "u41", known)

    def hops(self, at: int = 0) -> dict[str, TracedHop]:
        return {one.hop: one for one in self.trace().indexes[at].hops}

    def states(self, at: int = 0) -> str:
        return " ".join(one.state for one in self.trace().indexes[at].hops)


# --- what is there ----------------------------------------------------------------------------------------


def test_every_hop_has_its_time_and_how_long_it_took() -> None:
    told = Told().all_said().trace()
    (index,) = told.indexes
    assert [one.hop for one in index.hops] == list(NAMES)
    assert [(one.state, one.at, one.took_ms) for one in index.hops] == [
        ("done", 1_010, 10),
        ("done", 1_020, 10),
        ("done", 1_025, 5),
        ("done", 1_040, 15),
        ("done", 1_050, 10),
    ]
    assert (told.number, index.shown, index.published) == (501, True, 502)
    assert index.outcome == RecordOutcome("entries", 1)
    assert [(one.change, one.keys, one.committed_at, one.missing) for one in index.slices] == [
        ("keys", 1, 1_030, []),
        ("removal", 0, 1_040, []),
    ]


def test_keys_of_the_record_alone_are_counted() -> None:
    one = segment(keys=[b"a", b"b"])
    assert change_of(one, 41) == RecordChange("keys", (b"a", b"b"))
    assert change_of(one, 40) == RecordChange("removal")
    assert change_of(one, 42) == RecordChange("keys", (b"behind",))
    assert change_of(one, 30) is None
    assert change_of(one, 43) is None
    assert change_of(replace(one, heard=None, puts=None), 41) == RecordChange("not-heard")


def test_a_record_that_is_skipped() -> None:
    told = Told().all_said()
    told.queues.clear()
    told.send(s1=segment(skip="not-json"))
    (index,) = told.trace().indexes
    assert index.outcome == RecordOutcome("skipped", reason="not-json", detail="because")
    assert index.slices[1].skip == "not-json: because"
    assert told.states() == "done done done done done"


def test_a_record_whose_id_cannot_be_used_is_a_line_as_well() -> None:
    one = segment()
    assert one.heard is not None
    bad = replace(one, start=41, heard=None, puts=None, skips=[Skip(-1, 41, b"", "bad-id", "no key")])
    assert change_of(bad, 41) == RecordChange("skip", skip=bad.skips[0])


def test_a_record_that_deletes() -> None:
    told = Told().all_said()
    told.queues.clear()
    told.send()
    told.record = replace(RECORD, deleted=True)
    (index,) = told.trace().indexes
    assert index.outcome == RecordOutcome("deleted")
    assert {one.change for one in index.slices} == {"removal"}


def test_a_record_that_the_definition_leaves_out() -> None:
    told = Told().all_said()
    told.queues.clear()
    told.send()
    assert told.trace().indexes[0].outcome == RecordOutcome("left-out")
    told.outcomes[INDEX.id] = RecordOutcome("left-out", reason="where-not-true")
    assert told.trace().indexes[0].outcome.reason == "where-not-true"


def test_a_projector_that_was_started_again_sends_twice_and_the_first_counts() -> None:
    told = Told().all_said()
    for number in range(2):
        told.queue(1_015, batch(segment(keys=[b"Boston"]), number=number, sender="p2"))
    (index,) = told.trace().indexes
    assert (index.hops[0].at, index.hops[0].took_ms) == (1_010, 10)
    assert "sent 2 times" in index.hops[0].detail
    assert [(one.sent_at, one.sent_again, one.keys) for one in index.slices] == [(1_010, 1, 1), (1_010, 1, 0)]


def test_segments_of_a_version_before_the_index_are_none_of_it() -> None:
    told = Told()
    told.queue(1_010, batch(segment(), version=0))
    assert told.queues[INDEX.id, 0].sent == []


def test_several_indexes_have_hops_of_their_own() -> None:
    told = Told().all_said()
    told.indexes = [INDEX, OTHER]
    told.send(1_012, OTHER, s0=segment(keys=[b"x", b"y"]))
    told.acknowledge(1_090, 502, (OTHER, 0, "n1"))
    first, second = told.trace().indexes
    assert (first.hops[0].at, second.hops[0].at) == (1_010, 1_012)
    assert first.hops[1].took_ms == second.hops[1].took_ms == 1_020 - 1_012  # the last one sent counts
    assert (second.hops[3].at, second.hops[3].state) == (1_090, "done")  # a later number holds it as well
    assert (first.shown, second.shown) == (True, None)
    assert second.hops[4].state == "waiting"
    assert second.outcome.keys == 2


def test_of_several_copies_of_a_slice_the_first_counts_and_the_others_are_named() -> None:
    told = Told().all_said()
    told.indexes = [replace(INDEX, placement=[["n1", "n3"], ["n2"]])]
    (index,) = told.trace().indexes
    assert index.hops[3].state == "done"
    assert "1 copies have not said so" in index.hops[3].detail
    assert index.slices[0].missing == ["n3"]


# --- what is waited for -----------------------------------------------------------------------------------


def test_nothing_at_all_was_said() -> None:
    told = Told()
    assert told.states() == "waiting waiting waiting waiting waiting"
    hops = told.hops()
    assert "no projector has told of partition 0" in hops["projected"].waiting_for
    assert "no timestamp of the keyspace" in hops["stamped"].waiting_for
    assert all(hops[name].next_step for name in ("projected", "reported", "stamped"))


def test_not_projected_yet() -> None:
    told = Told()
    told.report(1_900, progress(30))
    told.say(500, 1_900, stamp(30))
    told.say(501, 1_900, published({INDEX.id: 500}))
    (index,) = told.trace().indexes
    assert index.hops[0].waiting_for == "the projector p1 is at offset 30 of partition 0, 30 records behind"
    assert "the newest, 500, is at offset 30 of partition 0" in index.hops[2].waiting_for
    assert (told.states(), index.shown) == ("waiting waiting waiting waiting waiting", False)
    assert "has said nothing" not in index.hops[0].next_step
    told.now = 20_000
    assert "it has said nothing for 18 s: see its log" in told.hops()["projected"].next_step


def test_a_projector_that_does_not_send_for_the_index_is_told_of() -> None:
    told = Told()
    told.report(1_900, progress(30, version=0))
    assert "has not yet begun to send for the index" in told.hops()["projected"].waiting_for
    told.report(1_950, progress(31, suspended=INDEX.id))
    assert "sends nothing for it any more" in told.hops()["projected"].waiting_for
    assert told.hops()["projected"].next_step == "`keytide index build by_city`"


def test_in_some_queues_only() -> None:
    told = Told()
    told.queue(1_010, batch(segment()))
    told.report(1_011, progress(30))
    assert told.states() == "waiting waiting waiting waiting waiting"
    assert told.hops()["projected"].waiting_for.startswith("it is in the queues of 1 of 2 slices; ")


def test_not_reported_yet() -> None:
    told = Told()
    told.send()
    told.report(1_011, progress(41))  # up to the record, not with it
    assert told.states() == "done waiting waiting waiting waiting"
    assert "(they have what is below 41)" in told.hops()["reported"].waiting_for


def test_not_covered_yet() -> None:
    told = Told()
    told.send()
    told.report(1_020, progress(42))
    told.say(500, 1_900, stamp(41))
    told.say(501, 1_900, stamp(90, keyspace="orders"))  # of another keyspace
    assert told.states() == "done done waiting waiting waiting"
    told.say(502, 1_950, stamp(42))
    assert told.states() == "done done done waiting waiting"


def test_a_slice_that_has_not_said_that_it_holds_it() -> None:
    told = Told().all_said()
    told.reports = ReportLog(KEYSPACE)
    told.report(900, progress(30))
    told.report(1_020, progress(43))
    told.acknowledge(1_030, 501, (INDEX, 0, "n1"))
    told.acknowledge(1_040, 500, (INDEX, 1, "n2"))
    told.control.published.clear()
    lost = status(INDEX, 1, "STOPPED", 500, "the disk is full")
    told.report(1_100, NodeHeartbeat("n2", "", 1, 1, [lost], 0, 0, 0))
    assert told.states() == "done done done waiting waiting"
    waiting = told.hops()["committed"].waiting_for
    assert waiting == ("slice 1 on n2 has not said that it holds 501 (STOPPED: the disk is full, at 500)")
    assert told.hops()["committed"].next_step == "`keytide index show by_city` says how its slices are"


def test_only_some_of_many_slices_are_named() -> None:
    told = Told().all_said()
    told.indexes = [replace(INDEX, placement=[["n9"]] * 12)]
    told.control.published.clear()
    waiting = told.hops()["committed"].waiting_for
    assert waiting.count("has not said") == 5
    assert waiting.endswith("; and 7 more")


def test_committed_and_not_published_yet() -> None:
    told = Told().all_said()
    told.control.published.clear()
    told.say(505, 1_060, published({INDEX.id: 500}))
    assert told.states() == "done done done done waiting"
    assert told.hops()["published"].waiting_for == "number 501 or a later one; the newest is 500"
    assert told.trace().indexes[0].shown is False


def test_an_index_that_is_not_ready_publishes_nothing() -> None:
    told = Told().all_said()
    told.indexes = [replace(INDEX, state="BUILDING", brought_by="b4")]
    (index,) = told.trace().indexes
    assert index.hops[0].state == "none"
    assert index.hops[0].detail == "build b4 has read it from the source"
    assert index.hops[4].waiting_for == "nothing is published of an index that is BUILDING"
    assert index.shown is False
    told.indexes = [replace(INDEX, state="DEFERRED", emits=False, version=0)]
    assert told.states() == "none none none none none"


# --- what is not kept -------------------------------------------------------------------------------------


def test_topics_that_keep_nothing_of_then() -> None:
    """Only the ends of topics are left, and the record is long before them."""
    told = Told(whole=False)
    told.outcomes[INDEX.id] = RecordOutcome("entries", 3)
    told.report(1_900, progress(50))
    told.say(900, 1_900, stamp(50))
    told.acknowledge(1_910, 900, (INDEX, 0, "n1"), (INDEX, 1, "n2"))
    told.say(901, 1_920, published({INDEX.id: 900}))
    (index,) = told.trace().indexes
    assert told.states() == "past past past past past"
    assert all(one.took_ms is None and one.detail for one in index.hops)
    assert (index.shown, index.published, index.outcome.keys) == (True, 900, 3)


def test_queues_that_keep_no_segments_any_more() -> None:
    told = Told().all_said()
    told.queues.clear()
    assert told.states() == "past done done done done"
    hops = told.hops()
    assert (hops["reported"].at, hops["reported"].took_ms) == (1_020, None)
    assert told.trace().indexes[0].outcome.kind == "unknown"


def test_reports_that_are_kept_for_a_shorter_time_than_timestamps() -> None:
    told = Told().all_said()
    told.reports = ReportLog(KEYSPACE, since=1_700)
    told.report(1_800, progress(50))
    told.acknowledge(1_800, 502, (INDEX, 0, "n1"), (INDEX, 1, "n2"))
    assert told.states() == "done past done past done"
    assert told.hops()["published"].took_ms is None


def test_what_is_published_and_older_than_every_timestamp_cannot_be_judged() -> None:
    told = Told(whole=False)
    told.say(900, 1_900, stamp(50))
    told.say(901, 1_920, published({INDEX.id: 700}))
    assert told.trace().indexes[0].shown is None


# --- rollbacks --------------------------------------------------------------------------------------------


def rolled_back(offset: int, number: int, incarnation: int = 1) -> RollbackRecord:
    cut = Timestamp({0: Place(offset), 1: Place(99)}, "T")
    return RollbackRecord(KEYSPACE, incarnation, number, cut, "T", "truncated", 0)


def test_what_was_said_of_a_lost_record_at_the_same_offset_does_not_count() -> None:
    """Snapshot 500, up to offset 35, was rolled back to: the record at 41 is another one than before."""
    told = Told(History([rolled_back(35, 500)], "T", 1)).all_said()
    assert told.states() == "waiting waiting waiting waiting waiting"
    told.queue(2_010, batch(segment(), number=0, incarnation=1))
    told.queue(2_011, batch(segment(keys=[b"Rome"]), number=1, incarnation=1))
    told.report(2_020, progress(43, incarnation=1))
    told.say(510, 2_030, stamp(35, incarnation=1))
    told.say(511, 2_031, stamp(43, incarnation=1))
    for number, node in enumerate(("n1", "n2")):
        told.report(2_040, Acknowledged(node, KEYSPACE, 1, 511, [(INDEX.id, number)]))
    told.say(512, 2_050, published({INDEX.id: 511}, incarnation=1))
    (index,) = told.trace().indexes
    assert [one.at for one in index.hops] == [2_011, 2_020, 2_031, 2_040, 2_050]
    assert told.states() == "done done done done done"
    assert [one.change for one in index.slices] == ["removal", "keys"]


def test_what_was_said_before_a_rollback_that_kept_the_record_counts() -> None:
    told = Told(History([rolled_back(43, 501)], "T", 1)).all_said()
    assert [one.at for one in told.trace().indexes[0].hops] == [1_010, 1_020, 1_025, 1_040, 1_050]
    assert told.trace().indexes[0].published == 501  # 502 is void


def test_a_leader_that_was_succeeded_says_nothing_that_counts() -> None:
    told = Told()
    told.say(500, 900, stamp(30, term=2))
    told.say(501, 1_000, stamp(50, term=1))
    assert told.control.covering(0, 42) is None


# --- parts ------------------------------------------------------------------------------------------------


def test_rises_are_found_where_they_were() -> None:
    rises = Rises()
    assert (rises.first(1), rises.newest) == (None, None)
    for value, at in ((10, 1), (20, 2), (20, 3), (15, 4), (30, 5)):
        rises.note(value, at)
    assert rises.first(5) == (10, 1, False)
    assert rises.first(11) == (20, 2, True)
    assert rises.first(21) == (30, 5, True)
    assert rises.first(31) is None
    assert rises.newest == 30


@pytest.mark.parametrize(
    ("state", "low", "brought"),
    [
        ("READY", {0: 42}, "b4"),
        ("READY", {0: 41}, ""),
        ("READY", {}, ""),
        ("BACKFILL", {}, "b4"),
        ("BACKFILL", {0: 40}, ""),
    ],
)
def test_which_records_a_build_brings(state: BuildState, low: dict[int, int], brought: str) -> None:
    statement = parse_statement("CREATE INDEX by_city ON people (city) WITH (slices=2)")
    assert isinstance(statement, CreateIndex)
    catalog = Catalog()
    record = IndexRecord("by_city-1", statement.definition, "READY", 3, [["n1"], ["n1"]], "b4", 0)
    catalog.put("index/by_city-1", record)
    catalog.put("build/b4", BuildRecord("b4", KEYSPACE, ["by_city-1"], state, Timestamp(), 0, low))
    found = traced_index(catalog, record, 0, 41)
    assert (found.name, found.slices, found.version, found.emits) == ("by_city", 2, 3, True)
    assert found.brought_by == brought
