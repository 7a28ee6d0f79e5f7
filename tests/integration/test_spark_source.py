"""Spark reads indexes: a whole DataFrame is one snapshot, under writes, twice in one query, and after tasks
that died; conditions reach the nodes. On the real parts: Kafka, coordinator, projector, two nodes, Spark."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from keytide.client import Client
from tests.integration.world import World, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark's, of every collect()
]

ROOT = Path(__file__).resolve().parents[2]
PEOPLE = 600
CITIES = 12
TOPIC, INDEX = "movers", "movers_city"
STATEMENT = f"CREATE INDEX {INDEX} ON {TOPIC} (city, n DESC) INCLUDE (name) WITH (slices=4, defer_build=true)"


def _move(chance: random.Random, number: int) -> tuple[str, Any]:
    """Each person in turn, then moves: there are always `PEOPLE` of them, each in one city."""
    who = number if number < PEOPLE else chance.randrange(PEOPLE)
    return f"p{who}", {"city": f"city{chance.randrange(CITIES)}", "n": number, "name": f"name{who}"}


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    shared_world.begin_empty(TOPIC, INDEX, STATEMENT)
    # (A thread that writes meanwhile would take numbers of people who are never written then.)
    with Writer(shared_world.bootstrap, TOPIC, 0, _move, per_second=0.01) as writer:
        writer.write(PEOPLE)
    shared_world.wait_shown(TOPIC, INDEX)
    return shared_world


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """As a user's: nothing registers the source."""
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(ROOT))  # an editable install has no modules that Spark could list
        session = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.local.dir", str(scratch))
            .config("spark.sql.warehouse.dir", str(scratch))
            .config(
                "spark.driver.extraJavaOptions",
                f"-Duser.dir={scratch} -Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1",
            )
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
    yield session
    session.stop()


def _load(world: World, spark: SparkSession, **options: str) -> DataFrame:
    reader = spark.read.format("keytide").option("url", ",".join(world.cluster.node_urls))
    return reader.options(**options).load(options.get("index", INDEX))


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_a_dataframe_equals_a_scan_of_its_snapshot_while_documents_move(
    world: World, spark: SparkSession
) -> None:
    with Writer(world.bootstrap, TOPIC, 1, _move) as writer, Client(world.cluster.node_urls) as client:
        before = writer.written
        for _ in range(3):
            with client.snapshot(INDEX) as held:
                frame = _load(world, spark, at=held.at)
                assert frame.schema.simpleString() == "struct<city:string,n:bigint,id:string,name:string>"
                expected = sorted((*row.key, row.id, row.include["name"]) for row in held.scan())
                assert _rows(frame) == expected
                assert len({row[2] for row in expected}) == len(expected) == PEOPLE
        assert writer.written > before, "the writer stood still"


def test_all_uses_of_a_dataframe_see_one_snapshot(world: World, spark: SparkSession) -> None:
    with Writer(world.bootstrap, TOPIC, 2, _move):
        frame = _load(world, spark)
        first = _rows(frame)
        assert len({row[2] for row in first}) == len(first) == PEOPLE
        both = frame.alias("one").join(frame.alias("other"), ["id", "city", "n"])
        assert both.count() == PEOPLE, "both sides of a join are one snapshot"
        assert sum(row["count"] for row in frame.groupBy("city").count().collect()) == PEOPLE
        assert _rows(frame) == first
        at = frame.filter("n < 0").union(frame).count(), frame.filter("city = 'city1'").count()
        assert at == (PEOPLE, sum(row[0] == "city1" for row in first)), "filters of one use are not another's"
        newest = _load(world, spark, max_staleness_ms="5000", timeout_ms="30000")
        assert _rows(newest) != first, "a new load is a newer snapshot"


def _given(world: World) -> float:
    """Rows that nodes have given to readers."""
    found = 0.0
    for url in world.cluster.node_urls:
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
            found += sum(
                sample.value for sample in family.samples if sample.name == "keytide_scan_rows_total"
            )
    return found


def test_conditions_reach_the_nodes(world: World, spark: SparkSession) -> None:
    everything = _rows(_load(world, spark))
    middle = sorted(row[1] for row in everything)[PEOPLE // 2]
    for where, wanted, tasks in (
        ("city = 'city3'", [row for row in everything if row[0] == "city3"], 1),
        (
            f"city IN ('city3', 'city4') AND n > {middle}",
            [row for row in everything if row[0] in ("city3", "city4") and row[1] > middle],
            2,
        ),
        ("city LIKE 'city1%'", [row for row in everything if row[0].startswith("city1")], 4),
    ):
        frame = _load(world, spark, where=where)
        before = _given(world)
        assert _rows(frame) == wanted
        assert _given(world) - before == len(wanted), "nodes give what is selected, and nothing else"
        assert frame.rdd.getNumPartitions() <= tasks
    narrow = spark.read.format("keytide").schema("name STRING, n STRING")
    frame = narrow.options(url=world.cluster.node_urls[0], index=INDEX, equals='["city3"]').load()
    assert _rows(frame) == sorted((row[3], str(row[1])) for row in everything if row[0] == "city3")


def _die_once(batches: Iterable[RecordBatch]) -> Iterable[RecordBatch]:
    """The first attempt of every task gives a batch, and is killed. Rows say which attempt they come from."""
    import pyarrow as pa
    from pyspark import TaskContext

    attempt = TaskContext.get().attemptNumber()  # type: ignore[union-attr]
    for batch in batches:
        yield batch.append_column("attempt", pa.array([attempt] * batch.num_rows, pa.int64()))
        if attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_is_run_again_reads_the_same_snapshot(world: World, spark: SparkSession) -> None:
    with Client(world.cluster.node_urls) as client, client.snapshot(INDEX) as held:
        frame = _load(world, spark, at=held.at)
        with Writer(world.bootstrap, TOPIC, 3, _move) as writer:
            before = writer.written
            found = _rows(
                frame.mapInArrow(_die_once, "city string, n long, id string, name string, attempt long")
            )
            assert writer.written > before, "the writer stood still"
        expected = sorted((*row.key, row.id, row.include["name"], 1) for row in held.scan())
    assert found == expected
    assert len(found) == PEOPLE


def test_plans_do_not_show_the_token(world: World, spark: SparkSession) -> None:
    frame = _load(world, spark, token="s3cret").filter("n > 0")
    assert frame.count() > 0
    shown = frame._jdf.queryExecution().toString()
    assert "keytide" in shown
    assert "s3cret" not in shown
    with pytest.raises(Exception, match="no option tokem") as caught:
        _load(world, spark, token="s3cret", tokem="x")
    assert "s3cret" not in str(caught.value)


def test_errors_say_what_to_do(world: World, spark: SparkSession) -> None:
    with pytest.raises(Exception, match="Option `index` names the index"):
        _load(world, spark, index="by_town")
    with pytest.raises(Exception, match="filter by everything else in Spark"):
        _load(world, spark, where="name = 'x'")
    with Client(world.cluster.node_urls) as client, client.snapshot(INDEX) as held:
        frame = _load(world, spark, at=held.at)
    with pytest.raises(Exception, match=r"no longer held: load it again.*`lease_s`"):
        frame.count()
