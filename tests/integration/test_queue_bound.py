"""A copy that holds back more of its slice's queue than it may is filled anew elsewhere, long before its node
counts as gone; Kafka's own word on sizes decides."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from keytide.kafka.admin import list_offsets
from tests.integration.conftest import Worlds
from tests.integration.world import Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(600)]

MOST = 300_000
SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
    "KEYTIDE_INDEXER__UNDO_S": "1",
    "KEYTIDE_COORDINATOR__TRIM_INTERVAL_S": "1",
    "KEYTIDE_COORDINATOR__QUEUE_MAX_BYTES": str(MOST),
}
TOPIC, INDEX = "calls", "calls_city"
STATEMENT = f"CREATE INDEX {INDEX} ON {TOPIC} (city, n) WITH (slices=1, replicas=1, defer_build=true)"


def _call(chance: random.Random, _: int) -> tuple[str, Any]:
    city = f"city{chance.randrange(1 << 30)}" + "x" * 100
    return f"c{chance.randrange(500)}", {"city": city, "n": chance.randrange(100)}


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["n"]]


def test_a_node_that_is_away_holds_back_so_much_and_no_more(worlds: Worlds) -> None:
    with worlds(SETTINGS, nodes=3, supervise=False) as world:
        cluster = world.cluster
        world.begin_live(TOPIC, _call, 1_000, INDEX, STATEMENT, 1)
        shown = world.admin.call("GET", f"/v1/indexes/{INDEX}")
        kafka = AdminClient({"bootstrap.servers": world.bootstrap})
        queue = f"{cluster.name}.mutations.{shown['id']}"

        def on() -> set[str]:
            nodes = world.admin.call("GET", "/v1/nodes")
            return {one["id"] for one in nodes if one["counted"]}

        def taken_out() -> list[str]:
            events = world.admin.call("GET", "/v1/events?limit=1000")
            return [one["text"] for one in events if one["kind"] == "copy-taken-out"]

        away = min(on())
        with Writer(world.bootstrap, TOPIC, 2, _call, per_second=500):
            cluster.kill(away)
            wait_for(lambda: bool(taken_out()), "its copy is taken out", 120)
            (told,) = taken_out()
            assert f"on node {away} counts no longer" in told
            assert "coordinator.queue_max_bytes" in told
            wait_for(lambda: len(on()) == 2 and away not in on(), "another one is filled", 120)

            def begin() -> int:
                return list_offsets(kafka, queue, [0], earliest=True)[0]

            before = begin()
            wait_for(lambda: begin() > before, "the queue goes on being deleted", 60)
            world.check(INDEX, TOPIC, _by_city, node=int(min(on())[-1]) - 1)
