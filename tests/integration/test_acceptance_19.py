"""Acceptance 19, lost history: an unclean election of a real three-broker Kafka drops acknowledged records;
and a topic is deleted and made anew. Everything goes back to the newest snapshot before the loss, readers are
told, another keyspace notices nothing, and in the end every index is its source.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from deploy.cluster import LocalCluster
from keytide.client import Client
from keytide.errors import HistoryChangedError, KeytideError, RetryableError
from tests.integration.three_brokers import ThreeBrokers
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.timeout(900),
]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "2000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "6000",
    "KEYTIDE_SCAN__FIRST_LEASE_S": "600",
    "KEYTIDE_SCAN__LEASE_S": "600",
}


def by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"]]


def by_total(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    if document["total"] % 3:
        yield [document["total"], document["city"]]


def documents(start: int, count: int, city: str) -> list[tuple[str, bytes]]:
    return [
        (f"doc-{number % 700}", json.dumps({"city": f"{city}-{number % 13}", "total": number}).encode())
        for number in range(start, start + count)
    ]


def change(chance: Any, number: int) -> tuple[str, Any]:
    id_ = f"person-{chance.randrange(500)}"
    return id_, None if chance.random() < 0.1 else {"city": f"c{number % 17}", "total": number}


class Reading(threading.Thread):
    """Reads an index of the other keyspace all the time, in one session: nothing may go wrong, and its
    snapshots never go back."""

    def __init__(self, url: str, index: str) -> None:
        super().__init__(daemon=True)
        self._client, self._index = Client(url), index
        self.end = threading.Event()
        self.snapshots: list[int] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.end.wait(0.05):
            try:
                answer = self._client.count(self._index)
            except KeytideError as error:
                self.errors.append(f"{error.problem_type}: {error}")
                continue
            self.snapshots.append(answer.snapshot or -1)

    def __enter__(self) -> Reading:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.join(30)
        self._client.close()


def stability(world: World, keyspace: str) -> dict[str, Any]:
    answer: dict[str, Any] = {}

    def asked() -> bool:
        try:
            answer.update(world.admin.call("GET", "/v1/stability")["keyspaces"][keyspace])
        except (RetryableError, KeyError):
            return False
        return True

    wait_for(asked, "the coordinator answers")
    return answer


def two_indexes(world: World, topic: str) -> list[str]:
    """Two READY indexes of a topic."""
    names = [f"{topic}_by_city", f"{topic}_by_total"]
    world.sql(f"CREATE INDEX {names[0]} ON {topic} (city) WITH (slices=3, defer_build=true)")
    world.sql(
        f"CREATE INDEX {names[1]} ON {topic} (total DESC, city) WHERE total % 3 > 0 "
        "WITH (slices=2, defer_build=true)"
    )
    world.wait_ready(world.build(*names))
    return names


def check_both(world: World, topic: str) -> None:
    """Both indexes are their source as it is now."""
    if source := world.sources.pop(topic, None):
        source.close()  # (it remembers records that may be gone)
    world.check_at_end(f"{topic}_by_city", topic, by_city)
    world.check_at_end(f"{topic}_by_total", topic, by_total, [True, False])


@pytest.fixture
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    # A dead broker is noticed before nodes (3 s) and projectors' sessions (6 s) count as gone.
    soon = {"broker.session.timeout.ms": 2000, "replica.lag.time.max.ms": 2000}
    with ThreeBrokers(tmp_path_factory.mktemp("three"), soon) as running:
        yield running


@pytest.fixture
def world(brokers: ThreeBrokers, tmp_path: Path) -> Iterator[World]:
    settings = {**SETTINGS, "KEYTIDE_TOPICS__REPLICATION_FACTOR": "3"}
    with (
        LocalCluster(tmp_path, kafka=brokers.bootstrap, nodes=2, projectors=2, settings=settings) as cluster,
        World(cluster) as world,
    ):
        yield world


def test_an_election_that_loses_records_is_rolled_back(brokers: ThreeBrokers, world: World) -> None:
    brokers.create("orders", [[1, 2], [3, 1]])
    brokers.create("people", [[3, 1], [3, 2]], unclean=False)
    brokers.write("orders", 0, documents(0, 2_000, "a"))
    brokers.write("orders", 1, documents(10_007, 500, "a"))
    with Writer(brokers.bootstrap, "people", 7, change, per_second=300) as people:
        people.write(500)
        two_indexes(world, "orders")
        two_indexes(world, "people")
        check_both(world, "orders")
        before = world.client()
        kept = before.page("orders_by_city", limit=50)
        rows_before, _ = world.scan_all("orders_by_city")
        after = world.client(1)
        told: dict[str, Any] = {}

        def lost() -> None:
            brokers.write("orders", 0, documents(2_000, 300, "lost"))
            ends = {"0": world.ends("orders")[0]}
            page = after.page("orders_by_city", limit=50, low=["lost"], at_least=ends, timeout_ms=120_000)
            assert page.rows[0].key[0].startswith("lost"), "it is served before it is lost"
            told["page"], told["snapshot"] = page.page, page.snapshot
            told["at_least"] = {p: dict(place) for p, place in page.timestamp.items()}

        with Reading(world.cluster.node_urls[0], "people_by_city") as reading:
            brokers.lose("orders", 0, lost)
            brokers.write("orders", 0, documents(5_000, 400, "new"))
            wait_for(lambda: stability(world, "orders")["incarnation"] == 1, "rolled back")
            rolled_back_at = time.monotonic()
            check_both(world, "orders")
            recovered = time.monotonic() - rolled_back_at
            seen = len(reading.snapshots)
            wait_for(lambda: len(reading.snapshots) > seen + 20, "people are read on")
        last = stability(world, "orders")["last_rollback"]
        assert last["cause"] == "truncated"
        assert kept.snapshot is not None
        assert kept.snapshot <= last["snapshot"] < told["snapshot"]
        assert last["lost"]["0"]["offset"] == 2_000
        print(f"zero differences {recovered:.1f} s after the rollback; {last}")

        # Who saw what is void now is told, once for all; who did not goes on, from the very same snapshot.
        with pytest.raises(HistoryChangedError):
            after.count("orders_by_city")
        with pytest.raises(HistoryChangedError):
            after.page("orders_by_city", page=told["page"], session=None)
        lost_place = {"0": told["at_least"]["0"]}
        if lost_place["0"].get("epoch", -1) >= 0:
            after.reset_session()
            with pytest.raises(HistoryChangedError):
                after.count("orders_by_city", at_least=lost_place)
        after.reset_session()
        assert after.count("orders_by_city", low=["lost"], high=["lost-99"]).count == 0
        rows, page = [(row.key, row.id) for row in kept.rows], kept
        while page.page is not None:
            page = before.page("orders_by_city", page=page.page)
            assert page.snapshot == kept.snapshot
            rows += [(row.key, row.id) for row in page.rows]
        assert rows == rows_before
        before.count("orders_by_city")
        before.close()
        after.close()

        # Others noticed nothing.
        assert reading.errors == []
        assert reading.snapshots == sorted(reading.snapshots)
        assert reading.snapshots[-1] > told["snapshot"]
        assert stability(world, "people")["incarnation"] == 0
    check_both(world, "people")

    # Once more, the other way round: the broker that led first is the one that has less now.
    wait_for(lambda: len(brokers.in_sync("orders", 0)) == 2, "the old leader has followed")

    def lost_too() -> None:
        brokers.write("orders", 0, documents(8_000, 200, "lost-too"))
        ends = {"0": world.ends("orders")[0]}
        with world.client() as client:
            assert client.count("orders_by_city", low=["lost-too"], at_least=ends, timeout_ms=120_000).count

    brokers.lose("orders", 0, lost_too)
    brokers.write("orders", 0, documents(9_000, 300, "newest"))
    wait_for(lambda: stability(world, "orders")["incarnation"] == 2, "rolled back again")
    check_both(world, "orders")
    assert stability(world, "people")["incarnation"] == 0
    check_both(world, "people")
    for name in ("orders_by_city", "orders_by_total", "people_by_city", "people_by_total"):
        assert world.admin.call("GET", f"/v1/indexes/{name}")["state"] == "READY"


def test_a_topic_made_anew_begins_from_nothing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=2, settings=SETTINGS) as cluster, World(cluster) as world:
        world.make_topic("orders", 3)
        world.make_topic("people", 2)
        producer = Producer(
            {"bootstrap.servers": world.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        )

        def write(start: int, count: int, city: str) -> None:
            for key, value in documents(start, count, city):
                producer.produce("orders", value, key)
            assert producer.flush(30) == 0

        write(0, 2_000, "old")
        with Writer(world.bootstrap, "people", 3, change, per_second=300) as people:
            people.write(300)
            two_indexes(world, "orders")
            two_indexes(world, "people")
            check_both(world, "orders")
            client = world.client()
            page = client.page("orders_by_city", limit=10)
            with Reading(world.cluster.node_urls[1], "people_by_city") as reading:
                admin = AdminClient({"bootstrap.servers": world.bootstrap})
                admin.delete_topics(["orders"])["orders"].result(30)
                wait_for(lambda: "orders" not in admin.list_topics(timeout=10).topics, "the topic is gone")
                world.make_topic("orders", 5)
                producer = Producer(
                    {
                        "bootstrap.servers": world.bootstrap,
                        "enable.idempotence": True,
                        "acks": "all",
                        "log_level": 0,
                    }
                )
                write(30_000, 900, "new")
                wait_for(lambda: stability(world, "orders")["incarnation"] == 1, "rolled back")
                check_both(world, "orders")
                write(40_000, 500, "newer")
                check_both(world, "orders")
            with pytest.raises(HistoryChangedError):
                client.count("orders_by_city")
            client.reset_session()
            with pytest.raises(HistoryChangedError):
                client.page("orders_by_city", page=page.page)
            client.reset_session()
            assert client.count("orders_by_city", low=["old"], high=["old-99"]).count == 0
            client.close()
            last = stability(world, "orders")["last_rollback"]
            assert (last["cause"], last["snapshot"]) == ("recreated", None)
            assert reading.errors == []
            assert reading.snapshots == sorted(reading.snapshots)
            assert stability(world, "people")["incarnation"] == 0
        check_both(world, "people")
