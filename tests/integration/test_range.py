"""PARTITION BY RANGE on the real parts: splits found by a sample before a build begins, while writes go on;
documents that move from range to range; scans that ask the slices of their span only."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka import KafkaProducer

from deploy.cluster import LocalCluster
from tests.chaos.processes import send
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "5000",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__SAMPLE_DOCUMENTS": "3000",
    "KEYTIDE_BUILD__NICE": "0",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
}
TOPIC = "readings"
DOCUMENTS = 12_000
SLICES = 6
GIVEN = ("NULL", "5", "500", "'m'")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    held = tmp_path_factory.mktemp("sync") / "killed"
    settings = {**SETTINGS, "KEYTIDE_SYNC_POINT": f"sample-taken:once={held}"}
    with (
        LocalCluster(
            tmp_path_factory.mktemp("cluster"), nodes=2, settings=settings, supervise=False
        ) as cluster,
        World(cluster) as world,
    ):
        world.make_topic(TOPIC, 3)
        _fill(world)
        yield world
    assert held.exists(), "the driver of a sample was killed before its report"


def _fill(world: World) -> None:
    producer = KafkaProducer(bootstrap_servers=world.bootstrap, linger_ms=20)
    chance = random.Random(7)
    for number in range(DOCUMENTS):
        document = _document(chance)
        producer.send(TOPIC, key=f"r{number}".encode(), value=json.dumps(document).encode())
    producer.flush()
    producer.close()


def _document(chance: random.Random) -> dict[str, Any]:
    """Without skew in `n`; half of the names are one and the same; `v` is of many types."""
    return {
        "n": chance.randrange(1_000_000),
        "name": "usual" if chance.random() < 0.5 else f"name{chance.randrange(400):03}",
        "v": chance.choice([None, 3, 7, 499.5, 500, "a", "m", "zz", True]),
    }


def _change(chance: random.Random, _: int) -> tuple[str, Any]:
    """Documents move over the whole range, and some go."""
    id_ = f"r{chance.randrange(DOCUMENTS + 500)}"
    return id_, None if chance.random() < 0.1 else _document(chance)


def _by_n(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["n"]]


def _by_name(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["name"], document["n"]]


def _by_v(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["v"]]


@pytest.fixture(scope="module")
def built(world: World) -> World:
    """Four indexes of one build, begun and ended while writes go on."""
    defer = f"WITH (slices={SLICES}, defer_build=true)"
    world.sql(f"CREATE INDEX by_n ON {TOPIC} (n) PARTITION BY RANGE(n) {defer}")
    world.sql(f"CREATE INDEX by_name ON {TOPIC} (name DESC, n) PARTITION BY RANGE(name) {defer}")
    world.sql(
        f"CREATE INDEX by_v ON {TOPIC} (v) PARTITION BY RANGE(v) SPLIT AT ({', '.join(GIVEN)}) "
        "WITH (defer_build=true)"
    )
    world.sql(
        f"CREATE INDEX spread ON {TOPIC} (name, n) PARTITION BY RANGE(name) SUBPARTITION BY HASH(id) "
        "SLICES 2 WITH (partitions=3, defer_build=true)"
    )
    with Writer(world.bootstrap, TOPIC, 11, _change, per_second=100):
        build = world.build("by_n", "by_name", "by_v", "spread")
        phases = set()

        def begun() -> bool:
            state = world.build_state(build)
            assert state["state"] not in ("FAILED", "CANCELLED"), state
            phases.add(state.get("phase"))
            return bool(state["state"] != "QUEUED")

        wait_for(begun, "the sample is taken")
        assert "sampling" in phases
        world.wait_ready(build)
        for index, keys, descending in (
            ("by_n", _by_n, ()),
            ("by_name", _by_name, (True, False)),
            ("spread", _by_name, ()),
        ):
            assert world.check(index, TOPIC, keys, descending) > 0
    return world


def shown(world: World, index: str) -> dict[str, Any]:
    found: dict[str, Any] = world.admin.call("GET", f"/v1/indexes/{index}")
    return found


def test_a_build_finds_even_splits_while_writes_go_on(built: World) -> None:
    assert built.check_at_end("by_n", TOPIC, _by_n) > 10_000
    index = shown(built, "by_n")
    splits = index["splits"]
    assert index["partition_by"] == "RANGE(n)"
    assert len(splits) == SLICES - 1
    assert splits == sorted(set(splits))
    entries = index["entries_by_slice"]
    assert sum(entries) == index["entries"]
    assert max(entries) < 2 * min(entries)
    even = index["entries"] / SLICES
    assert all(even / 2 < count < even * 2 for count in entries)


def test_what_half_of_the_documents_have_fills_one_slice(built: World) -> None:
    assert built.check_at_end("by_name", TOPIC, _by_name, (True, False)) > 10_000
    index = shown(built, "by_name")
    assert "usual" in index["splits"]
    entries = index["entries_by_slice"]
    assert max(entries) < 0.65 * index["entries"]
    others = sorted(entries)[:-1]
    assert max(others) < 2.5 * max(1, min(others))


def test_a_partition_of_several_slices_has_one_value_in_all_of_them(built: World) -> None:
    assert built.check_at_end("spread", TOPIC, _by_name) > 10_000
    index = shown(built, "spread")
    assert (len(index["splits"]), index["partition_slices"], index["slices"]) == (2, [2, 2, 2], 6)
    url = f"{built.cluster.node_urls[0]}/v1/indexes/spread/scan"
    answer = httpx.post(url, json={"explain": True, "equals": ["usual"]}).json()
    first, second = (one["slice"] for one in answer["explain"]["slices"])
    assert (first % 2, second) == (0, first + 1), "those of one partition"
    with built.client(1) as client:
        usual = client.count("spread", equals=["usual"]).count
        parts = [
            client.count("spread", equals=["usual"], slices=[number]).count for number in (first, second)
        ]
        assert sum(parts) == usual
        assert min(parts) > 0.4 * usual
        rows = [row.key for row in client.scan("spread", equals=["usual"], page_size=997)]
        assert rows == sorted(rows)
        assert len(rows) == usual
    built.check_verified("spread")


def test_given_splits_are_what_they_say(built: World) -> None:
    assert built.check_at_end("by_v", TOPIC, _by_v) > 10_000
    assert shown(built, "by_v")["splits"] == [None, 5, 500, "m"]
    ranges: list[tuple[Any, Any]] = [(None, 5), (5, 500), (500, "m"), ("m", {})]
    with built.client() as client:
        counted = [
            client.count("by_v", low=[low], high=[high], inclusion="low").count for low, high in ranges
        ]
    assert all(counted)
    # Nothing is missing, which would come first. (What slices have is told with their next heartbeats.)
    wait_for(lambda: shown(built, "by_v")["entries_by_slice"] == [0, *counted], "slices have their ranges")


def test_documents_move_from_range_to_range(built: World) -> None:
    splits = shown(built, "by_n")["splits"]
    places = [low + 1 for low in (-1, *splits)]
    producer = KafkaProducer(bootstrap_servers=built.bootstrap, acks="all")
    for step in range(2 * SLICES):
        for number in range(40):
            document = {"n": places[(number + step) % SLICES], "name": "mover", "v": None}
            producer.send(TOPIC, key=f"mover{number}".encode(), value=json.dumps(document).encode())
    producer.flush()
    producer.close()
    assert built.check_at_end("by_n", TOPIC, _by_n) > 10_000
    rows, _ = built.scan_all("by_n", low=[places[0]], high=[places[0]])
    movers = [id_ for _, id_ in rows if id_.startswith("mover")]
    assert (
        len(movers) == len(set(movers)) == len([n for n in range(40) if (n + 2 * SLICES - 1) % SLICES == 0])
    )


def test_scans_ask_the_slices_of_their_span_and_read_on_in_order(built: World) -> None:
    splits = shown(built, "by_n")["splits"]
    url = built.cluster.node_urls[0]

    def asked(**selection: Any) -> list[int]:
        answer = httpx.post(f"{url}/v1/indexes/by_n/scan", json={"explain": True, **selection})
        return [one["slice"] for one in answer.json()["explain"]["slices"]]

    assert asked(low=[splits[1]], high=[splits[2]], inclusion="low") == [2]
    assert asked(equals=[splits[3]]) == [4]
    assert asked(limit=3) == [0]
    assert asked(limit=3, reverse=True) == [SLICES - 1]
    keys = [row[0][0] for row in built.scan_all("by_n", page_size=997)[0]]
    assert all(one <= other for one, other in pairwise(keys))
    backwards = [row[0][0] for row in built.scan_all("by_n", page_size=997, reverse=True)[0]]
    assert backwards == keys[::-1]
    with built.client() as client:
        sql = f"SELECT COUNT(*) FROM {TOPIC} WHERE n >= {splits[0]} AND n < {splits[1]}"
        assert client.explain(sql)["slices_asked"] == [1]
        assert list(client.query(sql)) == [[len([n for n in keys if splits[0] <= n < splits[1]])]]


def test_a_sample_may_be_cancelled_and_an_empty_source_is_told(built: World, tmp_path: Path) -> None:
    built.make_topic("nothing", 2)
    built.sql("CREATE INDEX empty ON nothing (a) PARTITION BY RANGE(a) WITH (slices=4)")
    build = shown(built, "empty")["build"]
    built.wait_ready(build)
    assert shown(built, "empty")["splits"] == [None] * 3
    events = built.admin.call("GET", "/v1/events")
    assert any(one["kind"] == "range-without-sample" and one["subject"] == "empty" for one in events)

    built.sql(f"CREATE INDEX again ON {TOPIC} (n) PARTITION BY RANGE(n) WITH (slices=3)")
    build = shown(built, "again")["build"]
    wait_for(lambda: bool(built.processes("streaming.sample")), "the driver of the sample runs")
    send(built.processes("streaming.sample"), signal.SIGKILL)
    built.admin.call("POST", f"/v1/builds/{build}/cancel")
    wait_for(lambda: not built.processes("streaming.sample"), "nothing of it is left")
    assert shown(built, "again")["splits"] is None
    again = built.build("again")
    built.wait_ready(again)
    assert built.check_at_end("again", TOPIC, _by_n) > 10_000
