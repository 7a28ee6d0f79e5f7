"""The source loses records, and slices have folded further than they can step back (R33): they are rebuilt by
Spark, and an index of another keyspace notices nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.cluster import LocalCluster
from tests.chaos.truncating import cut
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__NICE": "0",
    "KEYTIDE_BUILD__REBUILD_NICE": "0",
    "KEYTIDE_BUILD__VERIFY": "false",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
    "KEYTIDE_INDEXER__UNDO_BYTES": "1",  # no step back is kept
}
LOSING, OTHER = "losing", "other"
ROUND = 400
"""Documents, over two partitions."""
BATCH = 50
"""So that Kafka's log has batches enough to be cut between."""


def _person(chance: random.Random, _: int) -> tuple[str, Any]:
    return f"p{chance.randrange(2_000)}", {"city": f"city{chance.randrange(30)}", "at": time.time()}


def _city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    local = LocalCluster(tmp_path / "cluster", nodes=2, settings=SETTINGS, supervise=False)
    with local as cluster, World(cluster) as world:
        for topic in (LOSING, OTHER):
            world.make_topic(topic, 2)
            world.sql(f"CREATE INDEX {topic}_city ON {topic} (city) WITH (slices=2, defer_build=true)")
        for topic in (LOSING, OTHER):  # there is nothing to read
            world.wait_ready(world.build(f"{topic}_city"))
        yield world


def _folded_at(world: World) -> list[float]:
    """When the base of each slice of the index that loses was last written."""
    id_ = world.admin.call("GET", f"/v1/indexes/{LOSING}_city")["id"]
    bases = sorted(world.cluster.data_dir.glob(f"node-*/nodes/*/slices/{id_}/*/base/data.mdb"))
    assert len(bases) == 2
    return [base.stat().st_mtime for base in bases]


def _events(world: World) -> list[tuple[str, str]]:
    return [(one["kind"], one["text"]) for one in world.admin.call("GET", "/v1/events")]


def test_19_slices_that_cannot_step_back_are_rebuilt_alone(world: World) -> None:
    other_id = world.admin.call("GET", f"/v1/indexes/{OTHER}_city")["id"]
    with (
        Writer(world.bootstrap, LOSING, 3, _person, per_second=0.01) as writer,
        Writer(world.bootstrap, OTHER, 4, _person, per_second=0.01) as other,
    ):
        for _ in range(4):  # what is folded last has all but the last rounds in it
            before = _folded_at(world)
            for _ in range(ROUND // BATCH):
                writer.write(BATCH)
            other.write(ROUND // 4)
            assert world.check_at_end(f"{LOSING}_city", LOSING, _city) > 0
            wait_for(
                lambda before=before: all(  # type: ignore[misc]
                    now > then for now, then in zip(_folded_at(world), before, strict=True)
                ),
                "every slice has folded",
                60,
            )
        assert world.check_at_end(f"{OTHER}_city", OTHER, _city) > 0

    world.cluster.broker.kill()
    # Half of a round is this partition's. What is left must have a timestamp behind 0, else slices begin
    # anew; and it must end before the last fold. The first round ends at about 200, the third at 600.
    lost = cut(world.cluster.data_dir / "kafka" / "data", LOSING, 0, ROUND)
    world.sources.pop(LOSING).close()  # it has read what is lost
    world.cluster.broker.restart()
    with Writer(world.bootstrap, OTHER, 5, _person, per_second=100):
        wait_for(lambda: "rolled-back" in {kind for kind, _ in _events(world)}, "the loss is noticed")
        assert world.check_at_end(f"{OTHER}_city", OTHER, _city) > 0
        wait_for(lambda: "slices-rebuilt" in {kind for kind, _ in _events(world)}, "slices are rebuilt")
        assert world.check_at_end(f"{OTHER}_city", OTHER, _city) > 0
    told = _events(world)
    assert any(kind == "slice-lost" and "cannot step back further" in text for kind, text in told)
    assert not any(kind in ("slice-lost", "rolled-back") and other_id in text for kind, text in told)
    with Writer(world.bootstrap, LOSING, 6, _person, per_second=0.01) as writer:
        writer.write(ROUND)
        assert world.ends(LOSING)[0] > lost.end
        assert world.check_at_end(f"{LOSING}_city", LOSING, _city) > 0
