"""Builds that begin with a table: which ones may, what becomes of them through the whole pure leader, rows as
records in the first stage, and what a table's reader is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import BuildPrepared, SourceSampled
from coordinator.core.instructions import Instruction, PrepareBuild, StartDriver
from coordinator.sources.table_origins import lost_tombstones, refused
from coordinator.statements.origin_body import OriginBody
from coordinator.statements.origin_reach import OriginRefusedError, Reach, check, reach_of
from coordinator.views import views
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Counts, SliceStore, StoredDocument
from indexer.store.resolve.resolve import newer, step
from keytide.catalog.records import RollbackRecord, decode_record, encode_record
from keytide.catalog.table_origin import TableOrigin
from keytide.cli.options import json_file
from keytide.errors import CallerError
from keytide.model.timestamp import TABLE_PARTITION, Place, Timestamp
from streaming.backfill.table_origin import as_records, find_ids, starting_offsets
from streaming.core.versions import repeated
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, all_rows, chunks, key, lmdb_store, segments, state
from tests.unit.leader_world import MUTATIONS, World, facts, started
from tests.unit.test_coordinator_rebuild import live

ORIGIN = TableOrigin("parquet", {0: 40, 1: 20}, "/tables/people", taken_at=900_000)
CREATE = "CREATE INDEX by_city ON people (city) WITH (slices=3, defer_build=true)"
HOUR = 3_600_000


def rollback(
    incarnation: int, cause: Any = "truncated", lost: dict[int, Place] | None = None, **at: int
) -> RollbackRecord:
    offsets = {int(name[1:]): offset for name, offset in at.items()}
    return RollbackRecord("people", incarnation, 5, Timestamp.of(offsets), "t1", cause, 0, lost or {})


# --- which tables ------------------------------------------------------------------------------------------


def test_a_table_that_fits_its_source_is_taken() -> None:
    assert refused(ORIGIN, facts((100, 50), earliest=(40, 0))) == ""
    assert refused(ORIGIN, facts((40, 20))) == ""


@pytest.mark.parametrize(
    ("changed", "source", "reason"),
    [
        ({"offsets": {0: 40}}, facts(), "every partition of people: 1 have none"),
        ({"offsets": {0: 40, 1: 20, 9: 0}}, facts(), "there is no 9"),
        ({"offsets": {0: 40, 1: 51}}, facts(), "taken at offset 51 of partition 1, which ends at 50"),
        ({}, facts(earliest=(41, 0)), "offsets 40 to 40 of partition 0"),
        ({"topic_id": "t0"}, facts(), "deleted and made anew"),
        ({"taken_at": 0}, facts(compacted=True, delete_retention_ms=HOUR, at=1_000_000), "taken_at"),
        ({}, facts(compacted=True, delete_retention_ms=99_999, at=1_000_000), "tombstones for 99 s only"),
    ],
)
def test_a_table_that_does_not_is_refused(changed: dict[str, Any], source: Any, reason: str) -> None:
    assert reason in refused(msgspec.structs.replace(ORIGIN, **changed), source)


def test_tombstones_count_from_when_the_table_was_taken() -> None:
    kept = facts(compacted=True, delete_retention_ms=HOUR, at=900_000 + HOUR)
    assert lost_tombstones(ORIGIN, kept) == ""
    late = facts(compacted=True, delete_retention_ms=HOUR, at=900_001 + HOUR)
    assert "take a newer table" in lost_tombstones(ORIGIN, late)
    assert lost_tombstones(msgspec.structs.replace(ORIGIN, taken_at=0), facts()) == ""


@pytest.mark.parametrize(
    ("records", "void"),
    [
        ([rollback(1, p0=39, p1=50)], True),
        ([rollback(1, p0=40, p1=20)], False),
        ([rollback(1, lost={0: Place(39, 2)}, p0=1, p1=1)], True),
        ([rollback(1, lost={0: Place(40, 2)}, p0=1, p1=1)], False),
        ([rollback(1, "recreated", p0=99, p1=99)], True),
        ([rollback(1, p0=0), rollback(2, p0=90, p1=90)], True),
    ],
)
def test_a_table_of_a_lost_branch_is_refused(records: list[RollbackRecord], void: bool) -> None:
    assert bool(refused(ORIGIN, facts(), records)) is void
    known = msgspec.structs.replace(ORIGIN, incarnation=2)
    assert refused(known, facts(), records) == "", "offsets that were given since are of the new history"


# --- builds ------------------------------------------------------------------------------------------------


def begun(limits: BuildLimits | None = None, source: Any = None) -> World:
    """Build b8 of by_city-7 that begins with ORIGIN, in BACKFILL."""
    world = World(limits)
    world.sql(CREATE)
    world.node("n1", "n2")
    world.take(world.leader.commands.build(["by_city"], 0, world.now, ORIGIN, facts()).instructions)
    assert any(isinstance(one, PrepareBuild) for one in world.tick())
    world.prepared("b8", source)
    return world


def test_a_build_begins_at_the_offsets_of_its_table() -> None:
    world = begun()
    build = world.build("b8")
    assert build.origin == msgspec.structs.replace(ORIGIN, topic_id="t1")
    assert (build.state, build.earliest.offsets(), build.documents_total) == ("BACKFILL", {0: 40, 1: 20}, 90)
    assert "after the table /tables/people" in world.notes[-1].text
    shown = views.build(world.leader, build, world.now)["origin"]
    assert (shown["path"], shown["offsets"]) == ("/tables/people", {"0": 40, "1": 20})
    other, instructions = world.restart()
    assert StartDriver("b8") in instructions
    assert other.build("b8").origin == build.origin


def test_a_request_that_cannot_be_is_refused_at_once() -> None:
    world = World()
    world.sql(CREATE)
    with pytest.raises(CallerError, match="ends at 19") as error:
        world.leader.commands.build(["by_city"], 0, world.now, ORIGIN, facts((100, 19)))
    assert (error.value.status, error.value.problem_type) == (422, "origin-unusable")
    assert world.index("by_city").build is None


def test_what_became_wrong_while_the_build_waited_fails_it() -> None:
    world = begun(source=facts(earliest=(41, 0)))
    assert world.build("b8").state == "FAILED"
    assert "offsets 40 to 40 of partition 0, which follow the table" in world.build("b8").error


def sampled(world: World, source: Any) -> list[Instruction]:
    return world.handle(SourceSampled(source, "", world.now))


def test_offsets_behind_the_table_that_are_lost_fail_it_also_before_they_are_read() -> None:
    world = begun()
    sampled(world, facts(earliest=(40, 20)))
    assert world.build("b8").state == "BACKFILL"
    sampled(world, facts(earliest=(40, 21)))
    assert world.build("b8").state == "FAILED"
    assert "offsets 20 to 20 of partition 1 were deleted" in world.build("b8").error


def test_the_age_of_the_table_fails_it_until_the_load_timestamp_is_reached() -> None:
    kept: dict[str, Any] = {"compacted": True, "delete_retention_ms": HOUR}
    world = begun(source=facts(at=1_000_000, **kept))
    late = facts(at=900_001 + HOUR, **kept)
    world.driver("b8", "RUNNING", 2, (100, 50), first_read_at=world.now)
    sampled(world, late)
    assert world.build("b8").state == "BACKFILL", "the load timestamp is reached"
    world = begun(source=facts(at=1_000_000, **kept))
    world.driver("b8", "RUNNING", 2, (99, 50), first_read_at=world.now)
    sampled(world, late)
    assert world.build("b8").state == "FAILED"
    assert "the table was taken 3600 s ago" in world.build("b8").error


def test_it_begins_again_with_its_table() -> None:
    world = begun()
    record = world.leader.builds.registry.get("b8")
    world.take(world.leader.builds.begin_again(record, "test", world.now))
    (again,) = [one for one in world.leader.builds.registry.all() if one.id != "b8"]
    assert (again.origin, again.attempt) == (record.origin, 1)


def test_others_of_a_build_that_an_index_leaves_keep_the_table() -> None:
    world = World()
    world.sql(CREATE)
    world.sql(CREATE.replace("by_city", "by_name"))
    world.node("n1")
    world.take(
        world.leader.commands.build(["by_city", "by_name"], 0, world.now, ORIGIN, facts()).instructions
    )
    world.tick()
    (first,) = world.leader.builds.registry.all()
    world.prepared(first.id)
    world.sql("DROP INDEX by_name")
    (again,) = [one for one in world.leader.builds.registry.all() if one.id != first.id]
    assert again.indexes == ["by_city-7"]
    assert again.origin == world.build(first.id).origin


def test_its_slices_are_rebuilt_from_the_same_table() -> None:
    world = begun(BuildLimits(rebuild_wait_ms=0))
    origin = world.build("b8").origin
    world.activate(1, 120, 40)
    world.driver("b8", "PASSED", 2, (125, 60))
    world.handle(SourceSampled(facts((130, 60)), "b8", world.now))
    world.common(130, 60)
    assert world.index("by_city").state == "READY"
    live(world, {1: "LOST"}, 2_000)
    (rebuild,) = [one for one in world.leader.builds.registry.all() if one.rebuild]
    assert (rebuild.slices, rebuild.origin) == ({"by_city-7": [1]}, origin)
    ends = {MUTATIONS: {0: 5, 1: 6, 2: 7}}
    lost = facts((200, 90), earliest=(41, 0), at=world.now)
    world.handle(BuildPrepared(rebuild.id, lost, world.now, ends))
    assert "which follow the table, were deleted" in world.build(rebuild.id).error
    assert world.index("by_city").state == "READY", "it is tried again, then the index says what is lost"


def test_records_without_a_table_are_read_as_before() -> None:
    world = begun()
    document = json.loads(encode_record(world.build("b8")))
    del document["origin"]
    assert decode_record("build/b8", json.dumps(document).encode()).origin is None  # type: ignore[union-attr]


# --- requests ----------------------------------------------------------------------------------------------


def test_a_request_becomes_an_origin() -> None:
    body = {"format": "jdbc", "options": {"url": "jdbc:x"}, "id_column": "pk", "offsets": {"1": 20, "0": 40}}
    made = OriginBody.model_validate(body).table(Reach(urls=("jdbc:x",)))
    assert made == TableOrigin("jdbc", {0: 40, 1: 20}, options={"url": "jdbc:x"}, id_column="pk")


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": {"password": "x"}},
        {"options": {"fs.s3a.secret.key": "x"}},
        {"options": {"url": "jdbc:postgresql://h/db?user=u&password=x"}},
        {"path": "s3://me:mine@bucket/table"},
        {"offsets": {"0": -1}},
    ],
)
def test_secrets_and_negative_offsets_are_refused(wrong: dict[str, Any]) -> None:
    body = OriginBody.model_validate({"format": "parquet", "offsets": {"0": 1}, **wrong})
    with pytest.raises(CallerError) as error:
        body.table(Reach())
    assert error.value.status == 422


def refused_by(reach: Reach, kind: str, where: str = "", **options: str) -> bool:
    try:
        check(reach, kind, where, options)
    except OriginRefusedError as error:
        return "build.origin_" in (error.next_step or "")
    return False


def test_only_what_is_allowed_is_read(tmp_path: Path) -> None:
    data, exports = tmp_path / "data", tmp_path / "exports"
    for folder in (data, exports):
        folder.mkdir()
    (data / "out").symlink_to("/etc")
    nothing = reach_of(data, [], [])
    for path in (f"{data}/t", f"file:{data}/t", f"file://{data}/t/*.parquet", str(data)):
        assert not refused_by(nothing, "text", path)
    for path in (
        *(
            "/etc/passwd",
            "file:///etc/passwd",
            "FILE:/etc/passwd",
            "etc/passwd",
            f"{data}/../x",
            f"/{data}/x",
        ),
        *(f"{data}/{{../../etc}}/passwd", f"{data}/out/passwd", f"{data}x/t", "s3a://b/t", f"{exports}/t"),
        *("hdfs:/etc/passwd", f"file://host{data}/t"),
    ):
        assert refused_by(nothing, "text", path), path
    assert refused_by(nothing, "text", PATH="/etc/passwd")
    assert refused_by(nothing, "text", f"{data}/t", path="/etc/passwd")
    assert refused_by(nothing, "jdbc", url="jdbc:postgresql://db/shop")
    assert refused_by(nothing, "kafka", subscribe="t")
    assert refused_by(nothing, "avro", f"{data}/t", avroSchemaFile="/etc/passwd")
    assert refused_by(nothing, "csv", f"{data}/t", schemaRegistry="http://127.0.0.1/")
    assert not refused_by(nothing, "csv", f"{data}/t", sep="/", header="true", timeFormat="HH:mm/ss")

    urls = ["jdbc:postgresql://db/shop", "s3a://exports/people", "kafka:"]
    some = reach_of(data, [str(exports)], urls)
    assert not refused_by(some, "jdbc", url="jdbc:postgresql://db/shop", dbtable="people")
    assert refused_by(
        some, "jdbc", url="jdbc:postgresql://db/shop?socketFactory=x&socketFactoryArg=/etc/passwd"
    )
    assert refused_by(some, "jdbc", url="jdbc:postgresql://db/shop/../other")
    assert not refused_by(some, "parquet", "s3a://exports/people/day=1")
    assert refused_by(some, "parquet", "s3a://exports/people2")
    assert refused_by(some, "parquet", "s3a://exports/people/../all")
    assert not refused_by(some, "parquet", f"{exports}/people")
    assert not refused_by(some, "kafka", subscribe="t")


def test_an_origin_in_a_file_is_one_json_object(tmp_path: Path) -> None:
    file = tmp_path / "origin.json"
    file.write_text('{"format": "parquet", "offsets": {"0": 1}}')
    assert OriginBody.model_validate(json_file(file)).table(Reach(urls=("parquet:",))).offsets == {0: 1}
    for wrong in ("[1]", "{"):
        file.write_text(wrong)
        with pytest.raises(CallerError, match="JSON"):
            json_file(file)


# --- versions ----------------------------------------------------------------------------------------------


def test_a_row_is_older_than_every_record_and_beside_none_strange() -> None:
    row = StoredDocument(TABLE_PARTITION, 7, 0, (b"k",), False)
    assert newer(0, 0, -1, row)
    assert not newer(TABLE_PARTITION, 1 << 40, 1 << 60, StoredDocument(0, 0, 0, (b"k",), False))
    held, taken = step(row, 1, 0, -5, [b"l"])
    assert taken
    assert held == StoredDocument(1, 0, -5, (b"l",), False)
    assert step(row, 1, 0, -5, []) == (None, True)
    assert step(held, TABLE_PARTITION, 9, 9, [b"m"]) == (held, False)
    assert step(row, TABLE_PARTITION, 7, 0, [b"m"]) == (row._replace(keys=(b"k", b"m")), True)
    assert step(held, 0, 3, 99, [b"n"])[0] == StoredDocument(0, 3, 99, (b"n",), True), (
        "two partitions are strange"
    )


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, folds: FoldWorker) -> Iterator[SliceStore]:
    made: SliceStore = (
        lmdb_store(tmp_path / "slice", folds) if request.param == "lmdb" else MemorySliceStore(Applied())
    )
    yield made
    made.close()


def test_records_replace_and_remove_rows_in_a_store(store: SliceStore) -> None:
    def version(id_: str, partition: int, offset: int, time: int, *texts: str) -> Version:
        return Version(id_.encode(), partition, offset, time, tuple((key(text), b"") for text in texts))

    rows = [version(name, TABLE_PARTITION, n, 0, "a", name) for n, name in enumerate("uvwx")]
    store.load(chunks(rows), [], state(p0=5, p1=5))
    store.apply(
        segments([version("u", 0, 5, -9, "b"), version("v", 1, 5, -9), version("w", 1, 6, 3, "a", "c")]),
        state(1, p0=6, p1=7),
    )
    expected = {("b", "u"), ("a", "w"), ("c", "w"), ("a", "x"), ("x", "x")}
    assert [row for row, _ in all_rows(store)] == sorted(key(k) + i.encode() for k, i in expected)
    assert store.counts == Counts(entries=5, documents=3)
    store.apply(segments([version("w", 0, 6, 4, "d")]), state(2, p0=7, p1=7))
    assert store.counts.foreign == 1
    store.check_mirror()


# --- reading the table -------------------------------------------------------------------------------------


def rows_of(*documents: tuple[bytes | None, bytes]) -> pa.RecordBatch:
    ids, values = [id_ for id_, _ in documents], [value for _, value in documents]
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"]
    )


def test_rows_become_records_with_versions_of_their_own() -> None:
    seen: list[Any] = []
    batches = [rows_of((b"a", b"{}"), (None, b"{}")), rows_of((b"b", b"null"), (b"a", b"1"))]
    first, second = as_records(3, batches, seen)
    assert (first.partition, first.ids, first.values) == (TABLE_PARTITION, [b"a", None], [b"{}", b"{}"])
    offsets = [*np.asarray(first.offsets).tolist(), *np.asarray(second.offsets).tolist()]
    assert offsets == [(3 << 32) + row for row in range(4)]
    assert set(np.asarray(first.times).tolist()) == {0}
    assert (first.start, first.end, second.start) == (3 << 32, (3 << 32) + 2, (3 << 32) + 2)
    again = repeated(seen)
    assert again.tolist() == [xxhash.xxh3_64_intdigest(b"a")]
    found = [batch.column("id").to_pylist() for batch in find_ids(again.tobytes(), batches)]
    assert found == [[b"a"], [b"a"]]
    assert repeated([]).tolist() == []


def test_reading_begins_at_offsets() -> None:
    assert starting_offsets("people", {1: 2, 0: 40}) == '{"people": {"0": 40, "1": 2}}'


def test_rows_of_the_table_are_counted_and_no_end_is_promised_before_they_are_known() -> None:
    world = begun()
    world.driver("b8", "RUNNING", 0, (40, 20), documents=700, table_documents=700)
    world.tick(1_100)
    build = world.build("b8")
    assert (build.documents_done, build.documents_total, build.table_documents) == (700, 790, 700)
    seen = views.build(world.leader, build, world.now)
    assert (seen["eta_s"], seen["percent"]) == (None, 0.0)
    world.driver("b8", "RUNNING", 1, (40, 20), documents=1_000, table_documents=1_000)
    world.driver("b8", "RUNNING", 2, (60, 20), documents=1_020, table_documents=1_000)
    world.tick(1_100)
    build = world.build("b8")
    assert (build.documents_done, build.documents_total) == (1_020, 1_090)


def test_a_pause_keeps_the_rows_of_a_table_that_is_read() -> None:
    world = begun()
    world.driver("b8", "RUNNING", 1, (40, 20), documents=1_000, table_documents=1_000, bytes=5_000)
    world.driver("b8", "RUNNING", 1, (40, 20), documents=1_040, table_documents=1_000, bytes=5_200)
    world.take(world.leader.commands.pause("b8", world.now).instructions)
    build = world.build("b8")
    assert (build.documents_done, build.documents_total, build.bytes_done) == (1_000, 1_090, 5_000)


# --- what is left out ---------------------------------------------------------------------------------------


def test_a_build_says_what_its_indexes_have_no_entries_of() -> None:
    world = started(World(BuildLimits(verify=False)))
    world.activate(1, 100, 50)
    counts = {"by_city-7": {"leading-key-missing": 7}}
    world.driver("b8", "PASSED", 1, (100, 50), left_out=counts, skipped={"by_city-7": {"not-json": 2}})
    world.handle(SourceSampled(facts((100, 50)), "b8", world.now))
    world.common(100, 50)
    shown = views.build(world.leader, world.build("b8"), world.now)
    assert shown["left_out"] == {"by_city": {"leading-key-missing": 7}}
    assert shown["skipped"] == {"by_city": {"not-json": 2}}
    index = views.index(world.leader, world.index("by_city"), world.now)
    assert index["left_out_by_build"] == {"leading-key-missing": 7, "not-json": 2}
    (note,) = [note.text for note in world.notes if note.kind == "build-ready"]
    assert note.endswith("left out of by_city: 7 leading-key-missing")
