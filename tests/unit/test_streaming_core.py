"""The decisions of a backfill: winners, ends, the goal, routes, the checkpoint, what failures mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import BuildRecord, KeyspaceRecord, record_key
from keytide.errors import ConfigurationError, InvariantViolationError, RetryableError
from keytide.model.timestamp import Place, Timestamp
from keytide.settings.settings import load_settings
from streaming.core import micro_batches as core
from streaming.core.micro_batches import ExtentSummary, ForeignSummary, SliceTarget, TargetSummary, settle
from streaming.drivers.failures import diagnose, source_changed
from streaming.spark import session as spark
from streaming.spark.checkpoint import Checkpoint, CheckpointError, parse_offsets
from streaming.workers import without_archives


def share(attempt: str, chunks: dict[int, int], entries: dict[int, int], documents: int = 1) -> ExtentSummary:
    return ExtentSummary(attempt, documents, chunks, entries, {"i": {"not-json": 1}}, {})


def test_a_journal_that_does_not_know_what_was_read_is_lost() -> None:
    def forgotten(first_read_at: int, known_at: int) -> bool:
        record = BuildRecord("b8", "people", [], "BACKFILL", Timestamp(), 1)
        return core.forgotten(replace(record, first_read_at=first_read_at), known_at)

    assert forgotten(70, 0), "micro-batch 0 may be in slices, and nobody has said so yet"
    assert not forgotten(70, 70)
    assert not forgotten(0, 0), "nothing has begun"
    assert not forgotten(0, 70), "the report was lost"


def test_builds_that_are_over_are_told_from_those_to_come() -> None:
    catalog = Catalog()
    live = BuildRecord("b8", "people", [], "BACKFILL", Timestamp(), 1)
    for record in (live, replace(live, id="b9", ended=True), replace(live, id="b10", state="READY")):
        catalog.put(record_key(record), record)
    told = {build: core.over(catalog, build, "b12") for build in ("b7", "b8", "b9", "b10", "b13", "b100")}
    assert told == {"b7": True, "b8": False, "b9": True, "b10": True, "b13": False, "b100": False}


def test_a_build_is_wanted_while_it_is_to_be_read_and_not_rolled_back() -> None:
    record = BuildRecord("b8", "people", [], "BACKFILL", Timestamp(), 1, incarnation=1)
    keyspace = KeyspaceRecord("people", "T", 2, 1, 1)
    assert core.unwanted(record, keyspace) == core.unwanted(record, None) == ""
    assert core.unwanted(replace(record, state="QUEUED"), keyspace) == ""
    assert core.unwanted(None, keyspace) == "it is not in the metadata"
    assert core.unwanted(replace(record, state="PAUSED"), keyspace) == "it is PAUSED"
    assert core.unwanted(replace(record, ended=True), keyspace) != ""
    assert "was rolled back" in core.unwanted(record, replace(keyspace, incarnation=2))


def test_winners_are_the_attempts_that_handed_back_a_summary() -> None:
    outcome = settle(
        2,
        2,
        [
            share("a", {0: 2, 1: 1}, {0: 5}, 10),
            share("b", {0: 1}, {0: 1, 1: 4}, 20),
            TargetSummary(0, "c", 3, 6),
            TargetSummary(1, "c", 1, 3, retracted=1),
            ForeignSummary(b"12345678"),
            ForeignSummary(b""),
        ],
    )
    assert outcome.winners == [{"a": 2, "b": 1, "c": 3}, {"a": 1, "c": 1}]
    assert outcome.entries == [6, 3]
    assert (outcome.documents, outcome.foreign) == (30, b"12345678")
    assert outcome.skipped == {"i": {"not-json": 2}}


@pytest.mark.parametrize(
    "summaries",
    [
        [TargetSummary(0, "c", 1, 5)],  # a share is missing
        [share("a", {}, {0: 5}), share("a2", {}, {0: 5}), TargetSummary(0, "c", 1, 10)],  # one came twice
        [share("a", {}, {0: 5}), TargetSummary(0, "c", 1, 4)],  # an entry was lost
        [share("a", {}, {0: 5})],  # a slot was never delivered
        # two tasks for one
        [share("a", {}, {0: 5}), TargetSummary(0, "c", 1, 2), TargetSummary(0, "d", 1, 3)],
        [share("a", {}, {0: 5}), TargetSummary(0, "c", 1, 5), TargetSummary(0, "c", 1, 0)],
    ],
)
def test_nothing_is_lost_between_the_stages(summaries: list[core.Summary]) -> None:
    with pytest.raises(InvariantViolationError, match="NothingLost"):
        settle(1, 1, summaries)


def test_a_batch_end_for_every_slot_names_only_attempts_that_sent_it_something() -> None:
    slots = core.targets_of({"b-2": [0], "a-1": range(2)})
    assert slots == [SliceTarget("a-1", 0), SliceTarget("a-1", 1), SliceTarget("b-2", 0)]
    start, end = Timestamp({0: Place(1, 3)}), Timestamp({0: Place(5, 4)})
    ends = core.batch_ends("b", "r", 3, slots, start, end, [{"x": 1, "y": 0}, {}, {"z": 2}])
    assert [(e.index, e.slice, e.winners) for e in ends] == [
        ("a-1", 0, {"x": 1}),
        ("a-1", 1, {}),
        ("b-2", 0, {"z": 2}),
    ]
    assert all((e.build, e.run, e.batch, e.start, e.end) == ("b", "r", 3, start, end) for e in ends)


def test_a_rebuild_has_slots_for_its_slices_only() -> None:
    slots = core.targets_of({"b-2": [5, 1], "a-1": [0], "c-3": []})
    assert slots == [SliceTarget("a-1", 0), SliceTarget("b-2", 1), SliceTarget("b-2", 5)]
    assert core.target_numbers(slots, {"a-1": 1, "b-2": 6}) == {"a-1": [0], "b-2": [-1, 1, -1, -1, -1, 2]}


def build(low: dict[int, int], load: dict[int, int]) -> BuildRecord:
    return BuildRecord("b", "k", [], "BACKFILL", Timestamp.of(load), 0, low_watermark=low)


def test_the_end_needs_the_load_timestamp_and_every_low_watermark_offset() -> None:
    position = Timestamp.of({0: 10, 1: 10})
    assert core.passed(position, build({0: 10, 1: 3}, {0: 5, 1: 10}), 2)
    assert not core.passed(position, build({0: 10, 1: 3}, {0: 5, 1: 11}), 2)
    assert not core.passed(position, build({0: 11, 1: 3}, {0: 5, 1: 10}), 2)
    assert not core.passed(position, build({0: 10}, {0: 5, 1: 10}), 2), "partition 1 is not activated"
    assert core.goal(build({0: 10}, {}), 2) is None
    assert core.goal(build({0: 1, 1: 12}, {0: 5, 1: 10}), 2) == Timestamp.of({0: 5, 1: 12})


def test_spark_hash_is_sparks() -> None:
    """Values of `SELECT hash(x)` in Spark 4.0.0."""
    assert [core.spark_hash(x) for x in (0, 1, 2, 42)] == [933211791, -559580957, 1765031574, 29417773]


@pytest.mark.parametrize("partitions", [1, 2, 7, 8, 64])
def test_every_shuffle_partition_has_a_route_that_leads_there(partitions: int) -> None:
    routes = core.exact_routes(partitions)
    assert [core.spark_hash(route) % partitions for route in routes] == list(range(partitions))


# --- the checkpoint ---------------------------------------------------------------------------------------


def write_offsets(file: Path, offsets: dict[str, int], *, first: str = "", source: str = "src") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = "" if first else '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
    file.write_text(f"{first}v1\n{metadata}{json.dumps({source: offsets})}")


def test_the_checkpoint_says_what_each_micro_batch_covers(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "src", "id")
    assert checkpoint.begin() is None
    write_offsets(tmp_path / "sources/0/0", {"0": 3, "1": 0}, first="\0")
    begin = checkpoint.begin()
    assert begin == Timestamp.of({0: 3, 1: 0}, "id")
    write_offsets(tmp_path / "offsets/0", {"1": 7, "0": 3})
    write_offsets(tmp_path / "offsets/.0.crc", {})
    assert checkpoint.range(0) == (begin, Timestamp.of({0: 3, 1: 7}, "id"))
    assert len(checkpoint.range(0).extents) == 1
    for number in range(1, 12):
        write_offsets(tmp_path / "offsets" / str(number), {"0": 10 * number, "1": 7})
    assert checkpoint.range(11).start.offsets() == {0: 100, 1: 7}
    assert len(checkpoint.range(11).extents) == 1
    (tmp_path / "offsets/4").unlink()
    with pytest.raises(CheckpointError):
        checkpoint.range(5)


@pytest.mark.parametrize(
    "text", ["", "v2\n{}\n{}", "v1\n", 'v1\n{}\n{"other":{"0":1}}', "v1\n{}\n-", 'v1\n{}\n{"src":{"x":1}}']
)
def test_another_form_of_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        parse_offsets(text, "src")
    assert diagnose(CheckpointError("unreadable")).never


# --- failures ---------------------------------------------------------------------------------------------

DATA_LOSS = """[FAILED_EXECUTE] Job aborted
org.apache.spark.SparkException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost
\tat org.apache.spark.Foo(Foo.scala:1)
Could not read records in offset [3, 9) for topic partition src-0"""


@pytest.mark.parametrize(
    ("error", "reason", "never"),
    [
        (DATA_LOSS, "offsets-lost", True),
        ("[KAFKA_DATA_LOSS.PARTITIONS_DELETED] ...", "source-changed", True),
        ("[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Partition src-0 ...", "source-changed", True),
        ("x.OffsetOutOfRangeException: Fetch position is out of range", "offsets-lost", True),
        ("o.a.k.TopicAuthorizationException: Not authorized", "access-refused", True),
        ("Failed to find data source: kafka", "connector-missing", True),
        ("java.lang.OutOfMemoryError: Java heap space", "out-of-memory", False),
        ("Task 3 failed 4 times; lost task", "driver-failed", False),
        (RetryableError("away"), "unavailable", False),
        (ConfigurationError("wrong"), "configuration", True),
        (InvariantViolationError("NothingLost", "entries"), "invariant-violated", True),
        (ValueError(), "driver-failed", False),
    ],
)
def test_failures_say_whether_another_start_can_help(
    error: BaseException | str, reason: str, never: bool
) -> None:
    failure = diagnose(error)
    assert (failure.reason, failure.never) == (reason, never)
    assert failure.message


def test_a_failure_tells_the_line_that_matters() -> None:
    message = diagnose(DATA_LOSS).message
    assert "offset [3, 9) for topic partition src-0" in message
    assert "Foo.scala" not in message


def test_a_source_that_is_another_topic_ends_the_build() -> None:
    assert source_changed("src", ("a", 3), ("a", 3)) is None
    for found, word in ((None, "gone"), (("b", 3), "made anew"), (("a", 4), "4 partitions")):
        error = source_changed("src", ("a", 3), found)
        assert error is not None
        assert word in error.message
        assert diagnose(error).reason == "source-changed"
        assert diagnose(error).never


# --- Spark's settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_retry_tasks(given: str, used: str) -> None:
    assert spark.master_with_retries(given) == used


def test_the_source_never_skips_lost_offsets_nor_reads_aborted_records() -> None:
    settings = load_settings(
        kafka={
            "bootstrap": "b:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": 'u"x',
            "sasl.password": "p",
            "ssl.ca.location": "ca.pem",
            "fetch.wait.max.ms": 5,
        }
    )
    options = spark.source_options(settings, "src")
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["startingOffsets"] == "earliest"
    assert (options["subscribe"], options["maxOffsetsPerTrigger"]) == ("src", "2000000")
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert 'username="u\\"x"' in options["kafka.sasl.jaas.config"]
    assert "ScramLoginModule" in options["kafka.sasl.jaas.config"]
    assert options["kafka.ssl.truststore.location"] == "ca.pem"
    assert not any("fetch.wait" in name for name in options)


def test_options_of_the_operator_win(tmp_path: Path) -> None:
    settings = load_settings(
        build={"spark_master": "local[2]", "spark_options": {"spark.ui.enabled": "true"}}
    )
    tasks_read = spark.session_options(settings, tmp_path)
    assert tasks_read["spark.ui.enabled"] == "true"
    assert tasks_read["spark.sql.adaptive.enabled"] == "false"
    assert tasks_read["spark.master"] == "local[2,4]"
    of_a_table = spark.session_options(settings, tmp_path, rows=True)
    assert tasks_read["spark.driver.extraJavaOptions"] != of_a_table["spark.driver.extraJavaOptions"]


def test_jars_come_from_the_environment_or_from_maven() -> None:
    jars = spark.connector({"KEYTIDE_SPARK_JARS": "a.jar,/b.jar,hdfs://c.jar"}, "4.0.0")["spark.jars"]
    assert jars == f"{Path('a.jar').absolute()},/b.jar,hdfs://c.jar"
    assert "spark.jars" not in spark.connector({"KEYTIDE_SPARK_JARS": ""}, "4.0.0")
    packages = spark.connector({}, "4.0.1")["spark.jars.packages"].split(",")
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1" in packages


def test_tasks_of_the_shuffle_are_as_many_as_slots_but_bounded() -> None:
    assert spark.shuffle_partitions(8, 2) == 8
    assert spark.shuffle_partitions(3000, 2) == 8
    assert spark.shuffle_partitions(1, 64) == 1
    assert spark.shuffle_partitions(24, 16) == 24


def test_workers_do_without_the_zipped_packages() -> None:
    path = [
        "",
        "/s/python/lib/pyspark.zip",
        "/s/python/lib/py4j-0.10.9.9-src.zip",
        "/s/jars/spark-core_2.13-4.0.1.jar",
        "/v/site",
        "/x/my.zip",
    ]
    assert without_archives(path) == ["", "/v/site", "/x/my.zip"]
