"""New layouts that begin with the slices of the old ones: when the leader has them do so, and how entries
come from old slices to new ones (R44)."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from coordinator.core.events import Reported
from coordinator.core.instructions import StartDriver
from coordinator.sources.layout_sources import other_entries
from coordinator.views import views
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import BuildRecord, ClusterRecord, IndexRecord
from keytide.collation import encode_part
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import RetryableError
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from keytide.wire.columns import hashes_of
from keytide.wire.digests import EntriesAnswer, SkippedVersion
from keytide.wire.messages import Message, NodeHeartbeat, PutChunk, RemovalChunk
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router.core import hash_modulo, slices_of
from streaming.backfill.seed import Sending, pin_of
from streaming.core.micro_batches import SeedUnfitError
from streaming.core.runs import ChunkHeader
from streaming.core.seeding import in_order, page_of, partition_keys
from streaming.slices.pins import Pin
from tests.unit.copy_world import NODES
from tests.unit.leader_world import facts
from tests.unit.test_layouts import OLD, LayoutWorld

MORE = "ALTER INDEX by_city SET (slices=3)"


def begun(world: LayoutWorld, statement: str = MORE, **source: Any) -> BuildRecord:
    """The build of the new layout, after its topics were made."""
    world.sql(statement)
    return prepared(world, **source)


def prepared(world: LayoutWorld, **source: Any) -> BuildRecord:
    world.tick()
    build = world.new().build or ""
    world.prepared(build, facts((130, 60), at=world.now, **source))
    return world.leader.builds.registry.get(build)


def remember(world: LayoutWorld, *earliest: int) -> None:
    """What the old layout was built from."""
    build = world.leader.builds.registry.get("b8")
    began = Timestamp.of(dict(enumerate(earliest)), "t1")
    world.leader.builds.registry.put(replace(build, earliest=began))


# --- whether ------------------------------------------------------------------------------------------------


def test_other_slices_begin_with_the_old_ones_whatever_the_source_has_forgotten() -> None:
    world = LayoutWorld()
    remember(world, 3, 0)
    build = begun(world, earliest=(50, 7))
    assert (build.state, build.seed) == ("BACKFILL", OLD)
    assert build.earliest.offsets() == {0: 3, 1: 0}, "its entries are of all that"
    assert any(f"begins with the entries of {OLD}" in note.text for note in world.notes)
    world.driver(build.id, "RUNNING", table_documents=400, documents=100)
    shown = views.build(world.leader, world.leader.builds.registry.get(build.id), world.now)
    assert (shown["seed"], shown["documents_done"], shown["documents_total"]) == (OLD, 100, 400)
    assert 20 <= shown["percent"] <= 25


def test_what_is_in_the_way_of_its_driver_is_told() -> None:
    world = LayoutWorld()
    build = begun(world)
    world.driver(build.id, "RUNNING", error="slices [1] of by_city do not hold a snapshot")
    assert world.leader.builds.registry.run(build.id).waiting_for.startswith("slices [1]")
    world.now += 1
    world.driver(build.id, "RUNNING")
    assert world.leader.builds.registry.run(build.id).waiting_for == ""


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE INDEX by_city ON people (age)",
        "CREATE OR REPLACE INDEX by_city ON people (city) INCLUDE (age)",
        "CREATE OR REPLACE INDEX by_city ON people (city DESC)",
        "CREATE OR REPLACE INDEX by_city ON people (city) WHERE age > 3",
        "CREATE OR REPLACE INDEX by_city ON people (city) WITH (include_missing=true)",
        "CREATE OR REPLACE INDEX by_city ON people (city) PARTITION BY HASH(age)",
        "CREATE UNIQUE INDEX other ON people (city)",
    ],
)
def test_other_entries_come_from_the_source(statement: str) -> None:
    world = LayoutWorld()
    if "other" in statement:
        old = world.layout(OLD)
        assert old is not None
        parsed = parse_statement(statement)
        assert isinstance(parsed, CreateIndex)
        assert other_entries(parsed.definition, old.definition)
        return
    build = begun(world, statement)
    assert (build.state, build.seed, build.documents_total) == ("BACKFILL", "", 190)


def test_what_was_skipped_for_its_partition_alone_comes_from_the_source() -> None:
    """A document whose slice could not be told has no entry to begin with, and has one by its id."""
    by_age, by_id = (
        parse_statement(f"CREATE INDEX by_city ON people (city) PARTITION BY HASH({by})").definition  # type: ignore[union-attr]
        for by in ("age", "id")
    )
    assert other_entries(by_id, by_age) == "documents were skipped whose slice could not be told"
    assert not other_entries(by_id, by_id)


def test_and_fail_if_that_has_forgotten_records_meanwhile() -> None:
    world = LayoutWorld()
    remember(world, 0, 0)
    build = begun(world, "CREATE OR REPLACE INDEX by_city ON people (age)", earliest=(0, 7))
    assert build.state == "FAILED"
    assert "partitions 1 are gone" in build.error
    assert "the definition says something else of entries" in build.error


def test_documents_of_two_partitions_come_from_the_source() -> None:
    """Entries do not say that a document was met in two: a version that is older, and late, would win."""
    world = LayoutWorld()
    status = world.status

    def met(node: str, number: int) -> Any:
        return replace(status(node, number), foreign_partition_ids=1 if number else 0)

    world.status = met  # type: ignore[method-assign]
    world.beat()
    assert begun(world).seed == ""


def test_off_by_a_setting() -> None:
    world = LayoutWorld()
    limits = world.leader.builds._limits
    object.__setattr__(limits, "seed_layouts", False)
    try:
        assert begun(world).seed == ""
    finally:
        object.__setattr__(limits, "seed_layouts", True)


def test_a_leader_that_has_heard_nobody_waits_and_one_that_hears_nobody_reads_the_source() -> None:
    for speaks in (True, False):
        world = LayoutWorld()
        world.sql(MORE)
        world.live(500)
        other, _ = world.restart()
        build = world.new().build or ""
        source = facts((130, 60), at=other.now)
        other.tick()
        other.prepared(build, source)
        found = other.leader.builds.registry.get(build)
        if found.state == "QUEUED":
            assert "what nodes say of" in other.leader.builds.registry.run(build).waiting_for
            for _ in range(8):
                if speaks:
                    hear(world, other)
                other.tick(500)
            if speaks:
                other.prepared(build, source)
                found = other.leader.builds.registry.get(build)
        assert found.seed == (OLD if speaks else ""), found


def hear(world: LayoutWorld, other: Any) -> None:
    """Another leader hears what nodes say."""
    for node in NODES:
        index = world.layout(OLD)
        assert index is not None
        slices = [
            replace(world.status(node, number), index=OLD)
            for number, nodes in enumerate(index.placement)
            if node in nodes
        ]
        beat = NodeHeartbeat(node, f"http://{node}", 1, other.now, slices, 0, 1 << 40, 1 << 40)
        other.handle(Reported(beat, other.now))


def test_when_no_copy_of_an_old_slice_is_left_the_build_begins_again_with_the_source() -> None:
    world = LayoutWorld()
    build = begun(world)
    assert build.seed == OLD
    status = world.status

    def lost(node: str, number: int) -> Any:
        found = status(node, number)
        return replace(found, state="LOST", number=-1) if number == 1 else found

    world.status = lost  # type: ignore[method-assign]
    out = world.live(1_000)
    over = world.leader.builds.registry.get(build.id)
    assert over.state == "CANCELLED"
    assert "no copy is left of slices 1" in over.error
    again = world.leader.builds.registry.get(world.new().build or "")
    assert (again.attempt, again.id != build.id) == (1, True)
    assert not any(isinstance(one, StartDriver) and one.build == again.id for one in out)


def test_once_the_entries_are_there_the_old_layout_may_go() -> None:
    world = LayoutWorld()
    build = begun(world)
    world.driver(build.id, "RUNNING", 1, (130, 60), table_documents=4, documents=4)
    index = world.layout(OLD)
    assert index is not None
    world.leader.dictionary.put(replace(index, state="FAILED"))
    world.tick()
    assert world.leader.builds.registry.get(build.id).state == "BACKFILL"


# --- how ----------------------------------------------------------------------------------------------------

DEFINITIONS = [
    "(city)",
    "(city DESC)",
    "(city, age)",
    "(age DESC, city)",
    "(UNNEST(tags), city)",
    "(id)",
    "(LOWER(city), age) ",
    "USING hash (city, age)",
    "USING hash (UNNEST(tags))",
]
PARTITIONS = {
    "(city)": [
        "HASH(city)",
        "HASH(id)",
        "RANGE(city) SPLIT AT ('f', 'p')",
        "RANGE(city) SPLIT AT ('f', 'p') SUBPARTITION BY HASH(id) SLICES (1, 3, 2)",
        "HASH(city) SUBPARTITION BY HASH(id) SLICES 2",
    ],
    "(city DESC)": ["HASH(city)", "HASH(id)", "RANGE(city) SPLIT AT ('f', 'p')"],
    "(city, age)": [
        "HASH(age)",
        "HASH(id)",
        "RANGE(age) SPLIT AT (3, 40)",
        "RANGE(id) SPLIT AT ('d3', 'd6')",
    ],
    "(age DESC, city)": ["HASH(age)", "HASH(city)", "RANGE(age) SPLIT AT (3, 40)"],
    "(UNNEST(tags), city)": ["HASH(UNNEST(tags))", "HASH(city)", "HASH(id)"],
    "(id)": ["HASH(id)", "RANGE(id) SPLIT AT ('d3', 'd6')"],
    "(LOWER(city), age) ": ["HASH(LOWER(city))", "HASH(age)"],
    "USING hash (city, age)": [
        "HASH(city)",
        "HASH(age)",
        "HASH(id)",
        "RANGE(age) SPLIT AT (3, 40)",
        "HASH(age) SUBPARTITION BY HASH(id) SLICES (3, 1)",
    ],
    "USING hash (UNNEST(tags))": ["HASH(UNNEST(tags))", "HASH(id)"],
}
DOCUMENTS = [
    {"city": city, "age": age, "tags": tags}
    for city, age, tags in itertools.product(
        ("amsterdam", "Zürich", "", "f", None), (1, 3, 40.5, None), (["x", "y"], [])
    )
]
DOCUMENTS += [{"age": 7}, {"city": 5, "age": "x"}]


@cache
def index_of(keys: str, partition: str, slices: int) -> IndexRecord:
    number = "partitions" if "SUBPARTITION" in partition else "slices"
    options = "" if "SPLIT" in partition or "SLICES (" in partition else f"WITH ({number}={slices})"
    parsed = parse_statement(
        f"CREATE INDEX i ON people {keys} INCLUDE (age) PARTITION BY {partition} {options}"
    )
    assert isinstance(parsed, CreateIndex)
    made = parsed.definition
    splits = tuple(encode_part(one.value) for one in made.given_splits)
    return IndexRecord("i-9", made, "BUILDING", 1, [["n1"]] * made.slices, "b9", 0, splits=splits)


@cache
def entries_of(definition: IndexDefinition) -> tuple[list[bytes], Any]:
    ids = [b"d%d" % number for number in range(len(DOCUMENTS))]
    values = [json.dumps(one).encode() for one in DOCUMENTS]
    batch = SourceBatch(0, 0, 0, len(ids), list(range(len(ids))), list(ids), list(values), [0] * len(ids))
    made = project(batch, KeyspacePlan([("i", definition)])).indexes["i"]
    return [ids[ordinal] for ordinal in made.ordinals.tolist()], made


@pytest.mark.parametrize(
    ("keys", "partition"), [(keys, one) for keys in DEFINITIONS for one in PARTITIONS[keys]]
)
def test_an_entry_says_its_slice_as_its_document_does(keys: str, partition: str) -> None:
    definition = index_of(keys, partition, 3).definition
    ids, made = entries_of(definition)
    assert ids
    values = made.values or [b""] * len(ids)
    assert partition_keys(definition, ids, made.keys, values) == list(made.partition_keys)
    assert not other_entries(definition, index_of(keys, PARTITIONS[keys][0], 5).definition)


class Recorder:
    """Keeps what is sent to slices."""

    attempt = "a1"

    def __init__(self) -> None:
        self.sent: dict[int, list[Message]] = {}

    def send(self, target: int, message: Message) -> None:
        self.sent.setdefault(target, []).append(message)


def answers(rows: list[tuple[bytes, bytes, bytes, int]], size: int) -> list[EntriesAnswer]:
    """Entries of one slice as (key, id, value, offset), in key order, page by page."""
    rows.sort(key=lambda row: row[0] + row[1])
    found: list[EntriesAnswer] = []
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        offsets = np.array([row[3] for row in part], "<u8")
        found.append(
            EntriesAnswer(
                [row[1] for row in part],
                [row[0] for row in part],
                [row[2] for row in part],
                (offsets % 2).astype("<u4").tobytes(),
                offsets.tobytes(),
                (offsets.astype("<i8") * 10).tobytes(),
                at + size < len(rows),
                part[-1][0] + part[-1][1],
            )
        )
    return found


@pytest.mark.parametrize("size", [1, 3, 1_000])
@pytest.mark.parametrize("keys", DEFINITIONS)
def test_entries_come_in_key_order_each_where_it_belongs_with_its_version(keys: str, size: int) -> None:
    for before, after in itertools.product(PARTITIONS[keys], repeat=2):
        old, new = index_of(keys, before, 3), index_of(keys, after, 5)
        ids, made = entries_of(new.definition)
        values = made.values or [b""] * len(ids)
        rows = list(zip(made.keys, ids, values, range(len(ids)), strict=True))
        routes = routes_of(old).tolist()
        slices = [[row for row, at in zip(rows, routes, strict=True) if at == n] for n in range(old.slices)]
        recorder = Recorder()
        sending = Sending(new, recorder, header, 100)
        for page in in_order([map(page_of, answers(one, size)) for one in slices]):
            sending.add(page)
        sending.end_entries()
        outcome = sending.settled(len(ids))
        routes = routes_of(new).tolist()
        for number in range(new.slices):
            here = [row for row, at in zip(rows, routes, strict=True) if at == number]
            sent = [one for one in recorder.sent.get(number, []) if isinstance(one, PutChunk)]
            found = [row for chunk in sent for row in rows_of(chunk)]
            assert [(row.key + row.id, row.offset) for row in found] == sorted(
                (key + id_, offset) for key, id_, _, offset in here
            )
            assert all((row.partition, row.time) == (row.offset % 2, 10 * row.offset) for row in found)
            assert outcome.winners[number] == {"a1": len(sent)}
            assert [one.sequence for one in sent] == list(range(len(sent)))
            assert outcome.entries[number] == len(here)


def header(number: int, attempt: str) -> ChunkHeader:
    return ChunkHeader("b9", "i-9", number, "r", 0, attempt)


def routes_of(index: IndexRecord) -> Any:
    """The slices of the entries of all documents."""
    ids, entries = entries_of(index.definition)
    hashes = hashes_of(ids, len(ids))
    return slices_of(entries.partition_keys, Partitioning.of(index.definition, index.splits), hashes)


class Row(NamedTuple):
    key: bytes
    id: bytes
    partition: int
    offset: int
    time: int


def rows_of(chunk: PutChunk) -> list[Row]:
    """The entries of a chunk."""
    keys, ids = (
        cut(blob, np.frombuffer(lengths, kind))
        for blob, lengths, kind in (
            (chunk.keys, chunk.key_lengths, "<u2"),
            (chunk.ids, chunk.id_lengths, "u1"),
        )
    )
    numbers = (
        np.frombuffer(data, kind).tolist()
        for data, kind in ((chunk.partitions, "<u4"), (chunk.offsets, "<u8"), (chunk.times, "<i8"))
    )
    return [Row(*one) for one in zip(keys, ids, *numbers, strict=True)]


def cut(blob: bytes, lengths: Any) -> list[bytes]:
    ends = np.cumsum(lengths).tolist()
    return [blob[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]


def test_lines_of_skip_ledgers_go_to_the_slices_of_their_ids() -> None:
    new = index_of("(city)", "HASH(city)", 4)
    lines = [
        SkippedVersion(partition, offset, b"d%d" % offset, "not-json" if offset % 3 else "bad-id", "why")
        for partition in (0, 1, TABLE_PARTITION)
        for offset in range(40)
    ]
    recorder = Recorder()
    sending = Sending(new, recorder, header, 100)
    sending.skip(lines[:50])
    sending.skip(lines[50:])
    found = [
        (chunk.partition, skip.offset, skip.id, skip.reason, skip.detail)
        for number, sent in recorder.sent.items()
        for chunk in sent
        if isinstance(chunk, RemovalChunk) and chunk.heard is None
        for skip in chunk.skips
        if hash_modulo([skip.id], 4).tolist() == [number]
    ]
    assert sorted(found) == [tuple(msgspec.structs.astuple(line)) for line in lines]
    assert sending.settled(0).skipped == {new.id: {"bad-id": 42, "not-json": 78}}


# --- holding a snapshot -------------------------------------------------------------------------------------


class Slices:
    """Old slices that have one snapshot."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.given_back = self.foreign = 0
        self.goal = Timestamp()

    def try_pin(self, goal: Timestamp) -> Pin:
        self.goal = goal
        return Pin(7, self.incarnation, goal, "h", {("i-1", 0): "n1"}, foreign=self.foreign)

    def release(self, pin: Pin) -> None:
        self.given_back += 1


def test_a_snapshot_of_another_history_is_given_back() -> None:
    """The keyspace was rolled back, or the build is of the history before: what it holds is not wanted."""
    goal = Timestamp.of({0: 5}, "t1")
    other: Any = Slices(2)
    with pytest.raises(RetryableError, match="of another history"):
        pin_of(other, goal, 1)
    assert other.given_back == 1
    mine: Any = Slices(1)
    assert pin_of(mine, goal, 1).number == 7
    assert (mine.given_back, mine.goal) == (0, goal), "at or past all that the build must reach"
    mine.foreign = 3
    with pytest.raises(SeedUnfitError, match="3 documents were met in two"):
        pin_of(mine, goal, 1)
    assert mine.given_back == 1


# --- what a review found ------------------------------------------------------------------------------------


def test_a_layout_that_was_asked_for_under_a_release_before_reads_the_source() -> None:
    """Its nodes may not know what they would be asked."""
    world = LayoutWorld()
    world.sql(MORE)
    world.leader.dictionary.put(ClusterRecord("c1", "00", 0))
    assert prepared(world).seed == ""


def test_slices_that_are_half_rebuilt_are_waited_for_and_never_begun_with() -> None:
    world = LayoutWorld()
    world.sql(MORE)
    rebuild = BuildRecord("b99", "people", [OLD], "CANCELLED", Timestamp(), 0, slices={OLD: [1]})
    world.leader.builds.registry.put(rebuild)
    old = world.layout(OLD)
    assert old is not None
    world.leader.dictionary.put(replace(old, slice_builds={1: "b99"}))
    build = prepared(world)
    assert build.state == "QUEUED"
    assert "the rebuild of slices 1" in world.leader.builds.registry.run(build.id).waiting_for
    world.leader.dictionary.put(replace(old, slice_builds={}))
    world.live(2_000)
    begun = prepared(world)
    assert begun.seed == OLD
    world.leader.dictionary.put(replace(old, slice_builds={1: "b99"}))
    world.tick()
    assert world.leader.builds.registry.get(begun.id).state == "CANCELLED"


def test_splits_that_are_to_be_found_are_found_from_the_source() -> None:
    old = index_of("(city)", "HASH(city)", 3).definition
    parsed = parse_statement("CREATE INDEX i ON people (city) INCLUDE (age) PARTITION BY RANGE(city)")
    assert isinstance(parsed, CreateIndex)
    assert "found from the source" in other_entries(parsed.definition, old)


def test_progress_is_that_of_the_reading_that_goes_on() -> None:
    world = LayoutWorld()
    build = begun(world)
    world.driver(build.id, "RUNNING", table_documents=400, documents=390)
    world.now += 1
    world.driver(build.id, "RUNNING", table_documents=300, documents=20)
    record = world.leader.builds.registry.get(build.id)
    assert (record.documents_done, record.documents_total) == (20, 300)
