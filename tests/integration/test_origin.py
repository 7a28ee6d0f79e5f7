"""Builds that begin with a table that Spark reads, in place of a log that no longer holds its beginning: on
the real parts, compared with an oracle that has read the whole topic before its records were deleted."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from deploy.cluster import LocalCluster
from deploy.java import find_java
from keytide.errors import KeytideError
from streaming.core.comparing import UNKNOWN
from tests.chaos.processes import send
from tests.integration.world import World, Writer
from tests.oracle import Source
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

DERBY = sorted(Path(pyspark.__file__).parent.glob("jars/derby*.jar"))
"""A database with its JDBC driver, which drivers are started without (`deploy.spark_home`)."""
SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "2000",
    "KEYTIDE_BUILD__JARS": json.dumps([str(jar) for jar in DERBY]),
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_COORDINATOR__REBUILD_WAIT_S": "1",
}
DATABASE = "database"
NOT_JSON = 7
"""Rows of the table that no document is made of, and those without an id."""
NO_ID = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.getbasetemp()
    allowed = {
        "KEYTIDE_BUILD__ORIGIN_PATHS": json.dumps([str(base)]),
        "KEYTIDE_BUILD__ORIGIN_URLS": json.dumps([f"jdbc:derby:{base / DATABASE / 'goods'}"]),
        "JDK_JAVA_OPTIONS": f"-Dderby.system.home={base}",  # its log would come into the working directory
    }
    with (
        LocalCluster(
            tmp_path_factory.mktemp("cluster"), nodes=2, settings={**SETTINGS, **allowed}, supervise=False
        ) as cluster,
        World(cluster) as world,
    ):
        yield world


def _order(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"o{chance.randrange(900)}"
    if chance.random() < 0.15:
        return id_, None
    return id_, {
        "city": chance.choice([None, 7, *(f"city{n}" for n in range(20))]),
        "n": chance.randrange(1_000),
        "tags": [f"t{chance.randrange(9)}" for _ in range(chance.randrange(4))],
    }


def _order_of_half(chance: random.Random, number: int) -> tuple[str, Any]:
    """Of half of the ids: however long it is written, the table keeps what it alone has of the others."""
    _, document = _order(chance, number)
    return f"o{chance.randrange(450)}", document


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    if "city" in document:
        yield [document["city"], document["n"]]


def _by_tag(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    for tag in sorted(set(document.get("tags") or [])):
        yield [tag]


def _create(world: World, topic: str) -> list[str]:
    """A topic and two indexes on it."""
    world.make_topic(topic, 3)
    world.sql(f"CREATE INDEX {topic}_city ON {topic} (city, n DESC) WITH (slices=3, defer_build=true)")
    world.sql(f"CREATE INDEX {topic}_tag ON {topic} (UNNEST(tags)) WITH (slices=2, defer_build=true)")
    return [f"{topic}_city", f"{topic}_tag"]


def _take(
    world: World, topic: str, *, keep: bool = False
) -> tuple[dict[int, int], list[tuple[str, dict[str, Any]]]]:
    """Everything that the topic stands for now, as (id, document), and where it ends; then its records are
    deleted, unless they are to be kept. The oracle has read them."""
    offsets = world.ends(topic)
    source = world.sources[topic] = Source(world.bootstrap, topic)
    newest = source.newest(offsets)
    rows = [(id_.decode(), json.loads(value)) for id_, value in newest.items() if value is not None]
    if keep:
        return offsets, rows
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    cut = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    for future in admin.delete_records(cut).values():
        future.result(30)
    return offsets, rows


def _start(world: World, names: list[str], origin: Mapping[str, Any]) -> str:
    body = {"indexes": names, "origin": {**origin, "offsets": _texts(origin["offsets"])}}
    return str(world.admin.call("POST", "/v1/builds", body)["id"])


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


def _check(world: World, topic: str) -> None:
    assert world.check_at_end(f"{topic}_city", topic, _by_city, (False, True)) > 0
    assert world.check_at_end(f"{topic}_tag", topic, _by_tag) > 0


def _wait_failed(world: World, build: str) -> str:
    wait_for(lambda: world.build_state(build)["state"] in ("FAILED", "READY"), "the build is over")
    state = world.build_state(build)
    assert state["state"] == "FAILED", state
    return str(state["error"])


def test_a_table_stands_for_records_that_are_gone(world: World, tmp_path: Path) -> None:
    """Two indexes in one build, the driver killed after the table was read, writers all the while; then a
    slice is lost and rebuilt from the same table."""
    topic = "orders"
    names = _create(world, topic)
    with Writer(world.bootstrap, topic, 1, _order) as writer:
        writer.write(4_000)
    offsets, rows = _take(world, topic)
    documents: list[tuple[str | None, str]] = [(id_, json.dumps(document)) for id_, document in rows]
    documents += [(f"bad{n}", "no document") for n in range(NOT_JSON)] + [(None, "{}")] * NO_ID
    columns = {"key": [id_ for id_, _ in documents], "body": [body for _, body in documents]}
    pq.write_table(pa.table(columns), tmp_path / "orders.parquet", row_group_size=200)
    origin = {
        "format": "parquet",
        "path": str(tmp_path / "orders.parquet"),
        "id_column": "key",
        "document_column": "body",
        "offsets": offsets,
    }
    with Writer(world.bootstrap, topic, 2, _order, per_second=200) as writer:
        writer.write(4_000)
        build = _start(world, names, origin)
        wait_for(lambda: world.build_state(build)["batches"] > 0, "the table is read")
        send(world.spark(), signal.SIGKILL)
        state = world.wait_ready(build)
        assert state["origin"]["path"] == origin["path"]
        assert {int(p): place["offset"] for p, place in state["earliest"].items()} == offsets
        world.check(names[0], topic, _by_city, (False, True))
    _check(world, topic)
    shown = {name: world.admin.call("GET", f"/v1/indexes/{name}") for name in names}
    assert {name: one["skipped"] for name, one in shown.items()} == dict.fromkeys(names, NOT_JSON + NO_ID)
    assert {one["foreign_partition_ids"] for one in shown.values()} == {0}, "rows of a table are not strange"
    _lose_a_slice(world, names[0], shown[names[0]]["id"])
    _check(world, topic)


def _lose_a_slice(world: World, name: str, index: str) -> None:
    """The folder of a slice is gone while its node is down; wait until it serves again."""
    (told,) = [one for one in world.admin.call("GET", "/v1/topology")["indexes"] if one["name"] == name]
    node = told["slices"][1]["node"]
    before = {build["id"] for build in world.admin.call("GET", "/v1/builds")}
    world.cluster.kill(node)
    shutil.rmtree(world.cluster.data_dir / node / "nodes" / node / "slices" / index / "1")
    world.cluster.restart(node)

    def rebuilds() -> list[dict[str, Any]]:
        return [build for build in world.admin.call("GET", "/v1/builds") if build["id"] not in before]

    wait_for(lambda: bool(rebuilds()), "the slice is to be rebuilt")
    (rebuild,) = rebuilds()
    assert rebuild["slices"] == {name: [1]}
    assert rebuild["origin"] is not None
    world.wait_ready(rebuild["id"])


def test_records_that_the_table_stands_for_may_be_there_still(world: World, tmp_path: Path) -> None:
    """The index has rows of the table in their place, and that is no fault: not to the build's verification,
    nor to one by hand or a repair."""
    topic = "kept"
    names = _create(world, topic)
    with Writer(world.bootstrap, topic, 4, _order) as writer:
        writer.write(1_500)
    offsets, rows = _take(world, topic, keep=True)
    columns = {"id": [id_ for id_, _ in rows], "doc": [json.dumps(document) for _, document in rows]}
    pq.write_table(pa.table(columns), tmp_path / "kept.parquet")
    origin = {
        "format": "parquet",
        "path": str(tmp_path / "kept.parquet"),
        "document_column": "doc",
        "offsets": offsets,
    }
    with Writer(world.bootstrap, topic, 5, _order_of_half, per_second=100) as writer:
        writer.write(500)
        state = world.wait_ready(_start(world, names, origin))
        _check(world, topic)
    assert state["compared"] == UNKNOWN, "half of the table was replaced since"
    jobs = [_over(world, state["verification"])]
    for doing, body in (("verify", None), ("repair", {"dry_run": True})):
        job = world.admin.call("POST", f"/v1/indexes/{names[0]}/{doing}", body)["id"]
        jobs.append(_over(world, job))
    for one in jobs:
        assert (one["state"], one["clean"]) == ("DONE", True), one
        assert set(one["counts"]) == {"UNPROVABLE"}, one


def _over(world: World, job: str) -> dict[str, Any]:
    """A job when it is over."""
    path = f"/v1/jobs/{job}"
    over = ("DONE", "FAILED", "CANCELLED")
    wait_for(lambda: world.admin.call("GET", path)["state"] in over, f"job {job} is over")
    found: dict[str, Any] = world.admin.call("GET", path)
    return found


def test_columns_become_documents_and_ids_must_differ(
    world: World, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A table of columns, through JDBC, with nothing in the log behind it; before that, tables that no build
    can begin with."""
    topic = "goods"
    names = _create(world, topic)
    with Writer(world.bootstrap, topic, 3, _order) as writer:
        writer.write(1_500)
    offsets, rows = _take(world, topic)
    for wrong, reason in (
        ({0: offsets[0], 1: offsets[1]}, "every partition"),
        ({**offsets, 7: 0}, "there is no 7"),
        ({**offsets, 1: offsets[1] + 1}, "which ends at"),
        ({**offsets, 2: offsets[2] - 1}, "were deleted"),
    ):
        with pytest.raises(KeytideError, match=reason) as refused:
            _start(world, names, {"format": "json", "path": str(tmp_path / "nowhere"), "offsets": wrong})
        assert (refused.value.status, refused.value.problem_type) == (422, "origin-unusable")
    with pytest.raises(KeytideError, match="holds a secret"):
        _start(world, names, {"format": "jdbc", "options": {"password": "x"}, "offsets": offsets})
    twice = tmp_path / "twice.json"
    lines = [{"id": id_, **document} for id_, document in [*rows, *rows[:2]]]
    twice.write_text("\n".join(map(json.dumps, lines)))
    origin = {"format": "json", "path": str(twice), "offsets": offsets}
    error = _wait_failed(world, _start(world, names, origin))
    assert "more than one row" in error
    assert rows[0][0] in error
    assert rows[1][0] in error
    nowhere = {"format": "parquet", "path": str(tmp_path / "nowhere"), "offsets": offsets}
    assert "cannot be read" in _wait_failed(world, _start(world, names, nowhere))

    for elsewhere in ({"path": "/etc/passwd"}, {"options": {"url": "jdbc:derby:/tmp/other"}}):
        with pytest.raises(KeytideError, match="may not read") as refused:
            _start(world, names, {"format": "text", **elsewhere, "offsets": offsets})
        assert (refused.value.status, refused.value.problem_type) == (403, "origin-not-allowed")
    folder = tmp_path_factory.getbasetemp() / DATABASE
    folder.mkdir()
    url = _database(folder, rows)
    origin = {
        "format": "jdbc",
        "options": {"url": url, "dbtable": "goods", "driver": "org.apache.derby.jdbc.EmbeddedDriver"},
        "id_column": "ID",
        "document_column": "DOC",
        "offsets": offsets,
    }
    world.wait_ready(_start(world, names, origin))
    _check(world, topic)


def _database(folder: Path, rows: list[tuple[str, dict[str, Any]]]) -> str:
    """A database of one table, made by Derby's own tool; its JDBC address."""
    url = f"jdbc:derby:{folder / 'goods'}"
    script = [f"CONNECT '{url};create=true';", "CREATE TABLE goods (id VARCHAR(50), doc VARCHAR(2000));"]
    script += [f"INSERT INTO goods VALUES ('{id_}', '{json.dumps(document)}');" for id_, document in rows]
    (folder / "goods.sql").write_text("\n".join([*script, "EXIT;"]))
    path = os.pathsep.join(map(str, DERBY))
    java = find_java()
    subprocess.run(
        [str(java.path), "-cp", path, "org.apache.derby.tools.ij", str(folder / "goods.sql")],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return url
