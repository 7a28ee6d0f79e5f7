"""A hot slice on real nodes: it is noticed, the value that makes it hot is named, and the statement that is
advised spreads it; or it is split by itself, where half of what is written to it lies."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from keytide.errors import KeytideError
from tests.integration.conftest import Worlds
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_COORDINATOR__HOT_AFTER_S": "8",
    "KEYTIDE_COORDINATOR__HOT_RATE": "20",
    "KEYTIDE_COORDINATOR__AUTO_SPLIT_AFTER_S": "4",
    "KEYTIDE_COORDINATOR__LEAVE_AFTER_S": "5",
    "KEYTIDE_SCAN__LEASE_S": "5",
}
TOPIC, INDEX = "visits", "visits_city"
STATEMENT = f"CREATE INDEX {INDEX} ON {TOPIC} (city, n) WITH (slices=4, defer_build=true)"


def _visit(chance: random.Random, _: int) -> tuple[str, Any]:
    city = "Rome" if chance.random() < 0.9 else f"city{chance.randrange(40)}"
    return f"v{chance.randrange(2_000)}", {"city": city, "n": chance.randrange(100)}


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"], document["n"]]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as made:
        made.begin_live(TOPIC, _visit, 2_000, INDEX, STATEMENT)
        yield made


def _load(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.admin.call("GET", f"/v1/indexes/{INDEX}/load")
    return found


def test_a_hot_slice_is_told_of_and_the_statement_that_is_advised_spreads_it(world: World) -> None:
    with Writer(world.bootstrap, TOPIC, 2, _visit, per_second=400):
        wait_for(lambda: _load(world)["hot"], "a slice is hot", 120)
        wait_for(lambda: "SET (slices=4)" in _load(world)["hot"][0]["statement"], "a value is blamed", 60)
        document = _load(world)
        (hot,) = [one for one in document["hot"] if one["measure"] == "writes"]
        assert hot["value"] > 3 * hot["others"]
        first = document["values"][0]
        assert (first["slice"], first["value"]) == (hot["slice"], "Rome")
        assert first["percent"] > 70
        assert f"slice {hot['slice']} of {INDEX}" in str(world.admin.call("GET", "/v1/health")["reasons"])
        before = world.admin.call("GET", f"/v1/indexes/{INDEX}")["id"]
        world.sql(hot["statement"])
        wait_for(
            lambda: world.admin.call("GET", f"/v1/indexes/{INDEX}")["id"] != before, "it is replaced", 240
        )
        wait_for(lambda: all(one["writes_per_s"] for one in _load(world)["slices"]), "its load is seen", 60)
        rates = [one["writes_per_s"] for one in _load(world)["slices"]]
        assert max(rates) < 2 * sum(rates) / len(rates), rates
    shown = world.admin.call("GET", f"/v1/indexes/{INDEX}")
    assert sorted(shown["partition_slices"]) == [1, 1, 1, 4]
    hottest = shown["partition_slices"].index(4)
    with world.client(1) as client:
        rome = client.explain(f"SELECT n FROM {TOPIC} WHERE city = 'Rome'")
        assert rome["partitions_asked"] == [hottest]
        assert rome["slices_asked"] == list(range(hottest, hottest + 4))
        plans = [client.explain(f"SELECT n FROM {TOPIC} WHERE city = 'city{n}'") for n in range(20)]
        assert {len(one["slices_asked"]) for one in plans} == {1, 4}, "others are asked as they were"
    world.check(INDEX, TOPIC, _by_city)


RANGED = "visits_n"
BY_N = (
    f"CREATE INDEX {RANGED} ON {TOPIC} (n) PARTITION BY RANGE(n) SPLIT AT (80, 90, 95) WITH (auto_split=true)"
)


def _by_n(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["n"]]


def _index(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.admin.call("GET", f"/v1/indexes/{RANGED}")
    return found


def test_a_hot_range_is_split_by_itself_and_others_where_half_of_them_lies(world: World) -> None:
    world.sql(BY_N)
    wait_for(lambda: _index(world)["state"] == "READY", "it is built", 240)
    first = _index(world)["id"]
    with Writer(world.bootstrap, TOPIC, 2, _visit, per_second=400):
        wait_for(lambda: _index(world)["id"] != first, "it has a new layout by itself", 300)
        split, *given = _index(world)["splits"]
        assert given == [80, 90, 95]
        assert 25 <= split <= 55, "four fifths of what is written lie below 80, evenly"
        events = world.admin.call("GET", "/v1/events")
        assert any(one["kind"] == "auto-split" and "partition 0 is split" in one["text"] for one in events)
        wait_for(lambda: not _index(world)["layouts"], "the old layout is gone", 60)
        second = _index(world)["id"]

        def split_again() -> bool:
            with contextlib.suppress(KeytideError):  # (its node has not seen enough yet)
                world.sql(f"ALTER INDEX {RANGED} SPLIT PARTITION 1")
            return bool(_index(world)["layouts"])

        wait_for(split_again, "its node says where half of it lies", 60)
        wait_for(lambda: _index(world)["id"] != second, "it is replaced", 240)
    lower, upper, *given = _index(world)["splits"]
    assert (lower, given) == (split, [80, 90, 95])
    assert split < upper < 80
    world.check(RANGED, TOPIC, _by_n)
